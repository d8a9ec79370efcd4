//! The database goes away, fills up or loses an answer. The faults are injected into the database's twin; everything
//! else is real but the site and the agents, which are *simulated*.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod plane;

use forgeyard_api::error::ErrorKind;
use forgeyard_db::twin::{Fault, Twin};
use forgeyard_model::delivery::DeliveryState;
use plane::repository::{Repository, push};
use plane::site::Site;
use plane::{Setup, chain, eventually, refused};
use std::sync::Arc;

/// A farm on the twin, with a plan job at work.
macro_rules! farm {
    ($twin:ident, $repository:ident, $setup:ident, $plane:ident, $site:ident) => {
        let $twin = Twin::new();
        let $repository = Repository::new();
        let mut $setup = Setup::on(Arc::new($twin.clone())).with_source(&$repository.source());
        let $plane = $setup.start().await;
        #[allow(unused_mut, reason = "not every test lets the site go on")]
        let mut $site = Site::join(&$plane).await;
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn database_that_is_away_is_said_in_time_and_nothing_acknowledged_is_lost() {
    farm!(twin, repository, setup, plane, site);
    let first = plane.begin("before", &repository.pushed(&repository.head())).await;
    let agent = chain::next_job(&plane, &mut site, &[]).await;
    let second = repository.commit("second");
    let hook = repository.pushed(&second);

    twin.inject(Fault::Gone);
    // a step that was not heard of before: a mere sign of life is written every eight seconds only
    let beat = agent.client.heartbeat(&agent.session, Some("the next"));
    let (answer, beat) = tokio::join!(plane.deliver("during", &hook), beat);
    assert_eq!((answer.status, answer.header("retry-after")), (503, "2"));
    assert_eq!(answer.error().kind, ErrorKind::Unavailable);
    assert_eq!(refused(beat).kind, ErrorKind::Unavailable);
    // What needs no database is still served from memory.
    assert_eq!(plane.client.pipeline(first).await.unwrap().pipeline.id, first);
    let health = plane::Answer::of(plane.http.get(format!("{}/healthz", plane.url))).await;
    assert_eq!(health.status, 503);

    twin.repair();
    eventually("the database is used again", || async {
        agent.client.heartbeat(&agent.session, Some("plan")).await.ok()
    })
    .await;
    assert_eq!(plane.deliver("during", &hook).await.status, 202);
    let DeliveryState::Started { pipeline } = plane.settled("during").await.state else {
        panic!("the redelivered webhook started nothing");
    };
    assert!(matches!(plane.delivery("before").await.unwrap().state, DeliveryState::Started { .. }));
    assert_eq!(plane.client.pipelines().await.unwrap().len(), 2);
    // The job that was at work goes on to its end.
    chain::succeed(&agent).await;
    assert_eq!(plane.client.pipeline(pipeline).await.unwrap().pipeline.event.head_sha, second);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_database_is_said_as_no_space_and_the_farm_goes_on_when_there_is_room() {
    farm!(twin, repository, setup, plane, site);
    let hook = repository.pushed(&repository.head());
    twin.inject(Fault::Full);
    let answer = plane.deliver("full", &hook).await;
    assert_eq!((answer.status, answer.error().code.as_str()), (507, "database.no_space"));
    assert!(answer.error().hint.is_some());
    let error = refused(site.report(&site.report_for(&site.desired().await.unwrap())).await);
    assert_eq!(error.kind, ErrorKind::NoSpace);
    assert_eq!(plane.delivery("full").await, None, "nothing of it was taken");
    twin.repair();
    plane.begin("full", &hook).await;
    chain::next_job(&plane, &mut site, &[]).await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_whose_answer_was_lost_is_not_stored_twice() {
    farm!(twin, repository, setup, plane, _site);
    for (guid, fault) in [("answer", Fault::AnswerLost), ("commit", Fault::CommitLost)] {
        twin.inject(fault);
        assert_eq!(plane.deliver(guid, &push(&"c".repeat(40))).await.status, 202, "{guid}");
        assert_eq!(plane.settled(guid).await.times, 1);
    }
    assert_eq!(plane.client.deliveries().await.unwrap().len(), 2);
    drop(repository);
    plane.stop().await;
}
