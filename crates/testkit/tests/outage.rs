//! A farm that was away for longer than its deadlines. The engine is real; site and agent are *simulated*.

#![allow(clippy::unwrap_used, reason = "tests")]

use forgeyard_engine::decide::decide;
use forgeyard_engine::{Ctx, Farm};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::input::{Input, Reply, StoredSource};
use forgeyard_model::job::{Job, JobState};
use forgeyard_model::resources::Limit;
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::site::{HostFacts, SiteReport};
use forgeyard_model::verdict::{ExitFacts, Outcome, StepFacts};
use forgeyard_model::{AttemptId, Digest, SiteId, Timestamp};
use forgeyard_testkit::build;
use std::time::Duration;

struct World {
    farm: Farm,
    config: FarmConfig,
    now: Timestamp,
    seq: u64,
    site: SiteId,
}

impl World {
    /// A farm with a job whose step runs.
    fn at_work() -> (Self, AttemptId) {
        let mut world = Self {
            farm: Farm::default(),
            config: build::config(),
            now: Timestamp::from_micros(1_700_000_000_000_000),
            seq: 0,
            site: forgeyard_model::Id::from_bits(0),
        };
        world.give(Input::FarmStarted { epoch: 1 });
        let token = Digest::of(b"simulated");
        let joined =
            world.give(Input::SiteJoined { name: build::name("box"), token, public_key: "ab".repeat(32) });
        let Reply::Site { site } = joined else { panic!("{joined:?}") };
        world.site = site;
        world.report();
        let source = StoredSource { name: "demo".to_owned(), digest: Digest::of(b"demo"), size: 4 };
        world.give(Input::RunRequested { guid: "one".to_owned(), source, file: Box::default() });
        let JobState::Placed { attempt } = world.job().state else { panic!("{:?}", world.job()) };
        world.report();
        world.give(Input::TokenRedeemed { attempt, nonce: "0123456789".to_owned() });
        world.heard(attempt);
        (world, attempt)
    }

    fn give(&mut self, input: Input) -> Reply {
        self.seq += 1;
        let ctx = Ctx {
            seq: self.seq,
            now: self.now,
            entropy: [self.seq.to_le_bytes()[0]; 16],
            by: build::farm_principal(),
            config: &self.config,
            config_digest: self.config.digest(),
        };
        decide(&mut self.farm, &ctx, input).unwrap().reply
    }

    fn job(&self) -> &Job {
        self.farm.jobs.values().next().unwrap()
    }

    fn report(&mut self) {
        let all = [Limit::Memory, Limit::Cpu, Limit::Processes, Limit::Wall, Limit::Disk, Limit::Network];
        let wanted = self.farm.runners.values().filter(|runner| runner.state.wanted());
        let runners = wanted.map(|runner| ObservedRunner {
            runner: runner.id,
            state: ObservedState::Running,
            enforced: all.into(),
        });
        let report = SiteReport {
            epoch: self.farm.epoch,
            generation: self.farm.sites[&self.site].desired_generation,
            host: HostFacts {
                host: "simulated".to_owned(),
                cpu_millis: 8000,
                memory_mib: 32 << 10,
                kernel: "simulated".to_owned(),
                providers: [build::name("sandbox")].into(),
                enforces: all.into(),
                cannot: Vec::new(),
            },
            devices: Vec::new(),
            runners: runners.collect(),
            leases: Vec::new(),
        };
        self.give(Input::SiteReported { site: self.site, report: Box::new(report) });
    }

    fn heard(&mut self, attempt: AttemptId) {
        let step = Some("plan".to_owned());
        self.give(Input::AgentHeard { attempt, fence: 1, step });
    }

    /// The farm is away for so long, comes back, and looks at its deadlines at once.
    fn away(&mut self, time: Duration) {
        self.now = self.now.plus(time);
        self.give(Input::FarmStarted { epoch: self.farm.epoch + 1 });
        self.give(Input::Ticked);
    }
}

#[test]
fn job_that_ended_well_while_the_farm_was_away_is_accepted_after_its_time_limit() {
    let (mut world, attempt) = World::at_work();
    world.away(Duration::from_secs(24 * 3600));
    assert!(world.farm.attempts[&attempt].state.live(), "{:?}", world.farm.attempts[&attempt].verdict);
    assert!(world.farm.runners.values().all(|runner| runner.state.wanted()), "its machine is adopted");
    let step = StepFacts {
        name: "plan".to_owned(),
        started_at: world.now,
        ended_at: world.now,
        exit_code: Some(0),
        signal: None,
    };
    let facts = Box::new(ExitFacts { steps: vec![step], ..ExitFacts::default() });
    world.give(Input::AttemptFinished { attempt, fence: 1, facts, hits: Vec::new(), tail: Vec::new() });
    assert_eq!(world.job().state, JobState::Ended { outcome: Outcome::Succeeded });
}

#[test]
fn agent_that_stays_silent_after_the_farm_came_back_is_lost_and_its_job_is_tried_again() {
    let (mut world, attempt) = World::at_work();
    world.away(Duration::from_secs(24 * 3600));
    world.now = world.now.plus(Duration::from_secs(46));
    world.report();
    world.give(Input::Ticked);
    let row = &world.farm.attempts[&attempt];
    assert_eq!(row.outcome, Some(Outcome::Lost), "{:?}", row.verdict);
    assert!(!world.job().state.ended(), "{:?}", world.job().state);
}

#[test]
fn job_that_overruns_its_time_limit_under_a_farm_that_is_there_is_ended() {
    let (mut world, attempt) = World::at_work();
    for _ in 0..40 {
        world.now = world.now.plus(Duration::from_secs(30));
        if !world.farm.attempts[&attempt].state.live() {
            break;
        }
        world.heard(attempt);
        world.give(Input::Ticked);
    }
    assert_eq!(world.farm.attempts[&attempt].outcome, Some(Outcome::TimedOut));
}
