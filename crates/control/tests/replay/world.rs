//! The control plane under simulated time, and the driver that moves it.
//!
//! Real: the core with its engine, the HTTP routes of webhooks and agents, the reader of deliveries, the effect executor, the
//! loops of redelivery, polling, check runs and scale sets, the tick, the GitHub client with tokens and budget. The store is
//! the in-memory twin, GitHub is the twin without its server.

use super::hub::{Hub, plan_faults};
use super::machines::{Sites, host};
use super::plan::{config, most, organisation_cap, repository_cap};
use super::report::{Report, judge};
use super::time::{Idle, Time};
use super::trace::{Kind, PEOPLE, Plan, REPOSITORIES, Start, plans};
use axum::Router;
use forgeyard_control::app::{App, Parts};
use forgeyard_control::clock::Clock;
use forgeyard_control::core::{Core, farm};
use forgeyard_control::forges::{ConnectionOptions, Connections, Register, ScaleSetWish};
use forgeyard_control::keys::Keys;
use forgeyard_control::sealed::Sealed;
use forgeyard_control::{http, serve};
use forgeyard_db::Store;
use forgeyard_db::twin::Twin as MemoryStore;
use forgeyard_forges::GitSource;
use forgeyard_forges::github::{AppIdentity, AppKey, Endpoint, Github, GithubOptions, HttpOptions, Target};
use forgeyard_forges::twin::{APP_KEY, Conclusion, JobSpec, JobStatus, RunSpec, Setup, State};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::forge::Person;
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::{Digest, Secret, Timestamp};
use forgeyard_testkit::build::name;
use forgeyard_testkit::rng::Rng;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// 2024-08-14 17:28:47 UTC, the first start of the trace.
const BEGIN: i64 = 1_723_656_527_000_000;
/// How long the control plane is away when it is killed.
const AWAY: Duration = Duration::from_secs(20);
/// How long everything may take after the last start: the longest job takes an hour and a half. What is older than eight hours
/// has left the memory of the farm, and could not be judged.
const PATIENCE: Duration = Duration::from_secs(150 * 60);
const SITES: usize = 8;
const DEVICES: u32 = 20;

/// What is played.
#[derive(Debug, Clone)]
pub struct Settings {
    pub title: &'static str,
    pub seed: u64,
    /// How much faster than the trace starts come.
    pub load: u32,
    pub webhooks: bool,
    /// Faults of every source.
    pub faults: bool,
    /// How often the control plane is killed and started again on its database.
    pub crashes: u32,
    /// Share of the capacity of the model, in hundredths.
    pub capacity: u32,
    /// GitHub Apps that the farm has at the organisation.
    pub apps: u32,
    /// How long every job takes, instead of what is modelled; then the control plane is killed once, at half of it.
    pub lasting: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            title: "the afternoon",
            seed: 1,
            load: 1,
            webhooks: true,
            faults: true,
            crashes: 2,
            capacity: 100,
            apps: 2,
            lasting: None,
        }
    }
}

struct Up {
    app: App,
    router: Router,
    stop: CancellationToken,
    core: JoinHandle<forgeyard_db::Error>,
}

/// The control plane, while it is up.
pub struct Plane {
    up: Mutex<Option<Up>>,
    store: Arc<dyn Store>,
    config: Arc<FarmConfig>,
    clock: Clock,
    forges: Connections,
    folder: TempDir,
    secret: Secret,
    starts: Mutex<u64>,
}

impl Plane {
    pub fn app(&self) -> Option<App> {
        self.up.lock().unwrap().as_ref().map(|up| up.app.clone())
    }

    pub fn router(&self) -> Option<Router> {
        self.up.lock().unwrap().as_ref().map(|up| up.router.clone())
    }

