//! Logs: chunks that follow each other.

use crate::support::{Backend, Farm};
use forgeyard_db::{LogAppend, LogChunk, LogState};
use forgeyard_model::Digest;
use rstest::rstest;

fn chunk(offset: u64, len: u64) -> LogChunk {
    LogChunk { offset, len, digest: Digest::of(&offset.to_be_bytes()) }
}

#[rstest]
#[tokio::test]
async fn log_grows_only_where_it_ends(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let (attempt, other) = (farm.samples.id(), farm.samples.id());
    let store = &farm.store;
    assert_eq!(store.log_append(attempt, chunk(5, 5)).await.unwrap(), LogAppend::Gap { durable: 0 });
    assert_eq!(store.log_append(attempt, chunk(0, 10)).await.unwrap(), LogAppend::Appended);
    assert_eq!(store.log_append(attempt, chunk(0, 10)).await.unwrap(), LogAppend::AlreadyThere);
    assert_eq!(store.log_append(attempt, chunk(3, 4)).await.unwrap(), LogAppend::AlreadyThere);
    assert_eq!(store.log_append(attempt, chunk(5, 10)).await.unwrap(), LogAppend::Gap { durable: 10 });
    assert_eq!(store.log_append(attempt, chunk(11, 1)).await.unwrap(), LogAppend::Gap { durable: 10 });
    assert_eq!(store.log_append(attempt, chunk(10, 0)).await.unwrap(), LogAppend::AlreadyThere);
    assert_eq!(store.log_append(attempt, chunk(10, 7)).await.unwrap(), LogAppend::Appended);
    assert_eq!(store.log_append(other, chunk(0, 1)).await.unwrap(), LogAppend::Appended);

    assert_eq!(store.log_chunks(attempt).await.unwrap(), vec![chunk(0, 10), chunk(10, 7)]);
    assert_eq!(store.log_state(attempt).await.unwrap(), LogState { durable: 17, complete: false });
}

#[rstest]
#[tokio::test]
async fn complete_log_takes_no_more(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let (attempt, empty) = (farm.samples.id(), farm.samples.id());
    let store = &farm.store;
    store.log_append(attempt, chunk(0, 10)).await.unwrap();
    for _ in 0..2 {
        store.log_complete(attempt).await.unwrap();
        assert_eq!(store.log_append(attempt, chunk(10, 1)).await.unwrap(), LogAppend::Closed { durable: 10 });
        assert_eq!(store.log_append(attempt, chunk(0, 10)).await.unwrap(), LogAppend::AlreadyThere);
    }
    assert_eq!(store.log_state(attempt).await.unwrap(), LogState { durable: 10, complete: true });

    store.log_complete(empty).await.unwrap();
    assert_eq!(store.log_state(empty).await.unwrap(), LogState { durable: 0, complete: true });
    assert_eq!(store.log_append(empty, chunk(0, 1)).await.unwrap(), LogAppend::Closed { durable: 0 });
    assert_eq!(store.log_chunks(empty).await.unwrap(), vec![]);
}

#[rstest]
#[tokio::test]
async fn simultaneous_writers_of_one_log_leave_no_gap(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let attempt = farm.samples.id();
    // Two agents that each believe to be the one: both offer every chunk, and retry until theirs is there.
    let writer = |store: std::sync::Arc<dyn forgeyard_db::Store>| async move {
        let mut appended = 0;
        for number in 0..20 {
            loop {
                match store.log_append(attempt, chunk(number * 10, 10)).await.unwrap() {
                    LogAppend::Appended => {
                        appended += 1;
                        break;
                    }
                    LogAppend::AlreadyThere => break,
                    LogAppend::Gap { .. } => tokio::task::yield_now().await,
                    LogAppend::Closed { .. } => panic!("nobody closed it"),
                }
            }
        }
        appended
    };
    let (one, two) = tokio::join!(writer(farm.store.clone()), writer(farm.store.clone()));
    assert_eq!(one + two, 20);
    let wanted: Vec<_> = (0..20).map(|number| chunk(number * 10, 10)).collect();
    assert_eq!(farm.store.log_chunks(attempt).await.unwrap(), wanted);
}
