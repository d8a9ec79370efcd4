//! Deliveries that failed are asked for again: GitHub never does that by itself.
//!
//! One round walks back through the deliveries of an App to the last look, groups them by GUID, leaves groups with any
//! success alone, and those whose body is stored although GitHub did not hear of it, and asks for the newest of each other
//! one. The time of the last whole look is a setting; it moves on only when everything was asked for, so that a farm that
//! was away finds what it missed, as far back as GitHub remembers (3 days; 7 on an Enterprise Server).
//!
//! It repairs what *failed*. What was never sent stands in no list, and is found by polling.

use super::RoundError;
use crate::app::App;
use crate::forges::Connection;
use forgeyard_forges::github::{Delivery, GithubError};
use forgeyard_model::{Timestamp, delivery};
use futures::StreamExt as _;
use std::collections::BTreeMap;

/// Pages of 100 in one round, at most.
const PAGES: usize = 100;
/// Deliveries that are asked for at once.
const AT_ONCE: usize = 8;
/// How far back a farm looks that never looked before.
const FIRST: i64 = 3600 * 1_000_000;
/// How far looks overlap: a delivery is recorded a while after it was sent.
const OVERLAP: i64 = 60 * 1_000_000;
/// Events that the farm reads.
const EVENTS: [&str; 4] = ["workflow_job", "push", "pull_request", "check_run"];

/// Tries at delivering one event.
#[derive(Debug, Default)]
struct Group {
    taken: bool,
    /// It tells of a job that waits for a runner.
    urgent: bool,
    newest: Option<(Timestamp, u64)>,
}

/// A try that is to be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failed {
    id: u64,
    guid: String,
}

/// Looks for failed deliveries of the App at a place; answers how many were asked for again.
///
/// A call that fails takes nothing from the others: after an outage there are many, and a look that began anew with each
/// lost answer would never come to its end. What was found is asked for; the error is answered, and the time of the last
/// look stays, so that the next one finds the rest.
pub async fn round(app: &App, connection: &Connection, place: usize) -> Result<usize, RoundError> {
    let key = format!("redelivery/{}/{place}", connection.forge());
    let started = app.clock.now();
    let last = app.store.setting(&key).await?.and_then(|text| text.parse().ok());
    let since = last.unwrap_or_else(|| started.as_micros().saturating_sub(FIRST)).saturating_sub(OVERLAP);
    let (deliveries, mut trouble) = back_to(connection, place, Timestamp::from_micros(since)).await;
    let stored =
        |guid: &str| app.core.read().deliveries.contains_key(&delivery::key(connection.forge(), guid));
    let wanted = failed(&deliveries, stored);
    let asked = futures::stream::iter(wanted)
        .map(async |one: Failed| {
            // Before it is asked for: it may arrive before the answer does.
            app.sources.ask(delivery::key(connection.forge(), &one.guid), app.clock.now());
            connection.github().redeliver(place, one.id).await
        })
        .buffered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let mut count = 0;
    for answer in asked {
        match answer {
            Ok(()) => count += 1,
            Err(error) => trouble = Some(error),
        }
    }
    if count > 0 {
        tracing::info!(forge = %connection.forge(), count, "failed deliveries were asked for again");
        metrics::counter!("forgeyard_redeliveries_total").increment(count as u64);
    }
    if let Some(error) = trouble {
        return Err(error.into());
    }
    app.store.set_setting(&key, &started.as_micros().to_string()).await?;
    Ok(count)
}

/// Deliveries since a time, newest first, as far as they could be read, and what went wrong.
async fn back_to(
    connection: &Connection,
    place: usize,
    since: Timestamp,
) -> (Vec<Delivery>, Option<GithubError>) {
    let mut all = Vec::new();
    let mut cursor: Option<String> = None;
    for _ in 0..PAGES {
        let mut page = connection.github().deliveries(place, cursor.as_deref()).await;
        if page.as_ref().is_err_and(|error| !matches!(error, GithubError::Limited { .. })) {
            page = connection.github().deliveries(place, cursor.as_deref()).await;
        }
        let page = match page {
            Ok(page) => page,
            Err(error) => return (all, Some(error)),
        };
        let over = page.deliveries.last().is_none_or(|oldest| oldest.delivered_at < since);
        all.extend(page.deliveries.into_iter().filter(|delivery| delivery.delivered_at >= since));
        match page.next {
            Some(next) if !over => cursor = Some(next),
            _ => return (all, None),
        }
    }
    tracing::warn!(forge = %connection.forge(), pages = PAGES, "there are more deliveries than are looked through");
    (all, None)
}

/// The newest try of each event that no try brought here: queued jobs first, because GitHub lets an App ask for some 80 each
/// minute, then oldest first.
fn failed(deliveries: &[Delivery], stored: impl Fn(&str) -> bool) -> Vec<Failed> {
    let mut groups: BTreeMap<&str, Group> = BTreeMap::new();
    for delivery in deliveries.iter().filter(|delivery| EVENTS.contains(&delivery.event.as_str())) {
        let group = groups.entry(&delivery.guid).or_default();
        group.taken |= delivery.succeeded();
        group.urgent |= delivery.event == "workflow_job" && delivery.action.as_deref() == Some("queued");
        group.newest = group.newest.max(Some((delivery.delivered_at, delivery.id)));
    }
    let open = groups.iter().filter(|(guid, group)| !group.taken && !stored(guid));
    let mut newest: Vec<(bool, Timestamp, u64, &str)> = open
        .filter_map(|(guid, group)| group.newest.map(|(at, id)| (!group.urgent, at, id, *guid)))
        .collect();
    newest.sort_unstable();
    newest.into_iter().map(|(_, _, id, guid)| Failed { id, guid: guid.to_owned() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(id: u64, guid: &str, at: i64, status_code: u16) -> Delivery {
        Delivery {
            id,
            guid: guid.to_owned(),
            delivered_at: Timestamp::from_micros(at),
            redelivery: false,
            status: String::new(),
            status_code,
            event: "workflow_job".to_owned(),
            action: None,
            installation_id: None,
            repository_id: None,
        }
    }

    #[test]
    fn newest_try_of_each_event_that_never_arrived_is_asked_for_in_order() {
        let all = [
            delivery(6, "late", 9, 503),
            delivery(5, "twice", 8, 0),
            delivery(4, "healed", 7, 202),
            delivery(3, "stored", 6, 0),
            delivery(2, "twice", 3, 502),
            delivery(1, "healed", 2, 503),
            Delivery { event: "star".to_owned(), ..delivery(7, "star", 10, 500) },
        ];
        let found = failed(&all, |guid| guid == "stored");
        let found: Vec<(u64, &str)> = found.iter().map(|one| (one.id, one.guid.as_str())).collect();
        assert_eq!(found, [(5, "twice"), (6, "late")]);
    }

    #[test]
    fn jobs_that_wait_for_a_runner_are_asked_for_before_everything_else() {
        let queued = Delivery { action: Some("queued".to_owned()), ..delivery(3, "queued", 9, 503) };
        let over = Delivery { action: Some("completed".to_owned()), ..delivery(2, "over", 3, 503) };
        let found = failed(&[queued, over], |_| false);
        let found: Vec<u64> = found.iter().map(|one| one.id).collect();
        assert_eq!(found, [3, 2]);
    }
}
