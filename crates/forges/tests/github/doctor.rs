//! Each thing that can be wrong with a connection is found by the doctor, named, and has a page to change it.

use crate::world::World;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use forgeyard_forges::github::doctor::{Finding, Questions, SetQuestion, Verdict, examine};
use forgeyard_forges::github::{AppIdentity, AppKey, Endpoint, Github, GithubOptions, HttpOptions, needs};
use forgeyard_forges::twin::{APP_KEY, CallFault, HookFault, Misbehaviour, Setup, State, Trouble};
use forgeyard_formats::webhook;
use forgeyard_model::{Secret, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// A farm as GitHub sees it: 202 for bodies that are signed with this secret.
async fn receiver(secret: &'static str) -> String {
    let take = async move |headers: HeaderMap, body: Bytes| {
        let signature = headers.get("x-hub-signature-256").and_then(|value| value.to_str().ok());
        match webhook::verify_signature(&Secret::new(secret), signature, &body) {
            Ok(()) => StatusCode::ACCEPTED,
            Err(_) => StatusCode::UNAUTHORIZED,
        }
    };
    let router = axum::Router::new().route("/webhooks/github", axum::routing::post(take));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/webhooks/github", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

struct Clinic {
    world: World,
    questions: Questions,
}

impl Clinic {
    /// A connection without a fault: an App with a hook that answers, installed at the organisation.
    async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    async fn with(setup: Setup) -> Self {
        let mut world = World::with(setup).await;
        world.twin.run_freely(100);
        let url = receiver("hook").await;
        world.twin.with(|state| {
            let hook = state.app(world.app).unwrap().hook;
            let hook = state.hook_mut(hook).unwrap();
            hook.url = Some(url.clone());
            hook.events = needs::EVENTS.iter().map(|event| (*event).to_owned()).collect();
            state.ping(world.app);
        });
        world.twin.advance(Duration::from_secs(2)).await;
        let questions = Questions {
            targets: vec![crate::world::org()],
            repositories: vec![crate::world::repository()],
            hook: Some(url),
            runner_group: 1,
            scale_sets: Vec::new(),
            mark: "1".to_owned(),
            mint: true,
            redeliver: true,
            pause: Duration::from_millis(20),
        };
        Self { world, questions }
    }

    /// A client with this issuer and a clock that is off by as much.
    fn client(&self, issuer: &str, off: i64) -> Github {
        let clock = self.world.twin.clock();
        Github::new(GithubOptions {
            endpoint: Endpoint::at(self.world.twin.base(), &self.world.twin.api_url()).unwrap(),
            apps: vec![AppIdentity {
                issuer: issuer.to_owned(),
                key: AppKey::from_pem(&Secret::new(APP_KEY)).unwrap(),
            }],
            clock: Arc::new(move || Timestamp::from_micros(clock.now().as_micros() + off)),
            http: HttpOptions::default(),
        })
        .unwrap()
    }

    async fn look(&self) -> Vec<Finding> {
        self.look_with(&self.world.client()).await
    }

    async fn look_with(&self, github: &Github) -> Vec<Finding> {
        let mut told = Vec::new();
        let found = examine(github, &self.questions, &mut |finding| told.push(finding.clone())).await;
        assert_eq!(told, found, "progress tells what the report holds");
        found
    }

    /// The one finding that is bad.
    async fn bad(&self) -> Finding {
        one_bad(&self.look().await)
    }

    /// The finding of a check.
    async fn find(&self, check: &str) -> Finding {
        let found = self.look().await;
        found.iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("{found:#?}")).clone()
    }

    fn state<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        self.world.twin.with(change)
    }

    fn fault(&self, method: &str, path: &str, what: Misbehaviour) {
        self.state(|state| state.plan_call_fault(CallFault::next(method, path, what).always()));
    }

    fn runners(&self) -> usize {
        self.state(|state| state.runners().count())
    }
}

#[track_caller]
fn one_bad(found: &[Finding]) -> Finding {
    let bad: Vec<&Finding> = found.iter().filter(|finding| finding.verdict == Verdict::Bad).collect();
    assert_eq!(bad.len(), 1, "{found:#?}");
    let bad = bad[0].clone();
    assert!(bad.fix.as_deref().is_some_and(|fix| !fix.is_empty()), "nobody is told what to do: {bad:#?}");
    bad
}

#[track_caller]
fn named(bad: &Finding, check: &str, detail: &str, fix: &str) {
    assert_eq!((bad.check.as_str(), bad.verdict), (check, Verdict::Bad), "{bad:#?}");
    assert!(bad.detail.contains(detail), "{bad:#?}");
    assert!(bad.fix.as_deref().unwrap_or_default().contains(fix), "{bad:#?}");
}

