//! One pipeline: the picture of its chain, where the time went, why it was not promoted, what it made.

use super::shell::{Names, Shell, Tab, page};
use super::tone::Tone;
use super::{artifacts, blocks, chain, routes, timeline, tone, words};
use forgeyard_api::people::PipelineView;
use forgeyard_model::account::RepositoryKey;
use forgeyard_model::forge::Trigger;
use forgeyard_model::job::{Hold, JobState};
use forgeyard_model::pipeline::PipelineState;
use maud::{Markup, html};

/// The page.
pub fn pipeline(shell: &Shell, view: &PipelineView, names: &Names) -> Markup {
    let pipeline = &view.pipeline;
    let title = format!("{} · {}", pipeline.event.repository.name, words::trigger(&pipeline.event));
    page(
        shell,
        Tab::Pipelines,
        &title,
        &html! {
            (blocks::crumbs(&[("Pipelines", routes::PIPELINES)]))
            div #live data-live=[(!pipeline.state.ended()).then(|| routes::live(pipeline.id))]
                data-fragment=(routes::pipeline_fragment(pipeline.id)) {
                (fragment(shell, view, names))
            }
        },
    )
}

/// The live part of the page: `?fragment=chain`.
pub fn fragment(shell: &Shell, view: &PipelineView, names: &Names) -> Markup {
    let graph = chain::graph(view);
    let layout = chain::layout(&graph);
    html! {
        (head(shell, view))
        (reasons(view))
        @if view.jobs.iter().any(|job| matches!(job.state, JobState::Held(Hold::Approval { .. }))) {
            @let event = &view.pipeline.event;
            @let id = view.pipeline.id;
            (blocks::judge(shell, &RepositoryKey::of(&event.repository), &event.head_sha, &routes::pipeline_approve(id), &routes::pipeline_refuse(id), ""))
        }
        section.card.chain-card {
            h2 { "Chain" }
            (chain::picture(&graph, &layout, shell.now))
            (chain::list(&graph, shell.now))
        }
        (timeline::timeline(view, names, shell.now))
        section.card {
            h2 { "Artifacts" }
            @if view.artifacts.is_empty() {
                p.quiet-text {
                    @if view.pipeline.state.ended() {
                        "This pipeline made none. "
                        a href=(routes::audit_of(&view.pipeline.id.to_string())) { "See what happened in the audit trail." }
                    } @else {
                        "None yet. The source tree comes first, then the plan, then one package for each build; each is stored by digest before it is used."
                    }
                }
            } @else {
                (artifacts::table(shell, &view.artifacts, &view.jobs))
            }
        }
    }
}

fn head(shell: &Shell, view: &PipelineView) -> Markup {
    let pipeline = &view.pipeline;
    let event = &pipeline.event;
    html! {
        header.page-head {
            div.title-row {
                h1 { (event.repository.name) }
                (tone::pipeline(&pipeline.state).badge())
            }
            p.lead { (words::trigger(event)) }
            (blocks::facts(&[
                ("Commit", words::commit(&event.head_sha)),
                ("Lane", words::lane(pipeline.lane)),
                ("Started", words::when(shell.now, pipeline.created_at)),
                ("Duration", words::span(pipeline.created_at, pipeline.ended_at, shell.now)),
                ("By", html! {
                    (event.sender.login)
                    @if let Some(author) = &event.author { @if author.id != event.sender.id { ", opened by " (author.login) } }
                }),
                ("Allowed by", html! {
                    @if pipeline.allowed_by.is_empty() { "–" }
                    @for (index, rule) in pipeline.allowed_by.iter().enumerate() {
                        @if index > 0 { ", " } code { (rule) }
                    }
                }),
                ("Delivery", html! { @if matches!(event.trigger, Trigger::Manual) { "by hand" } @else { code { (pipeline.delivery) } } }),
                ("Pipeline", html! { (words::id(pipeline.id)) " " a href=(routes::audit_of(&pipeline.id.to_string())) { "audit" } }),
            ]))
        }
    }
}

/// Whatever keeps the pipeline from its end, most pressing first.
fn reasons(view: &PipelineView) -> Markup {
    let pipeline = &view.pipeline;
    html! {
        @match &pipeline.state {
            PipelineState::Failed { reason } => { (blocks::explanation(Tone::Bad, "Why it failed", reason, None)) }
            PipelineState::Canceled { reason } => {
                (blocks::explanation(Tone::Stopped, "Why it was stopped", reason, None))
            }
            PipelineState::Running | PipelineState::Promoting | PipelineState::Environment | PipelineState::Succeeded => {}
        }
        @if let Some(reason) = &pipeline.not_promoted {
            (blocks::explanation(Tone::Idle, "Why it is not promoted", reason, None))
        }
        @if !pipeline.state.ended() {
            @for job in &view.jobs {
                @if let Some(reason) = waiting(job) {
                    (blocks::explanation(Tone::Waiting, &format!("Why {} waits", job.key), reason, None))
                }
            }
        }
    }
}

/// The reason why a job waits, unless it simply waits for its own predecessors, which the picture already shows.
fn waiting(job: &forgeyard_model::job::Job) -> Option<&forgeyard_model::Explanation> {
    match &job.state {
        JobState::Held(Hold::Approval { reason }) => Some(reason),
        JobState::Held(Hold::Artifacts { .. } | Hold::Source | Hold::Inspection) => None,
        JobState::Held(Hold::Retry { .. }) | JobState::Queued => job.waiting.as_ref(),
        JobState::Placed { .. }
        | JobState::Starting { .. }
        | JobState::Running { .. }
        | JobState::Ended { .. } => None,
    }
}
