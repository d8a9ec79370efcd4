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
use forgeyard_forges::github::Delivery;
use forgeyard_model::{Timestamp, delivery};
use std::collections::BTreeMap;

/// Pages of 100 in one round, at most.
const PAGES: usize = 100;
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
    newest: Option<(Timestamp, u64)>,
}

/// Looks for failed deliveries of the App at a place; answers how many were asked for again.
pub async fn round(app: &App, connection: &Connection, place: usize) -> Result<usize, RoundError> {
    let key = format!("redelivery/{}/{place}", connection.forge());
    let started = app.clock.now();
    let last = app.store.setting(&key).await?.and_then(|text| text.parse().ok());
    let since = last.unwrap_or_else(|| started.as_micros().saturating_sub(FIRST)).saturating_sub(OVERLAP);
    let deliveries = back_to(connection, place, Timestamp::from_micros(since)).await?;
    let stored =
        |guid: &str| app.core.read().deliveries.contains_key(&delivery::key(connection.forge(), guid));
    let wanted = failed(&deliveries, stored);
    for id in &wanted {
        connection.github().redeliver(place, *id).await?;
    }
    if !wanted.is_empty() {
        tracing::info!(forge = %connection.forge(), count = wanted.len(), "failed deliveries were asked for again");
        metrics::counter!("forgeyard_redeliveries_total").increment(wanted.len() as u64);
    }
    app.store.set_setting(&key, &started.as_micros().to_string()).await?;
    Ok(wanted.len())
}

async fn back_to(
    connection: &Connection,
    place: usize,
    since: Timestamp,
) -> Result<Vec<Delivery>, RoundError> {
    let mut all = Vec::new();
    let mut cursor: Option<String> = None;
    for _ in 0..PAGES {
        let page = connection.github().deliveries(place, cursor.as_deref()).await?;
        let over = page.deliveries.last().is_none_or(|oldest| oldest.delivered_at < since);
        all.extend(page.deliveries.into_iter().filter(|delivery| delivery.delivered_at >= since));
        match page.next {
            Some(next) if !over => cursor = Some(next),
            _ => return Ok(all),
        }
    }
    tracing::warn!(forge = %connection.forge(), pages = PAGES, "there are more deliveries than are looked through");
    Ok(all)
}

/// The newest try of each event that no try brought here, oldest first.
fn failed(deliveries: &[Delivery], stored: impl Fn(&str) -> bool) -> Vec<u64> {
    let mut groups: BTreeMap<&str, Group> = BTreeMap::new();
    for delivery in deliveries.iter().filter(|delivery| EVENTS.contains(&delivery.event.as_str())) {
        let group = groups.entry(&delivery.guid).or_default();
        group.taken |= delivery.succeeded();
        group.newest = group.newest.max(Some((delivery.delivered_at, delivery.id)));
    }
    let open = groups.iter().filter(|(guid, group)| !group.taken && !stored(guid));
    let mut newest: Vec<(Timestamp, u64)> = open.filter_map(|(_, group)| group.newest).collect();
    newest.sort_unstable();
    newest.into_iter().map(|(_, id)| id).collect()
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
        assert_eq!(failed(&all, |guid| guid == "stored"), [5, 6]);
    }
}
