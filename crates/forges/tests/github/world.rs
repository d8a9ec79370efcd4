//! A simulated GitHub with an organisation, a repository and an installed App, and a client for it.

use forgeyard_forges::github::{
    AppIdentity, AppKey, Endpoint, Github, GithubError, GithubOptions, HttpOptions, RepositoryPath, Target,
};
use forgeyard_forges::twin::{APP_KEY, CallFault, JobSpec, Misbehaviour, RunSpec, Setup, Twin};
use forgeyard_model::Secret;
use forgeyard_model::forge::Person;
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct World {
    pub(crate) twin: Twin,
    pub(crate) org: u64,
    pub(crate) repository: u64,
    pub(crate) app: u64,
    pub(crate) installation: u64,
    pub(crate) person: Person,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    pub(crate) async fn with(setup: Setup) -> Self {
        let twin = Twin::start(setup).await.unwrap();
        let (org, repository, app, installation, person) = twin.with(|state| {
            let org = state.add_organization("conda");
            let repository = state.add_repository("conda/feedstock");
            let app = state.add_app(org, "forgeyard", None, Secret::new("hook"));
            let installation = state.install(app, org, None);
            let person = state.add_user("maintainer");
            (org, repository, app, installation, person)
        });
        Self { twin, org, repository, app, installation, person }
    }

    pub(crate) fn identity(app: u64) -> AppIdentity {
        AppIdentity { issuer: app.to_string(), key: AppKey::from_pem(&Secret::new(APP_KEY)).unwrap() }
    }

    /// A client with these Apps, on the simulated clock.
    pub(crate) fn client_of(&self, apps: &[u64]) -> Github {
        let clock = self.twin.clock();
        Github::new(GithubOptions {
            endpoint: Endpoint::at(self.twin.base(), &self.twin.api_url()).unwrap(),
            apps: apps.iter().copied().map(Self::identity).collect(),
            clock: Arc::new(move || clock.now()),
            http: HttpOptions::default(),
        })
        .unwrap()
    }

    pub(crate) fn client(&self) -> Github {
        self.client_of(&[self.app])
    }

    /// A second App of the same organisation, installed.
    pub(crate) fn second_app(&self) -> u64 {
        self.twin.with(|state| {
            let app = state.add_app(self.org, "forgeyard-2", None, Secret::new("hook"));
            state.install(app, self.org, None);
            app
        })
    }

    /// Starts a run of a push with these jobs; the ids of its jobs.
    pub(crate) fn push(&self, jobs: Vec<JobSpec>) -> (u64, Vec<u64>) {
        self.twin.with(|state| {
            let run = state.start_run(RunSpec::push(self.repository, &self.person, jobs));
            let ids = state.current_jobs(run).iter().map(|job| job.id).collect();
            (run, ids)
        })
    }

    /// How many calls of this method went to paths that end so.
    pub(crate) fn count(&self, method: &str, end: &str) -> usize {
        let fits = |call: &&forgeyard_forges::twin::Call| {
            call.request.method == method && call.request.path.ends_with(end)
        };
        self.twin.with(|state| state.calls().filter(fits).count())
    }

    pub(crate) fn fault(&self, fault: CallFault) {
        self.twin.with(|state| state.plan_call_fault(fault));
    }

    pub(crate) fn next_fails(&self, method: &str, path: &str, what: Misbehaviour) {
        self.fault(CallFault::next(method, path, what));
    }

    pub(crate) fn clock_forward(&self, by: Duration) {
        self.twin.clock().advance(by);
    }
}

impl Drop for World {
    /// No test of the client may see it call without credentials.
    fn drop(&mut self) {
        let careless: Vec<String> = self.twin.with(|state| {
            let careless = state.calls().filter(|call| {
                call.rest
                    && !call.request.headers.contains_key("authorization")
                    && !call.request.path.contains("/app-manifests/")
            });
            careless.map(|call| call.request.path.clone()).collect()
        });
        if !std::thread::panicking() {
            assert!(careless.is_empty(), "calls without credentials: {careless:?}");
        }
    }
}

pub(crate) fn org() -> Target {
    Target::parse("conda").unwrap()
}

pub(crate) fn repository() -> RepositoryPath {
    RepositoryPath::parse("conda/feedstock").unwrap()
}

pub(crate) fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// The error's text, which may never hold a secret.
pub(crate) fn words(error: &GithubError) -> String {
    let text = format!("{error} {error:?}");
    for secret in ["ghs_", "queue-", "PRIVATE KEY", "eyJ"] {
        assert!(!text.contains(secret), "a secret is in: {text}");
    }
    error.to_string()
}
