//! Waiting for a pipeline in sight of people: on a terminal a line that moves and the ends of jobs; anywhere else (a
//! CI log, a file) a plain line for every change of every job, with the time since the beginning.

use crate::output::{at, seconds};
use anyhow::{Result, bail};
use forgeyard_api::client::{Client, ClientError};
use forgeyard_api::people::PipelineView;
use forgeyard_model::PipelineId;
use forgeyard_model::job::{Hold, Job, JobState};
use forgeyard_model::verdict::Outcome;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// How long a farm may be away (a restart, a lost connection) before waiting ends.
const AWAY: Duration = Duration::from_secs(120);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks until the farm answers; gives up when it was away for too long. What it refuses is not asked again.
pub async fn patiently<T, F>(mut ask: impl FnMut() -> F) -> Result<T, ClientError>
where
    F: Future<Output = Result<T, ClientError>>,
{
    let started = Instant::now();
    loop {
        match ask().await {
            Err(ClientError::Transport { .. }) if started.elapsed() < AWAY => {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            answer => return answer,
        }
    }
}

/// Where lines go.
enum Face {
    Terminal(ProgressBar),
    Plain,
}

struct Progress {
    face: Face,
    started: Instant,
    /// What was last said of each job.
    said: BTreeMap<String, String>,
}

impl Progress {
    fn new() -> Self {
        let face = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("  {spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            Face::Terminal(bar)
        } else {
            Face::Plain
        };
        Self { face, started: Instant::now(), said: BTreeMap::new() }
    }

    fn look(&mut self, view: &PipelineView) {
        for job in &view.jobs {
            let text = state(view, job);
            if self.said.get(&job.key) == Some(&text) {
                continue;
            }
            match &self.face {
                Face::Terminal(bar) if job.state.ended() => bar.println(format!("  {:<28} {text}", job.key)),
                Face::Terminal(_) => {}
                Face::Plain => {
                    let elapsed = self.started.elapsed().as_secs_f64();
                    eprintln!("  [{elapsed:7.1} s] {:<28} {text}", job.key);
                }
            }
            self.said.insert(job.key.clone(), text);
        }
        if let Face::Terminal(bar) = &self.face {
            let at_work = view
                .jobs
                .iter()
                .filter(|job| job.state.attempt().is_some() || matches!(job.state, JobState::Queued));
            let at_work: Vec<String> =
                at_work.map(|job| format!("{} {}", job.key, job.state.name())).collect();
            bar.set_message(if at_work.is_empty() {
                view.pipeline.state.name().to_owned()
            } else {
                at_work.join(", ")
            });
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Face::Terminal(bar) = &self.face {
            bar.finish_and_clear();
        }
    }
}

/// State of a job in one line.
fn state(view: &PipelineView, job: &Job) -> String {
    let mut text = job.state.name().to_owned();
    if let JobState::Ended { outcome } = job.state {
        let last = view.attempts.iter().rfind(|attempt| attempt.job == job.id);
        if let Some(took) = last.and_then(|attempt| Some(seconds(attempt.placed_at, attempt.ended_at?))) {
            text.push_str(&format!(" {took}"));
        }
        if let (Some(verdict), true) = (&job.verdict, outcome != Outcome::Succeeded) {
            text.push_str(&format!(": {}", verdict.cause));
        }
    } else if let (JobState::Held(Hold::Retry { until }), Some(verdict)) = (&job.state, &job.verdict) {
        text.push_str(&format!(
            ": attempt {} ended: {}; tries again at {}",
            job.fence,
            verdict.cause,
            at(*until)
        ));
    } else if let Some(reason) = &job.waiting {
        text.push_str(&format!(": {}", reason.message));
    }
    text
}

/// Shows a pipeline as it goes on, until it is over.
pub async fn follow(client: &Client, id: PipelineId, patience: Option<Duration>) -> Result<PipelineView> {
    let mut progress = Progress::new();
    loop {
        let view = patiently(|| client.pipeline(id)).await?;
        progress.look(&view);
        if view.pipeline.state.ended() {
            return Ok(view);
        }
        if let Some(patience) = patience.filter(|patience| progress.started.elapsed() > *patience) {
            bail!("{id} did not end in {} s", patience.as_secs());
        }
        tokio::time::sleep(PAUSE).await;
    }
}
