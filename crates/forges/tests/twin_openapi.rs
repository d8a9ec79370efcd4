//! The simulated GitHub is held against GitHub's published OpenAPI description: each of its answers, and each request
//! that these tests make, must be what the description allows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod openapi;

use forgeyard_forges::twin::{
    Behaviour, EnvironmentRule, HookOwner, JobSpec, Outcome, Reply, Request, RunSpec, Setup, State, app_jwt,
};
use forgeyard_model::Secret;
use forgeyard_model::forge::Person;
use openapi::Description;
use serde_json::{Value, json};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// An organisation with a repository and an installed App, and somebody who calls.
struct Caller {
    state: State,
    app: u64,
    installation: u64,
    repository: u64,
    person: Person,
}

impl Caller {
    fn new() -> Self {
        let mut state = State::new(Setup::default());
        let org = state.add_organization("lab");
        let repository = state.add_repository("lab/solver");
        let person = state.add_user("ada");
        let app = state.add_app(org, "farm", Some("http://127.0.0.1:9/hook"), Secret::new("key"));
        let installation = state.install(app, org, None);
        Self { state, app, installation, repository, person }
    }

    fn serve(&mut self, request: &Request) -> Reply {
        match self.state.serve(request).outcome {
            Outcome::Answer(reply) => reply,
            Outcome::Hold(_) => panic!("{} {} is held", request.method, request.path),
        }
    }

    fn as_app(&mut self, method: &str, path: &str, body: Option<Value>) -> Reply {
        let jwt = app_jwt(&self.app.to_string(), self.state.now()).unwrap();
        self.with(method, path, body, &jwt)
    }

    fn as_installation(&mut self, method: &str, path: &str, body: Option<Value>) -> Reply {
        let tokens = format!("/app/installations/{}/access_tokens", self.installation);
        let token = self.as_app("POST", &tokens, None).value()["token"].as_str().unwrap().to_owned();
        self.with(method, path, body, &token)
    }

    fn with(&mut self, method: &str, path: &str, body: Option<Value>, token: &str) -> Reply {
        let mut request = Request::new(method, path).header("authorization", &format!("Bearer {token}"));
        if let Some(body) = body {
            request = request.json(&body);
        }
        self.serve(&request)
    }

    fn run(&mut self, jobs: Vec<JobSpec>) -> (u64, Vec<u64>) {
        let run = self.state.start_run(RunSpec::push(self.repository, &self.person, jobs));
        (run, self.state.run(run).unwrap().jobs.clone())
    }
}

/// What the published description gets wrong, with the reason: these faults are not ours.
const DEFECTS: &[(&str, &str)] = &[
    // The list wants an account to be a person *and* an enterprise (`allOf`); the single answer says `anyOf`.
    ("GET /app/installations → 200", "/account`"),
    // The single answer describes it, the list does not.
    ("GET /app/installations → 200", "the field `client_id` is not described"),
];

/// Fails with all that is wrong with the calls so far; returns how many there were.
fn hold_against(description: &mut Description, state: &State) -> usize {
    // The pages of the web flow are no part of the REST interface, and stand in no description.
    let described = |path: &str| !path.starts_with("/login/oauth/");
    let calls: Vec<_> =
        state.calls().filter(|call| call.rest && described(&call.request.path)).cloned().collect();
    let faults: Vec<String> =
        calls.iter().flat_map(|call| description.faults_of(call, &call.request.path)).collect();
    let known =
        |fault: &&String| DEFECTS.iter().any(|(at, what)| fault.starts_with(at) && fault.contains(what));
    let unique: std::collections::BTreeSet<&String> = faults.iter().filter(|fault| !known(fault)).collect();
    let lines: Vec<&str> = unique.iter().map(|fault| fault.as_str()).collect();
    assert!(lines.is_empty(), "{} faults:\n{}", lines.len(), lines.join("\n"));
    calls.len()
}

