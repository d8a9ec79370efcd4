//! From a webhook body to a pipeline: store, read, gate, start.
//!
//! Events come late, twice, out of order or never. A GUID is processed once; a head that already has a pipeline for
//! the same trigger is not started again.

use crate::gate::Admitted;
use crate::tx::{Tx, missing};
use crate::{approvals, demand, gate, queue};
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::delivery::{Delivery, DeliveryState};
use forgeyard_model::demand::Source;
use forgeyard_model::effect::Effect;
use forgeyard_model::forge::{ForgeEvent, Meaning, Person, Repository, Trigger};
use forgeyard_model::input::{Refusal, Reply, StoredSource};
use forgeyard_model::job::{Hold, Job, JobKind, JobState};
use forgeyard_model::pipeline::{Pipeline, PipelineState};
use forgeyard_model::plan::PipelineFile;
use forgeyard_model::resources::Isolation;
use forgeyard_model::{ArtifactId, Digest, Explanation, Id, JobId, Lane, Owner, PipelineId, deadline};
use std::collections::{BTreeMap, BTreeSet};

/// A body arrived. It is stored before anything else is done with it; a GUID that is known is only counted.
pub(crate) fn received(tx: &mut Tx<'_>, guid: String, event: String, body: Digest) -> Result<Reply, Refusal> {
    if let Some(known) = tx.farm().deliveries.get(&guid).cloned() {
        let times = known.times.saturating_add(1);
        tx.event("DeliveryRepeated", &guid, Some(known.state.name()), known.state.name(), None);
        tx.put(Delivery { times, ..known });
        return Ok(Reply::Unchanged);
    }
    tx.event("DeliveryReceived", &guid, None, "stored", Some(event.clone()));
    let received_at = tx.now();
    tx.put(Delivery {
        guid,
        event,
        body,
        state: DeliveryState::Stored,
        times: 1,
        received_at,
        generation: 0,
    });
    Ok(Reply::Done)
}

/// A stored body was read.
pub(crate) fn read(
    tx: &mut Tx<'_>,
    guid: &str,
    meaning: Result<Meaning, Explanation>,
    asked: bool,
) -> Result<Reply, Refusal> {
    let delivery = tx.farm().deliveries.get(guid).cloned().ok_or_else(|| missing("delivery", guid))?;
    if delivery.state != DeliveryState::Stored {
        return Ok(Reply::Unchanged);
    }
    let (state, reply) = match meaning {
        Err(reason) => (DeliveryState::Rejected { reason }, Reply::Done),
        Ok(Meaning::Nothing { reason }) => (settled("delivery.nothing", reason), Reply::Done),
        Ok(Meaning::Demand(job)) => {
            // The same GUID again is the forge's word that it was sent again; so is our own that we asked for it.
            let source = if asked || delivery.times > 1 { Source::Redelivery } else { Source::Webhook };
            (DeliveryState::Settled { reason: demand::read(tx, source, *job)? }, Reply::Done)
        }
        Ok(Meaning::Pressed(press)) => {
            (DeliveryState::Settled { reason: approvals::pressed(tx, *press)? }, Reply::Done)
        }
        Ok(Meaning::PullRequestClosed { repository, number }) => {
            let canceled = close(tx, &repository, number)?;
            let text = format!("pull request {number} was closed; {canceled} running pipelines were stopped");
            (settled("delivery.closed", text), Reply::Done)
        }
        Ok(Meaning::Work(event)) => match admit(tx, guid, *event)? {
            Ok(pipeline) => (DeliveryState::Started { pipeline }, Reply::Pipeline { pipeline }),
            Err(reason) => (DeliveryState::Settled { reason }, Reply::Done),
        },
    };
    let note = match &state {
        DeliveryState::Settled { reason } | DeliveryState::Rejected { reason } => {
            Some(reason.message.clone())
        }
        _ => None,
    };
    tx.event("DeliveryRead", guid, Some("stored"), state.name(), note);
    tx.put(Delivery { state, ..delivery });
    Ok(reply)
}