    pub async fn start(&self) {
        let data = self.folder.path().to_owned();
        let epoch = self.store.take_epoch("replay", Duration::from_secs(30)).await.unwrap();
        *self.starts.lock().unwrap() += 1;
        let (core, task) =
            Core::start(Arc::clone(&self.store), Arc::clone(&self.config), self.clock.clone(), epoch)
                .await
                .unwrap();
        let stop = CancellationToken::new();
        let app = App::new(Parts {
            core,
            store: Arc::clone(&self.store),
            blobs: Arc::new(forgeyard_blobs::MemoryStore::new(Arc::new({
                let clock = self.clock.clone();
                move || clock.now()
            }))),
            git: GitSource::new(data.join("sources")),
            forges: self.forges.clone(),
            sealed: Sealed::open(&data).unwrap(),
            keys: Arc::new(Keys::open(&data).unwrap()),
            clock: self.clock.clone(),
            webhook_secret: Some(self.secret.clone()),
            public_url: "http://127.0.0.1".to_owned(),
            secure: false,
            metrics: metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle(),
            artifact_limit: 1 << 20,
            cache_admin: Default::default(),
            cache_tokens: None,
            stop: stop.clone(),
            logins: Arc::default(),
            sources: Arc::default(),
            rules: Arc::new(forgeyard_control::rules::Rules::new(None)),
        });
        serve::work(&app, &stop);
        let router = http::router(app.clone());
        *self.up.lock().unwrap() = Some(Up { app, router, stop, core: task });
    }

    /// Dies: what is not stored is lost.
    pub fn kill(&self) {
        if let Some(up) = self.up.lock().unwrap().take() {
            up.core.abort();
            up.stop.cancel();
        }
    }
}

/// Plays starts. Answers what was seen.
pub fn play(starts: &[Start], settings: &Settings) -> Report {
    let idle = Arc::new(Idle::default());
    let parking = Arc::clone(&idle);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || parking.parking())
        .build()
        .unwrap();
    let plans = plans(starts, settings.load, settings.seed);
    runtime.block_on(World::new(settings).run(&idle, plans))
}

struct World {
    settings: Settings,
    time: Arc<Time>,
    hub: Arc<Hub>,
    plane: Arc<Plane>,
    sites: Arc<Sites>,
    repositories: Vec<u64>,
    people: Vec<Person>,
    stranger: Person,
}

impl World {
    fn new(settings: &Settings) -> Self {
        let time = Time::new(Timestamp::from_micros(BEGIN));
        let mut state = State::new(Setup {
            seed: settings.seed,
            now: time.now(),
            // Documented for organisations of an enterprise on github.com.
            core_limit: 15_000,
            links_in_webhooks: false,
            keep_accepted_bodies: false,
            calls_kept: 0,
            ..Setup::default()
        });
        state.set_base("http://127.0.0.1");
        let secret = Secret::new("a secret of the replay");
        let org = state.add_organization("lab");
        let repositories: Vec<(u64, String)> = (0..REPOSITORIES)
            .map(|number| {
                let full_name = format!("lab/project-{number}");
                (state.add_repository(&full_name), full_name)
            })
            .collect();
        let people: Vec<Person> =
            (0..PEOPLE).map(|number| state.add_user(&format!("maintainer-{number}"))).collect();
        let stranger = state.add_user("stranger");
        let url = settings.webhooks.then_some("http://127.0.0.1/webhooks/github");
        // The first one has the webhook; each further one only adds its limits.
        let apps: Vec<u64> = (0..settings.apps)
            .map(|number| {
                let hook = url.filter(|_| number == 0);
                let app = state.add_app(org, &format!("forgeyard-{number}"), hook, secret.clone());
                state.install(app, org, None);
                app
            })
            .collect();
        state.take_due_deliveries();
        let config = config(settings, &repositories, &people);
        let hub = Hub::new(state, Arc::clone(&time), settings.seed);
        let clock = {
            let (now, waits) = (Arc::clone(&time), Arc::clone(&time));
            let random = Mutex::new(Rng::new(settings.seed));
            Clock::manual(
                move || now.now(),
                move |pause| Box::pin(waits.sleep(pause)),
                move || random.lock().unwrap().bytes(),
            )
        };
        let client_clock = clock.clone();
        let github = Github::direct(
            GithubOptions {
                endpoint: Endpoint::at("http://127.0.0.1", "http://127.0.0.1").unwrap(),
                apps: apps
                    .into_iter()
                    .map(|app| AppIdentity {
                        issuer: app.to_string(),
                        key: AppKey::from_pem(&Secret::new(APP_KEY)).unwrap(),
                    })
                    .collect(),
                clock: Arc::new(move || client_clock.now()),
                http: HttpOptions::default(),
            },
            hub.direct(),
        )
        .unwrap();
        let forges = Connections::new([ConnectionOptions {
            forge: name("github"),
            github,
            register: Register::Repository,
            runner_group: 1,
            scale_sets: vec![ScaleSetWish {
                at: Target::parse("lab").unwrap(),
                name: Kind::Gpu.label(),
                group: "Default".to_owned(),
                labels: vec![Kind::Gpu.label()],
            }],
        }]);
        let memory = std::path::Path::new("/dev/shm");
        let folder = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
        let plane = Arc::new(Plane {
            up: Mutex::default(),
            store: Arc::new(MemoryStore::forgetful()),
            config: Arc::new(config),
            clock,
            forges,
            folder: folder.unwrap(),
            secret,
            starts: Mutex::default(),
        });
        let sites = Sites::new(&hub, &plane);
        let repositories = repositories.into_iter().map(|(id, _)| id).collect();
        Self { settings: settings.clone(), time, hub, plane, sites, repositories, people, stranger }
    }

