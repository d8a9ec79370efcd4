//! What is counted, for each scope and surface, and how it is shown to Prometheus.

use crate::store::{ScopeUse, Totals};
use crate::surface::Surface;
use forgeyard_model::rules::Money;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Counters of one scope on one surface.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads that found an entry in the own scope.
    pub hits: AtomicU64,
    /// Reads that found an entry in a parent.
    pub parent_hits: AtomicU64,
    /// Reads that found nothing.
    pub misses: AtomicU64,
    /// Entries stored.
    pub writes: AtomicU64,
    /// Writes of what was there already.
    pub repeats: AtomicU64,
    /// Writes of another content for a key in a trusted scope; the first content stayed.
    pub mismatches: AtomicU64,
    /// Writes that the caller may not do.
    pub denied: AtomicU64,
    /// Writes whose bytes were not what their protocol says.
    pub malformed: AtomicU64,
    /// Requests that the store failed.
    pub failures: AtomicU64,
    /// Hits of what the caller would have made otherwise.
    pub spared: AtomicU64,
    /// Misses that were followed by a write, see [`crate::making`].
    pub made: AtomicU64,
    /// Milliseconds between those misses and their writes, together.
    pub made_millis: AtomicU64,
    /// Bytes sent.
    pub bytes_out: AtomicU64,
    /// Bytes stored.
    pub bytes_in: AtomicU64,
}

/// A scope on a surface, counted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "as in Counters")]
pub struct Counted {
    pub scope: String,
    pub surface: String,
    pub hits: u64,
    pub parent_hits: u64,
    pub misses: u64,
    pub writes: u64,
    pub repeats: u64,
    pub mismatches: u64,
    pub denied: u64,
    pub malformed: u64,
    pub failures: u64,
    #[serde(default)]
    pub spared: u64,
    #[serde(default)]
    pub made: u64,
    #[serde(default)]
    pub made_millis: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
}

impl Counted {
    /// Milliseconds of work that hits saved: what was spared, times the mean time between a miss and its write. The mean is that
    /// of this client in this scope; where nothing was missed yet (a fork that only reads main), that of the client in all
    /// scopes. Nothing before there was such a miss. ccache asks twice for each compilation, for a manifest and for a result, so
    /// half of what it is spared counts.
    pub fn saved_millis(&self, all: &[Counted]) -> Option<u64> {
        let own = self.made_millis.checked_div(self.made);
        let mean = own.or_else(|| {
            let same = || all.iter().filter(|one| one.surface == self.surface);
            let (millis, made) = (same().map(|one| one.made_millis), same().map(|one| one.made));
            millis.fold(0, u64::saturating_add).checked_div(made.fold(0, u64::saturating_add))
        })?;
        if self.spared == 0 && self.made == 0 {
            return None;
        }
        let spared = if self.surface == Surface::Ccache.as_str() { self.spared / 2 } else { self.spared };
        Some(spared.saturating_mul(mean))
    }
}

/// What was saved, for Prometheus: time, and money where an hour has a price.
pub(crate) fn saved(all: &[Counted], price: Option<Money>) -> String {
    let mut text = String::from(
        "# HELP forgeyard_cache_saved_seconds_total Work that hits saved, estimated by how long making what was missing took.\n\
         # TYPE forgeyard_cache_saved_seconds_total counter\n",
    );
    let known = || all.iter().filter_map(|one| Some((&one.scope, &one.surface, one.saved_millis(all)?)));
    for (scope, surface, millis) in known() {
        let seconds = millis as f64 / 1000.0;
        let _ = writeln!(
            text,
            "forgeyard_cache_saved_seconds_total{{scope=\"{scope}\",surface=\"{surface}\"}} {seconds:.3}"
        );
    }
    let Some(price) = price else { return text };
    text.push_str(
        "# HELP forgeyard_cache_saved_money_total The same, at the price of a CPU for an hour.\n\
         # TYPE forgeyard_cache_saved_money_total counter\n",
    );
    for (scope, surface, millis) in known() {
        let money = price.for_millis(millis);
        let _ = writeln!(
            text,
            "forgeyard_cache_saved_money_total{{scope=\"{scope}\",surface=\"{surface}\"}} {money}"
        );
    }
    text
}

/// Name, help and value of a counter.
type Family = (&'static str, &'static str, fn(&Counted) -> u64);

/// All counters. Scopes beyond a limit are counted together, so that callers cannot fill the memory with names.
#[derive(Debug, Default)]
pub struct Figures {
    counters: Mutex<BTreeMap<(String, Surface), Arc<Counters>>>,
}

const MOST: usize = 10_000;

