//! The queue: who waits, since when, and why; then those whom the gate refused lately.

use super::blocks;
use super::shell::{Shell, Tab, page};
use super::tone::{Tone, Word};
use super::{routes, words};
use forgeyard_api::people::QueueRow;
use forgeyard_model::account::RepositoryKey;
use maud::{Markup, html};

/// The page.
pub fn queue(shell: &Shell, rows: &[QueueRow]) -> Markup {
    let (refused, waiting): (Vec<&QueueRow>, Vec<&QueueRow>) =
        rows.iter().partition(|row| row.state == "refused");
    page(
        shell,
        Tab::Queue,
        "Queue",
        &html! {
            header.page-head {
                h1 { "Queue" }
                p.lead { "Everybody who waits, with the reason and what happens next. Jobs of forges stand here until a runner has them." }
            }
            @if waiting.is_empty() {
                (blocks::empty("Nobody waits", "Every job that is allowed has a machine, or there is none.", &html! {
                    p { "Work comes from webhooks of a forge, or from a folder:" }
                    (blocks::command("forgeyard run FOLDER"))
                    p { "What came from the forge, and what became of it, is under " a href=(routes::DELIVERIES) { "Deliveries" } "." }
                }))
            } @else {
                (table(shell, &waiting))
            }
            @if !refused.is_empty() {
                header.page-head {
                    h2 { "Refused lately" }
                    p.quiet-text { "The gate asks again when the access files or the configuration change." }
                }
                (table(shell, &refused))
            }
        },
    )
}

fn table(shell: &Shell, rows: &[&QueueRow]) -> Markup {
    html! {
        div.table-scroll { table.stack {
            thead { tr {
                th scope="col" { "Place" }
                th scope="col" { "State" }
                th scope="col" { "What" }
                th scope="col" { "Why, and what happens next" }
                th scope="col" { "Since" }
                th scope="col" { "Expected" }
            } }
            tbody { @for row in rows { tr {
                td.num data-label="Place" { @match row.position { Some(place) => { (place) } None => { "–" } } }
                td data-label="State" {
                    (word(&row.state).badge())
                    @if let Some(seen) = &row.outlook { div.sub { (seen.class.name()) } }
                }
                td data-label="What" {
                    @match row.id.parse() {
                        Ok(job) => { a href=(routes::job(job)) { (words::visible(&row.what)) } }
                        Err(_) => { (words::visible(&row.what)) " " code.sub { (words::visible(&row.id)) } }
                    }
                    div.sub { (words::visible(&row.repository)) }
                }
                td data-label="Why" {
                    (words::visible(&row.reason.message)) " " code { (row.reason.code) }
                    @if !row.reason.evidence.is_empty() {
                        details {
                            summary { "Evidence" }
                            ul.evidence { @for line in &row.reason.evidence { li { (words::visible(line)) } } }
                        }
                    }
                    @if let Some(fix) = &row.reason.fix { p.fix { strong { "What to do: " } (words::visible(fix)) } }
                    @if let Some(head) = &row.approve_head { (judge(shell, row, head)) }
                    div.sub { "Next: " (words::visible(&row.next)) }
                }
                td data-label="Since" { (words::when(shell.now, row.since)) }
                td data-label="Expected" { (expected(row)) }
            } } }
        } }
    }
}

/// The buttons of a row that waits for an approval.
fn judge(shell: &Shell, row: &QueueRow, head: &str) -> Markup {
    let (approve, refuse) = match (row.pipeline, row.id.parse()) {
        (Some(pipeline), _) => (routes::pipeline_approve(pipeline), routes::pipeline_refuse(pipeline)),
        (None, Ok(demand)) => (routes::demand_approve(demand), routes::demand_refuse(demand)),
        (None, Err(_)) => return html! {},
    };
    let repository = RepositoryKey { forge: row.forge.clone(), id: row.repository_id };
    blocks::judge(shell, &repository, head, &approve, &refuse, routes::QUEUE)
}

/// When it will probably start, and what that is said from.
fn expected(row: &QueueRow) -> Markup {
    html! {
        @match &row.outlook {
            Some(seen) => {
                @if let Some(at) = seen.expected { (words::exact(at)) }
                div.sub { (words::visible(&seen.basis)) }
            }
            None => { "–" }
        }
    }
}

fn word(state: &str) -> Word {
    match state {
        "queued" | "wanted" => Word::new(Tone::Waiting, "queued"),
        "unread" => Word::new(Tone::Waiting, "being looked up"),
        "waiting" => Word::new(Tone::Waiting, "held by the forge"),
        "held" => Word::new(Tone::Waiting, "held"),
        "launching" => Word::new(Tone::Active, "launching"),
        "refused" => Word::new(Tone::Bad, "refused"),
        _ => Word::new(Tone::Idle, "waits"),
    }
}