fn settled(code: &str, text: impl Into<String>) -> DeliveryState {
    DeliveryState::Settled { reason: Explanation::new(code, text) }
}

/// Pools that native work of any kind may use, by name.
pub(crate) fn resources(tx: &Tx<'_>) -> BTreeSet<String> {
    let config = tx.config();
    let wanted = [
        &config.use_flavors.plan,
        &config.use_flavors.build,
        &config.use_flavors.test,
        &config.use_flavors.gpu_test,
    ];
    let serves = |flavor| config.pools.iter().find(|pool| pool.flavors.contains(flavor));
    wanted.into_iter().filter_map(serves).map(|pool| pool.name.to_string()).collect()
}

/// Asks the gate for every pool that the work would use; all must allow. One that denies outweighs one that holds.
fn gate_all(tx: &Tx<'_>, event: &ForgeEvent) -> Admitted {
    let config = tx.config();
    let repository = config.repository(&event.repository.forge, event.repository.id);
    let approval = approvals::of_head(tx, &event.repository, &event.head_sha);
    let access = approvals::access(tx);
    let mut all: Option<(Vec<String>, Lane, Isolation, Vec<String>)> = None;
    let mut held: Option<Explanation> = None;
    for resource in resources(tx) {
        match gate::admit(event, repository, &resource, &access, approval.as_ref()) {
            Admitted::Deny { reason } => return Admitted::Deny { reason },
            Admitted::Hold { reason } => held = held.or(Some(reason)),
            Admitted::Allow { by, lane, isolation, evidence } => {
                let entry = all.get_or_insert((Vec::new(), lane, isolation, Vec::new()));
                entry.0.extend(by);
                entry.1 = entry.1.min(lane);
                entry.2 = entry.2.max(isolation);
                entry.3.extend(evidence);
            }
        }
    }
    if let Some(reason) = held {
        return match approvals::refused(tx, &event.repository, &event.head_sha) {
            Some(reason) => Admitted::Deny { reason },
            None => Admitted::Hold { reason },
        };
    }
    match all {
        Some((mut by, lane, isolation, evidence)) => {
            by.sort();
            by.dedup();
            Admitted::Allow { by, lane, isolation, evidence }
        }
        None => Admitted::Deny {
            reason: Explanation::new("gate.no_pool", "no pool offers the flavors that native work uses")
                .fix("declare a pool with these flavors in forgeyard.toml"),
        },
    }
}

/// Starts a pipeline, or says why not. Where an approval would do, it is started and held.
fn admit(tx: &mut Tx<'_>, guid: &str, event: ForgeEvent) -> Result<Result<PipelineId, Explanation>, Refusal> {
    if let Trigger::PullRequest { number, .. } = event.trigger {
        approvals::new_head(tx, &event.repository, number, &event.head_sha)?;
    }
    if let Some(known) = same_work(tx, &event) {
        let text = format!("{known} already works on {} for the same trigger", event.head_sha);
        return Ok(Err(Explanation::new("delivery.already_started", text)));
    }
    match gate_all(tx, &event) {
        Admitted::Deny { reason } => Ok(Err(reason)),
        Admitted::Hold { reason } => {
            // Until somebody approves it, it is trusted as little as anything can be.
            let admission = Admission { by: Vec::new(), lane: Lane::ForkPr, isolation: Isolation::Vm };
            Ok(Ok(start(tx, guid, event, admission, Hold::Approval { reason })))
        }
        Admitted::Allow { by, lane, isolation, .. } => {
            let pipeline = start(tx, guid, event, Admission { by, lane, isolation }, Hold::Source);
            tx.effect(pipeline, "source", Effect::FetchSource { pipeline });
            Ok(Ok(pipeline))
        }
    }
}

