//! One run: a seed, a number of steps, a report.

use super::agent::Agent;
use super::control::{Control, Fate};
use super::invariants::Depth;
use super::site::Site;
use super::{Bug, invariants};
use crate::build;
use crate::rng::Rng;
use forgeyard_engine::decide::decide;
use forgeyard_engine::{Ctx, Farm};
use forgeyard_model::Digest;
use forgeyard_model::forge::{ForgeEvent, Meaning, Trigger};
use forgeyard_model::input::Input;
use forgeyard_model::lease::LeaseState;
use forgeyard_model::runner::{Runner, RunnerWork};
use std::collections::BTreeMap;
use std::time::Duration;

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The seed: one seed, one run.
    pub seed: u64,
    /// Steps with faults, before the farm comes to rest.
    pub steps: u64,
    /// A planted bug.
    pub bug: Option<Bug>,
}

/// What was seen.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Steps taken.
    pub steps: u64,
    /// Decisions stored.
    pub decisions: u64,
    /// Pipelines started.
    pub pipelines: usize,
    /// Attempts made.
    pub attempts: usize,
    /// Leases claimed.
    pub leases: usize,
    /// Crashes of the control plane.
    pub crashes: u64,
    /// Packages published.
    pub published: usize,
    /// Machines that waited and were given an attempt.
    pub handed: usize,
    /// The broken invariant: step and text.
    pub broken: Option<(u64, String)>,
}

struct Run {
    rng: Rng,
    control: Control,
    site: Site,
    /// Webhooks on their way; repeated and reordered.
    mail: Vec<(String, ForgeEvent)>,
    sent: BTreeMap<String, ForgeEvent>,
    /// Messages that the network may deliver once more.
    echoes: Vec<Input>,
    /// Agents with copied tokens.
    thieves: Vec<Agent>,
    report: Report,
}

/// Runs a seed and reports. Seeds that are even have a pool with machines that wait for work.
pub fn run(settings: Settings) -> Report {
    let mut rng = Rng::new(settings.seed);
    let control = Control::new(settings.bug, settings.seed.is_multiple_of(2), &mut rng);
    let mut run = Run {
        rng,
        control,
        site: Site::new(2),
        mail: Vec::new(),
        sent: BTreeMap::new(),
        echoes: Vec::new(),
        thieves: Vec::new(),
        report: Report::default(),
    };
    for step in 0..settings.steps {
        run.step();
        run.report.steps = step + 1;
        if let Err(broken) = run.check(step) {
            return run.end(Some((step, broken)));
        }
    }
    let broken = run.rest().or_else(|| run.replay());
    run.end(broken.map(|text| (settings.steps, text)))
}

impl Run {
    fn end(mut self, broken: Option<(u64, String)>) -> Report {
        self.report.broken = broken;
        self.report.decisions = self.control.store.journal.len() as u64;
        self.report.pipelines = self.control.farm.pipelines.len();
        self.report.attempts = self.control.farm.attempts.len();
        self.report.leases = self.control.farm.leases.len();
        let handed = |runner: &&Runner| matches!(runner.work, RunnerWork::Handed { .. });
        self.report.handed = self.control.farm.runners.values().filter(handed).count();
        self.report.published =
            self.control.farm.channels.values().map(|channel| channel.entries.len()).sum();
        self.report
    }

    fn check(&mut self, step: u64) -> Result<(), String> {
        // Walking through everything is dear; a sample finds a difference soon enough, since it stays.
        let depth = if step.is_multiple_of(64) { Depth::Everything } else { Depth::Written };
        invariants::check(&mut self.control, &self.site, depth)
    }

    fn fate(&mut self) -> Fate {
        match self.rng.next_u64() % 80 {
            0 => Fate::DiesBefore,
            1 => Fate::DiesAfter,
            _ => Fate::Answered,
        }
    }

    fn call(&mut self, input: Input) -> bool {
        let fate = self.fate();
        self.report.crashes += u64::from(fate != Fate::Answered);
        let old = self.epoch_of(&input).filter(|epoch| *epoch < self.control.farm.epoch);
        let input = if self.control.bug == Some(Bug::AcceptOldEpoch) { self.renewed(input) } else { input };
        let taken = self.control.call(input, fate, &mut self.rng).is_some_and(|answer| answer.is_ok());
        self.touch_early();
        if let (Some(epoch), true) = (old, taken) {
            self.control.breaks(format!("a report about epoch {epoch} was taken in a later one"));
        }
        taken
    }

    /// The planted bug: what was decided and never stored already reached the site.
    fn touch_early(&mut self) {
        if std::mem::take(&mut self.control.dying) {
            self.site.fetch(&self.control);
            for _ in 0..4 {
                self.site.act(self.control.bug, &mut self.rng);
            }
            self.control.restart(&mut self.rng);
        }
    }

