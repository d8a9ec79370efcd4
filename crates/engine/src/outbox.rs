//! What local effects bring back: the source, the plan, package facts, the promotion, the environment.
//!
//! Effects are done at least once; a result for an effect that is already settled changes nothing.

use crate::deliveries::blank_job;
use crate::lifecycle::JobEvent;
use crate::tx::{Tx, missing};
use crate::{completion, demand, plan, release, spec, test_jobs};
use forgeyard_model::artifact::Artifact;
use forgeyard_model::channel::{Channel, ChannelEntry};
use forgeyard_model::effect::{Effect, EffectResult, PendingEffect};
use forgeyard_model::environment::{Environment, EnvironmentState};
use forgeyard_model::input::{Refusal, RefusalKind, Reply};
use forgeyard_model::job::{Hold, JobKind, JobState};
use forgeyard_model::package::PackageFacts;
use forgeyard_model::pipeline::{PipelineState, SourceRecord};
use forgeyard_model::plan::{PipelineFile, RenderedPlan};
use forgeyard_model::verdict::{Outcome, RetryPolicy, Verdict};
use forgeyard_model::{
    ArtifactId, ChannelName, EffectId, EnvironmentId, Explanation, Id, JobId, Owner, PipelineId, Timestamp,
    deadline,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Longest pause between two tries of an effect.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// An effect came out.
pub(crate) fn settled(tx: &mut Tx<'_>, id: EffectId, result: EffectResult) -> Result<Reply, Refusal> {
    let pending = tx.farm().effects.get(&id).cloned().ok_or_else(|| missing("effect", id))?;
    if pending.done_at.is_some() {
        return Ok(Reply::Unchanged);
    }
    let effect = pending.effect.clone();
    let done_at = Some(tx.now());
    tx.put(PendingEffect { done_at, ..pending });
    match (effect, result) {
        (Effect::FetchSource { pipeline }, EffectResult::Source { artifact, commit, file, file_commit }) => {
            source_ready(tx, pipeline, artifact, &commit, *file, &file_commit)?;
        }
        (Effect::FetchSource { pipeline }, EffectResult::Refused { reason }) => {
            refuse_plan(tx, pipeline, reason)?;
        }
        // What is known of a superseded attempt's bytes neither helps nor harms the pipeline.
        (Effect::ReadPlan { artifact, .. }, EffectResult::Plan { .. } | EffectResult::Refused { .. })
        | (Effect::InspectPackage { artifact, .. }, EffectResult::Refused { .. })
            if superseded(tx, artifact) => {}
        (Effect::ReadPlan { job, .. }, EffectResult::Plan { plan }) => planned(tx, job, &plan)?,
        (Effect::ReadPlan { job, .. }, EffectResult::Refused { reason }) => {
            if let Owner::Pipeline(pipeline) = tx.job(job)?.owner {
                completion::fail(tx, pipeline, reason)?;
            }
        }
        (Effect::InspectPackage { artifact, .. }, EffectResult::Package { facts }) => {
            inspected(tx, artifact, *facts)?;
        }
        (Effect::InspectPackage { job, .. }, EffectResult::Refused { reason }) => {
            if let Owner::Pipeline(pipeline) = tx.job(job)?.owner {
                completion::fail(tx, pipeline, reason)?;
            }
        }
        (Effect::Promote { pipeline, channel }, EffectResult::Promotion { entries }) => {
            promoted(tx, pipeline, channel, entries)?;
        }
        (Effect::Promote { pipeline, .. }, EffectResult::Refused { reason }) => {
            completion::fail(tx, pipeline, reason)?;
        }
        (Effect::MakeEnvironment { environment }, EffectResult::Environment { state }) => {
            environment_made(tx, environment, *state)?;
        }
        (Effect::MakeEnvironment { environment }, EffectResult::Refused { reason }) => {
            environment_made(tx, environment, EnvironmentState::Failed { reason })?;
        }
        (effect, result) if effect.demand().is_some() => demand::settled(tx, effect, result)?,
        (effect, _) => {
            return Err(Refusal::new(
                RefusalKind::Invalid,
                "effect.wrong_result",
                format!("the result does not belong to {effect:?}"),
            ));
        }
    }
    Ok(Reply::Done)
}

/// Whether a later attempt of the same job was accepted instead of the one that made this artifact.
fn superseded(tx: &Tx<'_>, id: ArtifactId) -> bool {
    tx.farm().artifacts.get(&id).is_some_and(|artifact| !completion::accepted(tx.farm(), artifact))
}

/// An effect did not come out; it is tried again after a growing pause.
pub(crate) fn troubled(tx: &mut Tx<'_>, id: EffectId, trouble: String) -> Result<Reply, Refusal> {
    let pending = tx.farm().effects.get(&id).cloned().ok_or_else(|| missing("effect", id))?;
    if pending.done_at.is_some() {
        return Ok(Reply::Unchanged);
    }
    let tries = pending.tries.saturating_add(1);
    let pause = Duration::from_secs(1 << tries.min(8)).min(LONGEST_PAUSE);
    let not_before = tx.now().plus(pause);
    tx.event("EffectTroubled", id, None, "pending", Some(trouble.clone()));
    let effect = pending.effect.clone();
    tx.put(PendingEffect { tries, not_before, trouble: Some(trouble.clone()), ..pending });
    if effect.demand().is_some() {
        demand::troubled(tx, id, effect, tries, &trouble)?;
    }
    Ok(Reply::Done)
}

/// Nothing that a limit says holds an effect longer than this: windows of forges are an hour.
const LONGEST_WAIT: Duration = Duration::from_secs(2 * 3600);

/// An effect waits for a limit. It is done when that allows it; no try is used up, and no pause grows by it.
pub(crate) fn deferred(
    tx: &mut Tx<'_>,
    id: EffectId,
    until: Timestamp,
    reason: Explanation,
) -> Result<Reply, Refusal> {
    let pending = tx.farm().effects.get(&id).cloned().ok_or_else(|| missing("effect", id))?;
    if pending.done_at.is_some() {
        return Ok(Reply::Unchanged);
    }
    let until = until.clamp(tx.now().plus(Duration::from_secs(1)), tx.now().plus(LONGEST_WAIT));
    let known = pending.waits.as_ref().is_some_and(|known| known.code == reason.code);
    if !known {
        let text = format!("not before {until}: {}", reason.message);
        tx.event("EffectDeferred", id, None, "pending", Some(text));
    }
    let (effect, tried) = (pending.effect.clone(), pending.tries > 0);
    tx.put(PendingEffect { not_before: until, waits: Some(reason.clone()), ..pending });
    if effect.demand().is_some() {
        demand::limits::deferred(tx, id, effect, tried, until, &reason)?;
    }
    Ok(Reply::Done)
}

/// The source is stored: the plan job may run.
pub(crate) fn source_ready(
    tx: &mut Tx<'_>,
    id: PipelineId,
    artifact: Artifact,
    commit: &str,
    file: PipelineFile,
    file_commit: &str,
) -> Result<(), Refusal> {
    let mut pipeline = tx.pipeline(id)?;
    if pipeline.state.ended() || pipeline.source.is_some() {
        return Ok(());
    }
    let artifact = Artifact { lane: pipeline.lane, ..artifact };
    tx.event("ArtifactStored", artifact.id, None, "stored", Some(artifact.digest.to_string()));
    pipeline.source = Some(SourceRecord {
        artifact: artifact.id,
        digest: artifact.digest,
        commit: commit.to_owned(),
        pipeline_file_commit: file_commit.to_owned(),
    });
    pipeline.file = Some(file);
    tx.put(artifact);
    let mut job = tx.job(JobId::derive(id, "plan"))?;
    job.spec = Some(spec::plan(tx.config(), &pipeline));
    tx.put(pipeline);
    tx.move_job(job, JobEvent::JobQueued, JobState::Queued, None)
}

/// The source cannot be had: nothing can run.
fn refuse_plan(tx: &mut Tx<'_>, pipeline: PipelineId, reason: Explanation) -> Result<(), Refusal> {
    let mut job = tx.job(JobId::derive(pipeline, "plan"))?;
    if job.state.ended() {
        return Ok(());
    }
    job.verdict = Some(Verdict {
        outcome: Outcome::Failed,
        class: Some("source.unavailable".to_owned()),
        cause: reason.message.clone(),
        rule: None,
        blame: None,
        retry: RetryPolicy::R0,
        lines: Vec::new(),
        fix: reason.fix.clone(),
    });
    tx.move_job(job, JobEvent::JobEnded, JobState::Ended { outcome: Outcome::Failed }, None)?;
    completion::fail(tx, pipeline, reason)
}

/// The rendering was read: builds and tests are made from it.
fn planned(tx: &mut Tx<'_>, plan_job: JobId, rendered: &RenderedPlan) -> Result<(), Refusal> {
    let Owner::Pipeline(id) = tx.job(plan_job)?.owner else { return Ok(()) };
    let mut pipeline = tx.pipeline(id)?;
    if pipeline.state.ended() || !pipeline.outputs.is_empty() {
        return Ok(());
    }
    let components = match plan::expand(rendered) {
        Ok(components) => components,
        Err(reason) => return completion::fail(tx, id, reason),
    };
    let build_of = |component: &str| JobId::derive(id, &format!("build/{component}"));
    let mut builds = Vec::new();
    let mut outputs: BTreeMap<String, JobId> = BTreeMap::new();
    for component in &components {
        let key = format!("build/{}", component.key);
        let needs: BTreeSet<JobId> = component.depends_on.iter().map(|key| build_of(key)).collect();
        let held = JobState::Held(Hold::Artifacts { of: needs.clone() });
        let mut job = blank_job(tx, id, &key, JobKind::Build, held);
        job.outputs = component.outputs.iter().map(|output| output.name.clone()).collect();
        job.needs = needs;
        for output in &component.outputs {
            outputs.insert(output.name.clone(), job.id);
        }
        builds.push(job);
    }
    pipeline.outputs = outputs.clone();
    tx.put(pipeline);
    let ids: Vec<JobId> = builds.iter().map(|job| job.id).collect();
    for job in builds {
        tx.event("JobCreated", job.id, None, job.state.name(), None);
        tx.put(job);
    }
    for (output, build) in &outputs {
        test_jobs::undecided(tx, id, &format!("test/{output}"), output, *build);
    }
    for job in ids {
        release::try_release(tx, job)?;
    }
    Ok(())
}

/// A package was read: its tests are decided now, from its own list, and builds that wait for it may go on.
fn inspected(tx: &mut Tx<'_>, id: ArtifactId, facts: PackageFacts) -> Result<(), Refusal> {
    let mut artifact = tx.farm().artifacts.get(&id).cloned().ok_or_else(|| missing("artifact", id))?;
    if artifact.package.is_some() {
        return Ok(());
    }
    artifact.package = Some(Box::new(facts.clone()));
    let pipeline = tx.pipeline(artifact.pipeline)?;
    let build = artifact.job;
    tx.event("PackageInspected", id, None, "inspected", Some(facts.stem()));
    tx.put(artifact);
    // A build that was run again has other bytes by now; tests that were decided for those must stay as they are.
    if pipeline.state.ended() || superseded(tx, id) {
        return Ok(());
    }
    let Some(build) =
        build.filter(|build| tx.farm().jobs.get(build).is_some_and(|job| job.outputs.contains(&facts.name)))
    else {
        let text = format!("the build made a package `{}` that the plan does not name for it", facts.stem());
        let reason = Explanation::new("plan.unexpected_package", text)
            .fix("give the output the name that the recipe declares");
        return completion::fail(tx, pipeline.id, reason);
    };
    test_jobs::decide(tx, &pipeline, build, id, &facts)?;
    release::release_held(tx, pipeline.id)?;
    completion::check(tx, pipeline.id.into())
}

/// Statements are signed: the switch of the channel is this one row.
fn promoted(
    tx: &mut Tx<'_>,
    id: PipelineId,
    name: ChannelName,
    entries: Vec<ChannelEntry>,
) -> Result<(), Refusal> {
    let mut pipeline = tx.pipeline(id)?;
    if pipeline.state != PipelineState::Promoting {
        return Ok(());
    }
    // The last line of defence: whatever prepared the entries, untrusted bytes do not pass here.
    if let Some(entry) = entries.iter().find(|entry| !promotable(tx, entry, id)) {
        let text = format!(
            "{} does not come from a promotable artifact that this pipeline accepted",
            entry.file_name
        );
        return completion::fail(tx, id, Explanation::new("promotion.untrusted", text));
    }
    let mut channel = tx.farm().channels.get(&name).cloned().unwrap_or(Channel {
        name: name.clone(),
        entries: Vec::new(),
        changed_at: tx.now(),
        generation: 0,
    });
    for entry in entries {
        let same = |old: &&ChannelEntry| old.subdir == entry.subdir && old.file_name == entry.file_name;
        match channel.entries.iter().find(same) {
            Some(old) if old.digest == entry.digest => {}
            Some(old) => {
                let text = format!("{} is already in channel {name} with other bytes", entry.file_name);
                let reason = Explanation::new("promotion.name_taken", text)
                    .with(format!("published: {} by {}", old.digest, old.pipeline))
                    .with(format!("new: {}", entry.digest))
                    .fix("raise the version or the build number; a published file name never changes its bytes");
                return completion::fail(tx, id, reason);
            }
            None => channel.entries.push(entry),
        }
    }
    channel.entries.sort_by(|a, b| (&a.subdir, &a.file_name).cmp(&(&b.subdir, &b.file_name)));
    channel.changed_at = tx.now();
    tx.event("ChannelSwitched", &name, None, "published", Some(format!("by {id}")));
    tx.put(channel);
    pipeline.channel = Some(name.clone());
    let wish = pipeline.file.as_ref().and_then(|file| file.environment.clone());
    let Some(wish) = wish else {
        tx.move_pipeline(pipeline, PipelineState::Succeeded);
        return Ok(());
    };
    let environment = EnvironmentId::derive(id, wish.name.as_str());
    pipeline.environment = Some(environment);
    tx.move_pipeline(pipeline, PipelineState::Environment);
    let now = tx.now();
    let state = EnvironmentState::Requested;
    tx.event("EnvironmentRequested", environment, None, state.name(), None);
    tx.put(Environment {
        id: environment,
        name: wish.name,
        pipeline: id,
        channel: name,
        specs: wish.specs,
        run: wish.run,
        deadline: deadline::environment(&state).map(|limit| now.plus(limit)),
        state,
        requested_at: now,
        since: now,
        generation: 0,
    });
    tx.effect(environment, "make", Effect::MakeEnvironment { environment });
    Ok(())
}

fn promotable(tx: &Tx<'_>, entry: &ChannelEntry, pipeline: PipelineId) -> bool {
    tx.farm().artifacts.get(&entry.artifact).is_some_and(|artifact| {
        artifact.lane.promotable()
            && artifact.pipeline == pipeline
            && artifact.digest == entry.digest
            && completion::accepted(tx.farm(), artifact)
    })
}

fn environment_made(tx: &mut Tx<'_>, id: EnvironmentId, state: EnvironmentState) -> Result<(), Refusal> {
    let environment = tx.farm().environments.get(&id).cloned().ok_or_else(|| missing("environment", id))?;
    if environment.state != EnvironmentState::Requested {
        return Ok(());
    }
    let now = tx.now();
    let from = environment.state.name();
    let pipeline = tx.pipeline(environment.pipeline)?;
    let note = match &state {
        EnvironmentState::Failed { reason } => Some(reason.message.clone()),
        EnvironmentState::Ready { prefix, .. } => Some(prefix.clone()),
        EnvironmentState::Requested => None,
    };
    tx.event("EnvironmentMade", id, Some(from), state.name(), note);
    let next = match &state {
        EnvironmentState::Failed { reason } => PipelineState::Failed { reason: reason.clone() },
        EnvironmentState::Ready { proof: Some(proof), .. } if proof.exit_code != 0 => PipelineState::Failed {
            reason: Explanation::new(
                "environment.proof_failed",
                format!("`{}` ended with {} in the new environment", proof.argv.join(" "), proof.exit_code),
            ),
        },
        EnvironmentState::Ready { .. } | EnvironmentState::Requested => PipelineState::Succeeded,
    };
    tx.put(Environment { state, since: now, deadline: None, ..environment });
    if !pipeline.state.ended() {
        tx.move_pipeline(pipeline, next);
    }
    Ok(())
}
