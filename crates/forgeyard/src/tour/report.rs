//! The end of the tour: what happened, and whether every claim held.

use crate::farm::Farm;
use crate::output::{seconds, table};
use anyhow::Result;
use forgeyard_api::client::Client;
use forgeyard_api::people::PipelineView;
use forgeyard_formats::statement;
use forgeyard_model::Digest;
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::attempt::Attempt;
use forgeyard_model::environment::EnvironmentState;
use forgeyard_model::job::{Job, JobKind};
use forgeyard_model::pipeline::PipelineState;
use forgeyard_model::verdict::Outcome;
use std::time::Instant;

/// A claim and whether it held.
struct Claim {
    text: String,
    held: bool,
}

fn claim(text: impl Into<String>, held: bool) -> Claim {
    Claim { text: text.into(), held }
}

/// What the tour has seen.
pub struct Seen<'s> {
    /// The pull request.
    pub first: &'s PipelineView,
    /// The push after its merge.
    pub second: &'s PipelineView,
    /// Sources of others.
    pub further: &'s [PipelineView],
    /// Machines and leases that did not go.
    pub left: &'s [String],
}

/// Prints the report. Answers whether everything held.
pub async fn print(client: &Client, farm: &Farm, seen: &Seen<'_>, started: Instant) -> Result<bool> {
    let Seen { first, second, further, left } = *seen;
    let mut claims = Vec::new();
    println!("\n{}", table(&["stage", "time", "what happened"], &stages(first, second, further)));
    claims.push(claim(
        "the pull request was built and tested",
        first.pipeline.state == PipelineState::Succeeded,
    ));
    let refused = first.pipeline.not_promoted.as_ref();
    claims.push(claim(
        "the pull request was not promotable, because of its lane",
        refused.is_some_and(|reason| reason.code == "promotion.lane"),
    ));
    claims.push(claim(
        "the push was built, tested and promoted",
        second.pipeline.state == PipelineState::Succeeded && second.pipeline.channel.is_some(),
    ));
    for view in further {
        claims.push(claim(
            format!("{} was built and tested", view.pipeline.event.repository.name),
            view.pipeline.state == PipelineState::Succeeded,
        ));
    }
    digests(client, farm, second, &mut claims).await?;
    devices(second, &mut claims);
    environment(second, &mut claims);
    let what = if left.is_empty() { String::new() } else { format!("; still there: {}", left.join(", ")) };
    claims.push(claim(format!("every machine is gone and every lease has ended{what}"), left.is_empty()));
    let held: f64 = second
        .leases
        .iter()
        .filter_map(|lease| Some(lease.ended_at?.since(lease.claimed_at).as_secs_f64()))
        .sum();
    let end = second.pipeline.ended_at.unwrap_or(second.pipeline.since);
    let whole = end.since(second.pipeline.created_at).as_secs_f64();
    println!("GPU held {held:.1} s of {whole:.1} s of the push; it was free while compiling.");
    for attempt in second.attempts.iter().filter(|attempt| attempt.lease.is_some()) {
        if let Some(facts) = &attempt.facts {
            for (name, metric) in &facts.metrics {
                println!("Metric   {name} = {} {}", metric.value, metric.unit);
            }
        }
    }
    if let Some(channel) = &second.pipeline.channel {
        println!("Channel  {}/channels/{channel}", farm.url);
    }
    println!("Console  {}/", farm.url);
    println!("Time     {:.1} s in all\n", started.elapsed().as_secs_f64());
    let mut all = true;
    for claim in &claims {
        println!("{} {}", if claim.held { "held  " } else { "BROKEN" }, claim.text);
        all &= claim.held;
    }
    println!();
    Ok(all)
}

fn last<'v>(view: &'v PipelineView, job: &Job) -> Option<&'v Attempt> {
    view.attempts.iter().rfind(|attempt| attempt.job == job.id)
}

