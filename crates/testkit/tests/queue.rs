//! The queue: a job that finds no place does not stop the jobs behind it.

use forgeyard_engine::decide::decide;
use forgeyard_engine::{Ctx, Farm};
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::forge::{ForgeEvent, Meaning};
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::job::JobState;
use forgeyard_model::plan::PipelineFile;
use forgeyard_model::resources::Limit;
use forgeyard_model::site::{HostFacts, SiteReport};
use forgeyard_model::{ArtifactId, Digest, Id, Timestamp};
use forgeyard_testkit::build;

struct Desk {
    farm: Farm,
    config: FarmConfig,
    seq: u64,
}

impl Desk {
    fn give(&mut self, input: Input) -> Reply {
        self.seq += 1;
        let ctx = Ctx {
            seq: self.seq,
            now: Timestamp::from_micros(1_700_000_000_000_000 + self.seq as i64),
            entropy: u128::from(self.seq).to_be_bytes(),
            by: build::farm_principal(),
            config: &self.config,
            config_digest: self.config.digest(),
        };
        decide(&mut self.farm, &ctx, input).unwrap().reply
    }

    /// A site with room and without devices.
    fn join(&mut self) {
        let join = Input::SiteJoined {
            name: build::name("box"),
            token: Digest::of(b"site"),
            public_key: "key".to_owned(),
        };
        let Reply::Site { site } = self.give(join) else { panic!("the site did not join") };
        let host = HostFacts {
            host: "box".to_owned(),
            cpu_millis: 8000,
            memory_mib: 65_536,
            kernel: "test".to_owned(),
            providers: [build::name("sandbox")].into(),
            enforces: [Limit::Memory, Limit::Cpu, Limit::Processes, Limit::Wall, Limit::Disk, Limit::Network]
                .into(),
            cannot: Vec::new(),
        };
        let report = SiteReport {
            epoch: self.farm.epoch,
            generation: 1,
            host,
            devices: Vec::new(),
            runners: Vec::new(),
            leases: Vec::new(),
        };
        self.give(Input::SiteReported { site, report: Box::new(report) });
    }

    /// An event arrives, is read, and its source is fetched. Answers the state of its plan job.
    fn event(&mut self, guid: &str, event: ForgeEvent) -> JobState {
        let body = Digest::of(guid.as_bytes());
        self.give(Input::DeliveryReceived { guid: guid.to_owned(), event: "push".to_owned(), body });
        let commit = event.head_sha.clone();
        self.give(Input::DeliveryRead { guid: guid.to_owned(), meaning: Ok(Meaning::Work(Box::new(event))) });
        let effect = self.farm.index.outbox.iter().next().copied().unwrap();
        let Effect::FetchSource { pipeline } = self.farm.effects[&effect].effect else {
            panic!("{guid} was not let in")
        };
        let artifact = Artifact {
            id: ArtifactId::derive(pipeline, "source"),
            kind: ArtifactKind::Source,
            name: "source.tar".to_owned(),
            digest: Digest::of(commit.as_bytes()),
            size: 1,
            pipeline,
            job: None,
            attempt: None,
            lane: self.farm.pipelines[&pipeline].lane,
            package: None,
            stored_at: Timestamp::from_micros(0),
            generation: 0,
        };
        let file = Box::new(PipelineFile::default());
        let result = EffectResult::Source { artifact, file_commit: commit.clone(), commit, file };
        self.give(Input::EffectSettled { effect, result: Box::new(result) });
        self.farm.jobs_of(pipeline).next().unwrap().state.clone()
    }
}

fn desk() -> Desk {
    let mut config = build::config();
    // Without a word of the operator, work from forks needs a machine of its own, which the only pool cannot give.
    config.access.grants[0].isolation = None;
    let mut desk = Desk { farm: Farm::default(), config, seq: 0 };
    desk.give(Input::FarmStarted { epoch: 1 });
    desk.join();
    desk
}

#[test]
fn job_that_no_pool_may_run_does_not_stop_jobs_of_the_same_flavor_behind_it() {
    let mut desk = desk();
    let fork = desk.event("guid-1", build::pull_request(&"a".repeat(40), 1, true));
    assert_eq!(fork, JobState::Queued);
    let waits: Vec<String> =
        desk.farm.jobs.values().filter_map(|job| Some(job.waiting.as_ref()?.code.clone())).collect();
    assert_eq!(waits, ["queue.isolation"]);
    let push = desk.event("guid-2", build::push(&"b".repeat(40)));
    assert!(matches!(push, JobState::Placed { .. }), "{push:?}");
}
