//! Parts that many pages are made of: explanations, empty states, forms, commands to copy, lists of facts.

use super::Shell;
use super::tone::Tone;
use super::words;
use forgeyard_model::Explanation;
use forgeyard_model::account::RepositoryKey;
use forgeyard_model::principal::Role;
use maud::{Markup, html};

/// The hidden field that makes a form of this session.
pub fn csrf(shell: &Shell) -> Markup {
    html! { input type="hidden" name="csrf" value=(shell.csrf); }
}

/// A button that posts, with further hidden fields. Shown only to those who may; others see who may.
pub fn action(
    shell: &Shell,
    role: Role,
    to: &str,
    label: &str,
    kind: ButtonKind,
    fields: &[(&str, &str)],
) -> Markup {
    if !shell.may(role) {
        return html! {
            button.(kind.class()) type="button" disabled title={ "needs the role " (role) } { (label) }
        };
    }
    html! {
        form.inline method="post" action=(to) data-confirm=[kind.asks()] {
            (csrf(shell))
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            button.(kind.class()) type="submit" { (label) }
        }
    }
}

/// A button that posts together with a reason.
pub fn action_with_reason(shell: &Shell, role: Role, to: &str, label: &str) -> Markup {
    if !shell.may(role) {
        return html! { button.quiet type="button" disabled title={ "needs the role " (role) } { (label) } };
    }
    html! {
        details.reason {
            summary.button.quiet { (label) }
            form method="post" action=(to) {
                (csrf(shell))
                label { "Reason" input type="text" name="reason" required maxlength="200"; }
                button.danger type="submit" { (label) }
            }
        }
    }
}

/// The two buttons of a head that waits for an approval. They name the commit that the page shows, so that nobody approves
/// what came afterwards.
pub fn judge(
    shell: &Shell,
    repository: &RepositoryKey,
    head: &str,
    approve: &str,
    refuse: &str,
    back: &str,
) -> Markup {
    if !shell.may_judge(repository) {
        return html! {
            p.sub { "Commit " (words::commit(head)) ". You may not approve it; the access page says who may." }
        };
    }
    html! {
        p.sub { "Commit " (words::commit(head)) }
        div.actions {
            form.inline method="post" action=(approve) {
                (csrf(shell))
                input type="hidden" name="head" value=(head);
                input type="hidden" name="back" value=(back);
                button.primary type="submit" { "Approve this commit" }
            }
            details.reason {
                summary.button.quiet { "Refuse" }
                form method="post" action=(refuse) {
                    (csrf(shell))
                    input type="hidden" name="head" value=(head);
                    input type="hidden" name="back" value=(back);
                    label { "Reason" input type="text" name="reason" required maxlength="200"; }
                    button.danger type="submit" { "Refuse" }
                }
            }
        }
    }
}

/// How a button looks and whether it asks back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ButtonKind {
    /// The thing to do here.
    Primary,
    /// One of several.
    Quiet,
    /// Stops or discards something: the script asks back first.
    Danger,
}

impl ButtonKind {
    const fn class(self) -> &'static str {
        match self {
            ButtonKind::Primary => "primary",
            ButtonKind::Quiet => "quiet",
            ButtonKind::Danger => "danger",
        }
    }

    const fn asks(self) -> Option<&'static str> {
        match self {
            ButtonKind::Danger => Some("yes"),
            ButtonKind::Primary | ButtonKind::Quiet => None,
        }
    }
}

/// A reason with its evidence and its fix, and what the farm does next by itself.
pub fn explanation(tone: Tone, title: &str, why: &Explanation, next: Option<&str>) -> Markup {
    html! {
        section.why.(tone.class()) {
            (tone.icon())
            div {
                p.why-title { @if !title.is_empty() { span { (title) } } code { (why.code) } }
                p.why-message { (words::visible(&why.message)) }
                @if !why.evidence.is_empty() {
                    ul.evidence { @for line in &why.evidence { li { (words::visible(line)) } } }
                }
                @if why.fix.is_some() || next.is_some() {
                    dl.next {
                        @if let Some(fix) = &why.fix { dt { "What to do" } dd { (words::visible(fix)) } }
                        @if let Some(next) = next { dt { "Next, by itself" } dd { (next) } }
                    }
                }
            }
        }
    }
}

/// What a page says when it has nothing to show: what belongs here, and how to get it.
pub fn empty(title: &str, about: &str, steps: &Markup) -> Markup {
    html! {
        section.empty {
            h2 { (title) }
            p { (about) }
            div.next-steps { (steps) }
        }
    }
}

/// A command with a button that copies it.
pub fn command(text: &str) -> Markup {
    html! {
        div.command {
            pre { code { (text) } }
            button.copy type="button" data-copy=(text) { "copy" }
        }
    }
}

/// A titled card.
pub fn card(title: &str, body: &Markup) -> Markup {
    html! { section.card { h2 { (title) } (body) } }
}

/// Names and values, side by side.
pub fn facts(rows: &[(&str, Markup)]) -> Markup {
    html! {
        dl.facts {
            @for (name, value) in rows { div { dt { (name) } dd { (value) } } }
        }
    }
}

/// Way back to where the page hangs.
pub fn crumbs(path: &[(&str, &str)]) -> Markup {
    html! {
        nav.crumbs aria-label="Breadcrumb" {
            @for (name, href) in path { a href=(href) { (name) } span aria-hidden="true" { "/" } }
        }
    }
}

/// Links to newer and older rows: query strings, `?before=…`.
#[derive(Debug, Clone, Default)]
pub struct Pager {
    /// Rows that came later.
    pub newer: Option<String>,
    /// Rows that came before.
    pub older: Option<String>,
}

impl Pager {
    /// The links, when there are some.
    pub fn links(&self) -> Markup {
        html! {
            @if self.newer.is_some() || self.older.is_some() {
                nav.pager aria-label="Pages" {
                    @if let Some(to) = &self.newer { a.button.quiet rel="prev" href=(to) { "← Newer" } }
                    @if let Some(to) = &self.older { a.button.quiet rel="next" href=(to) { "Older →" } }
                }
            }
        }
    }
}
