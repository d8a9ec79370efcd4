//! One job: why it is where it is, its verdict with the decisive lines, its attempts, its log.

use super::blocks::{self, ButtonKind};
use super::log::{Growth, LogWindow, viewer};
use super::shell::{Names, Shell, Tab, page};
use super::tone;
use super::{artifacts, routes, words};
use forgeyard_api::people::{JobView, Why};
use forgeyard_model::attempt::Attempt;
use forgeyard_model::job::{Job, JobKind, JobState};
use forgeyard_model::principal::Role;
use forgeyard_model::verdict::{Blame, ExitFacts, LogLine, Outcome, RetryPolicy, Verdict};
use maud::{Markup, html};

/// The page.
pub fn job(shell: &Shell, view: &JobView, why: &Why, log: &LogWindow, names: &Names) -> Markup {
    let job = &view.job;
    let running = !job.state.ended();
    let pipeline = view.pipeline.as_ref();
    let owner_name = match (pipeline, &view.demand) {
        (Some(pipeline), _) => {
            format!("{} · {}", pipeline.event.repository.name, words::trigger(&pipeline.event))
        }
        (None, Some(demand)) => {
            format!("{} · job {} of {}", demand.repository.name, demand.job, demand.repository.forge)
        }
        (None, None) => "no longer known".to_owned(),
    };
    let owner_page =
        pipeline.map_or_else(|| routes::PIPELINES.to_owned(), |pipeline| routes::pipeline(pipeline.id));
    page(
        shell,
        Tab::Pipelines,
        &job.key,
        &html! {
            (blocks::crumbs(&[("Pipelines", routes::PIPELINES), (&owner_name, &owner_page)]))
            div #live data-live=[pipeline.filter(|_| running).map(|pipeline| routes::live(pipeline.id))]
                data-fragment=(routes::job_fragment(job.id)) {
                (fragment(shell, view, why, names))
            }
            (viewer(log, &routes::job_log(job.id), growth(&job.state)))
        (history(shell, view))
        },
    )
}

/// The live part of the page, all but the log: `?fragment=state`.
pub fn fragment(shell: &Shell, view: &JobView, why: &Why, names: &Names) -> Markup {
    let job = &view.job;
    html! {
        header.page-head {
            div.title-row {
                h1 { (job.key) }
                (tone::job(&job.state).badge())
                div.actions { (buttons(shell, job)) }
            }
            p.lead { (about(job)) }
            (blocks::facts(&facts(shell, view)))
        }
        (why_block(job, why))
        @if let Some(verdict) = &job.verdict { (verdict_card(job, verdict, why)) }
        (attempts(shell, view, names))
        @if !view.artifacts.is_empty() {
            section.card {
                h2 { "Artifacts" }
                (artifacts::table(shell, &view.artifacts, std::slice::from_ref(job)))
            }
        }
    }
}

fn about(job: &Job) -> Markup {
    html! {
        @match job.kind {
            JobKind::Plan => { "Renders the recipe, to learn which packages it makes." }
            JobKind::Build => {
                "Makes "
                @if job.outputs.is_empty() { "packages" } @else { (job.outputs.join(", ")) }
                ". No tests run and no GPU is held while it compiles."
            }
            JobKind::Test => {
                "Tests "
                @match &job.test { Some(test) => { (test.output) } None => { "a package" } }
                " by digest in a fresh machine."
                @if let Some(selection) = job.test.as_ref().and_then(|test| test.selection.as_ref()) {
                    " Here because: " (selection.reason) "."
                }
            }
            JobKind::Runner => { "A runner of a forge: it takes one job of that forge, and is gone." }
        }
    }
}

fn facts<'a>(shell: &Shell, view: &JobView) -> Vec<(&'a str, Markup)> {
    let job = &view.job;
    let mut rows = vec![
        ("Since", words::when(shell.now, job.since)),
        ("Whole time", words::span(job.created_at, job.ended_at, shell.now)),
        ("Attempts", html! { (job.fence) }),
    ];
    if let Some(spec) = &job.spec {
        rows.push(("Flavor", html! { (spec.flavor) }));
        if let Some(gpu) = &spec.gpu {
            rows.push((
                "GPU",
                html! {
                    (gpu.count)
                    @if let Some(kind) = gpu.kind { " × " (kind.label()) } @else { " of any kind" }
                    @if gpu.min_memory_mib > 0 { ", at least " (words::bytes(gpu.min_memory_mib << 20)) }
                },
            ));
        }
        if let Some(subject) = &spec.subject {
            rows.push(("Package", html! { (subject.file_name) " " (words::digest(&subject.digest)) }));
        }
    }
    rows.push((
        "Job",
        html! {
            (words::id(job.id)) " " a href=(routes::audit_of(&job.id.to_string())) { "audit" }
        },
    ));
    rows
}

