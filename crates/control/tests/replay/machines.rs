//! *Simulated* sites, machines and agents. Agents speak the real HTTP contract through the real router; a site reads the
//! real desired set and reports through the same input as its route does.

use super::hub::Hub;
use super::world::Plane;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use forgeyard_api::agent::{
    FINISH, Finish, HEARTBEAT, Heartbeat, REDEEM, RUNNER_CONFIG, RUNNER_TOOK, Redeem, Redeemed, RunnerConfig,
    RunnerConfigRequest, RunnerTook, VERSION,
};
use forgeyard_engine::desired::{self, TokenOf, desired};
use forgeyard_forges::twin::{Behaviour, Phase};
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::input::Input;
use forgeyard_model::registration::TakenAnswer;
use forgeyard_model::resources::{DeviceKind, Limit};
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::site::{DesiredRunner, DesiredSet, HostFacts, ObservedLease, SiteReport};
use forgeyard_model::verdict::{ExitFacts, StepFacts};
use forgeyard_model::{Explanation, LeaseId, RunnerId, SiteId, Timestamp};
use forgeyard_testkit::build::name;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tower::ServiceExt as _;

/// How often an agent speaks. The farm asks for every five seconds; less often is less to simulate.
const BEAT: Duration = Duration::from_secs(30);
/// How often a site looks whether something is wanted of it.
const ROUND: Duration = Duration::from_secs(2);

/// What became of machines.
#[derive(Debug, Clone, Default)]
pub struct Life {
    pub made_at: Timestamp,
    /// When its job was over, or its program ended without one.
    pub over_at: Option<Timestamp>,
    pub gone_at: Option<Timestamp>,
    /// Whether it was at a job when it was destroyed.
    pub killed_at_work: bool,
    pub took: Option<u64>,
}

struct Machine {
    state: Mutex<ObservedState>,
    stand_in: Mutex<Option<u64>>,
    /// The machine is to go, or something is new about its runner program.
    news: Notify,
    gone: std::sync::atomic::AtomicBool,
}

impl Machine {
    fn gone(&self) -> bool {
        self.gone.load(std::sync::atomic::Ordering::Relaxed)
    }
}

pub struct Sites {
    hub: Arc<Hub>,
    plane: Arc<Plane>,
    by_stand_in: Mutex<BTreeMap<u64, Arc<Machine>>>,
    pub lives: Mutex<BTreeMap<RunnerId, Life>>,
    /// Answers of a control plane that an agent should not have got.
    pub surprises: Mutex<Vec<String>>,
}

impl Sites {
    pub fn new(hub: &Arc<Hub>, plane: &Arc<Plane>) -> Arc<Self> {
        let (by_stand_in, lives, surprises) = Default::default();
        Arc::new(Self { hub: Arc::clone(hub), plane: Arc::clone(plane), by_stand_in, lives, surprises })
    }

    /// Something is new about these runner programs.
    pub fn tell(&self, stand_ins: impl IntoIterator<Item = u64>) {
        let by = self.by_stand_in.lock().unwrap();
        stand_ins.into_iter().filter_map(|id| by.get(&id)).for_each(|machine| machine.news.notify_one());
    }

    /// Machines that exist now.
    pub fn standing(&self) -> usize {
        self.lives.lock().unwrap().values().filter(|life| life.gone_at.is_none()).count()
    }

    /// The signs of life of a machine whose program runs, until the farm wants no more of them.
    async fn beats(
        self: Arc<Self>,
        machine: Arc<Machine>,
        runner: RunnerId,
        id: u64,
        to: (String, String, u32),
    ) {
        let (path, session, fence) = to;
        loop {
            self.hub.time.sleep(BEAT).await;
            let over = self.lives.lock().unwrap().get(&runner).is_some_and(|life| life.over_at.is_some());
            if over || machine.gone() {
                return;
            }
            let beat = Heartbeat { fence, step: Some("runner".to_owned()), quiet_seconds: None };
            let said: Result<serde_json::Value, _> = self.call(&machine, &path, Some(&session), &beat).await;
            if said.is_err() {
                // Superseded: the supervisor ends the program.
                let at_work = self.hub.with(|state| {
                    let at_work = matches!(state.stand_in_phase(id), Some(Phase::Working(_)));
                    state.kill_stand_in(id);
                    at_work
                });
                if let Some(life) = self.lives.lock().unwrap().get_mut(&runner) {
                    life.killed_at_work |= at_work;
                }
                return self.over(runner, None);
            }
        }
    }

