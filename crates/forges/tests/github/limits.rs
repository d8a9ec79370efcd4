//! Limits: they are kept before GitHub refuses, and a refusal is believed.

use super::runners::request;
use super::world::{World, minutes, org, repository, words};
use forgeyard_forges::github::budget::{Advice, Bucket, Limit};
use forgeyard_forges::github::{GithubError, Jit, RunStatus};
use forgeyard_forges::twin::Misbehaviour;
use std::time::Duration;

fn limited(error: &GithubError) -> (&Limit, forgeyard_model::Timestamp) {
    match error {
        GithubError::Limited { limit, until, .. } => (limit, *until),
        other => panic!("no limit: {other}"),
    }
}

/// ARC #206, #1737: a used-up limit stops calls until it is full again, and nothing is called without a token
/// meanwhile.
#[tokio::test]
async fn arc_206_a_used_up_limit_is_waited_out_and_never_gone_around() {
    let world = World::new().await;
    let github = world.client();
    let caller = format!("installation:{}", world.installation);
    github.runner(&org(), 1).await.unwrap();
    world.twin.with(|state| state.use_up(&caller, "core", 1));
    github.runner(&org(), 1).await.unwrap();
    let before = world.twin.with(|state| state.calls().count());
    let error = github.runner(&org(), 1).await.unwrap_err();
    let (limit, until) = limited(&error);
    assert_eq!(limit, &Limit::Hourly(Bucket::Core));
    assert_eq!(
        world.twin.with(|state| state.calls().count()),
        before,
        "nothing was asked: {}",
        words(&error)
    );
    let Jit::Minted { .. } = github.mint_jit(&org(), &request("gpu-1")).await.unwrap() else {
        panic!("minting has a limit of its own")
    };
    world.twin.clock().advance_to(until);
    github.runner(&org(), 1).await.unwrap();
}

#[tokio::test]
async fn polls_leave_the_last_tenth_to_jobs() {
    let world = World::new().await;
    let github = world.client();
    let caller = format!("installation:{}", world.installation);
    github.runner(&org(), 1).await.unwrap();
    assert_eq!(github.pace(&org()), Advice::Go);
    world.twin.with(|state| state.use_up(&caller, "core", 2000));
    github.runner(&org(), 1).await.unwrap();
    assert_eq!(github.pace(&org()), Advice::Slow(3));
    world.twin.with(|state| state.use_up(&caller, "core", 400));
    github.runner(&org(), 1).await.unwrap();
    assert!(matches!(github.pace(&org()), Advice::Wait { limit: Limit::Reserve(Bucket::Core), .. }));
    let error = github.poll_runs(&repository(), RunStatus::Queued, 1, None).await.unwrap_err();
    assert_eq!(limited(&error).0, &Limit::Reserve(Bucket::Core));
    github.runner(&org(), 1).await.unwrap();
}

#[tokio::test]
async fn a_second_app_goes_on_where_the_first_is_used_up() {
    let world = World::new().await;
    let second = world.second_app();
    let github = world.client_of(&[world.app, second]);
    for _ in 0..40 {
        github.runner(&org(), 1).await.unwrap();
    }
    let of = |name: &str| world.twin.with(|state| state.calls().filter(|call| call.caller == name).count());
    let first = format!("installation:{}", world.installation);
    let spent = of(&first);
    assert!((10..=30).contains(&spent), "both have spent about alike: {spent} of 40");
    world.twin.with(|state| state.use_up(&first, "core", 0));
    for _ in 0..10 {
        github.runner(&org(), 1).await.unwrap();
    }
    assert!(of(&first) <= spent + 1, "the first was asked once, at most, to learn that nothing is left");
}

#[tokio::test]
async fn a_refusal_with_a_time_stops_all_calls_until_then() {
    let world = World::new().await;
    let github = world.client();
    github.runner(&org(), 1).await.unwrap();
    world.next_fails("GET", "/runners/1", Misbehaviour::too_many(90));
    let error = github.runner(&org(), 1).await.unwrap_err();
    let (limit, until) = limited(&error);
    assert_eq!((limit, until), (&Limit::Told, world.twin.clock().now().plus(Duration::from_secs(90))));
    let before = world.twin.with(|state| state.calls().count());
    assert!(github.mint_jit(&org(), &request("gpu-1")).await.is_err());
    assert!(github.describe_app(0).await.is_err());
    assert_eq!(world.twin.with(|state| state.calls().count()), before);
    world.clock_forward(Duration::from_secs(90));
    github.runner(&org(), 1).await.unwrap();
}

#[tokio::test]
async fn a_burst_of_minting_stays_below_the_secondary_limit() {
    let world = World::new().await;
    let github = world.client();
    let (mut minted, mut waits) = (0, 0);
    while minted < 400 {
        match github.mint_jit(&org(), &request(&format!("gpu-{minted}"))).await {
            Ok(_) => minted += 1,
            Err(error) => {
                let (limit, until) = limited(&error);
                assert_eq!(limit, &Limit::Pace, "GitHub was asked too fast");
                waits += 1;
                world.twin.clock().advance_to(until);
            }
        }
        world.clock_forward(Duration::from_millis(10));
    }
    assert!(waits > 0);
    assert_eq!(world.count("POST", "/generate-jitconfig"), 400, "nothing was refused");
}

#[tokio::test]
async fn trouble_at_github_is_told_as_trouble_and_not_as_a_limit() {
    let world = World::new().await;
    let github = world.client();
    github.runner(&org(), 1).await.unwrap();
    world.next_fails("GET", "/runners/1", Misbehaviour::server_error(502));
    let error = github.runner(&org(), 1).await.unwrap_err();
    assert!(matches!(error.cause(), Some(forgeyard_forges::github::Cause::Unavailable { .. })), "{error}");
    world.clock_forward(minutes(1));
    github.runner(&org(), 1).await.unwrap();
}

/// Several Apps multiply what may be called (TF-AWS `appIndex`): each call goes out through the one that has most left, a limit of
/// one is no limit while another has calls, and polls are slow only when every one is short.
#[tokio::test]
async fn calls_go_through_the_app_that_has_most_left_and_polls_slow_down_only_when_every_app_is_short() {
    let world = World::new().await;
    let second = world.second_app();
    let github = world.client_of(&[world.app, second]);
    let first = format!("installation:{}", world.installation);
    let other = format!("installation:{}", world.installation + 1);
    // Each is met once, then both are known.
    for _ in 0..2 {
        github.runner(&org(), 1).await.unwrap();
    }
    world.twin.with(|state| state.use_up(&first, "core", 1000));
    for _ in 0..2 {
        github.runner(&org(), 1).await.unwrap();
    }
    assert_eq!(github.pace(&org()), Advice::Go, "the second has nearly all of its hour");
    world.twin.with(|state| state.use_up(&other, "core", 600));
    for _ in 0..2 {
        github.runner(&org(), 1).await.unwrap();
    }
    assert_eq!(github.pace(&org()), Advice::Slow(3), "now both are short");
    world.twin.with(|state| state.use_up(&other, "core", 0));
    for _ in 0..50 {
        github.runner(&org(), 1).await.unwrap();
    }
    world.twin.with(|state| state.use_up(&first, "core", 0));
    let error = loop {
        if let Err(error) = github.runner(&org(), 1).await {
            break error;
        }
    };
    assert_eq!(limited(&error).0, &Limit::Hourly(Bucket::Core), "{}", words(&error));
}
