//! What goes between people and the farm: deliveries of webhooks, and check runs.

use super::world::{World, minutes, repository};
use forgeyard_forges::github::{CheckAction, CheckState, Conclusion, NewCheck};
use forgeyard_forges::twin::{HookFault, JobSpec, Trouble};
use forgeyard_model::Secret;

fn check(state: CheckState) -> NewCheck {
    NewCheck {
        name: "forgeyard".into(),
        head_sha: "5d1e0bc5a1d9a0f2f4c1f0c1d0e5a7b3c9d2e1f0".into(),
        external_id: Some("why".into()),
        details_url: Some("https://farm.example/why".into()),
        state,
        title: "waits for a GPU".into(),
        summary: "3rd in the queue".into(),
        text: None,
        actions: vec![CheckAction {
            label: "Approve".into(),
            description: "Let this commit run".into(),
            identifier: "approve".into(),
        }],
    }
}

#[tokio::test]
async fn a_check_run_is_changed_by_the_app_that_made_it() {
    let world = World::new().await;
    let second = world.second_app();
    let github = world.client_of(&[world.app, second]);
    let made = github.create_check(&repository(), &check(CheckState::Queued)).await.unwrap();
    assert_eq!(made.status, "queued");
    for _ in 0..3 {
        let state = CheckState::Completed(Conclusion::ActionRequired);
        let seen = github.update_check(&repository(), made.id, &check(state)).await.unwrap();
        assert_eq!((seen.id, seen.conclusion.as_deref()), (made.id, Some("action_required")));
    }
    let name = format!("installation:{}", world.installation);
    let by_first = world.twin.with(|state| {
        state.calls().filter(|call| call.request.path.contains("/check-runs")).all(|call| call.caller == name)
    });
    assert!(by_first);
}

#[tokio::test]
async fn failed_deliveries_are_found_page_by_page_and_sent_again_under_the_same_guid() {
    let world = World::new().await;
    world.twin.with(|state| {
        let app = state.app(world.app).unwrap().hook;
        // Nobody listens there.
        state.hook_mut(app).unwrap().url = Some("http://127.0.0.1:9/hook".into());
        state.hook_mut(app).unwrap().secret = Secret::new("s");
    });
    for _ in 0..130 {
        world.push(vec![JobSpec::new("build", &["gpu"])]);
    }
    world.twin.advance(minutes(1)).await;
    let github = world.client();
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let page = github.deliveries(0, cursor.as_deref()).await.unwrap();
        all.extend(page.deliveries);
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert!(all.len() >= 130, "{}", all.len());
    assert!(all.windows(2).all(|pair| pair[0].delivered_at >= pair[1].delivered_at), "newest first");
    let failed = all.iter().find(|one| one.event == "workflow_job" && !one.succeeded()).unwrap();
    let detail = github.delivery(0, failed.id).await.unwrap().unwrap();
    assert_eq!(detail.delivery.guid, failed.guid);
    assert_eq!(detail.request.payload["action"], "queued");
    github.redeliver(0, failed.id).await.unwrap();
    world.twin.advance(minutes(1)).await;
    let again = github.deliveries(0, None).await.unwrap().deliveries;
    let repeated = again.iter().find(|one| one.redelivery).unwrap();
    assert_eq!(repeated.guid, failed.guid);
    assert_eq!(github.delivery(0, 1).await.unwrap(), None);
}

#[tokio::test]
async fn a_delivery_that_arrived_counts_as_such() {
    let world = World::new().await;
    world.twin.with(|state| {
        let app = state.app(world.app).unwrap().hook;
        state.hook_mut(app).unwrap().url = Some("http://127.0.0.1:9/hook".into());
        state.plan_hook_fault(HookFault::next("workflow_job", "queued", Trouble::Failed(503)));
    });
    world.push(vec![JobSpec::new("build", &["gpu"])]);
    world.twin.advance(minutes(1)).await;
    let found = world.client().deliveries(0, None).await.unwrap().deliveries;
    let one = found.iter().find(|one| one.event == "workflow_job").unwrap();
    assert_eq!((one.status_code, one.succeeded()), (503, false));
}