#[test]
fn answers_about_apps_and_installations_are_as_described() {
    let Some(mut description) = Description::load() else { return };
    let mut caller = Caller::new();
    let manifest = json!({ "name": "Yard", "hook_attributes": { "url": "http://127.0.0.1:9/hook" } });
    let owner = caller.state.account_by_login("lab").unwrap().id;
    let code = caller.state.accept_manifest(owner, &manifest);
    caller.serve(&Request::new("POST", &format!("/app-manifests/{code}/conversions")));
    caller.serve(&Request::new("POST", &format!("/app-manifests/{code}/conversions")));
    let installation = format!("/app/installations/{}", caller.installation);
    for path in ["/app", "/app/installations", "/orgs/lab/installation", "/repos/lab/solver/installation"] {
        assert_eq!(caller.as_app("GET", path, None).status, 200, "{path}");
    }
    caller.as_app("GET", &installation, None);
    caller.as_app("GET", "/users/ada/installation", None);
    caller.as_app("GET", "/app/hook/config", None);
    caller.as_app("PATCH", "/app/hook/config", Some(json!({ "url": "http://127.0.0.1:9/other" })));
    let tokens = format!("{installation}/access_tokens");
    let narrow = json!({ "repository_ids": [caller.repository], "permissions": { "actions": "read" } });
    caller.as_app("POST", &tokens, Some(narrow));
    caller.as_app("POST", &tokens, Some(json!({ "permissions": { "secrets": "write" } })));
    caller.as_installation("GET", "/installation/repositories", None);
    caller.as_installation("GET", "/rate_limit", None);
    caller.as_installation("GET", "/users/ada", None);
    caller.with("GET", "/app", None, "no.such.token");
    let id = caller.installation;
    caller.state.suspend(id, true);
    caller.as_app("GET", &installation, None);
    caller.as_app("POST", &tokens, None);
    println!("{} calls are as described", hold_against(&mut description, &caller.state));
}

/// The web flow itself is not in the description; its answers are held against GitHub's page about it ("Generating a user
/// access token for a GitHub App"): which fields there are, and that a refusal is a 200 with `error`.
#[test]
fn answers_about_the_person_who_signs_in_are_as_described() {
    let Some(mut description) = Description::load() else { return };
    let mut caller = Caller::new();
    let id = caller.state.app(caller.app).unwrap().client_id.clone();
    let secret = caller.state.client_secret(caller.app).expose().to_owned();
    let ada = caller.person.id;
    let redeem = |caller: &mut Caller, code: &str, secret: &str| {
        let body = json!({ "client_id": id, "client_secret": secret, "code": code });
        caller.serve(&Request::new("POST", "/login/oauth/access_token").json(&body))
    };
    let redirect = "http://127.0.0.1:9/back";
    let code = |caller: &mut Caller| {
        let query = [("client_id", id.as_str()), ("redirect_uri", redirect), ("state", "s")];
        let query = query.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let to = caller.state.authorize(&query, ada).unwrap();
        let (address, query) = to.split_once('?').unwrap();
        assert_eq!(address, redirect);
        query.split('&').find_map(|part| part.strip_prefix("code=")).unwrap().to_owned()
    };
    let first = code(&mut caller);
    let given = redeem(&mut caller, &first, &secret);
    assert_eq!(given.status, 200);
    let given = given.value();
    for field in ["access_token", "token_type", "scope"] {
        assert!(given[field].is_string(), "{field}: {given}");
    }
    assert!(given["expires_in"].is_u64() && given["access_token"].as_str().unwrap().starts_with("ghu_"));
    let second = code(&mut caller);
    for (code, secret) in [(first.as_str(), secret.as_str()), (second.as_str(), "wrong"), ("none", &secret)] {
        let refused = redeem(&mut caller, code, secret);
        assert_eq!(refused.status, 200);
        for field in ["error", "error_description", "error_uri"] {
            assert!(refused.value()[field].is_string(), "{field}: {}", refused.value());
        }
    }
    let token = given["access_token"].as_str().unwrap().to_owned();
    let user = caller.with("GET", "/user", None, &token);
    assert_eq!((user.status, user.value()["id"].as_u64()), (200, Some(ada)));
    assert_eq!(caller.with("GET", "/user", None, "ghu_nobody").status, 401);
    let held = hold_against(&mut description, &caller.state);
    assert_eq!(held, 2, "both answers of /user");
    println!("{held} calls are as described");
}