fn stages(first: &PipelineView, second: &PipelineView, further: &[PipelineView]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (title, view) in [("pull request", first), ("push", second)]
        .into_iter()
        .chain(further.iter().map(|view| ("further", view)))
    {
        let pipeline = &view.pipeline;
        rows.push(vec![
            format!("{title}: gate"),
            String::new(),
            format!("allowed by {}; lane: {}", pipeline.allowed_by.join(", "), pipeline.lane),
        ]);
        for job in &view.jobs {
            let attempt = last(view, job);
            let took = attempt
                .and_then(|attempt| Some(seconds(attempt.placed_at, attempt.ended_at?)))
                .unwrap_or_default();
            rows.push(vec![format!("{title}: {}", job.key), took, what(job, attempt)]);
        }
        let end = match (&pipeline.not_promoted, &pipeline.channel, &pipeline.state) {
            (_, _, PipelineState::Failed { reason } | PipelineState::Canceled { reason }) => {
                reason.message.clone()
            }
            (Some(reason), _, _) => reason.message.clone(),
            (None, Some(channel), _) => format!("promoted to channel {channel}"),
            (None, None, state) => state.name().to_owned(),
        };
        rows.push(vec![
            format!("{title}: end"),
            seconds(pipeline.created_at, pipeline.ended_at.unwrap_or(pipeline.since)),
            end,
        ]);
    }
    rows
}

fn what(job: &Job, attempt: Option<&Attempt>) -> String {
    let state = job.state.name();
    let verdict = job.verdict.as_ref();
    let cause =
        verdict.filter(|verdict| verdict.outcome != Outcome::Succeeded).map(|verdict| verdict.cause.clone());
    let mut text = cause.map_or_else(|| state.to_owned(), |cause| format!("{state}: {cause}"));
    if job.kind == JobKind::Test
        && let Some(device) = attempt.and_then(|attempt| attempt.facts.as_ref()?.device.as_ref())
    {
        text.push_str(&format!(
            "; {} {}",
            device.kind.label(),
            if device.touched { "touched" } else { "NOT touched" }
        ));
    }
    if let Some(selection) = job.test.as_ref().and_then(|test| test.selection.as_ref()) {
        text.push_str(&format!("; placed by {}", selection.reason));
    }
    text
}

fn packages(view: &PipelineView) -> impl Iterator<Item = &Artifact> {
    view.artifacts.iter().filter(|artifact| artifact.kind == ArtifactKind::CondaPackage)
}

