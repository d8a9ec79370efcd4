use super::*;
use forgeyard_formats::webhook::{read, verify_signature};
use forgeyard_model::ForgeName;
use forgeyard_model::forge::Meaning;

fn header<'a>(one: &'a Outgoing, name: &str) -> &'a str {
    one.headers.iter().find(|(header, _)| *header == name).map(|(_, value)| value.as_str()).unwrap()
}

/// Sends what is due and lets the receiver answer.
fn deliver(world: &mut World, status: u16) -> Vec<Outgoing> {
    let due = world.state.take_due_deliveries();
    for one in &due {
        world.state.delivery_answered(one.delivery, Ok(status));
    }
    due
}

fn actions(sent: &[Outgoing]) -> Vec<String> {
    let action = |one: &Outgoing| {
        let body: Value = serde_json::from_slice(&one.body).unwrap();
        body["action"].as_str().unwrap_or_default().to_owned()
    };
    sent.iter().map(action).collect()
}

#[test]
fn bodies_are_signed_and_our_reader_understands_them() {
    let mut world = World::new();
    let (run, jobs) = world.run(vec![JobSpec::new("build", &["gpu"])]);
    world.state.advance(Duration::from_secs(1));
    let sent = deliver(&mut world, 202);
    let one = &sent[0];
    let key = Secret::new("webhook key");
    verify_signature(&key, Some(header(one, "x-hub-signature-256")), &one.body).unwrap();
    let forge = "github".parse::<ForgeName>().unwrap();
    let Meaning::Demand(job) = read(&forge, header(one, "x-github-event"), &one.body).unwrap() else {
        panic!("not understood as a demand")
    };
    assert_eq!((job.job, job.run, job.action.as_str()), (jobs[0], run, "queued"));
    assert_eq!(job.sender, Some(world.person));
}

#[test]
fn pushes_and_pull_requests_are_understood_and_a_fork_shows() {
    let mut world = World::new();
    let fork = world.state.add_fork(world.repository, &world.person.clone());
    let person = world.person.clone();
    world.state.push(world.repository, "main", &"a".repeat(40), &"b".repeat(40), &person);
    let number = world.state.open_pull(world.repository, fork, "fix", &"c".repeat(40), &person);
    world.state.push_to_pull(world.repository, number, &"d".repeat(40), &person);
    world.state.advance(Duration::from_secs(1));
    let forge = "github".parse::<ForgeName>().unwrap();
    let mut heads = Vec::new();
    for one in deliver(&mut world, 202) {
        match read(&forge, header(&one, "x-github-event"), &one.body).unwrap() {
            Meaning::Work(work) => heads.push(work.head_sha),
            other => panic!("not understood as work: {other:?}"),
        }
    }
    assert_eq!(heads, ["b".repeat(40), "c".repeat(40), "d".repeat(40)]);
}

#[test]
fn an_event_comes_once_per_level_under_one_guid() {
    let mut world = World::new();
    let url = Some("http://127.0.0.1:9/hook");
    let org = world.org;
    world.state.add_hook(HookOwner::Organization(org), url, Secret::new("k"), &["workflow_job"]);
    let repository = world.repository;
    world.state.add_hook(HookOwner::Repository(repository), url, Secret::new("k"), &["workflow_job"]);
    world.run(vec![JobSpec::new("build", &["gpu"])]);
    world.state.advance(Duration::from_secs(1));
    let sent = deliver(&mut world, 202);
    assert_eq!(sent.len(), 3);
    assert!(sent.iter().all(|one| header(one, "x-github-delivery") == header(&sent[0], "x-github-delivery")));
    let with_installation = sent
        .iter()
        .filter(|one| serde_json::from_slice::<Value>(&one.body).unwrap().get("installation").is_some());
    assert_eq!(with_installation.count(), 1);
}

