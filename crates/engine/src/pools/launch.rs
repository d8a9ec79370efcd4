//! How fast a pool starts machines, and when it stops starting them.
//!
//! Every machine, for a job or to wait for one, takes one launch from the bucket of its pool; the bucket refills with time.
//! A launch that did not come up for our own reason (not made, exited or vanished before its agent called, not heard of in
//! time) counts against the breaker; one that came up makes the count begin anew. When enough in a row did not, the pool
//! starts nothing for a pause that doubles each time; then one machine is the probe, and what becomes of it decides.
//! Where several sites could serve the pool, each has a breaker of its own, and the others go on.
//! What was launched before the breaker opened is left alone: it still counts as an error, but moves nothing.
//! A refusal that trying again would not change ([`known`]) opens it at once; one for a quota ends with the pause, or as soon
//! as a machine was given back.

use super::{known, record};
use crate::farm::Farm;
use crate::tx::Tx;
use forgeyard_model::input::{Refusal, RefusalKind, Reply};
use forgeyard_model::pool::{Breaker, Bucket, LaunchError, LaunchRate, PoolRecord};
use forgeyard_model::resources::Pool;
use forgeyard_model::runner::{Runner, RunnerWork};
use forgeyard_model::site::Site;
use forgeyard_model::{Explanation, PoolName, RunnerId, SiteId, Timestamp, deadline};

/// One launch, in thousandths.
const ONE: u64 = 1000;
const MINUTE: i64 = 60_000_000;

fn full(rate: LaunchRate) -> u64 {
    u64::from(rate.burst) * ONE
}

/// Launches that are left, in thousandths.
pub(crate) fn level(bucket: Option<Bucket>, rate: LaunchRate, now: Timestamp) -> u64 {
    let Some(bucket) = bucket else { return full(rate) };
    let passed = now.since(bucket.at).as_micros();
    let refilled =
        passed.saturating_mul(u128::from(rate.per_minute) * u128::from(ONE)) / MINUTE.unsigned_abs() as u128;
    bucket.millis.saturating_add(u64::try_from(refilled).unwrap_or(u64::MAX)).min(full(rate))
}

/// When there is a launch again.
fn refilled_at(level: u64, rate: LaunchRate, now: Timestamp) -> Timestamp {
    let missing = ONE.saturating_sub(level);
    let micros = (missing * MINUTE.unsigned_abs()).div_ceil(u64::from(rate.per_minute.max(1)) * ONE);
    now.plus(std::time::Duration::from_micros(micros))
}

/// Whether the breaker of a pool lets a machine be started now.
pub(crate) fn breaker_lets(record: Option<&PoolRecord>, now: Timestamp) -> Result<(), Explanation> {
    let Some(record) = record else { return Ok(()) };
    shut(&record.name, None, &record.breaker, record.last_error.as_ref(), now)
}

/// Whether its breaker at one site does.
pub(crate) fn site_lets(record: Option<&PoolRecord>, site: &Site, now: Timestamp) -> Result<(), Explanation> {
    let Some(record) = record else { return Ok(()) };
    let Some(there) = record.sites.get(&site.id) else { return Ok(()) };
    shut(&record.name, Some(site), &there.breaker, there.last_error.as_ref(), now)
}

/// Sites that could serve a pool: those whose host has its provider at work.
pub(crate) fn sites<'a>(farm: &'a Farm, pool: &Pool) -> impl Iterator<Item = &'a Site> {
    let provider = pool.provider.clone();
    farm.sites
        .values()
        .filter(move |site| site.host.as_ref().is_some_and(|host| host.providers.contains(&provider)))
}

/// Why a pool starts no machine anywhere, as far as breakers go.
pub(crate) fn stopped(farm: &Farm, pool: &Pool, now: Timestamp) -> Result<(), Explanation> {
    let record = farm.pools.get(&pool.name);
    breaker_lets(record, now)?;
    let mut shut = None;
    for site in sites(farm, pool) {
        match site_lets(record, site, now) {
            Ok(()) => return Ok(()),
            Err(reason) => shut = shut.or(Some(reason)),
        }
    }
    shut.map_or(Ok(()), Err)
}

