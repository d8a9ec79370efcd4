//! Sample rows: a small farm whose rows refer to each other as they should, with every state in turn.
#![allow(clippy::expect_used, reason = "the texts that are parsed here are constants")]

mod forge;
mod pools;

use forgeyard_model::account::{RepositoryKey, WorkClass};
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::attempt::{Attempt, AttemptState, TokenState};
use forgeyard_model::channel::{Channel, ChannelEntry};
use forgeyard_model::commit::{Commit, EventRecord, Row, UsageFact};
use forgeyard_model::delivery::{Delivery, DeliveryState};
use forgeyard_model::demand::DemandState;
use forgeyard_model::device::{Device, DeviceFacts, DeviceState};
use forgeyard_model::effect::{Effect, PendingEffect};
use forgeyard_model::environment::{Environment, EnvironmentState, LockedPackage, ProofRun};
use forgeyard_model::forge::{ForgeEvent, Person, Repository, Trigger};
use forgeyard_model::input::{Input, JournalEntry};
use forgeyard_model::job::{ForgeRunner, Hold, Job, JobKind, JobSpec, JobState, Step};
use forgeyard_model::lease::{Lease, LeaseState};
use forgeyard_model::ledger::{Entry, LedgerRow, RepositoryUse, RunTimes, Stake};
use forgeyard_model::pipeline::{Pipeline, PipelineState, SourceRecord};
use forgeyard_model::principal::{ApiToken, Principal, PrincipalKind, Role};
use forgeyard_model::resources::{DeviceKind, Flavor, Image, ImageRoot, Isolation};
use forgeyard_model::rules::Money;
use forgeyard_model::runner::{Runner, RunnerState, RunnerWork};
use forgeyard_model::site::{HostFacts, Site};
use forgeyard_model::verdict::{Outcome, RetryPolicy, Verdict};
use forgeyard_model::who::ForgeId;
use forgeyard_model::*;
use std::collections::{BTreeMap, BTreeSet};
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
            forge: Some(parsed("lab.git")),
            at: journal.at,
        };
        Commit { journal, rows, events, usage: vec![usage], retired: Vec::new() }
    }

    /// A site.
    pub fn site(&mut self) -> Site {
        let number = self.number();
        let host = HostFacts {
            host: "box".to_owned(),
            cpu_millis: 14_000,
            memory_mib: 65_536,
            kernel: "6.1".to_owned(),
            providers: BTreeSet::from([parsed("sandbox")]),
            enforces: BTreeSet::new(),
            cannot: Vec::new(),
        };
        Site {
            id: self.id(),
            name: parsed(&format!("site-{number}")),
            token: Digest::of(&number.to_be_bytes()),
            public_key: "00ff".to_owned(),
            host: number.is_multiple_of(2).then_some(host),
            heard_at: Some(self.at()),
            draining_since: None,
            desired_generation: number,
            joined_at: self.at(),
            generation: 1,
        }
    }

    /// A device of a site.
    pub fn device(&mut self, site: &Site) -> Device {
        let number = self.number();
        let lease = self.id();
        Device {
            id: self.id(),
            site: site.id,
            facts: DeviceFacts {
                key: format!("pci:{number:04x}:00:00.0"),
                kind: pick(number, vec![DeviceKind::Nvidia, DeviceKind::Amd, DeviceKind::OpenclCpu]),
                model: AWKWARD.to_owned(),
                uuid: None,
                driver: "550.1".to_owned(),
                memory_mib: 20_480,
                compute_capability: 89,
                iommu_group: Some(12),
                numa_node: Some(0),
                nodes: vec!["/dev/nvidia0".to_owned()],
            },
            state: pick(
                number,
                vec![
                    DeviceState::Ready,
                    DeviceState::Leased { lease },
                    DeviceState::Resetting { lease },
                    DeviceState::Verifying { lease },
                    DeviceState::Quarantined { reason: reason("device.sick") },
                ],
            ),
            since: self.at(),
            deadline: None,
            generation: 1,
        }
    }

    /// A delivery.
    pub fn delivery(&mut self) -> Delivery {
        let number = self.number();
        Delivery {
            guid: format!("guid-{number}-it's"),
            event: "pull_request".to_owned(),
            body: Digest::of(b"body"),
            state: pick(
                number,
                vec![
                    DeliveryState::Stored,
                    DeliveryState::Started { pipeline: self.id() },
                    DeliveryState::Settled { reason: reason("gate.no_grant") },
                    DeliveryState::Rejected { reason: reason("webhook.unreadable") },
                ],
            ),
            times: 1,
            received_at: self.at(),
            generation: 1,
        }
    }

    /// A pipeline that runs.
    pub fn pipeline(&mut self, delivery: &Delivery) -> Pipeline {
        let number = self.number();
        let person = Person { id: 9, login: "mona".to_owned() };
        let trigger = pick(
            number,
            vec![
                Trigger::Manual,
                Trigger::Push { git_ref: "refs/heads/main".to_owned() },
                Trigger::PullRequest {
                    number: 12,
                    base: "main".to_owned(),
                    base_sha: "b".repeat(40),
                    head_repository: 77,
                    fork: true,
                },
            ],
        );
        Pipeline {
            id: self.id(),
            delivery: delivery.guid.clone(),
            event: ForgeEvent {
                repository: Repository { forge: parsed("github"), id: 42, name: "o/r".to_owned() },
                trigger,
                head_sha: "a".repeat(40),
                sender: person.clone(),
                author: number.is_multiple_of(2).then_some(person),
            },
            lane: pick(number, vec![Lane::ForkPr, Lane::SameRepoPr, Lane::Protected]),
            isolation: Isolation::SharedKernel,
            allowed_by: vec!["rule".to_owned()],
            file: number.is_multiple_of(2).then(Default::default),
            source: (number % 2 == 1).then(|| SourceRecord {
                artifact: self.id(),
                digest: Digest::of(b"source"),
                commit: "a".repeat(40),
                pipeline_file_commit: "b".repeat(40),
            }),
            outputs: [("a".to_owned(), self.id())].into(),
            state: PipelineState::Running,
            not_promoted: None,
            channel: None,
            environment: None,
            created_at: self.at(),
            ended_at: None,
            since: self.at(),
            deadline: Some(self.at()),
            generation: 1,
        }
    }

    /// A job that waits for capacity.
    pub fn job(&mut self, pipeline: &Pipeline) -> Job {
        self.job_of(pipeline.id)
    }

    /// The same, of a pipeline or of a demand.
    pub fn job_of(&mut self, owner: impl Into<Owner>) -> Job {
        let owner = owner.into();
        let number = self.number();
        Job {
            id: self.id(),
            owner,
            account: number.is_multiple_of(3).then(account),
            key: format!("build/{number}"),
            kind: pick(number, vec![JobKind::Plan, JobKind::Build, JobKind::Test, JobKind::Runner]),
            spec: number.is_multiple_of(2).then(|| JobSpec {
                flavor: parsed("small"),
                gpu: None,
                needs: BTreeSet::new(),
                inputs: Vec::new(),
                files: Vec::new(),
                steps: vec![Step {
                    name: "build".to_owned(),
                    argv: vec!["sh".to_owned(), AWKWARD.to_owned()],
                    env: BTreeMap::from([("A".to_owned(), AWKWARD.to_owned())]),
                }],
                outputs: Vec::new(),
                env: BTreeMap::new(),
                subject: None,
                pools: vec![parsed("pool")],
                forge_runner: owner.demand().map(|_| ForgeRunner {
                    forge: parsed("github"),
                    labels: vec![AWKWARD.to_owned()],
                    program: vec![AWKWARD.to_owned()],
                }),
            }),
            outputs: vec!["out".to_owned()],
            test: None,
            needs: BTreeSet::new(),
            state: JobState::Queued,
            waiting: None,
            fence: 0,
            retries: 0,
            avoid: BTreeSet::new(),
            verdict: None,
            cancel_requested_at: None,
            created_at: self.at(),
            queued_at: Some(self.at()),
            ended_at: None,
            since: self.at(),
            deadline: None,
            generation: 1,
        }
    }

    /// A runner for an attempt that is made with [`Samples::attempt`].
    pub fn runner(&mut self, site: &Site, attempt: AttemptId) -> Runner {
        Runner {
            id: self.id(),
            site: site.id,
            pool: parsed("pool"),
            provider: parsed("sandbox"),
            flavor: parsed("small"),
            image: parsed("host"),
            shape: Flavor {
                name: parsed("small"),
                cpu_millis: 1000,
                memory_mib: 512,
                disk_mib: 512,
                processes: 64,
                time_limit_seconds: 60,
                gpu: None,
                network: false,
            },
            boots: Image { name: parsed("host"), root: ImageRoot::Host { allow: vec!["/opt/x".to_owned()] } },
            work: RunnerWork::Attempt(attempt),
            registration: None,
            state: RunnerState::Requested,
            requested_at: self.at(),
            seen_at: None,
            unwanted_from: 7,
            outdated_at: None,
            ready_at: None,
            since: self.at(),
            deadline: None,
            generation: 1,
        }
    }

    /// A placed attempt at a job on a runner.
    pub fn attempt(&mut self, job: &Job, runner: &Runner, fence: u32) -> Attempt {
        let number = self.number();
        let nonce = "n".to_owned();
        Attempt {
            id: runner.work.attempt().expect("a runner of an attempt"),
            job: job.id,
            owner: job.owner,
            account: job.account.clone(),
            stake: number.is_multiple_of(2).then(|| Box::new(stake())),
            fence,
            runner: runner.id,
            site: runner.site,
            lease: None,
            token: pick(
                number,
                vec![
                    TokenState::Unused,
                    TokenState::Redeemed { nonce: nonce.clone() },
                    TokenState::Closed { nonce },
                ],
            ),
            state: AttemptState::Placed,
            placed_at: self.at(),
            started_at: None,
            ended_at: None,
            heard_at: None,
            step: None,
            outcome: None,
            facts: number.is_multiple_of(2).then(Default::default),
            verdict: number.is_multiple_of(3).then(|| verdict(Outcome::Lost)),
            artifacts: Vec::new(),
            since: self.at(),
            deadline: None,
            generation: 1,
        }
    }

    /// A claimed lease of an attempt.
    pub fn lease(&mut self, attempt: &Attempt, devices: Vec<DeviceId>) -> Lease {
        Lease {
            id: self.id(),
            site: attempt.site,
            attempt: Some(attempt.id),
            runner: attempt.runner,
            devices,
            state: LeaseState::Claimed,
            claimed_at: self.at(),
            held_at: None,
            ended_at: None,
            since: self.at(),
            deadline: None,
            generation: 1,
        }
    }

    /// An artifact of a pipeline.
    pub fn artifact(&mut self, pipeline: &Pipeline) -> Artifact {
        let number = self.number();
        Artifact {
            id: self.id(),
            kind: pick(
                number,
                vec![
                    ArtifactKind::Source,
                    ArtifactKind::Plan,
                    ArtifactKind::CondaPackage,
                    ArtifactKind::EnvironmentLock,
                    ArtifactKind::Report,
                ],
            ),
            name: AWKWARD.to_owned(),
            digest: Digest::of(&number.to_be_bytes()),
            size: u64::MAX,
            pipeline: pipeline.id,
            job: None,
            attempt: None,
            lane: pipeline.lane,
            package: None,
            stored_at: self.at(),
            generation: 1,
        }
    }

    /// A channel with one package.
    pub fn channel(&mut self, pipeline: &Pipeline) -> Channel {
        let number = self.number();
        let entry = ChannelEntry {
            subdir: "linux-64".to_owned(),
            file_name: "a-1-0.conda".to_owned(),
            digest: Digest::of(b"package"),
            size: 1,
            artifact: self.id(),
            record: serde_json::json!({"name": "a", "depends": ["b >=1"], "size": 1.5, "odd": AWKWARD}),
            attestation: Digest::of(b"statement"),
            pipeline: pipeline.id,
            promoted_at: self.at(),
        };
        Channel {
            name: parsed(&format!("channel-{number}")),
            entries: vec![entry],
            changed_at: self.at(),
            generation: 1,
        }
    }

    /// An environment.
    pub fn environment(&mut self, pipeline: &Pipeline, name: &str) -> Environment {
        let number = self.number();
        let locked = LockedPackage {
            subdir: "noarch".to_owned(),
            file_name: "b-1-0.conda".to_owned(),
            digest: Digest::of(b"b"),
            url: "https://example.org/b".to_owned(),
        };
        Environment {
            id: self.id(),
            name: parsed(name),
            pipeline: pipeline.id,
            channel: parsed("main"),
            specs: vec!["a >=1".to_owned()],
            run: vec!["a".to_owned()],
            state: pick(
                number,
                vec![
                    EnvironmentState::Requested,
                    EnvironmentState::Ready {
                        lock: vec![locked],
                        lock_digest: Digest::of(b"lock"),
                        prefix: "/srv/e".to_owned(),
                        proof: Some(ProofRun {
                            argv: vec!["a".to_owned()],
                            exit_code: -1,
                            stdout: AWKWARD.to_owned(),
                            took_ms: Some(7),
                        }),
                    },
                    EnvironmentState::Failed { reason: reason("env.unsolvable") },
                ],
            ),
            requested_at: self.at(),
            since: self.at(),
            deadline: None,
            generation: 1,
        }
    }

    /// An effect that waits.
    pub fn effect(&mut self, effect: Effect) -> PendingEffect {
        PendingEffect {
            id: self.id(),
            effect,
            tries: 2,
            not_before: self.at(),
            trouble: Some(AWKWARD.to_owned()),
            waits: Some(forgeyard_model::Explanation::new("forge.limited", AWKWARD)),
            done_at: None,
            generation: 1,
        }
    }

    /// A row of the ledger.
    pub fn ledger(&mut self) -> LedgerRow {
        let number = self.number();
        let repository = RepositoryKey { forge: parsed("github"), id: number };
        if number.is_multiple_of(2) {
            let (work, flavor) = (AWKWARD.to_owned(), parsed("small"));
            let key = LedgerRow::times_key(&repository, &work, &flavor);
            let times = RunTimes { repository, work, flavor, seconds: vec![1, u32::MAX] };
            return LedgerRow { key, entry: Entry::Times(times), generation: 1 };
        }
        let key = LedgerRow::use_key(&repository);
        let mut used = RepositoryUse::new(repository, "octo".to_owned(), self.at());
        used.charge(self.at(), &parsed("small"), &stake().used(1_000_000), 60);
        LedgerRow { key, entry: Entry::Use(used), generation: 1 }
    }

    /// A token.
    pub fn token(&mut self) -> ApiToken {
        let number = self.number();
        ApiToken {
            principal: self.principal(),
            digest: Digest::of(&number.to_be_bytes()),
            created_at: self.at(),
            expires_at: number.is_multiple_of(2).then(|| self.at()),
            revoked_at: None,
            repositories: (1..number % 3)
                .map(|id| ForgeId { forge: (id % 2 == 1).then(|| parsed("lab.git")), id })
                .collect(),
            forge_roles: (0..number % 3).map(|id| (u64::MAX - id, AWKWARD.to_owned())).collect(),
            generation: 1,
        }
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