impl Figures {
    /// Counters of a scope on a surface.
    pub fn of(&self, scope: &str, surface: Surface) -> Arc<Counters> {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (scope.to_owned(), surface);
        if counters.len() >= MOST && !counters.contains_key(&key) {
            return Arc::clone(counters.entry(("(others)".to_owned(), surface)).or_default());
        }
        Arc::clone(counters.entry(key).or_default())
    }

    /// All of them.
    pub fn all(&self) -> Vec<Counted> {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = counters.iter().map(|((scope, surface), counters)| {
            let get = |counter: &AtomicU64| counter.load(Relaxed);
            Counted {
                scope: scope.clone(),
                surface: surface.as_str().to_owned(),
                hits: get(&counters.hits),
                parent_hits: get(&counters.parent_hits),
                misses: get(&counters.misses),
                writes: get(&counters.writes),
                repeats: get(&counters.repeats),
                mismatches: get(&counters.mismatches),
                denied: get(&counters.denied),
                malformed: get(&counters.malformed),
                failures: get(&counters.failures),
                spared: get(&counters.spared),
                made: get(&counters.made),
                made_millis: get(&counters.made_millis),
                bytes_out: get(&counters.bytes_out),
                bytes_in: get(&counters.bytes_in),
            }
        });
        counted.collect()
    }

    /// The text that Prometheus reads.
    pub fn prometheus(&self, totals: &Totals, uses: &[ScopeUse], damaged: u64, scrubbed: u64) -> String {
        let mut text = String::new();
        let all = self.all();
        let families: [Family; 14] = [
            ("hits_total", "Reads that found an entry in the own scope", |c| c.hits),
            ("parent_hits_total", "Reads that found an entry in a parent scope", |c| c.parent_hits),
            ("misses_total", "Reads that found nothing", |c| c.misses),
            ("writes_total", "Entries stored", |c| c.writes),
            ("repeats_total", "Writes of what was there already", |c| c.repeats),
            ("mismatches_total", "Other contents for keys of trusted scopes, refused", |c| c.mismatches),
            ("denied_total", "Writes by callers who may not", |c| c.denied),
            ("malformed_total", "Writes whose bytes were not what their protocol says", |c| c.malformed),
            ("failures_total", "Requests that the store failed", |c| c.failures),
            ("spared_total", "Hits of what would have been made otherwise", |c| c.spared),
            ("made_total", "Misses followed by a write of the same name", |c| c.made),
            ("made_milliseconds_total", "Time between those misses and their writes", |c| c.made_millis),
            ("sent_bytes_total", "Bytes sent", |c| c.bytes_out),
            ("stored_bytes_total", "Bytes stored", |c| c.bytes_in),
        ];
        for (name, help, value) in families {
            let _ = writeln!(
                text,
                "# HELP forgeyard_cache_{name} {help}.\n# TYPE forgeyard_cache_{name} counter"
            );
            for counted in &all {
                let (scope, surface) = (&counted.scope, &counted.surface);
                let value = value(counted);
                let _ = writeln!(
                    text,
                    "forgeyard_cache_{name}{{scope=\"{scope}\",surface=\"{surface}\"}} {value}"
                );
            }
        }
        let mut gauge = |name: &str, help: &str, lines: &[(String, u64)]| {
            let _ =
                writeln!(text, "# HELP forgeyard_cache_{name} {help}.\n# TYPE forgeyard_cache_{name} gauge");
            for (labels, value) in lines {
                let _ = writeln!(text, "forgeyard_cache_{name}{labels} {value}");
            }
        };
        let scoped = |value: fn(&ScopeUse) -> u64| -> Vec<(String, u64)> {
            uses.iter().map(|scope| (format!("{{scope=\"{}\"}}", scope.scope), value(scope))).collect()
        };
        let single = |value: u64| [(String::new(), value)];
        gauge("scope_entries", "Entries of a scope", &scoped(|scope| scope.entries));
        gauge("scope_bytes", "Bytes of a scope, shared ones in full", &scoped(|scope| scope.bytes));
        gauge("disk_bytes", "Bytes on disk", &single(totals.disk_bytes));
        let help = "Bytes more that would be on disk if nothing were compressed there";
        gauge("saved_bytes", help, &single(totals.saved_bytes));
        gauge("index_bytes", "Bytes of memory of the index", &single(totals.index_bytes));
        gauge("damaged_entries", "Entries that failed their checksum since the start", &single(damaged));
        gauge(
            "scrubbed_bytes",
            "Bytes that were read again in the background since the start",
            &single(scrubbed),
        );
        if let Some(minutes) = totals.tail_idle_minutes {
            let help = "Seconds since the segment that goes next was last written";
            gauge("tail_age_seconds", help, &single(u64::from(minutes) * 60));
        }
        text
    }
}
