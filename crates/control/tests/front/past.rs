//! What ended long ago: out of memory, and still told of.

use crate::plane::eventually;
use crate::world::World;
use forgeyard_db::{Batch, Keep};
use forgeyard_engine::demand::past::KEPT;
use forgeyard_model::commit::{Commit, Row};
use forgeyard_model::demand::Demand;
use forgeyard_model::input::{Input, JournalEntry};
use forgeyard_model::{Digest, Id, Timestamp};
use std::time::Duration;

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

/// Two weeks of a busy farm are hundreds of thousands of demands, of which memory wants those of a few hours.
#[tokio::test(flavor = "multi_thread")]
async fn restart_with_many_ended_demands_loads_the_recent_and_of_others_the_numbers() {
    let mut world = World::new().await;
    let (_, jobs) = world.push(vec![world.job("build")]).await;
    let (machine, program) = world.listen().await;
    machine.work(&program).await;
    world.gone(machine.runner).await;
    let recent = world.until(jobs[0], "ended").await;
    let body = world.plane.app.store.delivery_body(&first_delivery(&world)).await.unwrap().unwrap();
    let now = world.plane.app.clock.now();
    // Jobs of long ago: one of them has the number that a late webhook is about to tell of.
    let before =
        |span: Duration| Timestamp::from_micros(now.as_micros() - i64::try_from(span.as_micros()).unwrap());
    let olden = |number: u64, ended_at: Timestamp| Demand {
        id: Id::new(ended_at, u128::from(number)),
        job: number,
        launch: None,
        facts: None,
        ended_at: Some(ended_at),
        since: ended_at,
        generation: 1,
        ..recent.clone()
    };
    let late = 7_000_000_000;
    let mut rows: Vec<Row> =
        (0..500).map(|n| olden(late + n, before(KEPT + Duration::from_secs(60 + n * 600))).into()).collect();
    rows.push(olden(late + 1000, before(Duration::from_secs(15 * 24 * 3600))).into());
    rows.push(olden(late + 1001, before(KEPT - Duration::from_secs(600))).into());
    let world = world
        .restart_with(async move |setup| {
            let store = setup.open_store().await;
            let epoch = store.take_epoch("by hand", Duration::from_secs(60)).await.unwrap();
            let journal = JournalEntry {
                seq: store.load(Keep::since(now)).await.unwrap().last_seq + 1,
                at: now,
                entropy: "0".repeat(32),
                config: Digest::of(b""),
                by: forgeyard_control::core::farm(),
                input: Input::Ticked,
            };
            let commit = Commit { journal, rows, events: Vec::new(), usage: Vec::new(), retired: Vec::new() };
            let batch = Batch { epoch, commits: vec![commit], bodies: Vec::new() };
            store.commit(&batch).await.unwrap();
            store.release_epoch(epoch).await.unwrap();
            store.close().await;
        })
        .await;
    {
        let farm = world.plane.app.core.read();
        let mut loaded: Vec<u64> = farm.demands.values().map(|demand| demand.job).collect();
        loaded.sort_unstable();
        let mut wanted = vec![jobs[0], late + 1001];
        wanted.sort_unstable();
        assert_eq!(loaded, wanted);
        let known = |number: u64| farm.ended.has(&recent.repository.forge, number);
        assert!((0..500).all(|n| known(late + n)));
        assert!(!known(jobs[0]) && !known(late + 1001) && !known(late + 1000));
    }
    // A late word of one of them is understood, although its rows are not in memory.
    let told =
        String::from_utf8(body.to_vec()).unwrap().replace(&jobs[0].to_string(), &(late + 3).to_string());
    assert_eq!(world.plane.signed("a-late-one", "workflow_job", told.as_bytes()).await.status, 202);
    let client = world.plane.client.clone();
    eventually("the late webhook is read", || async {
        let delivery = client.deliveries().await.unwrap().into_iter().find(|one| one.guid == "a-late-one")?;
        format!("{delivery:?}").contains("demand.ended_before").then_some(())
    })
    .await;
    assert_eq!(client.demands_numbered(late + 3).await.unwrap().len(), 1, "the database has it");
    world.plane.stop().await;
}

fn first_delivery(world: &World) -> String {
    let farm = world.plane.app.core.read();
    let mut of_jobs: Vec<_> =
        farm.deliveries.values().filter(|one| one.event == "workflow_job").cloned().collect();
    of_jobs.sort_by_key(|one| one.received_at);
    of_jobs.remove(0).guid
}