#[test]
fn answers_about_runners_are_as_described() {
    let Some(mut description) = Description::load() else { return };
    let mut caller = Caller::new();
    let body = |name: &str| {
        json!({ "name": name, "runner_group_id": 1, "labels": ["self-hosted", "linux", "gpu"],
            "work_folder": "/home/runner/work" })
    };
    for base in ["/orgs/lab/actions/runners", "/repos/lab/solver/actions/runners"] {
        let jit = format!("{base}/generate-jitconfig");
        let made = caller.as_installation("POST", &jit, Some(body("one")));
        assert_eq!(made.status, 201);
        assert_eq!(caller.as_installation("POST", &jit, Some(body("one"))).status, 409);
        let wrong = json!({ "name": "two", "labels": [] });
        assert_eq!(caller.as_installation("POST", &jit, Some(wrong)).status, 422);
        caller.as_installation("POST", &format!("{base}/registration-token"), None);
        caller.as_installation("POST", &format!("{base}/remove-token"), None);
        caller.as_installation("GET", &format!("{base}?per_page=100"), None);
        caller.as_installation("GET", &format!("{base}?name=one"), None);
        caller.as_installation("GET", &format!("{base}/downloads"), None);
        let one = format!("{base}/{}", made.value()["runner"]["id"]);
        assert_eq!(caller.as_installation("GET", &one, None).status, 200);
        assert_eq!(caller.as_installation("DELETE", &one, None).status, 204);
        assert_eq!(caller.as_installation("DELETE", &one, None).status, 404);
    }
    let mut long = JobSpec::new("long", &["gpu"]);
    long.duration = MINUTE * 60;
    caller.run(vec![long]);
    let jit = "/orgs/lab/actions/runners/generate-jitconfig";
    let made = caller.as_installation("POST", jit, Some(body("busy"))).value();
    caller.state.start_stand_in(made["encoded_jit_config"].as_str().unwrap(), Behaviour::default());
    caller.state.advance(MINUTE);
    let busy = format!("/orgs/lab/actions/runners/{}", made["runner"]["id"]);
    assert_eq!(caller.as_installation("GET", &busy, None).value()["busy"], true);
    assert_eq!(caller.as_installation("DELETE", &busy, None).status, 422);
    let groups = "/orgs/lab/actions/runner-groups";
    let body = json!({ "name": "gpus", "selected_repository_ids": [caller.repository] });
    let group = caller.as_installation("POST", groups, Some(body)).value();
    caller.as_installation("GET", groups, None);
    caller.as_installation("GET", &format!("{groups}/{}", group["id"]), None);
    println!("{} calls are as described", hold_against(&mut description, &caller.state));
}

