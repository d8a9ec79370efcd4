//! What is appended: journal, events, usage.

use crate::support::{Backend, Farm, constraint};
use forgeyard_db::EventQuery;
use forgeyard_db::testing::samples::AWKWARD;
use forgeyard_model::commit::{EventRecord, Row};
use forgeyard_model::forge::{Meaning, Repository};
use forgeyard_model::input::Input;
use forgeyard_model::{Digest, Explanation, Timestamp};
use rstest::rstest;

#[rstest]
#[tokio::test]
async fn journal_reads_back_in_order_from_any_position(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let repository = Repository { forge: "github".parse().unwrap(), id: u64::MAX, name: "o/r".to_owned() };
    let inputs = vec![
        Input::Ticked,
        Input::DeliveryReceived { guid: AWKWARD.to_owned(), event: "push".to_owned(), body: Digest::of(b"") },
        Input::DeliveryRead {
            guid: "g".to_owned(),
            meaning: Ok(Meaning::PullRequestClosed { repository, number: 1 }),
            asked: false,
        },
        Input::DeliveryRead {
            guid: "g".to_owned(),
            meaning: Err(Explanation::new("code", AWKWARD)),
            asked: false,
        },
        Input::CancelJob { job: farm.samples.id() },
    ];
    let mut written = Vec::new();
    for input in inputs {
        let mut commit = farm.samples.commit(Vec::new());
        commit.journal.input = input;
        written.push(commit);
    }
    farm.commit(written.clone()).await.unwrap();
    let entries: Vec<_> = written.into_iter().map(|commit| commit.journal).collect();
    assert_eq!(farm.store.journal(0, 100).await.unwrap(), entries);
    assert_eq!(farm.store.journal(2, 2).await.unwrap(), entries[1..3]);
    assert_eq!(farm.store.journal(6, 100).await.unwrap(), []);
}

#[rstest]
#[tokio::test]
async fn journal_has_no_position_twice_and_no_gap(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let first = farm.samples.commit(Vec::new());
    farm.commit(vec![first.clone()]).await.unwrap();
    // The batch whose answer was lost, offered again.
    assert_eq!(constraint(&farm.commit(vec![first]).await.unwrap_err()), "journal_seq_unique");

    let second = farm.samples.commit(Vec::new());
    let third = farm.samples.commit(Vec::new());
    let fourth = farm.samples.commit(Vec::new());
    let error = farm.commit(vec![third.clone()]).await.unwrap_err();
    assert_eq!(constraint(&error), "journal_seq_gapless");
    let error = farm.commit(vec![second.clone(), fourth]).await.unwrap_err();
    assert_eq!(constraint(&error), "journal_seq_gapless");
    farm.commit(vec![second, third]).await.unwrap();
}

#[rstest]
#[tokio::test]
async fn events_are_paged_newest_first_by_journal_order(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let mut written: Vec<EventRecord> = Vec::new();
    let sites: Vec<_> = (0..3).map(|_| farm.samples.site()).collect();
    let subject = sites[0].id.to_string();
    for turn in 1..=4 {
        let rows = sites
            .iter()
            .cloned()
            .map(|mut site| {
                site.generation = turn;
                Row::from(site)
            })
            .collect();
        let mut commit = farm.samples.commit(rows);
        // Ids that run backwards must not matter.
        commit.events.reverse();
        written.extend(commit.events.clone());
        farm.commit(vec![commit]).await.unwrap();
    }
    written.reverse();

    let page = |before, limit| EventQuery { subject: None, before, limit };
    let store = &farm.store;
    assert_eq!(store.events(page(None, 100)).await.unwrap(), written);
    let first = store.events(page(None, 5)).await.unwrap();
    assert_eq!(first, written[..5]);
    let second = store.events(page(Some(first[4].id), 5)).await.unwrap();
    assert_eq!(second, written[5..10]);
    assert_eq!(store.events(page(Some(written[11].id), 5)).await.unwrap(), []);
    assert_eq!(store.events(page(Some(farm.samples.clone().id()), 5)).await.unwrap(), []);

    let of_one: Vec<_> = written.iter().filter(|event| event.subject == subject).cloned().collect();
    let query = EventQuery { subject: Some(subject), before: None, limit: 3 };
    assert_eq!(store.events(query.clone()).await.unwrap(), of_one[..3]);
    let rest = EventQuery { before: Some(of_one[2].id), ..query };
    assert_eq!(store.events(rest).await.unwrap(), of_one[3..]);
}

#[rstest]
#[tokio::test]
async fn event_id_is_unique(#[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let site = farm.samples.site();
    let first = farm.samples.commit(vec![site.into()]);
    farm.commit(vec![first.clone()]).await.unwrap();
    let site = farm.samples.site();
    let mut second = farm.samples.commit(vec![site.into()]);
    second.events[0].id = first.events[0].id;
    assert_eq!(constraint(&farm.commit(vec![second]).await.unwrap_err()), "event_id_unique");
}

#[rstest]
#[tokio::test]
async fn usage_is_read_by_a_half_open_span_of_time(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let commits: Vec<_> = (0..5).map(|_| farm.samples.commit(Vec::new())).collect();
    farm.commit(commits.clone()).await.unwrap();
    let facts: Vec<_> = commits.iter().flat_map(|commit| commit.usage.clone()).collect();
    let (since, until) = (facts[1].at, facts[3].at);
    assert_eq!(farm.store.usage(since, until).await.unwrap(), facts[1..3]);
    let ever = (Timestamp::from_micros(i64::MIN), Timestamp::from_micros(i64::MAX));
    assert_eq!(farm.store.usage(ever.0, ever.1).await.unwrap(), facts);
}
