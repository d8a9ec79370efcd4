//! Pages that stand outside: sign-in, errors, nothing here.

use super::blocks;
use super::routes;
use super::shell::{Shell, Tab, page};
use super::tone::Tone;
use forgeyard_api::error::{ApiError, ErrorKind};
use maud::{Markup, html};

/// Sign-in: with one of these forges, or with a token. `next` is the local path to go to afterwards; the receiver must check that it is one.
pub fn login(shell: &Shell, next: &str, forges: &[String], trouble: Option<&ApiError>) -> Markup {
    page(
        shell,
        Tab::None,
        "Sign in",
        &html! {
            section.card.narrow {
                h1 { "Sign in" }
                @for forge in forges {
                    p { a.button.primary href=(routes::login_forge(forge, next)) { "Sign in with " (forge) } }
                }
                @if !forges.is_empty() { p.quiet-text { "The forge says who you are; what you may do here stands in the access files." } }
                @if let Some(error) = trouble.filter(|_| !forges.is_empty()) { (blocks::explanation(Tone::Bad, "", &error.explanation(), None)) }
                p { "Paste a token of this farm. The first one, with the role admin, is in the file " code { "admin.token" } " in the farm's data folder." }
                @if let Some(error) = trouble.filter(|_| forges.is_empty()) { (blocks::explanation(Tone::Bad, "", &error.explanation(), None)) }
                form.column method="post" action=(routes::LOGIN) {
                    (blocks::csrf(shell))
                    input type="hidden" name="next" value=(next);
                    label { "Token" input type="password" name="token" required autocomplete="current-password" autofocus spellcheck="false"; }
                    button.primary type="submit" { "Sign in" }
                }
                details {
                    summary { "No token?" }
                    p { "An admin makes one for you:" }
                    (blocks::command("forgeyard token new --name YOU --role maintainer"))
                    p { "Lost yours? The first one is still in that file, for the user that runs the farm. Use it to make another:" }
                    (blocks::command("forgeyard token new --name YOU --role admin"))
                }
            }
        },
    )
}

/// What the kind of an error means.
pub const fn kind_title(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "The request cannot be understood",
        ErrorKind::Unauthenticated => "You are not signed in",
        ErrorKind::Forbidden => "You may not do this",
        ErrorKind::NotFound => "There is no such thing here",
        ErrorKind::Conflict => "Not in this state",
        ErrorKind::Superseded => "Something newer has taken its place",
        ErrorKind::TooLarge => "That is too large",
        ErrorKind::Range => "Outside of the bytes",
        ErrorKind::Mismatch => "The bytes are not what they should be",
        ErrorKind::Internal => "The farm has made a mistake",
        ErrorKind::Unavailable => "Not now",
        ErrorKind::NoSpace => "No space is left",
    }
}

/// An error.
pub fn error(shell: &Shell, error: &ApiError) -> Markup {
    let title = kind_title(error.kind);
    page(
        shell,
        Tab::None,
        title,
        &html! {
            section.card.narrow {
                p.status-code { (error.kind.status()) }
                h1 { (title) }
                (blocks::explanation(Tone::Bad, "", &error.explanation(), None))
                @match error.kind {
                    ErrorKind::Unauthenticated => { p { a.button.primary href=(routes::LOGIN) { "Sign in" } } }
                    ErrorKind::Internal => { p { "It is written in the farm's log under the code above. " a href=(routes::STATUS) { "Is the farm well?" } } }
                    ErrorKind::Unavailable | ErrorKind::NoSpace => { p { "Nothing was acknowledged. Try again in a moment; " a href=(routes::STATUS) { "the status page" } " says how the farm is." } }
                    ErrorKind::Invalid | ErrorKind::Forbidden | ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Superseded
                    | ErrorKind::TooLarge | ErrorKind::Range | ErrorKind::Mismatch => { p { a href=(routes::PIPELINES) { "Back to the pipelines" } } }
                }
            }
        },
    )
}

/// No page has this address.
pub fn not_found(shell: &Shell, path: &str) -> Markup {
    let error = ApiError::new(ErrorKind::NotFound, "page.unknown", format!("no page has the address {path}"))
        .hint("check the address; ids are complete only with all 26 characters after the underscore");
    self::error(shell, &error)
}
