//! One session with the farm: poll, observe, plan, act, report, until the site stops or the farm forgets it.
//!
//! Beside the two loops of [`crate::dial`] runs the *main* loop, which owns all state: it lists machines, plans, starts
//! actions and takes their ends. An object that is being worked on is left alone until
//! its action has ended and the providers were listed after that.

use crate::Options;
use crate::dial::{self, Desired, Report};
use crate::error::Error;
use crate::execute::{Outcome, Tools};
use crate::ledger::LeasePhase;
use crate::plan::{self, Action, Observed, View};
use crate::report::{self, Sources};
use crate::tries::Tries;
use forgeyard_api::client::site::SiteClient;
use forgeyard_model::name::ProviderName;
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::site::{ObservedLease, SiteReport};
use forgeyard_model::{Explanation, LeaseId, RunnerId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The site is to stop.
    Stopped,
    /// The farm does not know the site's token.
    NotKnown,
}

/// Devices and providers that did not answer are asked again this much later.
const PROBE_AGAIN: Duration = Duration::from_secs(30);

/// How long one listing may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a session.
pub(crate) async fn run(
    tools: Arc<Tools>,
    client: SiteClient,
    options: &Options,
    shutdown: &CancellationToken,
) -> Result<End, Error> {
    let (desired_in, desired) = watch::channel(None);
    let (report_in, report) = watch::channel(None);
    let (acks_in, acks) = mpsc::channel(8);
    // Dropped with this future, and everything in it is aborted then.
    let mut loops = JoinSet::new();
    loops.spawn(dial::poll(client.clone(), Arc::clone(&tools), desired_in, options.poll_wait));
    loops.spawn(dial::send(client, report, acks_in));
    let main = Main {
        waits: Arc::new(Semaphore::new(options.concurrency.max(1))),
        options,
        tools,
        desired,
        report: report_in,
        acks,
        started: Instant::now(),
        work: JoinSet::new(),
        busy: plan::Waiting::default(),
        tries: Tries::default(),
        rows: BTreeMap::new(),
        observed: Observed::default(),
        told: BTreeSet::new(),
        gone: BTreeSet::new(),
        next_probe: Instant::now(),
        probing: false,
    };
    tokio::select! {
        ended = loops.join_next() => match ended {
            Some(Ok(ended)) => ended,
            Some(Err(error)) => Err(Error::Broken(error.to_string())),
            None => Err(Error::Broken("no loop runs".to_owned())),
        },
        ended = main.run(shutdown) => ended,
    }
}

/// What an action is about.
#[derive(Debug, Clone, Copy)]
enum Subject {
    Machine(RunnerId),
    Lease(LeaseId),
    Probe,
}

struct Main<'a> {
    options: &'a Options,
    tools: Arc<Tools>,
    desired: watch::Receiver<Desired>,
    report: watch::Sender<Report>,
    acks: mpsc::Receiver<Arc<SiteReport>>,
    started: Instant,
    work: JoinSet<(Subject, Outcome)>,
    waits: Arc<Semaphore>,
    /// What is being worked on.
    busy: plan::Waiting,
    tries: Tries,
    /// What each provider listed last.
    rows: BTreeMap<ProviderName, Vec<ObservedRunner>>,
    observed: Observed,
    /// Released leases of which the farm has been told.
    told: BTreeSet<LeaseId>,
    /// Machines that went and of which the farm has not been told.
    gone: BTreeSet<RunnerId>,
    next_probe: Instant,
    probing: bool,
}

