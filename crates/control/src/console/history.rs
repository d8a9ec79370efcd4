//! The history of the configuration: every version that the farm ran with, and what changed from one to another.

use super::shell::{Shell, Tab, page};
use super::{blocks, routes, words};
use forgeyard_api::people::ConfigVersionView;
use forgeyard_formats::diff::{self, Line};
use maud::{Markup, html};

/// Two versions that are compared.
#[derive(Debug, Clone, Copy)]
pub struct Compared<'a> {
    /// The older one.
    pub old: &'a ConfigVersionView,
    /// The newer one.
    pub new: &'a ConfigVersionView,
}

/// Equal lines that are shown around what differs.
const AROUND: usize = 3;

/// The page; newest first.
pub fn history(shell: &Shell, versions: &[ConfigVersionView], compared: Option<Compared<'_>>) -> Markup {
    page(
        shell,
        Tab::Audit,
        "Configuration",
        &html! {
            (blocks::crumbs(&[("Audit", routes::AUDIT)]))
            header.page-head {
                h1 { "Configuration" }
                p.lead { "Every version that the farm ran with. None is changed or erased, and none holds a secret." }
            }
            @if let Some(compared) = compared { (difference(compared)) }
            section.card {
                h2 { "Versions" }
                @if versions.is_empty() { p.quiet-text { "None yet: the first one is written when the farm starts." } }
                @else { (table(shell, versions)) }
                p.quiet-text { "Files that change are read again by themselves, or at once with the first of these. To go back, put the access file of an older version where it comes from; that is a new version, which says which one it repeats." }
                (blocks::command("forgeyard config reload"))
                (blocks::command("forgeyard config revert NUMBER --output access.toml"))
            }
        },
    )
}

fn table(shell: &Shell, versions: &[ConfigVersionView]) -> Markup {
    html! {
        div.table-scroll { table.stack {
            thead { tr {
                th scope="col" { "Version" }
                th scope="col" { "Since" }
                th scope="col" { "By" }
                th scope="col" { "What" }
                th scope="col" { "Digest" }
                th scope="col" { "Change" }
            } }
            tbody { @for (place, row) in versions.iter().enumerate() { tr {
                td.num data-label="Version" { (row.number) @if let Some(older) = row.repeats { div.sub { "the same as " (older) } } }
                td data-label="Since" { (words::when(shell.now, row.at)) }
                td data-label="By" { (words::visible(&row.by)) }
                td data-label="What" { @for line in row.changes.iter().take(8) { div.sub { (words::visible(line)) } } @if row.changes.len() > 8 { div.sub { "and " (row.changes.len() - 8) " more" } } }
                td data-label="Digest" { code { (row.digest.short()) } }
                td data-label="Change" {
                    @match versions.get(place + 1) {
                        Some(before) => { a href={ (routes::CONFIG) "?from=" (before.number) "&to=" (row.number) } { "what changed" } }
                        None => { "the first one" }
                    }
                }
            } } }
        } }
    }
}

fn difference(compared: Compared<'_>) -> Markup {
    let text = |view: &ConfigVersionView| view.text.clone().unwrap_or_default();
    let (old, new) = (text(compared.old), text(compared.new));
    let lines = diff::lines(&old, &new);
    let same = lines.iter().all(|line| matches!(line, Line::Same(_)));
    html! {
        section.card {
            h2 { "From version " (compared.old.number) " to version " (compared.new.number) }
            @if same {
                p.quiet-text { "Nothing that is kept differs. Passwords in addresses of sources are not kept." }
            } @else {
                div.log.diff tabindex="0" {
                    @for line in diff::hunks(&lines, AROUND) {
                        @match line {
                            None => { div.gap { "…" } }
                            Some(Line::Same(text)) => { div { "  " (words::visible(text)) } }
                            Some(Line::Removed(text)) => { div.removed { "- " (words::visible(text)) } }
                            Some(Line::Added(text)) => { div.added { "+ " (words::visible(text)) } }
                        }
                    }
                }
            }
        }
    }
}
