//! A job of a *simulated* Forgejo gets a machine that is bound to it, from a real control plane.

use crate::lab::{Lab, REPOSITORY};
use crate::plane::{Answer, eventually, refused, webhook_secret};
use forgeyard_api::client::{Client, ClientError, HttpOptions};
use forgeyard_api::error::ErrorKind;
use forgeyard_api::people::{AccessQuestion, JudgeRequest, TokenRequest};
use forgeyard_forges::twin::ForgejoProgram;
use forgeyard_formats::webhook;
use forgeyard_model::Secret;
use forgeyard_model::access::{Decision, EventClass};
use forgeyard_model::approval::Way;
use forgeyard_model::principal::Role;
use forgeyard_model::who::ForgeId;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_forgejo_gets_a_machine_that_takes_it_and_no_other() {
    let mut lab = Lab::new().await;
    // A stranger's job beside it is refused, and one that no pool serves is none of ours.
    let (job, strangers) = lab.twin.with(|state| {
        state.start(&lab.ada, &["windows"], None);
        (state.start(&lab.ada, &["gpu"], None), state.start(&lab.eve, &["gpu"], None))
    });
    lab.round().await;
    lab.until(strangers, &["refused", "held"]).await;
    lab.until(job, &["launching"]).await;
    assert_eq!(lab.twin.with(|state| state.runners.len()), 0, "it registers only when the machine is up");
    let machine = lab.boot().await;
    let one = machine.handover().await;
    assert_eq!((one.url.as_str(), one.handle.is_some()), (lab.twin.base(), true));
    machine.begins().await;
    // An older job with the same label waits; the handle passes it by.
    let mut program = ForgejoProgram::new(one);
    let task = program.fetch().await.unwrap().unwrap();
    assert_eq!(lab.twin.with(|state| state.tasks[&task.id].job), job);
    let taker = lab.until(job, &["running"]).await.taken_by.unwrap();
    assert_eq!(taker.runner, Some(machine.runner), "the machine that has it is known");
    // Both jobs are of one commit: its one status says what is known of both, with the reason, and is not repeated.
    let told = eventually("the commit has a status", || async {
        lab.twin.with(|state| state.statuses.last().cloned())
    })
    .await;
    assert_eq!((told.0.as_str(), told.1.as_str()), ("a".repeat(40).as_str(), "forgeyard"));
    assert!(["pending", "failure"].contains(&told.2.as_str()), "{told:?}");
    assert!(told.3.contains("jobs") && told.3.chars().count() <= 255, "{told:?}");
    let texts: Vec<_> = lab.twin.with(|state| state.statuses.clone());
    assert!(texts.windows(2).all(|two| two[0] != two[1]), "{texts:?}");
    program.update(&task, "RESULT_SUCCESS").await.unwrap();
    let ended = lab.until(job, &["ended"]).await;
    assert_eq!(ended.conclusion.as_deref(), Some("success"));
    assert_eq!(lab.twin.with(|state| state.runners.len()), 0);
    lab.plane.stop().await;
}

