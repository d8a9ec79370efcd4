//! `forgeyard artifact`: immutable bytes with a record of where they came from.

use super::{FarmArgs, ReadArgs, verify, word};
use crate::output::{self, Wrong, at, table_or};
use crate::progress::patiently;
use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use forgeyard_api::client::Client;
use forgeyard_model::artifact::Artifact;
use forgeyard_model::{ArtifactId, Digest, PipelineId};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What can be done with artifacts.
#[derive(Subcommand, Clone)]
pub enum ArtifactCommand {
    /// List the newest artifacts.
    List {
        /// Only artifacts of this pipeline.
        #[arg(long)]
        pipeline: Option<PipelineId>,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Show an artifact: its digest, its producer, what the farm read from it.
    Show {
        /// The artifact, `art_…`.
        artifact: ArtifactId,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Download an artifact; it is kept only when its digest is right.
    Get {
        /// The artifact, `art_…`.
        artifact: ArtifactId,
        /// Where to put it; under its own name in this folder when it is not given.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Put the signed statements about it beside it, as FILE.statements.json.
        #[arg(long)]
        statements: bool,
        #[command(flatten)]
        farm: FarmArgs,
    },
    /// Verify the signed statements about a package. With --key and --statements nothing but files is needed.
    Verify(verify::VerifyArgs),
}

/// Runs a command.
pub async fn run(command: ArtifactCommand) -> Result<ExitCode> {
    match command {
        ArtifactCommand::List { pipeline, read } => {
            let artifacts: Vec<Artifact> = read
                .farm
                .client()?
                .artifacts()
                .await?
                .into_iter()
                .filter(|artifact| pipeline.is_none_or(|pipeline| artifact.pipeline == pipeline))
                .collect();
            output::show(read.json, &artifacts, |artifacts| {
                let rows: Vec<Vec<String>> = artifacts
                    .iter()
                    .map(|artifact| {
                        vec![
                            artifact.id.to_string(),
                            word(&artifact.kind),
                            output::bytes(artifact.size),
                            artifact.name.clone(),
                        ]
                    })
                    .collect();
                table_or("no artifact", &["artifact", "kind", "size", "name"], &rows)
            })
        }
        ArtifactCommand::Show { artifact, read } => {
            let found = read.farm.client()?.artifact(artifact).await?;
            output::show(read.json, &found, show)
        }
        ArtifactCommand::Get { artifact, output: to, statements, farm } => {
            let client = farm.client()?;
            let record = client.artifact(artifact).await?;
            let path = match to {
                Some(path) => path,
                None => PathBuf::from(file_name(&record)?),
            };
            download(&client, &record, &path).await?;
            output::say(&format!("{}  {}", record.digest.hex(), path.display()))?;
            if statements {
                let mut beside = path.into_os_string();
                beside.push(".statements.json");
                let envelopes = client.statements(artifact).await?;
                fs_err::write(&beside, serde_json::to_vec_pretty(&envelopes)?)?;
                output::say(&format!("{} statements  {}", envelopes.len(), Path::new(&beside).display()))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        ArtifactCommand::Verify(args) => verify::run(args).await,
    }
}

/// The name of an artifact as the name of a file here. It comes from a job, so it is not trusted to be one.
fn file_name(record: &Artifact) -> Result<String> {
    let name = &record.name;
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', '\0']) {
        return Err(Wrong::new(format!("`{name}` is no good name for a file here"))
            .fix("choose one with --output")
            .into());
    }
    Ok(name.clone())
}

fn show(artifact: &Artifact) -> String {
    let mut text = format!(
        "{}\nname:     {}\nkind:     {}\nsha256:   {}\nsize:     {}\npipeline: {}\n",
        artifact.id,
        artifact.name,
        word(&artifact.kind),
        artifact.digest.hex(),
        output::bytes(artifact.size),
        artifact.pipeline,
    );
    if let Some(job) = artifact.job {
        let _ = writeln!(text, "made by:  {job}");
    }
    if let Some(attempt) = artifact.attempt {
        let _ = writeln!(text, "attempt:  {attempt}");
    }
    let _ = writeln!(text, "lane:     {}\nstored:   {}", artifact.lane, at(artifact.stored_at));
    text
}

/// Downloads an artifact. The file appears under its name only when its digest is right.
pub async fn download(client: &Client, record: &Artifact, to: &Path) -> Result<()> {
    let mut answer = patiently(|| client.artifact_bytes(record.id)).await?;
    let bar = ProgressBar::new(record.size);
    if let Ok(style) = ProgressStyle::with_template("  {bar:40} {bytes}/{total_bytes} {bytes_per_sec}") {
        bar.set_style(style);
    }
    let folder = match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut part = tempfile::NamedTempFile::new_in(folder)
        .context(Wrong::new(format!("cannot write in the folder {}", folder.display())))?;
    let mut hash = Sha256::new();
    while let Some(chunk) = answer.chunk().await? {
        hash.update(&chunk);
        part.write_all(&chunk)?;
        bar.inc(chunk.len() as u64);
    }
    bar.finish_and_clear();
    let found = Digest::from_bytes(hash.finalize().into());
    if found != record.digest {
        bail!("{} arrived as {found}, the farm says {}; nothing was kept", record.name, record.digest);
    }
    part.as_file().sync_all()?;
    part.persist(to).context(Wrong::new(format!("cannot write {}", to.display())))?;
    Ok(())
}
