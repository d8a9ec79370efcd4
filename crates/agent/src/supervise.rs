//! The life of an agent: lock, redeem, prepare, run, look, upload, finish.

use crate::cache::JobCache;
use crate::clock;
use crate::disk;
use crate::error::Error;
use crate::harvest;
use crate::heartbeat::beat;
use crate::inside;
use crate::log::Log;
use crate::mask::Masker;
use crate::prepare::{digest_of_open, prepare};
use crate::runner::{self, Gate};
use crate::shipper::ship;
use crate::state::{self, AgentState, read_json};
use crate::steps::Steps;
use crate::stop::{Cause, Stop};
use crate::{device, kernel, usage};
use forgeyard_api::agent::{Redeem, Redeemed, VERSION, WAITING, Wait, Waited};
use forgeyard_api::client::agent::{AgentClient, Session, superseded, transient};
use forgeyard_api::client::{Backoff, HttpOptions};
use forgeyard_formats::linux::process_stat;
use forgeyard_model::Secret;
use forgeyard_model::artifact::ArtifactKind;
use forgeyard_model::job::JobSpec;
use forgeyard_model::machine::{self, MachineFile, MachineFolder};
use forgeyard_model::resources::Limit;
use forgeyard_model::verdict::{ExitFacts, OomFacts};
use std::fs::{File, TryLockError};
use std::io::Seek as _;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long one question for work waits at the farm, in seconds.
const WAIT_SECONDS: u64 = 25;

/// Runs the agent of a machine folder to its end. Returns at once if the machine is finished or has an agent.
pub async fn supervise(dir: &Path) -> Result<(), Error> {
    let folder = MachineFolder::new(dir);
    if folder.finished().exists() {
        return Ok(());
    }
    let _lock = lock(&folder)?;
    let machine: MachineFile = read_json(&folder.machine_file())?.ok_or_else(|| Error::Content {
        object: folder.machine_file().display().to_string(),
        reason: "missing".to_owned(),
    })?;
    if machine.version != machine::VERSION {
        let reason = format!("version {} and not {}", machine.version, machine::VERSION);
        return Err(Error::Content { object: folder.machine_file().display().to_string(), reason });
    }
    usage::join_supervisor(&machine.cgroup);
    let how = attempt(&machine, &folder).await?;
    tracing::info!(how, "finished");
    std::fs::write(folder.finished(), how).map_err(|source| Error::file("write", &folder.finished(), source))
}

/// Takes the machine for this process, and says which process that is.
fn lock(folder: &MachineFolder) -> Result<File, Error> {
    let path = folder.agent_lock();
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|e| Error::file("open", &path, e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(Error::Taken(folder.dir().display().to_string())),
        Err(TryLockError::Error(source)) => return Err(Error::file("lock", &path, source)),
    }
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let started = process_stat(&stat).map(|stat| stat.started).unwrap_or_default();
    let path = folder.agent_pid();
    std::fs::write(&path, format!("{} {started}", std::process::id()))
        .map_err(|e| Error::file("write", &path, e))?;
    Ok(file)
}

