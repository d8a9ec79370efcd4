//! A farm as its operators start it, before a *simulated* GitHub of the test's own.
//!
//! The farm is the built program, `forgeyard up`, with a configuration file, an access file, the key of an App and the
//! secret of its webhook. GitHub is the twin of `forgeyard_forges` in the process of the test; its clock starts at the time
//! of this host and runs with it. The runner program is the example `simulated_runner` of that crate, shown to the machines
//! by their image. A step of a job calls the test and waits for its answer ([`Witness`]), so that a test looks at a
//! machine while it works, and knows of every step that ran anywhere.

use crate::chain::{Life, PROGRAM, Place, possible, traces};
use crate::witness::Witness;
use forgeyard_api::client::{Client, HttpOptions};
use forgeyard_forges::twin::{APP_KEY, JobSpec, RunSpec, Setup, State, Twin};
use forgeyard_model::demand::Demand;
use forgeyard_model::forge::Person;
use forgeyard_model::runner::{Runner, RunnerState};
use forgeyard_model::{RunnerId, Secret, Timestamp};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long an event is waited for. Far above what it takes: this is no timed test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Secret of the App's webhook.
const WEBHOOK_SECRET: &str = "the secret of the simulated webhook";
/// Labels of the pool.
pub(crate) const LABELS: [&str; 2] = ["self-hosted", "gpu"];
/// Name of the scale set and its one label.
pub(crate) const SET: &str = "gpu-set";
/// No runner has this name: a job that goes only to it waits.
pub(crate) const NOBODY: &str = "a runner that does not exist";

/// The *simulated* runner program, if this host can run a whole farm. What is missing is said; with
/// `FORGEYARD_REQUIRE_SANDBOX=1` it is a failure.
pub(crate) fn runner_program() -> Option<PathBuf> {
    if !possible() {
        return None;
    }
    let path = Path::new(PROGRAM).with_file_name("examples").join("simulated_runner");
    if path.is_file() {
        return Some(path);
    }
    let missing = "the example simulated_runner is not built: \
                   cargo build -p forgeyard-forges --features twin --example simulated_runner";
    let required = std::env::var("FORGEYARD_REQUIRE_SANDBOX").is_ok_and(|value| value == "1");
    assert!(!required, "FORGEYARD_REQUIRE_SANDBOX=1, and {missing}");
    println!("SKIPPED: {missing}");
    None
}

/// Where demand comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Signed webhooks.
    Webhook,
    /// A scale set; no webhook has an address.
    ScaleSet,
    /// Signed webhooks, in a farm with a build cache that works for forks as well. Its jobs compile something first.
    Cached,
    /// The same, and the cache speaks TLS under a certificate whose authority no system trusts.
    Secured,
}

impl By {
    const fn cached(self) -> bool {
        matches!(self, By::Cached | By::Secured)
    }
}

/// Folder of the clients of the cache, where machines may see it.
pub(crate) const CLIENTS: &str = "/opt/forgeyard/clients";

/// Everything of one test.
pub(crate) struct Door {
    pub(crate) twin: Twin,
    /// Somebody whom a grant names.
    pub(crate) person: Person,
    /// The repository that a grant names.
    pub(crate) repository: u64,
    /// A repository of the same organisation that no grant names.
    pub(crate) other: u64,
    /// Somebody else, with a fork.
    pub(crate) stranger: Person,
    /// The fork.
    pub(crate) fork: u64,
    /// Where the cache is for this host, without TLS, when there is one.
    pub(crate) cache: String,
    pub(crate) client: Client,
    pub(crate) witness: Witness,
    pub(crate) place: Place,
    life: Life,
    _shown: tempfile::TempDir,
    url: String,
    begun: Instant,
}

