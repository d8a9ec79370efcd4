use super::*;

const JIT: &str = "/orgs/lab/actions/runners/generate-jitconfig";

fn jit_body(name: &str) -> Value {
    json!({ "name": name, "runner_group_id": 1, "labels": ["self-hosted", "gpu"] })
}

fn with_jwt(world: &mut World, claims: &Value) -> Reply {
    let bearer = format!("Bearer {}", sign_jwt(claims).unwrap());
    world.call(&Request::new("GET", "/app").header("authorization", &bearer))
}

#[test]
fn a_jwt_is_verified_by_signature_issuer_and_lifetime() {
    let mut world = World::new();
    let now = world.state.now().as_micros() / 1_000_000;
    let app = world.app;
    let by_id = json!({ "iss": app, "iat": now - 60, "exp": now + 540 });
    assert_eq!(with_jwt(&mut world, &by_id).status, 200);
    let too_long = json!({ "iss": app, "iat": now, "exp": now + 700 });
    let reply = with_jwt(&mut world, &too_long);
    assert_eq!(reply.status, 401);
    assert!(reply.value()["message"].as_str().unwrap().contains("too far in the future"));
    let over = json!({ "iss": app, "iat": now - 700, "exp": now - 100 });
    assert_eq!(with_jwt(&mut world, &over).status, 401);
    let ahead = json!({ "iss": app, "iat": now + 200, "exp": now + 500 });
    assert_eq!(with_jwt(&mut world, &ahead).status, 401);
    let other = json!({ "iss": "Iv1.nobody", "iat": now, "exp": now + 500 });
    assert_eq!(with_jwt(&mut world, &other).status, 404);
    // The claims of one token under the signature of another.
    let good = sign_jwt(&by_id).unwrap();
    let foreign = sign_jwt(&too_long).unwrap();
    let forged = format!("{}.{}", good.rsplit_once('.').unwrap().0, foreign.rsplit_once('.').unwrap().1);
    let reply = world.call(&Request::new("GET", "/app").header("authorization", &format!("Bearer {forged}")));
    assert_eq!(reply.status, 401);
}

#[test]
fn a_jit_call_answers_as_documented_and_refuses_as_reported() {
    let mut world = World::new();
    let reply = world.rest("POST", JIT, &jit_body("one"));
    assert_eq!(reply.status, 201);
    assert!(reply.value()["encoded_jit_config"].as_str().unwrap().len() > 40);
    let again = world.rest("POST", JIT, &jit_body("ONE"));
    assert_eq!(again.status, 409);
    assert!(again.value()["message"].as_str().unwrap().starts_with("Already exists"));
    let no_group = json!({ "name": "two", "labels": ["gpu"] });
    assert_eq!(world.rest("POST", JIT, &no_group).status, 422);
    let no_labels = json!({ "name": "two", "runner_group_id": 1, "labels": [] });
    assert_eq!(world.rest("POST", JIT, &no_labels).status, 422);
    let hosted = json!({ "name": "two", "runner_group_id": 2, "labels": ["gpu"] });
    assert_eq!(world.rest("POST", JIT, &hosted).status, 403);
    let unknown = json!({ "name": "two", "runner_group_id": 77, "labels": ["gpu"] });
    assert_eq!(world.rest("POST", JIT, &unknown).status, 404);
    world.state.setup_mut().group_limit = 1;
    let full = world.rest("POST", JIT, &jit_body("three"));
    assert!(full.value()["message"].as_str().unwrap().contains("has reached max limit of 1 runners"));
}

#[test]
fn a_repository_that_forbids_its_own_runners_says_so() {
    let mut world = World::new();
    let path = "/repos/lab/solver/actions/runners/generate-jitconfig";
    world.state.repository_mut(world.repository).unwrap().own_runners = false;
    let reply = world.rest("POST", path, &jit_body("one"));
    assert!(reply.value()["message"].as_str().unwrap().starts_with("Repository level self-hosted runners"));
    world.state.repository_mut(world.repository).unwrap().actions_enabled = false;
    let reply = world.rest("POST", path, &jit_body("one"));
    assert!(reply.value()["message"].as_str().unwrap().starts_with("GitHub Actions is disabled"));
}

