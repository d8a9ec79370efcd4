//! When a job will probably start, and what that is said from.
//!
//! The queue is played forward in its order: each place that is in use becomes free at the predicted end of its attempt
//! ([`ends`](super::ledger::ends)), goes to the next job that waits for that kind of place, and stays with it for as long
//! as the same work usually took, else for its time limit. A kind of place is a pool, with or without devices, or a cap. What
//! will arrive meanwhile is not foreseen. Nothing is decided by this; it is read by people.

use super::{account_of, caps, ledger, order};
use crate::farm::Farm;
use crate::pools::canary;
use forgeyard_model::account::WorkClass;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::job::Job;
use forgeyard_model::{Explanation, JobId, PoolName, Timestamp};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// What is foreseen for a queued job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// Place in the queue, from 1.
    pub position: u32,
    /// Its class.
    pub class: WorkClass,
    /// When it will probably start, where that can be said.
    pub expected: Option<Timestamp>,
    /// What that is said from, or why it cannot be said.
    pub basis: String,
}

/// A farm, and what is foreseen for its queue.
pub struct Foresight<'a> {
    /// The farm.
    pub farm: &'a Farm,
    /// The configuration.
    pub config: &'a FarmConfig,
    of: BTreeMap<JobId, Outlook>,
}

/// A kind of place that becomes free.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind<'a> {
    Pool {
        pool: &'a PoolName,
        devices: bool,
    },
    /// Room under a cap: its code, and the message that names whose it is.
    Cap(&'a str, &'a str),
}

/// When places become free, and whether a history says so.
type Places = BinaryHeap<Reverse<(Timestamp, bool)>>;

impl<'a> Foresight<'a> {
    /// Plays the queue forward.
    pub fn new(farm: &'a Farm, config: &'a FarmConfig, now: Timestamp) -> Self {
        let mut places: BTreeMap<Kind<'_>, Places> = BTreeMap::new();
        let live = farm.index.live_attempts.iter().filter_map(|id| farm.attempts.get(id));
        for attempt in live {
            let (Some(stake), Some(free)) = (&attempt.stake, free(attempt, now)) else { continue };
            let kind = Kind::Pool { pool: &stake.pool, devices: stake.devices > 0 };
            let places = places.entry(kind).or_default();
            (0..stake.devices.max(1)).for_each(|_| places.push(Reverse(free)));
        }
        let mut of = BTreeMap::new();
        for (at, placed) in order::order(farm, config, now).into_iter().enumerate() {
            let Some(job) = farm.jobs.get(&placed.job) else { continue };
            let (expected, basis) = expected(farm, config, now, job, &mut places);
            let class = job.account.as_ref().map(|account| account.class).unwrap_or_default();
            let position = u32::try_from(at + 1).unwrap_or(u32::MAX);
            of.insert(job.id, Outlook { position, class, expected, basis });
        }
        Self { farm, config, of }
    }

    /// What is foreseen for a job.
    pub fn of(&self, job: JobId) -> Option<&Outlook> {
        self.of.get(&job)
    }

    /// Why a queued job waits, as things are now. The reason that is stored is the one that was found first.
    pub fn reason(&self, job: &Job) -> Option<Explanation> {
        let stored = job.waiting.clone()?;
        if !caps::is_cap(&stored.code) {
            return Some(stored);
        }
        let owner = || account_of(self.farm, job.owner);
        let account = job.account.clone().or_else(owner);
        let cap = caps::reached(self.farm, self.config, account.as_ref());
        Some(cap.map_or(stored, |cap| cap.explain(self.farm, self.config, account.as_ref())))
    }
}

/// When an attempt makes room, and whether its history says so.
fn free(attempt: &Attempt, now: Timestamp) -> Option<(Timestamp, bool)> {
    let end = ledger::ends(attempt, now)?;
    let stake = attempt.stake.as_ref()?;
    let known = stake.expected.map(|seconds| attempt.placed_at.plus(Duration::from_secs(seconds)));
    Some((end.max(now), known == Some(end)))
}

fn expected<'a>(
    farm: &'a Farm,
    config: &'a FarmConfig,
    now: Timestamp,
    job: &'a Job,
    places: &mut BTreeMap<Kind<'a>, Places>,
) -> (Option<Timestamp>, String) {
    let unknown = |text: &str| (None, format!("not known yet: {text}"));
    let Some(spec) = &job.spec else { return unknown("what it runs is not decided") };
    let Some(reason) = &job.waiting else {
        return (Some(now), "it was not looked at yet".to_owned());
    };
    let Some(flavor) = config.flavor(&spec.flavor) else { return unknown("its flavor is not configured") };
    let pools = canary::candidates(farm, config, job, flavor, spec, now);
    let gpu = |flavor: &'a forgeyard_model::resources::Flavor| match spec.forge_runner {
        Some(_) => flavor.gpu.as_ref(),
        None => spec.gpu.as_ref(),
    };
    let kind = match reason.code.as_str() {
        code if caps::is_cap(code) => {
            let kind = Kind::Cap(code, &reason.message);
            if !places.contains_key(&kind) {
                let of = caps::holders(farm, job.account.as_ref(), code);
                let live = of.into_iter().flatten().filter_map(|id| farm.attempts.get(id));
                places.insert(
                    Kind::Cap(code, &reason.message),
                    live.filter_map(|attempt| free(attempt, now)).map(Reverse).collect(),
                );
            }
            Some(kind)
        }
        "queue.device_busy" | "queue.host_full" | "queue.pool_full" | "queue.reserved" => {
            let kinds =
                pools.iter().map(|(pool, of)| Kind::Pool { pool: &pool.name, devices: gpu(of).is_some() });
            let with = kinds.filter_map(|kind| Some((places.get(&kind)?.peek()?.0, kind)));
            with.min_by_key(|(free, _)| *free).map(|(_, kind)| kind)
        }
        "queue.budget" => {
            return unknown(&format!(
                "it depends on what running work leaves of the budget; the month turns at {}",
                now.next_month()
            ));
        }
        "queue.launch_pace" | "queue.breaker_open" | "queue.breaker_probing" => {
            return unknown("its pool pauses before it makes machines; the reason says until when");
        }
        crate::demand::limits::WAITS | crate::demand::limits::PACE => {
            return unknown("its forge registers no runner now; the reason says until when");
        }
        _ => return unknown("it waits for something that does not come by waiting"),
    };
    let Some((kind, free)) = kind.and_then(|kind| places.get_mut(&kind).map(|places| (kind, places))) else {
        return unknown("nothing runs there whose end would make room");
    };
    let wanted = match &kind {
        Kind::Pool { devices: true, pool } => {
            let of = pools.iter().find(|(known, _)| known.name == **pool).map(|(_, flavor)| *flavor);
            of.and_then(gpu).map_or(1, |gpu| gpu.count.max(1))
        }
        _ => 1,
    };
    let (mut start, mut known) = (now, true);
    for _ in 0..wanted {
        let Some(Reverse((at, by_history))) = free.pop() else {
            return unknown("fewer devices than it needs will be free by themselves");
        };
        start = start.max(at);
        known &= by_history;
    }
    let usual = ledger::usual(farm, job, &flavor.name);
    let seconds = usual.unwrap_or_else(|| ledger::at_most(job.owner, flavor).as_secs());
    let end = start.plus(Duration::from_secs(seconds));
    (0..wanted).for_each(|_| free.push(Reverse((end, known && usual.is_some()))));
    let basis = if known {
        "by how long the work before it took the last times"
    } else {
        "at the latest: work before it has too short a history, so its time limit counts"
    };
    (Some(start), basis.to_owned())
}
