//! Sample rows: a small farm whose rows refer to each other as they should, with every state in turn.
#![allow(clippy::expect_used, reason = "the texts that are parsed here are constants")]

mod accounts;
mod forge;
mod machines;
mod pools;
mod work;

use forgeyard_model::account::{RepositoryKey, WorkClass};
use forgeyard_model::attempt::AttemptState;
use forgeyard_model::commit::{Commit, EventRecord, Row, UsageFact};
use forgeyard_model::demand::DemandState;
use forgeyard_model::effect::Effect;
use forgeyard_model::input::{Input, JournalEntry};
use forgeyard_model::job::{Hold, JobState};
use forgeyard_model::lease::LeaseState;
use forgeyard_model::ledger::Stake;
use forgeyard_model::pipeline::PipelineState;
use forgeyard_model::principal::{Principal, PrincipalKind, Role};
use forgeyard_model::rules::Money;
use forgeyard_model::runner::RunnerState;
use forgeyard_model::verdict::{Outcome, RetryPolicy, Verdict};
use forgeyard_model::{Account, AttemptId, Digest, Explanation, Id, JobId, Timestamp};
use std::collections::BTreeSet;
use std::str::FromStr;

/// A text that breaks careless quoting.
pub const AWKWARD: &str = "it's \"quoted\" \\ {brace} $1 ?1 -- /* ü 漢 \u{1f980} \n\t \u{0}";

/// Parses a constant.
fn parsed<T: FromStr>(text: &str) -> T {
    text.parse().ok().expect("a constant that is well formed")
}

fn pick<T>(number: u64, choices: Vec<T>) -> T {
    let place = usize::try_from(number).unwrap_or(0) % choices.len();
    choices.into_iter().nth(place).expect("a place below the length")
}

fn reason(code: &str) -> Explanation {
    Explanation::new(code, AWKWARD).with("rule 3").fix("ask an operator")
}

/// Makes ids, times and journal entries that follow each other.
#[derive(Debug, Clone)]
pub struct Samples {
    count: u64,
    seq: u64,
    turns: u64,
}

impl Default for Samples {
    fn default() -> Self {
        Self::new()
    }
}

/// On whose account a sample runs.
fn account() -> Account {
    let repository = RepositoryKey { forge: parsed("github"), id: u64::MAX };
    Account { repository, organisation: "octo".to_owned(), person: 1, class: WorkClass::Nightly }
}

/// What a sample has in use.
fn stake() -> Stake {
    let (pool, flavor) = (parsed("small"), parsed("small"));
    Stake { pool, flavor, devices: 2, seconds: u64::MAX, expected: Some(7), per_hour: Money(1_500_000) }
}

impl Samples {
    /// Begins an empty farm.
    pub const fn new() -> Self {
        Self { count: 0, seq: 0, turns: 0 }
    }

    /// A time that moves by a second with each journal entry.
    pub fn at(&self) -> Timestamp {
        let seconds = i64::try_from(self.seq).unwrap_or(0);
        Timestamp::from_micros(1_700_000_000_000_000 + seconds * 1_000_000)
    }

    /// A new id; later ones are larger.
    pub fn id<I: Id>(&mut self) -> I {
        self.count += 1;
        I::new(self.at(), u128::from(self.count))
    }

