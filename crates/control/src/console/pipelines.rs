//! The list of pipelines.

use super::blocks::{self, Pager};
use super::shell::{Shell, Tab, page};
use super::{routes, tone, words};
use forgeyard_model::ChannelName;
use forgeyard_model::pipeline::{Pipeline, PipelineState};
use maud::{Markup, html};

/// Which pipelines are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Filter {
    /// All of them.
    #[default]
    All,
    /// Not ended.
    Active,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// Stopped or replaced.
    Canceled,
}

impl Filter {
    /// Every filter, in the order of the page.
    pub const ALL: [Filter; 5] =
        [Filter::All, Filter::Active, Filter::Succeeded, Filter::Failed, Filter::Canceled];

    /// Value of the query parameter `state`.
    pub const fn name(self) -> &'static str {
        match self {
            Filter::All => "all",
            Filter::Active => "active",
            Filter::Succeeded => "succeeded",
            Filter::Failed => "failed",
            Filter::Canceled => "canceled",
        }
    }

    /// The filter of this name; an unknown name lists all.
    pub fn parse(text: &str) -> Self {
        Self::ALL.into_iter().find(|filter| filter.name() == text).unwrap_or_default()
    }
}

/// The page.
pub fn pipelines(shell: &Shell, rows: &[Pipeline], filter: Filter, pager: &Pager) -> Markup {
    page(
        shell,
        Tab::Pipelines,
        "Pipelines",
        &html! {
            header.page-head {
                h1 { "Pipelines" }
                p.lead { "From a commit to a tested package: each row is one event that the gate let in." }
            }
            nav.filters aria-label="Filter by state" {
                @for this in Filter::ALL {
                    @let href = if this == Filter::All {
                        routes::PIPELINES.to_owned()
                    } else {
                        format!("{}?state={}", routes::PIPELINES, this.name())
                    };
                    a href=(href) aria-current=[(this == filter).then_some("true")] { (this.name()) }
                }
            }
            @if rows.is_empty() && filter == Filter::All {
                (first_steps(shell))
            } @else if rows.is_empty() {
                (blocks::empty(
                    &format!("No {} pipelines", filter.name()),
                    "Nothing is in this state on this page.",
                    &html! { a.button.primary href=(routes::PIPELINES) { "Show all pipelines" } },
                ))
            } @else {
                div data-live="/api/v1/live" data-fragment=(fragment(filter)) data-part="rows" {
                    (table(shell, rows))
                }
            }
            (pager.links())
        },
    )
}

fn fragment(filter: Filter) -> String {
    format!("{}?state={}&fragment=rows", routes::PIPELINES, filter.name())
}

/// The table alone: `?fragment=rows`.
pub fn table(shell: &Shell, rows: &[Pipeline]) -> Markup {
    html! {
        div.table-scroll {
            table.stack {
                thead { tr {
                    th scope="col" { "State" }
                    th scope="col" { "Repository" }
                    th scope="col" { "Trigger" }
                    th scope="col" { "Lane" }
                    th scope="col" { "Started" }
                    th scope="col" { "Duration" }
                } }
                tbody { @for row in rows { (line(shell, row)) } }
            }
        }
    }
}

fn line(shell: &Shell, row: &Pipeline) -> Markup {
    html! {
        tr {
            td data-label="State" { (tone::pipeline(&row.state).badge()) }
            td data-label="Repository" {
                a.row-link href=(routes::pipeline(row.id)) { (row.event.repository.name) }
                div.sub { (words::commit(&row.event.head_sha)) " by " (row.event.sender.login) }
            }
            td data-label="Trigger" {
                (words::trigger(&row.event))
                @if let Some(reason) = &row.not_promoted { div.sub { "not promoted: " (reason.code) } }
                @if let Some(channel) = promoted(row) { div.sub { "promoted to " (channel) } }
            }
            td data-label="Lane" { (words::lane(row.lane)) }
            td data-label="Started" { (words::when(shell.now, row.created_at)) }
            td.num data-label="Duration" { (words::span(row.created_at, row.ended_at, shell.now)) }
        }
    }
}

/// The channel that the packages of a pipeline have reached.
fn promoted(row: &Pipeline) -> Option<&ChannelName> {
    let reached = matches!(row.state, PipelineState::Environment | PipelineState::Succeeded);
    row.channel.as_ref().filter(|_| reached && row.not_promoted.is_none())
}

fn first_steps(shell: &Shell) -> Markup {
    blocks::empty(
        "No pipeline yet",
        "A pipeline starts when a commit arrives and the gate allows it. Three ways to get the first one:",
        &html! {
            ol.ways {
                li {
                    h3 { "See the whole chain now" }
                    p { "The tour makes a repository, sends two signed webhooks and carries a package to a running program." }
                    (blocks::command("forgeyard tour"))
                }
                li {
                    h3 { "Run a recipe folder of your own" }
                    p { "Builds and tests it on this farm. No forge is needed; nothing is promoted." }
                    (blocks::command("forgeyard run FOLDER"))
                }
                li {
                    h3 { "Connect a repository" }
                    p {
                        "Name it in " code { "forgeyard.toml" } ", grant it in the access file, then add a webhook at the forge: "
                        "content type " code { "application/json" } ", the events " em { "pushes" } " and "
                        em { "pull requests" } ", the secret of this farm, and this address:"
                    }
                    @for address in shell.hook_addresses() { (blocks::command(&address)) }
                    p { "What arrives, and what became of it, is listed under " a href=(routes::DELIVERIES) { "Deliveries" } "." }
                }
            }
        },
    )
}