    fn epoch_of(&self, input: &Input) -> Option<u64> {
        if let Input::SiteReported { report, .. } = input { Some(report.epoch) } else { None }
    }

    /// The planted bug: the epoch of a report is not looked at.
    fn renewed(&self, mut input: Input) -> Input {
        if let Input::SiteReported { report, .. } = &mut input {
            report.epoch = self.control.farm.epoch;
        }
        input
    }

    /// One thing happens.
    fn step(&mut self) {
        match self.rng.next_u64() % 100 {
            // Rare enough that most work gets through its whole life while things still go wrong.
            0 if self.sent.len() < 400 => self.commit_something(),
            0..=6 => self.deliver(),
            7..=12 => self.read(),
            13..=24 => self.perform(),
            25..=34 => self.site.fetch(&self.control),
            35..=49 => self.site.act(self.control.bug, &mut self.rng),
            50..=59 => self.report(),
            60..=89 => self.agent(),
            90..=93 => self.tick(Duration::from_secs(1 + self.rng.clone().next_u64() % 8)),
            94 => self.echo(),
            95 => self.trouble(),
            96..=98 => self.person(),
            _ => self.site.join(&mut self.control, &mut self.rng),
        }
    }

    /// Somebody pushes or opens a pull request.
    fn commit_something(&mut self) {
        let number = self.sent.len() as u64;
        let sha = format!("{:040x}", self.rng.next_u64());
        let event = match self.rng.next_u64() % 3 {
            0 => build::push(&sha),
            1 => build::pull_request(&sha, number, false),
            _ => build::pull_request(&sha, number, true),
        };
        let guid = format!("guid-{number}");
        if !matches!(event.trigger, Trigger::Push { .. }) {
            self.control.untrusted.insert(guid.clone());
        }
        self.sent.insert(guid.clone(), event.clone());
        self.mail.push((guid, event));
    }

    /// A webhook arrives: late, twice or out of order. It is sent again until it is acknowledged.
    fn deliver(&mut self) {
        if self.mail.is_empty() {
            return;
        }
        let at = self.rng.below(self.mail.len());
        let Some((guid, event)) = self.mail.get(at).cloned() else { return };
        let body = Digest::of(event.head_sha.as_bytes());
        let input = Input::DeliveryReceived { guid: guid.clone(), event: "push".to_owned(), body };
        if self.control.bug == Some(Bug::AcknowledgeBeforePersist) {
            self.control.acknowledge(guid.clone());
        }
        if self.call(input) {
            self.control.acknowledge(guid);
            if !self.rng.chance(10) {
                self.mail.remove(at);
            }
        }
    }

    fn read(&mut self) {
        let unread: Vec<String> = self.control.farm.index.unread.iter().cloned().collect();
        let Some(guid) = self.rng.pick(&unread).cloned() else { return };
        let Some(event) = self.sent.get(&guid).cloned() else { return };
        if self.control.bug == Some(Bug::LoseDelivery) && guid.ends_with('3') {
            return;
        }
        let event = match (self.control.bug, &event.trigger) {
            (Some(Bug::LaunderLane), Trigger::PullRequest { .. }) => build::push(&event.head_sha),
            _ => event,
        };
        self.call(Input::DeliveryRead { guid, meaning: Ok(Meaning::Work(Box::new(event))), asked: false });
    }

    fn perform(&mut self) {
        let due = self.control.due_effects();
        let Some(effect) = self.rng.pick(&due).copied() else { return };
        if let Some(input) = self.control.perform(effect, &mut self.rng) {
            self.echoes.push(input.clone());
            self.call(input);
        }
    }

    fn report(&mut self) {
        if let Some(input) = self.site.report() {
            self.echoes.push(input.clone());
            if !self.rng.chance(10) {
                self.call(input);
            }
        }
    }

    fn agent(&mut self) {
        if !self.thieves.is_empty() && self.rng.chance(20) {
            return self.thief();
        }
        let machines: Vec<_> = self.site.machines.keys().copied().collect();
        let Some(id) = self.rng.pick(&machines).copied() else { return };
        // A few words in a row, so that a life fits between two accidents.
        for _ in 0..1 + self.rng.below(3) {
            let fate = self.fate();
            let Some(mut machine) = self.site.machines.get(&id).cloned() else { return };
            let Some(agent) = &mut machine.agent else { return };
            let said = agent.speak(&mut self.control, fate, &mut self.rng);
            self.report.crashes += u64::from(fate != Fate::Answered && said.is_some());
            self.echoes.extend(said);
            self.site.machines.insert(id, machine);
            self.touch_early();
        }
    }