#[test]
fn a_lost_delivery_is_in_no_list_and_a_failed_one_is() {
    let mut world = World::new();
    world.state.plan_hook_fault(HookFault::next("workflow_job", "queued", Trouble::Lost));
    world.run(vec![JobSpec::new("lost", &["gpu"])]);
    world.state.plan_hook_fault(HookFault::next("workflow_job", "queued", Trouble::Failed(502)));
    world.run(vec![JobSpec::new("failed", &["gpu"])]);
    world.state.advance(Duration::from_secs(1));
    assert!(deliver(&mut world, 202).is_empty());
    let list = world.app_call("GET", "/app/hook/deliveries", &json!({})).value();
    let codes: Vec<u64> =
        list.as_array().unwrap().iter().filter_map(|one| one["status_code"].as_u64()).collect();
    assert_eq!(codes, [502]);
    assert_eq!(world.state.lost_deliveries(), 1);
}

#[test]
fn a_redelivery_repeats_the_guid() {
    let mut world = World::new();
    world.run(vec![JobSpec::new("build", &["gpu"])]);
    world.state.advance(Duration::from_secs(1));
    let first = deliver(&mut world, 500);
    let list = world.app_call("GET", "/app/hook/deliveries", &json!({})).value();
    assert_eq!(list[0]["status"], "Invalid HTTP Response: 500");
    let path = format!("/app/hook/deliveries/{}/attempts", list[0]["id"]);
    assert_eq!(world.app_call("POST", &path, &json!({})).status, 202);
    world.state.advance(Duration::from_secs(1));
    let second = deliver(&mut world, 202);
    assert_eq!(header(&first[0], "x-github-delivery"), header(&second[0], "x-github-delivery"));
    assert_eq!(first[0].body, second[0].body);
    let list = world.app_call("GET", "/app/hook/deliveries", &json!({})).value();
    assert_eq!((list[0]["redelivery"].clone(), list[0]["status"].clone()), (json!(true), json!("OK")));
}

#[test]
fn deliveries_are_listed_newest_first_by_cursor_and_for_three_days() {
    let mut world = World::new();
    let jobs: Vec<JobSpec> = (0..5).map(|n| JobSpec::new(&format!("job {n}"), &["gpu"])).collect();
    world.run(jobs);
    world.state.advance(Duration::from_secs(1));
    deliver(&mut world, 202);
    let mut seen = Vec::new();
    let mut path = "/app/hook/deliveries?per_page=2".to_owned();
    loop {
        let reply = world.app_call("GET", &path, &json!({}));
        seen.extend(reply.value().as_array().unwrap().iter().filter_map(|one| one["id"].as_u64()));
        let Some(link) = reply.header("link").map(str::to_owned) else { break };
        path = link.split_once(".invalid").unwrap().1.split_once('>').unwrap().0.to_owned();
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.windows(2).all(|two| two[0] > two[1]));
    world.state.advance(MINUTE * 60 * 73);
    let list = world.app_call("GET", "/app/hook/deliveries", &json!({})).value();
    assert!(list.as_array().unwrap().iter().all(|one| !seen.contains(&one["id"].as_u64().unwrap())));
}

#[test]
fn deliveries_can_be_duplicated_swapped_and_delayed() {
    let mut world = World::new();
    world.state.plan_hook_fault(HookFault::next("workflow_job", "queued", Trouble::Duplicated));
    let (_, jobs) = world.run(vec![JobSpec::new("build", &["gpu"])]);
    world.state.advance(Duration::from_secs(1));
    assert_eq!(actions(&deliver(&mut world, 202)), ["queued", "queued"]);
    world.state.plan_hook_fault(HookFault::next("workflow_job", "in_progress", Trouble::Swapped));
    world.state.plan_hook_fault(HookFault::next("workflow_job", "queued", Trouble::Delayed(MINUTE * 9)));
    world.runner("one", &["gpu"], Behaviour::default());
    world.run(vec![JobSpec::new("later", &["windows"])]);
    world.state.advance(MINUTE * 2);
    assert_eq!(actions(&deliver(&mut world, 202)), ["completed", "in_progress"]);
    world.state.advance(MINUTE * 8);
    assert_eq!(actions(&deliver(&mut world, 202)), ["queued"]);
    assert_eq!(world.status(jobs[0]), JobStatus::Completed);
}

