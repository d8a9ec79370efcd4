//! Who the client is: tokens, installations, several Apps, manifests, enterprise servers.

use super::world::{World, minutes, org, repository, words};
use forgeyard_forges::github::{Again, Cause, Endpoint, HttpOptions, Target, convert_manifest, needs};
use forgeyard_forges::twin::{APP_KEY, Misbehaviour, Setup};
use forgeyard_model::Secret;
use futures::future::join_all;

#[tokio::test]
async fn a_token_is_kept_until_shortly_before_its_end() {
    let world = World::new().await;
    let github = world.client();
    for (forward, tokens) in [(0, 1), (0, 1), (54, 1), (2, 2), (54, 2)] {
        world.clock_forward(minutes(forward));
        github.runners(&org()).await.unwrap();
        assert_eq!(world.count("POST", "/access_tokens"), tokens);
    }
    assert_eq!(world.count("GET", "/installation"), 1, "where it is installed is asked once");
}

#[tokio::test]
async fn a_crowd_of_callers_makes_one_token() {
    let world = World::new().await;
    let github = world.client();
    let target = org();
    let all = join_all((0..20).map(|_| github.runners(&target))).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert_eq!(world.count("POST", "/access_tokens"), 1);
}

#[tokio::test]
async fn a_revoked_token_is_replaced_without_the_caller_seeing_it() {
    let world = World::new().await;
    let github = world.client();
    github.runners(&org()).await.unwrap();
    world.twin.with(|state| state.revoke_installation_tokens());
    github.runners(&org()).await.unwrap();
    assert_eq!(world.count("POST", "/access_tokens"), 2);
}

#[tokio::test]
async fn an_app_that_was_installed_anew_is_found_under_its_new_id() {
    let world = World::new().await;
    let github = world.client();
    github.runners(&org()).await.unwrap();
    world.twin.with(|state| {
        state.uninstall(world.installation);
        state.install(world.app, world.org, None);
    });
    github.runners(&org()).await.unwrap();
    assert_eq!(world.count("GET", "/installation"), 2);
}

#[tokio::test]
async fn an_app_that_is_not_installed_is_named_and_not_asked_about_at_every_call() {
    let world = World::new().await;
    world.twin.with(|state| state.add_repository("other/repo"));
    let github = world.client();
    let other = Target::parse("other/repo").unwrap();
    for _ in 0..3 {
        let error = github.runners(&other).await.unwrap_err();
        assert_eq!(error.cause(), Some(&Cause::NotInstalled));
        assert_eq!(error.cause().unwrap().again(), Again::AfterChange);
    }
    assert_eq!(world.count("GET", "/installation"), 1);
    world.twin.with(|state| {
        let owner = state.account_by_login("other").unwrap().id;
        state.install(world.app, owner, None);
    });
    world.clock_forward(minutes(11));
    github.runners(&other).await.unwrap();
}

#[tokio::test]
async fn a_suspended_installation_is_named_and_found_again_when_it_is_resumed() {
    let world = World::new().await;
    let github = world.client();
    github.runners(&org()).await.unwrap();
    world.twin.with(|state| state.suspend(world.installation, true));
    let error = github.runners(&org()).await.unwrap_err();
    assert_eq!(error.cause(), Some(&Cause::Suspended), "{error}");
    let seen = github.installation(0, &org()).await.unwrap().unwrap();
    assert!(seen.suspended_at.is_some());
    world.twin.with(|state| state.suspend(world.installation, false));
    github.runners(&org()).await.unwrap();
}

#[tokio::test]
async fn a_missing_permission_is_named_with_what_would_do() {
    let world = World::new().await;
    world.twin.with(|state| {
        let row = state.installation_mut(world.installation).unwrap();
        row.permissions.remove("organization_self_hosted_runners");
    });
    let github = world.client();
    let error = github.registration_token(&org()).await.unwrap_err();
    assert!(words(&error).contains("organization_self_hosted_runners=write"), "{error}");
    assert!(matches!(error.cause(), Some(Cause::PermissionMissing { .. })));
    let installation = github.installation(0, &org()).await.unwrap().unwrap();
    let missing = needs::missing(&installation, &org());
    assert_eq!(
        missing.iter().map(|need| need.permission).collect::<Vec<_>>(),
        ["organization_self_hosted_runners"]
    );
    assert!(needs::silent(&installation).is_empty());
}

#[tokio::test]
async fn an_app_that_github_does_not_know_is_named() {
    let world = World::new().await;
    let github = world.client_of(&[999]);
    let error = github.describe_app(0).await.unwrap_err();
    assert_eq!(error.cause(), Some(&Cause::AppUnknown), "{error}");
}

#[tokio::test]
async fn when_one_app_is_suspended_another_does_the_work() {
    let world = World::new().await;
    let second = world.second_app();
    world.twin.with(|state| state.suspend(world.installation, true));
    let github = world.client_of(&[world.app, second]);
    github.runners(&org()).await.unwrap();
}

#[tokio::test]
async fn an_enterprise_server_is_spoken_to_under_its_own_prefix() {
    let world = World::with(Setup::enterprise_server()).await;
    let github = world.client();
    assert!(github.endpoint().api().ends_with("/api/v3"));
    github.runners(&repository().into()).await.unwrap();
    let sets = github.scale_sets(org());
    assert_eq!(sets.group("Default").await.unwrap().map(|group| group.id), Some(1));
}

#[tokio::test]
async fn a_manifest_becomes_an_app_once_and_its_code_is_never_told() {
    let world = World::new().await;
    let hook = "https://farm.example/hook";
    let manifest = needs::manifest(&needs::Wish {
        name: "farm".to_owned(),
        farm: "https://farm.example".to_owned(),
        redirect: "https://farm.example/connect".to_owned(),
        hook: Some(hook.to_owned()),
        place: needs::Place::Organisation,
    });
    let code = world.twin.with(|state| state.accept_manifest(world.org, &manifest));
    let endpoint = Endpoint::at(world.twin.base(), &world.twin.api_url()).unwrap();
    let http = HttpOptions::default();
    let secret = Secret::new(code.clone());
    let app = convert_manifest(&endpoint, &http, &secret).await.unwrap();
    assert_eq!(app.pem.expose(), APP_KEY);
    assert!(app.webhook_secret.is_some() && !format!("{app:?}").contains("PRIVATE KEY"));
    let github = world.client_of(&[app.id]);
    assert_eq!(github.describe_app(0).await.unwrap().slug.as_deref(), Some("farm"));
    assert_eq!(github.hook_config(0).await.unwrap().url.as_deref(), Some(hook));
    let described = github.describe_app(0).await.unwrap();
    assert_eq!(described.permissions.len(), needs::at(needs::Place::Organisation).count());
    assert_eq!(described.events, needs::EVENTS);

    let error = convert_manifest(&endpoint, &http, &secret).await.unwrap_err();
    assert_eq!(error.cause(), Some(&Cause::NotFound));
    assert!(!words(&error).contains(&code), "{error}");
    let error = convert_manifest(&endpoint, &http, &Secret::new("a/../b")).await.unwrap_err();
    assert!(!words(&error).contains("a/../b"), "{error}");
}

#[tokio::test]
async fn an_answer_that_is_cut_off_names_the_call() {
    let world = World::new().await;
    let github = world.client();
    github.runners(&org()).await.unwrap();
    world.next_fails("GET", "/runners", Misbehaviour::CutBody);
    let error = github.runners(&org()).await.unwrap_err();
    assert!(words(&error).starts_with("GET /orgs/conda/actions/runners: cannot understand"), "{error}");
}
