//! What those who look after the cache ask: figures, entries, removal. Needs a token with the access `admin`.
//!
//! ```text
//! GET    /-/admin/stat                          [`Stat`]
//! GET    /-/admin/check[?scope=S]               lines of [`Report`](crate::budget::Report), JSON; 404 without a budget
//! GET    /-/admin/entries?scope=S               lines of [`Listed`](crate::store::Listed), JSON
//! GET    /-/admin/entries?scope=S&prefix=P&most=N  {"of": n, "entries": […]}: the first N by kind and key
//! GET    /-/admin/readers?writer=W              lines of [`Reading`](crate::readers::Reading), JSON
//! GET    /-/admin/readers?scope=S[&prefix=P]    the same
//! DELETE /-/admin/entries?scope=S[&prefix=P]    {"removed": n}
//! DELETE /-/admin/entries?writer=W              {"removed": n}; W is a principal or a run
//! GET    /-/admin/warm                          lines of [`Line`](crate::warm::Line), JSON
//! POST   /-/admin/warm[?list=L]                 {"hurried": n}: looked at now, also what fails
//! POST   /-/admin/scrub                         {"read": n, "damaged": n}
//! ```

pub use crate::day::Moment;
use crate::exchange::caller;
use crate::figures::Counted;
use crate::http::{Head, Method};
use crate::name::NameHash;
use crate::service::Core;
use crate::store::shrink::ShrinkStat;
use crate::store::{Listed, ScopeUse, Store as _, StoreError, Totals, Which};
use crate::tier::TierStat;
use forgeyard_model::rules::Money;
use serde::{Deserialize, Serialize};
use std::sync::PoisonError;

/// Figures of the whole service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Stat {
    /// The store.
    pub totals: Totals,
    /// What each scope holds.
    pub scopes: Vec<ScopeUse>,
    /// Bytes that the store may take.
    #[serde(default)]
    pub capacity_bytes: u64,
    /// What happened since the start, for each scope and surface.
    pub traffic: Vec<Counted>,
    /// The last day.
    #[serde(default)]
    pub day: Vec<Moment>,
    /// The storage behind the disk, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierStat>,
    /// What was compressed at rest since the start.
    #[serde(default)]
    pub shrunk: ShrinkStat,
    /// What a CPU costs for an hour, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_cpu_hour: Option<Money>,
    /// What is fetched beforehand, and how it stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warm: Vec<crate::warm::Line>,
}

/// Some entries of a scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// How many there are.
    pub of: u64,
    /// The first of them.
    pub entries: Vec<Listed>,
}

/// How many entries were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// So many.
    pub removed: u64,
}

