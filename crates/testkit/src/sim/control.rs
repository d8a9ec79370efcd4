//! The *simulated* control plane around the real engine: it decides, stores, answers, crashes and reads back.

use super::Bug;
use super::store::Store;
use crate::build;
use crate::rng::Rng;
use forgeyard_engine::completion::accepted;
use forgeyard_engine::decide::decide;
use forgeyard_engine::{Ctx, Farm};
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::channel::ChannelEntry;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::environment::EnvironmentState;
use forgeyard_model::input::{Input, Refusal, Reply};
use forgeyard_model::package::{PackageFacts, PackageTest};
use forgeyard_model::plan::{PipelineFile, PlannedOutput, RenderedPlan};
use forgeyard_model::pool::{BreakerRule, Keep, LaunchRate};
use forgeyard_model::rules::Caps;
use forgeyard_model::{ArtifactId, AttemptId, Digest, EffectId, Explanation, Id, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What becomes of one call to the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is answered.
    Answered,
    /// The control plane dies before it stored anything.
    DiesBefore,
    /// It stores and dies before it answers.
    DiesAfter,
}

/// The control plane.
#[derive(Debug)]
pub struct Control {
    /// Configuration.
    pub config: Arc<FarmConfig>,
    config_digest: Digest,
    /// State in memory.
    pub farm: Farm,
    /// What is stored.
    pub store: Store,
    /// The clock.
    pub now: Timestamp,
    /// The planted bug.
    pub bug: Option<Bug>,
    /// A broken invariant that was seen while something happened.
    pub broken: Option<String>,
    /// GUIDs that were acknowledged.
    pub acknowledged: BTreeSet<String>,
    /// GUIDs that were acknowledged since the last check.
    pub newly_acknowledged: Vec<String>,
    /// The agent, by its nonce, that was believed about an attempt.
    believed: BTreeMap<AttemptId, String>,
    /// Restarts so far.
    restarts: u64,
    /// Under a planted bug: it dies only after the site heard of what was not stored.
    pub dying: bool,
    /// GUIDs of untrusted events.
    pub untrusted: BTreeSet<String>,
}

impl Control {
    /// A fresh control plane, with or without machines that wait for work.
    pub fn new(bug: Option<Bug>, warm: bool, rng: &mut Rng) -> Self {
        let mut config = if warm { config() } else { build::config() };
        config.queue.caps = tight(rng);
        let config = Arc::new(config);
        let config_digest = config.digest();
        let mut control = Self {
            config,
            config_digest,
            farm: Farm::default(),
            store: Store::default(),
            now: Timestamp::from_micros(1_700_000_000_000_000),
            bug,
            broken: None,
            acknowledged: BTreeSet::new(),
            newly_acknowledged: Vec::new(),
            believed: BTreeMap::new(),
            restarts: 0,
            dying: false,
            untrusted: BTreeSet::new(),
        };
        let _ = control.give(Input::FarmStarted { epoch: 1 }, rng);
        control
    }

