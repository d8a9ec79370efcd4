//! `forgeyard job`: units of native work.

use super::{FarmArgs, ReadArgs, audit, word};
use crate::output::{self, at, indented, seconds, table, table_or};
use crate::progress::patiently;
use anyhow::Result;
use clap::{Args, Subcommand};
use forgeyard_api::client::Client;
use forgeyard_api::people::{JobView, Why};
use forgeyard_model::job::{Job, JobState};
use forgeyard_model::verdict::Outcome;
use forgeyard_model::{AttemptId, JobId, PipelineId};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

/// Pause between two looks at a log that goes on.
const PAUSE: Duration = Duration::from_millis(500);

/// One job.
#[derive(Args, Clone)]
pub struct OneJob {
    /// The job, `job_…`.
    job: JobId,
    #[command(flatten)]
    read: ReadArgs,
}

/// What can be asked about jobs.
#[derive(Subcommand, Clone)]
pub enum JobCommand {
    /// List the newest jobs.
    List {
        /// Only jobs of this pipeline.
        #[arg(long)]
        pipeline: Option<PipelineId>,
        /// Only jobs in this state: held, queued, placed, starting, running, succeeded, failed, …
        #[arg(long)]
        state: Option<String>,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Show a job: its attempts, machines, artifacts, history.
    Show(OneJob),
    /// Print the log of a job's newest attempt.
    Log {
        /// The job, `job_…`.
        job: JobId,
        /// Go on until the job is over.
        #[arg(long, short)]
        follow: bool,
        #[command(flatten)]
        farm: FarmArgs,
    },
    /// Stop a job.
    Cancel {
        /// The job, `job_…`.
        job: JobId,
        #[command(flatten)]
        farm: FarmArgs,
    },
    /// Run an ended job again; a test runs on the package that was built.
    Rerun {
        /// The job, `job_…`.
        job: JobId,
        /// Refuse anything but a test.
        #[arg(long)]
        test_only: bool,
        #[command(flatten)]
        farm: FarmArgs,
    },
    /// Say why a job waits, was refused or failed.
    Why(OneJob),
}

/// Runs a command.
pub async fn run(command: JobCommand) -> Result<ExitCode> {
    match command {
        JobCommand::List { pipeline, state, read } => {
            let jobs: Vec<Job> = read
                .farm
                .client()?
                .jobs()
                .await?
                .into_iter()
                .filter(|job| pipeline.is_none_or(|pipeline| job.owner.pipeline() == Some(pipeline)))
                .filter(|job| state.as_ref().is_none_or(|state| job.state.name() == *state))
                .collect();
            output::show(read.json, &jobs, |jobs| {
                let rows: Vec<Vec<String>> = jobs
                    .iter()
                    .map(|job| {
                        vec![job.id.to_string(), job.state.name().to_owned(), at(job.since), job.key.clone()]
                    })
                    .collect();
                table_or("no job", &["job", "state", "since", "what"], &rows)
            })
        }
        JobCommand::Show(OneJob { job, read }) => {
            let view = read.farm.client()?.job(job).await?;
            output::show(read.json, &view, show)
        }
        JobCommand::Log { job, follow, farm } => log(&farm.client()?, job, follow).await,
        JobCommand::Cancel { job, farm } => {
            farm.client()?.cancel(job).await?;
            output::say(&format!("{job} is to stop"))?;
            Ok(ExitCode::SUCCESS)
        }
        JobCommand::Rerun { job, test_only, farm } => {
            farm.client()?.rerun(job, test_only).await?;
            output::say(&format!("{job} runs again; follow it with `forgeyard job log --follow {job}`"))?;
            Ok(ExitCode::SUCCESS)
        }
        JobCommand::Why(args) => why(args).await,
    }
}

/// Says why a job is where it is.
async fn why(OneJob { job, read }: OneJob) -> Result<ExitCode> {
    why_of(job, &read).await
}

/// The same, for a job that is known by its id.
pub async fn why_of(job: JobId, read: &ReadArgs) -> Result<ExitCode> {
    let client = read.farm.client()?;
    let why = client.why(job).await?;
    if read.json {
        output::say_json(&why)?;
    } else {
        output::say(&why_text(&client, job, &why).await)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Most lines of a reason on a terminal.
const SHOWN: usize = 20;

/// The reason as text. The name of the job is a courtesy: without it the reason is still shown.
pub async fn why_text(client: &Client, job: JobId, why: &Why) -> String {
    let key = client.job(job).await.map(|view| format!(" ({})", view.job.key)).unwrap_or_default();
    reason_text(&format!("{job}{key}"), &job.to_string(), why)
}

/// A reason as text, for a thing that is called so and has this id.
pub fn reason_text(name: &str, id: &str, why: &Why) -> String {
    let mut text = format!("{name}: {}\n{}\n", why.state, why.reason);
    if let Some(position) = why.position {
        text.push_str(&format!("place in the queue: {position}\n"));
    }
    if let Some(seen) = &why.outlook {
        let _ = match seen.expected {
            Some(at) => writeln!(text, "expected to start: about {at}, {}", seen.basis),
            None => writeln!(text, "expected to start: {}", seen.basis),
        };
    }
    if !why.lines.is_empty() {
        text.push_str("lines that decided:\n");
    }
    let earlier = why.lines.len().saturating_sub(SHOWN);
    if earlier > 0 {
        let _ = writeln!(text, "         … {earlier} earlier lines: `forgeyard why --json {id}`");
    }
    for line in &why.lines[earlier..] {
        let number = if line.number == 0 { "kernel".to_owned() } else { line.number.to_string() };
        let _ = writeln!(text, "  {number:>6} | {}", line.text);
    }
    let _ = writeln!(text, "next: {}", why.next);
    for (number, line) in why.cache.iter().enumerate() {
        let _ = writeln!(text, "{:<8}{line}", if number == 0 { "cache:" } else { "" });
    }
    if !why.allowed_by.is_empty() {
        let _ = writeln!(text, "allowed by: {}", why.allowed_by.join(", "));
    }
    text
}

fn show(view: &JobView) -> String {
    let JobView { job, pipeline, .. } = view;
    let mut text =
        format!("{} ({})\nstate:      {} since {}\n", job.id, job.key, job.state.name(), at(job.since));
    if let Some(pipeline) = pipeline {
        let (event, head) = (&pipeline.event, output::shortened(&pipeline.event.head_sha, 20));
        let _ = writeln!(text, "pipeline:   {} of {} at {head}", pipeline.id, event.repository.name);
        let _ = writeln!(text, "lane:       {}", pipeline.lane);
    }
    if let Some(demand) = &view.demand {
        let place =
            format!("job {} of {} in {}", demand.job, demand.repository.forge, demand.repository.name);
        let _ = writeln!(text, "demand:     {} is {}: {place}", demand.id, demand.state.name());
    }
    if let Some(spec) = &job.spec {
        let gpu = spec.gpu.as_ref().map(|gpu| format!(", {} device(s)", gpu.count)).unwrap_or_default();
        let _ = writeln!(text, "flavor:     {}{gpu}", spec.flavor);
    }
    if let Some(selection) = job.test.as_ref().and_then(|test| test.selection.as_ref()) {
        let _ = writeln!(text, "placed by:  {}", selection.reason);
    }
    if let (Some(waiting), false) = (&job.waiting, job.state.ended()) {
        let _ = writeln!(text, "waits:      {}", indented(waiting, 12));
    }
    if let Some(verdict) = &job.verdict {
        let class = match (&verdict.class, verdict.outcome) {
            (Some(class), _) => format!(" [{class}]"),
            (None, Outcome::Succeeded) => String::new(),
            (None, _) => " [unknown]".to_owned(),
        };
        let _ = writeln!(text, "verdict:    {}{class}", verdict.cause);
    }
    let attempts: Vec<Vec<String>> = view
        .attempts
        .iter()
        .map(|attempt| {
            let end = attempt
                .outcome
                .map_or_else(|| attempt.state.name().to_owned(), |outcome| outcome.name().to_owned());
            let took = attempt.ended_at.map(|end| seconds(attempt.placed_at, end)).unwrap_or_default();
            let step = attempt.step.clone().unwrap_or_default();
            vec![attempt.fence.to_string(), attempt.id.to_string(), end, took, step]
        })
        .collect();
    if !attempts.is_empty() {
        let _ = write!(text, "\n{}", table(&["#", "attempt", "state", "time", "step"], &attempts));
    }
    let runners: Vec<Vec<String>> = view
        .runners
        .iter()
        .map(|runner| vec![runner.id.to_string(), runner.state.name().to_owned(), runner.pool.to_string()])
        .collect();
    if !runners.is_empty() {
        let _ = write!(text, "\n{}", table(&["runner", "state", "pool"], &runners));
    }
    let artifacts: Vec<Vec<String>> = view
        .artifacts
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
    if !artifacts.is_empty() {
        let _ = write!(text, "\n{}", table(&["artifact", "kind", "size", "name"], &artifacts));
    }
    let events: Vec<Vec<String>> = view
        .events
        .iter()
        .rev()
        .map(|event| {
            let note = event.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
            vec![at(event.at), event.name.clone(), format!("{} by {}{note}", event.to, audit::by(&event.by))]
        })
        .collect();
    if !events.is_empty() {
        let _ = write!(text, "\n{}", table(&["at", "event", "to"], &events));
    }
    text
}

/// Prints a log. When the farm tries again, the log of the new attempt follows that of the old one.
async fn log(client: &Client, job: JobId, follow: bool) -> Result<ExitCode> {
    let mut known: Option<AttemptId> = None;
    let mut offset = 0;
    let mut waits: Option<String> = None;
    loop {
        let piece = patiently(|| client.log(job, offset)).await?;
        if piece.attempt != known {
            if known.is_some() {
                eprintln!("--- the farm tries again ---");
            }
            known = piece.attempt;
            if offset != 0 {
                offset = 0;
                continue;
            }
        }
        if !piece.text.is_empty() {
            output::say_raw(&piece.text)?;
            offset = piece.next;
            if !piece.complete {
                continue;
            }
        }
        if !follow {
            return Ok(ExitCode::SUCCESS);
        }
        // Nothing new. Either the job waits (say so, once for each reason), or it runs silently, or it is over.
        let view = patiently(|| client.job(job)).await?;
        if view.job.state.ended() && (piece.complete || view.attempts.is_empty()) {
            eprintln!("--- {job} {} ---", view.job.state.name());
            return Ok(ExitCode::SUCCESS);
        }
        let text = waiting(&view.job);
        if text != waits {
            if let Some(text) = &text {
                eprintln!("--- {text} ---");
            }
            waits = text;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn waiting(job: &Job) -> Option<String> {
    let reason = job.waiting.as_ref().map(|reason| format!(": {}", reason.message)).unwrap_or_default();
    match &job.state {
        JobState::Held(_) | JobState::Queued | JobState::Placed { .. } => {
            Some(format!("{} is {}{reason}", job.key, job.state.name()))
        }
        JobState::Starting { .. } | JobState::Running { .. } | JobState::Ended { .. } => None,
    }
}