/// Report 47. The *simulated* server does what a Gitea does: it assigns the task, the answer is lost, and the same request key
/// gets nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_a_gitea_lost_is_found_and_told_with_cause_and_fix_gitea_fetch_task() {
    let mut lab = Lab::new().await;
    lab.twin.with(|state| (state.honours_keys, state.lose_fetches) = (false, 1));
    let job = lab.twin.with(|state| state.start(&lab.ada, &["gpu"], None));
    lab.until(job, &["launching"]).await;
    let machine = lab.boot().await;
    let mut program = ForgejoProgram::new(machine.handover().await);
    machine.begins().await;
    assert!(program.fetch().await.is_err(), "the answer is lost");
    assert_eq!(program.fetch().await.unwrap(), None, "and the same key gets nothing");
    let taker = lab.until(job, &["running"]).await.taken_by.unwrap();
    assert_eq!(taker.runner, Some(machine.runner), "the forge calls it running on our machine");
    let attempt = machine.agent.session.attempt;
    let (client, session) = (&machine.agent.client, &machine.agent.session);
    let mut alone = 0;
    while lab.plane.app.core.read().attempts[&attempt].state.live() {
        assert!(alone < 300, "it is never found");
        lab.pass(30);
        alone += 30;
        lab.site.turn().await;
        let said = client.heartbeat_of_quiet(session, Some("runner"), Some(alone)).await;
        assert!(said.is_ok(), "{said:?}");
    }
    assert!(alone >= 180, "not before it is sure: {alone} seconds");
    let verdict = lab.plane.app.core.read().attempts[&attempt].verdict.clone().unwrap();
    assert_eq!(verdict.class.as_deref(), Some("runner.task_lost"));
    assert!(verdict.cause.contains("the answer with the task was lost"), "{verdict:?}");
    // Whoever asks why is told, with what to do about it.
    let launch = lab.demand(job).unwrap().launch.unwrap();
    let why = format!("{:?}", lab.plane.client.why(launch).await.unwrap());
    assert!(
        why.contains("the answer with the task was lost") && why.contains("run the job again at the forge"),
        "{why}"
    );
    // The forge gives up by itself. It cannot be asked to run one job again, and that is said as well.
    lab.twin.with(|state| state.end(job, "failure"));
    lab.until(job, &["ended"]).await;
    let mut told = String::new();
    for _ in 0..600 {
        lab.pass(40);
        lab.site.turn().await;
        told =
            lab.demand(job).and_then(|demand| demand.repeat).map(|repeat| repeat.text()).unwrap_or_default();
        if told.contains("no call") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(told.contains("the forge has no call that runs one job again"), "{told}");
    lab.plane.stop().await;
}

/// Webhooks only say that it is worth asking: the list is what is believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_rightly_signed_has_the_list_asked_for_at_once_and_is_not_believed() {
    let lab = Lab::silent().await;
    let listed = |lab: &Lab| lab.twin.with(|state| state.lists);
    eventually("the first list was asked for", || async { (listed(&lab) == 1).then_some(()) }).await;
    let job = lab.twin.with(|state| state.start(&lab.ada, &["gpu"], None));
    let body = serde_json::json!({
        "action": "queued",
        "workflow_job": { "id": 9999, "run_id": 1, "labels": ["gpu"], "head_sha": "b".repeat(40) },
        "repository": { "id": REPOSITORY, "full_name": "lab/solver" },
        "sender": { "id": lab.ada.id, "login": "ada" },
    });
    let body = body.to_string().into_bytes();
    let signature = webhook::sign(&webhook_secret(), &body).unwrap();
    let bare = signature.strip_prefix("sha256=").unwrap();
    let post = |guid: &str, event: &str, signature: &str| {
        let request = lab.plane.http.post(format!("{}/webhooks/lab", lab.plane.url));
        let request = request.header("x-gitea-event", event).header("x-gitea-delivery", guid);
        Answer::of(request.header("x-gitea-signature", signature).body(body.clone()))
    };
    assert_eq!(post("f-1", "workflow_job", &"0".repeat(64)).await.status, 401);
    assert_eq!(post("f-2", "workflow_job", &signature).await.status, 401);
    assert_eq!((listed(&lab), lab.state(job)), (1, None), "nobody asked");
    assert_eq!(post("f-3", "workflow_job", bare).await.status, 202);
    eventually("the list was asked for", || async { lab.state(job) }).await;
    {
        let farm = lab.plane.app.core.read();
        assert!(farm.demand_of(&lab.forge, 9999).is_none(), "what it says itself is not believed");
        let settled = format!("{:?}", farm.deliveries.values().next().unwrap().state);
        assert!(settled.contains("the list of jobs is asked for"), "{settled}");
    }
    lab.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_repositories_of_one_number_at_two_forges_are_never_taken_for_each_other() {
    let mut lab = Lab::with(|config| {
        let mut other = config.repositories[0].clone();
        (other.forge, other.name) = ("github".parse().unwrap(), "conda/feedstock".to_owned());
        config.repositories.push(other);
    })
    .await;
    let (job, strangers) =
        lab.twin.with(|state| (state.start(&lab.ada, &["gpu"], None), state.start(&lab.eve, &["gpu"], None)));
    lab.until(job, &["launching"]).await;
    let held = lab.until(strangers, &["held", "refused"]).await;
    let url = lab.plane.url.clone();
    let of = async |name: &str, repository: &str| {
        let repositories = [repository.parse::<ForgeId>().unwrap()].into_iter().collect();
        let request = TokenRequest {
            name: name.to_owned(),
            role: Role::Maintainer,
            expires_in_seconds: None,
            repositories,
        };
        let token = lab.plane.client.issue_token(&request).await.unwrap().token;
        Client::new(&url, Some(Secret::new(token)), &HttpOptions::default()).unwrap()
    };
    let (here, there, home) =
        (of("here", "lab:4711").await, of("there", "github:4711").await, of("home", "4711").await);
    let tokens = lab.plane.client.tokens().await.unwrap();
    let listed: Vec<String> =
        tokens.iter().flat_map(|token| token.repositories.iter().map(ToString::to_string)).collect();
    assert_eq!(listed, ["lab:4711", "github:4711", "lab:4711"], "a number alone is of the home forge of now");
    assert_eq!((here.queue().await.unwrap().len(), home.queue().await.unwrap().len()), (2, 2));
    assert_eq!(there.queue().await.unwrap().len(), 0);
    assert!(here.demand(held.id).await.is_ok());
    assert_eq!(refused(there.demand(held.id).await).kind, ErrorKind::Forbidden);
    let judge = JudgeRequest { head_sha: held.head_sha.clone(), reason: None, how: Way::Api };
    assert_eq!(refused(there.judge_demand(held.id, true, &judge).await).kind, ErrorKind::Forbidden);
    // The gate says of each what is so there.
    let ask = async |repository: &str| {
        let question = AccessQuestion {
            repository: repository.parse().unwrap(),
            person: lab.ada.id,
            event: EventClass::Push,
            resource: "local".to_owned(),
        };
        matches!(lab.plane.client.explain_access(&question).await.unwrap().decision, Decision::Allow { .. })
    };
    assert_eq!((ask("lab:4711").await, ask("github:4711").await, ask("4711").await), (true, false, true));
    lab.plane.stop().await;
}

