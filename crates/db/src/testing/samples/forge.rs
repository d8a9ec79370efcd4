//! Samples of what belongs to forges and their people: demands, registrations, approvals, accepted terms.

use super::{AWKWARD, Samples, parsed, pick, reason};
use forgeyard_model::approval::{Acceptance, Approver, ConfigVersion, HeadApproval, Judgement, Way};
use forgeyard_model::demand::{
    Admission, Demand, DemandState, ForgeRank, Repeat, RunFacts, ScaleSetRequest, Sighting, Source, Taker,
};
use forgeyard_model::forge::{Person, Repository};
use forgeyard_model::registration::{Registration, RegistrationState, Taken, TakenAnswer, TakenJob};
use forgeyard_model::resources::Isolation;
use forgeyard_model::{Digest, Lane};
use std::collections::BTreeMap;

impl Samples {
    /// A demand of a job of a forge.
    pub fn demand(&mut self) -> Demand {
        let number = self.number();
        let person = Person { id: 9, login: AWKWARD.to_owned() };
        let repository = Repository { forge: parsed("github"), id: u64::MAX, name: "o/r".to_owned() };
        let sighting = Sighting { first: self.at(), news: 2 };
        let source = pick(number, vec![Source::Webhook, Source::Redelivery, Source::Poll, Source::ScaleSet]);
        Demand {
            id: self.id(),
            repository,
            installation: number.is_multiple_of(2).then_some(u64::MAX),
            // The whole width counts: ids of forges passed 2^32 long ago.
            job: u64::MAX - number,
            run: u64::MAX,
            run_attempt: 2,
            name: AWKWARD.to_owned(),
            workflow: None,
            labels: vec!["self-hosted".to_owned(), AWKWARD.to_owned()],
            head_sha: "a".repeat(40),
            head_branch: Some("main".to_owned()),
            sender: Some(person.clone()),
            scale_set: number.is_multiple_of(3).then_some(ScaleSetRequest { set: 1, request: u64::MAX }),
            rank: pick(
                number,
                vec![ForgeRank::Waiting, ForgeRank::Queued, ForgeRank::InProgress, ForgeRank::Completed],
            ),
            conclusion: number.is_multiple_of(2).then(|| "success".to_owned()),
            seen: BTreeMap::from([(source, sighting)]),
            facts: number.is_multiple_of(2).then(|| RunFacts {
                event: "pull_request".to_owned(),
                actor: Some(person.clone()),
                triggering_actor: None,
                head_repository: Some(u64::MAX),
                head_sha: "a".repeat(40),
                head_branch: None,
                pull_request: Some(12),
                author: Some(person),
                pusher: None,
                run_attempt: 2,
            }),
            lookups: 1,
            admission: number.is_multiple_of(2).then(|| Admission {
                pools: vec![parsed("pool")],
                by: vec!["rule".to_owned()],
                lane: Lane::ForkPr,
                isolation: Isolation::Vm,
            }),
            decided_under: Some(Digest::of(b"configuration")),
            launch: number.is_multiple_of(2).then(|| self.id()),
            launches: 1,
            taken_by: number.is_multiple_of(2).then(|| Taker {
                name: AWKWARD.to_owned(),
                id: Some(u64::MAX),
                runner: None,
            }),
            repeat: number.is_multiple_of(2).then(|| Repeat::Wanted { cause: AWKWARD.to_owned() }),
            state: DemandState::Unread,
            pauses: 0,
            checks: 0,
            created_at: self.at(),
            ended_at: None,
            since: self.at(),
            deadline: None,
            generation: 1,
        }
    }

    /// A registration of a runner that serves a demand.
    pub(super) fn registration(&mut self, demand: &Demand) -> Registration {
        let number = self.number();
        let job = TakenJob {
            repository: demand.repository.clone(),
            run: demand.run,
            run_attempt: 1,
            key: AWKWARD.to_owned(),
            actor: None,
        };
        Registration {
            demand: demand.id,
            repository: demand.repository.clone(),
            installation: demand.installation,
            scale_set: number.is_multiple_of(2).then_some(7),
            name: format!("forgeyard-{number}"),
            labels: demand.labels.clone(),
            state: pick(
                number,
                vec![
                    RegistrationState::Asked,
                    RegistrationState::Minted { runner: u64::MAX },
                    RegistrationState::Leaving { runner: None, reason: reason("registration.over") },
                    RegistrationState::Gone,
                ],
            ),
            asks: 1,
            leaves: 0,
            minted_at: None,
            fetched_at: Some(self.at()),
            busy: false,
            over: false,
            idle_until: None,
            taken: number.is_multiple_of(2).then(|| Taken {
                job,
                facts: demand.facts.clone(),
                answer: TakenAnswer::Refused { reason: reason("gate.no_grant") },
                at: self.at(),
            }),
        }
    }

    /// What was said of a head.
    pub fn approval(&mut self) -> HeadApproval {
        let number = self.number();
        let person = Person { id: u64::MAX - number, login: AWKWARD.to_owned() };
        let by = Approver {
            person,
            forge: number.is_multiple_of(2).then(|| parsed("github")),
            token: number.is_multiple_of(3).then(|| self.id()),
            role: None,
        };
        HeadApproval {
            repository: Repository { forge: parsed("github"), id: u64::MAX, name: AWKWARD.to_owned() },
            head_sha: format!("{number:040x}"),
            pull_request: number.is_multiple_of(2).then_some(12),
            judged: Some(Judgement {
                approve: number.is_multiple_of(2),
                reason: Some(AWKWARD.to_owned()),
                by,
                how: pick(number, vec![Way::CheckRun, Way::Console, Way::Cli, Way::Api]),
                at: self.at(),
            }),
            void: number.is_multiple_of(2).then(|| reason("approval.void")),
            turned_away: Some(reason("approval.not_authorised")),
            at: self.at(),
            generation: 1,
        }
    }

    /// Accepted terms.
    pub fn acceptance(&mut self) -> Acceptance {
        let number = self.number();
        let person = Person { id: u64::MAX - number, login: AWKWARD.to_owned() };
        Acceptance {
            person,
            forge: number.is_multiple_of(2).then(|| parsed("github")),
            version: u32::MAX,
            how: Way::Cli,
            at: self.at(),
            generation: 1,
        }
    }

    /// A configuration.
    pub fn config(&mut self) -> ConfigVersion {
        let number = self.number();
        ConfigVersion {
            number,
            digest: Digest::of(&number.to_be_bytes()),
            at: self.at(),
            by: AWKWARD.to_owned(),
            repeats: number.checked_sub(1),
            changes: vec![AWKWARD.to_owned()],
            config: AWKWARD.to_owned(),
            generation: 1,
        }
    }
}
