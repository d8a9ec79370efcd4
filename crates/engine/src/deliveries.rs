//! From a webhook body to a pipeline: store, read, gate, start.
//!
//! Events come late, twice, out of order or never. A GUID is processed once; a head that already has a pipeline for
//! the same trigger is not started again.

use crate::tx::{Tx, missing};
use crate::{demand, gate, queue};
use forgeyard_model::access::Decision;
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
) -> Result<Reply, Refusal> {
    let delivery = tx.farm().deliveries.get(guid).cloned().ok_or_else(|| missing("delivery", guid))?;
    if delivery.state != DeliveryState::Stored {
        return Ok(Reply::Unchanged);
    }
    let (state, reply) = match meaning {
        Err(reason) => (DeliveryState::Rejected { reason }, Reply::Done),
        Ok(Meaning::Nothing { reason }) => (settled("delivery.nothing", reason), Reply::Done),
        Ok(Meaning::Demand(job)) => {
            // The same GUID again is the forge's word that it was sent again.
            let source = if delivery.times > 1 { Source::Redelivery } else { Source::Webhook };
            (DeliveryState::Settled { reason: demand::read(tx, source, *job)? }, Reply::Done)
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
fn resources(tx: &Tx<'_>) -> BTreeSet<String> {
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

/// Asks the gate for every pool that the work would use; all must allow.
fn gate_all(tx: &Tx<'_>, event: &ForgeEvent) -> Decision {
    let config = tx.config();
    let repository = config.repository(&event.repository.forge, event.repository.id);
    let mut all: Option<(Vec<String>, Lane, Isolation, Vec<String>)> = None;
    for resource in resources(tx) {
        match gate::decide(event, repository, &resource, &config.access, None) {
            Decision::Deny { reason } => return Decision::Deny { reason },
            Decision::Allow { by, lane, isolation, evidence } => {
                let entry = all.get_or_insert((Vec::new(), lane, isolation, Vec::new()));
                entry.0.extend(by);
                entry.1 = entry.1.min(lane);
                entry.2 = entry.2.max(isolation);
                entry.3.extend(evidence);
            }
        }
    }
    match all {
        Some((mut by, lane, isolation, evidence)) => {
            by.sort();
            by.dedup();
            Decision::Allow { by, lane, isolation, evidence }
        }
        None => Decision::Deny {
            reason: Explanation::new("gate.no_pool", "no pool offers the flavors that native work uses")
                .fix("declare a pool with these flavors in forgeyard.toml"),
        },
    }
}

/// Starts a pipeline, or says why not.
fn admit(tx: &mut Tx<'_>, guid: &str, event: ForgeEvent) -> Result<Result<PipelineId, Explanation>, Refusal> {
    if let Some(known) = same_work(tx, &event) {
        let text = format!("{known} already works on {} for the same trigger", event.head_sha);
        return Ok(Err(Explanation::new("delivery.already_started", text)));
    }
    match gate_all(tx, &event) {
        Decision::Deny { reason } => Ok(Err(reason)),
        Decision::Allow { by, lane, isolation, .. } => {
            let pipeline = start(tx, guid, event, Admission { by, lane, isolation });
            tx.effect(pipeline, "source", Effect::FetchSource { pipeline });
            Ok(Ok(pipeline))
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

fn start(tx: &mut Tx<'_>, guid: &str, event: ForgeEvent, admission: Admission) -> PipelineId {
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
    let plan = blank_job(tx, id, "plan", JobKind::Plan, JobState::Held(Hold::Source));
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
    let pipeline = start(tx, &guid, event, admission);
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