#[test]
fn garm_455_deleting_a_busy_runner_is_refused_and_lists_lie_behind() {
    let mut world = World::with(Setup { list_lag: MINUTE * 5, ..Setup::default() });
    let mut long = JobSpec::new("long", &["gpu"]);
    long.duration = MINUTE * 60;
    world.run(vec![long]);
    world.runner("busy", &["gpu"], Behaviour::default());
    world.state.advance(MINUTE);
    let list = world.rest("GET", "/orgs/lab/actions/runners?per_page=100", &json!({})).value();
    assert_eq!(list["runners"][0]["busy"], false);
    let path = format!("/orgs/lab/actions/runners/{}", list["runners"][0]["id"]);
    assert_eq!(world.rest("GET", &path, &json!({})).value()["busy"], true);
    assert_eq!(world.rest("DELETE", &path, &json!({})).status, 422);
}

#[test]
fn a_missing_permission_is_named() {
    let mut world = World::new();
    let installation = world.installation;
    world
        .state
        .installation_mut(installation)
        .unwrap()
        .permissions
        .remove("organization_self_hosted_runners");
    let reply = world.rest("POST", JIT, &jit_body("one"));
    assert_eq!(reply.status, 403);
    assert_eq!(reply.value()["message"], "Resource not accessible by integration");
    let accepted = reply.header("x-accepted-github-permissions");
    assert_eq!(accepted, Some("organization_self_hosted_runners=write"));
}

#[test]
fn tokens_end_with_their_hour_their_installation_and_its_suspension() {
    let mut world = World::new();
    let bearer = format!("Bearer {}", world.token());
    let request = Request::new("GET", "/installation/repositories").header("authorization", &bearer);
    assert_eq!(world.call(&request).status, 200);
    world.state.suspend(world.installation, true);
    assert_eq!(world.call(&request).status, 403);
    let path = format!("/app/installations/{}/access_tokens", world.installation);
    let refused = world.app_call("POST", &path, &json!({}));
    assert_eq!(refused.value()["message"], "This installation has been suspended");
    world.state.suspend(world.installation, false);
    assert_eq!(world.call(&request).status, 200);
    world.state.advance(MINUTE * 61);
    assert_eq!(world.call(&request).status, 401);
    world.state.uninstall(world.installation);
    assert_eq!(world.app_call("POST", &path, &json!({})).status, 404);
    assert_eq!(world.app_call("GET", "/orgs/lab/installation", &json!({})).status, 404);
}

#[test]
fn a_token_can_be_narrowed_and_not_widened() {
    let mut world = World::new();
    let other = world.state.add_repository("lab/other");
    let path = format!("/app/installations/{}/access_tokens", world.installation);
    let body = json!({ "repository_ids": [other], "permissions": { "actions": "read" } });
    let reply = world.app_call("POST", &path, &body);
    assert_eq!(reply.value()["repository_selection"], "selected");
    let bearer = format!("Bearer {}", reply.value()["token"].as_str().unwrap());
    let get = |path: &str| Request::new("GET", path).header("authorization", &bearer);
    assert_eq!(world.call(&get("/repos/lab/other/actions/runs")).status, 200);
    assert_eq!(world.call(&get("/repos/lab/solver/actions/runs")).status, 404);
    assert_eq!(world.call(&get("/orgs/lab/actions/runners")).status, 403);
    let wide = json!({ "permissions": { "secrets": "write" } });
    assert_eq!(world.app_call("POST", &path, &wide).status, 422);
}

#[test]
fn calls_are_counted_per_installation_and_resource() {
    let mut world = World::with(Setup { core_limit: 3, registration_limit: 2, ..Setup::default() });
    let bearer = format!("Bearer {}", world.token());
    let get = Request::new("GET", "/installation/repositories").header("authorization", &bearer);
    let post = |name: &str| Request::new("POST", JIT).json(&jit_body(name)).header("authorization", &bearer);
    assert_eq!(world.call(&post("one")).header("x-ratelimit-resource"), Some("actions_runner_registration"));
    for left in ["2", "1", "0"] {
        assert_eq!(world.call(&get).header("x-ratelimit-remaining"), Some(left));
    }
    let limited = world.call(&get);
    assert_eq!((limited.status, limited.header("x-ratelimit-remaining")), (403, Some("0")));
    assert_eq!(world.call(&post("two")).status, 201);
    assert_eq!(world.call(&post("three")).status, 403);
    world.state.advance(MINUTE * 60);
    let bearer = format!("Bearer {}", world.token());
    assert_eq!(world.call(&get.clone().header("authorization", &bearer)).status, 200);
}