/// Asks the gate again about a pipeline that a forge's event started: one that is held may begin, one that is no longer
/// allowed is stopped.
pub(crate) fn reconsider(tx: &mut Tx<'_>, id: PipelineId) -> Result<(), Refusal> {
    let mut pipeline = tx.pipeline(id)?;
    if pipeline.event.trigger == Trigger::Manual || pipeline.state.ended() {
        return Ok(());
    }
    let held = approvals::waits(tx, id);
    match (gate_all(tx, &pipeline.event), held) {
        (Admitted::Allow { by, lane, isolation, .. }, Some(job)) => {
            (pipeline.allowed_by, pipeline.lane, pipeline.isolation) = (by, lane, isolation);
            let name = pipeline.state.name();
            tx.event("PipelineAllowed", id, Some(name), name, Some(format!("lane: {lane}")));
            tx.put(pipeline);
            let mut job = tx.job(job)?;
            job.state = JobState::Held(Hold::Source);
            job.since = tx.now();
            job.deadline = deadline::job(&job.state).map(|limit| tx.now().plus(limit));
            tx.put(job);
            tx.effect(id, "source", Effect::FetchSource { pipeline: id });
            Ok(())
        }
        (Admitted::Hold { reason }, Some(job)) => {
            let mut job = tx.job(job)?;
            let state = JobState::Held(Hold::Approval { reason });
            if job.state != state {
                job.state = state;
                tx.put(job);
            }
            Ok(())
        }
        (Admitted::Deny { reason }, Some(job)) => crate::people::stop(tx, job, &reason.message),
        (Admitted::Allow { .. }, None) => Ok(()),
        (Admitted::Hold { reason } | Admitted::Deny { reason }, None) => {
            let text = format!("no longer allowed: {}", reason.message);
            let open: Vec<JobId> =
                tx.farm().jobs_of(id).filter(|job| !job.state.ended()).map(|job| job.id).collect();
            for job in open {
                crate::people::stop(tx, job, &text)?;
            }
            Ok(())
        }
    }
}

/// A pipeline of the same head and trigger, at work or done.
fn same_work(tx: &Tx<'_>, event: &ForgeEvent) -> Option<PipelineId> {
    let same = |pipeline: &&Pipeline| {
        pipeline.event.repository.id == event.repository.id
            && pipeline.event.repository.forge == event.repository.forge
            && pipeline.event.head_sha == event.head_sha
            && same_trigger(&pipeline.event.trigger, &event.trigger)
    };
    tx.farm().pipelines.values().find(same).map(|pipeline| pipeline.id)
}

fn same_trigger(a: &Trigger, b: &Trigger) -> bool {
    match (a, b) {
        (Trigger::Push { git_ref: a }, Trigger::Push { git_ref: b }) => a == b,
        (Trigger::PullRequest { number: a, .. }, Trigger::PullRequest { number: b, .. }) => a == b,
        _ => false,
    }
}

struct Admission {
    by: Vec<String>,
    lane: Lane,
    isolation: Isolation,
}

fn start(tx: &mut Tx<'_>, guid: &str, event: ForgeEvent, admission: Admission, hold: Hold) -> PipelineId {
    let id: PipelineId = tx.new_id();
    let now = tx.now();
    let state = PipelineState::Running;
    tx.event("PipelineStarted", id, None, state.name(), Some(format!("lane: {}", admission.lane)));
    tx.put(Pipeline {
        id,
        delivery: guid.to_owned(),
        event,
        lane: admission.lane,
        isolation: admission.isolation,
        allowed_by: admission.by,
        file: None,
        source: None,
        outputs: BTreeMap::new(),
        deadline: deadline::pipeline(&state).map(|limit| now.plus(limit)),
        state,
        not_promoted: None,
        channel: None,
        environment: None,
        created_at: now,
        ended_at: None,
        since: now,
        generation: 0,
    });
    let plan = blank_job(tx, id, "plan", JobKind::Plan, JobState::Held(hold));
    tx.event("JobCreated", plan.id, None, plan.state.name(), None);
    tx.put(plan);
    id
}