#[tokio::test]
async fn a_whole_connection_is_good_in_every_point_and_nothing_is_left_behind() {
    let mut clinic = Clinic::new().await;
    clinic.questions.targets.push(crate::world::repository().into());
    let group = "Default".to_owned();
    let set = SetQuestion { at: crate::world::org(), name: "gpu".to_owned(), group };
    clinic.questions.scale_sets.push(set);
    let found = clinic.look().await;
    let odd = found.iter().filter(|finding| finding.verdict != Verdict::Good);
    let odd: Vec<&str> = odd.map(|finding| finding.check.as_str()).collect();
    // A scale set is made by the farm when it starts.
    assert_eq!(odd, ["scale_set"], "{found:#?}");
    let mut wanted: Vec<String> =
        needs::NEEDS.iter().map(|need| format!("permission.{}", need.permission)).collect();
    let others = ["app.key", "clock", "installation", "repository", "events", "limits"];
    let hook = ["webhook.address", "webhook.deliveries", "webhook.reach"];
    let runner = ["runner.mint", "runner.delete", "runner.group"];
    wanted.extend(others.iter().chain(&hook).chain(&runner).map(|check| (*check).to_owned()));
    for check in wanted {
        assert!(found.iter().any(|finding| finding.check == check), "{check} was not looked at");
    }
    assert_eq!(clinic.runners(), 0, "the trial runner is left behind");
}

#[tokio::test]
async fn a_key_that_github_does_not_know_is_the_only_thing_said() {
    let clinic = Clinic::new().await;
    let found = clinic.look_with(&clinic.client("Iv1.other", 0)).await;
    named(&one_bad(&found), "app.key", "GitHub knows no App", "/settings/apps");
    assert_eq!(found.len(), 2);
}

#[tokio::test]
async fn a_clock_that_is_off_is_named_by_how_much() {
    for (minutes, word) in [(-12, "behind"), (12, "ahead of")] {
        let clinic = Clinic::new().await;
        let github = clinic.client(&clinic.world.app.to_string(), minutes * 60_000_000);
        named(&one_bad(&clinic.look_with(&github).await), "clock", word, "chrony");
    }
}

#[tokio::test]
async fn a_github_that_cannot_be_reached_is_told_from_one_that_refuses() {
    let clinic = Clinic::new().await;
    clinic.fault("GET", "/app", Misbehaviour::RequestLost);
    named(&clinic.bad().await, "app.reach", "no answer", "address");
}

#[tokio::test]
async fn an_app_that_is_not_installed_or_suspended_is_named_with_its_page() {
    let clinic = Clinic::new().await;
    clinic.state(|state| state.suspend(clinic.world.installation, true));
    named(&clinic.bad().await, "installation", "suspended since", "/settings/installations/");
    clinic.state(|state| state.uninstall(clinic.world.installation));
    named(&clinic.bad().await, "installation", "not installed", "/installations");
}

#[tokio::test]
async fn each_missing_permission_is_named_with_the_page_where_it_is_granted() {
    for need in needs::at(needs::Place::Organisation) {
        // The owner has not agreed yet to what the App asks for; or the App does not even ask.
        for (asked, page) in [(true, "/settings/installations/"), (false, "/permissions")] {
            let clinic = Clinic::new().await;
            clinic.state(|state| {
                let row = state.installation_mut(clinic.world.installation).unwrap();
                row.permissions.remove(need.permission);
                if !asked {
                    state.app_mut(clinic.world.app).unwrap().permissions.remove(need.permission);
                }
            });
            let check = format!("permission.{}", need.permission);
            named(&clinic.find(&check).await, &check, need.why, page);
        }
    }
}

#[tokio::test]
async fn a_permission_that_is_too_weak_counts_as_missing() {
    let clinic = Clinic::new().await;
    clinic.state(|state| {
        let held = &mut state.installation_mut(clinic.world.installation).unwrap().permissions;
        held.insert("checks".to_owned(), "read".to_owned());
    });
    named(&clinic.bad().await, "permission.checks", "write wanted, read held", "agree");
}

#[tokio::test]
async fn an_event_that_is_not_subscribed_is_named() {
    let clinic = Clinic::new().await;
    clinic.state(|state| {
        let hook = state.app(clinic.world.app).unwrap().hook;
        state.hook_mut(hook).unwrap().events.remove("workflow_job");
    });
    named(&clinic.bad().await, "events", "workflow_job", "tick them");
}

#[tokio::test]
async fn a_repository_that_the_app_was_not_given_is_named() {
    let clinic = Clinic::new().await;
    clinic.state(|state| {
        state.installation_mut(clinic.world.installation).unwrap().selected = Some([1].into());
    });
    named(&clinic.find("repository").await, "repository", "was not given it", "add it");
}

