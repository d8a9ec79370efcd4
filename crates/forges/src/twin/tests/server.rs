use super::*;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const LIMIT: Duration = Duration::from_secs(20);

/// A receiver of webhooks that answers 202 and remembers the event names.
async fn receiver() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let memory = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut text = Vec::new();
            let mut part = [0; 16_384];
            loop {
                let read = stream.read(&mut part).await.unwrap();
                text.extend_from_slice(&part[..read]);
                let shown = String::from_utf8_lossy(&text).into_owned();
                let Some((head, body)) = shown.split_once("\r\n\r\n") else { continue };
                let field = |name: &str| {
                    let line = head.lines().find(|line| line.to_lowercase().starts_with(name)).unwrap();
                    line.split_once(": ").unwrap().1.to_owned()
                };
                if body.len() < field("content-length").parse().unwrap() {
                    continue;
                }
                let body: Value = serde_json::from_str(body).unwrap();
                let action = body["action"].as_str().unwrap_or_default();
                memory.lock().unwrap().push(format!("{}.{action}", field("x-github-event")));
                break;
            }
            stream.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        }
    });
    (url, seen)
}

async fn twin(setup: Setup, hook: Option<&str>) -> Twin {
    let mut world = World::with(setup);
    let app = world.state.app(world.app).unwrap().hook;
    world.state.hook_mut(app).unwrap().url = hook.map(str::to_owned);
    Twin::start_with(world.state).await.unwrap()
}

#[tokio::test]
async fn a_whole_job_over_http_webhooks_and_a_stand_in_runner() {
    let (url, seen) = receiver().await;
    let twin = twin(Setup::default(), Some(&url)).await;
    let (job, encoded) = twin.with(|state| {
        let repository = state.repository_by_name("lab/solver").unwrap().id;
        let person = state.account_by_login("ada").unwrap().person();
        let run = state.start_run(RunSpec::push(repository, &person, vec![JobSpec::new("build", &["gpu"])]));
        let org = state.account_by_login("lab").unwrap().id;
        let spec = RunnerSpec {
            scope: Scope::Organization(org),
            name: "http-runner".to_owned(),
            group: 1,
            labels: vec!["gpu".to_owned()],
            work_folder: "_work".to_owned(),
            set: None,
        };
        (state.current_jobs(run)[0].id, state.mint_jit(spec).unwrap().1)
    });
    let code = Runner::run(&encoded, async |given: GivenJob| {
        assert_eq!((given.job, given.repository.as_str()), (job, "lab/solver"));
        given.conclusion
    })
    .await;
    assert_eq!(code, EXIT_DONE);
    assert_eq!(Runner::run(&encoded, async |_| "success".to_owned()).await, EXIT_REFUSED);
    twin.advance(Duration::from_secs(5)).await;
    let taken = twin.with(|state| state.job(job).unwrap().view().runner.unwrap().name);
    assert_eq!(taken, "http-runner");
    assert_eq!(
        *seen.lock().unwrap(),
        ["workflow_job.queued", "workflow_job.in_progress", "workflow_job.completed"]
    );
    let answered =
        twin.with(|state| state.deliveries().filter(|one| one.sent == Sent::Answered(202)).count());
    assert_eq!(answered, 3);
}

#[tokio::test]
async fn a_lost_answer_is_a_closed_connection_and_the_call_was_done() {
    let twin = twin(Setup::default(), None).await;
    let url = format!("{}/meta", twin.api_url());
    twin.with(|state| state.plan_call_fault(CallFault::next("GET", "/meta", Misbehaviour::AnswerLost)));
    assert!(matches!(call("GET", &url, &[], Vec::new(), LIMIT).await, Err(WireError::Closed { .. })));
    assert_eq!(call("GET", &url, &[], Vec::new(), LIMIT).await.unwrap().status, 200);
    assert_eq!(twin.with(|state| state.calls().count()), 2);
}

