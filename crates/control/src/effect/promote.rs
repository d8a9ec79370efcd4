//! Promotion: sign what was seen, and prepare the entries of the channel. The switch itself is one row, written by the
//! core when this comes back.
//!
//! A package is promoted only when every test that was selected for it succeeded on exactly its digest, and each of
//! those attempts left the lock of its environment.

use super::inspect::package;
use super::{Trouble, gone};
use crate::app::App;
use forgeyard_engine::Farm;
use forgeyard_engine::completion::accepted;
use forgeyard_formats::conda::record;
use forgeyard_formats::statement::{self, Predicate, Publish, Statement, TestResult};
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::attempt::Attempt;
use forgeyard_model::channel::ChannelEntry;
use forgeyard_model::effect::EffectResult;
use forgeyard_model::forge::Trigger;
use forgeyard_model::job::Job;
use forgeyard_model::pipeline::Pipeline;
use forgeyard_model::verdict::Outcome;
use forgeyard_model::{ChannelName, Explanation, PipelineId};

/// Version of the rules that this module applies; written into every statement.
const POLICY: &str = "forgeyard-promotion/1";

fn refuse(text: String) -> Trouble {
    Trouble::Never(Explanation::new("promotion.not_proved", text))
}

/// Signs and prepares.
pub(super) async fn promote(
    app: &App,
    id: PipelineId,
    channel: &ChannelName,
) -> Result<EffectResult, Trouble> {
    let (pipeline, packages) = {
        let farm = app.core.read();
        let pipeline = farm.pipelines.get(&id).cloned().ok_or_else(|| gone(id))?;
        let packages: Vec<Artifact> = farm
            .artifacts_of(id)
            .filter(|artifact| artifact.kind == ArtifactKind::CondaPackage && accepted(&farm, artifact))
            .cloned()
            .collect();
        (pipeline, packages)
    };
    if !pipeline.lane.promotable() {
        return Err(refuse(format!("the lane of {id} is a {}", pipeline.lane)));
    }
    let mut entries = Vec::new();
    for artifact in packages {
        entries.push(entry(app, &pipeline, channel, artifact).await?);
    }
    if entries.is_empty() {
        return Err(refuse(format!("{id} made no package")));
    }
    Ok(EffectResult::Promotion { entries })
}

async fn entry(
    app: &App,
    pipeline: &Pipeline,
    channel: &ChannelName,
    artifact: Artifact,
) -> Result<ChannelEntry, Trouble> {
    let mut statements = test_statements(&app.core.read(), pipeline, &artifact)?;
    let target = format!("{}/channels/{channel}", app.public_url.trim_end_matches('/'));
    statements.push(Statement {
        subject: subject(&artifact),
        predicate: Predicate::Publish(Publish { target_channel: Some(target) }),
    });
    let mut bundle: Vec<serde_json::Value> = Vec::new();
    for statement in &statements {
        let envelope = statement::sign(&app.keys.signing, statement);
        let envelope = envelope.map_err(|error| refuse(format!("{}: {error}", artifact.name)))?;
        bundle.push(serde_json::from_slice(&envelope).map_err(|error| refuse(error.to_string()))?);
    }
    let bytes = serde_json::to_vec(&bundle).map_err(|error| refuse(error.to_string()))?;
    let attestation = app.blobs.put_bytes(&bytes).await?.digest;
    let package = package(app, &artifact).await?;
    Ok(ChannelEntry {
        subdir: package.facts.subdir.clone(),
        file_name: artifact.name.clone(),
        digest: artifact.digest,
        size: artifact.size,
        artifact: artifact.id,
        record: record(&package, &artifact.digest, artifact.size),
        attestation,
        pipeline: pipeline.id,
        promoted_at: app.clock.now(),
    })
}

fn subject(artifact: &Artifact) -> statement::Subject {
    statement::Subject { name: artifact.name.clone(), digest: artifact.digest }
}

/// One statement for each test of a package. A test that is missing, failed or ran on other bytes refuses it all.
fn test_statements(farm: &Farm, pipeline: &Pipeline, artifact: &Artifact) -> Result<Vec<Statement>, Trouble> {
    let tests: Vec<&Job> = farm
        .jobs_of(pipeline.id)
        .filter(|job| job.test.as_ref().is_some_and(|test| test.package == Some(artifact.id)))
        .collect();
    if tests.is_empty() {
        return Err(refuse(format!("{} was not tested", artifact.name)));
    }
    tests.into_iter().map(|job| test_statement(farm, pipeline, artifact, job)).collect()
}

fn test_statement(
    farm: &Farm,
    pipeline: &Pipeline,
    artifact: &Artifact,
    job: &Job,
) -> Result<Statement, Trouble> {
    let what = format!("{} of {}", job.key, artifact.name);
    let attempt =
        farm.attempts_of(job.id).into_iter().rfind(|attempt| attempt.outcome == Some(Outcome::Succeeded));
    let attempt: &Attempt = attempt.ok_or_else(|| refuse(format!("{what} did not succeed")))?;
    let on_it = job.spec.as_ref().and_then(|spec| spec.subject.as_ref());
    if on_it.is_none_or(|subject| subject.digest != artifact.digest) {
        return Err(refuse(format!("{what} ran on other bytes")));
    }
    let facts = artifact.package.as_ref().ok_or_else(|| refuse(format!("{} was not read", artifact.name)))?;
    let selection = job.test.as_ref().and_then(|test| test.selection.as_ref());
    let lock = attempt
        .artifacts
        .iter()
        .filter_map(|id| farm.artifacts.get(id))
        .find(|artifact| artifact.kind == ArtifactKind::EnvironmentLock)
        .ok_or_else(|| refuse(format!("{what} left no lock of its environment")))?;
    let site =
        farm.sites.get(&attempt.site).ok_or_else(|| refuse(format!("the site of {what} is not known")))?;
    let lease = attempt.lease.and_then(|lease| farm.leases.get(&lease));
    let device = lease.and_then(|lease| lease.devices.first()).and_then(|id| farm.devices.get(id));
    let tests = facts.tests_digest.ok_or_else(|| refuse(format!("{} has no test list", artifact.name)))?;
    Ok(Statement {
        subject: subject(artifact),
        predicate: Predicate::TestResult(Box::new(TestResult {
            tests,
            test_indexes: selection.map(|selection| selection.indexes.clone()).unwrap_or_default(),
            environment_lock: lock.digest,
            recipe: statement::Recipe {
                repository: format!("{}:{}", pipeline.event.repository.forge, pipeline.event.repository.id),
                commit: pipeline.event.head_sha.clone(),
            },
            lane: pipeline.lane,
            trigger: trigger(&pipeline.event.trigger).to_owned(),
            site: statement::Site { name: site.name.to_string(), key: site.public_key.clone() },
            device: device.map(|device| statement::Device {
                kind: device.facts.kind,
                model: device.facts.model.clone(),
                uuid: device.facts.uuid.clone(),
                driver: device.facts.driver.clone(),
                simulated: device.facts.kind.simulated(),
            }),
            started_at: attempt.started_at.unwrap_or(attempt.placed_at).to_string(),
            ended_at: attempt.ended_at.unwrap_or(attempt.since).to_string(),
            outcome: Outcome::Succeeded,
            attempt: statement::Attempt { id: attempt.id, fence: attempt.fence },
            policy_version: POLICY.to_owned(),
        })),
    })
}

fn trigger(trigger: &Trigger) -> &'static str {
    match trigger {
        Trigger::Push { .. } => "push",
        Trigger::PullRequest { .. } => "pull_request",
        Trigger::Manual => "manual",
    }
}