/// The runner program of a Forgejo calls no hook. The handle binds the machine to its job, so the gate is asked before the
/// program begins, by what the forge says then.
#[tokio::test(flavor = "multi_thread")]
async fn second_gate_of_a_forgejo_refuses_before_the_program_begins_and_the_machine_goes() {
    let mut lab = Lab::new().await;
    let job = lab.twin.with(|state| state.start(&lab.ada, &["gpu"], None));
    lab.until(job, &["launching"]).await;
    let machine = lab.boot().await;
    let attempt = machine.agent.session.attempt;
    eventually("it is registered", || async {
        lab.twin.with(|state| state.runners.len() == 1).then_some(())
    })
    .await;
    // It was let in as the work of one person, and is that of another by the time it would run.
    lab.twin.with(|state| state.caused_by(job, &lab.eve));
    let error = eventually("it is refused", || async {
        match machine.agent.client.runner_config(&machine.agent.session, 5).await {
            Ok(answer) => panic!("it was handed over: {answer:?}"),
            Err(ClientError::Refused { error, .. }) if error.code == "registration.not_minted" => None,
            Err(ClientError::Refused { error, .. }) => Some(error),
            Err(error) => panic!("{error:?}"),
        }
    })
    .await;
    assert_eq!(error.code, "registration.refused");
    assert!(error.message.contains("no step of it does"), "{}", error.message);
    let verdict = lab.plane.app.core.read().attempts[&attempt].verdict.clone().unwrap();
    assert_eq!(verdict.class.as_deref(), Some("gate.refused_at_start"));
    // Nothing was fetched, nothing ran, the registration is forgotten, and the machine goes.
    assert!(lab.twin.with(|state| state.fetches.is_empty() && state.tasks.is_empty()));
    eventually("it is forgotten", || async { lab.twin.with(|state| state.runners.is_empty()).then_some(()) })
        .await;
    let mut wanted = 1;
    for _ in 0..600 {
        wanted = lab.site.turn().await.runners.len();
        if wanted == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(wanted, 0, "its machine stays");
    // Whoever waits is told by what the forge says now.
    let demand = lab.until(job, &["held", "refused"]).await;
    let reason = format!("{:?}", demand.reason());
    assert!(reason.contains("eve"), "{reason}");
    let said: Vec<String> =
        lab.plane.client.events(None).await.unwrap().into_iter().map(|event| event.name).collect();
    assert!(said.iter().any(|kind| kind == "HandoverRefused"), "{said:?}");
    lab.plane.stop().await;
}
