//! Pipelines in several states, all from one recipe: `fy-core` first, `fy-solve` and `fy-mesh` on it, `fy-app` on both.

use super::*;
use forgeyard_api::people::PipelineView;
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::attempt::{Attempt, AttemptState, TokenState};
use forgeyard_model::channel::{Channel, ChannelEntry};
use forgeyard_model::environment::{Environment, EnvironmentState, LockedPackage, ProofRun};
use forgeyard_model::forge::{ForgeEvent, Person, Repository, Trigger};
use forgeyard_model::job::{Hold, Job, JobKind, JobSpec, JobState, Subject, TestDetail};
use forgeyard_model::lease::{Lease, LeaseState};
use forgeyard_model::package::{GpuNeed, TestSelection};
use forgeyard_model::pipeline::{Pipeline, PipelineState, SourceRecord};
use forgeyard_model::plan::{EnvironmentRequest, PipelineFile};
use forgeyard_model::resources::{GpuRequest, Isolation};
use forgeyard_model::verdict::Outcome;
use forgeyard_model::{
    ArtifactId, AttemptId, EnvironmentId, Explanation, JobId, Lane, LeaseId, PipelineId, RunnerId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The packages and what each is built on.
pub const DIAMOND: [(&str, &[&str]); 4] = [
    ("fy-core", &[]),
    ("fy-solve", &["fy-core"]),
    ("fy-mesh", &["fy-core"]),
    ("fy-app", &["fy-solve", "fy-mesh"]),
];

pub fn pipeline(key: u64, age: u64, lane: Lane, state: PipelineState) -> Pipeline {
    let at = ago(age);
    let pipe: PipelineId = id(at, key);
    let ended = state.ended().then(|| after(at, 431));
    let sha = digest(&format!("commit {key}")).hex()[..40].to_owned();
    Pipeline {
        id: pipe,
        delivery: "f3a1c8de-20f4-11f1-9d2c-6f0c1d9b7e55".to_owned(),
        event: ForgeEvent {
            repository: Repository {
                forge: name("github"),
                id: 481_516,
                name: "kestrel-sim/kestrel".to_owned(),
            },
            trigger: match lane {
                Lane::Protected => Trigger::Push { git_ref: "refs/heads/main".to_owned() },
                Lane::SameRepoPr | Lane::ForkPr => Trigger::PullRequest {
                    number: 217,
                    base: "main".to_owned(),
                    base_sha: digest("base").hex()[..40].to_owned(),
                    head_repository: 481_516,
                    fork: lane == Lane::ForkPr,
                },
            },
            head_sha: sha.clone(),
            sender: Person { id: 7_340_033, login: "lena-k".to_owned() },
            author: (lane != Lane::Protected).then(|| Person { id: 55_001, login: "tomas-dev".to_owned() }),
        },
        lane,
        isolation: Isolation::SharedKernel,
        outputs: BTreeMap::new(),
        allowed_by: vec!["kestrel-main".to_owned()],
        file: Some(PipelineFile {
            environment: Some(EnvironmentRequest {
                name: name("kestrel"),
                specs: vec!["fy-app".to_owned()],
                run: vec!["fy-app".to_owned(), "--selftest".to_owned()],
            }),
            ..PipelineFile::default()
        }),
        source: Some(SourceRecord {
            artifact: ArtifactId::derive(pipe, "source"),
            digest: digest("source"),
            commit: sha,
            pipeline_file_commit: digest("base").hex()[..40].to_owned(),
        }),
        not_promoted: (!lane.promotable()).then(|| {
            Explanation::new("promotion.lane", format!("not promotable: the event is a {lane}"))
                .with("only what comes from a protected ref may reach a channel")
                .fix("merge the change; the push to main builds it anew and promotes it")
        }),
        channel: lane.promotable().then(|| name("kestrel-main")),
        environment: None,
        created_at: at,
        ended_at: ended,
        since: ended.unwrap_or(at),
        deadline: None,
        state,
        generation: 7,
    }
}

fn job_of(
    pipeline: &Pipeline,
    key: &str,
    kind: JobKind,
    needs: BTreeSet<JobId>,
    state: JobState,
    began: u64,
    ended: Option<u64>,
) -> Job {
    let at = after(pipeline.created_at, began);
    let gpu = key.ends_with("/gpu");
    let output = key.split('/').nth(1).unwrap_or_default().to_owned();
    let file_name = format!("{output}-2.4.1-h5f1c0d_0.conda");
    Job {
        id: JobId::derive(pipeline.id, key),
        owner: pipeline.id.into(),
        account: None,
        key: key.to_owned(),
        kind,
        spec: Some(JobSpec {
            flavor: name(if gpu { "gpu-medium" } else { "cpu-large" }),
            gpu: gpu.then_some(GpuRequest {
                count: 1,
                kind: None,
                min_memory_mib: 8192,
                min_compute_capability: 0,
            }),
            needs: BTreeSet::new(),
            inputs: Vec::new(),
            files: Vec::new(),
            steps: Vec::new(),
            outputs: Vec::new(),
            env: [].into(),
            subject: (kind == JobKind::Test).then(|| Subject { digest: digest(&file_name), file_name }),
            pools: Vec::new(),
            forge_runner: None,
        }),
        outputs: if kind == JobKind::Build { vec![output.clone()] } else { Vec::new() },
        test: (kind == JobKind::Test).then(|| TestDetail {
            output,
            package: None,
            selection: Some(TestSelection {
                indexes: vec![0, 1],
                gpu: if gpu { GpuNeed::Required } else { GpuNeed::None },
                reason: if gpu {
                    "the package links libOpenCL.so.1 and its test calls clGetDeviceIDs".to_owned()
                } else {
                    "no test of it speaks to a device".to_owned()
                },
            }),
        }),
        needs,
        state,
        waiting: None,
        fence: 1,
        retries: 0,
        avoid: BTreeSet::new(),
        verdict: None,
        cancel_requested_at: None,
        created_at: after(pipeline.created_at, began.saturating_sub(4)),
        queued_at: Some(at),
        ended_at: ended.map(|seconds| after(pipeline.created_at, seconds)),
        since: after(pipeline.created_at, ended.unwrap_or(began)),
        deadline: None,
        generation: 5,
    }
}

pub fn attempt_of(
    job: &Job,
    pipeline: &Pipeline,
    began: u64,
    ended: Option<u64>,
    lease: Option<LeaseId>,
) -> Attempt {
    let outcome = match job.state {
        JobState::Ended { outcome } => Some(outcome),
        _ => None,
    };
    let attempt = AttemptId::derive(job.id, "1");
    Attempt {
        id: attempt,
        job: job.id,
        owner: pipeline.id.into(),
        account: None,
        stake: None,
        fence: 1,
        runner: RunnerId::derive(attempt, "runner"),
        site: site_id(1),
        lease,
        token: TokenState::Closed { nonce: "n".to_owned() },
        state: if ended.is_some() { AttemptState::Ended } else { AttemptState::Running },
        placed_at: after(pipeline.created_at, began),
        started_at: Some(after(pipeline.created_at, began + 1)),
        ended_at: ended.map(|seconds| after(pipeline.created_at, seconds)),
        heard_at: Some(ago(1)),
        step: ended.is_none().then(|| "test".to_owned()),
        outcome,
        facts: None,
        verdict: None,
        artifacts: Vec::new(),
        since: after(pipeline.created_at, ended.unwrap_or(began)),
        deadline: None,
        generation: 3,
    }
}

/// What of the chain is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The plan runs.
    Planning,
    /// Two builds are done, the GPU test of the first package runs.
    Testing,
    /// All jobs are done; the GPU test of `fy-solve` failed.
    Failed,
    /// All jobs succeeded.
    Done,
}

