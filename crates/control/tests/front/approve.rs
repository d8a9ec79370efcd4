//! Approvals from end to end: the button of a check run, the API, and what the audit trail keeps of both.

use crate::plane::refused;
use crate::world::World;
use forgeyard_api::client::{Client, HttpOptions};
use forgeyard_api::people::{JudgeRequest, TokenRequest};
use forgeyard_control::demand::checks::{Board, Checks};
use forgeyard_forges::twin::{CheckRun, RunSpec};
use forgeyard_model::Secret;
use forgeyard_model::approval::Way;
use forgeyard_model::demand::Demand;
use forgeyard_model::forge::Person;
use forgeyard_model::principal::{PrincipalKind, Role};
use forgeyard_testkit::build::name;
use std::time::Duration;

/// A job of a stranger's fork, which waits for an approval.
async fn held(world: &World) -> (Person, Demand) {
    let (stranger, job) = world.twin.with(|state| {
        let stranger = state.add_user("stranger");
        let fork = state.add_fork(world.repository, &stranger);
        let sha = "c".repeat(40);
        let number = state.open_pull(world.repository, fork, "fix", &sha, &stranger);
        let run = state.start_run(RunSpec {
            event: "pull_request".to_owned(),
            head_branch: "fix".to_owned(),
            head_sha: sha,
            head_repository: fork,
            pull: Some(number),
            ..RunSpec::push(world.repository, &stranger, vec![world.job("build")])
        });
        (stranger, state.current_jobs(run)[0].id)
    });
    world.twin.advance(Duration::from_secs(2)).await;
    let demand = world.until(job, "held").await;
    (stranger, demand)
}

async fn tell(world: &World, checks: &mut Checks) -> CheckRun {
    let app = &world.plane.app;
    checks.round(app, Board::Checks(app.forges.of(&name("github")).unwrap())).await;
    world.twin.with(|state| state.check_runs().last().cloned().unwrap())
}

async fn token(world: &World, role: Role, repositories: &[u64]) -> Client {
    let request = TokenRequest {
        name: format!("{role}"),
        role,
        expires_in_seconds: None,
        repositories: repositories.iter().copied().collect(),
    };
    let token = world.plane.client.issue_token(&request).await.unwrap().token;
    Client::new(&world.plane.url, Some(Secret::new(token)), &HttpOptions::default()).unwrap()
}

fn looked_at(demand: &Demand) -> JudgeRequest {
    JudgeRequest { head_sha: demand.head().to_owned(), reason: None, how: Way::Cli }
}

