//! Rows: round trips, generations, batches.

use crate::support::{Backend, Farm, next, sorted, standing};
use bytes::Bytes;
use forgeyard_db::testing::samples::AWKWARD;
use forgeyard_db::{Batch, Error, Keep};
use forgeyard_model::commit::Row;
use forgeyard_model::device::Device;
use forgeyard_model::job::Job;
use forgeyard_model::site::Site;
use rstest::rstest;

#[rstest]
#[tokio::test]
async fn every_kind_of_row_in_every_state_reads_back(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let mut written = Vec::new();
    let mut commits = Vec::new();
    // 55 turns show every state of the enums with up to 14 states.
    for _ in 0..55 {
        let rows = farm.samples.farm();
        written.extend(rows.clone());
        commits.push(farm.samples.commit(rows));
    }
    farm.commit(commits).await.unwrap();
    for row in &written {
        let stored = farm.store.row(row.kind(), &row.key()).await.unwrap();
        assert_eq!(stored.as_ref(), Some(row));
    }
    let states: std::collections::BTreeSet<&str> = written
        .iter()
        .filter_map(|row| match row {
            Row::Runner(runner) => Some(runner.state.name()),
            _ => None,
        })
        .collect();
    assert_eq!(states.len(), 12);
    assert_eq!(sorted(farm.everything().await), sorted(standing(written)));
}

#[rstest]
#[tokio::test]
async fn unknown_row_is_absent_and_unknown_kind_is_refused(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(farm) = Farm::open(backend).await else { return };
    assert_eq!(farm.store.row("job", "job_x").await.unwrap(), None);
    let error = farm.store.row("journal; drop table job", "x").await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    assert!(matches!(farm.store.list("event", None, 1).await.unwrap_err(), Error::Invalid { .. }));
}

#[rstest]
#[tokio::test]
async fn list_gives_newest_first_in_pages(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let sites: Vec<Site> = (0..7).map(|_| farm.samples.site()).collect();
    farm.write(sites.iter().cloned().map(Row::from).collect()).await.unwrap();
    let mut seen = Vec::new();
    let mut before: Option<String> = None;
    loop {
        let page = farm.store.list("site", before.as_deref(), 3).await.unwrap();
        assert!(page.len() <= 3);
        let Some(last) = page.last() else { break };
        before = Some(last.key());
        seen.extend(page);
    }
    let newest_first: Vec<Row> = sites.into_iter().rev().map(Row::from).collect();
    assert_eq!(seen, newest_first);
}

