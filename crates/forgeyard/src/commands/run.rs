//! `forgeyard run`: a recipe folder through build and test, in sight.

use super::{FarmArgs, job};
use crate::output::{self, Wrong, table_or};
use crate::progress;
use anyhow::{Context as _, Result};
use clap::Args;
use forgeyard_api::client::Client;
use forgeyard_api::people::{PipelineView, RunRequest};
use forgeyard_formats::pipeline_file;
use forgeyard_model::job::JobState;
use forgeyard_model::pipeline::PipelineState;
use forgeyard_model::plan::PipelineFile;
use forgeyard_model::verdict::Outcome;
use forgeyard_model::{Digest, JobId, PipelineId};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of a run.
#[derive(Args, Clone)]
pub struct RunArgs {
    /// Folder with a recipe, and a forgeyard.toml when the recipe is not at its usual place.
    folder: PathBuf,
    /// Do not wait: print the pipeline and end.
    #[arg(long)]
    detach: bool,
    /// Print JSON: the pipeline with all that belongs to it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    farm: FarmArgs,
}

/// Runs a folder. Succeeds when its pipeline does.
pub async fn run(args: RunArgs) -> Result<ExitCode> {
    let client = args.farm.client()?;
    let turn = rand::random::<u32>().to_string();
    let id = run_folder(&client, &args.folder, &args.folder.join(pipeline_file::NAME), &turn).await?;
    if args.detach {
        return output::show(args.json, &serde_json::json!({ "pipeline": id }), |_| id.to_string());
    }
    eprintln!("pipeline {id}: {}/pipelines/{id}", client.base());
    let view = progress::follow(&client, id, None).await?;
    if args.json {
        output::say_json(&view)?;
    } else {
        output::say(&summary(&view))?;
    }
    if view.pipeline.state == PipelineState::Succeeded {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(first) = first_failure(&view) {
        let why = client.why(first).await?;
        eprintln!("\n{}", job::why_text(&client, first, &why).await.trim_end());
    }
    Ok(ExitCode::FAILURE)
}

fn summary(view: &PipelineView) -> String {
    let rows: Vec<Vec<String>> = view
        .artifacts
        .iter()
        .map(|artifact| vec![artifact.id.to_string(), output::bytes(artifact.size), artifact.name.clone()])
        .collect();
    let mut text = table_or("no artifact was made", &["artifact", "size", "name"], &rows);
    text.push_str(&match &view.pipeline.state {
        PipelineState::Failed { reason } | PipelineState::Canceled { reason } => {
            format!("\n{}: {reason}\n", view.pipeline.state.name())
        }
        state => format!("\n{}\n", state.name()),
    });
    text
}

/// The job that failed first; one that the farm only stopped because of it does not count.
fn first_failure(view: &PipelineView) -> Option<JobId> {
    let failed = |wanted: fn(Outcome) -> bool| {
        let ended = view.jobs.iter().filter_map(|job| match job.state {
            JobState::Ended { outcome } if wanted(outcome) => Some((job.ended_at, job.id)),
            _ => None,
        });
        ended.min().map(|(_, id)| id)
    };
    failed(|outcome| !matches!(outcome, Outcome::Succeeded | Outcome::Canceled))
        .or_else(|| failed(|outcome| outcome == Outcome::Canceled))
}

/// Uploads a folder as source and asks for its pipeline. The same bytes in the same `turn` are one pipeline, however
/// often they are asked for.
pub async fn run_folder(client: &Client, folder: &Path, file: &Path, turn: &str) -> Result<PipelineId> {
    if !folder.is_dir() {
        return Err(Wrong::new(format!("{} is not a folder", folder.display())).into());
    }
    let wrong = || Wrong::new(format!("the pipeline file {} cannot be used", file.display()));
    let file = match fs_err::read(file) {
        Ok(bytes) => pipeline_file::read(&bytes).with_context(wrong)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => PipelineFile::default(),
        Err(error) => return Err(error).with_context(wrong),
    };
    if !folder.join(&file.recipe).is_file() {
        let text = format!("{} has no recipe at {}", folder.display(), file.recipe);
        return Err(Wrong::new(text).fix("name it in forgeyard.toml as `recipe`").into());
    }
    let bytes = archive(folder)?;
    let digest = Digest::of(&bytes);
    let size = bytes.len() as u64;
    client.upload_source(digest, bytes).await?;
    let name = folder
        .canonicalize()?
        .file_name()
        .map_or_else(|| "folder".to_owned(), |name| name.to_string_lossy().into_owned());
    let guid = format!("run-{}-{turn}", &digest.hex()[..16]);
    let answer = client.run(&RunRequest { guid, name, digest, size, file }).await?;
    Ok(answer.pipeline)
}

/// A folder as a tar archive with fixed times and owners, entries sorted; `.git` is left out.
fn archive(folder: &Path) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.mode(tar::HeaderMode::Deterministic);
    builder.follow_symlinks(false);
    let mut open = vec![PathBuf::new()];
    let mut paths = Vec::new();
    while let Some(relative) = open.pop() {
        for entry in fs_err::read_dir(folder.join(&relative))? {
            let entry = entry?;
            if relative.as_os_str().is_empty() && entry.file_name() == ".git" {
                continue;
            }
            let path = relative.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                open.push(path.clone());
            }
            paths.push(path);
        }
    }
    paths.sort();
    for path in paths {
        builder
            .append_path_with_name(folder.join(&path), &path)
            .with_context(|| path.display().to_string())?;
    }
    Ok(builder.into_inner()?)
}
