//! Approvals, terms and rules that are taken back. Holes are those that operators of such gates have reported (gpu_vm.md
//! §5.3).

use super::desk::*;
use super::gate::{allow_forks, large, of_fork};
use crate::approvals::APPROVE;
use forgeyard_model::access::{Approvers, Member};
use forgeyard_model::approval::{Approver, Way, head_key};
use forgeyard_model::demand::RunFacts;
use forgeyard_model::forge::{ForgeEvent, Meaning, Person, Press, Trigger, WorkflowJob};
use forgeyard_model::input::{Input, Refusal, RefusalKind, Reply};
use forgeyard_model::pipeline::PipelineState;
use forgeyard_model::principal::{ApiToken, Principal, PrincipalKind, Role};
use forgeyard_model::{Digest, Id, PrincipalId};

const KEEPER: u64 = 7_000_000_003;

fn sha(letter: &str) -> String {
    letter.repeat(40)
}

fn by(id: u64) -> Approver {
    Approver { person: person(id), forge: None, token: None, role: None }
}

fn judged(head_sha: &str, approve: bool, by: Approver) -> Input {
    let repository = repository(REPOSITORY);
    let reason = (!approve).then(|| "it mines coins".to_owned());
    Input::HeadJudged {
        repository,
        head_sha: head_sha.to_owned(),
        approve,
        reason,
        approver: by,
        how: Way::Cli,
    }
}

fn pressed(desk: &mut Desk, guid: &str, head_sha: &str, button: &str, sender: Person) {
    let press = Press {
        repository: repository(REPOSITORY),
        check: 1,
        head_sha: head_sha.to_owned(),
        button: button.to_owned(),
        sender,
    };
    let guid = guid.to_owned();
    desk.give(Input::DeliveryReceived {
        guid: guid.clone(),
        event: "check_run".to_owned(),
        body: Digest::of(b"body"),
    });
    desk.give(Input::DeliveryRead { guid, meaning: Ok(Meaning::Pressed(Box::new(press))), asked: false });
}

/// A desk at which the job of a stranger's fork is held.
fn held() -> Desk {
    let mut desk = Desk::new();
    allow_forks(&mut desk);
    desk.webhook(large(JOB));
    desk.found(RunFacts { pull_request: Some(7), ..of_fork(Some(STRANGER), STRANGER, 1) });
    assert_eq!(desk.state(JOB), "held");
    desk
}

/// A further job of the same pull request, at this head.
fn pushed(desk: &mut Desk, number: u64, head_sha: &str) {
    desk.pass(1);
    let head_sha = head_sha.to_owned();
    desk.webhook(WorkflowJob { run: RUN + number, head_sha: head_sha.clone(), ..large(JOB + number) });
    desk.found(RunFacts { head_sha, pull_request: Some(7), ..of_fork(Some(STRANGER), STRANGER, 1) });
}

fn refused(answer: Result<Reply, Refusal>) -> Refusal {
    answer.unwrap_err()
}

#[test]
fn a_stranger_is_held_for_an_approval_that_is_bound_to_one_head_runner_494() {
    let mut desk = held();
    let other = refused(desk.offer(judged(&sha("b"), true, by(MAINTAINER))));
    assert_eq!(other.reason.code, "approval.nothing_there");
    // Somebody who does not pass cannot vouch, not even for himself, and is told why and who may.
    let own = refused(desk.offer(judged(&sha("a"), true, by(STRANGER))));
    assert_eq!((own.kind, own.reason.code.as_str()), (RefusalKind::Forbidden, "approval.not_authorised"));
    assert!(own.reason.evidence[0].contains("grant `demo`"), "{own}");
    assert!(own.reason.fix.as_ref().unwrap().contains("somebody who passes grant `demo`"), "{own}");
    assert_eq!(desk.state(JOB), "held");
    desk.give(judged(&sha("a"), true, by(MAINTAINER)));
    assert_eq!(desk.state(JOB), "launching");
    assert_eq!(desk.give(judged(&sha("a"), true, by(MAINTAINER))), Reply::Unchanged);
    // After a force-push there is another head, and the approval does not count for it.
    pushed(&mut desk, 1, &sha("c"));
    assert_eq!(desk.state(JOB + 1), "held");
}