fn shut(
    name: &PoolName,
    site: Option<&Site>,
    breaker: &Breaker,
    error: Option<&LaunchError>,
    now: Timestamp,
) -> Result<(), Explanation> {
    let at = site.map(|site| format!(" at site {}", site.name)).unwrap_or_default();
    let mut reason = match breaker {
        Breaker::Closed { .. } | Breaker::HalfOpen { .. } => return Ok(()),
        // The tick that moves it on may be late.
        Breaker::Open { until, .. } if *until <= now => return Ok(()),
        Breaker::Open { until, .. } if error.is_some_and(|error| error.reason.code == known::QUOTA) => {
            let said = error.map(|error| error.reason.message.clone()).unwrap_or_default();
            let text = format!(
                "pool {name} starts no machine{at} until a machine is given back, and until {until} at the latest: {said}"
            );
            Explanation::new("queue.quota", text)
        }
        Breaker::Open { until, .. } => Explanation::new(
            "queue.breaker_open",
            format!("pool {name} starts no machine{at} until {until}, because the last ones did not come up"),
        ),
        Breaker::Probing { runner, until, .. } => Explanation::new(
            "queue.breaker_probing",
            format!(
                "pool {name} waits to see whether {runner} comes up{at}, until {until} at the latest, before it starts others"
            ),
        ),
    };
    if let Some(error) = error {
        reason = reason.with(format!("{} at {}: {}", error.runner, error.at, error.reason.message));
        reason.evidence.extend(error.reason.evidence.iter().cloned());
    }
    let named = error.filter(|error| [known::QUOTA, known::FORBIDDEN].contains(&error.reason.code.as_str()));
    if let Some(fix) = named.and_then(|error| error.reason.fix.as_ref()) {
        return Err(reason.fix(format!("{fix}; `forgeyard pool reset {name}` tries again at once")));
    }
    Err(reason.fix(format!(
        "look at the host and at `forgeyard pool show {name}`; `forgeyard pool reset {name}` lets it start machines at once"
    )))
}

/// Whether a machine may be started in a pool now.
pub(crate) fn lets(record: Option<&PoolRecord>, pool: &Pool, now: Timestamp) -> Result<(), Explanation> {
    breaker_lets(record, now)?;
    let rate = pool.launches;
    let left = level(record.and_then(|record| record.bucket), rate, now);
    if left >= ONE {
        return Ok(());
    }
    // To the full minute, so that a long queue is not written anew with each launch.
    let next = refilled_at(left, rate, now).as_micros();
    let until = Timestamp::from_micros((next.div_euclid(MINUTE) + 1) * MINUTE);
    let text = format!(
        "pool {} has started {} machines in a row and starts {} more each minute; it goes on before {until}",
        pool.name, rate.burst, rate.per_minute
    );
    Err(Explanation::new("queue.launch_pace", text)
        .fix("raise `launches` of the pool in forgeyard.toml, if registries and hosts can bear it"))
}

/// A machine is started: it takes its launch, and after a pause it is the probe.
pub(crate) fn launched(tx: &mut Tx<'_>, pool: &Pool, runner: RunnerId, site: SiteId, used: bool) {
    let now = tx.now();
    let mut record = record(tx.farm(), &pool.name);
    let left = level(record.bucket, pool.launches, now);
    record.bucket = Some(Bucket { millis: left.saturating_sub(ONE), at: now });
    if used && pool.keep.is_some() {
        record.used_at = Some(now);
    }
    for slot in [None, Some(site)] {
        if let Some(Breaker::Open { trips, .. } | Breaker::HalfOpen { trips }) = breaker_at(&record, slot) {
            let probing =
                Breaker::Probing { runner, until: now.plus(deadline::BREAKER_PROBE), trips: *trips };
            turn(tx, &mut record, slot, probing, Some(runner.to_string()));
        }
    }
    tx.put(record);
}

/// The breaker of a pool, or of one of its sites.
fn breaker_at(record: &PoolRecord, slot: Option<SiteId>) -> Option<&Breaker> {
    match slot {
        None => Some(&record.breaker),
        Some(site) => record.sites.get(&site).map(|there| &there.breaker),
    }
}

/// Where a failure of a machine counts: at its site, when others could serve the pool as well, else for the whole pool.
fn slot_of(tx: &Tx<'_>, runner: &Runner) -> Option<SiteId> {
    let pool = tx.config().pool(&runner.pool)?;
    sites(tx.farm(), pool).any(|site| site.id != runner.site).then_some(runner.site)
}

/// Moves a breaker, and says so. Whoever calls puts the record.
fn turn(tx: &mut Tx<'_>, record: &mut PoolRecord, slot: Option<SiteId>, to: Breaker, note: Option<String>) {
    let from = breaker_at(record, slot).map_or("closed", Breaker::name);
    let event = match &to {
        Breaker::Closed { .. } => "PoolBreakerClosed",
        Breaker::Open { .. } => "PoolBreakerOpened",
        Breaker::HalfOpen { .. } => "PoolBreakerHalfOpened",
        Breaker::Probing { .. } => "PoolProbed",
    };
    let site = slot.and_then(|site| tx.farm().sites.get(&site)).map(|site| format!("site {}", site.name));
    let note = match (site, note) {
        (Some(site), Some(note)) => Some(format!("{site}: {note}")),
        (site, note) => site.or(note),
    };
    tx.event(event, &record.name, Some(from), to.name(), note);
    match slot {
        None => record.breaker = to,
        Some(site) => record.sites.entry(site).or_default().breaker = to,
    }
}

