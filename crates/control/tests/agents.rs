//! What agents may and may not do, over real HTTP. The agents are *simulated*: they run nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod plane;

use forgeyard_api::agent::{VERSION, Wait, Waited};
use forgeyard_api::error::ErrorKind;
use forgeyard_blobs::MemoryStore;
use forgeyard_control::clock::Clock;
use forgeyard_model::Digest;
use forgeyard_model::artifact::ArtifactKind;
use forgeyard_model::site::DesiredRunner;
use plane::agent::{self, Agent, redeem};
use plane::repository::Repository;
use plane::site::Site;
use plane::{Answer, Plane, Setup, chain, eventually, refused};
use std::sync::Arc;

/// A farm with a plan job that was placed.
struct Placed {
    plane: Plane,
    site: Site,
    machine: DesiredRunner,
    /// Folders that live as long as the farm.
    keep: (Repository, Setup),
}

async fn placed_on(mut setup: Setup) -> Placed {
    let repository = Repository::new();
    setup = setup.with_source(&repository.source());
    let plane = setup.start().await;
    let mut site = Site::join(&plane).await;
    plane.begin("push", &repository.pushed(&repository.head())).await;
    let machine = next_machine(&mut site, None).await;
    Placed { plane, site, machine, keep: (repository, setup) }
}

async fn placed() -> Placed {
    placed_on(Setup::new()).await
}

