use super::*;

/// A scale set with a session, as a listener sees it.
struct Listener {
    world: World,
    set: u64,
    admin: String,
    session: String,
    queue: String,
    token: String,
    last: u64,
}

fn path_of(world: &World, url: &str) -> String {
    url.strip_prefix(&world.state.urls().html).unwrap().to_owned()
}

/// The chain of runners.md §3.6, steps 1 and 2: returns the bearer of the admin connection.
fn admin(world: &mut World) -> String {
    let reply = world.rest("POST", "/orgs/lab/actions/runners/registration-token", &json!({}));
    let remote = format!("RemoteAuth {}", reply.value()["token"].as_str().unwrap());
    let page = format!("{}/lab", world.state.urls().html);
    let body = json!({ "url": page, "runner_event": "register" });
    let request = Request::new("POST", "/actions/runner-registration").json(&body);
    let reply = world.call(&request.header("authorization", &remote));
    assert_eq!(reply.status, 200);
    assert_eq!(reply.value()["url"].as_str(), Some(world.state.urls().actions.as_str()));
    format!("Bearer {}", reply.value()["token"].as_str().unwrap())
}

impl Listener {
    fn new(setup: Setup) -> Self {
        let mut world = World::with(setup);
        let admin = admin(&mut world);
        let mut one = Self {
            world,
            set: 0,
            admin,
            session: String::new(),
            queue: String::new(),
            token: String::new(),
            last: 0,
        };
        let body = json!({ "name": "gpus", "runnerGroupId": 1, "labels": [{ "name": "gpu", "type": "System" }],
            "RunnerSetting": { "disableUpdate": true } });
        let made = one.admin_call("POST", "/_apis/runtime/runnerscalesets", &body);
        one.set = made.value()["id"].as_u64().unwrap();
        assert_eq!(one.open().status, 200);
        one
    }

    fn admin_call(&mut self, method: &str, path: &str, body: &Value) -> Reply {
        let path = format!("{}{path}", path_of(&self.world, &self.world.state.urls().actions.clone()));
        let request = Request::new(method, &path).json(body).header("authorization", &self.admin);
        self.world.call(&request)
    }

    fn open(&mut self) -> Reply {
        let path = format!("/_apis/runtime/runnerscalesets/{}/sessions", self.set);
        let reply = self.admin_call("POST", &path, &json!({ "ownerName": "farm" }));
        let body = reply.value();
        if reply.status == 200 {
            self.session = body["sessionId"].as_str().unwrap().to_owned();
            self.queue = path_of(&self.world, body["messageQueueUrl"].as_str().unwrap());
            self.token = format!("Bearer {}", body["messageQueueAccessToken"].as_str().unwrap());
        }
        reply
    }

    fn request(&self) -> Request {
        Request::new("GET", &format!("{}?lastMessageId={}", self.queue, self.last))
            .header("authorization", &self.token)
    }

    /// Polls: the id of the message and its entries; none when the call is held.
    fn poll(&mut self) -> Option<(u64, Vec<Value>)> {
        let request = self.request();
        match self.world.state.serve(&request).outcome {
            Outcome::Hold(_) => None,
            Outcome::Answer(reply) => {
                assert_eq!(reply.status, 200, "{}", reply.value());
                let entries = serde_json::from_str(reply.value()["body"].as_str().unwrap()).unwrap();
                Some((reply.value()["messageId"].as_u64().unwrap(), entries))
            }
        }
    }

    fn acknowledge(&mut self, id: u64) {
        let request = Request::new("DELETE", &format!("{}/{id}", self.queue));
        let reply = self.world.call(&request.header("authorization", &self.token));
        assert_eq!(reply.status, 204);
        self.last = id;
    }

    /// Polls until nothing is there; acquires what is offered; returns the kinds of entries.
    fn drain(&mut self, acquire: bool) -> Vec<String> {
        let mut kinds = Vec::new();
        while let Some((id, entries)) = self.poll() {
            for entry in entries {
                let kind = entry["messageType"].as_str().unwrap().to_owned();
                if acquire && kind == "JobAvailable" {
                    let request = entry["runnerRequestId"].as_u64().unwrap();
                    assert_eq!(self.acquire(&[request]), [request]);
                }
                kinds.push(kind);
            }
            self.acknowledge(id);
        }
        kinds
    }

