//! Webhook deliveries: what came, what became of each, and why.

use super::blocks::{self, Pager};
use super::shell::{Shell, Tab, page};
use super::{routes, tone, words};
use forgeyard_model::delivery::{Delivery, DeliveryState};
use maud::{Markup, html};

/// The page.
pub fn deliveries(shell: &Shell, rows: &[Delivery], pager: &Pager) -> Markup {
    page(
        shell,
        Tab::Deliveries,
        "Deliveries",
        &html! {
            header.page-head {
                h1 { "Deliveries" }
                p.lead { "Every webhook is stored raw before anything else is done with it. Nothing acknowledged is lost; doubles are counted, not repeated." }
            }
            @if rows.is_empty() {
                (blocks::empty("No delivery yet", "The forge has not sent anything to this farm.", &html! {
                    p { "At the forge, add a webhook with content type " code { "application/json" } " and the farm's secret, to this address:" }
                    @for address in shell.hook_addresses() { (blocks::command(&address)) }
                    p { "The forge's own list of recent deliveries shows what this farm answered: 202 means stored." }
                }))
            } @else {
                div.table-scroll { table.stack {
                    thead { tr {
                        th scope="col" { "State" }
                        th scope="col" { "Event" }
                        th scope="col" { "What became of it" }
                        th scope="col" { "Came" }
                        th scope="col" { "Times" }
                        th scope="col" { "GUID" }
                    } }
                    tbody { @for row in rows { tr {
                        td data-label="State" { (tone::delivery(&row.state).badge()) }
                        td data-label="Event" { code.nowrap { (words::visible(&row.event)) } }
                        td data-label="Outcome" { (fate(row)) }
                        td data-label="Came" { (words::when(shell.now, row.received_at)) }
                        td.num data-label="Times" { (row.times) }
                        td data-label="GUID" { code.guid { (words::visible(&row.guid)) } div.sub { "body " (words::digest(&row.body)) } }
                    } } }
                } }
            }
            (pager.links())
        },
    )
}

fn fate(row: &Delivery) -> Markup {
    html! {
        @match &row.state {
            DeliveryState::Stored => { "Durable; waits to be read." }
            DeliveryState::Started { pipeline } => { "Started " a href=(routes::pipeline(*pipeline)) { (words::id(pipeline)) } }
            DeliveryState::Settled { reason } | DeliveryState::Rejected { reason } => {
                (words::visible(&reason.message)) " " code { (reason.code) }
                @if !reason.evidence.is_empty() || reason.fix.is_some() {
                    details {
                        summary { "Evidence" }
                        ul.evidence { @for line in &reason.evidence { li { (words::visible(line)) } } }
                        @if let Some(fix) = &reason.fix { p.fix { strong { "What to do: " } (words::visible(fix)) } }
                    }
                }
            }
        }
    }
}