/// A job that has not begun.
pub(crate) fn blank_job(
    tx: &Tx<'_>,
    owner: impl Into<Owner>,
    key: &str,
    kind: JobKind,
    state: JobState,
) -> Job {
    let now = tx.now();
    let owner = owner.into();
    let id = match owner {
        Owner::Pipeline(owner) => JobId::derive(owner, key),
        Owner::Demand(owner) => JobId::derive(owner, key),
    };
    Job {
        id,
        owner,
        account: queue::account_of(tx.farm(), owner),
        key: key.to_owned(),
        kind,
        spec: None,
        outputs: Vec::new(),
        test: None,
        needs: BTreeSet::new(),
        deadline: deadline::job(&state).map(|limit| now.plus(limit)),
        state,
        waiting: None,
        fence: 0,
        retries: 0,
        avoid: BTreeSet::new(),
        verdict: None,
        cancel_requested_at: None,
        created_at: now,
        queued_at: None,
        ended_at: None,
        since: now,
        generation: 0,
    }
}

/// A person handed in a recipe folder; its source is stored. Never promotable to a repository's channel.
pub(crate) fn run_requested(
    tx: &mut Tx<'_>,
    guid: String,
    source: StoredSource,
    file: PipelineFile,
) -> Result<Reply, Refusal> {
    if let Some(Delivery { state: DeliveryState::Started { pipeline }, .. }) = tx.farm().deliveries.get(&guid)
    {
        return Ok(Reply::Pipeline { pipeline: *pipeline });
    }
    let person = Person { id: 0, login: tx.ctx.by.name.clone() };
    let forge = "local".parse().map_err(|_| missing("forge", "local"))?;
    let event = ForgeEvent {
        repository: Repository { forge, id: 0, name: source.name.clone() },
        trigger: Trigger::Manual,
        head_sha: source.digest.hex(),
        sender: person,
        author: None,
    };
    let admission = Admission {
        by: vec![format!("handed in by {}", tx.ctx.by.name)],
        lane: Lane::SameRepoPr,
        isolation: Isolation::SharedKernel,
    };
    let pipeline = start(tx, &guid, event, admission, Hold::Source);
    let received_at = tx.now();
    tx.put(Delivery {
        guid,
        event: "run".to_owned(),
        body: source.digest,
        state: DeliveryState::Started { pipeline },
        times: 1,
        received_at,
        generation: 0,
    });
    let artifact = Artifact {
        id: ArtifactId::derive(pipeline, "source"),
        kind: ArtifactKind::Source,
        name: "source.tar".to_owned(),
        digest: source.digest,
        size: source.size,
        pipeline,
        job: None,
        attempt: None,
        lane: Lane::SameRepoPr,
        package: None,
        stored_at: received_at,
        generation: 0,
    };
    let commit = source.digest.hex();
    crate::outbox::source_ready(tx, pipeline, artifact, &commit, file, &commit)?;
    Ok(Reply::Pipeline { pipeline })
}

/// Stops the running pipelines of a closed pull request and answers how many there were.
fn close(tx: &mut Tx<'_>, repository: &Repository, number: u64) -> Result<usize, Refusal> {
    let of_it = |pipeline: &&Pipeline| {
        pipeline.event.repository.id == repository.id
            && pipeline.event.repository.forge == repository.forge
            && matches!(pipeline.event.trigger, Trigger::PullRequest { number: n, .. } if n == number)
    };
    let live = tx.farm().index.live_pipelines.iter().filter_map(|id| tx.farm().pipelines.get(id));
    let pipelines: Vec<PipelineId> = live.filter(of_it).map(|pipeline| pipeline.id).collect();
    for pipeline in &pipelines {
        let jobs: Vec<JobId> =
            tx.farm().jobs_of(*pipeline).filter(|job| !job.state.ended()).map(|job| job.id).collect();
        for job in jobs {
            crate::people::stop(tx, job, "its pull request was closed")?;
        }
    }
    Ok(pipelines.len())
}