#[test]
fn approval_is_void_after_a_force_push_even_when_the_old_head_comes_back() {
    let mut desk = held();
    desk.give(judged(&sha("a"), true, by(MAINTAINER)));
    pushed(&mut desk, 1, &sha("c"));
    let row = &desk.farm.approvals[&head_key(&repository(REPOSITORY), &sha("a"))];
    assert!(row.counts().is_none() && row.void.is_some(), "{row:?}");
    // What waited for a machine at the old head is held again.
    assert_eq!(desk.state(JOB), "held");
    pushed(&mut desk, 2, &sha("a"));
    assert_eq!(desk.state(JOB + 2), "held");
    // And it can be approved anew.
    desk.give(judged(&sha("a"), true, by(MAINTAINER)));
    assert_eq!(desk.state(JOB + 2), "launching");
}

#[test]
fn approval_counts_for_a_job_that_comes_later_at_the_same_head_and_for_the_second_gate() {
    let mut desk = held();
    desk.give(judged(&sha("a"), true, by(MAINTAINER)));
    desk.webhook(WorkflowJob { run: RUN + 1, ..large(JOB + 1) });
    desk.found(RunFacts { pull_request: Some(7), ..of_fork(Some(STRANGER), STRANGER, 1) });
    assert_eq!(desk.state(JOB + 1), "launching");
    let attempt = desk.registered(JOB, 71);
    let answer = desk.hook(attempt, taken(REPOSITORY, RUN, STRANGER));
    assert!(crate::demand::tests::people::allows(&answer), "{answer:?}");
}

pub(super) fn allows(answer: &forgeyard_model::registration::TakenAnswer) -> bool {
    matches!(answer, forgeyard_model::registration::TakenAnswer::Allowed { .. })
}

/// Hole 10: a maintainer's re-run of a fork's job is no approval.
#[test]
fn hole_10_running_again_approves_nothing() {
    let mut desk = held();
    desk.webhook(WorkflowJob { run_attempt: 2, ..large(JOB + 1) });
    desk.found(RunFacts { pull_request: Some(7), ..of_fork(Some(STRANGER), MAINTAINER, 2) });
    assert_eq!(desk.state(JOB + 1), "held");
    pressed(&mut desk, "g1", &sha("a"), "some-other-button", person(MAINTAINER));
    assert_eq!((desk.state(JOB), desk.state(JOB + 1)), ("held", "held"));
}

#[test]
fn button_of_the_check_run_approves_by_numeric_id_and_tells_whoever_may_not() {
    let mut desk = held();
    // The maintainer's login, on another account.
    let squatter = Person { id: STRANGER, login: person(MAINTAINER).login };
    pressed(&mut desk, "g1", &sha("a"), APPROVE, squatter);
    assert_eq!(desk.state(JOB), "held");
    let row = desk.farm.approvals[&head_key(&repository(REPOSITORY), &sha("a"))].clone();
    let told = row.turned_away.unwrap();
    assert!(row.judged.is_none() && told.message.contains(&STRANGER.to_string()), "{told}");
    assert!(told.evidence.iter().any(|line| line.contains("grant `demo`")), "{told}");
    let renamed = Person { id: MAINTAINER, login: "another-name".to_owned() };
    pressed(&mut desk, "g2", &sha("a"), APPROVE, renamed);
    assert_eq!(desk.state(JOB), "launching");
    let row = &desk.farm.approvals[&head_key(&repository(REPOSITORY), &sha("a"))];
    let said = row.judged.as_ref().unwrap();
    assert_eq!((said.how, said.by.person.id, row.turned_away.is_none()), (Way::CheckRun, MAINTAINER, true));
    // A click for a head that nobody waits at is absorbed and told.
    pressed(&mut desk, "g3", &sha("d"), APPROVE, person(MAINTAINER));
}