#[test]
fn too_many_writes_in_a_minute_meet_the_secondary_limit() {
    // TF-AWS documentation: 900 points a minute, a write is 5, so 180 registrations.
    let mut world = World::new();
    let bearer = format!("Bearer {}", world.token());
    let mint =
        |n: u32| Request::new("POST", JIT).json(&jit_body(&format!("r{n}"))).header("authorization", &bearer);
    let statuses: Vec<u16> = (0..181).map(|n| world.call(&mint(n)).status).collect();
    assert!(statuses[..180].iter().all(|status| *status == 201));
    assert_eq!(statuses[180], 403);
    world.state.advance(MINUTE);
    assert_eq!(world.call(&mint(500)).status, 201);
}

#[test]
fn deliveries_that_are_sent_again_count_as_made_with_check_runs() {
    let mut world = World::new();
    let now = world.state.now().as_micros() / 1_000_000;
    let jwt = sign_jwt(&json!({ "iss": world.app, "iat": now - 60, "exp": now + 540 })).unwrap();
    let again = Request::new("POST", "/app/hook/deliveries/7/attempts")
        .header("authorization", &format!("Bearer {jwt}"));
    let statuses: Vec<u16> = (0..81).map(|_| world.call(&again).status).collect();
    assert!(statuses[..80].iter().all(|status| *status == 404), "there is no such delivery: {statuses:?}");
    let limited = world.call(&again);
    assert_eq!((statuses[80], limited.status), (403, 403));
    assert!(limited.header("retry-after").is_some());
    let check = json!({ "name": "farm", "head_sha": "0".repeat(40) });
    assert_eq!(world.rest("POST", "/repos/lab/solver/check-runs", &check).status, 403, "the same App");
    world.state.advance(MINUTE);
    assert_eq!(world.call(&again).status, 404);
}

#[test]
fn reads_may_lie_behind_webhooks() {
    // TF-AWS #2459: "job not queued" although the webhook said so.
    let mut world = World::with(Setup { read_lag: Duration::from_secs(30), ..Setup::default() });
    let (run, jobs) = world.run(vec![JobSpec::new("build", &["gpu"])]);
    let path = format!("/repos/lab/solver/actions/jobs/{}", jobs[0]);
    assert_eq!(world.rest("GET", &path, &json!({})).status, 404);
    world.state.advance(MINUTE);
    assert_eq!(world.rest("GET", &path, &json!({})).value()["status"], "queued");
    let path = format!("/repos/lab/solver/actions/runs/{run}/attempts/1/jobs");
    assert_eq!(world.rest("GET", &path, &json!({})).value()["total_count"], 1);
}

#[test]
fn queued_runs_are_found_by_their_status() {
    let mut world = World::new();
    let (one, _) = world.run(vec![JobSpec::new("build", &["gpu"])]);
    world.run(vec![JobSpec::new("lint", &["ubuntu-latest"])]);
    world.state.advance(MINUTE * 3);
    let list = world.rest("GET", "/repos/lab/solver/actions/runs?status=queued", &json!({})).value();
    assert_eq!((list["total_count"].clone(), list["workflow_runs"][0]["id"].clone()), (json!(1), json!(one)));
    let list = world.rest("GET", "/repos/lab/solver/actions/runs?status=completed", &json!({})).value();
    assert_eq!(list["workflow_runs"][0]["conclusion"], "success");
}

#[test]
fn a_run_tells_who_started_it_and_where_its_commit_is_from() {
    let mut world = World::new();
    let person = world.person.clone();
    let fork = world.state.add_fork(world.repository, &person);
    let number = world.state.open_pull(world.repository, fork, "fix", &"c".repeat(40), &person);
    let mut spec = RunSpec::push(world.repository, &person, vec![JobSpec::new("build", &["gpu"])]);
    spec.event = "pull_request".to_owned();
    spec.head_repository = fork;
    spec.pull = Some(number);
    let run = world.state.start_run(spec);
    let body = world.rest("GET", &format!("/repos/lab/solver/actions/runs/{run}"), &json!({})).value();
    assert_eq!(body["head_repository"]["full_name"], "Ada/solver");
    assert_eq!(body["actor"]["id"], person.id);
    assert_eq!(body["pull_requests"], json!([]), "empty for forks, as at GitHub");
}