impl Main<'_> {
    async fn run(mut self, shutdown: &CancellationToken) -> Result<End, Error> {
        let tools = Arc::clone(&self.tools);
        tokio::select! {
            () = shutdown.cancelled() => return Ok(End::Stopped),
            () = tools.ask_all() => {}
        }
        self.next_probe = Instant::now() + self.probe_pause();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = self.observe() => {}
            }
            self.act();
            self.publish();
            if self.wait(shutdown).await {
                break;
            }
        }
        // Machines stay. What has begun may end; what does not is taken up by the next run.
        let rest = async { while self.work.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(self.options.stop_grace, rest).await;
        Ok(End::Stopped)
    }

    /// Waits for something to do; answers whether the site is to stop.
    async fn wait(&mut self, shutdown: &CancellationToken) -> bool {
        let now = self.started.elapsed();
        let paused = self.tries.next(now).map_or(Duration::MAX, |until| until.saturating_sub(now));
        let next = Instant::now() + paused.min(self.options.observe_every);
        loop {
            let tools = Arc::clone(&self.tools);
            tokio::select! {
                () = shutdown.cancelled() => return true,
                Some(done) = self.work.join_next(), if !self.work.is_empty() => {
                    self.settle(done);
                    return false;
                }
                // When the poller has ended, so does the session, and says why.
                Ok(()) = self.desired.changed() => return false,
                Some(report) = self.acks.recv() => {
                    if self.acknowledged(&report) {
                        return false;
                    }
                }
                () = tools.changed.notified() => self.publish(),
                () = tokio::time::sleep_until(next) => return false,
            }
        }
    }

    /// The farm took a report. Answers whether that gives something to do.
    fn acknowledged(&mut self, report: &SiteReport) -> bool {
        for runner in &report.runners {
            if runner.state == ObservedState::Absent {
                self.gone.remove(&runner.runner);
            }
        }
        let before = self.told.len();
        let released = report.leases.iter().filter_map(|lease| match lease {
            ObservedLease::Released { lease, .. } => Some(*lease),
            _ => None,
        });
        self.told.extend(released);
        self.told.len() > before
    }

    /// Lists the machines of all providers.
    async fn observe(&mut self) {
        let mut lists = JoinSet::new();
        for (name, provider) in &self.tools.providers {
            let (name, provider) = (name.clone(), Arc::clone(provider));
            lists.spawn(async move { (name, tokio::time::timeout(LIST_TIMEOUT, provider.list()).await) });
        }
        let mut unknown: BTreeSet<ProviderName> = self.tools.providers.keys().cloned().collect();
        while let Some(listed) = lists.join_next().await {
            match listed {
                Ok((name, Ok(Ok(rows)))) => {
                    unknown.remove(&name);
                    self.rows.insert(name, rows);
                }
                Ok((name, Ok(Err(error)))) => {
                    tracing::warn!(provider = %name, error = %error.explanation(), "cannot list machines");
                }
                Ok((name, Err(_))) => tracing::warn!(provider = %name, "listing machines takes too long"),
                Err(error) => tracing::error!(%error, "listing machines broke"),
            }
        }
        let machines = self.rows.iter().flat_map(|(provider, rows)| {
            let there = rows.iter().filter(|row| row.state != ObservedState::Absent);
            there.map(|row| ((row.runner, provider.clone()), row.state.clone()))
        });
        self.observed = Observed { machines: machines.collect(), unknown };
    }

    /// Plans and starts what is planned.
    fn act(&mut self) {
        if !self.probing && Instant::now() >= self.next_probe {
            self.probing = true;
            let tools = Arc::clone(&self.tools);
            self.work.spawn(async move {
                tools.ask_all().await;
                (Subject::Probe, Outcome::Done)
            });
        }
        let Some(desired) = self.desired.borrow_and_update().clone() else { return };
        let ledger = self.tools.journal.ledger();
        self.told.retain(|lease| ledger.leases.contains_key(lease));
        let mut waiting = self.tries.waiting(self.started.elapsed());
        waiting.runners.extend(self.busy.runners.iter().copied());
        waiting.leases.extend(self.busy.leases.iter().copied());
        let actions = plan::plan(&View {
            desired: &desired,
            observed: &self.observed,
            ledger: &ledger,
            providers: &self.tools.providers.keys().cloned().collect(),
            handing: &self.tools.handing(),
            devices: &self.tools.devices_here(),
            waiting: &waiting,
            told: &self.told,
        });
        for action in actions {
            tracing::debug!(?action, "planned");
            let (subject, about) = match &action {
                Action::Create { runner } | Action::Adopt { runner } | Action::Refuse { runner, .. } => (
                    Subject::Machine(*runner),
                    desired.runners.iter().find(|desired| desired.runner == *runner),
                ),
                Action::Destroy { runner, .. } | Action::Forget { runner } => {
                    (Subject::Machine(*runner), None)
                }
                Action::End { lease, .. } | Action::ForgetLease { lease } => (Subject::Lease(*lease), None),
            };
            let about = about.cloned();
            self.start(subject, move |tools| async move { tools.execute(action, about).await });
        }
    }

    fn start<F, W>(&mut self, subject: Subject, work: F)
    where
        F: FnOnce(Arc<Tools>) -> W,
        W: Future<Output = Outcome> + Send + 'static,
    {
        match subject {
            Subject::Machine(runner) => {
                self.busy.runners.insert(runner);
            }
            Subject::Lease(lease) => {
                self.busy.leases.insert(lease);
            }
            Subject::Probe => {}
        }
        let waits = Arc::clone(&self.waits);
        let work = work(Arc::clone(&self.tools));
        self.work.spawn(async move {
            // It is never closed; if it were, going on without a place would do no harm.
            let _place = waits.acquire_owned().await.ok();
            (subject, work.await)
        });
    }

    /// Takes the end of an action.
    fn settle(&mut self, done: Result<(Subject, Outcome), tokio::task::JoinError>) {
        let (subject, outcome) = match done {
            Ok(done) => done,
            Err(error) => {
                // Its object stays busy, so that it is not touched by chance; a restart of the site clears that.
                tracing::error!(%error, "an action broke");
                return;
            }
        };
        match subject {
            Subject::Machine(runner) => {
                self.busy.runners.remove(&runner);
            }
            Subject::Lease(lease) => {
                self.busy.leases.remove(&lease);
            }
            Subject::Probe => {
                self.probing = false;
                self.next_probe = Instant::now() + self.probe_pause();
            }
        }
        let now = self.started.elapsed();
        match outcome {
            Outcome::Done => match subject {
                Subject::Machine(runner) => self.tries.settled(runner),
                Subject::Lease(lease) => self.tries.ended(lease),
                Subject::Probe => {}
            },
            Outcome::Gone(runner) => {
                self.tries.settled(runner);
                self.gone.insert(runner);
            }
            Outcome::Made(runner, provider) => {
                self.tries.made(runner, &provider);
                self.tries.settled(runner);
            }
            Outcome::NotMade { runner, provider, reason, for_good } => {
                tracing::warn!(%runner, %reason, "the machine was not made");
                let give_up = if for_good {
                    self.tries.settled(runner);
                    true
                } else {
                    self.tries.not_made(runner, provider.clone(), reason.clone(), now)
                };
                if give_up {
                    self.give_up(runner, provider, reason);
                }
            }
            Outcome::NotRemoved(runner, reason) => {
                tracing::error!(%runner, %reason, "the machine was not removed");
                self.tries.not_removed(runner, reason, now);
            }
            Outcome::NotEnded(lease, reason) => {
                tracing::error!(%lease, %reason, "the lease was not ended");
                self.tries.not_ended(lease, reason, now);
            }
            Outcome::NotWritten(runner, reason) => {
                tracing::error!(%runner, %reason, "nothing was done, for it could not be written down");
                self.tries.not_removed(runner, reason, now);
            }
        }
    }

    fn give_up(&mut self, runner: RunnerId, provider: ProviderName, reason: Explanation) {
        self.start(Subject::Machine(runner), move |tools| async move {
            tools.give_up(runner, provider, reason).await
        });
    }

    /// How long until devices and providers are asked again; sooner when one of them did not answer.
    fn probe_pause(&self) -> Duration {
        let silent = self.tools.inventory().failure.is_some()
            || self.tools.host().providers.len() < self.tools.providers.len();
        if silent { PROBE_AGAIN.min(self.options.probe_every) } else { self.options.probe_every }
    }

    /// Hands the sender a new report, if it is another than the last one.
    fn publish(&mut self) {
        let Some(desired) = self.desired.borrow().clone() else { return };
        if self.tools.providers.keys().any(|provider| !self.rows.contains_key(provider)) {
            // A report is complete or it is not sent: what was never listed would be taken for gone.
            return;
        }
        let ledger = self.tools.journal.ledger();
        let inventory = self.tools.inventory();
        let mut devices = inventory.devices;
        if inventory.failure.is_some() {
            // Not proven to answer, so not offered; those that are leased stay known.
            let leased =
                ledger.leases.values().filter(|record| !matches!(record.phase, LeasePhase::Released { .. }));
            let leased: BTreeSet<&str> =
                leased.flat_map(|record| record.devices.iter().map(|(_, key)| key.as_str())).collect();
            devices.retain(|device| leased.contains(device.key.as_str()));
        }
        let rows = self.rows.values().flatten().filter(|row| row.state != ObservedState::Absent);
        let rows: BTreeMap<RunnerId, ObservedRunner> = rows.map(|row| (row.runner, row.clone())).collect();
        let report = report::build(&Sources {
            desired: &desired,
            host: &self.tools.host(),
            devices: &devices,
            rows: &rows,
            ledger: &ledger,
            tries: &self.tries,
            at_work: &self.busy.runners,
            gone: &self.gone,
        });
        self.report.send_if_modified(|last| {
            let new = last.as_deref() != Some(&report);
            if new {
                *last = Some(Arc::new(report));
            }
            new
        });
    }
}
