//! A desk: inputs are given to the real engine one by one, without a store.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use forgeyard_engine::decide::decide;
use forgeyard_engine::{Ctx, Farm};
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::forge::{ForgeEvent, Meaning};
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::job::{Job, JobState};
use forgeyard_model::plan::PipelineFile;
use forgeyard_model::resources::Limit;
use forgeyard_model::site::{HostFacts, SiteReport};
use forgeyard_model::verdict::{ExitFacts, StepFacts};
use forgeyard_model::{ArtifactId, Digest, Id, Timestamp};
use forgeyard_testkit::build;

/// A farm and its configuration.
pub(crate) struct Desk {
    pub(crate) farm: Farm,
    pub(crate) config: FarmConfig,
    seq: u64,
}

impl Desk {
    /// A farm that has started, with a site that has room and no devices.
    pub(crate) fn new(config: FarmConfig) -> Self {
        let mut desk = Desk { farm: Farm::default(), config, seq: 0 };
        desk.give(Input::FarmStarted { epoch: 1 });
        desk.join();
        desk
    }

    /// The job with this key.
    pub(crate) fn job(&self, key: &str) -> &Job {
        self.farm.jobs.values().find(|job| job.key == key).unwrap()
    }

    /// The attempt that is at work for this job does all of it and brings one output.
    pub(crate) fn work(&mut self, key: &str, kind: ArtifactKind, name: &str, bytes: &[u8]) {
        let attempt = self.job(key).state.attempt().unwrap();
        let fence = self.job(key).fence;
        self.give(Input::TokenRedeemed { attempt, nonce: "a nonce".to_owned() });
        self.give(Input::AgentHeard { attempt, fence, step: Some("work".to_owned()) });
        let name = name.to_owned();
        let digest = Digest::of(bytes);
        self.give(Input::ArtifactStored { attempt, fence, kind, name, digest, size: 1 });
        let step = StepFacts {
            name: "work".to_owned(),
            started_at: Default::default(),
            ended_at: Default::default(),
            exit_code: Some(0),
            signal: None,
        };
        let facts = Box::new(ExitFacts { steps: vec![step], ..ExitFacts::default() });
        let (hits, tail) = Default::default();
        self.give(Input::AttemptFinished { attempt, fence, facts, hits, tail });
    }

    /// Settles the effect that `which` finds.
    pub(crate) fn settle(&mut self, which: impl Fn(&Effect) -> bool, result: EffectResult) {
        let outbox = self.farm.index.outbox.iter();
        let effect = *outbox.clone().find(|id| which(&self.farm.effects[*id].effect)).unwrap();
        self.give(Input::EffectSettled { effect, result: Box::new(result) });
    }

    pub(crate) fn give(&mut self, input: Input) -> Reply {
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
    pub(crate) fn join(&mut self) {
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
    pub(crate) fn event(&mut self, guid: &str, event: ForgeEvent) -> JobState {
        let body = Digest::of(guid.as_bytes());
        self.give(Input::DeliveryReceived { guid: guid.to_owned(), event: "push".to_owned(), body });
        let commit = event.head_sha.clone();
        self.give(Input::DeliveryRead {
            guid: guid.to_owned(),
            meaning: Ok(Meaning::Work(Box::new(event))),
            asked: false,
        });
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