    /// A number that looks random and is the same in every run, so that no choice follows the rhythm of another.
    fn number(&mut self) -> u64 {
        self.count += 1;
        let mixed = (self.count ^ (self.count >> 3)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed >> 32
    }

    /// Somebody who acts.
    pub fn principal(&mut self) -> Principal {
        let number = self.number();
        let kind = pick(
            number,
            vec![
                PrincipalKind::Farm,
                PrincipalKind::Site,
                PrincipalKind::Agent,
                PrincipalKind::Token { role: Role::Operator },
                PrincipalKind::Person { id: 4711, forge: None },
            ],
        );
        Principal { id: self.id(), name: "someone".to_owned(), kind }
    }

    /// The next journal entry.
    pub fn journal(&mut self, input: Input) -> JournalEntry {
        self.seq += 1;
        JournalEntry {
            seq: self.seq,
            at: self.at(),
            entropy: format!("{:032x}", self.seq),
            config: Digest::of(b"configuration"),
            by: self.principal(),
            input,
        }
    }

    /// A decision that writes these rows, with an event for each and one usage fact.
    pub fn commit(&mut self, rows: Vec<Row>) -> Commit {
        let journal = self.journal(Input::Ticked);
        let events = rows
            .iter()
            .map(|row| EventRecord {
                id: self.id(),
                at: journal.at,
                by: journal.by.clone(),
                name: format!("{}Written", row.kind()),
                subject: row.key(),
                from: (row.generation() > 1).then(|| "before".to_owned()),
                to: "after".to_owned(),
                note: Some(AWKWARD.to_owned()),
            })
            .collect();
        let usage = UsageFact {
            what: "gpu_micros".to_owned(),
            amount: u64::MAX,
            subject: "att_x".to_owned(),
            repository: 7,
            at: journal.at,
        };
        Commit { journal, rows, events, usage: vec![usage], retired: Vec::new() }
    }

    /// One row of each kind and more, all consistent; another call gives other rows and, in turn, all states.
    pub fn farm(&mut self) -> Vec<Row> {
        let turn = self.turns;
        self.turns += 1;
        let site = self.site();
        let devices = [self.device(&site), self.device(&site)];
        let delivery = self.delivery();
        let mut pipeline = self.pipeline(&delivery);
        pipeline.state = pick(
            turn,
            vec![
                PipelineState::Running,
                PipelineState::Promoting,
                PipelineState::Environment,
                PipelineState::Succeeded,
                PipelineState::Failed { reason: reason("job.failed") },
                PipelineState::Canceled { reason: reason("head.replaced") },
            ],
        );
        let mut job = self.job(&pipeline);
        let attempt_id: AttemptId = self.id();
        let other: JobId = self.id();
        job.verdict = Some(verdict(Outcome::TimedOut));
        job.state = pick(
            turn,
            vec![
                JobState::Held(Hold::Source),
                JobState::Held(Hold::Artifacts { of: BTreeSet::from([other]) }),
                JobState::Held(Hold::Inspection),
                JobState::Held(Hold::Approval { reason: reason("gate.approval") }),
                JobState::Held(Hold::Retry { until: self.at() }),
                JobState::Queued,
                JobState::Placed { attempt: attempt_id },
                JobState::Starting { attempt: attempt_id },
                JobState::Running { attempt: attempt_id },
                JobState::Ended { outcome: Outcome::Succeeded },
                JobState::Ended { outcome: Outcome::Failed },
                JobState::Ended { outcome: Outcome::TimedOut },
                JobState::Ended { outcome: Outcome::Canceled },
                JobState::Ended { outcome: Outcome::Lost },
            ],
        );
        let mut runner = self.runner(&site, attempt_id);
        runner.state = pick(
            turn,
            vec![
                RunnerState::Requested,
                RunnerState::Creating,
                RunnerState::Booting,
                RunnerState::Ready,
                RunnerState::Registered,
                RunnerState::Busy,
                RunnerState::Leaving,
                RunnerState::Draining,
                RunnerState::Deleting,
                RunnerState::Deleted,
                RunnerState::Failed { reason: reason("runner.lost") },
                RunnerState::Kept { reason: reason("runner.kept") },
            ],
        );
        let mut attempt = self.attempt(&job, &runner, 1);
        attempt.state = pick(turn, AttemptState::ALL.to_vec());
        let mut lease = self.lease(&attempt, devices.iter().map(|device| device.id).collect());
        lease.state = pick(turn, LeaseState::ALL.to_vec());
        let mut demand = self.demand();
        demand.state = pick(
            turn,
            vec![
                DemandState::Unread,
                DemandState::Waiting,
                DemandState::Held { reason: reason("gate.approval"), until: None },
                DemandState::Refused { reason: reason("gate.no_grant") },
                DemandState::Wanted,
                DemandState::Launching,
                DemandState::Running,
                DemandState::Ended,
                DemandState::Withdrawn { reason: reason("demand.canceled") },
            ],
        );
        let launch = self.job_of(demand.id);
        let launch_attempt: AttemptId = self.id();
        let mut served = self.runner(&site, launch_attempt);
        served.registration = Some(Box::new(self.registration(&demand)));
        let tried = self.attempt(&launch, &served, 1);
        let artifact = self.artifact(&pipeline);
        let channel = self.channel(&pipeline);
        let environment = self.environment(&pipeline, "notebook");
        let effects = [
            Effect::FetchSource { pipeline: pipeline.id },
            Effect::ReadPlan { job: job.id, artifact: artifact.id },
            Effect::InspectPackage { job: job.id, artifact: artifact.id },
            Effect::Promote { pipeline: pipeline.id, channel: channel.name.clone() },
            Effect::MakeEnvironment { environment: environment.id },
            Effect::LookUpRun {
                demand: demand.id,
                runner: None,
                repository: demand.repository.clone(),
                installation: demand.installation,
                run: demand.run,
                run_attempt: 1,
            },
            Effect::ReadJob {
                demand: demand.id,
                repository: demand.repository.clone(),
                installation: demand.installation,
                job: demand.job,
            },
            Effect::MintRunner {
                demand: demand.id,
                runner: served.id,
                repository: demand.repository.clone(),
                installation: demand.installation,
                scale_set: Some(1),
                name: AWKWARD.to_owned(),
                labels: vec![AWKWARD.to_owned()],
            },
            Effect::RepeatJobs {
                demand: demand.id,
                repository: demand.repository.clone(),
                installation: demand.installation,
                run: demand.run,
                run_attempt: u32::MAX,
            },
            Effect::Deregister {
                demand: demand.id,
                runner: served.id,
                repository: demand.repository.clone(),
                installation: demand.installation,
                scale_set: None,
                name: AWKWARD.to_owned(),
                forge_runner: Some(u64::MAX),
            },
        ]
        .map(|effect| self.effect(effect));
        let token = self.token();
        let ledger = [self.ledger(), self.ledger()];
        let (waits, held) = self.waits(&site, turn);
        let pool = self.pool(turn);
        let mut rows: Vec<Row> = vec![
            // Children before parents: references are checked at the end.
            held.into(),
            waits.into(),
            pool.into(),
            lease.into(),
            attempt.into(),
            runner.into(),
            tried.into(),
            served.into(),
            launch.into(),
            job.into(),
            artifact.into(),
            environment.into(),
            channel.into(),
            token.into(),
            self.approval().into(),
            self.acceptance().into(),
            self.config().into(),
            pipeline.into(),
            demand.into(),
            delivery.into(),
            site.into(),
        ];
        rows.extend(devices.map(Row::from));
        rows.extend(effects.map(Row::from));
        rows.extend(ledger.map(Row::from));
        rows
    }
}

/// A verdict.
pub fn verdict(outcome: Outcome) -> Verdict {
    Verdict {
        outcome,
        class: None,
        cause: AWKWARD.to_owned(),
        rule: None,
        blame: None,
        retry: RetryPolicy::RB,
        lines: Vec::new(),
        fix: None,
    }
}