/// The digest of each package at every stage after the first durable upload.
async fn digests(client: &Client, farm: &Farm, view: &PipelineView, claims: &mut Vec<Claim>) -> Result<()> {
    let mut made = false;
    let channel = match &view.pipeline.channel {
        Some(name) => client.channels().await?.into_iter().find(|channel| channel.name == *name),
        None => None,
    };
    let key = farm.control.app.keys.signing.verifying_key();
    for artifact in packages(view) {
        let mut stages: Vec<(String, String)> = vec![("uploaded".to_owned(), artifact.digest.hex())];
        for job in view
            .jobs
            .iter()
            .filter(|job| job.test.as_ref().is_some_and(|test| test.package == Some(artifact.id)))
        {
            let subject =
                job.spec.as_ref().and_then(|spec| spec.subject.as_ref()).map(|subject| subject.digest.hex());
            stages.push((format!("{} asked", job.key), subject.unwrap_or_default()));
            let installed = last(view, job)
                .and_then(|attempt| attempt.facts.as_ref()?.installed.get(&artifact.name).cloned());
            let installed = installed.unwrap_or_default();
            stages
                .push((format!("{} installed", job.key), installed.trim_start_matches("sha256:").to_owned()));
        }
        let entry = channel
            .as_ref()
            .and_then(|channel| channel.entries.iter().find(|entry| entry.artifact == artifact.id));
        if let (Some(entry), Some(channel)) = (entry, &channel) {
            let url = format!("{}/channels/{}/{}", farm.url, channel.name, entry.subdir);
            let index: serde_json::Value = reqwest::get(format!("{url}/repodata.json")).await?.json().await?;
            let listed = index["packages.conda"][&entry.file_name]["sha256"].as_str().unwrap_or_default();
            stages.push(("channel index".to_owned(), listed.to_owned()));
            let bytes = reqwest::get(format!("{url}/{}", entry.file_name)).await?.bytes().await?;
            stages.push(("channel bytes".to_owned(), Digest::of(&bytes).hex()));
            let subject = statement::Subject { name: artifact.name.clone(), digest: artifact.digest };
            let statements = client.statements(artifact.id).await?;
            let verified = statements.iter().filter(|envelope| {
                let bytes = serde_json::to_vec(envelope).unwrap_or_default();
                statement::verify_about(&key, &bytes, &subject).is_ok()
            });
            let verified = verified.count();
            let text = format!("{}: {verified} signed statements verify with the public key", artifact.name);
            claims.push(claim(text, verified >= 2 && verified == statements.len()));
        }
        if let Some(EnvironmentState::Ready { lock, .. }) =
            view.environment.as_ref().map(|environment| &environment.state)
            && let Some(locked) = lock.iter().find(|locked| locked.file_name == artifact.name)
        {
            stages.push(("environment lock".to_owned(), locked.digest.hex()));
        }
        let equal = stages.iter().all(|(_, digest)| *digest == artifact.digest.hex());
        claims.push(claim(
            format!("{}: one SHA-256 at {} stages", artifact.name, stages.len()),
            equal && stages.len() >= 4,
        ));
        let rows: Vec<Vec<String>> = stages.into_iter().map(|(stage, digest)| vec![digest, stage]).collect();
        println!("Package  {}\n{}", artifact.name, table(&["sha256", "stage"], &rows));
        made = true;
    }
    claims.push(claim("packages were made", made));
    Ok(())
}

fn devices(view: &PipelineView, claims: &mut Vec<Claim>) {
    // An attempt that was lost may have been killed before it could touch anything; the ones that count succeeded.
    let counts = |attempt: &&Attempt| attempt.lease.is_some() && attempt.outcome == Some(Outcome::Succeeded);
    let tests = view.attempts.iter().filter(counts);
    let touched = tests.filter_map(|attempt| attempt.facts.as_ref()?.device.as_ref());
    let touched: Vec<_> = touched.collect();
    for device in &touched {
        for evidence in &device.evidence {
            println!(
                "Device   {} {}: {evidence}",
                device.kind.label(),
                if device.touched { "touched" } else { "not touched" }
            );
        }
    }
    claims.push(claim(
        "the test that asked for a device touched it",
        !touched.is_empty() && touched.iter().all(|device| device.touched),
    ));
    let builds = view.jobs.iter().filter(|job| job.kind != JobKind::Test);
    let free = builds.filter_map(|job| last(view, job)).all(|attempt| attempt.lease.is_none());
    claims.push(claim("no device was held while rendering or compiling", free));
    let ended = view.leases.iter().all(|lease| lease.claimed_at >= view.pipeline.created_at);
    claims.push(claim(
        "every lease was claimed for this pipeline and is known",
        ended && !view.leases.is_empty(),
    ));
}

fn environment(view: &PipelineView, claims: &mut Vec<Claim>) {
    match view.environment.as_ref().map(|environment| &environment.state) {
        Some(EnvironmentState::Ready { prefix, proof, .. }) => {
            println!("Prefix   {prefix}");
            if let Some(proof) = proof {
                println!("Program  {}", proof.argv.join(" "));
                for line in proof.stdout.lines().take(12) {
                    println!("         {line}");
                }
            }
            let ran = proof.as_ref().is_some_and(|proof| proof.exit_code == 0 && !proof.stdout.is_empty());
            claims.push(claim("the packaged program ran in an environment made from the channel", ran));
        }
        Some(EnvironmentState::Failed { reason }) => {
            claims.push(claim(format!("the environment: {}", reason.message), false))
        }
        Some(EnvironmentState::Requested) | None => claims.push(claim("an environment was made", false)),
    }
}
