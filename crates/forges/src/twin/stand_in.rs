//! A stand-in for the runner program in simulated time, inside the state: no task, no process, no socket.
//!
//! It connects with its JIT configuration after its boot, takes the job that it is given, begins it under its own
//! name, works as long as the job says, ends it and exits. [`super::Runner`] does the same over HTTP.

use super::jobs::Conclusion;
use super::state::{State, Timer};
use std::collections::BTreeSet;
use std::time::Duration;

/// How a stand-in runner behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behaviour {
    /// Time from its start to its connection.
    pub boot: Duration,
    /// Time from being given a job to beginning it.
    pub pickup: Duration,
    /// How long it works; none means as long as the job says.
    pub work: Option<Duration>,
    /// How the work ends; none means as the job says.
    pub outcome: Option<Conclusion>,
    /// Whether it is too old: it exits with code 7 instead of connecting.
    pub too_old: bool,
    /// Whether it never connects.
    pub never_connects: bool,
    /// It falls silent after this much of the work (out of memory, power loss).
    pub dies_after: Option<Duration>,
    /// Whether its job-started hook asks somebody before the first step: it waits for [`State::answer_hook`].
    pub asks: bool,
    /// Without a job, it exits after this.
    pub idle_limit: Option<Duration>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            boot: Duration::from_secs(3),
            pickup: Duration::from_secs(1),
            work: None,
            outcome: None,
            too_old: false,
            never_connects: false,
            dies_after: None,
            asks: false,
            idle_limit: None,
        }
    }
}

/// Where a stand-in runner stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It boots.
    Booting,
    /// It is connected and waits for a job.
    Listening,
    /// It has a job that it has not begun.
    Given(u64),
    /// It has begun the job, and its job-started hook asks whether it may go on.
    Asking(u64),
    /// It works.
    Working(u64),
    /// It fell silent.
    Dead,
    /// It ended with this exit code: 0 after its job, 1 without one, 7 when it is too old.
    Exited(i32),
}

/// A stand-in runner.
#[derive(Debug, Clone)]
pub(super) struct StandIn {
    encoded: String,
    behaviour: Behaviour,
    phase: Phase,
    step: u64,
    runner: Option<u64>,
    canceled: bool,
}

impl State {
    /// Starts a stand-in runner on a JIT configuration; returns its number.
    pub fn start_stand_in(&mut self, encoded: &str, behaviour: Behaviour) -> u64 {
        let id = u64::try_from(self.stand_ins.len()).unwrap_or(0) + 1;
        let boot = behaviour.boot;
        let silent = behaviour.never_connects;
        let stand_in = StandIn {
            encoded: encoded.to_owned(),
            behaviour,
            phase: Phase::Booting,
            step: 0,
            runner: None,
            canceled: false,
        };
        self.stand_ins.insert(id, stand_in);
        if !silent {
            self.next_step(id, boot);
        }
        id
    }

    /// Where a stand-in runner stands.
    pub fn stand_in_phase(&self, id: u64) -> Option<&Phase> {
        self.stand_ins.get(&id).map(|stand_in| &stand_in.phase)
    }

    /// Ends the machine of a stand-in runner from outside, whatever it does.
    pub fn kill_stand_in(&mut self, id: u64) {
        let Some(stand_in) = self.stand_ins.get_mut(&id) else { return };
        if matches!(stand_in.phase, Phase::Exited(_)) {
            return;
        }
        stand_in.phase = Phase::Dead;
        stand_in.step += 1;
        self.stand_in_news.insert(id);
        if let Some(runner) = stand_in.runner {
            self.disconnect(runner);
        }
    }

    /// The machine of a stand-in runner loses its power: the forge does not hear of it.
    pub fn lose_power(&mut self, id: u64) {
        let Some(stand_in) = self.stand_ins.get_mut(&id) else { return };
        if matches!(stand_in.phase, Phase::Exited(_)) {
            return;
        }
        stand_in.phase = Phase::Dead;
        stand_in.step += 1;
        self.stand_in_news.insert(id);
        if let Some(runner) = stand_in.runner {
            self.fall_silent(runner);
        }
    }

