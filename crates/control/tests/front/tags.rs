//! A run says the name of a branch or of a tag, and not which of the two it is. A tag that is called like a protected branch must
//! not count as it: whoever may push tags could then promote packages and write the cache of main.

use crate::world::World;
use forgeyard_engine::cache_scopes::{Scopes, of_run};
use forgeyard_forges::twin::RunSpec;
use forgeyard_model::Lane;
use forgeyard_model::demand::Demand;
use std::time::Duration;

/// A push to `main` at this commit, once it was let in.
async fn push(world: &World, commit: &str, tag: bool) -> Demand {
    run(world, "push", commit, tag, "launching").await
}

/// A run of `main` at this commit, once the gate answered so.
async fn run(world: &World, event: &str, commit: &str, tag: bool, state: &str) -> Demand {
    let job = world.twin.with(|state| {
        let run = state.start_run(RunSpec {
            event: event.to_owned(),
            head_sha: commit.repeat(40),
            tag,
            ..RunSpec::push(world.repository, &world.person, vec![world.job("build")])
        });
        state.current_jobs(run)[0].id
    });
    world.twin.advance(Duration::from_secs(2)).await;
    world.until(job, state).await
}

/// Its branch, its lane where it was let in, and whether its jobs would write the cache of main.
fn standing(world: &World, demand: &Demand) -> (Option<String>, Option<Lane>, bool) {
    let facts = demand.facts.clone().unwrap();
    let config = world.plane.app.config();
    let repository = config.repository(&demand.repository.forge, demand.repository.id).unwrap();
    let scopes = Scopes::usual(&demand.repository.forge, demand.repository.id);
    let writes = of_run(&facts, repository, &scopes).writes;
    (facts.head_branch, demand.admission.as_ref().map(|admission| admission.lane), writes)
}

#[tokio::test(flavor = "multi_thread")]
async fn tag_that_is_called_like_a_protected_branch_does_not_count_as_it() {
    let world = World::new().await;
    let main = (Some("main".to_owned()), Some(Lane::Protected), true);
    let first = push(&world, "a", false).await;
    assert_eq!(standing(&world, &first), main);
    assert_eq!(world.calls_about("/git/ref/heads/main"), 1);
    // The same commit again is not asked about again.
    push(&world, "a", false).await;
    assert_eq!(world.calls_about("/git/ref/heads/main"), 1);
    let tag = push(&world, "b", true).await;
    assert_eq!(standing(&world, &tag), (None, Some(Lane::SameRepoPr), false));
    assert_eq!(world.calls_about("/compare/"), 1, "the branch is there, and the commit is not on it");
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatch_on_a_tag_writes_no_cache_of_main_and_a_commit_that_the_branch_left_behind_counts() {
    let world = World::new().await;
    push(&world, "a", false).await;
    // No grant covers these here; what counts is what the cache would be told.
    let branch = run(&world, "workflow_dispatch", "a", false, "refused").await;
    assert_eq!(standing(&world, &branch), (Some("main".to_owned()), None, true));
    let tag = run(&world, "workflow_dispatch", "b", true, "refused").await;
    assert_eq!(standing(&world, &tag), (None, None, false));
    // A commit whose run comes late: the branch went on meanwhile.
    world.twin.with(|state| {
        let commits = &mut state.repository_mut(world.repository).unwrap().branches;
        commits.get_mut("main").unwrap().extend(["c".repeat(40), "d".repeat(40)]);
    });
    let late = push(&world, "c", false).await;
    assert_eq!(standing(&world, &late), (Some("main".to_owned()), Some(Lane::Protected), true));
    world.plane.stop().await;
}

/// Nobody to ask is no reason to believe a name, and none to keep people waiting.
#[tokio::test(flavor = "multi_thread")]
async fn tag_without_any_branch_of_that_name_is_no_branch() {
    let world = World::new().await;
    let tag = push(&world, "a", true).await;
    assert_eq!(standing(&world, &tag), (None, Some(Lane::SameRepoPr), false));
    assert_eq!(world.calls_about("/compare/"), 0);
    world.plane.stop().await;
}