/// A parameter of a query, decoded.
pub(crate) fn parameter(query: &str, name: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    let mut bytes = Vec::new();
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
                bytes.push((digit()? * 16 + digit()?) as u8);
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// Answers a request to `/-/admin/`.
pub(crate) fn answer(core: &Core, head: &Head) -> (u16, String) {
    let caller = caller(core, head, (core.clock)());
    if !caller.admin() {
        return (403, "this needs a token with the access admin\n".to_owned());
    }
    let who = caller.claims.map(|claims| claims.principal).unwrap_or_default();
    match act(core, head, &who) {
        Ok(Some(text)) => (200, text),
        Ok(None) => (404, "no such request\n".to_owned()),
        Err(error) => {
            tracing::error!("a request of {who}: {error}");
            (503, format!("{error}\n"))
        }
    }
}

fn act(core: &Core, head: &Head, who: &str) -> Result<Option<String>, StoreError> {
    let path = head.path.trim_start_matches("/-/admin/");
    let scope = parameter(&head.query, "scope");
    let json = |value: serde_json::Result<String>| value.map(|text| text + "\n").unwrap_or_default();
    Ok(Some(match (head.method, path) {
        (Method::Get, "stat") => {
            let (totals, scopes) = (core.store.totals(), core.store.uses());
            crate::watch::note(core);
            let day = core.day.lock().unwrap_or_else(PoisonError::into_inner).moments();
            let (traffic, capacity_bytes) = (core.figures.all(), core.capacity);
            let tier = core.tier.as_ref().map(crate::tier::Tier::stat);
            let shrunk = core.store.shrunk();
            let warm = core.warm.get().map(crate::warm::Warm::lines).unwrap_or_default();
            let price_per_cpu_hour = core.price.get().copied();
            json(serde_json::to_string(&Stat {
                totals,
                scopes,
                capacity_bytes,
                traffic,
                day,
                tier,
                shrunk,
                price_per_cpu_hour,
                warm,
            }))
        }
        (Method::Get, "warm") => {
            let lines = core.warm.get().map(crate::warm::Warm::lines).unwrap_or_default();
            lines.iter().map(|line| json(serde_json::to_string(line))).collect()
        }
        (Method::Post, "warm") => {
            let list = parameter(&head.query, "list");
            let hurried = core.warm.get().map_or(0, |warm| warm.hurry(list.as_deref()));
            tracing::info!(who, hurried, "what is fetched beforehand is looked at now");
            format!("{{\"hurried\":{hurried}}}\n")
        }
        (Method::Get, "check") => {
            let reports = crate::watch::reports(core, scope.as_deref());
            if scope.is_some() && reports.is_empty() {
                return Ok(None);
            }
            reports.iter().map(|report| json(serde_json::to_string(report))).collect()
        }
        (Method::Get, "entries") if parameter(&head.query, "most").is_some() => {
            let Some(scope) = scope else { return Ok(None) };
            let prefix = parameter(&head.query, "prefix").unwrap_or_default();
            let most = parameter(&head.query, "most").and_then(|most| most.parse().ok()).unwrap_or(100);
            let mut entries = core.store.list(Some(&scope))?;
            entries.retain(|entry| entry.key.starts_with(&prefix));
            entries.sort_by(|a, b| (a.kind as u8, &a.key).cmp(&(b.kind as u8, &b.key)));
            let of = entries.len() as u64;
            entries.truncate(most);
            json(serde_json::to_string(&Page { of, entries }))
        }
        (Method::Get, "readers") => {
            let writer = parameter(&head.query, "writer").filter(|writer| !writer.is_empty());
            if writer.is_none() && scope.is_none() {
                return Ok(None);
            }
            let prefix = parameter(&head.query, "prefix").unwrap_or_default();
            let by = |entry: &Listed| {
                writer.as_ref().is_none_or(|writer| {
                    entry.by.principal == *writer || entry.by.run.as_ref() == Some(writer)
                })
            };
            let entries = core.store.list(scope.as_deref())?;
            let named = entries.iter().filter(|entry| by(entry) && entry.key.starts_with(&prefix));
            let names = named.map(|entry| NameHash::of(&entry.scope, entry.kind, &entry.key).0).collect();
            let readings =
                core.readers.of(&names).map_err(StoreError::io("reading who read what in", "readers"))?;
            readings.iter().map(|reading| json(serde_json::to_string(reading))).collect()
        }
        (Method::Get, "entries") => {
            let entries = core.store.list(scope.as_deref())?;
            entries.iter().map(|entry| json(serde_json::to_string(entry))).collect()
        }
        (Method::Delete, "entries") => {
            let which = match (parameter(&head.query, "writer"), scope) {
                (Some(writer), None) if !writer.is_empty() => Which::Writer(writer),
                (None, Some(scope)) => {
                    Which::Scope { scope, prefix: parameter(&head.query, "prefix").unwrap_or_default() }
                }
                _ => return Ok(None),
            };
            let removed = core.store.remove_all(&which)?;
            tracing::warn!(by = who, removed, "removed entries: {which:?}");
            json(serde_json::to_string(&Removed { removed }))
        }
        (Method::Post, "scrub") => {
            let (read, damaged) = core.store.scrub()?;
            format!("{{\"read\":{read},\"damaged\":{damaged}}}\n")
        }
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        assert_eq!(parameter("scope=a%2Fb&prefix=x+y", "scope").as_deref(), Some("a/b"));
        assert_eq!(parameter("scope=a%2Fb&prefix=x+y", "prefix").as_deref(), Some("x y"));
        assert_eq!(parameter("scope=%2", "scope"), None);
    }
}
