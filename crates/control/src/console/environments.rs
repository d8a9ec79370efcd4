//! Environments: locked sets of packages, made once, with the proof that they run.

use super::blocks;
use super::shell::{Shell, Tab, page};
use super::tone::{self, Tone};
use super::{routes, words};
use forgeyard_model::environment::{Environment, EnvironmentState};
use maud::{Markup, html};

/// All environments.
pub fn environments(shell: &Shell, rows: &[Environment]) -> Markup {
    page(
        shell,
        Tab::Environments,
        "Environments",
        &html! {
            header.page-head {
                h1 { "Environments" }
                p.lead { "Solved from a channel, linked once under a prefix that is derived from the lock, tried before it is called ready." }
            }
            @if rows.is_empty() {
                (blocks::empty("No environment yet", "A repository asks for one in its pipeline file; it is made after promotion.", &html! {
                    p { "Add this to " code { "forgeyard.toml" } " in the repository:" }
                    (blocks::command("[environment]\nname = \"demo\"\nspecs = [\"my-package\"]\nrun = [\"my-program\", \"--version\"]"))
                }))
            } @else {
                div.table-scroll { table.stack {
                    thead { tr {
                        th scope="col" { "State" }
                        th scope="col" { "Name" }
                        th scope="col" { "Asked for" }
                        th scope="col" { "Channel" }
                        th scope="col" { "Packages" }
                        th scope="col" { "Since" }
                    } }
                    tbody { @for row in rows { tr {
                        td data-label="State" { (tone::environment(&row.state).badge()) }
                        td data-label="Name" { a.row-link href=(routes::environment(row.id)) { (row.name) } }
                        td data-label="Asked for" { code { (row.specs.join(" ")) } }
                        td data-label="Channel" { a href=(routes::channel(&row.channel)) { (row.channel) } }
                        td.num data-label="Packages" {
                            @match &row.state { EnvironmentState::Ready { lock, .. } => { (lock.len()) } _ => { "–" } }
                        }
                        td data-label="Since" { (words::when(shell.now, row.since)) }
                    } } }
                } }
            }
        },
    )
}

/// One environment.
pub fn environment(shell: &Shell, row: &Environment) -> Markup {
    page(
        shell,
        Tab::Environments,
        row.name.as_str(),
        &html! {
            (blocks::crumbs(&[("Environments", routes::ENVIRONMENTS)]))
            header.page-head {
                div.title-row { h1 { (row.name) } (tone::environment(&row.state).badge()) }
                (blocks::facts(&[
                    ("Asked for", html! { code { (row.specs.join(" ")) } }),
                    ("Channel", html! { a href=(routes::channel(&row.channel)) { (row.channel) } }),
                    ("Pipeline", html! { a href=(routes::pipeline(row.pipeline)) { (words::id(row.pipeline)) } }),
                    ("Requested", words::when(shell.now, row.requested_at)),
                    ("Environment", words::id(row.id)),
                ]))
            }
            @match &row.state {
                EnvironmentState::Requested => {
                    section.card { p.quiet-text { "It is being solved, linked and tried. Reload in a moment, or watch "
                        a href=(routes::pipeline(row.pipeline)) { "its pipeline" } "." } }
                }
                EnvironmentState::Failed { reason } => { (blocks::explanation(Tone::Bad, "Why it could not be made", reason, None)) }
                EnvironmentState::Ready { lock, lock_digest, prefix, proof } => {
                    section.card {
                        h2 { "Where it is" }
                        (blocks::command(&format!("forgeyard env show {}", row.name)))
                        (blocks::facts(&[
                            ("Prefix", html! { code { (prefix) } }),
                            ("Lock", words::digest(lock_digest)),
                        ]))
                    }
                    @if let Some(proof) = proof {
                        section.card {
                            h2 { "Proof" }
                            p {
                                code { (proof.argv.join(" ")) } " exited "
                                @if proof.exit_code == 0 { (tone::Word::new(Tone::Good, "0").badge()) }
                                @else { (tone::Word::new(Tone::Bad, "nonzero").badge()) " (" (proof.exit_code) ")" }
                                @if let Some(ms) = proof.took_ms { " after " (format!("{:.1} s", ms as f64 / 1000.0)) }
                            }
                            pre.output tabindex="0" {
                                @for line in proof.stdout.lines() { (words::visible(line)) "\n" }
                            }
                        }
                    }
                    section.card {
                        h2 { "Lock" }
                        div.table-scroll { table.stack {
                            thead { tr { th scope="col" { "Package" } th scope="col" { "Platform" } th scope="col" { "Digest" } th scope="col" { "From" } } }
                            tbody { @for package in lock { tr {
                                td data-label="Package" { (package.file_name) }
                                td data-label="Platform" { (package.subdir) }
                                td data-label="Digest" { (words::digest(&package.digest)) }
                                td.url data-label="From" { code { (package.url) } }
                            } } }
                        } }
                    }
                }
            }
        },
    )
}
