//! One suite of claims about a forge and a farm that is connected to it, kept by each kind of forge: the *simulated* GitHub and
//! the *simulated* Forgejo. What differs between them (check runs or statuses, one configuration or a registration with a
//! handle) is behind [`Host`]; what must hold is not.

use crate::lab::Lab;
use crate::world::World;
use forgeyard_control::demand::checks::{Board, Checks};
use forgeyard_forges::twin::RunSpec;
use forgeyard_testkit::build::name;
use std::collections::BTreeMap;
use std::time::Duration;

/// A forge with one repository, and a farm that is connected to it.
trait Host {
    /// A person pushes: one job that asks for the farm's pool. Its number in the ledger.
    async fn push(&mut self, named: bool) -> u64;
    /// What happened at the forge reaches the farm.
    async fn heard(&mut self);
    fn state(&self, job: u64) -> Option<&'static str>;
    /// Runners that are registered at the forge.
    fn registered(&self) -> usize;
    /// The next machine that is asked for is made, its agent calls and is given its configuration.
    async fn machine(&mut self) -> String;
    /// How many machines are wanted.
    async fn machines(&mut self) -> usize;
    /// The job is cancelled at the forge.
    fn cancel(&mut self, job: u64);
    /// Looks at what is to be told at the forge, and answers what stands there: how many texts, and the last one.
    async fn told(&mut self, checks: &mut Checks) -> (usize, String);
    async fn end(self);
}

async fn until<H: Host>(host: &mut H, job: u64, states: &[&str]) {
    for _ in 0..600 {
        host.heard().await;
        if host.state(job).is_some_and(|state| states.contains(&state)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the job is never {states:?}: {:?}", host.state(job));
}

async fn nothing_is_registered_before_the_machine_of_a_job_is_up<H: Host>(host: &mut H) {
    let job = host.push(true).await;
    until(host, job, &["launching"]).await;
    assert_eq!(host.registered(), 0);
    let configuration = host.machine().await;
    assert!(!configuration.is_empty());
    assert_eq!(host.registered(), 1, "one registration for one machine");
}

async fn a_stranger_gets_no_machine_and_is_told_why_once<H: Host>(host: &mut H) {
    let before = host.machines().await;
    let job = host.push(false).await;
    until(host, job, &["held", "refused"]).await;
    assert_eq!(host.machines().await, before);
    let mut checks = Checks::default();
    let (first, text) = host.told(&mut checks).await;
    assert!(text.contains("jobs"), "{text}");
    let (again, same) = host.told(&mut checks).await;
    assert_eq!((first, &text), (again, &same), "what reads the same is not said again");
}

async fn a_job_that_is_cancelled_before_its_machine_is_up_registers_nothing<H: Host>(host: &mut H) {
    let machines = host.machines().await;
    let job = host.push(true).await;
    until(host, job, &["launching"]).await;
    let before = host.registered();
    host.cancel(job);
    until(host, job, &["withdrawn", "ended"]).await;
    assert_eq!(host.registered(), before);
    for _ in 0..600 {
        if host.machines().await <= machines {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("its machine stays");
}

async fn suite<H: Host>(host: &mut H) {
    // Machines that nobody wants any more are let go before the next claim begins.
    host.machines().await;
    a_job_that_is_cancelled_before_its_machine_is_up_registers_nothing(host).await;
    a_stranger_gets_no_machine_and_is_told_why_once(host).await;
    nothing_is_registered_before_the_machine_of_a_job_is_up(host).await;
}

struct OnGithub {
    world: World,
    runs: BTreeMap<u64, u64>,
}

impl Host for OnGithub {
    async fn push(&mut self, named: bool) -> u64 {
        let world = &self.world;
        let who = if named { &world.person } else { &world.reader };
        let (run, job) = world.twin.with(|state| {
            let run = state.start_run(RunSpec::push(world.repository, who, vec![world.job("build")]));
            (run, state.current_jobs(run)[0].id)
        });
        self.runs.insert(job, run);
        job
    }
    async fn heard(&mut self) {
        self.world.twin.advance(Duration::from_secs(2)).await;
    }
    fn state(&self, job: u64) -> Option<&'static str> {
        self.world.demand(job).map(|demand| demand.state.name())
    }
    fn registered(&self) -> usize {
        self.world.registered().len()
    }
    async fn machine(&mut self) -> String {
        self.world.boot().await.config().await.unwrap()
    }
    async fn machines(&mut self) -> usize {
        self.world.site.turn().await.runners.len()
    }
    fn cancel(&mut self, job: u64) {
        let run = self.runs[&job];
        self.world.twin.with(|state| state.cancel_run(run));
    }
    async fn told(&mut self, checks: &mut Checks) -> (usize, String) {
        let app = &self.world.plane.app;
        checks.round(app, Board::Checks(app.forges.of(&name("github")).unwrap())).await;
        self.world.twin.with(|state| {
            let texts: Vec<String> = state.check_runs().map(|check| format!("{check:?}")).collect();
            (texts.len(), texts.last().cloned().unwrap_or_default())
        })
    }
    async fn end(self) {
        self.world.plane.stop().await;
    }
}

struct OnForgejo {
    lab: Lab,
}

impl Host for OnForgejo {
    async fn push(&mut self, named: bool) -> u64 {
        let who = if named { &self.lab.ada } else { &self.lab.eve };
        self.lab.twin.with(|state| state.start(who, &["gpu"], None))
    }
    async fn heard(&mut self) {
        self.lab.round().await;
    }
    fn state(&self, job: u64) -> Option<&'static str> {
        self.lab.state(job)
    }
    fn registered(&self) -> usize {
        self.lab.twin.with(|state| state.runners.len())
    }
    async fn machine(&mut self) -> String {
        self.lab.boot().await.word().await
    }
    async fn machines(&mut self) -> usize {
        self.lab.site.turn().await.runners.len()
    }
    fn cancel(&mut self, job: u64) {
        self.lab.twin.with(|state| state.end(job, "cancelled"));
    }
    async fn told(&mut self, checks: &mut Checks) -> (usize, String) {
        checks.round(&self.lab.plane.app, Board::Statuses(&self.lab.forge, &self.lab.client)).await;
        let texts = self.lab.twin.with(|state| state.statuses.clone());
        (texts.len(), texts.last().map(|text| text.3.clone()).unwrap_or_default())
    }
    async fn end(self) {
        self.lab.plane.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn github_keeps_the_contract_of_a_forge() {
    let mut host = OnGithub { world: World::new().await, runs: BTreeMap::new() };
    suite(&mut host).await;
    host.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forgejo_keeps_the_contract_of_a_forge() {
    let mut host = OnForgejo { lab: Lab::new().await };
    suite(&mut host).await;
    host.end().await;
}