    /// Stand-in runners whose phase changed since this was last asked.
    pub fn take_stand_in_news(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.stand_in_news)
    }

    fn next_step(&mut self, id: u64, wait: Duration) {
        if let Some(stand_in) = self.stand_ins.get_mut(&id) {
            stand_in.step += 1;
            let step = stand_in.step;
            self.after(wait, Timer::StandIn { id, step });
        }
    }

    fn enter(&mut self, id: u64, phase: Phase) {
        if let Some(stand_in) = self.stand_ins.get_mut(&id) {
            stand_in.phase = phase;
            self.stand_in_news.insert(id);
        }
    }

    pub(super) fn stand_in_step(&mut self, id: u64, step: u64) {
        let Some(stand_in) = self.stand_ins.get(&id).filter(|one| one.step == step).cloned() else { return };
        match stand_in.phase {
            Phase::Booting => self.stand_in_connects(id, &stand_in),
            Phase::Listening => {
                self.enter(id, Phase::Exited(1));
                if let Some(runner) = stand_in.runner {
                    self.disconnect(runner);
                }
            }
            Phase::Given(job) => self.stand_in_begins(id, &stand_in, job),
            Phase::Working(job) => self.stand_in_ends(id, &stand_in, job),
            Phase::Asking(_) | Phase::Dead | Phase::Exited(_) => {}
        }
    }

    fn stand_in_connects(&mut self, id: u64, stand_in: &StandIn) {
        if stand_in.behaviour.too_old {
            return self.enter(id, Phase::Exited(7));
        }
        // The row is marked first: connecting may hand out a job at once.
        let runner = match self.connect_quietly(&stand_in.encoded) {
            Ok(runner) => runner,
            Err(_) => return self.enter(id, Phase::Exited(1)),
        };
        if let Some(row) = self.runners.get_mut(&runner) {
            row.stand_in = Some(id);
        }
        if let Some(one) = self.stand_ins.get_mut(&id) {
            one.runner = Some(runner);
            one.phase = Phase::Listening;
        }
        if let Some(limit) = stand_in.behaviour.idle_limit {
            self.next_step(id, limit);
        }
    }

    fn stand_in_begins(&mut self, id: u64, stand_in: &StandIn, job: u64) {
        let Some(runner) = stand_in.runner else { return };
        if !self.begin_job(runner) {
            return self.enter(id, Phase::Listening);
        }
        if stand_in.behaviour.asks {
            return self.enter(id, Phase::Asking(job));
        }
        self.stand_in_works(id, stand_in, job);
    }

    /// Answers the job-started hook. Refused, the job fails and no step of it has run.
    pub fn answer_hook(&mut self, id: u64, allowed: bool) {
        let Some(stand_in) = self.stand_ins.get(&id).cloned() else { return };
        let Phase::Asking(job) = stand_in.phase else { return };
        if allowed {
            return self.stand_in_works(id, &stand_in, job);
        }
        self.enter(id, Phase::Exited(0));
        if let Some(runner) = stand_in.runner {
            self.end_job(runner, Conclusion::Failure);
        }
    }

    fn stand_in_works(&mut self, id: u64, stand_in: &StandIn, job: u64) {
        self.enter(id, Phase::Working(job));
        let own = self.jobs.get(&job).map_or(Duration::ZERO, |job| job.spec.duration);
        let work = stand_in.behaviour.work.unwrap_or(own);
        match stand_in.behaviour.dies_after {
            Some(early) if early <= work => self.next_step(id, early),
            _ => self.next_step(id, work),
        }
    }

    fn stand_in_ends(&mut self, id: u64, stand_in: &StandIn, job: u64) {
        let Some(runner) = stand_in.runner else { return };
        if stand_in.behaviour.dies_after.is_some() && !stand_in.canceled {
            self.enter(id, Phase::Dead);
            return self.disconnect(runner);
        }
        let own = self.jobs.get(&job).map_or(Conclusion::Success, |job| job.spec.outcome);
        let outcome =
            if stand_in.canceled { Conclusion::Cancelled } else { stand_in.behaviour.outcome.unwrap_or(own) };
        self.enter(id, Phase::Exited(0));
        self.end_job(runner, outcome);
    }

    pub(super) fn stand_in_got_job(&mut self, id: u64) {
        let Some(stand_in) = self.stand_ins.get_mut(&id).filter(|one| one.phase != Phase::Dead) else {
            return;
        };
        let job = stand_in.runner.and_then(|runner| self.runners.get(&runner)).and_then(|row| row.job);
        if let Some(job) = job {
            stand_in.phase = Phase::Given(job);
            self.stand_in_news.insert(id);
            let pickup = stand_in.behaviour.pickup;
            self.next_step(id, pickup);
        }
    }

    pub(super) fn stand_in_removed(&mut self, id: u64) {
        if let Some(stand_in) = self.stand_ins.get_mut(&id)
            && matches!(stand_in.phase, Phase::Listening)
        {
            stand_in.phase = Phase::Exited(1);
            stand_in.step += 1;
            self.stand_in_news.insert(id);
        }
    }

    pub(super) fn stand_in_told_to_cancel(&mut self, job: u64) {
        let runner = self.jobs.get(&job).and_then(|job| job.assigned);
        let id = runner.and_then(|runner| self.runners.get(&runner)).and_then(|row| row.stand_in);
        let Some(id) = id else { return };
        if let Some(stand_in) = self.stand_ins.get_mut(&id)
            && stand_in.phase == Phase::Working(job)
        {
            stand_in.canceled = true;
            self.next_step(id, Duration::from_secs(5));
        }
    }
}