/// The next machine that is wanted and is not this one.
async fn next_machine(site: &mut Site, but: Option<&DesiredRunner>) -> DesiredRunner {
    loop {
        let set = site.turn().await;
        let other = |machine: &DesiredRunner| but.is_none_or(|but| but.runner != machine.runner);
        if let Some(machine) = set.runners.into_iter().find(other) {
            return machine;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_is_redeemed_again_by_the_same_nonce_until_the_first_heartbeat_and_by_no_other() {
    let Placed { plane, machine, keep: _keep, .. } = placed().await;
    let client = agent::client(&plane.url);
    let first = client.redeem(&redeem(&machine.token, "my own nonce")).await.unwrap();
    let again = client.redeem(&redeem(&machine.token, "my own nonce")).await.unwrap();
    assert_eq!(first.session, again.session);
    let thief = refused(client.redeem(&redeem(&machine.token, "another nonce")).await);
    assert_eq!((thief.kind, thief.code.as_str()), (ErrorKind::Forbidden, "token.replayed"));
    let agent = Agent::redeem(&plane.url, &machine, "my own nonce").await;
    agent.client.heartbeat(&agent.session, None).await.unwrap();
    let late = refused(client.redeem(&redeem(&machine.token, "my own nonce")).await);
    assert_eq!((late.kind, late.code.as_str()), (ErrorKind::Forbidden, "token.replayed"));
    // The agent itself goes on.
    agent.client.heartbeat(&agent.session, Some("plan")).await.unwrap();
    plane.stop().await;
}

/// Asks for work, with the token of a machine that waits.
fn wait(token: &str, nonce: &str, wait_seconds: u64) -> Wait {
    Wait { version: VERSION, token: token.to_owned(), nonce: nonce.to_owned(), wait_seconds }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_waits_is_told_when_there_is_work_and_then_redeems_its_token() {
    let repository = Repository::new();
    let mut setup = Setup::new().with_source(&repository.source());
    setup.config.pools[0].warm = 1;
    setup.config.pools[0].warm_flavor = Some("cpu".parse().unwrap());
    let plane = setup.start().await;
    let mut site = Site::join(&plane).await;
    let machine = next_machine(&mut site, None).await;
    assert_eq!(machine.attempt, None, "it is there before any job");
    let client = agent::client(&plane.url);
    // There is nothing to redeem yet, and a made-up token opens nothing.
    let early = refused(client.redeem(&redeem(&machine.token, "my own nonce")).await);
    assert_eq!((early.kind, early.code.as_str()), (ErrorKind::Conflict, "token.no_work"));
    let forged = format!("{}.00", machine.runner);
    assert_eq!(refused(client.wait(&wait(&forged, "my own nonce", 0)).await).code, "token.unknown");
    assert_eq!(client.wait(&wait(&machine.token, "my own nonce", 0)).await.unwrap(), Waited::Nothing);
    let thief = refused(client.wait(&wait(&machine.token, "another nonce", 0)).await);
    assert_eq!((thief.kind, thief.code.as_str()), (ErrorKind::Forbidden, "token.replayed"));
    // One long question is answered when a job comes.
    let question = wait(&machine.token, "my own nonce", 25);
    let asked = tokio::spawn(async move { client.wait(&question).await });
    plane.begin("push", &repository.pushed(&repository.head())).await;
    assert_eq!(asked.await.unwrap().unwrap(), Waited::Work);
    let client = agent::client(&plane.url);
    let thief = refused(client.redeem(&redeem(&machine.token, "another nonce")).await);
    assert_eq!((thief.kind, thief.code.as_str()), (ErrorKind::Forbidden, "token.replayed"));
    let agent = Agent::redeem(&plane.url, &machine, "my own nonce").await;
    assert_eq!(agent.step(), "plan");
    agent.client.heartbeat(&agent.session, Some("plan")).await.unwrap();
    let pool = plane.client.pool(&"local".parse().unwrap()).await.unwrap();
    assert_eq!(pool.busy, 1, "{pool:?}");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_drains_and_resumes_a_pool_and_a_viewer_sees_it() {
    let plane = Setup::new().start().await;
    let local = "local".parse().unwrap();
    plane.client.drain_pool(&local, true).await.unwrap();
    let pools = plane.client.pools().await.unwrap();
    assert_eq!(pools[0].trouble.as_ref().unwrap().code, "queue.pool_draining");
    plane.client.drain_pool(&local, false).await.unwrap();
    plane.client.reset_pool(&local).await.unwrap();
    let pool = plane.client.pool(&local).await.unwrap();
    assert!(pool.drain.is_none() && pool.trouble.is_none() && pool.launches == 100, "{pool:?}");
    let unknown = refused(plane.client.drain_pool(&"nowhere".parse().unwrap(), true).await);
    assert_eq!(unknown.code, "pool.not_found");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn token_that_the_farm_did_not_make_is_refused_without_saying_why() {
    let Placed { plane, machine, keep: _keep, .. } = placed().await;
    let client = agent::client(&plane.url);
    let (attempt, tag) = machine.token.split_once('.').unwrap();
    let forged = [
        format!("{attempt}.{}", tag.replace(|_| true, "0")),
        format!("{attempt}."),
        attempt.to_owned(),
        format!("att_00000000000000000000000000.{tag}"),
        "é.".repeat(1000),
        String::new(),
    ];
    for token in forged {
        let error = refused(client.redeem(&redeem(&token, "my own nonce")).await);
        assert_eq!((error.kind, error.code.as_str()), (ErrorKind::Unauthenticated, "token.unknown"));
    }
    let mut old = redeem(&machine.token, "my own nonce");
    old.version = 0;
    assert_eq!(refused(client.redeem(&old).await).code, "agent.version");
    assert_eq!(refused(client.redeem(&redeem(&machine.token, "short")).await).code, "token.nonce");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_of_one_attempt_opens_no_other() {
    let Placed { plane, mut site, machine, keep: (repository, _setup) } = placed().await;
    let first = Agent::begin(&plane.url, &machine).await;
    repository.write("recipe/recipe.yaml", "package:\n  name: other\n");
    plane.begin("second", &repository.pushed(&repository.commit("second"))).await;
    let second = next_machine(&mut site, Some(&machine)).await;
    let mut thief = Agent::redeem(&plane.url, &second, "my own nonce").await;
    thief.session.attempt = first.session.attempt;
    let error = refused(thief.client.heartbeat(&thief.session, None).await);
    assert_eq!((error.kind, error.code.as_str()), (ErrorKind::Forbidden, "agent.wrong_session"));
    let error = refused(thief.upload(ArtifactKind::Plan, "plan.json", b"{}").await);
    assert_eq!(error.kind, ErrorKind::Forbidden);
    // Neither does the one-shot token itself, nor a person's, nor none.
    for (token, kind) in [
        (machine.token.as_str(), ErrorKind::Forbidden),
        (plane.token.as_str(), ErrorKind::Forbidden),
        ("", ErrorKind::Unauthenticated),
    ] {
        thief.session.token = forgeyard_model::Secret::new(token);
        assert_eq!(refused(thief.finish(0).await).kind, kind);
    }
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn superseded_attempt_is_answered_gone_whatever_it_brings() {
    let Placed { plane, mut site, machine, keep: _keep } = placed().await;
    let old = Agent::begin(&plane.url, &machine).await;
    old.upload(ArtifactKind::Plan, "plan.json", plane::packages::plan().as_bytes()).await.unwrap();
    site.exit(machine.runner);
    let new = next_machine(&mut site, Some(&machine)).await;
    assert_eq!(old.job.fence, 1);
    let gone = |error: forgeyard_api::ApiError| {
        assert_eq!((error.kind, error.code.as_str()), (ErrorKind::Superseded, "attempt.superseded"));
    };
    gone(refused(old.client.heartbeat(&old.session, Some("plan")).await));
    gone(refused(old.log(0, "late").await));
    gone(refused(old.upload(ArtifactKind::Plan, "late.json", b"{}").await));
    gone(refused(old.finish(0).await));
    gone(refused(old.client.redeem(&redeem(&machine.token, "a nonce of tests")).await));
    let status = plane.http.post(format!("{}/agent/v1/attempts/{}/heartbeat", plane.url, old.job.attempt));
    let status = status.bearer_auth(&old.job.session).json(&serde_json::json!({ "fence": 1, "step": null }));
    assert_eq!(Answer::of(status).await.status, 410);
    let new = Agent::begin(&plane.url, &new).await;
    assert_eq!(new.job.fence, 2);
    // A wrong fence under the right session is refused too.
    let mut confused =
        Agent { client: new.client.clone(), session: new.session.clone(), job: new.job.clone() };
    confused.session.fence = 1;
    gone(refused(confused.client.heartbeat(&confused.session, None).await));
    chain::succeed(&new).await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn artifact_with_a_wrong_digest_is_refused_and_not_recorded() {
    let Placed { plane, machine, keep: _keep, .. } = placed().await;
    let agent = Agent::begin(&plane.url, &machine).await;
    let before = plane.client.artifacts().await.unwrap().len();
    let swapped = agent.upload_as(ArtifactKind::Plan, "plan.json", Digest::of(b"honest"), b"swapped").await;
    let error = refused(swapped);
    assert_eq!((error.kind, error.kind.status()), (ErrorKind::Mismatch, 422));
    assert_eq!(plane.client.artifacts().await.unwrap().len(), before);
    // The same name again with the same bytes changes nothing; with other bytes it is a conflict.
    let stored = agent.upload(ArtifactKind::Plan, "plan.json", b"honest").await.unwrap();
    assert_eq!(agent.upload(ArtifactKind::Plan, "plan.json", b"honest").await.unwrap(), stored);
    let error = refused(agent.upload(ArtifactKind::Plan, "plan.json", b"other").await);
    assert_eq!((error.kind, error.code.as_str()), (ErrorKind::Conflict, "artifact.changed"));
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn artifact_with_a_hostile_name_kind_or_size_is_refused() {
    let Placed { plane, machine, keep: _keep, .. } = placed().await;
    let agent = Agent::begin(&plane.url, &machine).await;
    for name in ["../plan.json", "a/b", ".hidden", "a\\b", "\0", &"x".repeat(256)] {
        let error = refused(agent.upload(ArtifactKind::Plan, name, b"{}").await);
        assert_eq!((error.kind, error.code.as_str()), (ErrorKind::Invalid, "artifact.name"), "{name:?}");
    }
    let attempt = agent.job.attempt;
    let put = |path: &str| plane.http.put(format!("{}/agent/v1/attempts/{attempt}/{path}", plane.url));
    let wrong_kind = put(&format!("artifacts/exploit/x?digest={}", Digest::of(b""))).body("x");
    let answer = Answer::of(wrong_kind.bearer_auth(&agent.job.session)).await;
    assert_eq!((answer.status, answer.error().kind), (400, ErrorKind::Invalid));
    let no_digest = put("artifacts/plan/x").body("x");
    let answer = Answer::of(no_digest.bearer_auth(&agent.job.session)).await;
    assert_eq!((answer.status, answer.error().kind), (400, ErrorKind::Invalid));
    let large = put(&format!("artifacts/plan/x?digest={}", Digest::of(b""))).body(vec![0; (8 << 20) + 1]);
    let answer = Answer::of(large.bearer_auth(&agent.job.session)).await;
    assert_eq!((answer.status, answer.error().kind), (413, ErrorKind::TooLarge));
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn artifact_on_a_full_disk_is_refused_as_no_space_and_not_recorded() {
    let clock = Clock::system();
    let blobs = MemoryStore::with_capacity(Arc::new(move || clock.now()), 64 << 10);
    let Placed { plane, machine, keep: _keep, .. } =
        placed_on(Setup { blobs: Some(Arc::new(blobs)), ..Setup::new() }).await;
    let agent = Agent::begin(&plane.url, &machine).await;
    let before = plane.client.artifacts().await.unwrap().len();
    let error = refused(agent.upload(ArtifactKind::Plan, "plan.json", &vec![7; 1 << 20]).await);
    assert_eq!((error.kind, error.kind.status()), (ErrorKind::NoSpace, 507));
    assert_eq!(plane.client.artifacts().await.unwrap().len(), before);
    // What fits is still taken.
    agent.upload(ArtifactKind::Plan, "plan.json", b"{}").await.unwrap();
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_reads_inputs_of_its_job_in_whole_or_in_part_and_nothing_else() {
    let Placed { plane, machine, keep: _keep, .. } = placed().await;
    let agent = Agent::begin(&plane.url, &machine).await;
    let source = agent.job.spec.inputs[0].digest;
    let read = |digest: Digest, range: Option<&str>| {
        let path = format!("{}/agent/v1/attempts/{}/blobs/{digest}", plane.url, agent.job.attempt);
        let request = plane.http.get(path).bearer_auth(&agent.job.session);
        Answer::of(match range {
            Some(range) => request.header("range", range),
            None => request,
        })
    };
    let whole = read(source, None).await;
    assert_eq!((whole.status, Digest::of(&whole.body)), (200, source));
    let size = whole.body.len();
    let part = read(source, Some("bytes=100-199")).await;
    assert_eq!((part.status, part.body.as_slice()), (206, &whole.body[100..200]));
    assert_eq!(part.header("content-range"), format!("bytes 100-199/{size}"));
    let end = read(source, Some("bytes=-7")).await;
    assert_eq!((end.status, end.body.as_slice()), (206, &whole.body[size - 7..]));
    let outside = read(source, Some(&format!("bytes={size}-"))).await;
    assert_eq!((outside.status, outside.error().kind), (416, ErrorKind::Range));
    // Bytes that the farm holds, and that are no input of this job.
    let foreign = plane.app.blobs.put_bytes(b"of somebody else").await.unwrap().digest;
    let answer = read(foreign, None).await;
    assert_eq!((answer.status, answer.error().code.as_str()), (403, "blob.not_an_input"));
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_of_a_log_in_any_order_make_one_log_without_holes_or_repetition() {
    let Placed { plane, machine, keep: _keep, .. } = placed().await;
    let agent = Agent::begin(&plane.url, &machine).await;
    assert_eq!(agent.log(0, "0123456789").await.unwrap(), 10);
    assert_eq!(agent.log(20, "from the future").await.unwrap(), 10, "a gap is not taken");
    assert_eq!(agent.log(0, "0123456789").await.unwrap(), 10, "a repetition changes nothing");
    assert_eq!(agent.log(3, "345").await.unwrap(), 10, "nor does a part of what is there");
    assert_eq!(agent.log(5, "56789abcde").await.unwrap(), 15, "an overlap adds what is new");
    assert_eq!(agent.log(15, "").await.unwrap(), 15);
    let far = refused(agent.log(u64::MAX, "x").await);
    assert_eq!((far.kind, far.code.as_str()), (ErrorKind::TooLarge, "log.cap"));
    agent.upload(ArtifactKind::Plan, "plan.json", plane::packages::plan().as_bytes()).await.unwrap();
    agent.finish(0).await.unwrap();
    agent.finish(0).await.unwrap();
    let job = eventually("the job is over", || async {
        let jobs = plane.client.jobs().await.unwrap();
        jobs.into_iter().find(|job| job.key == "plan" && job.state.ended())
    })
    .await;
    let piece = plane.client.log(job.id, 0).await.unwrap();
    assert_eq!((piece.text.as_str(), piece.next, piece.complete), ("0123456789abcde", 15, true));
    let piece = plane.client.log(job.id, 12).await.unwrap();
    assert_eq!((piece.text.as_str(), piece.offset), ("cde", 12));
    let gone = refused(agent.log(15, "after the end").await);
    assert_eq!(gone.kind, ErrorKind::Superseded);
    plane.stop().await;
}