/// A pipeline of the diamond recipe.
pub fn diamond(pipeline: Pipeline, stop: Stop) -> PipelineView {
    let mut view = PipelineView {
        pipeline,
        jobs: Vec::new(),
        attempts: Vec::new(),
        artifacts: Vec::new(),
        leases: Vec::new(),
        environment: None,
    };
    let good = JobState::Ended { outcome: Outcome::Succeeded };
    let mut add = |key: &str, kind, needs: &[&str], span: (u64, u64), reached: bool| {
        let needs: BTreeSet<JobId> = needs.iter().map(|need| JobId::derive(view.pipeline.id, need)).collect();
        let at = JobState::Running { attempt: AttemptId::derive(JobId::derive(view.pipeline.id, key), "1") };
        let over = view.pipeline.created_at.plus(Duration::from_secs(span.1)) <= NOW;
        let fails = stop == Stop::Failed && key == "test/fy-solve/gpu";
        let state = match (reached, over, fails) {
            (false, ..) if kind == JobKind::Test || !needs.is_empty() => {
                JobState::Held(Hold::Artifacts { of: needs.clone() })
            }
            (false, ..) => JobState::Queued,
            (true, true, true) => JobState::Ended { outcome: Outcome::Failed },
            (true, true, false) => good.clone(),
            (true, false, _) => at,
        };
        let ended = (reached && over).then_some(span.1);
        let elapsed = NOW.since(view.pipeline.created_at).as_secs();
        let span = (span.0.min(elapsed.saturating_sub(7)), span.1);
        let job = job_of(&view.pipeline, key, kind, needs, state, span.0, ended);
        let lease = (reached && key.ends_with("/gpu"))
            .then(|| if ended.is_some() { LeaseId::derive(job.id, "lease") } else { lease_id() });
        if reached {
            let attempt = attempt_of(&job, &view.pipeline, span.0, ended, lease);
            if let Some(lease) = lease {
                view.leases.push(Lease {
                    id: lease,
                    site: site_id(1),
                    attempt: Some(attempt.id),
                    runner: attempt.runner,
                    devices: vec![device_id("pci:0000:01:00.0")],
                    state: if ended.is_some() { LeaseState::Ended } else { LeaseState::Held },
                    claimed_at: attempt.placed_at,
                    held_at: attempt.started_at,
                    ended_at: ended.map(|seconds| after(view.pipeline.created_at, seconds + 3)),
                    since: attempt.placed_at,
                    deadline: None,
                    generation: 2,
                });
            }
            view.attempts.push(attempt);
        }
        let fence = u32::from(reached);
        view.jobs.push(Job { fence, ..job });
    };
    add("plan", JobKind::Plan, &[], (4, 11), true);
    if stop != Stop::Planning {
        let all = stop != Stop::Testing;
        for (package, needs) in DIAMOND {
            let key = format!("build/{package}");
            let needs: Vec<String> = std::iter::once("plan".to_owned())
                .chain(needs.iter().map(|need| format!("build/{need}")))
                .collect();
            let needs: Vec<&str> = needs.iter().map(String::as_str).collect();
            let span = match package {
                "fy-core" => (12, 96),
                "fy-solve" => (97, 210),
                "fy-mesh" => (97, 163),
                _ => (211, 262),
            };
            add(&key, JobKind::Build, &needs, span, all || package != "fy-app");
        }
        for (package, place, span) in [
            ("fy-core", "gpu", (98, 141)),
            ("fy-solve", "gpu", (212, 274)),
            ("fy-mesh", "cpu", (165, 188)),
            ("fy-app", "gpu", (276, 322)),
        ] {
            let build = format!("build/{package}");
            add(
                &format!("test/{package}/{place}"),
                JobKind::Test,
                &[&build],
                span,
                all || package == "fy-core" || package == "fy-mesh",
            );
        }
    }
    let made: Vec<Artifact> = view
        .attempts
        .iter()
        .filter_map(|attempt| {
            let job = view.jobs.iter().find(|job| job.id == attempt.job)?;
            let (kind, file) = match job.kind {
                JobKind::Plan => (ArtifactKind::Plan, "plan.json".to_owned()),
                JobKind::Build => {
                    (ArtifactKind::CondaPackage, format!("{}-2.4.1-h5f1c0d_0.conda", job.outputs[0]))
                }
                JobKind::Test | JobKind::Runner => return None,
            };
            Some(Artifact {
                id: ArtifactId::derive(attempt.id, &file),
                kind,
                digest: digest(&file),
                name: file,
                size: if kind == ArtifactKind::Plan { 9_411 } else { 4_811_236 },
                pipeline: view.pipeline.id,
                job: Some(job.id),
                attempt: Some(attempt.id),
                lane: view.pipeline.lane,
                package: None,
                stored_at: attempt.ended_at?,
                generation: 1,
            })
        })
        .collect();
    view.artifacts.push(Artifact {
        id: ArtifactId::derive(view.pipeline.id, "source"),
        kind: ArtifactKind::Source,
        name: "source.tar".to_owned(),
        digest: digest("source"),
        size: 188_416,
        pipeline: view.pipeline.id,
        job: None,
        attempt: None,
        lane: view.pipeline.lane,
        package: None,
        stored_at: after(view.pipeline.created_at, 3),
        generation: 1,
    });
    view.artifacts.extend(made);
    if stop == Stop::Failed {
        let job = view.jobs.iter_mut().find(|job| job.key == "test/fy-solve/gpu").unwrap();
        job.verdict = Some(verdict());
        let attempt = view.attempts.iter_mut().find(|attempt| attempt.job == job.id).unwrap();
        attempt.verdict = Some(verdict());
        attempt.facts = Some(facts(attempt.placed_at, 1));
    }
    view
}