#[test]
fn seeded_trouble_hits_about_its_share() {
    let mut world = World::new();
    world.state.set_hook_chaos(HookChaos { lost: 200, duplicated: 100, ..HookChaos::default() });
    for n in 0..400 {
        world.run(vec![JobSpec::new(&format!("job {n}"), &["gpu"])]);
    }
    world.state.advance(Duration::from_secs(1));
    let lost = world.state.lost_deliveries();
    assert!((40..120).contains(&lost), "{lost} of 400 were lost");
    assert!(deliver(&mut world, 202).len() as u64 > 400 - lost);
}

#[test]
fn a_suspended_installation_is_told_of_nothing() {
    let mut world = World::new();
    world.state.suspend(world.installation, true);
    world.run(vec![JobSpec::new("build", &["gpu"])]);
    world.state.advance(Duration::from_secs(1));
    assert_eq!(actions(&deliver(&mut world, 202)), ["suspend"]);
}

#[test]
fn a_button_of_a_check_run_tells_the_app() {
    let mut world = World::new();
    let body = json!({ "name": "gate", "head_sha": "a".repeat(40), "actions": [
        { "label": "Approve", "description": "let it run", "identifier": "approve" },
    ] });
    let check = world.rest("POST", "/repos/lab/solver/check-runs", &body).value()["id"].as_u64().unwrap();
    let person = world.person.clone();
    world.state.request_check_action(check, "approve", &person);
    world.state.advance(Duration::from_secs(1));
    let sent = deliver(&mut world, 202);
    let body: Value = serde_json::from_slice(&sent[0].body).unwrap();
    assert_eq!(header(&sent[0], "x-github-event"), "check_run");
    assert_eq!(body["requested_action"]["identifier"], "approve");
    assert_eq!(body["sender"]["id"], person.id);
}

#[test]
fn a_delivery_whose_answer_came_too_late_arrived_and_is_listed_as_failed() {
    let mut world = World::new();
    world.state.plan_hook_fault(HookFault::next("workflow_job", "queued", Trouble::Unheard));
    world.run(vec![JobSpec::new("build", &["gpu"])]);
    world.state.advance(Duration::from_secs(1));
    assert_eq!(actions(&deliver(&mut world, 202)), ["queued"]);
    let list = world.app_call("GET", "/app/hook/deliveries", &json!({})).value();
    assert_eq!((list[0]["status_code"].clone(), list[0]["status"].clone()), (json!(504), json!("timed out")));
    let path = format!("/app/hook/deliveries/{}/attempts", list[0]["id"]);
    world.app_call("POST", &path, &json!({}));
    world.state.advance(Duration::from_secs(1));
    assert_eq!(actions(&deliver(&mut world, 202)), ["queued"], "the receiver gets it a second time");
}

#[test]
fn hooks_of_organisations_and_repositories_have_lists_of_their_own() {
    let mut world = World::new();
    let url = Some("http://127.0.0.1:9/hook");
    let (org, repository) = (world.org, world.repository);
    let of_org = world.state.add_hook(HookOwner::Organization(org), url, Secret::new("k"), &["workflow_job"]);
    let of_repository =
        world.state.add_hook(HookOwner::Repository(repository), url, Secret::new("k"), &["workflow_job"]);
    world.run(vec![JobSpec::new("build", &["gpu"])]);
    world.state.advance(Duration::from_secs(1));
    deliver(&mut world, 500);
    let token = world.state.add_personal_token(world.person.id);
    let bearer = format!("Bearer {}", token.expose());
    for base in [format!("/orgs/lab/hooks/{of_org}"), format!("/repos/lab/solver/hooks/{of_repository}")] {
        let get = Request::new("GET", &format!("{base}/deliveries")).header("authorization", &bearer);
        let list = world.call(&get).value();
        assert_eq!(list.as_array().unwrap().len(), 1);
        let path = format!("{base}/deliveries/{}/attempts", list[0]["id"]);
        let post = Request::new("POST", &path).header("authorization", &bearer);
        assert_eq!(world.call(&post).status, 202);
    }
    let foreign = format!("/repos/lab/solver/hooks/{of_org}/deliveries");
    assert_eq!(world.call(&Request::new("GET", &foreign).header("authorization", &bearer)).status, 404);
}
