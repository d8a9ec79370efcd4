//! Test jobs: made with the plan, decided from the package's own test list, and decided anew when a build was run again.

use crate::deliveries::blank_job;
use crate::lifecycle::JobEvent;
use crate::test_placement;
use crate::tx::Tx;
use forgeyard_model::input::Refusal;
use forgeyard_model::job::{Hold, Job, JobKind, JobState, TestDetail};
use forgeyard_model::package::{GpuNeed, PackageFacts};
use forgeyard_model::pipeline::Pipeline;
use forgeyard_model::verdict::{Outcome, RetryPolicy, Verdict};
use forgeyard_model::{ArtifactId, Id, JobId, PipelineId};
use std::collections::BTreeSet;

/// A test whose place is not decided: it waits for its package.
pub(crate) fn undecided(tx: &mut Tx<'_>, pipeline: PipelineId, key: &str, output: &str, build: JobId) -> JobId {
    let needs: BTreeSet<JobId> = [build].into();
    let held = JobState::Held(Hold::Artifacts { of: needs.clone() });
    let mut job = blank_job(tx, pipeline, key, JobKind::Test, held);
    job.needs = needs;
    job.test = Some(TestDetail { output: output.to_owned(), package: None, selection: None });
    let id = job.id;
    tx.event("JobCreated", id, None, job.state.name(), None);
    tx.put(job);
    id
}

/// Decides the tests of a package. A job of an earlier decision is opened again for the new bytes.
pub(crate) fn decide(
    tx: &mut Tx<'_>,
    pipeline: &Pipeline,
    build: JobId,
    package: ArtifactId,
    facts: &PackageFacts,
) -> Result<(), Refusal> {
    let rules = pipeline.file.as_ref().map(|file| file.tests.as_slice()).unwrap_or_default();
    let selections = test_placement::select(facts, rules);
    let first = base(tx, pipeline.id, build, package, facts);
    let key = tx.job(first)?.key;
    // Siblings that the package asks for at run time must be there as well.
    let siblings = facts.depends.iter().filter_map(|spec| spec.split_whitespace().next());
    let mut needs: BTreeSet<JobId> = siblings.filter_map(|name| pipeline.outputs.get(name).copied()).collect();
    needs.insert(build);
    if selections.is_empty() {
        return nothing_to_test(tx, first, package, facts);
    }
    for (index, selection) in selections.into_iter().enumerate() {
        let place = if selection.gpu == GpuNeed::Required { "gpu" } else { "cpu" };
        let key = if index == 0 { key.clone() } else { format!("{key}/{place}") };
        let note = Some(selection.reason.clone());
        let detail =
            TestDetail { output: facts.name.clone(), package: Some(package), selection: Some(selection) };
        let held = JobState::Held(Hold::Artifacts { of: needs.clone() });
        let id = JobId::derive(pipeline.id, &key);
        let Some(known) = tx.farm().jobs.get(&id).cloned() else {
            let mut job = blank_job(tx, pipeline.id, &key, JobKind::Test, held);
            job.test = Some(detail);
            job.needs = needs.clone();
            tx.event("JobCreated", job.id, None, job.state.name(), note);
            tx.put(job);
            continue;
        };
        let event = if known.state.ended() { JobEvent::JobReopened } else { JobEvent::JobHeld };
        let job = Job {
            test: Some(detail),
            needs: needs.clone(),
            spec: None,
            verdict: None,
            retries: 0,
            cancel_requested_at: None,
            ..known
        };
        tx.move_job(job, event, held, note)?;
    }
    Ok(())
}

/// The job that takes the first selection of a package. A recipe may render several builds of one name; each package
/// gets tests of its own.
fn base(
    tx: &mut Tx<'_>,
    pipeline: PipelineId,
    build: JobId,
    package: ArtifactId,
    facts: &PackageFacts,
) -> JobId {
    let file = |id: &ArtifactId| tx.farm().artifacts.get(id).map(|artifact| artifact.name.clone());
    let wanted = file(&package);
    let found = tx.farm().jobs_of(pipeline).find(|job| {
        let same = job.test.as_ref().is_some_and(|test| {
            test.output == facts.name && test.package.as_ref().is_none_or(|known| file(known) == wanted)
        });
        same && job.needs.contains(&build) && !job.key.ends_with("/gpu") && !job.key.ends_with("/cpu")
    });
    match found.map(|job| job.id) {
        Some(id) => id,
        None => {
            let key = format!("test/{}@{}", facts.name, facts.build);
            undecided(tx, pipeline, &key, &facts.name, build)
        }
    }
}

fn nothing_to_test(
    tx: &mut Tx<'_>,
    id: JobId,
    package: ArtifactId,
    facts: &PackageFacts,
) -> Result<(), Refusal> {
    let mut job = tx.job(id)?;
    job.test = Some(TestDetail { output: facts.name.clone(), package: Some(package), selection: None });
    job.verdict = Some(Verdict {
        outcome: Outcome::Canceled,
        class: Some("test.none".to_owned()),
        cause: "the package carries no tests of its own, so nothing was tested".to_owned(),
        rule: None,
        blame: None,
        retry: RetryPolicy::R0,
        lines: Vec::new(),
        fix: Some("add a `tests:` section to the recipe; a package without tests is not promoted".to_owned()),
    });
    if job.state.ended() {
        tx.put(job);
        return Ok(());
    }
    tx.move_job(job, JobEvent::JobEnded, JobState::Ended { outcome: Outcome::Canceled }, None)
}