    async fn run(self, idle: &Idle, plans: Vec<Plan>) -> Report {
        let began = Instant::now();
        let mut seen = Seen::default();
        self.plane.start().await;
        self.join().await;
        if self.settings.faults {
            self.hub.with(plan_faults);
        }
        let begin = self.time.now();
        let last = plans.last().map_or(Duration::ZERO, |plan| plan.at);
        // One that comes while the plane is away would kill nothing and start two.
        let room = last.as_secs() / (AWAY.as_secs() + 10);
        let room = if self.settings.lasting.is_some() { 1 } else { room.saturating_sub(1) };
        let crashes = u64::from(self.settings.crashes).min(room);
        for number in 1..=crashes {
            let at = match self.settings.lasting {
                Some(lasting) => lasting / 2,
                None => last.mul_f64(number as f64 / (crashes + 1) as f64),
            };
            let (plane, time) = (Arc::clone(&self.plane), Arc::clone(&self.time));
            let (hub, busy) = (Arc::clone(&self.hub), Arc::clone(&seen.busy_at_crash));
            tokio::spawn(async move {
                time.sleep(at).await;
                let running = hub
                    .with(|state| state.jobs().filter(|job| job.status() == JobStatus::InProgress).count());
                busy.fetch_max(running, std::sync::atomic::Ordering::Relaxed);
                plane.kill();
                time.sleep(AWAY).await;
                plane.start().await;
            });
        }
        let mut plans = plans.into_iter().peekable();
        let mut looked = begin;
        loop {
            idle.reached().await;
            while let Some(plan) = plans.next_if(|plan| begin.plus(plan.at) <= self.time.now()) {
                self.begin(plan);
            }
            let (due, news) =
                self.hub.with(|state| (state.take_due_deliveries(), state.take_stand_in_news()));
            let busy = !due.is_empty() || !news.is_empty();
            for one in due {
                tokio::spawn(Arc::clone(&self.hub).deliver(self.plane.router(), one));
            }
            self.sites.tell(news);
            if busy {
                continue;
            }
            let now = self.time.now();
            if now.since(looked) >= Duration::from_secs(5) {
                looked = now;
                self.look(&mut seen);
                if plans.peek().is_none() {
                    let left = self.left();
                    if left.is_none() || now.since(begin.plus(last)) > PATIENCE {
                        let late =
                            |left| format!("{} min after the last start {left}", PATIENCE.as_secs() / 60);
                        seen.broken.extend(left.map(late));
                        break;
                    }
                }
            }
            let planned = plans.peek().map(|plan| begin.plus(plan.at));
            let hub = self.hub.with(|state| state.next_due());
            let Some(next) = [self.time.next(), planned, hub].into_iter().flatten().min() else { break };
            self.time.advance_to(next);
        }
        let simulated = self.time.now().since(begin);
        let starts = *self.plane.starts.lock().unwrap();
        judge(&self.settings, &self.hub, &self.plane, &self.sites, &seen, simulated, began.elapsed(), starts)
    }

    async fn join(&self) {
        let app = self.plane.app().unwrap();
        for number in 0..SITES {
            let input = Input::SiteJoined {
                name: name(&format!("box-{number}")),
                token: Digest::of(number.to_string().as_bytes()),
                public_key: "ab".repeat(32),
            };
            let Ok(Reply::Site { site }) = app.core.give(input, farm()).await else { panic!("no site") };
            tokio::spawn(Arc::clone(&self.sites).site(site, number, DEVICES));
        }
        let _ = host(0);
    }