    fn acquire(&mut self, ids: &[u64]) -> Vec<u64> {
        let actions = path_of(&self.world, &self.world.state.urls().actions.clone());
        let path = format!("{actions}/_apis/runtime/runnerscalesets/{}/acquirejobs", self.set);
        let request = Request::new("POST", &path).json(&json!(ids)).header("authorization", &self.token);
        let value = self.world.call(&request).value();
        value["value"].as_array().unwrap().iter().filter_map(Value::as_u64).collect()
    }

    fn mint(&mut self, name: &str) -> Reply {
        let path = format!("/_apis/runtime/runnerscalesets/{}/generatejitconfig", self.set);
        self.admin_call("POST", &path, &json!({ "name": name, "workFolder": "_work" }))
    }

    fn statistics(&self, name: &str) -> u64 {
        self.world.state.statistics(self.set)[name].as_u64().unwrap()
    }
}

#[test]
fn a_job_is_offered_acquired_begun_and_ended() {
    let mut one = Listener::new(Setup::default());
    let (_, jobs) = one.world.run(vec![JobSpec::new("build", &["gpu"])]);
    assert_eq!(one.drain(true), ["JobAvailable", "JobAssigned"]);
    assert_eq!(one.statistics("totalAssignedJobs"), 1);
    let encoded = one.mint("set-1").value()["encodedJITConfig"].as_str().unwrap().to_owned();
    one.world.state.start_stand_in(&encoded, Behaviour::default());
    one.world.state.advance(Duration::from_secs(30));
    assert_eq!(one.drain(true), ["JobStarted"]);
    assert_eq!((one.statistics("totalRunningJobs"), one.statistics("totalBusyRunners")), (1, 1));
    one.world.state.advance(MINUTE - Duration::from_secs(1));
    assert_eq!(one.open().status, 409, "the session is kept alive by polls");
    one.world.state.advance(Duration::from_secs(1));
    one.open();
    assert_eq!(one.drain(true), ["JobCompleted"]);
    assert_eq!(one.world.taken_by(jobs[0]).unwrap(), "set-1");
}

#[test]
fn unacknowledged_message_comes_again() {
    let mut one = Listener::new(Setup::default());
    one.world.run(vec![JobSpec::new("build", &["gpu"])]);
    let first = one.poll().unwrap();
    assert_eq!(one.poll().unwrap(), first);
    // Also in a new session, as after a crash between poll and acknowledgement.
    one.world.state.advance(MINUTE);
    assert_eq!(one.open().status, 200);
    assert_eq!(one.poll().unwrap(), first);
    one.acknowledge(first.0);
    assert_eq!(one.poll(), None);
}

#[test]
fn arc_4602_assigned_job_that_nobody_takes_is_offered_three_times_and_then_forgotten() {
    let mut one = Listener::new(Setup { session_lapse: MINUTE * 60, ..Setup::default() });
    let (_, jobs) = one.world.run(vec![JobSpec::new("build", &["gpu"])]);
    assert_eq!(one.drain(true), ["JobAvailable", "JobAssigned"]);
    for _ in 0..2 {
        one.world.state.advance(MINUTE * 5);
        assert_eq!(one.drain(true), ["JobCompleted", "JobAvailable", "JobAssigned"]);
    }
    one.world.state.advance(MINUTE * 5);
    assert_eq!(one.drain(true), ["JobCompleted"]);
    one.world.state.advance(MINUTE * 30);
    assert_eq!(one.drain(true), Vec::<String>::new());
    assert_eq!(one.world.state.stuck_jobs(one.set), jobs);
    assert_eq!(one.world.status(jobs[0]), JobStatus::Queued);
    // Any later registration takes it.
    let encoded = one.mint("probe").value()["encodedJITConfig"].as_str().unwrap().to_owned();
    one.world.state.start_stand_in(&encoded, Behaviour::default());
    one.world.state.advance(MINUTE * 2);
    assert_eq!(one.world.taken_by(jobs[0]).unwrap(), "probe");
}

