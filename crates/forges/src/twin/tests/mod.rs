//! Claims about the simulated GitHub.

mod binding;
mod bulk;
mod calls;
mod jobs;
mod scale_sets;
mod server;
mod webhooks;

use super::*;
use forgeyard_model::Secret;
use forgeyard_model::forge::Person;
use serde_json::{Value, json};
use std::time::Duration;

pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// An organisation with one repository, one person, and an App that is installed.
pub(super) struct World {
    pub(super) state: State,
    pub(super) org: u64,
    pub(super) repository: u64,
    pub(super) person: Person,
    pub(super) app: u64,
    pub(super) installation: u64,
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(Setup::default())
    }

    pub(super) fn with(setup: Setup) -> Self {
        let mut state = State::new(setup);
        let org = state.add_organization("lab");
        let repository = state.add_repository("lab/solver");
        let person = state.add_user("Ada");
        let app = state.add_app(org, "farm", Some("http://127.0.0.1:9/hook"), Secret::new("webhook key"));
        let installation = state.install(app, org, None);
        state.advance(Duration::from_secs(5));
        state.take_due_deliveries();
        Self { state, org, repository, person, app, installation }
    }

    pub(super) fn run(&mut self, jobs: Vec<JobSpec>) -> (u64, Vec<u64>) {
        let run = self.state.start_run(RunSpec::push(self.repository, &self.person, jobs));
        let jobs = self.state.run(run).map(|run| run.jobs.clone()).unwrap_or_default();
        (run, jobs)
    }

    pub(super) fn mint(&mut self, name: &str, labels: &[&str]) -> String {
        let spec = RunnerSpec {
            scope: Scope::Organization(self.org),
            name: name.to_owned(),
            group: 1,
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            work_folder: "_work".to_owned(),
            set: None,
        };
        self.state.mint_jit(spec).unwrap().1
    }

    /// A stand-in runner that is booted.
    pub(super) fn runner(&mut self, name: &str, labels: &[&str], behaviour: Behaviour) -> u64 {
        let encoded = self.mint(name, labels);
        let id = self.state.start_stand_in(&encoded, behaviour.clone());
        self.state.advance(behaviour.boot);
        id
    }

    pub(super) fn status(&self, job: u64) -> JobStatus {
        self.state.job(job).unwrap().status()
    }

    pub(super) fn taken_by(&self, job: u64) -> Option<String> {
        self.state.job(job).unwrap().view().runner.map(|by| by.name)
    }

    pub(super) fn call(&mut self, request: &Request) -> Reply {
        match self.state.serve(request).outcome {
            Outcome::Answer(reply) => reply,
            Outcome::Hold(_) => panic!("the call is held"),
        }
    }

    pub(super) fn app_call(&mut self, method: &str, path: &str, body: &Value) -> Reply {
        let issuer = self.state.app(self.app).unwrap().client_id.clone();
        let jwt = app_jwt(&issuer, self.state.now()).unwrap();
        let bearer = format!("Bearer {jwt}");
        self.call(&Request::new(method, path).json(body).header("authorization", &bearer))
    }

    pub(super) fn token(&mut self) -> String {
        let path = format!("/app/installations/{}/access_tokens", self.installation);
        let reply = self.app_call("POST", &path, &json!({}));
        assert_eq!(reply.status, 201, "{}", reply.value());
        reply.value()["token"].as_str().unwrap().to_owned()
    }

    pub(super) fn rest(&mut self, method: &str, path: &str, body: &Value) -> Reply {
        let bearer = format!("Bearer {}", self.token());
        self.call(&Request::new(method, path).json(body).header("authorization", &bearer))
    }
}