fn buttons(shell: &Shell, job: &Job) -> Markup {
    let on_kept = [("test_only", "true")];
    html! {
        @match (&job.state, job.kind) {
            (JobState::Ended { .. }, JobKind::Test) => {
                (blocks::action(shell, Role::Maintainer, &routes::job_rerun(job.id),
                    "Rerun this test on the kept package", ButtonKind::Primary, &on_kept))
            }
            (JobState::Ended { .. }, JobKind::Plan | JobKind::Build) => {
                (blocks::action(shell, Role::Maintainer, &routes::job_rerun(job.id), "Rerun", ButtonKind::Primary, &[]))
            }
            // The forge runs its jobs again, not this farm.
            (JobState::Ended { .. }, JobKind::Runner) => {}
            _ if job.cancel_requested_at.is_some() => {
                button.danger type="button" disabled { "Stopping…" }
            }
            _ => {
                (blocks::action(shell, Role::Maintainer, &routes::job_cancel(job.id), "Cancel", ButtonKind::Danger, &[]))
            }
        }
    }
}

fn why_block(job: &Job, why: &Why) -> Markup {
    let word = tone::job(&job.state);
    let title = match (&job.state, why.position) {
        (JobState::Queued, Some(position)) => format!("Queued, place {position}"),
        (JobState::Ended { outcome: Outcome::Succeeded }, _) => "Done".to_owned(),
        (JobState::Ended { .. }, _) => "Why it ended".to_owned(),
        (JobState::Held(_) | JobState::Queued, _) => "Why it waits".to_owned(),
        (JobState::Placed { .. } | JobState::Starting { .. } | JobState::Running { .. }, _) => {
            "Now".to_owned()
        }
    };
    html! {
        (blocks::explanation(word.tone, &title, &why.reason, (!why.next.is_empty()).then_some(&*why.next)))
        @if !why.allowed_by.is_empty() {
            p.allowed { "Allowed by " @for (index, rule) in why.allowed_by.iter().enumerate() {
                @if index > 0 { ", " } code { (rule) }
            } }
        }
    }
}

/// Lines of a verdict that are shown at once.
const SHOWN: usize = 20;

fn decisive_lines(lines: &[LogLine]) -> Markup {
    html! {
        ol.decisive-lines {
            @for line in lines {
                li {
                    @if line.number == 0 { span.from { "kernel" } }
                    @else { a.from href={ "#L" (line.number) } { "line " (line.number) } }
                    code { (words::visible(&line.text)) }
                }
            }
        }
    }
}

fn verdict_card(job: &Job, verdict: &Verdict, why: &Why) -> Markup {
    let lines = if verdict.lines.is_empty() { &why.lines } else { &verdict.lines };
    html! {
        section.card.verdict {
            h2 { "Verdict" }
            div.title-row {
                (tone::outcome(verdict.outcome).badge())
                @match &verdict.class {
                    Some(class) => { code.class { (class) } }
                    None if verdict.outcome == Outcome::Succeeded => {}
                    None => { span.quiet-text { "no known class: the farm does not guess" } }
                }
            }
            p { (words::visible(&verdict.cause)) }
            @if !lines.is_empty() {
                @let earlier = lines.len().saturating_sub(SHOWN);
                @if earlier > 0 {
                    details { summary { (earlier) " earlier lines" } (decisive_lines(&lines[..earlier])) }
                }
                (decisive_lines(&lines[earlier..]))
            }
            @if let Some(fix) = &verdict.fix { p.fix { strong { "What to do: " } (words::visible(fix)) } }
            (blocks::facts(&[
                ("Points at", html! { @match verdict.blame {
                    Some(blame) => { (blame_text(blame)) } None => { "nothing in particular" }
                } }),
                ("Then", html! { (retry_text(verdict.retry)) }),
                ("Rule", html! { @match &verdict.rule { Some(rule) => { code { (rule) } } None => { "exit facts" } } }),
                ("Retries used", html! { (job.retries) }),
            ]))
        }
    }
}

const fn blame_text(blame: Blame) -> &'static str {
    match blame {
        Blame::U => "the package or its tests",
        Blame::A => "the architecture",
        Blame::D => "the driver stack of the host",
        Blame::H => "the hardware",
        Blame::I => "the host or a service",
        Blame::S => "scheduling or configuration",
        Blame::X => "an external source",
    }
}

const fn retry_text(retry: RetryPolicy) -> &'static str {
    match retry {
        RetryPolicy::R0 => "not retried",
        RetryPolicy::R1 => "retried once, in the same place",
        RetryPolicy::R2 => "retried once, on another host of the same architecture",
        RetryPolicy::R3 => "run for diagnosis on another architecture; red stays red",
        RetryPolicy::RB => "retried with back-off, at most five times",
        RetryPolicy::RQ => "device quarantined, then run elsewhere",
        RetryPolicy::RM => "retried with more memory or less at once",
        RetryPolicy::RE => "held until the capacity changes",
    }
}