#[test]
fn who_may_approve_is_the_approvers_of_the_grant_or_a_maintainer_of_the_repository() {
    let mut desk = held();
    desk.config.access.grants[0].approvers =
        Some(Approvers { users: [KEEPER].into(), ..Approvers::default() });
    // With `approvers` written, passing the grant is not enough.
    let error = refused(desk.offer(judged(&sha("a"), true, by(MAINTAINER))));
    assert_eq!(error.reason.code, "approval.not_authorised");
    desk.give(judged(&sha("a"), true, by(KEEPER)));
    assert_eq!(desk.state(JOB), "launching");

    let mut desk = held();
    let rule = Member {
        id: "keepers".to_owned(),
        role: Role::Maintainer,
        users: [KEEPER].into(),
        lists: Default::default(),
        teams: Default::default(),
        repositories: [OTHER].into(),
        organisations: Default::default(),
        whole_farm: false,
    };
    desk.config.access.members = vec![rule.clone()];
    let error = refused(desk.offer(judged(&sha("a"), true, by(KEEPER))));
    assert_eq!(error.reason.code, "approval.not_authorised", "a maintainer of another repository");
    desk.config.access.members =
        vec![Member { role: Role::Viewer, repositories: [REPOSITORY].into(), ..rule.clone() }];
    let error = refused(desk.offer(judged(&sha("a"), true, by(KEEPER))));
    assert_eq!(error.reason.code, "approval.not_authorised", "a viewer");
    desk.config.access.members = vec![Member { repositories: [REPOSITORY].into(), ..rule }];
    desk.give(judged(&sha("a"), true, by(KEEPER)));
    assert_eq!(desk.state(JOB), "launching");
}

fn token(role: Role, repositories: &[u64]) -> ApiToken {
    ApiToken {
        principal: Principal {
            id: PrincipalId::from_bits(9),
            name: "robot".to_owned(),
            kind: PrincipalKind::Token { role },
        },
        digest: Digest::of(b"robot"),
        created_at: Default::default(),
        expires_at: None,
        revoked_at: None,
        repositories: repositories.iter().copied().collect(),
        forge_roles: Default::default(),
        generation: 0,
    }
}

fn by_token() -> Approver {
    let person = Person { id: 0, login: "robot".to_owned() };
    Approver { person, forge: None, token: Some(PrincipalId::from_bits(9)), role: Some(Role::Admin) }
}

#[test]
fn token_approves_by_its_own_role_and_place_and_takes_its_word_back_when_revoked() {
    for wrong in [token(Role::Viewer, &[]), token(Role::Maintainer, &[OTHER])] {
        let mut desk = held();
        desk.give(Input::TokenIssued { token: wrong });
        let error = refused(desk.offer(judged(&sha("a"), true, by_token())));
        assert_eq!(error.reason.code, "approval.not_authorised", "the role that is claimed does not count");
    }
    let mut desk = held();
    desk.give(Input::TokenIssued { token: token(Role::Maintainer, &[REPOSITORY]) });
    desk.give(judged(&sha("a"), true, by_token()));
    assert_eq!(desk.state(JOB), "launching");
    desk.give(Input::TokenRevoked { digest: Digest::of(b"robot") });
    desk.webhook(WorkflowJob { run: RUN + 1, ..large(JOB + 1) });
    desk.found(RunFacts { pull_request: Some(7), ..of_fork(Some(STRANGER), STRANGER, 1) });
    assert_eq!(desk.state(JOB + 1), "held");
}

#[test]
fn refusal_of_a_head_ends_what_waits_and_what_runs_and_needs_the_same_right() {
    let mut desk = held();
    assert_eq!(refused(desk.offer(judged(&sha("a"), false, by(STRANGER)))).kind, RefusalKind::Forbidden);
    desk.give(judged(&sha("a"), true, by(MAINTAINER)));
    desk.give(judged(&sha("a"), false, by(MAINTAINER)));
    assert_eq!(desk.state(JOB), "refused");
    let reason = desk.demand(JOB).reason().unwrap().clone();
    assert_eq!(reason.code, "approval.refused");
    assert!(reason.evidence.iter().any(|line| line.contains("mines coins")), "{reason}");
    // A running one is stopped through its agent.
    let mut desk = held();
    desk.give(judged(&sha("a"), true, by(MAINTAINER)));
    let attempt = desk.registered(JOB, 71);
    desk.hook(attempt, taken(REPOSITORY, RUN, STRANGER));
    assert_eq!(desk.state(JOB), "running");
    desk.give(judged(&sha("a"), false, by(MAINTAINER)));
    assert!(desk.launch(JOB).cancel_requested_at.is_some());
}