#[test]
fn ci_infra_900_rerun_can_go_unannounced_until_a_runner_registers() {
    let mut one = Listener::new(Setup { reruns_unannounced: true, ..Setup::default() });
    let (run, _) = one.world.run(vec![JobSpec::new("build", &["gpu"])]);
    one.drain(true);
    let encoded = one.mint("first").value()["encodedJITConfig"].as_str().unwrap().to_owned();
    one.world.state.start_stand_in(&encoded, Behaviour::default());
    one.world.state.advance(MINUTE * 2);
    one.open();
    one.drain(true);
    let person = one.world.person.clone();
    assert!(one.world.state.rerun(run, Rerun::All, &person));
    assert_eq!(one.drain(true), Vec::<String>::new());
    let encoded = one.mint("probe").value()["encodedJITConfig"].as_str().unwrap().to_owned();
    one.world.state.start_stand_in(&encoded, Behaviour::default());
    one.world.state.advance(MINUTE * 2);
    assert!(!one.world.state.run_active(run));
}

#[test]
fn arc_3209_second_session_is_a_conflict_until_the_first_lapses() {
    let mut one = Listener::new(Setup::default());
    let reply = one.open();
    assert_eq!(reply.status, 409);
    assert!(reply.value()["typeName"].as_str().unwrap().contains("RunnerScaleSetSessionConflictException"));
    one.world.state.advance(MINUTE);
    assert_eq!(one.open().status, 200);
}

#[test]
fn arc_4356_refresh_of_a_session_can_fail_for_ever() {
    let mut one = Listener::new(Setup::default());
    let path = format!("/_apis/runtime/runnerscalesets/{}/sessions/{}", one.set, one.session);
    assert_eq!(one.admin_call("PATCH", &path, &json!({})).status, 200);
    let fault = Misbehaviour::Status { status: 404, message: "not found".to_owned(), retry_after: None };
    one.world.state.plan_call_fault(CallFault::next("PATCH", "/sessions/", fault).always());
    for _ in 0..3 {
        assert_eq!(one.admin_call("PATCH", &path, &json!({})).status, 404);
    }
}

#[test]
fn arc_4285_polls_can_end_early_or_with_nothing_in_them() {
    let mut one = Listener::new(Setup::default());
    one.world.run(vec![JobSpec::new("build", &["gpu"])]);
    let queue = "simulated-queue";
    one.world.state.plan_call_fault(CallFault::next("GET", queue, Misbehaviour::RequestLost).every(2));
    let request = one.request();
    let closes: Vec<bool> = (0..4).map(|_| one.world.state.serve(&request).closes).collect();
    assert_eq!(closes, [false, true, false, true]);
    one.world.state.clear_call_faults();
    one.world.state.plan_call_fault(CallFault::next("GET", queue, Misbehaviour::EmptyBody));
    let reply = one.world.call(&request);
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    assert!(one.poll().is_some(), "the message is still there");
}

#[test]
fn arc_3420_statistics_can_lie_behind_messages() {
    let mut one = Listener::new(Setup { statistics_behind: true, ..Setup::default() });
    one.world.run(vec![JobSpec::new("build", &["gpu"])]);
    assert_eq!(one.drain(true), ["JobAvailable", "JobAssigned"]);
    assert_eq!(one.statistics("totalAssignedJobs"), 0);
}

#[test]
fn arc_4027_new_session_can_know_nothing_of_old_jobs() {
    let mut one = Listener::new(Setup { sessions_forget: true, ..Setup::default() });
    one.world.run(vec![JobSpec::new("build", &["gpu"])]);
    one.world.state.advance(MINUTE);
    let opened = one.open().value();
    assert_eq!(opened["statistics"]["totalAvailableJobs"], 0);
    assert_eq!(one.poll(), None);
}

#[test]
fn capacity_limits_what_is_offered() {
    let mut one = Listener::new(Setup::default());
    let poll = one.request().header("x-scalesetmaxcapacity", "2");
    assert!(matches!(one.world.state.serve(&poll).outcome, Outcome::Hold(_)));
    let jobs: Vec<JobSpec> = (0..5).map(|n| JobSpec::new(&format!("job {n}"), &["gpu"])).collect();
    one.world.run(jobs);
    assert_eq!(one.statistics("totalAvailableJobs"), 2);
}