#[rstest]
#[tokio::test]
async fn stale_generation_is_a_conflict_that_names_the_row(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let site = farm.samples.site();
    farm.write(vec![site.clone().into()]).await.unwrap();
    let second = next!(site, |site: &mut Site| site.public_key = "second".to_owned());
    farm.write(vec![second.clone().into()]).await.unwrap();

    // The same step again, a step that skips one, a row that is not there, an insert of what is there.
    let skipping = next!(second, |site: &mut Site| site.generation += 1);
    let absent = next!(farm.samples.site(), |_: &mut Site| ());
    for row in [second.clone(), skipping, absent, site] {
        let key = row.id.to_string();
        match farm.refused(vec![row.into()]).await {
            Error::Conflict { kind: "site", key: named } => assert_eq!(named, key),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(farm.everything().await, vec![Row::from(second)]);
}

#[rstest]
#[tokio::test]
async fn one_bad_row_keeps_the_whole_batch_out(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let kept = farm.samples.farm();
    farm.write(kept.clone()).await.unwrap();
    let before = farm.samples.clone();

    let good = farm.samples.farm();
    let good_commit = farm.samples.commit(good.clone());
    let stale = next!(farm.samples.site(), |_: &mut Site| ());
    let bad_commit = farm.samples.commit(vec![stale.into()]);
    let delivery = good.iter().find(|row| row.kind() == "delivery").unwrap().key();
    let batch = Batch {
        epoch: 0,
        commits: vec![good_commit, bad_commit],
        bodies: vec![(delivery.clone(), Bytes::from_static(b"body"))],
    };
    assert!(matches!(farm.store.commit(&batch).await, Err(Error::Conflict { .. })));

    assert_eq!(sorted(farm.everything().await), sorted(kept));
    assert_eq!(farm.store.delivery_body(&delivery).await.unwrap(), None);
    assert_eq!(farm.store.journal(1, 10).await.unwrap().len(), 1);
    assert_eq!(farm.store.load(Keep::since(farm.samples.at())).await.unwrap().last_seq, 1);

    // The same positions of the journal are free for the next decision.
    farm.samples = before;
    farm.write(vec![farm.samples.clone().site().into()]).await.unwrap();
}

#[rstest]
#[tokio::test]
async fn row_written_several_times_in_a_batch_ends_as_last_written(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let site = farm.samples.site();
    let device = farm.samples.device(&site);
    let second = next!(device, |device: &mut Device| device.facts.driver = "2".to_owned());
    let third = next!(second, |device: &mut Device| device.facts.driver = "3".to_owned());
    let commits = vec![
        farm.samples.commit(vec![site.into(), device.into()]),
        farm.samples.commit(vec![second.into()]),
        farm.samples.commit(vec![third.clone().into()]),
    ];
    farm.commit(commits).await.unwrap();
    let key = third.id.to_string();
    assert_eq!(farm.store.row("device", &key).await.unwrap(), Some(third.clone().into()));
    assert_eq!(farm.store.journal(1, 10).await.unwrap().len(), 3);

    let fourth = next!(third, |_: &mut Device| ());
    let fifth = next!(fourth, |device: &mut Device| device.facts.driver = "5".to_owned());
    let sixth_for_fifth = next!(fifth, |_: &mut Device| ());
    let commits =
        vec![farm.samples.commit(vec![fourth.into()]), farm.samples.commit(vec![fifth.clone().into()])];
    farm.commit(commits).await.unwrap();
    assert_eq!(farm.store.row("device", &key).await.unwrap(), Some(fifth.clone().into()));

    // Versions that do not follow each other within the batch.
    let seventh = next!(sixth_for_fifth, |_: &mut Device| ());
    let error = farm.refused(vec![fifth.into(), seventh.into()]).await;
    assert!(matches!(error, Error::Conflict { kind: "device", .. }), "{error:?}");
}

#[rstest]
#[tokio::test]
async fn body_is_stored_with_its_delivery_and_the_first_one_stays(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let delivery = farm.samples.delivery();
    let guid = delivery.guid.clone();
    let raw: Vec<u8> = (0..=255).collect();
    let batch = Batch {
        epoch: 0,
        commits: vec![farm.samples.commit(vec![delivery.into()])],
        bodies: vec![(guid.clone(), Bytes::from(raw.clone()))],
    };
    farm.store.commit(&batch).await.unwrap();
    let again =
        Batch { epoch: 0, commits: Vec::new(), bodies: vec![(guid.clone(), Bytes::from_static(b"x"))] };
    farm.store.commit(&again).await.unwrap();
    assert_eq!(farm.store.delivery_body(&guid).await.unwrap(), Some(Bytes::from(raw)));
    assert_eq!(farm.store.delivery_body("another").await.unwrap(), None);
}

#[rstest]
#[tokio::test]
async fn awkward_text_in_queried_columns_is_harmless(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let delivery = farm.samples.delivery();
    let pipeline = farm.samples.pipeline(&delivery);
    let mut job: Job = farm.samples.job(&pipeline);
    job.key = AWKWARD.to_owned();
    farm.write(vec![delivery.into(), pipeline.into(), job.clone().into()]).await.unwrap();
    assert_eq!(farm.store.row("job", &job.id.to_string()).await.unwrap(), Some(job.into()));

    let mut delivery = farm.samples.delivery();
    delivery.guid = "zero\0byte".to_owned();
    let error = farm.refused(vec![delivery.into()]).await;
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
}

#[rstest]
#[tokio::test]
async fn settings_are_kept_and_replaced(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(farm) = Farm::open(backend).await else { return };
    assert_eq!(farm.store.setting("farm.key").await.unwrap(), None);
    farm.store.set_setting("farm.key", "one").await.unwrap();
    farm.store.set_setting("farm.key", "two").await.unwrap();
    assert_eq!(farm.store.setting("farm.key").await.unwrap().as_deref(), Some("two"));
    farm.store.ping().await.unwrap();
}

/// What is older than memory is found by the forge's number of the job, with all that belongs to it and nothing else.
#[rstest]
#[tokio::test]
async fn a_demand_is_found_by_its_job_at_the_forge_with_all_that_belongs_to_it(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let mut commits = Vec::new();
    let mut written = Vec::new();
    for _ in 0..8 {
        let rows = farm.samples.farm();
        written.extend(rows.clone());
        commits.push(farm.samples.commit(rows));
    }
    farm.commit(commits).await.unwrap();
    let demands: Vec<_> = written
        .iter()
        .filter_map(|row| match row {
            Row::Demand(demand) => Some(demand.clone()),
            _ => None,
        })
        .collect();
    assert!(demands.len() >= 8);
    let mut kinds = std::collections::BTreeSet::new();
    for demand in demands {
        let forge = &demand.repository.forge;
        let found = farm.store.demand_of(forge, demand.job).await.unwrap();
        assert_eq!(found, Some(Row::Demand(demand.clone())));
        assert_eq!(farm.store.demand_of(&"elsewhere".parse().unwrap(), demand.job).await.unwrap(), None);
        let attempts: Vec<_> = written
            .iter()
            .filter_map(|row| match row {
                Row::Attempt(attempt) if attempt.owner.demand() == Some(demand.id) => Some(attempt.id),
                _ => None,
            })
            .collect();
        let belongs = |row: &&Row| match row {
            Row::Demand(row) => row.id == demand.id,
            Row::Job(row) => row.owner.demand() == Some(demand.id),
            Row::Attempt(row) => row.owner.demand() == Some(demand.id),
            Row::Runner(row) => row.work.attempt().is_some_and(|attempt| attempts.contains(&attempt)),
            Row::Lease(row) => row.attempt.is_some_and(|attempt| attempts.contains(&attempt)),
            Row::Effect(row) => row.effect.demand() == Some(demand.id),
            _ => false,
        };
        let wanted: Vec<Row> = written.iter().filter(belongs).cloned().collect();
        let found = farm.store.of_demand(demand.id).await.unwrap();
        kinds.extend(found.iter().map(Row::kind));
        assert_eq!(sorted(found), sorted(wanted));
    }
    assert!(kinds.contains("job") && kinds.contains("effect"), "{kinds:?}");
}