/// Hole 13: a check-box bound people to terms that were written later.
#[test]
fn hole_13_newer_terms_bind_nobody_who_has_not_accepted_them_and_the_refusal_says_how() {
    let mut desk = Desk::new();
    desk.config.access.terms_version = 2;
    desk.config.access.terms_url = Some("https://example.org/terms".to_owned());
    desk.config.access.terms_accepted.insert(MAINTAINER.into(), 1);
    desk.webhook(report(JOB, "queued"));
    desk.found(facts());
    assert_eq!(desk.state(JOB), "held");
    let reason = desk.demand(JOB).reason().unwrap().clone();
    assert_eq!(reason.code, "gate.terms_not_accepted");
    let fix = reason.fix.unwrap();
    assert!(
        fix.contains("https://example.org/terms") && fix.contains("forgeyard terms accept --version 2"),
        "{fix}"
    );
    let accept =
        |version, id| Input::TermsAccepted { person: person(id), forge: None, version, how: Way::Console };
    for (version, id, code) in [
        (1, MAINTAINER, "terms.other_version"),
        (3, MAINTAINER, "terms.other_version"),
        (2, 0, "terms.nobody"),
    ] {
        assert_eq!(refused(desk.offer(accept(version, id))).reason.code, code);
    }
    // The word of somebody else helps nobody.
    desk.give(accept(2, STRANGER));
    assert_eq!(desk.state(JOB), "held");
    desk.give(accept(2, MAINTAINER));
    assert_eq!(desk.state(JOB), "launching");
    // A newer version does not bind silently.
    desk.config.access.terms_version = 3;
    desk.webhook(WorkflowJob { run: RUN + 1, ..report(JOB + 1, "queued") });
    desk.found(facts());
    assert_eq!(desk.state(JOB + 1), "held");
}

#[test]
fn an_approver_needs_the_terms_as_everybody() {
    let mut desk = held();
    desk.config.access.terms_version = 1;
    let error = refused(desk.offer(judged(&sha("a"), true, by(MAINTAINER))));
    assert!(error.reason.evidence[0].contains("terms of service"), "{error}");
}

fn adopted(desk: &mut Desk) {
    let text = serde_json::to_string(&desk.config).unwrap();
    desk.give(Input::ConfigAdopted {
        text,
        started_by: "ops".to_owned(),
        repeats: None,
        changes: Vec::new(),
    });
}

/// Hole 15: revocation was another pull request, and live machines went on.
#[test]
fn hole_15_a_grant_that_is_taken_back_ends_what_it_opened() {
    let mut desk = Desk::new();
    adopted(&mut desk);
    for number in 0..3 {
        let labels = vec!["self-hosted".to_owned(), "gpu".to_owned()];
        desk.webhook(WorkflowJob { run: RUN + number, labels, ..report(JOB + number, "queued") });
        desk.found(facts());
    }
    let attempt = desk.registered(JOB, 71);
    desk.hook(attempt, taken(REPOSITORY, RUN, MAINTAINER));
    desk.in_progress(JOB, attempt);
    assert_eq!((desk.state(JOB), desk.state(JOB + 1)), ("running", "launching"));
    // The same configuration again changes nothing.
    let before = desk.farm.clone();
    adopted(&mut desk);
    assert!(desk.farm == before);
    desk.config.access.grants.clear();
    adopted(&mut desk);
    assert!(desk.launch(JOB).cancel_requested_at.is_some(), "the machine is asked to stop");
    let answer = registered(desk.runner_of(attempt)).taken.clone().unwrap().answer;
    assert!(!allows(&answer), "{answer:?}");
    assert_eq!((desk.state(JOB + 1), desk.state(JOB + 2)), ("refused", "refused"));
    assert_eq!(desk.farm.configs.len(), 2);
}

fn fork_event(head_sha: &str) -> ForgeEvent {
    ForgeEvent {
        repository: repository(REPOSITORY),
        trigger: Trigger::PullRequest {
            number: 7,
            base: "main".to_owned(),
            base_sha: sha("0"),
            head_repository: FORK,
            fork: true,
        },
        head_sha: head_sha.to_owned(),
        sender: person(STRANGER),
        author: Some(person(STRANGER)),
    }
}