#[test]
fn an_offer_can_be_gone_when_it_is_acquired() {
    let mut one = Listener::new(Setup::default());
    let (run, jobs) = one.world.run(vec![JobSpec::new("build", &["gpu"]), JobSpec::new("test", &["gpu"])]);
    one.world.runner("thief", &["gpu"], Behaviour::default());
    let taken: Vec<u64> = jobs.iter().copied().filter(|job| one.world.taken_by(*job).is_none()).collect();
    assert_eq!(taken.len(), 2, "the thief has not begun yet");
    let acquired = one.acquire(&jobs);
    assert_eq!(acquired.len(), 1);
    one.world.state.cancel_run(run);
    assert_eq!(one.acquire(&jobs), Vec::<u64>::new());
}

#[test]
fn a_message_holds_at_most_fifty_entries() {
    let mut one = Listener::new(Setup::default());
    let jobs: Vec<JobSpec> = (0..120).map(|n| JobSpec::new(&format!("job {n}"), &["gpu"])).collect();
    one.world.run(jobs);
    let mut sizes = Vec::new();
    while let Some((id, entries)) = one.poll() {
        sizes.push(entries.len());
        one.acknowledge(id);
    }
    assert_eq!(sizes, [50, 50, 20]);
}

#[test]
fn runners_of_a_set_are_found_by_name_and_kept_while_they_work() {
    let mut one = Listener::new(Setup::default());
    assert_eq!(one.mint("twice").status, 200);
    let conflict = one.mint("twice");
    assert!(conflict.value()["typeName"].as_str().unwrap().contains("AgentExistsException"));
    let found = one.admin_call("GET", "/_apis/distributedtask/pools/0/agents?agentName=twice", &json!({}));
    assert_eq!(found.value()["count"], 1);
    let path = format!("/_apis/distributedtask/pools/0/agents/{}", found.value()["value"][0]["id"]);
    assert_eq!(one.admin_call("DELETE", &path, &json!({})).status, 204);
    assert_eq!(one.admin_call("DELETE", &path, &json!({})).status, 204, "also when it is unknown");
    let gone = one.admin_call("GET", &path, &json!({}));
    assert!(gone.value()["typeName"].as_str().unwrap().contains("AgentNotFoundException"));
    let mut long = JobSpec::new("long", &["gpu"]);
    long.duration = MINUTE * 60;
    one.world.run(vec![long]);
    one.drain(true);
    let encoded = one.mint("busy").value()["encodedJITConfig"].as_str().unwrap().to_owned();
    one.world.state.start_stand_in(&encoded, Behaviour::default());
    one.world.state.advance(MINUTE);
    let id = one.world.state.runners().next().unwrap().id;
    let path = format!("/_apis/distributedtask/pools/0/agents/{id}");
    let refused = one.admin_call("DELETE", &path, &json!({}));
    assert_eq!(refused.status, 400);
    assert!(refused.value()["typeName"].as_str().unwrap().contains("JobStillRunningException"));
}

#[test]
fn queue_and_admin_tokens_do_not_open_each_other() {
    let mut one = Listener::new(Setup::default());
    let with_admin = one.request().header("authorization", &one.admin.clone());
    assert_eq!(one.world.call(&with_admin).status, 401);
    one.admin = one.token.clone();
    assert_eq!(one.admin_call("GET", "/_apis/runtime/runnerscalesets", &json!({})).status, 401);
}

#[test]
fn the_answer_of_a_registration_can_begin_with_a_byte_order_mark() {
    let mut world = World::with(Setup { byte_order_mark: true, ..Setup::default() });
    let reply = world.rest("POST", "/orgs/lab/actions/runners/registration-token", &json!({}));
    let remote = format!("RemoteAuth {}", reply.value()["token"].as_str().unwrap());
    let body = json!({ "url": format!("{}/lab", world.state.urls().html), "runner_event": "register" });
    let request = Request::new("POST", "/actions/runner-registration").json(&body);
    let reply = world.call(&request.header("authorization", &remote));
    assert!(reply.body.starts_with(&[0xef, 0xbb, 0xbf, b'{']));
}
