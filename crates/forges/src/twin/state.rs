//! The state of the simulated GitHub: who and what there is, the time, and what is due.
//!
//! Pure: no clock, no randomness of its own, no I/O. The same calls in the same order on the same seed give the same
//! answers. Topics add their operations in files of their own; each of them leaves the state *settled* (see
//! [`State::settle`]): every queued job that an idle runner could take is taken.

use super::accounts::Account;
use super::auth::{App, Installation, Token};
use super::calls::Call;
use super::checks::CheckRun;
use super::faults::CallFault;
use super::hooks::{Deliveries, Hook, HookFault};
use super::jobs::{Job, Run};
use super::limits::Buckets;
use super::repositories::Repository;
use super::runners::{Group, RunnerRow};
use super::scale_sets::ScaleSets;
use super::setup::Setup;
use super::stand_in::StandIn;
use forgeyard_model::Timestamp;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// SplitMix64 (Steele, Lea and Flood 2014), so that a seed keeps its meaning for ever.
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % bound).unwrap_or(0)
    }
}

/// Numbers to give out. Runs, jobs and checks are above 2^32, as at GitHub (ARC #4602 names job 94396871545).
#[derive(Debug, Clone)]
pub(super) struct Numbers {
    pub(super) account: u64,
    pub(super) repository: u64,
    pub(super) installation: u64,
    pub(super) run: u64,
    pub(super) job: u64,
    pub(super) runner: u64,
    pub(super) group: u64,
    pub(super) hook: u64,
    pub(super) delivery: u64,
    pub(super) pull: u64,
    pub(super) set: u64,
    pub(super) timer: u64,
}

/// What is due at some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Timer {
    /// A webhook is to be sent.
    Send(u64),
    /// A job of a hosted runner starts.
    HostedStart(u64),
    /// A job of a hosted runner ends.
    HostedEnd(u64),
    /// A queued job is too old.
    QueueLimit(u64),
    /// The wait of an environment is over.
    WaitOver(u64),
    /// A runner that went silent loses its job.
    Lost(u64),
    /// It is noticed that a runner went silent.
    Noticed(u64),
    /// A runner of one use that never connected is removed.
    Unused(u64),
    /// An assigned job was not taken.
    Reassign { set: u64, job: u64, attempt: u32 },
    /// A stand-in runner does its next step.
    StandIn { id: u64, step: u64 },
}

/// Where the server is reached; set when it listens.
#[derive(Debug, Clone)]
pub struct Urls {
    /// Base of pages, `http://127.0.0.1:1234`.
    pub html: String,
    /// Base of REST calls.
    pub api: String,
    /// Base of the actions service.
    pub actions: String,
}

/// The simulated GitHub.
#[derive(Debug)]
pub struct State {
    pub(super) setup: Setup,
    pub(super) now: Timestamp,
    pub(super) rng: Rng,
    pub(super) numbers: Numbers,
    pub(super) urls: Urls,
    pub(super) accounts: BTreeMap<u64, Account>,
    pub(super) repositories: BTreeMap<u64, Repository>,
    pub(super) apps: BTreeMap<u64, App>,
    pub(super) installations: BTreeMap<u64, Installation>,
    pub(super) tokens: BTreeMap<String, Token>,
    pub(super) logins: super::login::Logins,
    /// Codes of manifests: the App that was made, and when.
    pub(super) manifests: BTreeMap<String, (u64, Timestamp)>,
    pub(super) runs: BTreeMap<u64, Run>,
    pub(super) jobs: BTreeMap<u64, Job>,
    /// Queued jobs that no runner holds.
    pub(super) queued: BTreeSet<u64>,
    pub(super) runners: BTreeMap<u64, RunnerRow>,
    /// Runners that are online and hold no job.
    pub(super) idle: BTreeSet<u64>,
    /// Queued jobs that no set was looked for since something changed about them.
    pub(super) to_offer: BTreeSet<u64>,
    /// Queued jobs and idle runners that are new, so that only they are matched.
    pub(super) new_jobs: BTreeSet<u64>,
    /// See `new_jobs`.
    pub(super) new_runners: BTreeSet<u64>,
    pub(super) groups: BTreeMap<u64, Group>,
    /// JIT configurations by their secret.
    pub(super) jit: BTreeMap<String, u64>,
    /// Secrets that were used once.
    pub(super) jit_used: BTreeSet<String>,
    /// Which runner a test wants a job to go to.
    pub(super) steered: BTreeMap<u64, String>,
    pub(super) hooks: BTreeMap<u64, Hook>,
    pub(super) deliveries: Deliveries,
    pub(super) hook_faults: Vec<HookFault>,
    pub(super) checks: BTreeMap<u64, CheckRun>,
    pub(super) sets: ScaleSets,
    pub(super) stand_ins: BTreeMap<u64, StandIn>,
    /// Stand-ins of which something is new since somebody last asked.
    pub(super) stand_in_news: BTreeSet<u64>,
    pub(super) buckets: Buckets,
    pub(super) call_faults: Vec<CallFault>,
    pub(super) calls: VecDeque<Call>,
    timers: BTreeMap<(Timestamp, u64), Timer>,
}