/// The agent of a machine called for the first time.
pub(crate) fn came_up(tx: &mut Tx<'_>, pool: &PoolName, runner: RunnerId) {
    let Some(mut record) = tx.farm().pools.get(pool).cloned() else { return };
    let site = tx.farm().runners.get(&runner).map(|runner| runner.site);
    let before = record.clone();
    for slot in std::iter::once(None).chain(site.map(Some)) {
        match breaker_at(&record, slot) {
            Some(Breaker::Probing { runner: probe, .. }) if *probe == runner => {
                turn(tx, &mut record, slot, Breaker::default(), Some(format!("{runner} came up")));
            }
            Some(Breaker::Closed { failures }) if *failures > 0 => match slot {
                None => record.breaker = Breaker::default(),
                Some(site) => record.sites.entry(site).or_default().breaker = Breaker::default(),
            },
            _ => {}
        }
    }
    if record != before {
        tx.put(record);
    }
}

/// A machine did not come up, and that is our own affair.
pub(crate) fn did_not_come_up(tx: &mut Tx<'_>, runner: &Runner, reason: Explanation) {
    let now = tx.now();
    let mut record = record(tx.farm(), &runner.pool);
    let named = known::cause(&reason);
    // Trying so often as the rule allows would only be more of the same.
    let at_once = named.is_some();
    let reason = named.unwrap_or(reason);
    let text = reason.message.clone();
    let slot = slot_of(tx, runner);
    let error = LaunchError { at: now, runner: runner.id, reason };
    if let Some(site) = slot {
        record.sites.entry(site).or_default().last_error = Some(error.clone());
    }
    record.last_error = Some(error);
    let limit = tx.config().pool(&runner.pool).map_or(1, |pool| pool.breaker.failures);
    // A probe is one of the breaker that sent it out, wherever sites came or went meanwhile.
    let probed = |slot: &Option<SiteId>| matches!(breaker_at(&record, *slot), Some(Breaker::Probing { runner: probe, .. }) if *probe == runner.id);
    let slot = [None, Some(runner.site)].into_iter().find(probed).unwrap_or(slot);
    let trips = match breaker_at(&record, slot).cloned().unwrap_or_default() {
        Breaker::Closed { failures } if at_once || failures + 1 >= limit => 1,
        Breaker::Closed { failures } => {
            let counted = Breaker::Closed { failures: failures + 1 };
            match slot {
                None => record.breaker = counted,
                Some(site) => record.sites.entry(site).or_default().breaker = counted,
            }
            return tx.put(record);
        }
        Breaker::Probing { runner: probe, trips, .. } if probe == runner.id => trips + 1,
        _ => return tx.put(record),
    };
    let until = now.plus(deadline::breaker_pause(trips));
    turn(tx, &mut record, slot, Breaker::Open { until, trips }, Some(text));
    tx.put(record);
}

/// A machine was given up before it came up, and nobody is to blame.
pub(crate) fn given_up(tx: &mut Tx<'_>, runner: &Runner) {
    let Some(mut record) = tx.farm().pools.get(&runner.pool).cloned() else { return };
    for slot in [None, Some(runner.site)] {
        if let Some(Breaker::Probing { runner: probe, trips, .. }) = breaker_at(&record, slot)
            && *probe == runner.id
        {
            let half = Breaker::HalfOpen { trips: *trips };
            turn(tx, &mut record, slot, half, Some("the probe was not needed any more".to_owned()));
            return tx.put(record);
        }
    }
}

/// A machine that was up is gone: whoever waits for a quota of its provider may try, with one machine first.
pub(crate) fn given_back(tx: &mut Tx<'_>, runner: &Runner) {
    let heard = match &runner.work {
        RunnerWork::Warm { nonce, .. } => nonce.is_some(),
        work => work
            .attempt()
            .and_then(|id| tx.farm().attempts.get(&id))
            .is_some_and(|attempt| attempt.heard_at.is_some()),
    };
    let Some(provider) = tx.config().pool(&runner.pool).map(|pool| pool.provider.clone()).filter(|_| heard)
    else {
        return;
    };
    let waits = |breaker: &Breaker, error: Option<&LaunchError>| {
        matches!(breaker, Breaker::Open { .. })
            && error.is_some_and(|error| error.reason.code == known::QUOTA)
    };
    let alike =
        |record: &&PoolRecord| tx.config().pool(&record.name).is_some_and(|pool| pool.provider == provider);
    let records: Vec<PoolRecord> = tx.farm().pools.values().filter(alike).cloned().collect();
    for mut record in records {
        for slot in [None, Some(runner.site)] {
            let error = match slot {
                None => record.last_error.as_ref(),
                Some(site) => record.sites.get(&site).and_then(|there| there.last_error.as_ref()),
            };
            let breaker = breaker_at(&record, slot).filter(|breaker| waits(breaker, error));
            if let Some(Breaker::Open { trips, .. }) = breaker {
                let half = Breaker::HalfOpen { trips: *trips };
                turn(tx, &mut record, slot, half, Some(format!("{} was given back", runner.id)));
                tx.put(record.clone());
            }
        }
    }
}