    fn ctx<'a>(&self, config: &'a FarmConfig, entropy: [u8; 16]) -> Ctx<'a> {
        let seq = self.store.journal.last().map_or(0, |entry| entry.seq) + 1;
        Ctx {
            seq,
            now: self.now,
            entropy,
            by: build::farm_principal(),
            config,
            config_digest: self.config_digest,
        }
    }

    /// What it decides under.
    fn decides_under(&self) -> Arc<FarmConfig> {
        if self.bug != Some(Bug::ForgetCaps) {
            return Arc::clone(&self.config);
        }
        // The planted bug: the caps are forgotten.
        let mut config = FarmConfig::clone(&self.config);
        config.queue.caps = Caps::default();
        Arc::new(config)
    }

    /// Decides without storing, as a control plane that dies in between.
    pub fn decide_only(&mut self, input: Input, rng: &mut Rng) {
        let config = self.decides_under();
        let ctx = self.ctx(&config, rng.bytes());
        let _ = decide(&mut self.farm, &ctx, input);
    }

    /// Decides, stores and answers.
    pub fn give(&mut self, input: Input, rng: &mut Rng) -> Result<Reply, Refusal> {
        let config = self.decides_under();
        let ctx = self.ctx(&config, rng.bytes());
        let decided = decide(&mut self.farm, &ctx, input)?;
        if let Some(mut commit) = decided.commit {
            if self.bug == Some(Bug::ForgetRow) && commit.rows.len() > 2 && rng.chance(2) {
                commit.rows.remove(rng.below(commit.rows.len()));
            }
            if let Err(broken) = self.store.apply(commit) {
                self.breaks(format!("the store refused a commit: {broken}"));
            }
            (self.store.rows.epoch, self.store.rows.resumed_at) = (self.farm.epoch, self.farm.resumed_at);
        }
        Ok(decided.reply)
    }

    /// One call with its fate; `None` when there is no answer.
    pub fn call(&mut self, input: Input, fate: Fate, rng: &mut Rng) -> Option<Result<Reply, Refusal>> {
        match fate {
            Fate::Answered => Some(self.give(input, rng)),
            Fate::DiesBefore => {
                self.decide_only(input, rng);
                if self.bug == Some(Bug::TouchBeforeLease) {
                    self.dying = true;
                } else {
                    self.restart(rng);
                }
                None
            }
            Fate::DiesAfter => {
                let _ = self.give(input, rng);
                self.restart(rng);
                None
            }
        }
    }

    /// Dies and comes back with what is stored.
    pub fn restart(&mut self, rng: &mut Rng) {
        let epoch = self.farm.epoch + 1;
        self.farm = self.store.load();
        self.restarts += 1;
        // Indexes that grew with the rows must be those that loading makes. Dear, and a difference stays: a sample
        // finds it.
        if self.restarts % 8 == 1 {
            (self.farm.epoch, self.farm.resumed_at) = (self.store.rows.epoch, self.store.rows.resumed_at);
            if self.farm != self.store.rows {
                self.breaks("what is read back differs from what was stored".to_owned());
            }
        }
        let _ = self.give(Input::FarmStarted { epoch }, rng);
    }

    /// Notes a broken invariant; the first one counts.
    pub fn breaks(&mut self, text: String) {
        self.broken.get_or_insert(text);
    }

    /// Notes that a delivery was acknowledged.
    pub fn acknowledge(&mut self, guid: String) {
        self.newly_acknowledged.push(guid.clone());
        self.acknowledged.insert(guid);
    }

    /// Notes whose word about an attempt was taken. One attempt has one agent.
    pub fn believe(&mut self, attempt: AttemptId, nonce: &str) {
        match self.believed.get(&attempt) {
            Some(known) if known != nonce => {
                self.breaks(format!("two agents were believed about {attempt}"));
            }
            Some(_) => {}
            None => drop(self.believed.insert(attempt, nonce.to_owned())),
        }
    }

    /// Effects that are due.
    pub fn due_effects(&self) -> Vec<EffectId> {
        let due =
            |id: &&EffectId| self.farm.effects.get(id).is_some_and(|effect| effect.not_before <= self.now);
        self.farm.index.outbox.iter().filter(due).copied().collect()
    }

    /// What doing an effect would bring: *simulated* sources, plans and packages.
    pub fn perform(&self, id: EffectId, rng: &mut Rng) -> Option<Input> {
        let pending = self.farm.effects.get(&id)?;
        if rng.chance(10) {
            return Some(Input::EffectTroubled { effect: id, trouble: "simulated trouble".to_owned() });
        }
        let result = match &pending.effect {
            Effect::FetchSource { pipeline } => {
                let pipeline = self.farm.pipelines.get(pipeline)?;
                EffectResult::Source {
                    artifact: Artifact {
                        id: ArtifactId::derive(pipeline.id, "source"),
                        kind: ArtifactKind::Source,
                        name: "source.tar".to_owned(),
                        digest: Digest::of(pipeline.event.head_sha.as_bytes()),
                        size: 1,
                        pipeline: pipeline.id,
                        job: None,
                        attempt: None,
                        lane: pipeline.lane,
                        package: None,
                        stored_at: self.now,
                        generation: 0,
                    },
                    commit: pipeline.event.head_sha.clone(),
                    file: Box::new(PipelineFile::default()),
                    file_commit: pipeline.event.head_sha.clone(),
                }
            }
            Effect::ReadPlan { job, .. } => plan_of(self.farm.jobs.get(job)?.owner.pipeline()?.bits()),
            Effect::InspectPackage { artifact, .. } => {
                let artifact = self.farm.artifacts.get(artifact)?;
                EffectResult::Package { facts: Box::new(facts_of(artifact.name.trim_end_matches(".conda"))) }
            }
            Effect::Promote { pipeline, .. } => {
                // Whatever prepares the entries may be wrong now and then; the engine has the last word.
                let careless = rng.chance(20);
                let packages = self.farm.artifacts_of(*pipeline).filter(|artifact| {
                    artifact.kind == ArtifactKind::CondaPackage
                        && (careless || accepted(&self.farm, artifact))
                });
                EffectResult::Promotion {
                    entries: packages.map(|artifact| entry(artifact, self.now)).collect(),
                }
            }
            Effect::MakeEnvironment { .. } => EffectResult::Environment {
                state: Box::new(EnvironmentState::Failed {
                    reason: Explanation::new("simulated", "simulated"),
                }),
            },
            // No job of a forge comes in this simulation.
            Effect::LookUpRun { .. }
            | Effect::ReadJob { .. }
            | Effect::MintRunner { .. }
            | Effect::RepeatJobs { .. }
            | Effect::Deregister { .. } => EffectResult::Refused {
                reason: Explanation::new("forge.not_connected", "no connection to this forge is configured"),
            },
        };
        Some(Input::EffectSettled { effect: id, result: Box::new(result) })
    }

    /// Moves the clock.
    pub fn pass(&mut self, time: Duration) {
        self.now = self.now.plus(time);
    }
}

