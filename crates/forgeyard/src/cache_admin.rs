//! The build cache for the control plane's pages: asked over HTTP, as everybody asks it, with a token that is made for each
//! question in the name of the person who asks.

use crate::cache_address;
use crate::commands::cache::{Admin, claims};
use crate::config::CacheConfig;
use anyhow::Result;
use forgeyard_api::cache::{
    CacheBudget, CacheBudgetState, CacheEntries, CacheEntry, CacheMoment, CacheRemoval, CacheScope,
    CacheTraffic, CacheView, CacheWarm,
};
use forgeyard_cache::admin::{Page, Removed, Stat};
use forgeyard_cache::budget::{Report, Verdict};
use forgeyard_cache::figures::Counted;
use forgeyard_cache::token::{self, Access};
use forgeyard_cache::warm::{Line, Standing};
use forgeyard_control::cache_admin::{CacheAdmin, CacheError};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// A token for one question.
const LIFE: Duration = Duration::from_secs(60);

/// The cache of this farm.
pub struct AdminPort {
    data: PathBuf,
    address: String,
    /// The address for others.
    shown: String,
}

impl AdminPort {
    /// The cache that is configured so, beside this data.
    pub fn new(data: PathBuf, config: &CacheConfig) -> Result<Self> {
        let address = cache_address::of_this_host(config)?;
        let shown = if config.tls.is_some() { cache_address::of_jobs(config)? } else { address.clone() };
        Ok(Self { data, address, shown })
    }

    fn admin(&self, by: &str) -> Result<Admin> {
        let (claims, key) = claims(&self.data, "admin", by, Access::Admin, LIFE)?;
        Admin::new(&self.address, token::mint(&claims, &key)?, None)
    }

    async fn ask(
        &self,
        by: &str,
        method: reqwest::Method,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<String, CacheError> {
        let answer = async { self.admin(by)?.ask(method, path, query).await }.await;
        answer.map_err(|error: anyhow::Error| match error.downcast_ref::<crate::output::Wrong>() {
            Some(wrong) => CacheError::Refused(wrong.to_string()),
            None => CacheError::NoAnswer(format!("{error:#}")),
        })
    }
}

fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, CacheError> {
    serde_json::from_str(text)
        .map_err(|error| CacheError::Refused(format!("its answer is not understood: {error}")))
}

fn traffic(counted: Counted, all: &[Counted]) -> CacheTraffic {
    CacheTraffic {
        saved_millis: counted.saved_millis(all),
        client: counted.surface,
        hits: counted.hits,
        parent_hits: counted.parent_hits,
        misses: counted.misses,
        writes: counted.writes,
        denied: counted.denied,
        mismatches: counted.mismatches,
        malformed: counted.malformed,
        failures: counted.failures,
        spared: counted.spared,
        bytes_out: counted.bytes_out,
        bytes_in: counted.bytes_in,
        made: counted.made,
        made_millis: counted.made_millis,
    }
}

fn warm(line: Line) -> CacheWarm {
    let last_good = line.last_good();
    let (mut fetching, mut error, mut next) = (None, None, None);
    match line.standing {
        Standing::Fetching { done } => fetching = Some(done),
        Standing::Failing { error: why, next: when, .. } => (error, next) = (Some(why), Some(when)),
        Standing::Waiting | Standing::Fresh { .. } => {}
    }
    let Line { list, kind, path, source, bytes, .. } = line;
    CacheWarm { list, kind, path, source, bytes, fetching, last_good, error, next }
}

fn budget(report: Report) -> CacheBudget {
    let (state, cause) = match report.verdict {
        Verdict::Met => (CacheBudgetState::Met, None),
        Verdict::Undecided => (CacheBudgetState::Undecided, None),
        Verdict::Cold(cause) => (CacheBudgetState::Missed, Some(cause.as_str().to_owned())),
    };
    CacheBudget { state, cause, text: report.text }
}

/// All scopes that are known from anything, by name.
fn scopes(stat: &Stat, reports: Vec<Report>) -> Vec<CacheScope> {
    let mut scopes: BTreeMap<String, CacheScope> = BTreeMap::new();
    for held in &stat.scopes {
        let scope = scopes.entry(held.scope.clone()).or_default();
        (scope.entries, scope.bytes) = (held.entries, held.bytes);
    }
    for counted in &stat.traffic {
        scopes
            .entry(counted.scope.clone())
            .or_default()
            .traffic
            .push(traffic(counted.clone(), &stat.traffic));
    }
    for report in reports {
        let scope = scopes.entry(report.scope.clone()).or_default();
        scope.budget = Some(budget(report));
    }
    scopes.into_iter().map(|(name, scope)| CacheScope { scope: name, ..scope }).collect()
}

#[async_trait::async_trait]
impl CacheAdmin for AdminPort {
    async fn look(&self) -> Result<CacheView, CacheError> {
        let get = |path: &'static str| self.ask("console", reqwest::Method::GET, path, &[]);
        let stat: Stat = read(&get("stat").await?)?;
        let reports = get("check").await?.lines().map(read).collect::<Result<Vec<Report>, _>>()?;
        Ok(CacheView {
            address: self.shown.clone(),
            disk_bytes: stat.totals.disk_bytes,
            capacity_bytes: stat.capacity_bytes,
            entries: stat.totals.names,
            tail_idle_minutes: stat.totals.tail_idle_minutes,
            scopes: scopes(&stat, reports),
            day: stat
                .day
                .iter()
                .map(|it| CacheMoment { at: it.at, hits: it.hits, misses: it.misses, writes: it.writes })
                .collect(),
            price_per_cpu_hour: stat.price_per_cpu_hour,
            warm: stat.warm.into_iter().map(warm).collect(),
        })
    }

    async fn entries(&self, scope: &str, prefix: &str, most: usize) -> Result<CacheEntries, CacheError> {
        let most = most.to_string();
        let query = [("scope", scope), ("prefix", prefix), ("most", &most)];
        let page: Page = read(&self.ask("console", reqwest::Method::GET, "entries", &query).await?)?;
        let entries = page.entries.into_iter().map(|entry| CacheEntry {
            kind: entry.kind.as_str().to_owned(),
            key: entry.key,
            size: entry.size,
            stored_at: entry.stored_at,
            principal: entry.by.principal,
            run: entry.by.run,
            client: entry.by.client,
        });
        Ok(CacheEntries { scope: scope.to_owned(), entries: entries.collect(), of: page.of })
    }

    async fn remove(&self, by: &str, which: &CacheRemoval) -> Result<u64, CacheError> {
        let query = match which {
            CacheRemoval::Scope { scope, prefix } => vec![("scope", scope.as_str()), ("prefix", prefix)],
            CacheRemoval::Writer { writer } => vec![("writer", writer.as_str())],
        };
        let answer = self.ask(by, reqwest::Method::DELETE, "entries", &query).await?;
        read::<Removed>(&answer).map(|removed| removed.removed)
    }
}