    /// The life of one site.
    pub async fn site(self: Arc<Self>, id: SiteId, number: usize, devices: u32) {
        let mut machines: BTreeMap<RunnerId, Arc<Machine>> = BTreeMap::new();
        let mut leases: BTreeMap<LeaseId, ObservedLease> = BTreeMap::new();
        let mut reported = (0u64, Timestamp::default(), 0usize);
        let mut fetched: Option<DesiredSet> = None;
        loop {
            self.hub.time.sleep(ROUND).await;
            let Some(app) = self.plane.app() else { continue };
            let now = self.hub.time.now();
            let (epoch, generation) = desired::version(&app.core.read(), id).unwrap_or_default();
            let unsteady = machines
                .values()
                .filter(|machine| !matches!(*machine.state.lock().unwrap(), ObservedState::Running))
                .count();
            if (generation, unsteady) == (reported.0, reported.2)
                && now.since(reported.1) < Duration::from_secs(10)
            {
                continue;
            }
            // As a real site has it: a set is fetched when there is a newer one.
            if fetched.as_ref().is_none_or(|set| (set.epoch, set.generation) != (epoch, generation)) {
                // A token is of use only to who makes the machine.
                fetched = desired(&app.core.read(), id, |of| match of {
                    TokenOf::Attempt(attempt) if machines.contains_key(&attempt.runner) => String::new(),
                    TokenOf::Attempt(attempt) => app.keys.attempt_token(attempt),
                    TokenOf::Runner(runner) if machines.contains_key(&runner.id) => String::new(),
                    TokenOf::Runner(runner) => app.keys.runner_token(runner),
                });
            }
            let Some(set) = &fetched else { continue };
            for wanted in &set.runners {
                if machines.contains_key(&wanted.runner) {
                    continue;
                }
                if let Some(lease) = wanted.lease {
                    leases.insert(lease, ObservedLease::Held { lease });
                }
                let life = Life { made_at: now, ..Life::default() };
                if self.lives.lock().unwrap().insert(wanted.runner, life).is_some() {
                    self.surprise(format!("{} is wanted again after it was gone", wanted.runner));
                }
                let machine = Arc::new(Machine {
                    state: Mutex::new(ObservedState::Creating),
                    stand_in: Mutex::default(),
                    news: Notify::new(),
                    gone: false.into(),
                });
                machines.insert(wanted.runner, Arc::clone(&machine));
                tokio::spawn(Arc::clone(&self).machine(machine, wanted.clone()));
            }
            let wanted: BTreeSet<RunnerId> = set.runners.iter().map(|wanted| wanted.runner).collect();
            let unwanted: Vec<RunnerId> =
                machines.keys().filter(|known| !wanted.contains(known)).copied().collect();
            for runner in unwanted {
                if let Some(machine) = machines.remove(&runner) {
                    self.destroy(runner, &machine);
                }
            }
            for lease in &set.releasing {
                let lease = lease.lease;
                leases.insert(lease, ObservedLease::Released { lease, sick: Vec::new() });
            }
            {
                let farm = app.core.read();
                leases.retain(|lease, _| farm.index.live_leases.contains(&(id, *lease)));
            }
            let report = SiteReport {
                epoch: set.epoch,
                generation: set.generation,
                host: host(number),
                devices: (0..devices).map(device).collect(),
                runners: machines
                    .iter()
                    .map(|(runner, machine)| ObservedRunner {
                        runner: *runner,
                        state: machine.state.lock().unwrap().clone(),
                        enforced: limits(),
                    })
                    .collect(),
                leases: leases.values().cloned().collect(),
            };
            let unsteady = machines
                .values()
                .filter(|machine| !matches!(*machine.state.lock().unwrap(), ObservedState::Running))
                .count();
            // One in fifty reports is lost on the way.
            if self.hub.chance(20) {
                continue;
            }
            let input = Input::SiteReported { site: id, report: Box::new(report) };
            if app.core.give(input, forgeyard_control::core::farm()).await.is_ok() {
                reported = (set.generation, now, unsteady);
            }
        }
    }

    fn destroy(&self, runner: RunnerId, machine: &Machine) {
        machine.gone.store(true, std::sync::atomic::Ordering::Relaxed);
        machine.news.notify_one();
        let stand_in = *machine.stand_in.lock().unwrap();
        let mut at_work = false;
        if let Some(id) = stand_in {
            self.hub.with(|state| {
                at_work = matches!(state.stand_in_phase(id), Some(Phase::Working(_)));
                state.kill_stand_in(id);
            });
            self.by_stand_in.lock().unwrap().remove(&id);
        }
        let now = self.hub.time.now();
        if let Some(life) = self.lives.lock().unwrap().get_mut(&runner) {
            life.gone_at = Some(now);
            life.killed_at_work |= at_work;
        }
    }

