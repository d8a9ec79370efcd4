//! Channels: what is published, and how to use it from conda, pixi and rattler.

use super::blocks;
use super::shell::{Shell, Tab, page};
use super::{routes, words};
use forgeyard_model::channel::{Channel, ChannelEntry};
use maud::{Markup, html};

/// All channels.
pub fn channels(shell: &Shell, rows: &[Channel]) -> Markup {
    page(
        shell,
        Tab::Channels,
        "Channels",
        &html! {
            header.page-head {
                h1 { "Channels" }
                p.lead { "Published indexes of packages that were built and tested here. Each change is one atomic switch." }
            }
            @if rows.is_empty() {
                (blocks::empty("No channel yet", "A channel appears with its first package: from a protected ref, with every test green.", &html! {
                    p { "The tour carries one all the way:" }
                    (blocks::command("forgeyard tour --keep"))
                    p { "Or name a channel for your repository in " code { "forgeyard.toml" } ", and push to a protected branch." }
                }))
            } @else {
                div.cards {
                    @for row in rows {
                        section.card.device {
                            h2 { a href=(routes::channel(&row.name)) { (row.name) } }
                            (blocks::facts(&[
                                ("Packages", html! { (row.entries.len()) }),
                                ("Index", html! { "generation " (row.generation) }),
                                ("Changed", words::when(shell.now, row.changed_at)),
                            ]))
                        }
                    }
                }
            }
        },
    )
}

/// One channel.
pub fn channel(shell: &Shell, row: &Channel) -> Markup {
    let root = format!("{}{}", shell.public_url, routes::channel_root(&row.name));
    let example = row.entries.last().map_or("PACKAGE", |entry| name_of(entry));
    page(
        shell,
        Tab::Channels,
        row.name.as_str(),
        &html! {
            (blocks::crumbs(&[("Channels", routes::CHANNELS)]))
            header.page-head {
                h1 { (row.name) }
                p.lead { "Index generation " (row.generation) ", published " (words::when(shell.now, row.changed_at)) "." }
            }
            section.card {
                h2 { "Use it" }
                div.uses {
                    div { h3 { "conda, mamba" } (blocks::command(&format!("conda install -c {root} -c conda-forge {example}"))) }
                    div { h3 { "pixi" } (blocks::command(&format!("pixi project channel add --prepend {root}\npixi add {example}"))) }
                    div { h3 { "rattler" } (blocks::command(&format!("rattler create -c {root} -c conda-forge {example}"))) }
                }
            }
            section.card {
                h2 { "Packages" }
                @if row.entries.is_empty() {
                    p.quiet-text { "This generation is empty. The next promotion fills it; see " a href=(routes::PIPELINES) { "what is running" } "." }
                } @else {
                    div.table-scroll { table.stack {
                        thead { tr {
                            th scope="col" { "File" }
                            th scope="col" { "Platform" }
                            th scope="col" { "Size" }
                            th scope="col" { "Digest" }
                            th scope="col" { "Statement" }
                            th scope="col" { "From" }
                            th scope="col" { "Promoted" }
                        } }
                        tbody { @for entry in row.entries.iter().rev() { tr {
                            td data-label="File" { a.row-link href=(routes::artifact(entry.artifact)) { (entry.file_name) } }
                            td data-label="Platform" { (entry.subdir) }
                            td.num data-label="Size" { (words::bytes(entry.size)) }
                            td data-label="Digest" { (words::digest(&entry.digest)) }
                            td data-label="Statement" { (words::digest(&entry.attestation)) }
                            td data-label="From" { a href=(routes::pipeline(entry.pipeline)) { (words::id(entry.pipeline)) } }
                            td data-label="Promoted" { (words::when(shell.now, entry.promoted_at)) }
                        } } }
                    } }
                }
            }
        },
    )
}

/// Package name out of a conda file name, `name-version-build.conda`.
fn name_of(entry: &ChannelEntry) -> &str {
    entry.file_name.rsplitn(3, '-').nth(2).unwrap_or("PACKAGE")
}