#[tokio::test]
async fn an_address_of_the_webhook_that_is_not_the_farms_is_named() {
    let mut clinic = Clinic::new().await;
    clinic.questions.hook = Some("https://farm.example/webhooks/github".to_owned());
    let bad = clinic.bad().await;
    named(&bad, "webhook.address", "listens at https://farm.example", "write the farm's address");
}

#[tokio::test]
async fn a_secret_that_differs_shows_in_the_delivery_that_is_sent_anew() {
    let clinic = Clinic::new().await;
    clinic.state(|state| {
        let hook = state.app(clinic.world.app).unwrap().hook;
        state.hook_mut(hook).unwrap().secret = Secret::new("another");
    });
    named(&clinic.bad().await, "webhook.reach", "401: the secret", "webhook-secret-file");
    // From then on the list shows it as well.
    named(&clinic.find("webhook.deliveries").await, "webhook.deliveries", "401", "webhook-secret-file");
}

#[tokio::test]
async fn a_farm_that_github_does_not_reach_is_told_from_one_that_refuses() {
    let clinic = Clinic::new().await;
    clinic.state(|state| state.plan_hook_fault(HookFault::next("ping", "", Trouble::Failed(502))));
    named(&clinic.bad().await, "webhook.reach", "no good answer", "reachable from the internet");
}

#[tokio::test]
async fn without_any_delivery_the_webhook_is_unknown_and_never_good() {
    let clinic = Clinic::with(Setup { delivery_history: Duration::from_secs(60), ..Setup::default() }).await;
    clinic.world.twin.advance(Duration::from_secs(3600)).await;
    // What is old is forgotten when something new is sent, somewhere else.
    clinic.state(|state| {
        let other = state.add_app(clinic.world.org, "other", Some("http://127.0.0.1:9/"), Secret::new("x"));
        state.ping(other);
    });
    clinic.world.twin.advance(Duration::from_secs(5)).await;
    let hook = clinic.find("webhook.deliveries").await;
    assert_eq!(hook.verdict, Verdict::Unknown, "{hook:#?}");
    assert!(hook.fix.as_deref().unwrap().contains("Active"));
}

#[tokio::test]
async fn a_runner_that_cannot_be_made_is_told_with_githubs_reason() {
    let clinic = Clinic::new().await;
    let message = "Repository level self-hosted runners are disabled".to_owned();
    let what = Misbehaviour::Status { status: 403, message, retry_after: None };
    clinic.fault("POST", "/generate-jitconfig", what);
    named(&clinic.bad().await, "runner.mint", "does not allow runners", "register at the organisation");
}

#[tokio::test]
async fn a_trial_runner_that_stays_is_named_and_one_whose_making_was_not_answered_is_swept() {
    let clinic = Clinic::new().await;
    clinic.fault("DELETE", "/actions/runners/", Misbehaviour::server_error(502));
    named(&clinic.bad().await, "runner.delete", "`forgeyard-doctor-1`", "/settings/actions/runners");
    assert_eq!(clinic.runners(), 1);
    let clinic = Clinic::new().await;
    clinic.fault("POST", "/generate-jitconfig", Misbehaviour::AnswerLost);
    named(&clinic.bad().await, "runner.mint", "no answer", "/settings/actions/runners");
    assert_eq!(clinic.runners(), 0, "the doctor leaves what it does not know of");
}

#[tokio::test]
async fn a_group_that_keeps_public_repositories_out_is_named_with_the_repositories() {
    let mut clinic = Clinic::new().await;
    clinic.questions.runner_group = clinic.state(|state| {
        let group = state.add_group(clinic.world.org, "private only", None);
        state.group_mut(group).unwrap().public_repositories = false;
        group
    });
    let bad = clinic.bad().await;
    named(&bad, "runner.group", "conda/feedstock would wait for ever", "allow public repositories");
    clinic.questions.runner_group = 4711;
    assert_eq!(clinic.find("runner.group").await.verdict, Verdict::Bad);
}

#[tokio::test]
async fn a_runner_group_of_a_scale_set_that_is_not_there_is_named() {
    let mut clinic = Clinic::new().await;
    let group = "Nowhere".to_owned();
    clinic.questions.scale_sets =
        vec![SetQuestion { at: crate::world::org(), name: "gpu".to_owned(), group }];
    named(&clinic.bad().await, "scale_set", "no runner group `Nowhere`", "make it");
}

#[tokio::test]
async fn little_that_is_left_of_the_limit_is_told() {
    let clinic = Clinic::new().await;
    clinic.state(|state| state.setup_mut().core_limit = 6);
    named(&clinic.find("limits").await, "limits", "is used up", "second App");
}

#[tokio::test]
async fn a_farm_without_repositories_is_told_so() {
    let mut clinic = Clinic::new().await;
    clinic.questions.targets.clear();
    named(&clinic.bad().await, "targets", "no repository", "[[repositories]]");
}