/// Works on the attempt; says in a word how that ended.
async fn attempt(machine: &MachineFile, folder: &MachineFolder) -> Result<&'static str, Error> {
    let options = HttpOptions { ca_file: machine.ca_file.clone(), ..HttpOptions::default() };
    let client = AgentClient::new(&machine.farm_url, &options)
        .map_err(|source| Error::Farm { action: "set up the connection".to_owned(), source })?;
    let state_path = state::path(&folder.agent());
    let mut state = AgentState::load(&state_path)?;
    let token =
        std::fs::read_to_string(folder.token()).map_err(|e| Error::file("read", &folder.token(), e))?;
    let token = Secret::new(token.trim());
    let redeemed = match state.redeemed.clone() {
        Some(redeemed) => redeemed,
        None if !work(&client, &token, &state.nonce).await? => return Ok("not needed"),
        None => match redeem(&client, &token, &state.nonce).await? {
            Some(redeemed) => {
                state.redeemed = Some(redeemed.clone());
                state.started_at = clock::now();
                state.started_uptime_micros = clock::uptime_micros();
                state.save(&state_path)?;
                redeemed
            }
            None => return Ok("refused"),
        },
    };
    let session = Session {
        attempt: redeemed.attempt,
        fence: redeemed.fence,
        token: Secret::new(redeemed.session.clone()),
    };
    let secrets =
        redeemed.mask.iter().map(String::as_str).chain([token.expose(), &state.nonce, &redeemed.session]);
    let mut log = Log::open(&folder.agent(), Masker::new(secrets), redeemed.log_cap_bytes)?;
    if let Some(config) = &state.runner.config {
        log.mask(runner::pieces(config));
    }
    let stop = Stop::new(state.stop);
    let (current, step) = watch::channel(None);
    let (quiet, alone) = watch::channel(None);
    let every = Duration::from_secs(redeemed.heartbeat_seconds.clamp(1, 300));
    let alive = tokio::spawn(beat(client.clone(), session.clone(), every, step, alone, stop.clone()));
    let clock = tokio::spawn(wall(machine.clone(), state.started_at, stop.clone()));
    let sender = tokio::spawn(ship(
        client.clone(),
        session.clone(),
        log.path().to_owned(),
        log.follow(),
        stop.clone(),
    ));

    let begun =
        Attempt { machine, folder, client: &client, session: &session, redeemed: &redeemed, stop: &stop };
    let facts = begun.work(&mut state, &mut log, &current, &quiet).await;
    clock.abort();
    let facts = facts?;
    drop(log);
    // All of the log is durable before the end is reported.
    let _ = sender.await;
    let done = if stop.superseded() { false } else { begun.finish(&facts).await? };
    alive.abort();
    Ok(if done { "done" } else { "superseded" })
}

/// Waits until there is work, in a machine that was made before there was some; `false` if nobody needs it any more.
async fn work(client: &AgentClient, token: &Secret, nonce: &str) -> Result<bool, Error> {
    if !token.expose().starts_with(WAITING) {
        return Ok(true);
    }
    let (token, nonce) = (token.expose().to_owned(), nonce.to_owned());
    let request = Wait { version: VERSION, token, nonce, wait_seconds: WAIT_SECONDS };
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(15));
    loop {
        match client.wait(&request).await {
            Ok(Waited::Work) => return Ok(true),
            Ok(Waited::Nothing) => {
                backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(15));
            }
            Err(error) if transient(&error) => {
                tracing::warn!(
                    error = forgeyard_api::client::http::causes(&error),
                    "cannot ask for work yet"
                );
                backoff.sleep().await;
            }
            Err(error) if error.refusal().is_some() => {
                tracing::info!(
                    error = forgeyard_api::client::http::causes(&error),
                    "there is no work for it"
                );
                return Ok(false);
            }
            Err(source) => return Err(Error::Farm { action: "ask for work".to_owned(), source }),
        }
    }
}

/// Redeems the token, for as long as the farm has trouble of its own; `None` if it refuses.
async fn redeem(client: &AgentClient, token: &Secret, nonce: &str) -> Result<Option<Redeemed>, Error> {
    let request = Redeem { version: VERSION, token: token.expose().to_owned(), nonce: nonce.to_owned() };
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(15));
    loop {
        match client.redeem(&request).await {
            Ok(redeemed) => return Ok(Some(redeemed)),
            Err(error) if transient(&error) => {
                tracing::warn!(
                    error = forgeyard_api::client::http::causes(&error),
                    "cannot redeem the token yet"
                );
                backoff.sleep().await;
            }
            Err(error) if error.refusal().is_some() => {
                tracing::error!(error = forgeyard_api::client::http::causes(&error), "the token is refused");
                return Ok(None);
            }
            Err(source) => return Err(Error::Farm { action: "redeem the token".to_owned(), source }),
        }
    }
}

