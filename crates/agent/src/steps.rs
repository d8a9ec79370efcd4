//! Runs the steps, one container each, and survives the agent's own death between any two lines.
//!
//! A step is recorded as begun before its container is made, and as ended before the container is removed. After a
//! restart: an exit record means that it ended; a container that was made and not started is started; one that runs goes
//! on; one that was never made is made. A container whose monitor is gone has no exit code: that is our fault and is
//! reported as such.

use crate::bundle;
use crate::cache::JobCache;
use crate::clock;
use crate::container::{Container, Exit, Status};
use crate::device;
use crate::error::Error;
use crate::log::Log;
use crate::runner::gate::{self, Event, Gate};
use crate::runner::{self, answer};
use crate::state::{self, AgentState, StepRecord, Word};
use crate::stop::{Cause, Stop};
use crate::usage;
use forgeyard_model::job::JobSpec;
use forgeyard_model::machine::{MachineFile, MachineFolder};
use forgeyard_model::verdict::StepFacts;
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Time between being asked to end and being made to.
const GRACE: Duration = Duration::from_secs(10);
/// Time in which the monitor must report the end of a container that was killed.
const REPORT: Duration = Duration::from_secs(30);
/// Time between two looks at open device nodes.
const SAMPLE: Duration = Duration::from_secs(1);

/// Processes of a container whose runner program waits: process 1, and the program.
const WAITING: usize = 2;

/// All that running needs.
pub(crate) struct Steps<'a> {
    pub(crate) machine: &'a MachineFile,
    pub(crate) folder: &'a MachineFolder,
    pub(crate) spec: &'a JobSpec,
    pub(crate) template: &'a Value,
    pub(crate) state: &'a mut AgentState,
    pub(crate) log: &'a mut Log,
    pub(crate) stop: &'a Stop,
    /// Name of the step that runs, for the signs of life.
    pub(crate) current: &'a watch::Sender<Option<String>>,
    /// Since when a runner program has been alone in its machine.
    pub(crate) quiet: &'a watch::Sender<Option<Instant>>,
    /// The second gate, when the one step is the runner program of a forge.
    pub(crate) gate: Option<Gate>,
    /// The way to the build cache, when there is one.
    pub(crate) cache: Option<&'a mut JobCache>,
    /// Lines of ours that wait for the end of a line of the job.
    pub(crate) waiting: Vec<String>,
}