#[tokio::test]
async fn a_slow_answer_waits_for_the_simulated_clock() {
    let twin = twin(Setup::default(), None).await;
    let url = format!("{}/meta", twin.api_url());
    twin.with(|state| {
        state.plan_call_fault(CallFault::next("GET", "/meta", Misbehaviour::SlowSimulated(MINUTE)));
    });
    let waiting = tokio::spawn(async move { call("GET", &url, &[], Vec::new(), LIMIT).await });
    while twin.with(|state| state.calls().count()) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    twin.advance(MINUTE).await;
    assert_eq!(waiting.await.unwrap().unwrap().status, 200);
}

#[tokio::test]
async fn a_receiver_that_is_not_there_is_recorded_as_failed() {
    let twin = twin(Setup::default(), Some("http://127.0.0.1:9/hook")).await;
    twin.with(|state| {
        let repository = state.repository_by_name("lab/solver").unwrap().id;
        let person = state.account_by_login("ada").unwrap().person();
        state.start_run(RunSpec::push(repository, &person, vec![JobSpec::new("build", &["gpu"])]));
    });
    twin.advance(Duration::from_secs(2)).await;
    let sent = twin.with(|state| state.deliveries().last().unwrap().sent.clone());
    assert_eq!(sent, Sent::Failed(502, "failed to connect to host".to_owned()));
}

#[tokio::test]
async fn paths_of_an_enterprise_server_have_their_prefix() {
    let twin = twin(Setup::enterprise_server(), None).await;
    assert!(twin.api_url().ends_with("/api/v3"));
    let url = format!("{}/meta", twin.api_url());
    let answer = call("GET", &url, &[], Vec::new(), LIMIT).await.unwrap();
    assert_eq!(answer.status, 200);
    assert!(!answer.headers.iter().any(|(name, _)| name.starts_with("x-ratelimit")));
    let url = format!("{}/meta", twin.base());
    assert_eq!(call("GET", &url, &[], Vec::new(), LIMIT).await.unwrap().status, 404);
}

#[tokio::test]
async fn a_held_poll_is_answered_when_a_job_comes() {
    let twin = twin(Setup { poll_hold_real: LIMIT, ..Setup::default() }, None).await;
    let set = twin.with(|state| {
        let org = state.account_by_login("lab").unwrap().id;
        state.add_scale_set(Scope::Organization(org), 1, "gpus", vec!["gpu".to_owned()], json!({})).unwrap()
    });
    let (queue, token) = twin.with(|state| {
        let session = state.open_session(set, "farm").unwrap();
        let body = state.session_reply(set, &session).value();
        let text = |name: &str| body[name].as_str().unwrap().to_owned();
        (text("messageQueueUrl"), format!("Bearer {}", text("messageQueueAccessToken")))
    });
    let polling = tokio::spawn(async move {
        call("GET", &queue, &[("authorization", &token)], Vec::new(), LIMIT).await.unwrap()
    });
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert!(!polling.is_finished());
    twin.with(|state| {
        let repository = state.repository_by_name("lab/solver").unwrap().id;
        let person = state.account_by_login("ada").unwrap().person();
        state.start_run(RunSpec::push(repository, &person, vec![JobSpec::new("build", &["gpu"])]));
    });
    let answer = polling.await.unwrap();
    assert_eq!(answer.status, 200);
    assert!(String::from_utf8(answer.body).unwrap().contains("JobAvailable"));
}

#[tokio::test]
async fn a_poll_without_news_ends_with_202_after_its_simulated_time() {
    let twin = twin(Setup { poll_hold_real: LIMIT, ..Setup::default() }, None).await;
    let (queue, token) = twin.with(|state| {
        let org = state.account_by_login("lab").unwrap().id;
        let labels = vec!["gpu".to_owned()];
        let set = state.add_scale_set(Scope::Organization(org), 1, "gpus", labels, json!({})).unwrap();
        let session = state.open_session(set, "farm").unwrap();
        let body = state.session_reply(set, &session).value();
        let text = |name: &str| body[name].as_str().unwrap().to_owned();
        (text("messageQueueUrl"), format!("Bearer {}", text("messageQueueAccessToken")))
    });
    let polling = tokio::spawn(async move {
        call("GET", &queue, &[("authorization", &token)], Vec::new(), LIMIT).await.unwrap()
    });
    while !polling.is_finished() {
        twin.advance(Duration::from_secs(10)).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(polling.await.unwrap().status, 202);
}
