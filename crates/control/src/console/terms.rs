//! The terms of service: which version counts, and whether the person who looks accepted it.

use super::shell::{Shell, Tab, page};
use super::tone::{Tone, Word};
use super::{blocks, routes};
use forgeyard_api::people::TermsView;
use maud::{Markup, html};

/// The page.
pub fn terms(shell: &Shell, view: &TermsView) -> Markup {
    page(
        shell,
        Tab::Access,
        "Terms",
        &html! {
            (blocks::crumbs(&[("Access", routes::ACCESS)]))
            header.page-head {
                h1 { "Terms of service" }
                p.lead { "Accepted by version and by numeric id. A newer version binds nobody who has not accepted it." }
            }
            @if view.version == 0 {
                (blocks::empty("There are no terms", "This farm asks nobody to accept anything.", &html! {}))
            } @else {
                section.card.narrow { (body(shell, view)) }
            }
        },
    )
}

fn body(shell: &Shell, view: &TermsView) -> Markup {
    html! {
        h2 { "Version " (view.version) }
        @if let Some(url) = view.url.as_ref().filter(|url| url.starts_with("https://")) {
            p { a href=(url) rel="noreferrer" { "Read them" } }
        }
        @match &view.person {
            None => { p { "You are signed in with a token, which speaks for nobody at a forge. Sign in with the forge to accept." } }
            Some(person) if view.accepted >= view.version => {
                p { (Word::new(Tone::Good, "accepted").badge()) " by " (person.login) " (id " (person.id) ")" }
            }
            // Terms are everybody's own affair, whatever their role.
            Some(person) => {
                @if view.accepted > 0 { p { "You accepted version " (view.accepted) "; it does not cover this one." } }
                form.column method="post" action=(routes::TERMS) {
                    (blocks::csrf(shell))
                    input type="hidden" name="version" value=(view.version);
                    button.primary type="submit" { "I have read version " (view.version) " and accept it, as " (person.login) }
                }
            }
        }
    }
}