fn opened(desk: &mut Desk, guid: &str, head_sha: &str) -> Option<forgeyard_model::PipelineId> {
    let guid = guid.to_owned();
    desk.give(Input::DeliveryReceived {
        guid: guid.clone(),
        event: "pull_request".to_owned(),
        body: Digest::of(b"body"),
    });
    match desk.give(Input::DeliveryRead {
        guid,
        meaning: Ok(Meaning::Work(Box::new(fork_event(head_sha)))),
        asked: false,
    }) {
        Reply::Pipeline { pipeline } => Some(pipeline),
        _ => None,
    }
}

#[test]
fn pipeline_of_a_stranger_is_held_and_begins_when_its_head_is_approved() {
    let mut desk = Desk::new();
    allow_forks(&mut desk);
    let pipeline = opened(&mut desk, "one", &sha("a")).expect("it is started, and held");
    let plan = |desk: &Desk| desk.farm.jobs_of(pipeline).next().unwrap().state.clone();
    assert!(format!("{:?}", plan(&desk)).contains("Approval"), "{:?}", plan(&desk));
    assert!(desk.outbox().is_empty(), "nothing is fetched for it");
    assert_eq!(opened(&mut desk, "two", &sha("a")), None, "the same head is not started twice");
    desk.give(judged(&sha("a"), true, by(MAINTAINER)));
    assert!(format!("{:?}", plan(&desk)).contains("Source"), "{:?}", plan(&desk));
    assert_eq!(desk.outbox().len(), 1);
    let row = &desk.farm.pipelines[&pipeline];
    assert_eq!((row.allowed_by.clone(), row.lane), (vec!["demo".to_owned()], forgeyard_model::Lane::ForkPr));
}

#[test]
fn pipeline_that_is_held_is_stopped_by_a_newer_head_and_by_a_refusal() {
    let mut desk = Desk::new();
    allow_forks(&mut desk);
    let first = opened(&mut desk, "one", &sha("a")).unwrap();
    let second = opened(&mut desk, "two", &sha("b")).unwrap();
    let state = |desk: &Desk, id| desk.farm.pipelines[&id].state.clone();
    assert!(matches!(state(&desk, first), PipelineState::Canceled { .. }), "{:?}", state(&desk, first));
    desk.give(judged(&sha("b"), false, by(MAINTAINER)));
    assert!(matches!(state(&desk, second), PipelineState::Canceled { .. }), "{:?}", state(&desk, second));
}

/// Hole 11: a job with the same labels took the machine that was made for another.
#[test]
fn hole_11_whoever_takes_the_machine_is_asked_about_before_its_first_step() {
    let mut desk = Desk::new();
    desk.webhook(report(JOB, "queued"));
    desk.found(facts());
    let attempt = desk.registered(JOB, 71);
    let thief = taken(REPOSITORY, RUN + 5, STRANGER);
    assert!(!allows(&desk.hook(attempt, thief.clone())), "nothing runs before it is known whose work it is");
    let stranger = Some(person(STRANGER));
    desk.found(RunFacts { actor: stranger.clone(), triggering_actor: stranger, ..facts() });
    let answer = desk.hook(attempt, thief);
    assert!(format!("{answer:?}").contains("gate.person_not_allowed"), "{answer:?}");
    assert!(matches!(desk.state(JOB), "wanted" | "launching"), "whoever was robbed is not forgotten");
}

/// Hole 12: nothing bounded how long a job kept a machine.
#[test]
fn hole_12_a_job_that_runs_longer_than_its_flavor_allows_is_ended() {
    let mut desk = Desk::new();
    desk.webhook(report(JOB, "queued"));
    desk.found(facts());
    let attempt = desk.registered(JOB, 71);
    desk.hook(attempt, taken(REPOSITORY, RUN, MAINTAINER));
    desk.in_progress(JOB, attempt);
    let deadline = desk.farm.attempts[&attempt].deadline.unwrap();
    let allowed = deadline.since(desk.now);
    assert!(allowed <= std::time::Duration::from_secs(6 * 3600 + 90), "{allowed:?}");
}
