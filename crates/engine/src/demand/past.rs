//! Demands that ended leave the memory of the farm; the database keeps them.
//!
//! A demand that ended [`KEPT`] ago, and of which nothing lives (launches, attempts, machines, leases, effects), is taken out of
//! memory with all of that, a few with each tick. What stays is the number of its job ([`Ended`]): the forge may still speak of it,
//! late or twice, and such a word must neither make a new demand nor meet the constraint of the database.
//!
//! **Memory.** A live or lately ended demand costs some 10 KB with its rows. One that left costs its number, some 70 bytes, for as
//! long as [`GENERATION`] newer ones do not push it out; never more than two generations are kept, so at most some 30 MB. A restart
//! loads what memory would hold: demands that are not over or ended in the last hours, and of older ones the numbers. GitHub sends
//! nothing again that is older than 3 days (an Enterprise Server: 7), and its lists of runs that wait or run hold no job that is
//! over.

use crate::farm::{Entity, Farm};
use crate::tx::Tx;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::commit::Row;
use forgeyard_model::demand::{Demand, Repeat};
use forgeyard_model::effect::PendingEffect;
use forgeyard_model::job::Job;
use forgeyard_model::lease::Lease;
use forgeyard_model::runner::Runner;
use forgeyard_model::{DemandId, EffectId, ForgeName, JobId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a demand stays in memory after its end. Longer than an image rests whose runner program a forge refused.
pub const KEPT: Duration = Duration::from_secs(8 * 3600);

/// Demands that one tick takes out.
const AT_ONCE: usize = 500;

/// Numbers of one generation.
const GENERATION: usize = 200_000;

/// Numbers that a restart asks for, at most: all that memory ever holds.
pub const NUMBERS: u32 = 2 * GENERATION as u32;

/// Jobs of forges whose demands ended and left memory, in two generations.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ended {
    young: BTreeMap<ForgeName, BTreeSet<u64>>,
    old: BTreeMap<ForgeName, BTreeSet<u64>>,
    count: usize,
}

impl Ended {
    /// Whether a demand of this job ended and left.
    pub fn has(&self, forge: &ForgeName, job: u64) -> bool {
        [&self.young, &self.old].into_iter().any(|all| all.get(forge).is_some_and(|jobs| jobs.contains(&job)))
    }

    /// Notes a job whose demand ended, and is not in memory. The last one is remembered longest.
    pub fn add(&mut self, forge: &ForgeName, job: u64) {
        if self.count >= GENERATION {
            self.old = std::mem::take(&mut self.young);
            self.count = 0;
        }
        self.count += usize::from(self.young.entry(forge.clone()).or_default().insert(job));
    }
}

impl Farm {
    /// Takes an ended demand out, with everything that belongs to it. Answers the rows.
    pub fn retire(&mut self, id: DemandId) -> Vec<Row> {
        let Some(demand) = self.demands.get(&id).cloned() else { return Vec::new() };
        self.ended.add(&demand.repository.forge, demand.job);
        let mut rows = Vec::new();
        for job in self.jobs_of(id).cloned().collect::<Vec<Job>>() {
            for attempt in self.attempts_of(job.id).into_iter().cloned().collect::<Vec<Attempt>>() {
                self.out::<Runner>(&attempt.runner, &mut rows);
                attempt.lease.inspect(|lease| self.out::<Lease>(lease, &mut rows));
                self.out::<Attempt>(&attempt.id, &mut rows);
            }
            self.out::<Job>(&job.id, &mut rows);
        }
        let effects: Vec<EffectId> = self.index.effects_of.get(&id).into_iter().flatten().copied().collect();
        for effect in effects {
            self.out::<PendingEffect>(&effect, &mut rows);
        }
        self.out::<Demand>(&id, &mut rows);
        rows
    }

    fn out<E: Entity>(&mut self, key: &E::Key, rows: &mut Vec<Row>) {
        if let Some(row) = E::table(self).get(key).cloned() {
            self.displace::<E>(key);
            rows.push(row.into());
        }
    }
}

/// Takes out what ended long enough ago.
pub(crate) fn ticked(tx: &mut Tx<'_>) {
    let before = Timestamp::from_micros(tx.now().as_micros().saturating_sub(KEPT.as_micros() as i64));
    let farm = tx.farm();
    let due = farm.index.ended_demands.iter().take_while(|(at, _)| *at <= before).map(|(_, id)| *id);
    let due: Vec<DemandId> = due.filter(|id| rests(farm, *id, tx.now())).take(AT_ONCE).collect();
    for id in due {
        tx.retire(id);
    }
}

/// Whether nothing of a demand lives, and no other one needs what was launched for it.
fn rests(farm: &Farm, id: DemandId, now: Timestamp) -> bool {
    let effects = farm.index.effects_of.get(&id).into_iter().flatten().filter_map(|id| farm.effects.get(id));
    let needed = |job: JobId| {
        let all = farm.index.launch_for.get(&job).into_iter().flatten();
        all.filter_map(|id| farm.demands.get(id)).any(|demand| !demand.state.ended())
    };
    let attempt_rests = |attempt: &Attempt| {
        !attempt.state.live()
            && farm.runners.get(&attempt.runner).is_none_or(|runner| !runner.state.live())
            && attempt.lease.and_then(|lease| farm.leases.get(&lease)).is_none_or(|lease| !lease.state.live())
    };
    let repeated = match farm.demands.get(&id).and_then(|demand| demand.repeat.as_ref()) {
        Some(Repeat::Wanted { .. }) => false,
        // The jobs that take its place are asked about by its facts.
        Some(Repeat::Done { at }) => at.plus(KEPT) <= now,
        _ => true,
    };
    repeated
        && effects.into_iter().all(|effect| effect.done_at.is_some())
        && farm.jobs_of(id).all(|job| {
            job.state.ended() && !needed(job.id) && farm.attempts_of(job.id).into_iter().all(attempt_rests)
        })
}
