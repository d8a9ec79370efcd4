//! Sample rows of native work: from the delivery over pipeline and jobs to what they leave behind.

use super::{AWKWARD, Samples, account, parsed, pick, reason};
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::channel::{Channel, ChannelEntry};
use forgeyard_model::delivery::{Delivery, DeliveryState};
use forgeyard_model::effect::{Effect, PendingEffect};
use forgeyard_model::environment::{Environment, EnvironmentState, LockedPackage, ProofRun};
use forgeyard_model::forge::{ForgeEvent, Person, Repository, Trigger};
use forgeyard_model::job::{ForgeRunner, Job, JobKind, JobSpec, JobState, Step};
use forgeyard_model::pipeline::{Pipeline, PipelineState, SourceRecord};
use forgeyard_model::resources::Isolation;
use forgeyard_model::{Digest, Explanation, Lane, Owner};
use std::collections::{BTreeMap, BTreeSet};

impl Samples {
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
            waits: Some(Explanation::new("forge.limited", AWKWARD)),
            done_at: None,
            generation: 1,
        }
    }
}