/// Asks for a stop when the time on the wall clock is over, counted over all lives of the agent.
async fn wall(machine: MachineFile, since: forgeyard_model::Timestamp, stop: Stop) {
    let limit = Duration::from_secs(machine.flavor.time_limit_seconds);
    let passed = clock::now().since(since);
    tokio::time::sleep(limit.saturating_sub(passed)).await;
    stop.ask(Cause::Wall);
}

struct Attempt<'a> {
    machine: &'a MachineFile,
    folder: &'a MachineFolder,
    client: &'a AgentClient,
    session: &'a Session,
    redeemed: &'a Redeemed,
    stop: &'a Stop,
}

impl Attempt<'_> {
    /// From the redeemed token to the facts; uploads on the way.
    async fn work(
        &self,
        state: &mut AgentState,
        log: &mut Log,
        current: &watch::Sender<Option<String>>,
        quiet: &watch::Sender<Option<Instant>>,
    ) -> Result<ExitFacts, Error> {
        let state_path = state::path(&self.folder.agent());
        if let Some(facts) = state.facts.clone() {
            return self.upload(state, facts).await;
        }
        if !state.prepared && state.supervisor_error.is_none() {
            log.begin(usize::MAX, "[forgeyard] preparing inputs")?;
            let prepared = tokio::select! {
                result = prepare(self.client, self.session, self.machine, self.folder, &self.redeemed.spec) => result,
                () = self.stop.asked() => Err(Error::Stopped),
            };
            match prepared {
                Ok(()) => state.prepared = true,
                Err(Error::Stopped) => {}
                Err(error) => {
                    log.say(&format!("[forgeyard] {}", error.line()))?;
                    state.supervisor_error = Some(error.line());
                }
            }
            state.stop = self.stop.cause();
            state.save(&state_path)?;
        }
        let mut used = None;
        if state.prepared && state.supervisor_error.is_none() && self.configured(state, log).await? {
            let mut cache = self.cache(state, log).await?;
            let (spec, gate) = self.spec(state, cache.as_ref());
            let template = read_json(&self.folder.bundle_template())?.unwrap_or_default();
            let limit = self.machine.flavor.disk_mib.saturating_mul(1 << 20);
            let mut folders = vec![self.folder.work(), self.folder.out(), self.folder.tmp()];
            folders.extend(gate.is_some().then(|| self.folder.taken()));
            let disk = tokio::spawn(disk::watch(folders, limit, self.stop.clone()));
            let mut steps = Steps {
                machine: self.machine,
                folder: self.folder,
                spec: &spec,
                template: &template,
                state,
                log,
                stop: self.stop,
                current,
                quiet,
                gate,
                cache: cache.as_mut(),
                waiting: Vec::new(),
            };
            let result = steps.run().await;
            disk.abort();
            result?;
            used = match &cache {
                Some(cache) => cache.facts().await,
                None => None,
            };
        }
        if state.stop.is_none() {
            state.stop = self.stop.cause();
        }
        if let Some(error) = state.supervisor_error.clone() {
            log.say(&format!("[forgeyard] {error}"))?;
        }
        if let Some(cause) = state.stop {
            log.say(&format!("[forgeyard] stopped: {}", words(cause)))?;
        }
        let too_old = state.steps.iter().any(|step| step.facts.exit_code == Some(runner::TOO_OLD));
        if too_old && self.redeemed.spec.forge_runner.is_some() {
            log.say("[forgeyard] the runner program of the image is too old for its forge (exit code 7): rebuild the image")?;
        }
        if let Some(used) = &used {
            for line in used.lines() {
                log.say(&format!("[forgeyard] cache: {line}"))?;
            }
        }
        log.close()?;
        let facts = ExitFacts { cache: used, ..self.facts(state, log) };
        state.facts = Some(facts.clone());
        state.runner.config = None;
        state.save(&state_path)?;
        self.upload(state, facts).await
    }

    /// Sees to it that a runner of a forge has its configuration. `false`: it gets none, or the job is stopped; all others
    /// need none.
    async fn configured(&self, state: &mut AgentState, log: &mut Log) -> Result<bool, Error> {
        if self.redeemed.spec.forge_runner.is_none() || state.runner.config.is_some() {
            return Ok(true);
        }
        log.begin(usize::MAX - 1, "[forgeyard] waiting for the configuration of the runner")?;
        let limit = Duration::from_secs(self.machine.flavor.time_limit_seconds);
        let fetched =
            runner::configuration(self.client, self.session, state.started_at, limit, self.stop).await;
        let had = match fetched {
            Ok(config) => {
                log.mask(runner::pieces(config.expose()));
                state.runner.config = Some(config.expose().to_owned());
                true
            }
            Err(Error::Stopped) => {
                state.stop = self.stop.cause();
                false
            }
            Err(error) => {
                state.supervisor_error = Some(error.line());
                false
            }
        };
        state.save(&state::path(&self.folder.agent()))?;
        Ok(had)
    }

    /// What is run, and the gate of a runner.
    fn spec(&self, state: &AgentState, cache: Option<&JobCache>) -> (JobSpec, Option<Gate>) {
        let mut spec = self.redeemed.spec.clone();
        let forge_runner = spec.forge_runner.is_some();
        for (name, value) in cache.map(|cache| cache.environment(forge_runner)).into_iter().flatten() {
            // What the job sets itself counts more.
            spec.env.entry(name).or_insert(value);
        }
        let Some(runner) = &spec.forge_runner else { return (spec, None) };
        let config = state.runner.config.as_deref().unwrap_or_default();
        let gate = Gate::new(self.folder, &runner.forge, self.client, self.session);
        (runner::spec(&spec, runner, config), Some(gate))
    }

    /// The way to the build cache, where the farm has one. Trouble with it never fails a job.
    async fn cache(&self, state: &mut AgentState, log: &mut Log) -> Result<Option<JobCache>, Error> {
        if !self.redeemed.cache {
            return Ok(None);
        }
        let options = HttpOptions { ca_file: self.machine.ca_file.clone(), ..HttpOptions::default() };
        let own_network = !self.machine.flavor.network;
        let opened = JobCache::open(self.client, self.session, &options, own_network, state.cache.clone());
        let mut cache = match opened {
            Ok(cache) => cache,
            Err(error) => {
                log.say(&format!("[forgeyard] cache: none for this job: {error}"))?;
                return Ok(None);
            }
        };
        log.mask([cache.record().secret()]);
        if state.steps.is_empty() {
            state.cache = Some(cache.record().clone());
            state.save(&state::path(&self.folder.agent()))?;
            if let Err(error) = cache.write_home(&self.folder.work().join("home")) {
                log.say(&format!("[forgeyard] cache: Bazel and Nix do not find it: {error}"))?;
            }
        }
        let open = self.redeemed.spec.forge_runner.is_none()
            || matches!(state.runner.word, Some(state::Word::Allowed { .. }));
        if open {
            let line = cache.connect().await;
            log.say(&line)?;
        }
        Ok(Some(cache))
    }

    /// Everything observed.
    fn facts(&self, state: &AgentState, log: &Log) -> ExitFacts {
        let cgroup = &self.machine.cgroup;
        let kills = if usage::counts_stay(cgroup) { usage::oom_kills(cgroup) } else { state.oom_kills };
        // A second earlier: the kernel's clock and ours are read one after the other.
        let records = kernel::records(state.started_uptime_micros.saturating_sub(1_000_000));
        let kernel = kernel::pick(&records, &cgroup.path, &self.machine.devices);
        let peak = usage::peak_memory(cgroup);
        let succeeded = succeeded(state, self.redeemed);
        let missing = harvest::outputs(&self.folder.out(), &self.redeemed.spec.outputs).1;
        ExitFacts {
            cache: None,
            steps: state.steps.iter().map(|record| record.facts.clone()).collect(),
            limit: match state.stop {
                Some(Cause::Wall) => Some(Limit::Wall),
                Some(Cause::Disk) => Some(Limit::Disk),
                _ if kills > 0 && !succeeded => Some(Limit::Memory),
                _ => None,
            },
            oom: (kills > 0).then(|| OomFacts {
                kills,
                peak_bytes: peak.unwrap_or(0),
                limit_bytes: self.machine.flavor.memory_mib.saturating_mul(1 << 20),
                victim: kernel.victim,
            }),
            peak_memory_bytes: peak,
            cpu_micros: usage::cpu_micros(cgroup),
            canceled: state.stop == Some(Cause::Canceled),
            supervisor_error: state.supervisor_error.clone(),
            missing_outputs: if succeeded { missing } else { Vec::new() },
            device: device::seen(&self.folder.work(), &self.machine.devices, &state.nodes_open),
            metrics: harvest::metrics(&self.folder.out()),
            installed: harvest::installed(&self.folder.work()),
            log_dropped_bytes: log.dropped(),
            kernel_lines: kernel.lines,
        }
    }

    /// Uploads outputs. Of a job that failed only reports are taken.
    async fn upload(&self, state: &AgentState, mut facts: ExitFacts) -> Result<ExitFacts, Error> {
        let all = succeeded(state, self.redeemed);
        let (outputs, _) = harvest::outputs(&self.folder.out(), &self.redeemed.spec.outputs);
        for output in outputs.into_iter().filter(|output| all || output.kind == ArtifactKind::Report) {
            tokio::select! {
                result = self.upload_one(&output) => if let Err(error) = result {
                    tracing::error!(error = error.line(), "upload failed");
                    facts.supervisor_error.get_or_insert(format!("output {}: {}", output.name, error.line()));
                },
                () = self.stop.asked_superseded() => break,
            }
        }
        Ok(facts)
    }

    async fn upload_one(&self, output: &harvest::Output) -> Result<(), Error> {
        let out = self.folder.out();
        let broken = |source| Error::file("read", &output.path, source);
        let mut file = inside::open(&out, &output.path).map_err(broken)?;
        let copy = file.try_clone().map_err(broken)?;
        let read = tokio::task::spawn_blocking(move || digest_of_open(copy)).await;
        let (digest, size) =
            read.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(broken)?;
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(15));
        loop {
            file.rewind().map_err(broken)?;
            let body = tokio::fs::File::from_std(file.try_clone().map_err(broken)?);
            match self.client.artifact(self.session, output.kind, &output.name, digest, body, size).await {
                Ok(_) => return Ok(()),
                Err(error) if superseded(&error) => {
                    self.stop.ask(Cause::Superseded);
                    return Ok(());
                }
                Err(error) if transient(&error) => {
                    tracing::warn!(error = forgeyard_api::client::http::causes(&error), "cannot upload yet");
                    backoff.sleep().await;
                }
                Err(source) => return Err(Error::Farm { action: format!("upload {}", output.name), source }),
            }
        }
    }

    /// Reports the end until the farm has it; `false` if it wants none.
    async fn finish(&self, facts: &ExitFacts) -> Result<bool, Error> {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(15));
        loop {
            match self.client.finish(self.session, facts).await {
                Ok(()) => return Ok(true),
                Err(error) if transient(&error) => {
                    tracing::warn!(
                        error = forgeyard_api::client::http::causes(&error),
                        "cannot report the end yet"
                    );
                    backoff.sleep().await;
                }
                Err(error) => {
                    tracing::warn!(
                        error = forgeyard_api::client::http::causes(&error),
                        "the farm wants no report"
                    );
                    return Ok(false);
                }
            }
        }
    }
}

/// Whether every step ended with 0 and nothing stopped the job.
fn succeeded(state: &AgentState, redeemed: &Redeemed) -> bool {
    state.stop.is_none()
        && state.supervisor_error.is_none()
        && state.steps.len()
            == if redeemed.spec.forge_runner.is_some() { 1 } else { redeemed.spec.steps.len() }
        && state.steps.iter().all(|record| record.facts.exit_code == Some(0))
}

fn words(cause: Cause) -> &'static str {
    match cause {
        Cause::Canceled => "somebody asked to cancel it",
        Cause::Wall => "its time limit is over",
        Cause::Disk => "it wrote more than its disk limit",
        Cause::Superseded => "another attempt has taken its place",
    }
}