    /// An agent with a copied token speaks.
    fn thief(&mut self) {
        let at = self.rng.below(self.thieves.len());
        let mut thief = self.thieves.swap_remove(at);
        let said = thief.speak(&mut self.control, Fate::Answered, &mut self.rng);
        self.echoes.extend(said);
        if !thief.over() {
            self.thieves.push(thief);
        }
    }

    fn tick(&mut self, time: Duration) {
        self.control.pass(time);
        if self.control.bug == Some(Bug::TimeEndsLease) {
            self.end_leases_by_time();
        }
        self.call(Input::Ticked);
    }

    /// The planted bug: a lease that is slow to end is ended without the site.
    fn end_leases_by_time(&mut self) {
        let now = self.control.now;
        let slow = |lease: &&forgeyard_model::lease::Lease| {
            lease.state == LeaseState::Releasing && now.since(lease.since) > Duration::from_secs(4)
        };
        let slow: Vec<_> = self.control.farm.leases.values().filter(slow).cloned().collect();
        for lease in slow {
            let _ = self.control.give(Input::WriteOffLease { lease: lease.id }, &mut self.rng);
            for device in lease.devices {
                let _ = self.control.give(Input::ClearDevice { device }, &mut self.rng);
            }
        }
    }

    /// The network delivers something once more.
    fn echo(&mut self) {
        if self.echoes.len() > 64 {
            self.echoes.drain(..32);
        }
        if let Some(input) = self.rng.pick(&self.echoes).cloned() {
            self.call(input);
        }
    }

    fn trouble(&mut self) {
        match self.rng.next_u64() % 5 {
            0 => {
                self.control.restart(&mut self.rng);
                self.report.crashes += 1;
            }
            1 => self.site.restart(self.control.bug),
            2 => {
                // An agent dies with its machine still there.
                let machines: Vec<_> = self.site.machines.keys().copied().collect();
                if let Some(machine) = self.rng.pick(&machines).and_then(|id| self.site.machines.get_mut(id))
                {
                    machine.agent = None;
                }
            }
            3 => {
                // Somebody copies the token of a machine.
                let agents: Vec<_> =
                    self.site.machines.values().filter_map(|machine| machine.agent.as_ref()).collect();
                if let Some(agent) = self.rng.pick(&agents).map(|agent| (*agent).clone()) {
                    let thief = agent.thief(&mut self.rng);
                    self.thieves.push(thief);
                }
            }
            _ => self.tick(Duration::from_secs(50)),
        }
    }

    fn person(&mut self) {
        let jobs: Vec<_> = self.control.farm.jobs.keys().copied().collect();
        let Some(job) = self.rng.pick(&jobs).copied() else { return };
        let input = if self.rng.chance(30) { Input::CancelJob { job } } else { Input::RerunJob { job } };
        self.call(input);
    }

    /// Faults stop; everything must come to rest in bounded time.
    fn rest(&mut self) -> Option<String> {
        self.thieves.clear();
        for round in 0..4000 {
            self.site.join(&mut self.control, &mut self.rng);
            while let Some((guid, event)) = self.mail.pop() {
                let body = Digest::of(event.head_sha.as_bytes());
                let input = Input::DeliveryReceived { guid, event: "push".to_owned(), body };
                let _ = self.control.give(input, &mut self.rng);
            }
            self.read();
            for _ in 0..4 {
                self.perform();
                self.site.fetch(&self.control);
                self.site.act(self.control.bug, &mut self.rng);
                self.agent();
            }
            if let Some(input) = self.site.report() {
                let _ = self.control.give(input, &mut self.rng);
            }
            self.tick(Duration::from_secs(2));
            if let Err(broken) = self.check(round) {
                return Some(broken);
            }
            if invariants::at_rest(&self.control, &self.site).is_ok() {
                break;
            }
        }
        let deep = self.check(0);
        deep.and_then(|()| invariants::at_rest(&self.control, &self.site)).err()
    }

    /// The journal, decided again from nothing, gives the same farm.
    fn replay(&self) -> Option<String> {
        let mut farm = Farm::default();
        for entry in &self.control.store.journal {
            let mut entropy = [0; 16];
            for (place, byte) in entropy.iter_mut().enumerate() {
                *byte = u8::from_str_radix(entry.entropy.get(place * 2..place * 2 + 2)?, 16).ok()?;
            }
            let ctx = Ctx {
                seq: entry.seq,
                now: entry.at,
                entropy,
                by: entry.by.clone(),
                config: &self.control.config,
                config_digest: entry.config,
            };
            match decide(&mut farm, &ctx, entry.input.clone()) {
                Ok(decided) if decided.commit.as_ref().is_some_and(|commit| commit.journal == *entry) => {}
                other => return Some(format!("entry {} does not replay: {other:?}", entry.seq)),
            }
        }
        (farm != self.control.farm).then(|| "the replayed farm differs".to_owned())
    }
}
