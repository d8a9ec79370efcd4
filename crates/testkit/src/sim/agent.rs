//! A *simulated* agent: it speaks the agent's contract and retries until it is answered.

use super::Bug;
use super::control::{Control, Fate};
use crate::rng::Rng;
use forgeyard_model::artifact::ArtifactKind;
use forgeyard_model::input::{Input, RefusalKind};
use forgeyard_model::job::JobKind;
use forgeyard_model::resources::DeviceKind;
use forgeyard_model::verdict::{DeviceUse, ExitFacts, Metric, StepFacts};
use forgeyard_model::{AttemptId, Digest, RunnerId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Asks for work, in a machine that was made before there was some.
    Wait,
    Redeem,
    Prepare,
    Run,
    Upload(usize),
    Finish,
    Over,
}

/// The agent of one machine.
#[derive(Debug, Clone)]
pub struct Agent {
    /// The attempt, once it is known.
    attempt: Option<AttemptId>,
    runner: RunnerId,
    nonce: String,
    fence: u32,
    stage: Stage,
    fails: u64,
}

impl Agent {
    /// An agent that begins.
    pub fn new(attempt: Option<AttemptId>, runner: RunnerId, rng: &mut Rng) -> Self {
        let stage = if attempt.is_some() { Stage::Redeem } else { Stage::Wait };
        let (nonce, fails) = (rng.next_u64().to_string(), rng.next_u64() % 100);
        Self { attempt, runner, nonce, fence: 0, stage, fails }
    }

    /// Another agent with a copy of the same token.
    pub fn thief(&self, rng: &mut Rng) -> Self {
        Self::new(self.attempt, self.runner, rng)
    }

    /// Whether it has nothing more to say.
    pub fn over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// What it says next; `None` when it is over.
    fn input(&self, control: &Control) -> Option<Input> {
        let fence = self.fence;
        if self.stage == Stage::Wait {
            return Some(Input::WarmCalled { runner: self.runner, nonce: self.nonce.clone() });
        }
        let attempt = self.attempt?;
        Some(match self.stage {
            Stage::Redeem => Input::TokenRedeemed { attempt, nonce: self.nonce.clone() },
            Stage::Prepare => Input::AgentHeard { attempt, fence, step: None },
            Stage::Run => Input::AgentHeard { attempt, fence, step: Some("work".to_owned()) },
            Stage::Upload(index) => {
                let (kind, name) = self.outputs(control).get(index).cloned()?;
                let digest = Digest::of(format!("{attempt} {name}").as_bytes());
                Input::ArtifactStored { attempt, fence, kind, name, digest, size: 1 }
            }
            Stage::Finish => Input::AttemptFinished {
                attempt,
                fence,
                facts: Box::new(self.facts(control)),
                hits: Vec::new(),
                tail: Vec::new(),
            },
            Stage::Wait | Stage::Over => return None,
        })
    }

    fn outputs(&self, control: &Control) -> Vec<(ArtifactKind, String)> {
        let attempt = self.attempt.and_then(|id| control.farm.attempts.get(&id));
        let Some(job) = attempt.and_then(|attempt| control.farm.jobs.get(&attempt.job)) else {
            return Vec::new();
        };
        match job.kind {
            JobKind::Plan => vec![(ArtifactKind::Plan, "plan.json".to_owned())],
            JobKind::Build => {
                job.outputs.iter().map(|name| (ArtifactKind::CondaPackage, format!("{name}.conda"))).collect()
            }
            JobKind::Test => vec![(ArtifactKind::EnvironmentLock, "lock.json".to_owned())],
            JobKind::Runner => Vec::new(),
        }
    }

    /// Facts that carry the machine's own name, so that a result under another attempt is seen.
    fn facts(&self, control: &Control) -> ExitFacts {
        let attempt = self.attempt.and_then(|id| control.farm.attempts.get(&id));
        let spec = attempt.and_then(|row| control.farm.jobs.get(&row.job)).and_then(|job| job.spec.as_ref());
        let subject = spec.and_then(|spec| spec.subject.as_ref());
        let step = StepFacts {
            name: "work".to_owned(),
            started_at: Default::default(),
            ended_at: Default::default(),
            exit_code: Some(i32::from(self.fails < 8)),
            signal: None,
        };
        let machine = Metric { value: self.runner.to_string(), unit: String::new() };
        ExitFacts {
            steps: vec![step],
            supervisor_error: (self.fails > 90).then(|| "simulated".to_owned()),
            device: Some(DeviceUse {
                kind: DeviceKind::OpenclCpu,
                touched: true,
                evidence: vec!["simulated".to_owned()],
            }),
            installed: subject.map(|it| (it.file_name.clone(), it.digest.to_string())).into_iter().collect(),
            metrics: [("machine".to_owned(), machine)].into(),
            ..ExitFacts::default()
        }
    }

    /// Says one thing. Answers a message that the network may deliver again later.
    pub fn speak(&mut self, control: &mut Control, fate: Fate, rng: &mut Rng) -> Option<Input> {
        let Some(input) = self.input(control) else {
            if matches!(self.stage, Stage::Upload(_)) {
                self.stage = Stage::Finish;
            }
            return None;
        };
        let answer = control.call(input.clone(), fate, rng);
        match answer {
            // No answer: it asks again later.
            None => {}
            Some(Ok(_)) => {
                if let Some(attempt) = self.attempt.filter(|_| self.stage != Stage::Redeem) {
                    control.believe(attempt, &self.nonce);
                }
                self.advance(control, rng);
            }
            // The planted bug: whoever checks tokens does not look at the nonce.
            Some(Err(refusal))
                if refusal.kind == RefusalKind::Forbidden && control.bug == Some(Bug::ShareToken) =>
            {
                self.advance(control, rng);
            }
            Some(Err(refusal)) if refusal.kind == RefusalKind::Superseded => {
                if control.bug == Some(Bug::AcceptSuperseded) {
                    self.force(control, rng);
                }
                self.stage = Stage::Over;
            }
            Some(Err(_)) => self.stage = Stage::Over,
        }
        Some(input)
    }

    fn advance(&mut self, control: &Control, rng: &mut Rng) {
        self.stage = match self.stage {
            Stage::Wait => {
                let runner = control.farm.runners.get(&self.runner);
                self.attempt = runner.and_then(|runner| runner.work.attempt());
                if self.attempt.is_some() { Stage::Redeem } else { Stage::Wait }
            }
            Stage::Redeem => {
                self.fence = self
                    .attempt
                    .and_then(|id| control.farm.attempts.get(&id))
                    .map_or(0, |attempt| attempt.fence);
                Stage::Prepare
            }
            Stage::Prepare => Stage::Run,
            Stage::Run if rng.chance(60) => Stage::Upload(0),
            Stage::Run => Stage::Run,
            Stage::Upload(index) => Stage::Upload(index + 1),
            Stage::Finish | Stage::Over => Stage::Over,
        };
    }

    /// The planted bug: the result is taken for the attempt that is live now.
    fn force(&self, control: &mut Control, rng: &mut Rng) {
        let job = self.attempt.and_then(|id| control.farm.attempts.get(&id)).map(|attempt| attempt.job);
        let live = job.and_then(|job| control.farm.jobs.get(&job)).and_then(|job| job.state.attempt());
        let Some(current) = live.and_then(|id| control.farm.attempts.get(&id)) else { return };
        let (attempt, fence) = (current.id, current.fence);
        let facts = Box::new(self.facts(control));
        let _ = control
            .give(Input::AttemptFinished { attempt, fence, facts, hits: Vec::new(), tail: Vec::new() }, rng);
    }
}
