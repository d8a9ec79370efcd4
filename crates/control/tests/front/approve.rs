//! Approvals from end to end: the button of a check run, the API, and what the audit trail keeps of both.

use crate::plane::refused;
use crate::world::World;
use forgeyard_api::client::{Client, HttpOptions};
use forgeyard_api::people::{JudgeRequest, TokenRequest};
use forgeyard_control::demand::checks::Checks;
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
    checks.round(app, app.forges.of(&name("github")).unwrap()).await;
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
    assert_eq!(event.by.kind, PrincipalKind::Person { id: world.person.id });
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