impl State {
    /// An empty GitHub.
    pub fn new(setup: Setup) -> Self {
        let html = "http://simulated.invalid".to_owned();
        let urls = Urls {
            api: format!("{html}{}", setup.api_prefix),
            actions: format!("{html}{}", setup.actions_path),
            html,
        };
        let numbers = Numbers {
            account: 1_000,
            repository: 500_000,
            installation: 70_000,
            run: 20_000_000_000,
            job: 94_396_871_545,
            runner: 0,
            group: 2,
            hook: 400_000,
            delivery: 9_000_000_000_000,
            pull: 0,
            set: 0,
            timer: 0,
        };
        Self {
            now: setup.now,
            rng: Rng(setup.seed),
            setup,
            numbers,
            urls,
            accounts: BTreeMap::new(),
            repositories: BTreeMap::new(),
            apps: BTreeMap::new(),
            installations: BTreeMap::new(),
            tokens: BTreeMap::new(),
            logins: Default::default(),
            manifests: BTreeMap::new(),
            runs: BTreeMap::new(),
            jobs: BTreeMap::new(),
            queued: BTreeSet::new(),
            runners: BTreeMap::new(),
            idle: BTreeSet::new(),
            to_offer: BTreeSet::new(),
            new_jobs: BTreeSet::new(),
            new_runners: BTreeSet::new(),
            groups: BTreeMap::new(),
            jit: BTreeMap::new(),
            jit_used: BTreeSet::new(),
            steered: BTreeMap::new(),
            hooks: BTreeMap::new(),
            deliveries: Deliveries::default(),
            hook_faults: Vec::new(),
            checks: BTreeMap::new(),
            sets: ScaleSets::default(),
            stand_ins: BTreeMap::new(),
            stand_in_news: BTreeSet::new(),
            buckets: Buckets::default(),
            call_faults: Vec::new(),
            calls: VecDeque::new(),
            timers: BTreeMap::new(),
        }
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Its settings; may be changed at any time.
    pub fn setup_mut(&mut self) -> &mut Setup {
        &mut self.setup
    }

    /// Where it is reached.
    pub fn urls(&self) -> &Urls {
        &self.urls
    }

    /// Says where it is reached: `http://127.0.0.1:1234`, without a slash at the end.
    pub fn set_base(&mut self, html: &str) {
        self.urls = Urls {
            html: html.to_owned(),
            api: format!("{html}{}", self.setup.api_prefix),
            actions: format!("{html}{}", self.setup.actions_path),
        };
    }

    /// Moves time forward; everything that is due happens in order, each at its own time.
    pub fn advance_to(&mut self, to: Timestamp) {
        while let Some(entry) = self.timers.first_entry() {
            let at = entry.key().0;
            if at > to {
                break;
            }
            let timer = entry.remove();
            self.now = self.now.max(at);
            self.fire(timer);
        }
        self.now = self.now.max(to);
    }

    /// Moves time forward by this much.
    pub fn advance(&mut self, by: Duration) {
        self.advance_to(self.now.plus(by));
    }

    /// When the next thing is due.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.timers.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn after(&mut self, wait: Duration, timer: Timer) {
        self.numbers.timer += 1;
        self.timers.insert((self.now.plus(wait), self.numbers.timer), timer);
    }

    fn fire(&mut self, timer: Timer) {
        match timer {
            Timer::Send(delivery) => self.hook_due(delivery),
            Timer::HostedStart(job) => self.hosted_start(job),
            Timer::HostedEnd(job) => self.hosted_end(job),
            Timer::QueueLimit(job) => self.queue_limit_reached(job),
            Timer::WaitOver(job) => self.environment_wait_over(job),
            Timer::Lost(runner) => self.runner_lost(runner),
            Timer::Noticed(runner) => self.disconnect(runner),
            Timer::Unused(runner) => self.runner_unused(runner),
            Timer::Reassign { set, job, attempt } => self.reassign(set, job, attempt),
            Timer::StandIn { id, step } => self.stand_in_step(id, step),
        }
        self.settle();
    }

    /// Gives out what can be given out: offers to scale sets, then jobs to idle runners.
    pub(super) fn settle(&mut self) {
        self.offer_to_sets();
        self.bind();
    }

    /// A text of 40 hexadecimal digits for tokens and secrets: from the seed, so of no use elsewhere.
    pub(super) fn secret_text(&mut self) -> String {
        let mut text = String::new();
        while text.len() < 40 {
            text.push_str(&format!("{:016x}", self.rng.next()));
        }
        text.truncate(40);
        text
    }

    /// A GUID from the seed.
    pub(super) fn guid(&mut self) -> String {
        let text = format!("{:016x}{:016x}", self.rng.next(), self.rng.next());
        let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default().to_owned();
        format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
    }
}