/// Pauses that are over, and probes of which nothing was heard.
pub(crate) fn ticked(tx: &mut Tx<'_>) {
    let now = tx.now();
    let due = |breaker: &Breaker| match breaker {
        Breaker::Open { until, .. } | Breaker::Probing { until, .. } => *until <= now,
        Breaker::Closed { .. } | Breaker::HalfOpen { .. } => false,
    };
    let any =
        |record: &&PoolRecord| due(&record.breaker) || record.sites.values().any(|there| due(&there.breaker));
    let records: Vec<PoolRecord> = tx.farm().pools.values().filter(any).cloned().collect();
    for mut record in records {
        let slots: Vec<Option<SiteId>> =
            std::iter::once(None).chain(record.sites.keys().copied().map(Some)).collect();
        for slot in slots {
            let Some(breaker) = breaker_at(&record, slot).filter(|it| due(it)).cloned() else { continue };
            match breaker {
                Breaker::Open { trips, .. } => turn(tx, &mut record, slot, Breaker::HalfOpen { trips }, None),
                Breaker::Probing { trips, .. } => {
                    let until = now.plus(deadline::breaker_pause(trips + 1));
                    let text = "nothing was heard of the probe".to_owned();
                    turn(tx, &mut record, slot, Breaker::Open { until, trips: trips + 1 }, Some(text));
                }
                Breaker::Closed { .. } | Breaker::HalfOpen { .. } => {}
            }
        }
        tx.put(record);
    }
}

/// An operator has the pool start machines again at once, with its whole burst.
pub(crate) fn reset(tx: &mut Tx<'_>, name: &PoolName) -> Result<Reply, Refusal> {
    configured(tx, name)?;
    let Some(mut record) = tx.farm().pools.get(name).cloned() else { return Ok(Reply::Unchanged) };
    if record.breaker == Breaker::default() && record.bucket.is_none() && record.sites.is_empty() {
        return Ok(Reply::Unchanged);
    }
    record.bucket = None;
    record.sites.clear();
    let by = format!("by {}", tx.ctx.by.name);
    turn(tx, &mut record, None, Breaker::default(), Some(by));
    tx.put(record);
    Ok(Reply::Done)
}

/// Refuses a pool that is not configured.
pub(crate) fn configured<'a>(tx: &Tx<'a>, name: &PoolName) -> Result<&'a Pool, Refusal> {
    tx.config().pool(name).ok_or_else(|| {
        let text = format!("no pool is called {name}");
        Refusal::new(RefusalKind::NotFound, "pool.not_found", text).fix("see `forgeyard pool list`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whoever takes whenever he may gets the burst and what the time refills, and never more.
        #[test]
        fn no_span_of_time_gives_more_than_burst_and_rate(
            burst in 1u32..50, per_minute in 1u32..600, waits in prop::collection::vec(0u64..20_000_000, 1..200)
        ) {
            let rate = LaunchRate { burst, per_minute };
            let begin = Timestamp::from_micros(1_700_000_000_000_000);
            let (mut now, mut bucket, mut taken) = (begin, None, 0u64);
            for wait in waits {
                now = now.plus(std::time::Duration::from_micros(wait));
                while level(bucket, rate, now) >= ONE {
                    bucket = Some(Bucket { millis: level(bucket, rate, now) - ONE, at: now });
                    taken += 1;
                }
                let minutes = now.since(begin).as_secs_f64() / 60.0;
                prop_assert!(taken as f64 <= f64::from(burst) + minutes * f64::from(per_minute) + 1e-6);
            }
            // What is said about the next one is so.
            let left = level(bucket, rate, now);
            let next = refilled_at(left, rate, now);
            prop_assert!(level(bucket, rate, next) >= ONE, "{left} at {now}, next {next}");
        }
    }

    #[test]
    fn pauses_double_up_to_half_an_hour() {
        let minutes: Vec<u64> = (1..=8).map(|trips| deadline::breaker_pause(trips).as_secs() / 60).collect();
        assert_eq!(minutes, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(deadline::breaker_pause(u32::MAX).as_secs(), 30 * 60);
    }
}