/// Caps that are reached, in half of the seeds: one of the three kinds. The choice does not move the seed on, so the other
/// half runs as though there were no caps.
fn tight(rng: &Rng) -> Caps {
    let pick = rng.clone().next_u64();
    let cap = Some(3 + u32::try_from(pick / 8 % 3).unwrap_or(0));
    match pick % 6 {
        0 => Caps { organisation: cap, ..Caps::default() },
        1 => Caps { repository: cap, ..Caps::default() },
        2 => Caps { person: cap, ..Caps::default() },
        _ => Caps::default(),
    }
}

/// One pool with a machine that waits, which holds one of two devices, and a breaker that opens soon.
fn config() -> FarmConfig {
    let mut config = build::config();
    for pool in &mut config.pools {
        (pool.warm, pool.max) = (1, 6);
        pool.warm_flavor = Some(build::name("gpu"));
        pool.keep = Some(Keep { count: 2, minutes: 2 });
        pool.launches = LaunchRate { burst: 6, per_minute: 30 };
        pool.breaker = BreakerRule { failures: 3 };
    }
    config
}

/// A *simulated* plan: `a`, `b` on `a`, and for some pipelines one that cannot be built.
fn plan_of(bits: u128) -> EffectResult {
    let output = |name: &str, depends: &[&str]| PlannedOutput {
        name: name.to_owned(),
        version: "1".to_owned(),
        build: "0".to_owned(),
        subdir: "linux-64".to_owned(),
        depends: depends.iter().map(|name| (*name).to_owned()).collect(),
        together_with: BTreeSet::new(),
        variant: BTreeMap::new(),
    };
    let first: &[&str] = if bits.is_multiple_of(13) { &["b"] } else { &[] };
    EffectResult::Plan { plan: RenderedPlan { outputs: vec![output("a", first), output("b", &["a"])] } }
}

fn facts_of(name: &str) -> PackageFacts {
    let test = |index, text: &str| PackageTest { index, kind: "commands".to_owned(), text: text.to_owned() };
    PackageFacts {
        name: name.to_owned(),
        version: "1".to_owned(),
        build: "0".to_owned(),
        build_number: 0,
        subdir: "linux-64".to_owned(),
        depends: if name == "b" { vec!["a".to_owned()] } else { Vec::new() },
        license: None,
        variant: BTreeMap::new(),
        tests: vec![test(0, if name == "b" { "nvidia-smi" } else { "true" })],
        tests_digest: None,
        needed_libraries: Vec::new(),
    }
}

fn entry(artifact: &Artifact, now: Timestamp) -> ChannelEntry {
    ChannelEntry {
        subdir: "linux-64".to_owned(),
        // Each pipeline publishes names of its own, as a new build number would.
        file_name: format!("{}-{}", artifact.pipeline, artifact.name),
        digest: artifact.digest,
        size: artifact.size,
        artifact: artifact.id,
        record: Default::default(),
        attestation: artifact.digest,
        pipeline: artifact.pipeline,
        promoted_at: now,
    }
}
