//! Artifacts: the list, and one with where it came from and how to check that.

use super::blocks::{self, Pager};
use super::shell::{Names, Shell, Tab, page};
use super::{routes, words};
use forgeyard_model::ChannelName;
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::attempt::Attempt;
use forgeyard_model::channel::ChannelEntry;
use forgeyard_model::forge::Trigger;
use forgeyard_model::job::Job;
use forgeyard_model::pipeline::Pipeline;
use maud::{Markup, html};

/// The list.
pub fn artifacts(shell: &Shell, rows: &[Artifact], pager: &Pager) -> Markup {
    page(
        shell,
        Tab::Artifacts,
        "Artifacts",
        &html! {
            header.page-head {
                h1 { "Artifacts" }
                p.lead { "Immutable bytes by digest. Trust is on the record: who made it, in which lane, tested where." }
            }
            @if rows.is_empty() {
                (blocks::empty("No artifact yet", "Sources, plans and packages appear here as soon as their bytes are durable.", &html! {
                    p { "Make the first ones from a recipe folder:" }
                    (blocks::command("forgeyard run FOLDER"))
                }))
            } @else {
                (table(shell, rows, &[]))
            }
            (pager.links())
        },
    )
}

/// Rows of artifacts; producers are named where their jobs are given.
pub fn table(shell: &Shell, rows: &[Artifact], jobs: &[Job]) -> Markup {
    html! {
        div.table-scroll { table.stack {
            thead { tr {
                th scope="col" { "Name" }
                th scope="col" { "Kind" }
                th scope="col" { "Made by" }
                th scope="col" { "Lane" }
                th scope="col" { "Size" }
                th scope="col" { "Digest" }
                th scope="col" { "Stored" }
            } }
            tbody { @for row in rows { tr {
                td data-label="Name" { a.row-link href=(routes::artifact(row.id)) { (row.name) } }
                td data-label="Kind" { (words::artifact_kind(row.kind)) }
                td data-label="Made by" { (producer(row, jobs)) }
                td data-label="Lane" { (words::lane(row.lane)) }
                td.num data-label="Size" { (words::bytes(row.size)) }
                td data-label="Digest" { (words::digest(&row.digest)) }
                td data-label="Stored" { (words::when(shell.now, row.stored_at)) }
            } } }
        } }
    }
}

fn producer(row: &Artifact, jobs: &[Job]) -> Markup {
    html! {
        @match row.job {
            None => { "the farm, as it came" }
            Some(id) => {
                a href=(routes::job(id)) {
                    @match jobs.iter().find(|job| job.id == id) {
                        Some(job) => { (job.key) }
                        None => { (words::id(id)) }
                    }
                }
            }
        }
    }
}

/// All that belongs to one artifact.
#[derive(Debug, Clone, Copy)]
pub struct ArtifactView<'a> {
    /// The artifact.
    pub artifact: &'a Artifact,
    /// Its pipeline.
    pub pipeline: &'a Pipeline,
    /// The job that made it.
    pub job: Option<&'a Job>,
    /// The attempt that made it.
    pub attempt: Option<&'a Attempt>,
    /// Jobs that tested it.
    pub tests: &'a [Job],
    /// Channels that hold it.
    pub promoted: &'a [(ChannelName, ChannelEntry)],
}

