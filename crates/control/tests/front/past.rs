//! What ended long ago: out of memory, and still told of.

use crate::plane::eventually;
use crate::world::World;
use forgeyard_engine::demand::past::KEPT;

#[tokio::test(flavor = "multi_thread")]
async fn demand_that_left_memory_is_still_explained_by_api_and_console_and_a_late_webhook_makes_no_new_one() {
    let mut world = World::new().await;
    let (_, jobs) = world.push(vec![world.job("build")]).await;
    let (machine, program) = world.listen().await;
    machine.work(&program).await;
    world.gone(machine.runner).await;
    let demand = world.until(jobs[0], "ended").await;
    let client = world.plane.client.clone();
    let before = client.demand(demand.id).await.unwrap();
    let launch = demand.launch.unwrap();
    // The webhook that told of the job, in case somebody sends it again.
    let body = world.plane.app.store.delivery_body(&first_delivery(&world)).await.unwrap().unwrap();
    world.twin.advance(KEPT + std::time::Duration::from_secs(60)).await;
    eventually("the demand leaves memory", || async {
        let farm = world.plane.app.core.read();
        (farm.demands.is_empty() && farm.jobs.is_empty() && farm.attempts.is_empty()).then_some(())
    })
    .await;
    let after = client.demand(demand.id).await.unwrap();
    assert_eq!(serde_json::to_value(after).unwrap(), serde_json::to_value(&before).unwrap());
    assert_eq!(client.demands_numbered(jobs[0]).await.unwrap(), std::slice::from_ref(&before.demand));
    let job = client.job(launch).await.unwrap();
    assert_eq!((job.demand.as_ref().map(|demand| demand.id), job.attempts.len()), (Some(demand.id), 1));
    client.why(launch).await.unwrap();
    let url = format!("{}/jobs/{launch}", world.plane.url);
    let page = world.plane.http.get(url).bearer_auth(&world.plane.token).header("accept", "text/html");
    let page = page.send().await.unwrap();
    assert_eq!(page.status(), 200);
    let told = world.plane.signed("a-late-one", "workflow_job", &body).await;
    assert_eq!(told.status, 202);
    eventually("the late webhook is read", || async {
        let delivery = client.deliveries().await.unwrap().into_iter().find(|one| one.guid == "a-late-one")?;
        format!("{delivery:?}").contains("demand.ended_before").then_some(())
    })
    .await;
    assert!(world.demand(jobs[0]).is_none());
    world.plane.stop().await;
}

fn first_delivery(world: &World) -> String {
    let farm = world.plane.app.core.read();
    let mut of_jobs: Vec<_> =
        farm.deliveries.values().filter(|one| one.event == "workflow_job").cloned().collect();
    of_jobs.sort_by_key(|one| one.received_at);
    of_jobs.remove(0).guid
}