pub fn planning() -> PipelineView {
    let mut view = diamond(pipeline(1, 9, Lane::Protected, PipelineState::Running), Stop::Planning);
    view.pipeline.file = None;
    view
}

pub fn running() -> PipelineView {
    let mut view = diamond(pipeline(2, 127, Lane::Protected, PipelineState::Running), Stop::Testing);
    let queued = view.jobs.iter_mut().find(|job| job.key == "build/fy-mesh").unwrap();
    queued.state = JobState::Queued;
    queued.waiting = Some(waiting());
    let queued = queued.id;
    view.attempts.retain(|attempt| attempt.job != queued);
    let held = view.jobs.iter_mut().find(|job| job.key == "test/fy-mesh/cpu").unwrap();
    held.state = JobState::Held(Hold::Artifacts { of: [queued].into() });
    let held = held.id;
    view.attempts.retain(|attempt| attempt.job != held);
    view
}

pub fn waiting() -> Explanation {
    Explanation::new("queue.no_capacity", "no machine of the flavor cpu-large is free")
        .with("pool sheds: 4 of 4 machines are busy")
        .with("shed-1: 3.5 of 28 CPUs free, 8 needed")
}

pub fn failed() -> PipelineView {
    let reason = Explanation::new(
        "pipeline.job_failed",
        "test/fy-solve/gpu failed: 3 of 48 tests, results differ from the reference",
    )
    .with("class numeric.mismatch, line 412 of its log")
    .fix("compare on one architecture first: forgeyard job rerun JOB --test-only");
    diamond(pipeline(3, 700, Lane::SameRepoPr, PipelineState::Failed { reason }), Stop::Failed)
}

