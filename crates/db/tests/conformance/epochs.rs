//! The lease that elects the one core.

use crate::support::{Backend, Farm};
use forgeyard_db::{Error, Keep};
use rstest::rstest;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(200);

#[rstest]
#[tokio::test]
async fn commit_of_an_old_epoch_is_refused_and_writes_nothing(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    farm.epoch = farm.store.take_epoch("a", LONG).await.unwrap();
    assert_eq!(farm.epoch, 1);
    let site = farm.samples.site();
    farm.write(vec![site.into()]).await.unwrap();

    // The same holder, restarted: it takes over from itself.
    assert_eq!(farm.store.take_epoch("a", LONG).await.unwrap(), 2);
    let site = farm.samples.site();
    let error = farm.refused(vec![site.into()]).await;
    assert!(matches!(error, Error::Superseded { epoch: 1, current: 2 }), "{error:?}");
    assert_eq!(farm.everything().await.len(), 1);
    assert_eq!(farm.store.journal(1, 10).await.unwrap().len(), 1);

    farm.epoch = 2;
    let site = farm.samples.site();
    farm.write(vec![site.into()]).await.unwrap();
    assert_eq!(farm.store.load(Keep::since(farm.samples.at())).await.unwrap().epoch, 2);
}

#[rstest]
#[tokio::test]
async fn lease_keeps_others_out_until_it_ends(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(farm) = Farm::open(backend).await else { return };
    let store = &farm.store;
    let epoch = store.take_epoch("a", SHORT).await.unwrap();
    store.renew_epoch(epoch, LONG).await.unwrap();
    match store.take_epoch("b", LONG).await.unwrap_err() {
        Error::Held { holder, remaining } => {
            assert_eq!(holder, "a");
            assert!(remaining > SHORT && remaining <= LONG, "{remaining:?}");
        }
        other => panic!("{other:?}"),
    }
    store.renew_epoch(epoch, SHORT).await.unwrap();
    farm.pass(SHORT * 2).await;
    let next = store.take_epoch("b", LONG).await.unwrap();
    assert_eq!(next, epoch + 1);
    let error = store.renew_epoch(epoch, LONG).await.unwrap_err();
    assert!(matches!(error, Error::Superseded { .. }), "{error:?}");
}

#[rstest]
#[tokio::test]
async fn released_lease_need_not_be_waited_for(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(farm) = Farm::open(backend).await else { return };
    let store = &farm.store;
    let epoch = store.take_epoch("a", LONG).await.unwrap();
    store.release_epoch(epoch).await.unwrap();
    assert_eq!(store.take_epoch("b", LONG).await.unwrap(), epoch + 1);
    assert!(matches!(store.release_epoch(epoch).await.unwrap_err(), Error::Superseded { .. }));
}