fn attempts(shell: &Shell, view: &JobView, names: &Names) -> Markup {
    html! {
        section.card {
            h2 { "Attempts" }
            @if view.attempts.is_empty() {
                p.quiet-text { "None yet. An attempt begins when a machine is placed; the reason above says what is missing." }
            } @else {
                div.table-scroll { table.stack {
                    thead { tr {
                        th scope="col" { "No." }
                        th scope="col" { "State" }
                        th scope="col" { "Where" }
                        th scope="col" { "Machine" }
                        th scope="col" { "GPU lease" }
                        th scope="col" { "Placed" }
                        th scope="col" { "Took" }
                        th scope="col" { "Seen at the end" }
                    } }
                    tbody { @for attempt in view.attempts.iter().rev() { (attempt_row(shell, view, attempt, names)) } }
                } }
            }
        }
    }
}

fn attempt_row(shell: &Shell, view: &JobView, attempt: &Attempt, names: &Names) -> Markup {
    let runner = view.runners.iter().find(|runner| runner.id == attempt.runner);
    let lease = view.leases.iter().find(|lease| Some(lease.id) == attempt.lease);
    html! {
        tr {
            td.num data-label="No." { (attempt.fence) }
            td data-label="State" {
                (tone::attempt(attempt.state, attempt.outcome).badge())
                @if let Some(step) = &attempt.step { div.sub { "step " (words::visible(step)) } }
            }
            td data-label="Where" { (names.site(attempt.site)) }
            td data-label="Machine" {
                @match runner {
                    Some(runner) => {
                        (runner.pool) " · " (runner.flavor)
                        div.sub { (tone::runner(&runner.state).text) }
                        @if runner.state.wanted() && shell.may(Role::Operator) {
                            (blocks::action_with_reason(shell, Role::Operator, &routes::runner_keep(runner.id), "Keep for autopsy"))
                        }
                    }
                    None => { (words::id(attempt.runner)) }
                }
            }
            td data-label="GPU lease" {
                @match lease {
                    Some(lease) => {
                        (lease.devices.iter().map(|device| names.device(*device)).collect::<Vec<_>>().join(", "))
                        div.sub { (tone::lease(lease.state).text) " · " (words::span(lease.claimed_at, lease.ended_at, shell.now)) }
                    }
                    None => { "–" }
                }
            }
            td data-label="Placed" { (words::when(shell.now, attempt.placed_at)) }
            td.num data-label="Took" { (words::span(attempt.placed_at, attempt.ended_at, shell.now)) }
            td data-label="Seen at the end" { @match &attempt.facts { Some(facts) => { (seen(facts)) } None => { "–" } } }
        }
    }
}

/// What the supervisor saw, in short phrases.
fn seen(facts: &ExitFacts) -> Markup {
    let mut seen: Vec<String> = Vec::new();
    if let Some(step) = facts.steps.last() {
        seen.push(match (step.exit_code, step.signal) {
            (Some(code), _) => format!("{} exited {code}", step.name),
            (None, Some(signal)) => format!("{} ended by signal {signal}", step.name),
            (None, None) => format!("{} left no exit record", step.name),
        });
    }
    if let Some(oom) = &facts.oom {
        seen.push(format!(
            "out of memory: peak {} of {}{}",
            words::bytes(oom.peak_bytes),
            words::bytes(oom.limit_bytes),
            oom.victim.as_ref().map(|victim| format!(", victim {victim}")).unwrap_or_default()
        ));
    } else if let Some(peak) = facts.peak_memory_bytes {
        seen.push(format!("peak memory {}", words::bytes(peak)));
    }
    if let Some(cache) = &facts.cache {
        let mut lines = cache.lines().into_iter();
        seen.extend(lines.next().map(|sum| format!("cache {}: {sum}", cache.scope)));
        seen.extend(lines.map(|line| format!("cache, {line}")));
    }
    if let Some(error) = &facts.supervisor_error {
        seen.push(format!("supervisor: {error}"));
    }
    for missing in &facts.missing_outputs {
        seen.push(format!("missing output {missing}"));
    }
    if let Some(device) = &facts.device {
        seen.push(format!(
            "{} {}",
            device.kind.label(),
            if device.touched { "was used" } else { "was never touched" }
        ));
        seen.extend(device.evidence.iter().cloned());
    }
    for (name, metric) in &facts.metrics {
        seen.push(format!("{name} {} {}", metric.value, metric.unit));
    }
    html! { ul.plain { @for line in &seen { li { (words::visible(line)) } } } }
}

fn history(shell: &Shell, view: &JobView) -> Markup {
    html! {
        @if !view.events.is_empty() {
            details.card.history {
                summary { h2 { "History" } span.quiet-text { (view.events.len()) " events" } }
                (super::audit::table(shell, &view.events))
            }
        }
    }
}

const fn growth(state: &JobState) -> Growth {
    match state {
        JobState::Held(_) | JobState::Queued => Growth::Before,
        JobState::Placed { .. } | JobState::Starting { .. } | JobState::Running { .. } => Growth::Now,
        JobState::Ended { .. } => Growth::Over,
    }
}