pub fn succeeded() -> PipelineView {
    let mut view = diamond(pipeline(4, 5400, Lane::Protected, PipelineState::Succeeded), Stop::Done);
    let environment = environment(&view.pipeline, ready());
    view.pipeline.environment = Some(environment.id);
    view.environment = Some(environment);
    view
}

pub fn ready() -> EnvironmentState {
    let locked = |file: &str, channel: &str| LockedPackage {
        subdir: "linux-64".to_owned(),
        file_name: file.to_owned(),
        digest: digest(file),
        url: format!("https://{channel}/linux-64/{file}"),
    };
    let ours = "farm.example.org/channels/kestrel-main";
    EnvironmentState::Ready {
        lock: vec![
            locked("_libgcc_mutex-0.1-conda_forge.tar.bz2", "conda.example.org/conda-forge"),
            locked("fy-app-2.4.1-h5f1c0d_0.conda", ours),
            locked("fy-core-2.4.1-h5f1c0d_0.conda", ours),
            locked("libstdcxx-14.2.0-h8f9b012_1.conda", "conda.example.org/conda-forge"),
            locked("ocl-icd-2.3.2-hb9d3cd8_2.conda", "conda.example.org/conda-forge"),
        ],
        lock_digest: digest("lock"),
        prefix: format!("/var/lib/forgeyard/envs/{}", &digest("lock").hex()[..16]),
        proof: Some(ProofRun { argv: vec!["fy-app".to_owned(), "--selftest".to_owned()], exit_code: 0, stdout: "device: NVIDIA RTX 4000 SFF Ada Generation\nsaxpy   187.4 GFLOP/s   ok\nstream  251.9 GB/s      ok\nall 2 checks passed\n".to_owned(), took_ms: Some(2_150) }),
    }
}

pub fn environment(pipeline: &Pipeline, state: EnvironmentState) -> Environment {
    Environment {
        id: EnvironmentId::derive(pipeline.id, "kestrel"),
        name: name("kestrel"),
        pipeline: pipeline.id,
        channel: name("kestrel-main"),
        specs: vec!["fy-app".to_owned()],
        run: vec!["fy-app".to_owned(), "--selftest".to_owned()],
        state,
        requested_at: after(pipeline.created_at, 326),
        since: after(pipeline.created_at, 341),
        deadline: None,
        generation: 2,
    }
}

pub fn channel() -> Channel {
    let view = succeeded();
    Channel {
        name: name("kestrel-main"),
        entries: view
            .artifacts
            .iter()
            .filter(|artifact| artifact.kind == ArtifactKind::CondaPackage)
            .map(|artifact| ChannelEntry {
                subdir: "linux-64".to_owned(),
                file_name: artifact.name.clone(),
                digest: artifact.digest,
                size: artifact.size,
                artifact: artifact.id,
                record: serde_json::Value::Null,
                attestation: digest(&format!("statement {}", artifact.name)),
                pipeline: artifact.pipeline,
                promoted_at: ago(5072),
            })
            .collect(),
        changed_at: ago(5072),
        generation: 12,
    }
}