#[tokio::test(flavor = "multi_thread")]
async fn button_of_a_check_run_lets_a_fork_run_when_a_maintainer_presses_it_and_tells_a_stranger_why_not() {
    let world = World::new().await;
    let (stranger, demand) = held(&world).await;
    let mut checks = Checks::default();
    let check = tell(&world, &mut checks).await;
    let buttons = check.fields["actions"].as_array().unwrap();
    assert_eq!(buttons[0]["label"], "Approve for GPU");
    let button = buttons[0]["identifier"].as_str().unwrap().to_owned();
    assert_eq!(check.fields["conclusion"], "action_required");

    // To run it again is no approval, and neither is a stranger's click.
    world.twin.with(|state| {
        state.rerequest_check(check.id, &world.person);
        state.request_check_action(check.id, &button, &stranger);
    });
    world.twin.advance(Duration::from_secs(2)).await;
    crate::plane::eventually("the click is answered", || async {
        world.plane.app.core.read().approvals.values().any(|row| row.turned_away.is_some()).then_some(())
    })
    .await;
    let told = tell(&world, &mut checks).await;
    assert_eq!(told.id, check.id);
    let summary = told.fields["output"]["summary"].as_str().unwrap();
    assert!(summary.contains("Not approved") && summary.contains("may not"), "{summary}");
    assert_eq!(world.demand(demand.job).unwrap().state.name(), "held");

    world.twin.with(|state| state.request_check_action(check.id, &button, &world.person));
    world.twin.advance(Duration::from_secs(2)).await;
    world.until(demand.job, "launching").await;
    let told = tell(&world, &mut checks).await;
    let summary = told.fields["output"]["summary"].as_str().unwrap();
    assert!(summary.contains("Approved") && told.fields["actions"] == serde_json::json!([]), "{told:?}");
    let events = world.plane.client.events(Some(&demand.id.to_string())).await.unwrap();
    let event = events.iter().find(|event| event.name == "HeadApproved").unwrap();
    assert_eq!(
        event.by.kind,
        PrincipalKind::Person { id: world.person.id, forge: Some("github".parse().unwrap()) }
    );
    assert!(event.note.as_ref().unwrap().contains("through the check run"), "{event:?}");
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_by_the_api_is_bound_to_role_repository_and_head() {
    let world = World::new().await;
    let stranger = world.twin.with(|state| state.add_user("stranger"));
    let job = world.twin.with(|state| {
        let run = state.start_run(RunSpec::push(world.repository, &stranger, vec![world.job("build")]));
        state.current_jobs(run)[0].id
    });
    world.twin.advance(Duration::from_secs(2)).await;
    let demand = world.until(job, "held").await;
    let viewer = token(&world, Role::Viewer, &[]).await;
    let error = refused(viewer.judge_demand(demand.id, true, &looked_at(&demand)).await);
    assert_eq!((error.code.as_str(), error.kind.status()), ("auth.role", 403));
    let elsewhere = token(&world, Role::Maintainer, &[world.repository + 1000]).await;
    let error = refused(elsewhere.judge_demand(demand.id, true, &looked_at(&demand)).await);
    assert_eq!(error.code, "auth.role", "a maintainer of another repository");
    assert_eq!(refused(elsewhere.demand(demand.id).await).code, "auth.role", "and sees nothing of it");
    assert_eq!(elsewhere.queue().await.unwrap().len(), 0);
    assert_eq!(refused(elsewhere.status().await).code, "auth.role", "nor of the whole farm");
    let maintainer = token(&world, Role::Maintainer, &[world.repository]).await;
    let other = JudgeRequest { head_sha: "d".repeat(40), ..looked_at(&demand) };
    assert_eq!(refused(maintainer.judge_demand(demand.id, true, &other).await).code, "approval.other_head");
    assert_eq!(maintainer.queue().await.unwrap()[0].approve_head.as_deref(), Some(demand.head()));
    maintainer.judge_demand(demand.id, true, &looked_at(&demand)).await.unwrap();
    world.until(job, "launching").await;
    let said = maintainer.approvals().await.unwrap();
    assert_eq!(said[0].judged.as_ref().unwrap().how, Way::Cli);
    assert_eq!(elsewhere.approvals().await.unwrap(), []);
    world.plane.stop().await;
}

/// The page asks the very function that API and command line ask, so that nobody is told two stories.
#[tokio::test(flavor = "multi_thread")]
async fn access_page_tells_the_same_as_access_explain() {
    let world = World::new().await;
    for (person, event) in [
        (world.person.id, forgeyard_model::access::EventClass::Push),
        (world.reader.id, forgeyard_model::access::EventClass::ForkPullRequest),
    ] {
        let question = forgeyard_api::people::AccessQuestion {
            repository: world.repository.into(),
            person,
            event,
            resource: "local".to_owned(),
        };
        let told = world.plane.client.explain_access(&question).await.unwrap();
        let spelled = serde_json::to_value(event).unwrap();
        let url = format!(
            "{}/access?repository={}&person={person}&event={}&resource=local",
            world.plane.url,
            world.repository,
            spelled.as_str().unwrap()
        );
        let asked = world.plane.http.get(url).bearer_auth(&world.plane.token).header("accept", "text/html");
        let page = asked.send().await.unwrap().text().await.unwrap();
        let page =
            page.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        let mut lines = told.approval.evidence.clone();
        lines.extend(told.approval.fix.clone());
        match told.decision {
            forgeyard_model::access::Decision::Allow { by, evidence, .. } => {
                lines.extend(by);
                lines.extend(evidence);
            }
            forgeyard_model::access::Decision::Deny { reason } => {
                lines.push(reason.message);
                lines.extend(reason.evidence);
                lines.extend(reason.fix);
            }
        }
        assert!(lines.len() > 3, "{lines:?}");
        for line in lines {
            assert!(page.contains(&line), "the page lacks: {line}");
        }
    }
    world.plane.stop().await;
}

/// Only the version that counts can be accepted, by the person or in writing through an admin; a token is nobody.
#[tokio::test(flavor = "multi_thread")]
async fn terms_are_accepted_by_a_person_and_by_version() {
    let world = World::with(crate::world::Plan { terms: 2, ..Default::default() }).await;
    let (_, jobs) = world.push(vec![world.job("build")]).await;
    let demand = world.until(jobs[0], "held").await;
    assert_eq!(demand.reason().unwrap().code, "gate.terms_not_accepted");
    let client = &world.plane.client;
    let request =
        |version, person| forgeyard_api::people::TermsRequest { version, person, forge: None, how: Way::Cli };
    assert_eq!(refused(client.accept_terms(&request(2, None)).await).code, "terms.nobody");
    assert_eq!(
        refused(client.accept_terms(&request(1, Some(world.person.id))).await).code,
        "terms.other_version"
    );
    let maintainer = token(&world, Role::Maintainer, &[]).await;
    let error = refused(maintainer.accept_terms(&request(2, Some(world.person.id))).await);
    assert_eq!(error.code, "auth.role", "for others only an admin speaks");
    client.accept_terms(&request(2, Some(world.person.id))).await.unwrap();
    world.until(jobs[0], "launching").await;
    world.plane.stop().await;
}

/// A restart under other rules ends what they no longer allow, and the history says under what the farm ran.
#[tokio::test(flavor = "multi_thread")]
async fn grant_that_is_taken_back_ends_its_machine_and_the_history_keeps_both_versions() {
    let mut world = World::new().await;
    let (_, jobs) = world.push(vec![world.job("build")]).await;
    let (machine, program) = world.listen().await;
    let job = machine.given(&program).await;
    machine.took(&job).await;
    program.begin().await.unwrap();
    world.twin.advance(Duration::from_secs(2)).await;
    world.until(jobs[0], "running").await;
    let first = world.plane.client.config_history().await.unwrap();
    assert_eq!((first.len(), first[0].number, first[0].repeats), (1, 1, None));

    let grants = std::mem::take(&mut world.setup.config.access.grants);
    let mut world = world.restart().await;
    let launch = world.demand(jobs[0]).unwrap().launch.unwrap();
    assert!(
        world.plane.app.core.read().jobs[&launch].cancel_requested_at.is_some(),
        "its agent is told to stop"
    );
    world.setup.config.access.grants = grants;
    let world = world.restart().await;
    let history = world.plane.client.config_history().await.unwrap();
    let told: Vec<_> = history.iter().map(|row| (row.number, row.repeats)).collect();
    assert_eq!(told, [(3, Some(1)), (2, None), (1, None)]);
    let text = world.plane.client.config_version(2).await.unwrap().text.unwrap();
    assert!(!text.contains("\"grants\": [\n      {"), "{text}");
    let viewer = token(&world, Role::Viewer, &[]).await;
    assert_eq!(refused(viewer.config_history().await).code, "auth.role");
    world.plane.stop().await;
}