    fn begin(&self, plan: Plan) {
        let repository = self.repositories[plan.repository];
        let person = plan.person.map_or(&self.stranger, |place| &self.people[place]);
        let kinds: Vec<Kind> = plan.jobs.iter().map(|(_, kind, _, _)| *kind).collect();
        let jobs = plan
            .jobs
            .into_iter()
            .map(|(job, kind, duration, success)| JobSpec {
                duration: self.settings.lasting.unwrap_or(duration),
                outcome: if success { Conclusion::Success } else { Conclusion::Failure },
                ..JobSpec::new(&job, &[&kind.label()])
            })
            .collect();
        let run = self.hub.with(|state| {
            let spec = RunSpec { head_sha: plan.head, ..RunSpec::push(repository, person, jobs) };
            let run = state.start_run(spec);
            let mut known = self.hub.kinds.lock().unwrap();
            known.extend(state.current_jobs(run).iter().zip(kinds).map(|(job, kind)| (job.id, kind)));
            run
        });
        if let Some(after) = plan.cancel {
            let hub = Arc::clone(&self.hub);
            tokio::spawn(async move {
                hub.time.sleep(after).await;
                hub.with(|state| state.cancel_run(run));
            });
        }
    }

    /// Looks at the caps.
    fn look(&self, seen: &mut Seen) {
        let Some(app) = self.plane.app() else { return };
        let farm = app.core.read();
        let running = farm.index.live_attempts.len();
        seen.most_running = seen.most_running.max(running);
        if running > app.config().max_running as usize {
            seen.broken.push(format!("{running} attempts run; the cap is {}", app.config().max_running));
        }
        let mut of_repository: std::collections::BTreeMap<u64, usize> = Default::default();
        for attempt in farm.index.live_attempts.iter().filter_map(|id| farm.attempts.get(id)) {
            *of_repository.entry(farm.repository_of(attempt.owner).map_or(0, |of| of.id)).or_default() += 1;
        }
        for (repository, count) in of_repository {
            seen.most_of_repository = seen.most_of_repository.max(count);
            if count > repository_cap(&self.settings) as usize {
                seen.broken.push(format!("repository {repository} has {count} attempts"));
            }
        }
        if running > organisation_cap(&self.settings) as usize {
            seen.broken.push(format!("the organisation has {running} attempts"));
        }
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            let of_pool = farm
                .index
                .live_runners
                .iter()
                .filter_map(|(_, id)| farm.runners.get(id))
                .filter(|runner| runner.pool.as_str() == kind.name())
                .count();
            seen.most_in_pool[place] = seen.most_in_pool[place].max(of_pool);
            if of_pool > most(kind, &self.settings) as usize {
                seen.broken.push(format!("pool {} has {of_pool} machines", kind.name()));
            }
        }
        seen.longest_queue = seen.longest_queue.max(farm.index.queue.len());
    }

    /// What is not over yet.
    fn left(&self) -> Option<String> {
        let open: Vec<u64> = self.hub.with(|state| {
            let open = state.jobs().filter(|job| job.status() != JobStatus::Completed);
            open.map(|job| job.id).collect()
        });
        let standing = self.sites.standing();
        let Some(app) = self.plane.app() else { return Some("the control plane is away".to_owned()) };
        let farm = app.core.read();
        let demands = farm.index.live_demands.iter().filter_map(|id| farm.demands.get(id));
        let demands: Vec<(u64, &'static str)> =
            demands.map(|demand| (demand.job, demand.state.name())).collect();
        if open.is_empty() && standing == 0 && demands.is_empty() {
            return None;
        }
        let (jobs, first) = (open.len(), open.first());
        Some(format!("{jobs} jobs are open (as {first:?}), {standing} machines stand, demands {demands:?}"))
    }
}

/// What was seen on the way.
#[derive(Debug, Default)]
pub struct Seen {
    pub broken: Vec<String>,
    pub most_running: usize,
    pub most_of_repository: usize,
    pub most_in_pool: [usize; 3],
    pub longest_queue: usize,
    /// Jobs that ran when the control plane was killed.
    pub busy_at_crash: Arc<std::sync::atomic::AtomicUsize>,
}