impl Door {
    pub(crate) async fn open(program: &Path, by: By) -> Self {
        let begun = Instant::now();
        let setup = Setup { now: now(), delivery_delay: Duration::from_millis(20), ..Setup::default() };
        let mut state = State::new(setup);
        let org = state.add_organization("lab");
        let (repository, other) = (state.add_repository("lab/solver"), state.add_repository("lab/other"));
        let app = state.add_app(org, "forgeyard", None, Secret::new(WEBHOOK_SECRET));
        state.install(app, org, None);
        let person = state.add_user("ada");
        let stranger = state.add_user("eve");
        let fork = state.add_repository("eve/solver");
        let mut twin = Twin::start_with(state).await.unwrap();
        twin.run_freely(1);

        let (place, witness) = (Place::new(), Witness::new().await);
        std::fs::create_dir_all(&place.data).unwrap();
        // Where images may show it: not below `/tmp` or `/var/tmp`, which are the machine's own.
        let shown = tempfile::Builder::new().prefix("forgeyard-test-").tempdir_in("/var/lib").unwrap();
        put_program(shown.path(), program, witness.port(), by);
        let (listen, cache) = (free(), free().to_string());
        let url = format!("http://{listen}");
        if by != By::ScaleSet {
            twin.with(|state| {
                let hook = state.app(app).unwrap().hook;
                state.hook_mut(hook).unwrap().url = Some(format!("{url}/webhooks/github"));
            });
        }
        let files = Files {
            place: &place,
            twin: &twin,
            app,
            repository,
            other,
            person: &person,
            stranger: &stranger,
            cache: &cache,
            shown: shown.path(),
        };
        let config = files.write(by, &listen.to_string());
        let (data, config) = (place.data.display().to_string(), config.display().to_string());
        let mut life = place.start(&["up", "--data", &data, "--config", &config]);
        let token = place.data.join("admin.token");
        while std::net::TcpStream::connect(listen).is_err() || !token.exists() {
            assert!(life.over().is_none(), "the farm ended:\n{}", place.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let secret = Secret::new(std::fs::read_to_string(&token).unwrap().trim());
        let client = Client::new(&url, Some(secret), &HttpOptions::default()).unwrap();
        let door = Self {
            twin,
            person,
            repository,
            other,
            stranger,
            fork,
            cache,
            client,
            witness,
            place,
            life,
            _shown: shown,
            url,
            begun,
        };
        // What is asked at the start is none of what a job costs.
        let polls = |state: &mut State| {
            state.calls().filter(|call| call.request.path.ends_with("/actions/runs")).count()
        };
        door.until("the first poll is over", async || (door.twin.with(polls) >= 2).then_some(())).await;
        if by == By::ScaleSet {
            let asked = |state: &mut State| state.scale_set(1)?.capacity;
            door.until("the scale set is listened to", async || door.twin.with(asked)).await;
        }
        door.twin.with(State::forget_calls);
        door
    }

    /// Waits for an event.
    pub(crate) async fn until<T>(&self, what: &str, look: impl AsyncFn() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look().await {
                return found;
            }
            if begun.elapsed() > PATIENCE {
                let demands = self.client.demands().await;
                panic!("never: {what}\n{demands:#?}\n{}", self.place.said());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Starts a run of one job by a push. It goes to no runner but the one of this name, if one is given.
    pub(crate) fn push(&self, repository: u64, labels: &[&str], only: Option<&str>) -> u64 {
        self.twin.with(|state| {
            let run = RunSpec::push(repository, &self.person, vec![JobSpec::new("build", labels)]);
            let run = state.start_run(run);
            let job = state.current_jobs(run)[0].id;
            if let Some(name) = only {
                state.steer(job, name);
            }
            job
        })
    }

    /// What the farm has of a job of the forge, once it is in this state.
    pub(crate) async fn demand(&self, job: u64, state: &str) -> Demand {
        let what = format!("job {job} is {state}");
        self.until(&what, async || {
            let demands = self.client.demands().await.unwrap();
            demands.into_iter().find(|demand| demand.job == job && demand.state.name() == state)
        })
        .await
    }

    /// A machine whose runner is registered, and which is none of these.
    pub(crate) async fn machine(&self, but: &[RunnerId]) -> Runner {
        self.until("a machine has its registration", async || {
            let runners = self.client.runners().await.unwrap();
            runners.into_iter().find(|runner| {
                let minted = runner.registration.as_ref().is_some_and(|own| own.minted_at.is_some());
                minted && !but.contains(&runner.id)
            })
        })
        .await
    }

    /// Waits until a machine is gone: for the farm, and from this host.
    pub(crate) async fn gone(&self, machine: RunnerId) {
        self.until("the machine is gone", async || {
            let runners = self.client.runners().await.unwrap();
            let live = |runner: &Runner| runner.id == machine && runner.state != RunnerState::Deleted;
            (!runners.iter().any(live)).then_some(())
        })
        .await;
        assert_eq!(self.traces(machine), Vec::<String>::new());
        assert!(!self.folder(machine).exists(), "{} is left", self.folder(machine).display());
    }

    /// Processes, mounts, control groups and containers of a machine.
    pub(crate) fn traces(&self, machine: RunnerId) -> Vec<String> {
        traces::of(Path::new("/no folder of data"), &BTreeSet::from([machine.to_string()]))
    }

    /// Starts a run of one job by a pull request of the fork, and says its number and the job.
    pub(crate) fn pull(&self) -> (u64, u64) {
        self.twin.with(|state| {
            let sha = "f".repeat(40);
            let number = state.open_pull(self.repository, self.fork, "fix", &sha, &self.stranger);
            let mut run =
                RunSpec::push(self.repository, &self.stranger, vec![JobSpec::new("build", &LABELS)]);
            run.event = "pull_request".to_owned();
            (run.head_branch, run.head_sha) = ("fix".to_owned(), sha);
            (run.head_repository, run.pull) = (self.fork, Some(number));
            let run = state.start_run(run);
            (number, state.current_jobs(run)[0].id)
        })
    }

    /// What the farm tells the agent of an attempt about the cache.
    pub(crate) async fn cache_access(&self, attempt: &str, session: &str) -> serde_json::Value {
        let url = format!("{}/agent/v1/attempts/{attempt}/cache", self.url);
        let answer = reqwest::Client::new().get(url).bearer_auth(session).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.status());
        answer.json().await.unwrap()
    }

    /// What the program says of the cache.
    pub(crate) fn cache(&self, arguments: &[&str]) -> String {
        let mut command = std::process::Command::new(PROGRAM);
        command.arg("cache").args(arguments).args(["--cache", &format!("http://{}", self.cache), "--data"]);
        let output = command.arg(&self.place.data).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn folder(&self, machine: RunnerId) -> PathBuf {
        self.place.data.join("site/sandbox/runners").join(machine.to_string())
    }

    /// The file that the first step of every job writes.
    pub(crate) fn marker(&self, machine: RunnerId) -> PathBuf {
        self.folder(machine).join("work/marker")
    }

    /// Waits until no device is taken.
    pub(crate) async fn leases_end(&self) {
        self.until("every lease has ended", async || {
            let leases = self.client.leases().await.unwrap();
            leases.iter().all(|lease| !lease.state.live()).then_some(())
        })
        .await;
    }

    /// What `forgeyard why` says of a job, by its address at the forge.
    pub(crate) fn why(&self, job: u64) -> String {
        let address = self.twin.with(|state| {
            let run = state.job(job).unwrap().run;
            format!("{}/lab/any/actions/runs/{run}/job/{job}", state.urls().html)
        });
        let mut command = std::process::Command::new(PROGRAM);
        command.args(["why", &address, "--farm", &self.url, "--token-file"]);
        let output =
            command.arg(self.place.data.join("admin.token")).env_remove("FORGEYARD_TOKEN").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What the machines of a job of the forge wrote.
    pub(crate) async fn log(&self, demand: &Demand) -> String {
        let mut text = String::new();
        for launch in self.client.demand(demand.id).await.unwrap().launches {
            text += &self.client.log(launch.id, 0).await.unwrap().text;
        }
        text
    }

    /// Calls to REST since the start, by what they are for: those about runs and runners, and all others, one line each.
    pub(crate) fn calls(&self) -> (Vec<String>, Vec<String>) {
        self.twin.with(|state| {
            let rest = state.calls().filter(|call| call.rest);
            // A poll lists runs and then their jobs, and comes when its time has come.
            let polls = |line: &str| line.contains("/actions/runs ") || line.contains("/jobs ");
            let of_job = |line: &String| line.contains("/actions/") && !polls(line);
            rest.map(|call| format!("{} {} {}", call.request.method, call.request.path, call.reply.status))
                .partition(of_job)
        })
    }

    /// Stops the farm, politely.
    pub(crate) fn close(self) -> (Place, Duration) {
        let ended = self.life.stop(&self.place);
        assert!(ended.success(), "{ended}\n{}", self.place.said());
        (self.place, self.begun.elapsed())
    }
}

/// A port that was free a moment ago; the farm names its own addresses in its configuration.
fn free() -> std::net::SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The time of this host.
fn now() -> Timestamp {
    #[allow(
        clippy::disallowed_methods,
        reason = "keys and configurations are good for a time that both sides know"
    )]
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap())
}

/// Puts the runner program where the image of the machines shows it. A job's one step leaves a marker, calls the witness
/// and waits for its answer.
fn put_program(folder: &Path, program: &Path, witness: u16, by: By) {
    std::fs::copy(program, folder.join("simulated_runner")).unwrap();
    let here = folder.display();
    let start = format!(
        "#!/bin/sh\nexport SIMULATED_RUNNER_STEPS='/bin/bash {here}/steps.sh'\nexec {here}/simulated_runner\n"
    );
    let compile = if by.cached() { include_str!("compile.sh") } else { "" };
    let steps = format!(
        "set -e\n{compile}\necho \"step of $GITHUB_REPOSITORY\"\ntouch /work/marker\nexec 3<>/dev/tcp/127.0.0.1/{witness}\n\
         echo \"$GITHUB_REPOSITORY\" >&3\nread -r answer <&3\necho \"the witness says $answer\"\n"
    );
    std::fs::write(folder.join("run.sh"), start).unwrap();
    std::fs::write(folder.join("steps.sh"), steps).unwrap();
    for path in [folder.to_owned(), folder.join("run.sh"), folder.join("simulated_runner")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// What an operator writes.
struct Files<'d> {
    place: &'d Place,
    twin: &'d Twin,
    app: u64,
    repository: u64,
    other: u64,
    person: &'d Person,
    stranger: &'d Person,
    cache: &'d str,
    shown: &'d Path,
}

impl Files<'_> {
    /// Writes all of it, and answers where `forgeyard.toml` is.
    fn write(&self, by: By, listen: &str) -> PathBuf {
        let at = |name: &str| self.place.data.with_file_name(name);
        std::fs::write(at("app.pem"), APP_KEY).unwrap();
        std::fs::write(at("webhook.secret"), WEBHOOK_SECRET).unwrap();
        let (repository, person, stranger) = (self.repository, self.person.id, self.stranger.id);
        let who = match by {
            _ if by.cached() => format!(
                "events = [\"push\", \"fork-pull-request\"]\nisolation = \"shared-kernel\"\nusers = [{person}, {stranger}]\n"
            ),
            _ => format!("events = [\"push\"]\nusers = [{person}]\n"),
        };
        let access = format!(
            "[[grants]]\nid = \"solver\"\nrepository = {{ id = {repository}, name = \"lab/solver\" }}\n\
             resources = [\"runners\"]\n{who}"
        );
        std::fs::write(at("access.toml"), access).unwrap();
        let mut text = format!("listen = \"{listen}\"\naccess = \"{}\"\n\n", at("access.toml").display());
        for (id, name) in [(repository, "lab/solver"), (self.other, "lab/other")] {
            let _ = writeln!(
                text,
                "[[repositories]]\nforge = \"github\"\nid = {id}\nname = \"{name}\"\n\
                 source = \"https://simulated.invalid/{name}.git\"\nprotected = [\"main\"]\nchannel = \"gpu\"\n"
            );
        }
        let (shown, labels) = (
            self.shown.display(),
            match by {
                By::Webhook | By::Cached | By::Secured => {
                    LABELS.map(|label| format!("\"{label}\"")).join(", ")
                }
                By::ScaleSet => format!("\"{SET}\""),
            },
        );
        let clients = match by.cached() && Path::new(CLIENTS).is_dir() {
            true => format!(", \"{CLIENTS}\""),
            false => String::new(),
        };
        let _ = writeln!(
            text,
            "[[images]]\nname = \"host\"\nroot = \"host\"\nallow = [\"{shown}\"{clients}]\n\n\
             [[flavors]]\nname = \"runner\"\ncpu-millis = 1000\nmemory-mib = 512\ndisk-mib = 1024\n\
             time-limit-seconds = 600\nnetwork = true\ngpu = {{ count = 1 }}\n\n\
             [use-flavors]\nplan = \"runner\"\nbuild = \"runner\"\ntest = \"runner\"\ngpu-test = \"runner\"\n\n\
             [[pools]]\nname = \"runners\"\nprovider = \"sandbox\"\nflavors = [\"runner\"]\nimage = \"host\"\n\
             isolation = \"shared-kernel\"\nmax = 2\n\
             runners = {{ labels = [{labels}], flavor = \"runner\", program = [\"{shown}/run.sh\"] }}\n"
        );
        let _ = writeln!(
            text,
            "[[forges]]\nname = \"github\"\nkind = \"github\"\nweb-url = \"{}\"\napi-url = \"{}\"\n\
             register-at = \"organisation\"\n\n[[forges.apps]]\napp-id = {}\nkey-file = \"{}\"",
            self.twin.base(),
            self.twin.api_url(),
            self.app,
            at("app.pem").display()
        );
        match by {
            By::Webhook | By::Cached | By::Secured => {
                writeln!(text, "webhook-secret-file = \"{}\"", at("webhook.secret").display()).unwrap()
            }
            By::ScaleSet => {
                writeln!(text, "\n[[forges.scale-sets]]\nat = \"lab\"\nname = \"{SET}\"").unwrap()
            }
        }
        match by {
            By::Webhook | By::ScaleSet => {}
            By::Cached => {
                let _ = writeln!(text, "\n[cache]\nlisten = \"{}\"", self.cache);
            }
            By::Secured => {
                let port = free().port();
                crate::certificates::write(at("ca.pem").parent().unwrap());
                let [ca, chain, key] =
                    ["ca.pem", "chain.pem", "key.pem"].map(|name| at(name).display().to_string());
                let _ = writeln!(
                    text,
                    "\n[cache]\nlisten = \"127.0.0.1:{port}\"\nlocal-listen = \"{}\"\n\
                     address = \"https://localhost:{port}\"\nca-file = \"{ca}\"\n\n\
                     [cache.tls]\ncertificate = \"{chain}\"\nkey = \"{key}\"",
                    self.cache
                );
            }
        }
        std::fs::write(at("forgeyard.toml"), text).unwrap();
        at("forgeyard.toml")
    }
}
