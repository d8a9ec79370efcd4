//! Where the time of a tour went, as lines of JSON for the table of `cargo xtask bench`.
//!
//! Jobs overlap, so times of one kind are the length of the union of their steps. What is left of a pipeline is the
//! farm's own: gate, source, queue, machines, uploads, signing, the environment; and the rendering of the recipe, which
//! is neither compile nor test either.

use anyhow::Result;
use forgeyard_api::people::PipelineView;
use forgeyard_model::Timestamp;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::environment::EnvironmentState;
use forgeyard_model::job::JobKind;
use serde_json::json;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

type Span = (Timestamp, Timestamp);

/// Writes the figures of these pipelines.
pub fn write(to: &Path, views: &[&PipelineView]) -> Result<()> {
    let mut file = fs_err::File::create(to)?;
    let wall: f64 = views.iter().map(|view| wall(view)).sum();
    let sum = |kinds: &[JobKind]| -> f64 { views.iter().map(|view| at_work(view, kinds)).sum() };
    let work = sum(&[JobKind::Build, JobKind::Test]);
    let rendering = sum(&[JobKind::Plan]);
    let environments: f64 = views.iter().filter_map(|view| environment(view)).sum();
    let programs: f64 = views.iter().filter_map(|view| program(view)).sum();
    let mut line = |text: &str, value: f64, peer: (&str, f64), aim: Option<f64>| {
        let line = json!({
            "figure": text,
            "value": value,
            "unit": "s",
            "peer": peer.0,
            "peer_value": peer.1,
            "aim": aim.map(|_| "at most"),
            "aim_value": aim,
        });
        writeln!(file, "{line}")
    };
    let rest = wall - work;
    line("tour: neither compile nor test", rest, ("compile and test", work), Some(5.0))?;
    line("tour: … of it the packaged program itself", programs, ("whole tour", wall), None)?;
    let made = environments - programs;
    line("tour: … of it the environment, asked → program starts", made, ("whole tour", wall), None)?;
    let own = rest - rendering - environments;
    line("tour: … without rendering and environment", own, ("rendering", rendering), None)?;
    for view in views {
        for lease in &view.leases {
            let attempt = view.attempts.iter().find(|attempt| Some(attempt.id) == lease.attempt);
            let (Some(attempt), Some(ended)) = (attempt, lease.ended_at) else { continue };
            let test = length(steps(attempt));
            let held = ended.since(lease.claimed_at).as_secs_f64();
            line("lease → device ready again, around the test", held - test, ("the test", test), Some(5.0))?;
        }
    }
    Ok(())
}

fn wall(view: &PipelineView) -> f64 {
    let pipeline = &view.pipeline;
    pipeline.ended_at.unwrap_or(pipeline.since).since(pipeline.created_at).as_secs_f64()
}

/// How long a step of a job of these kinds was at work.
fn at_work(view: &PipelineView, kinds: &[JobKind]) -> f64 {
    let jobs = view.jobs.iter().filter(|job| kinds.contains(&job.kind)).map(|job| job.id);
    let jobs: Vec<_> = jobs.collect();
    let attempts = view.attempts.iter().filter(|attempt| jobs.contains(&attempt.job));
    length(attempts.flat_map(steps))
}

fn steps(attempt: &Attempt) -> impl Iterator<Item = Span> {
    let steps = attempt.facts.iter().flat_map(|facts| &facts.steps);
    steps.map(|step| (step.started_at, step.ended_at))
}

fn environment(view: &PipelineView) -> Option<f64> {
    let environment = view.environment.as_ref()?;
    Some(environment.since.since(environment.requested_at).as_secs_f64())
}

/// How long the packaged program ran in the environment.
fn program(view: &PipelineView) -> Option<f64> {
    match &view.environment.as_ref()?.state {
        EnvironmentState::Ready { proof: Some(proof), .. } => Some(proof.took_ms? as f64 / 1000.0),
        _ => None,
    }
}

/// Seconds that are in at least one of the spans.
fn length(spans: impl Iterator<Item = Span>) -> f64 {
    let mut spans: Vec<Span> = spans.collect();
    spans.sort_unstable();
    let (mut whole, mut until) = (Duration::ZERO, None);
    for (begin, end) in spans {
        let begin = until.map_or(begin, |until| begin.max(until));
        whole += end.since(begin);
        until = until.max(Some(end));
    }
    whole.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_two_spans_counts_once() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let spans = [(at(0), at(10)), (at(5), at(12)), (at(20), at(21)), (at(6), at(7))];
        assert_eq!(length(spans.into_iter()), 13.0);
        assert_eq!(length(std::iter::empty()), 0.0);
    }
}