#[test]
fn answers_about_runs_and_jobs_are_as_described() {
    let Some(mut description) = Description::load() else { return };
    let mut caller = Caller::new();
    let repository = caller.repository;
    caller.state.add_environment(repository, "lab", EnvironmentRule::Reviewers);
    let mut held = JobSpec::new("held", &["gpu"]);
    held.environment = Some("lab".to_owned());
    let (run, jobs) = caller.run(vec![JobSpec::new("lint", &["ubuntu-latest"]), held]);
    let person = caller.person.clone();
    let number = caller.state.open_pull(repository, repository, "fix", &"c".repeat(40), &person);
    let mut spec = RunSpec::push(repository, &person, vec![JobSpec::new("waits", &["gpu"])]);
    spec.event = "pull_request".to_owned();
    spec.pull = Some(number);
    caller.state.start_run(spec);
    let runs = "/repos/lab/solver/actions/runs";
    for minutes in [0, 3] {
        caller.state.advance(MINUTE * minutes);
        caller.as_installation("GET", runs, None);
        caller.as_installation("GET", &format!("{runs}?status=queued&per_page=100&page=1"), None);
        caller.as_installation("GET", &format!("{runs}/{run}"), None);
        caller.as_installation("GET", &format!("{runs}/{run}/attempts/1"), None);
        caller.as_installation("GET", &format!("{runs}/{run}/jobs?filter=all"), None);
        caller.as_installation("GET", &format!("{runs}/{run}/attempts/1/jobs"), None);
        caller.as_installation("GET", &format!("{runs}/{run}/pending_deployments"), None);
        for job in &jobs {
            caller.as_installation("GET", &format!("/repos/lab/solver/actions/jobs/{job}"), None);
        }
    }
    let again = format!("{runs}/{run}/rerun");
    assert_eq!(caller.as_installation("POST", &again, None).status, 403);
    let cancel = format!("{runs}/{run}/cancel");
    assert_eq!(caller.as_installation("POST", &cancel, None).status, 202);
    assert_eq!(caller.as_installation("POST", &cancel, None).status, 409);
    assert_eq!(caller.as_installation("POST", &again, None).status, 201);
    caller.as_installation("GET", &format!("{runs}/{run}/attempts/2/jobs"), None);
    caller.as_installation("POST", &format!("{runs}/{run}/force-cancel"), None);
    let failed = format!("{runs}/{run}/rerun-failed-jobs");
    assert_eq!(caller.as_installation("POST", &failed, None).status, 201);
    let job = format!("/repos/lab/solver/actions/jobs/{}/rerun", jobs[0]);
    assert_eq!(caller.as_installation("POST", &job, None).status, 403);
    println!("{} calls are as described", hold_against(&mut description, &caller.state));
}