    fn surprise(&self, text: String) {
        self.surprises.lock().unwrap().push(text);
    }

    fn over(&self, runner: RunnerId, took: Option<u64>) {
        let now = self.hub.time.now();
        if let Some(life) = self.lives.lock().unwrap().get_mut(&runner) {
            life.over_at.get_or_insert(now);
            life.took = took.or(life.took);
        }
    }

    async fn machine(self: Arc<Self>, machine: Arc<Machine>, wanted: DesiredRunner) {
        let hub = &self.hub;
        hub.time.sleep(hub.between(1000, 6000)).await;
        let enter = |state: ObservedState| *machine.state.lock().unwrap() = state;
        // One in a hundred cannot be made, one in two hundred never calls.
        if hub.chance(10) {
            return enter(ObservedState::Failed {
                reason: Explanation::new("simulated.not_made", "simulated"),
            });
        }
        enter(ObservedState::Running);
        if hub.chance(5) {
            return;
        }
        hub.time.sleep(hub.between(3000, 15_000)).await;
        self.agent(&machine, &wanted).await;
        let reason = Explanation::new("simulated.exited", "its agent ended (simulated)");
        enter(ObservedState::Exited { reason });
    }

    /// The agent of a machine, until it has nothing more to do. None from a call is an end that the farm asked for.
    async fn agent(self: &Arc<Self>, machine: &Arc<Machine>, wanted: &DesiredRunner) -> Option<()> {
        let hub = &self.hub;
        let nonce = format!("nonce-{}", hub.between(0, 1_000_000_000).as_millis());
        let redeem = Redeem { version: VERSION, token: wanted.token.clone(), nonce };
        let redeemed: Redeemed = self.call(machine, REDEEM, None, &redeem).await.ok()?;
        let path = |template: &str| template.replace("{attempt}", &redeemed.attempt.to_string());
        let session = Some(redeemed.session.as_str());
        let fence = redeemed.fence;
        let beat =
            |step: Option<&str>| Heartbeat { fence, step: step.map(str::to_owned), quiet_seconds: None };
        let _: serde_json::Value = self.call(machine, &path(HEARTBEAT), session, &beat(None)).await.ok()?;
        let mut waited = Duration::ZERO;
        let config: RunnerConfig = loop {
            let request = RunnerConfigRequest { fence, wait_seconds: 0 };
            match self.call(machine, &path(RUNNER_CONFIG), session, &request).await {
                Ok(config) => break config,
                Err(Some(code)) if code == "registration.not_minted" => {}
                Err(_) => {
                    self.over(wanted.runner, None);
                    return Some(());
                }
            }
            hub.time.sleep(Duration::from_secs(1)).await;
            waited += Duration::from_secs(1);
            if waited >= BEAT {
                waited = Duration::ZERO;
                let _: serde_json::Value =
                    self.call(machine, &path(HEARTBEAT), session, &beat(None)).await.ok()?;
            }
        };
        let _: serde_json::Value =
            self.call(machine, &path(HEARTBEAT), session, &beat(Some("runner"))).await.ok()?;
        if machine.gone() {
            return None;
        }
        let behaviour = Behaviour {
            boot: hub.between(1500, 4000),
            asks: true,
            dies_after: hub.chance(3).then_some(Duration::from_secs(20)),
            ..Behaviour::default()
        };
        let dies = behaviour.dies_after.is_some();
        let id = hub.with(|state| state.start_stand_in(&config.config, behaviour));
        *machine.stand_in.lock().unwrap() = Some(id);
        self.by_stand_in.lock().unwrap().insert(id, Arc::clone(machine));
        let to = (path(HEARTBEAT), redeemed.session.clone(), fence);
        // One that dies is silent from then on.
        if !dies {
            tokio::spawn(Arc::clone(self).beats(Arc::clone(machine), wanted.runner, id, to));
        }
        let mut asked = false;
        let mut took = None;
        loop {
            let phase = hub.with(|state| state.stand_in_phase(id).cloned());
            match phase {
                Some(Phase::Asking(job)) if !asked => {
                    asked = true;
                    took = Some(job);
                    if let Some(life) = self.lives.lock().unwrap().get_mut(&wanted.runner) {
                        life.took = took;
                    }
                    let allowed = self.asks(machine, job, fence, &path(RUNNER_TOOK), session).await;
                    hub.with(|state| state.answer_hook(id, allowed));
                    continue;
                }
                Some(Phase::Exited(code)) => {
                    self.over(wanted.runner, took);
                    let finish = Finish { fence, facts: facts(hub.time.now(), code) };
                    let _: Result<serde_json::Value, _> =
                        self.call(machine, &path(FINISH), session, &finish).await;
                    return Some(());
                }
                // The machine lost its power: nobody says anything any more.
                Some(Phase::Dead) if dies => {
                    self.over(wanted.runner, took);
                    return Some(());
                }
                Some(Phase::Dead) | None => return None,
                _ => {}
            }
            machine.news.notified().await;
            if machine.gone() {
                return None;
            }
        }
    }

