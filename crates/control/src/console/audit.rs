//! The audit trail: every change of state, who caused it, when.

use super::blocks::{self, Pager};
use super::shell::{Shell, Tab, page};
use super::{routes, words};
use forgeyard_model::commit::EventRecord;
use forgeyard_model::principal::{Principal, PrincipalKind, Role};
use maud::{Markup, html};

/// The page; `subject` narrows it to one thing.
pub fn audit(shell: &Shell, rows: &[EventRecord], subject: &str, pager: &Pager) -> Markup {
    page(
        shell,
        Tab::Audit,
        "Audit",
        &html! {
            header.page-head {
                h1 { "Audit" }
                p.lead { "Written in the same transaction as the change itself; rows are never altered." }
                @if shell.may(Role::Operator) { p { a href=(routes::CONFIG) { "History of the configuration" } } }
            }
            form.ask method="get" action=(routes::AUDIT) role="search" {
                label { "Thing" input type="search" name="subject" value=(subject) placeholder="job_…, dev_…, site_…, att_…"; }
                button.primary type="submit" { "Show" }
                @if !subject.is_empty() { a.button.quiet href=(routes::AUDIT) { "Show all" } }
            }
            @if rows.is_empty() && subject.is_empty() {
                (blocks::empty("Nothing has happened yet", "Events appear with the first change of state.", &html! {
                    p { "Let something happen:" }
                    (blocks::command("forgeyard tour"))
                }))
            } @else if rows.is_empty() {
                (blocks::empty("No event of this thing", "Either it does not exist, or the id is not complete.", &html! {
                    p { "Copy the whole id from its page, or " a href=(routes::AUDIT) { "show all events" } "." }
                }))
            } @else {
                (table(shell, rows))
            }
            (pager.links())
        },
    )
}

/// Rows of events.
pub fn table(shell: &Shell, rows: &[EventRecord]) -> Markup {
    html! {
        div.table-scroll { table.stack {
            thead { tr {
                th scope="col" { "When" }
                th scope="col" { "Event" }
                th scope="col" { "Thing" }
                th scope="col" { "Change" }
                th scope="col" { "By" }
            } }
            tbody { @for row in rows { tr {
                td data-label="When" { (words::exact(row.at)) div.sub { (words::ago(shell.now, row.at)) } }
                td data-label="Event" { code { (row.name) } }
                td data-label="Thing" { (thing(&row.subject)) }
                td data-label="Change" {
                    @match &row.from { Some(from) => { (from) " → " } None => { "new → " } } (row.to)
                    @if let Some(note) = &row.note { div.sub { (words::visible(note)) } }
                }
                td data-label="By" { (principal(&row.by)) }
            } } }
        } }
    }
}

/// The thing, with a link where it has a page.
fn thing(subject: &str) -> Markup {
    let page = match subject.split_once('_').map(|(kind, _)| kind) {
        Some("pipe") => Some(routes::PIPELINES.to_owned()),
        Some("job") => Some("/jobs".to_owned()),
        Some("art") => Some(routes::ARTIFACTS.to_owned()),
        Some("env") => Some(routes::ENVIRONMENTS.to_owned()),
        _ => None,
    };
    html! {
        @match page {
            Some(page) => { a href={ (page) "/" (routes::query(subject)) } { (words::id(subject)) } }
            None => { a href=(routes::audit_of(subject)) { (words::id(subject)) } }
        }
    }
}

fn principal(by: &Principal) -> Markup {
    html! {
        (by.name)
        div.sub {
            @match &by.kind {
                PrincipalKind::Token { role } => { "token, " (role) }
                PrincipalKind::Person { id, forge } => { "person, id " (id) @if let Some(forge) = forge { " at " (forge) } }
                PrincipalKind::Site => { "site" }
                PrincipalKind::Agent => { "agent" }
                PrincipalKind::Farm => { "the farm itself" }
            }
        }
    }
}