#[test]
fn answers_about_checks_repositories_and_deliveries_are_as_described() {
    let Some(mut description) = Description::load() else { return };
    let mut caller = Caller::new();
    let sha = "a".repeat(40);
    let checks = "/repos/lab/solver/check-runs";
    let body = json!({
        "name": "gate", "head_sha": sha, "status": "in_progress", "external_id": "dem_1",
        "started_at": "2026-01-05T08:00:00Z", "details_url": "http://127.0.0.1:9/why",
        "output": { "title": "waits", "summary": "for a GPU" },
        "actions": [{ "label": "Approve", "description": "let it run", "identifier": "approve" }],
    });
    let made = caller.as_installation("POST", checks, Some(body)).value();
    let one = format!("{checks}/{}", made["id"]);
    caller.as_installation("GET", &one, None);
    let done = json!({ "conclusion": "action_required", "completed_at": "2026-01-05T08:01:00Z" });
    assert_eq!(caller.as_installation("PATCH", &one, Some(done)).value()["status"], "completed");
    caller.as_installation(
        "GET",
        &format!("/repos/lab/solver/commits/{sha}/check-runs?check_name=gate"),
        None,
    );
    caller.as_installation("POST", checks, Some(json!({ "name": "no commit" })));
    caller.as_installation("GET", "/repos/lab/solver", None);
    caller.as_installation("GET", "/repos/lab/solver/collaborators/ada/permission", None);
    let repository = caller.repository;
    let files = &mut caller.state.repository_mut(repository).unwrap().files;
    files.insert(".access.yml".to_owned(), b"version: 1\n".to_vec());
    caller.as_installation("GET", "/repos/lab/solver/contents/.access.yml", None);
    let person = caller.person.clone();
    for sha in ["d", "e"] {
        let mut spec = RunSpec::push(repository, &person, Vec::new());
        spec.head_sha = sha.repeat(40);
        caller.state.start_run(spec);
    }
    let head = caller.as_installation("GET", "/repos/lab/solver/git/ref/heads%2Fmain", None).value();
    assert_eq!((&head["ref"], &head["object"]["sha"]), (&"refs/heads/main".into(), &"e".repeat(40).into()));
    let compare = format!("/repos/lab/solver/compare/{}...{}", "d".repeat(40), "e".repeat(40));
    assert_eq!(caller.as_installation("GET", &compare, None).value()["status"], "ahead");
    caller.as_installation("GET", "/repos/lab/solver/git/ref/heads%2Fnone", None);
    let author = caller.state.add_user("contributor");
    let fork = caller.state.add_fork(repository, &author);
    caller.state.open_pull(repository, fork, "fix", &"c".repeat(40), &author);
    let head = "/repos/lab/solver/pulls?state=all&head=contributor:fix&per_page=30";
    let pulls = caller.as_installation("GET", head, None).value();
    assert_eq!((pulls.as_array().unwrap().len(), &pulls[0]["user"]["id"]), (1, &author.id.into()));
    caller.run(vec![JobSpec::new("build", &["gpu"]), JobSpec::new("test", &["gpu"])]);
    caller.state.advance(Duration::from_secs(2));
    for one in caller.state.take_due_deliveries() {
        caller.state.delivery_answered(one.delivery, Ok(500));
    }
    let list = caller.as_app("GET", "/app/hook/deliveries?per_page=1", None);
    let cursor =
        list.header("link").unwrap().split_once("cursor=").unwrap().1.split_once('&').unwrap().0.to_owned();
    caller.as_app("GET", &format!("/app/hook/deliveries?per_page=100&cursor={cursor}"), None);
    let one = format!("/app/hook/deliveries/{}", list.value()[0]["id"]);
    caller.as_app("GET", &one, None);
    assert_eq!(caller.as_app("POST", &format!("{one}/attempts"), None).status, 202);
    println!("{} calls are as described", hold_against(&mut description, &caller.state));
}

#[test]
fn bodies_of_webhooks_are_as_described() {
    let Some(mut description) = Description::load() else { return };
    let mut caller = Caller::new();
    let (repository, person) = (caller.repository, caller.person.clone());
    let owner = HookOwner::Repository(repository);
    caller.state.add_hook(owner, Some("http://127.0.0.1:9/hook"), Secret::new("k"), &["workflow_job"]);
    caller.state.add_environment(repository, "lab", EnvironmentRule::Wait(MINUTE));
    let mut held = JobSpec::new("held", &["gpu"]);
    held.environment = Some("lab".to_owned());
    let (run, _) = caller.run(vec![JobSpec::new("lint", &["ubuntu-latest"]), held]);
    caller.state.advance(MINUTE * 5);
    caller.state.cancel_run(run);
    let check = json!({ "name": "gate", "head_sha": "a".repeat(40) });
    let made = caller.as_installation("POST", "/repos/lab/solver/check-runs", Some(check)).value();
    let check = made["id"].as_u64().unwrap();
    caller.state.request_check_action(check, "approve", &person);
    caller.state.rerequest_check(check, &person);
    let id = caller.installation;
    caller.state.suspend(id, true);
    let mut seen = std::collections::BTreeSet::new();
    let mut faults = std::collections::BTreeSet::new();
    for one in caller.state.deliveries() {
        let body: Value = serde_json::from_slice(&one.body).unwrap();
        faults.extend(description.faults_of_webhook(&one.event, one.action.as_deref(), &body));
        seen.insert(format!("{}.{}", one.event, one.action.clone().unwrap_or_default()));
    }
    let faults: Vec<String> = faults.into_iter().collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    println!("as described: {}", seen.into_iter().collect::<Vec<_>>().join(", "));
}