    /// The job-started hook: whether the job that was taken may run.
    async fn asks(
        &self,
        machine: &Arc<Machine>,
        job: u64,
        fence: u32,
        path: &str,
        session: Option<&str>,
    ) -> bool {
        let request = self.hub.with(|state| {
            let run = state.run(state.job(job)?.run)?;
            Some(RunnerTook {
                fence,
                wait_seconds: 0,
                repository_id: run.spec.repository,
                repository: state.full_name(run.spec.repository),
                run: run.id,
                run_attempt: run.attempt,
                job: "build".to_owned(),
                actor_id: Some(run.spec.actor.id),
                actor: Some(run.spec.actor.login.clone()),
            })
        });
        let Some(request) = request else { return false };
        loop {
            match self.call(machine, path, session, &request).await {
                Ok(TakenAnswer::Allowed { .. }) => return true,
                Ok(TakenAnswer::Asked) => self.hub.time.sleep(Duration::from_secs(1)).await,
                Ok(TakenAnswer::Refused { .. }) | Err(_) => return false,
            }
        }
    }

    /// A call of an agent, repeated until it is answered: requests and answers get lost, and the farm is away for a while.
    /// An error is the code of a refusal; none when the machine is gone.
    async fn call<T: DeserializeOwned>(
        &self,
        machine: &Machine,
        path: &str,
        session: Option<&str>,
        body: &impl Serialize,
    ) -> Result<T, Option<String>> {
        let body = serde_json::to_vec(body).unwrap();
        loop {
            if machine.gone() {
                return Err(None);
            }
            self.hub.time.sleep(self.hub.between(10, 120)).await;
            if let Some(router) = self.plane.router().filter(|_| !self.hub.chance(5)) {
                let mut request = Request::post(path).header("content-type", "application/json");
                if let Some(session) = session {
                    request = request.header("authorization", format!("Bearer {session}"));
                }
                let request = request.body(Body::from(body.clone())).unwrap();
                let answer = router.oneshot(request).await.unwrap();
                let status = answer.status();
                let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
                // The answer may be lost as well.
                if !self.hub.chance(5) && status != StatusCode::SERVICE_UNAVAILABLE {
                    if status.is_success() {
                        return Ok(serde_json::from_slice(&bytes).unwrap());
                    }
                    let error: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
                    if status.is_server_error() {
                        self.surprise(format!("{path}: {status}: {error}"));
                    }
                    return Err(error["code"].as_str().map(str::to_owned));
                }
            }
            self.hub.time.sleep(Duration::from_secs(2)).await;
        }
    }
}

fn facts(at: Timestamp, code: i32) -> ExitFacts {
    let step = StepFacts {
        name: "runner".to_owned(),
        started_at: at,
        ended_at: at,
        exit_code: Some(code),
        signal: None,
    };
    ExitFacts { steps: vec![step], ..ExitFacts::default() }
}

fn limits() -> std::collections::BTreeSet<Limit> {
    [Limit::Memory, Limit::Cpu, Limit::Processes, Limit::Wall, Limit::Disk, Limit::Network].into()
}

pub fn host(number: usize) -> HostFacts {
    HostFacts {
        host: format!("simulated-{number}"),
        cpu_millis: 4_000_000,
        memory_mib: 1 << 30,
        kernel: "simulated".to_owned(),
        providers: [name("sandbox")].into(),
        enforces: limits(),
        cannot: Vec::new(),
    }
}

fn device(index: u32) -> DeviceFacts {
    DeviceFacts {
        key: format!("simulated:{index}"),
        kind: DeviceKind::OpenclCpu,
        model: "simulated".to_owned(),
        uuid: None,
        driver: "simulated".to_owned(),
        memory_mib: 16_384,
        compute_capability: 0,
        iommu_group: None,
        moves_with: Vec::new(),
        numa_node: None,
        nodes: Vec::new(),
    }
}
