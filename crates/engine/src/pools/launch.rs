//! How fast a pool starts machines, and when it stops starting them.
//!
//! Every machine, for a job or to wait for one, takes one launch from the bucket of its pool; the bucket refills with time.
//! A launch that did not come up for our own reason (not made, exited or vanished before its agent called, not heard of in
//! time) counts against the breaker; one that came up makes the count begin anew. When enough in a row did not, the pool
//! starts nothing for a pause that doubles each time; then one machine is the probe, and what becomes of it decides.
//! What was launched before the breaker opened is left alone: it still counts as an error, but moves nothing.

use super::record;
use crate::tx::Tx;
use forgeyard_model::input::{Refusal, RefusalKind, Reply};
use forgeyard_model::pool::{Breaker, Bucket, LaunchError, LaunchRate, PoolRecord};
use forgeyard_model::resources::Pool;
use forgeyard_model::runner::Runner;
use forgeyard_model::{Explanation, PoolName, RunnerId, Timestamp, deadline};

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
    let name = &record.name;
    let mut reason = match &record.breaker {
        Breaker::Closed { .. } | Breaker::HalfOpen { .. } => return Ok(()),
        // The tick that moves it on may be late.
        Breaker::Open { until, .. } if *until <= now => return Ok(()),
        Breaker::Open { until, .. } => Explanation::new(
            "queue.breaker_open",
            format!("pool {name} starts no machine until {until}, because the last ones did not come up"),
        ),
        Breaker::Probing { runner, until, .. } => Explanation::new(
            "queue.breaker_probing",
            format!(
                "pool {name} waits to see whether {runner} comes up, until {until} at the latest, before it starts others"
            ),
        ),
    };
    if let Some(error) = &record.last_error {
        reason = reason.with(format!("{} at {}: {}", error.runner, error.at, error.reason.message));
        reason.evidence.extend(error.reason.evidence.iter().cloned());
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
pub(crate) fn launched(tx: &mut Tx<'_>, pool: &Pool, runner: RunnerId, used: bool) {
    let now = tx.now();
    let mut record = record(tx.farm(), &pool.name);
    let left = level(record.bucket, pool.launches, now);
    record.bucket = Some(Bucket { millis: left.saturating_sub(ONE), at: now });
    if used && pool.keep.is_some() {
        record.used_at = Some(now);
    }
    match record.breaker {
        Breaker::Open { trips, .. } | Breaker::HalfOpen { trips } => {
            let until = now.plus(deadline::BREAKER_PROBE);
            turn(tx, record, Breaker::Probing { runner, until, trips }, Some(runner.to_string()));
        }
        Breaker::Closed { .. } | Breaker::Probing { .. } => tx.put(record),
    }
}

fn turn(tx: &mut Tx<'_>, mut record: PoolRecord, to: Breaker, note: Option<String>) {
    let from = record.breaker.name();
    let event = match &to {
        Breaker::Closed { .. } => "PoolBreakerClosed",
        Breaker::Open { .. } => "PoolBreakerOpened",
        Breaker::HalfOpen { .. } => "PoolBreakerHalfOpened",
        Breaker::Probing { .. } => "PoolProbed",
    };
    tx.event(event, &record.name, Some(from), to.name(), note);
    record.breaker = to;
    tx.put(record);
}

/// The agent of a machine called for the first time.
pub(crate) fn came_up(tx: &mut Tx<'_>, pool: &PoolName, runner: RunnerId) {
    let Some(record) = tx.farm().pools.get(pool).cloned() else { return };
    match record.breaker {
        Breaker::Probing { runner: probe, .. } if probe == runner => {
            turn(tx, record, Breaker::default(), Some(format!("{runner} came up")));
        }
        Breaker::Closed { failures } if failures > 0 => {
            tx.put(PoolRecord { breaker: Breaker::default(), ..record });
        }
        _ => {}
    }
}

/// A machine did not come up, and that is our own affair.
pub(crate) fn did_not_come_up(tx: &mut Tx<'_>, runner: &Runner, reason: Explanation) {
    let now = tx.now();
    let mut record = record(tx.farm(), &runner.pool);
    let text = reason.message.clone();
    record.last_error = Some(LaunchError { at: now, runner: runner.id, reason });
    let limit = tx.config().pool(&runner.pool).map_or(1, |pool| pool.breaker.failures);
    let trips = match record.breaker {
        Breaker::Closed { failures } if failures + 1 >= limit => 1,
        Breaker::Closed { failures } => {
            record.breaker = Breaker::Closed { failures: failures + 1 };
            return tx.put(record);
        }
        Breaker::Probing { runner: probe, trips, .. } if probe == runner.id => trips + 1,
        _ => return tx.put(record),
    };
    let until = now.plus(deadline::breaker_pause(trips));
    turn(tx, record, Breaker::Open { until, trips }, Some(text));
}

/// A machine was given up before it came up, and nobody is to blame.
pub(crate) fn given_up(tx: &mut Tx<'_>, runner: &Runner) {
    let Some(record) = tx.farm().pools.get(&runner.pool).cloned() else { return };
    if let Breaker::Probing { runner: probe, trips, .. } = record.breaker
        && probe == runner.id
    {
        turn(tx, record, Breaker::HalfOpen { trips }, Some("the probe was not needed any more".to_owned()));
    }
}

/// Pauses that are over, and probes of which nothing was heard.
pub(crate) fn ticked(tx: &mut Tx<'_>) {
    let now = tx.now();
    let due = |record: &&PoolRecord| match record.breaker {
        Breaker::Open { until, .. } | Breaker::Probing { until, .. } => until <= now,
        Breaker::Closed { .. } | Breaker::HalfOpen { .. } => false,
    };
    let due: Vec<PoolRecord> = tx.farm().pools.values().filter(due).cloned().collect();
    for record in due {
        match record.breaker {
            Breaker::Open { trips, .. } => turn(tx, record, Breaker::HalfOpen { trips }, None),
            Breaker::Probing { trips, .. } => {
                let until = now.plus(deadline::breaker_pause(trips + 1));
                let text = "nothing was heard of the probe".to_owned();
                turn(tx, record, Breaker::Open { until, trips: trips + 1 }, Some(text));
            }
            Breaker::Closed { .. } | Breaker::HalfOpen { .. } => {}
        }
    }
}

/// An operator has the pool start machines again at once, with its whole burst.
pub(crate) fn reset(tx: &mut Tx<'_>, name: &PoolName) -> Result<Reply, Refusal> {
    known(tx, name)?;
    let Some(mut record) = tx.farm().pools.get(name).cloned() else { return Ok(Reply::Unchanged) };
    if record.breaker == Breaker::default() && record.bucket.is_none() {
        return Ok(Reply::Unchanged);
    }
    record.bucket = None;
    let by = format!("by {}", tx.ctx.by.name);
    turn(tx, record, Breaker::default(), Some(by));
    Ok(Reply::Done)
}

/// Refuses a pool that is not configured.
pub(crate) fn known<'a>(tx: &Tx<'a>, name: &PoolName) -> Result<&'a Pool, Refusal> {
    tx.config().pool(name).ok_or_else(|| {
        let text = format!("no pool is called {name}");
        Refusal::new(RefusalKind::NotFound, "pool.not_found", text).fix("see `forgeyard pool list`")
    })
}