#[test]
fn scripted_faults_hit_the_calls_they_name_and_no_others() {
    let mut world = World::new();
    let bearer = format!("Bearer {}", world.token());
    let mint = |name: &str| Request::new("POST", JIT).json(&jit_body(name)).header("authorization", &bearer);
    world.state.plan_call_fault(CallFault::next("POST", "generate-jitconfig", Misbehaviour::too_many(30)));
    let reply = world.call(&mint("one"));
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("30")));
    assert_eq!(world.call(&mint("one")).status, 201);
    // Done, but nobody hears of it.
    world.state.plan_call_fault(CallFault::next("", "generate-jitconfig", Misbehaviour::AnswerLost));
    assert!(world.state.serve(&mint("two")).closes);
    assert_eq!(world.call(&mint("two")).status, 409);
    // Not done.
    world.state.plan_call_fault(CallFault::next("", "generate-jitconfig", Misbehaviour::RequestLost));
    assert!(world.state.serve(&mint("three")).closes);
    assert_eq!(world.call(&mint("three")).status, 201);
    // Done twice.
    world.state.plan_call_fault(CallFault::next("", "generate-jitconfig", Misbehaviour::Duplicated));
    assert_eq!(world.call(&mint("four")).status, 409);
    // Each third call.
    let get = Request::new("GET", "/meta");
    world.state.plan_call_fault(CallFault::next("GET", "/meta", Misbehaviour::server_error(502)).every(3));
    let statuses: Vec<u16> = (0..6).map(|_| world.call(&get).status).collect();
    assert_eq!(statuses, [200, 200, 502, 200, 200, 502]);
}

#[test]
fn a_manifest_is_converted_once_and_gives_the_keys() {
    let mut world = World::new();
    let manifest = json!({
        "name": "Yard", "hook_attributes": { "url": "http://127.0.0.1:9/hook" },
        "default_permissions": { "actions": "read" }, "default_events": ["workflow_job"],
    });
    let code = world.state.accept_manifest(world.org, &manifest);
    let request = Request::new("POST", &format!("/app-manifests/{code}/conversions"));
    let reply = world.call(&request);
    assert_eq!(reply.status, 201);
    assert!(reply.value()["pem"].as_str().unwrap().contains("PRIVATE KEY"));
    assert!(reply.value()["webhook_secret"].is_string());
    assert_eq!(world.call(&request).status, 404);
}

#[test]
fn a_call_that_is_not_simulated_says_so() {
    let mut world = World::new();
    let reply = world.rest("GET", "/repos/lab/solver/stargazers", &json!({}));
    assert_eq!(reply.status, 404);
    assert!(reply.value()["message"].as_str().unwrap().contains("not simulated"));
    assert_eq!(reply.header("server"), Some("simulated-github"));
}

#[test]
fn recorded_calls_name_the_caller_and_hold_no_token() {
    let mut world = World::new();
    let token = world.token();
    let bearer = format!("Bearer {token}");
    world.call(&Request::new("GET", "/installation/repositories").header("authorization", &bearer));
    world.call(&Request::new("GET", "/meta"));
    let callers: Vec<&str> = world.state.calls().map(|call| call.caller.as_str()).collect();
    let installation = format!("installation:{}", world.installation);
    let app = format!("app:{}", world.app);
    assert_eq!(callers, [app.as_str(), installation.as_str(), "anonymous"]);
    assert!(world.state.calls().all(|call| !format!("{:?}", call.request).contains(&token)));
}

#[test]
fn quota_that_others_used_up_shows_in_the_headers() {
    let mut world = World::new();
    let caller = format!("installation:{}", world.installation);
    world.state.use_up(&caller, "core", 100);
    let reply = world.rest("GET", "/installation/repositories", &json!({}));
    assert_eq!(reply.header("x-ratelimit-remaining"), Some("99"));
    let limits = world.rest("GET", "/rate_limit", &json!({})).value();
    assert_eq!(limits["resources"]["core"]["remaining"], 99, "asking for it costs nothing");
    assert_eq!(limits["resources"]["actions_runner_registration"]["remaining"], 10_000);
}

#[test]
fn runner_calls_of_enterprises_refuse_installations() {
    let mut world = World::new();
    let reply = world.rest("GET", "/enterprises/big/actions/runners", &json!({}));
    assert_eq!(reply.value()["message"], "Resource not accessible by integration");
}
