//! Requests to a farm, each a noun and a verb.

pub mod doctor;
pub mod site;

use crate::output::table;
use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use forgeyard_api::client::{Client, HttpOptions};
use forgeyard_api::people::RunRequest;
use forgeyard_formats::pipeline_file;
use forgeyard_model::plan::PipelineFile;
use forgeyard_model::{Digest, JobId, PipelineId, Secret};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How a farm is reached.
#[derive(Args, Clone)]
pub struct FarmArgs {
    /// The farm.
    #[arg(long, env = "FORGEYARD_URL", default_value = "http://127.0.0.1:8417", global = true)]
    farm: String,
    /// File with a token; `FORGEYARD_TOKEN` is looked at first.
    #[arg(long, env = "FORGEYARD_TOKEN_FILE", default_value = "forgeyard-data/admin.token", global = true)]
    token_file: PathBuf,
    /// Further certificate authority to trust, PEM file.
    #[arg(long, env = "FORGEYARD_CA", global = true)]
    ca: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

impl FarmArgs {
    /// A client for it.
    pub fn client(&self) -> Result<Client> {
        let token = match std::env::var("FORGEYARD_TOKEN") {
            Ok(token) => token,
            Err(_) => fs_err::read_to_string(&self.token_file)
                .context("no token: set FORGEYARD_TOKEN, or name a file with --token-file")?,
        };
        let options = HttpOptions { ca_file: self.ca.clone(), ..HttpOptions::default() };
        Ok(Client::new(&self.farm, Some(Secret::new(token.trim())), &options)?)
    }
}

/// Requests to a farm.
#[derive(Subcommand)]
pub enum ClientCommand {
    /// Run a recipe folder through build and test.
    Run {
        /// Folder with a recipe.
        folder: PathBuf,
        #[command(flatten)]
        farm: FarmArgs,
    },
    /// Say why a job is where it is.
    Why {
        /// The job.
        job: JobId,
        #[command(flatten)]
        farm: FarmArgs,
    },
}

/// Runs a request.
pub async fn run(command: ClientCommand) -> Result<ExitCode> {
    match command {
        ClientCommand::Run { folder, farm } => {
            let client = farm.client()?;
            let id = run_folder(&client, &folder, &folder.join(pipeline_file::NAME)).await?;
            println!("{id}");
            follow(&client, id).await
        }
        ClientCommand::Why { job, farm } => {
            let why = farm.client()?.why(job).await?;
            if farm.json {
                println!("{}", serde_json::to_string_pretty(&why)?);
                return Ok(ExitCode::SUCCESS);
            }
            println!("{job} is {}", why.state);
            println!("{}", why.reason);
            if let Some(position) = why.position {
                println!("place in the queue: {position}");
            }
            println!("next: {}", why.next);
            for line in &why.lines {
                println!("{:>7} | {}", line.number, line.text);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Uploads a folder as source and asks for its pipeline.
pub async fn run_folder(client: &Client, folder: &Path, file: &Path) -> Result<PipelineId> {
    let file = match fs_err::read(file) {
        Ok(bytes) => pipeline_file::read(&bytes)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => PipelineFile::default(),
        Err(error) => return Err(error.into()),
    };
    if !folder.join(&file.recipe).is_file() {
        bail!("{} has no recipe at {}; name it in forgeyard.toml as `recipe`", folder.display(), file.recipe);
    }
    let bytes = archive(folder)?;
    let digest = Digest::of(&bytes);
    let size = bytes.len() as u64;
    client.upload_source(digest, bytes).await?;
    let name = folder
        .canonicalize()?
        .file_name()
        .map_or_else(|| "folder".to_owned(), |name| name.to_string_lossy().into_owned());
    let guid = format!("run-{}-{}", &digest.hex()[..16], rand::random::<u32>());
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

/// Waits for a pipeline and prints how its jobs end.
async fn follow(client: &Client, id: PipelineId) -> Result<ExitCode> {
    let mut shown = std::collections::BTreeSet::new();
    loop {
        let view = client.pipeline(id).await?;
        for job in view.jobs.iter().filter(|job| job.state.ended()) {
            if shown.insert(job.id) {
                let cause = job.verdict.as_ref().map(|verdict| verdict.cause.clone()).unwrap_or_default();
                println!("{:<32} {:<10} {} {cause}", job.key, job.state.name(), job.id);
            }
        }
        if view.pipeline.state.ended() {
            let rows: Vec<Vec<String>> = view
                .artifacts
                .iter()
                .map(|artifact| vec![artifact.name.clone(), artifact.digest.to_string()])
                .collect();
            println!("\n{}", table(&["artifact", "digest"], &rows));
            let good = view.pipeline.state == forgeyard_model::pipeline::PipelineState::Succeeded;
            return Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Prints the devices of this host.
pub fn probe(simulated: bool) -> Result<ExitCode> {
    let options = forgeyard_site::probe::ProbeOptions { simulated_beside_real: simulated };
    forgeyard_site::probe::print(options, &mut std::io::stdout(), &mut std::io::stderr())?;
    Ok(ExitCode::SUCCESS)
}