impl Steps<'_> {
    /// Runs what has not been run, until a step fails or a stop is asked for. The job's failure is no error.
    pub(crate) async fn run(&mut self) -> Result<(), Error> {
        for number in 0..self.spec.steps.len() {
            if let Some(record) = self.state.steps.get(number).filter(|record| record.ended) {
                if record.facts.exit_code != Some(0) {
                    return Ok(());
                }
                continue;
            }
            if number == self.state.steps.len() && self.stop.cause().is_some() {
                return Ok(());
            }
            self.step(number).await?;
            if self.state.supervisor_error.is_some() || self.state.steps[number].facts.exit_code != Some(0) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn save(&self) -> Result<(), Error> {
        self.state.save(&state::path(&self.folder.agent()))
    }

    async fn step(&mut self, number: usize) -> Result<(), Error> {
        let step = &self.spec.steps[number];
        let container = Container::new(self.machine, self.folder.bundle(number), number);
        let banner = match (&self.gate, &self.state.runner.taken) {
            (None, _) => {
                self.current.send_replace(Some(step.name.clone()));
                format!("[forgeyard] step {} of {}: {}", number + 1, self.spec.steps.len(), step.name)
            }
            (Some(_), taken) => {
                let key = taken.as_ref().map(|job| job.key.as_str());
                self.current.send_replace(Some(phase(key)));
                let program = step.argv.first().map_or("none", String::as_str);
                format!("[forgeyard] starting the runner program: {program}")
            }
        };
        self.log.begin(number, &banner)?;
        let fresh = number == self.state.steps.len();
        if fresh {
            let now = clock::now();
            let facts = StepFacts {
                name: step.name.clone(),
                started_at: now,
                ended_at: now,
                exit_code: None,
                signal: None,
            };
            self.state.steps.push(StepRecord { facts, ended: false });
            self.save()?;
        }
        let began = self.begin(&container, number, fresh).await;
        let result = match began {
            Ok(true) => {
                if self.gate.is_some() {
                    container.forget(runner::CONFIG_VARIABLE)?;
                }
                self.watch(&container).await?
            }
            Ok(false) => Err("the container is gone and left no exit record".to_owned()),
            Err(error) => Err(error.line()),
        };
        if result.is_err() {
            container.kill("KILL").await;
        }
        while self.log.take(&container.spool())? {}
        for line in std::mem::take(&mut self.waiting) {
            self.log.say(&line)?;
        }
        // Counts go with the container in version 1; they are saved before it is removed.
        if !usage::counts_stay(&self.machine.cgroup) {
            self.state.oom_kills += usage::oom_kills(&self.machine.cgroup);
        }
        let record = &mut self.state.steps[number];
        record.ended = true;
        record.facts.ended_at = clock::now();
        match result {
            Ok(exit) => (record.facts.exit_code, record.facts.signal) = (Some(exit.code), exit.signal),
            Err(reason) => self.state.supervisor_error = Some(format!("step {}: {reason}", step.name)),
        }
        if let Some(Word::Unanswered { reason }) = &self.state.runner.word {
            self.state.supervisor_error.get_or_insert(reason.message.clone());
        }
        self.save()?;
        container.delete().await;
        Ok(())
    }

    /// Brings the container to run, from wherever an earlier life left it. `false`: it was there and is lost.
    async fn begin(&mut self, container: &Container<'_>, number: usize, fresh: bool) -> Result<bool, Error> {
        if !fresh {
            container.settle().await?;
        }
        if container.exit().is_some() {
            return Ok(true);
        }
        let status = if fresh { Status::Absent } else { container.status().await? };
        match status {
            Status::Running | Status::Stopped => {
                self.show_cache(container).await;
                return Ok(container.monitored() || container.exit().is_some());
            }
            // The monitor died between making and starting: nothing of the job has run, so it is made anew.
            Status::Created if !container.monitored() => container.delete().await,
            Status::Created => {
                self.show_cache(container).await;
                container.start().await?;
                return Ok(true);
            }
            // It was made once and the runtime has forgotten it, as after a restart of the host.
            Status::Absent if !fresh && container.was_made() => return Ok(false),
            Status::Absent => {}
        }
        let config = bundle::complete(
            self.template,
            self.machine,
            self.spec,
            number,
            &self.spec.steps[number],
            &container.status_folder(),
            &self.gate.as_ref().map(Gate::mounts).unwrap_or_default(),
        )?;
        if let Some(gate) = &self.gate {
            gate.prepare(self.machine)?;
        }
        container.prepare(&config)?;
        container.create().await?;
        self.show_cache(container).await;
        container.start().await?;
        Ok(true)
    }

    /// Lets the container reach the build cache. A job without it is slow and not wrong.
    async fn show_cache(&mut self, container: &Container<'_>) {
        let (Some(cache), Some(pid)) = (&self.cache, container.process()) else { return };
        if let Err(error) = cache.enter(pid).await {
            self.waiting.push(format!("[forgeyard] cache: this step cannot reach it: {error}"));
        }
    }

    /// Follows the running container to its end, whoever ends it.
    async fn watch(&mut self, container: &Container<'_>) -> Result<Result<Exit, String>, Error> {
        let mut wait = Duration::from_millis(5);
        let mut sampled = None::<Instant>;
        let mut terminated = None::<Instant>;
        let mut killed = None::<Instant>;
        let mut alone = false;
        loop {
            if let Some(exit) = container.exit() {
                return Ok(Ok(exit));
            }
            // The record is written last, so it is looked for once more after the monitor is seen gone.
            if !container.monitored() {
                if alone {
                    return Ok(
                        Err("the monitor of the container is gone and left no exit record".to_owned()),
                    );
                }
                alone = true;
                continue;
            }
            self.look_at_gate().await?;
            if let Some(at_once) = self.must_end()? {
                match (terminated, killed) {
                    (None, None) if !at_once => {
                        container.kill("TERM").await;
                        terminated = Some(Instant::now());
                    }
                    (at, None) if at_once || at.is_some_and(|at| at.elapsed() >= GRACE) => {
                        container.kill("KILL").await;
                        killed = Some(Instant::now());
                    }
                    (_, Some(at)) if at.elapsed() >= REPORT => {
                        return Ok(Err("the container did not end after it was killed".to_owned()));
                    }
                    _ => {}
                }
                wait = wait.min(Duration::from_millis(50));
            }
            if self.log.take(&container.spool())? {
                wait = Duration::from_millis(5);
                // A flood of output must not keep the signs of life back.
                tokio::task::yield_now().await;
            }
            if self.log.between_lines() {
                for line in std::mem::take(&mut self.waiting) {
                    self.log.say(&line)?;
                }
            }
            if sampled.is_none_or(|at| at.elapsed() >= SAMPLE) {
                sampled = Some(Instant::now());
                let members = usage::members(&self.machine.cgroup);
                self.look_for_quiet(members.len());
                let nodes = device::held(&members, &self.machine.devices);
                if !nodes.is_subset(&self.state.nodes_open) {
                    self.state.nodes_open.extend(nodes);
                    self.save()?;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.stop.asked(), if self.stop.cause().is_none() => {}
            }
            wait = (wait * 2).min(Duration::from_millis(100));
        }
    }

    /// A runner program that waits is alone with process 1 of its container. One that starts others for itself never is.
    fn look_for_quiet(&self, members: usize) {
        let alone = self.gate.is_some() && self.state.runner.taken.is_none() && members <= WAITING;
        self.quiet.send_if_modified(|since| {
            let now = alone.then(|| since.unwrap_or_else(Instant::now));
            std::mem::replace(since, now) != now
        });
    }

    /// Whether the container is to end, and then whether at once.
    fn must_end(&mut self) -> Result<Option<bool>, Error> {
        let Some(cause) = self.stop.cause() else {
            let overstayed = self.gate.as_ref().is_some_and(|gate| gate.overstayed(&self.state.runner));
            return Ok(overstayed.then_some(true));
        };
        if self.state.stop.is_none() {
            self.state.stop = Some(cause);
            self.save()?;
        }
        let shut = self.gate.is_some() && !gate::open(&self.state.runner);
        Ok(Some(shut || cause == Cause::Superseded))
    }

    /// Goes on with the second gate.
    async fn look_at_gate(&mut self) -> Result<(), Error> {
        let Some(gate) = &mut self.gate else { return Ok(()) };
        let Some(event) = gate.look(&mut self.state.runner).await? else { return Ok(()) };
        self.save()?;
        match event {
            Event::Taken(job) => {
                self.current.send_replace(Some(phase(Some(&job.key))));
                self.waiting.push(format!(
                    "[forgeyard] the runner took job `{}` of {} (run {}, attempt {}); the farm is asked whether it may run",
                    job.key, job.repository.name, job.run, job.run_attempt
                ));
            }
            Event::Told(word) => {
                // Only now is it known whose work this is. The hook reads its answer after the next look.
                if let (Word::Allowed { .. }, Some(cache)) = (&word, &mut self.cache) {
                    self.waiting.push(cache.connect().await);
                }
                self.waiting.extend(answer::lines(&word));
            }
        }
        Ok(())
    }
}

/// Where a runner is, for the signs of life.
fn phase(job: Option<&str>) -> String {
    job.map_or_else(|| "runner: waits for a job".to_owned(), |key| format!("runner: job taken: {key}"))
}
