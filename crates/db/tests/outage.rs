//! PostgreSQL goes away and comes back, in order and by a crash; the store recovers without being opened again.

use forgeyard_db::testing::postgres;
use forgeyard_db::testing::samples::Samples;
use forgeyard_db::{Batch, Error, Keep, LogChunk};
use forgeyard_model::commit::Commit;
use forgeyard_model::{AttemptId, Digest, Timestamp};

fn batch(commit: Commit) -> Batch {
    Batch { epoch: 0, commits: vec![commit], bodies: Vec::new() }
}

#[tokio::test]
async fn lost_server_is_unavailable_and_comes_back_with_all_that_was_committed() {
    let Some(cluster) = postgres::cluster() else { return };
    let store = forgeyard_db::open(&cluster.url(), "/nowhere".as_ref()).await.unwrap();
    let mut samples = Samples::new();
    let start = Timestamp::from_micros(0);

    for crash in [false, true] {
        let rows = samples.farm();
        store.commit(&batch(samples.commit(rows))).await.unwrap();
        let before = store.load(Keep::since(start)).await.unwrap();
        if crash {
            cluster.kill().unwrap()
        } else {
            cluster.stop().unwrap()
        }

        let rows = samples.farm();
        let commit = samples.commit(rows);
        let attempt: AttemptId = samples.id();
        let chunk = LogChunk { offset: 0, len: 1, digest: Digest::of(b"a") };
        for error in [
            store.commit(&batch(commit.clone())).await.err(),
            store.load(Keep::since(start)).await.err(),
            store.ping().await.err(),
            store.log_append(attempt, chunk).await.err(),
            store.take_epoch("a", std::time::Duration::from_secs(1)).await.err(),
        ] {
            let error = error.expect("a call succeeded without a server");
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        }

        cluster.resume().unwrap();
        assert_eq!(store.load(Keep::since(start)).await.unwrap(), before);
        store.commit(&batch(commit)).await.unwrap();
    }
    store.close().await;
    assert!(matches!(store.ping().await, Err(Error::Unavailable { .. })));
    cluster.end().unwrap();
}

#[tokio::test]
async fn server_that_dies_under_load_keeps_every_answered_batch() {
    let Some(cluster) = postgres::cluster() else { return };
    let store = forgeyard_db::open(&cluster.url(), "/nowhere".as_ref()).await.unwrap();
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            let mut samples = Samples::new();
            let mut answered = 0;
            loop {
                let commit = samples.commit(vec![samples.clone().site().into()]);
                match store.commit(&batch(commit)).await {
                    Ok(()) => answered += 1,
                    Err(error) => return (answered, error),
                }
            }
        })
    };
    while store.load(Keep::since(Timestamp::from_micros(0))).await.unwrap().last_seq < 10 {
        tokio::task::yield_now().await;
    }
    let cluster = tokio::task::spawn_blocking(move || {
        cluster.kill().unwrap();
        cluster
    })
    .await
    .unwrap();
    let (answered, error) = writer.await.unwrap();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    cluster.resume().unwrap();
    let last = store.load(Keep::since(Timestamp::from_micros(0))).await.unwrap().last_seq;
    // The batch whose answer was lost may be there or not.
    assert!(last == answered || last == answered + 1, "{answered} answered, {last} stored");
    cluster.end().unwrap();
}