/// One artifact.
pub fn artifact(shell: &Shell, view: &ArtifactView<'_>, names: &Names) -> Markup {
    let artifact = view.artifact;
    page(
        shell,
        Tab::Artifacts,
        &artifact.name,
        &html! {
            (blocks::crumbs(&[("Artifacts", routes::ARTIFACTS)]))
            header.page-head {
                div.title-row {
                    h1.long { (artifact.name) }
                    div.actions { a.button.quiet href=(routes::artifact_bytes(artifact.id)) download=(artifact.name) { "Download" } }
                }
                p.lead { (words::artifact_kind(artifact.kind)) ", " (words::bytes(artifact.size)) ", stored " (words::when(shell.now, artifact.stored_at)) }
            }
            section.card {
                h2 { "Digest" }
                (blocks::command(&artifact.digest.to_string()))
            }
            section.card {
                h2 { "Provenance" }
                (blocks::facts(&provenance(view, names)))
            }
            (tests(view))
            (promotion(view))
            section.card {
                h2 { "Check it yourself" }
                p { "The statements are signed by the farm. Keep its public key once, where the farm cannot change it, and check with that:" }
                (blocks::command("forgeyard public-key > farm.pub"))
                (blocks::command(&format!("forgeyard artifact verify {} --key farm.pub", artifact.id)))
                p { "The bytes alone, with tools that every machine has:" }
                (blocks::command(&format!(
                    "curl -fsSL {}{} | sha256sum   # expect {}",
                    shell.public_url, routes::artifact_bytes(artifact.id), artifact.digest.hex()
                )))
            }
        },
    )
}

fn provenance<'a>(view: &ArtifactView<'_>, names: &Names) -> Vec<(&'a str, Markup)> {
    let event = &view.pipeline.event;
    let mut rows = vec![
        (
            "Repository",
            html! { (event.repository.name) " (" (event.repository.forge) " id " (event.repository.id) ")" },
        ),
        ("Commit", words::commit(&event.head_sha)),
        ("Trigger", html! { (words::trigger(event)) }),
        ("Lane", words::lane(view.artifact.lane)),
        ("Pipeline", html! { a href=(routes::pipeline(view.pipeline.id)) { (words::id(view.pipeline.id)) } }),
    ];
    rows.push((
        "Made by",
        match view.job {
            Some(job) => html! { a href=(routes::job(job.id)) { (job.key) } },
            None if matches!(event.trigger, Trigger::Manual) => {
                html! { "handed in by " (event.sender.login) }
            }
            None => html! { "fetched from the forge by the farm" },
        },
    ));
    if let Some(attempt) = view.attempt {
        rows.push(("Attempt", html! { (attempt.fence) " at " (names.site(attempt.site)) }));
    }
    if let Some(source) = &view.pipeline.source {
        rows.push((
            "Source tree",
            html! {
                a href=(routes::artifact(source.artifact)) { "source" } " " (words::digest(&source.digest))
            },
        ));
        rows.push(("Pipeline file from", words::commit(&source.pipeline_file_commit)));
    }
    rows.push(("Record", words::id(view.artifact.id)));
    rows
}

fn tests(view: &ArtifactView<'_>) -> Markup {
    html! {
        @if view.artifact.kind == ArtifactKind::CondaPackage {
            section.card {
                h2 { "Tests" }
                @if view.tests.is_empty() {
                    p.quiet-text { "No test has taken this package yet. Tests are decided from the package's own list, after the build." }
                } @else {
                    ul.plain.tests {
                        @for job in view.tests {
                            li {
                                (super::tone::job(&job.state).badge()) " "
                                a href=(routes::job(job.id)) { (job.key) }
                                @if let Some(verdict) = &job.verdict { span.sub { (words::visible(&verdict.cause)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn promotion(view: &ArtifactView<'_>) -> Markup {
    html! {
        @if view.artifact.kind == ArtifactKind::CondaPackage {
            section.card {
                h2 { "Promotion" }
                @if view.promoted.is_empty() {
                    @if view.artifact.lane.promotable() {
                        p.quiet-text { "In no channel. It is promoted when every job of its pipeline has succeeded." }
                    } @else {
                        p.quiet-text { "In no channel, and it never will be: only what comes from a protected ref is promotable. Merge the change; the push builds it anew." }
                    }
                }
                @for (channel, entry) in view.promoted {
                    (blocks::facts(&[
                        ("Channel", html! { a href=(routes::channel(channel)) { (channel) } }),
                        ("File", html! { code { (entry.subdir) "/" (entry.file_name) } }),
                        ("Promoted", words::exact(entry.promoted_at)),
                        ("Statement", words::digest(&entry.attestation)),
                    ]))
                }
            }
        }
    }
}
