//! Webhooks: what is refused, what is stored, what is said about it. The bodies are composed here: *simulated*.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod plane;

use forgeyard_api::error::ErrorKind;
use forgeyard_control::forges::Connections;
use forgeyard_formats::webhook;
use forgeyard_model::delivery::DeliveryState;
use forgeyard_model::{Explanation, Secret};
use plane::repository::{Repository, push};
use plane::{Answer, Plane, Setup};

fn sha(digit: char) -> String {
    digit.to_string().repeat(40)
}

/// Why a delivery started nothing.
async fn reason(plane: &Plane, guid: &str) -> Explanation {
    match plane.settled(guid).await.state {
        DeliveryState::Settled { reason } | DeliveryState::Rejected { reason } => reason,
        other => panic!("{guid} is {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unsigned_or_wrongly_signed_webhook_is_refused_and_nothing_of_it_is_stored() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    let body = push(&sha('a')).body;
    let foreign = webhook::sign(&Secret::new("another secret"), &body).unwrap();
    let of_other_body = webhook::sign(&plane::webhook_secret(), b"{}").unwrap();
    let wrong = [None, Some(""), Some("sha256="), Some("sha1=00"), Some(&*foreign), Some(&*of_other_body)];
    for signature in wrong {
        let answer = plane.webhook("guid", "push", signature, &body).await;
        assert_eq!(answer.status, 401, "{signature:?}");
        assert_eq!(answer.error().code, "webhook.signature");
    }
    assert_eq!(plane.client.deliveries().await.unwrap(), []);
    assert_eq!(plane.app.store.delivery_body("guid").await.unwrap(), None);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_without_the_headers_of_a_delivery_is_refused_by_their_names() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    let signature = webhook::sign(&plane::webhook_secret(), b"{}").unwrap();
    for (event, guid, named) in [
        (None, Some("guid"), "X-GitHub-Event"),
        (Some("push"), None, "X-GitHub-Delivery"),
        (Some("push"), Some("../../etc"), "X-GitHub-Delivery"),
        (Some("pu sh"), Some("guid"), "X-GitHub-Event"),
    ] {
        let mut request = plane.http.post(format!("{}/webhooks/github", plane.url));
        request = request.header("x-hub-signature-256", &signature).body("{}");
        for (name, value) in [("x-github-event", event), ("x-github-delivery", guid)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let answer = Answer::of(request).await;
        assert_eq!(answer.status, 400);
        assert!(answer.error().message.contains(named), "{}", answer.error());
    }
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_json_is_stored_and_the_explanation_names_the_byte() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    let whole = push(&sha('a')).body;
    let cut = &whole[..1000];
    assert_eq!(plane.signed("cut", "push", cut).await.status, 202);
    let reason = reason(&plane, "cut").await;
    assert_eq!(reason.code, "webhook.truncated");
    assert!(reason.message.contains("at byte 1000"), "{reason}");
    // The raw body is kept as it came.
    assert_eq!(plane.app.store.delivery_body("cut").await.unwrap().unwrap(), cut);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn body_over_25_mebibytes_is_refused_as_too_large() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    let answer = plane.signed("large", "push", &vec![b' '; 26 << 20]).await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.error().kind, ErrorKind::TooLarge);
    assert_eq!(plane.delivery("large").await, None);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_event_is_stored_and_settled_with_a_reason() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    assert_eq!(plane.signed("star", "watch", br#"{"action":"started"}"#).await.status, 202);
    let reason = reason(&plane, "star").await;
    assert_eq!(reason.code, "delivery.nothing");
    assert!(reason.message.contains("watch"), "{reason}");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn same_guid_twice_is_processed_once_and_counted() {
    let repository = Repository::new();
    let mut setup = Setup::new().with_source(&repository.source());
    let plane = setup.start().await;
    let hook = repository.pushed(&repository.head());
    let pipeline = plane.begin("twice", &hook).await;
    let again = plane.deliver("twice", &hook).await;
    assert_eq!((again.status, &again.json()["repeated"]), (202, &true.into()));
    // Even another body under the same GUID starts nothing, and the first body stays.
    assert_eq!(plane.deliver("twice", &push(&sha('b'))).await.status, 202);
    let delivery = plane.delivery("twice").await.unwrap();
    assert_eq!((delivery.times, delivery.state), (3, DeliveryState::Started { pipeline }));
    assert_eq!(plane.client.pipelines().await.unwrap().len(), 1);
    assert_eq!(plane.app.store.delivery_body("twice").await.unwrap().unwrap(), hook.body);
    // The same head under another GUID is known as well.
    assert_eq!(plane.deliver("other", &hook).await.status, 202);
    assert_eq!(reason(&plane, "other").await.code, "delivery.already_started");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_copies_at_once_start_one_pipeline() {
    let repository = Repository::new();
    let mut setup = Setup::new().with_source(&repository.source());
    let plane = setup.start().await;
    let hook = repository.pushed(&repository.head());
    let guids: Vec<String> = (0..40).map(|number| format!("copy-{}", number % 10)).collect();
    let answers = futures::future::join_all(guids.iter().map(|guid| plane.deliver(guid, &hook))).await;
    assert!(answers.iter().all(|answer| answer.status == 202));
    for guid in &guids {
        plane.settled(guid).await;
    }
    assert_eq!(plane.client.pipelines().await.unwrap().len(), 1);
    let deliveries = plane.client.deliveries().await.unwrap();
    assert_eq!(deliveries.iter().map(|delivery| delivery.times).sum::<u32>(), 40);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_in_the_wrong_order_stop_nothing_that_came_later() {
    let repository = Repository::new();
    let head = repository.pull_request_commit("a change");
    let mut setup = Setup::new().with_source(&repository.source());
    let plane = setup.start().await;
    // The end of a pull request before anybody heard of it.
    assert_eq!(plane.deliver("closed", &repository.pull_request("closed", &head)).await.status, 202);
    assert!(reason(&plane, "closed").await.message.contains("0 running pipelines"));
    // The newer head first, then the older `opened` of the same pull request.
    let newer = plane.begin("newer", &repository.pull_request("synchronize", &head)).await;
    assert_eq!(plane.deliver("older", &repository.pull_request("opened", &head)).await.status, 202);
    assert_eq!(reason(&plane, "older").await.code, "delivery.already_started");
    assert!(!plane.client.pipeline(newer).await.unwrap().pipeline.state.ended());
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stranger_starts_nothing_and_the_refusal_says_what_is_missing() {
    let mut setup = Setup::new();
    setup.config.access.grants.clear();
    let plane = setup.start().await;
    assert_eq!(plane.deliver("stranger", &push(&sha('a'))).await.status, 202);
    let reason = reason(&plane, "stranger").await;
    assert!(reason.code.starts_with("gate."), "{reason}");
    assert!(reason.fix.is_some(), "{reason}");
    assert_eq!(plane.client.pipelines().await.unwrap(), []);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_that_the_ref_does_not_hold_fails_the_pipeline_with_its_reason() {
    let repository = Repository::new();
    let mut setup = Setup::new().with_source(&repository.source());
    let plane = setup.start().await;
    let pipeline = plane.begin("ghost", &push(&sha('e'))).await;
    let view = plane::eventually("the pipeline fails", || async {
        Some(plane.client.pipeline(pipeline).await.unwrap()).filter(|view| view.pipeline.state.ended())
    })
    .await;
    let failure = plane::chain::failure(&view);
    assert!(failure.contains("source.unavailable") && failure.contains(&sha('e')), "{failure}");
    plane.stop().await;
}

/// A secret and a GUID of one forge mean nothing at another; each App of a forge has a secret of its own.
#[tokio::test(flavor = "multi_thread")]
async fn each_forge_has_its_own_secrets_and_its_own_guids() {
    let mut setup = Setup::new();
    let [first, second, other] = ["first App", "second App", "Enterprise Server"].map(Secret::new);
    setup.forges = Connections::default()
        .trusting("github".parse().unwrap(), [first.clone(), second.clone()])
        .trusting("ghes".parse().unwrap(), [other.clone()]);
    let plane = setup.start().await;
    let send = async |forge: &str, guid: &str, secret: &Secret| {
        let body = push(&sha('a')).body;
        let request = plane.http.post(format!("{}/webhooks/{forge}", plane.url));
        let request = request.header("x-github-event", "push").header("x-github-delivery", guid);
        let signature = webhook::sign(secret, &body).unwrap();
        Answer::of(request.header("x-hub-signature-256", signature).body(body)).await
    };
    for secret in [&first, &second] {
        assert_eq!(send("github", "guid", secret).await.status, 202);
        assert_eq!(send("ghes", "guid", secret).await.error().code, "webhook.signature");
    }
    assert_eq!(send("github", "guid", &other).await.status, 401);
    // The secret of the whole farm is that of a forge without secrets of its own only.
    assert_eq!(send("github", "guid", &plane::webhook_secret()).await.status, 401);
    assert_eq!(send("ghes", "guid", &other).await.status, 202);
    assert_eq!(send("nowhere", "guid", &other).await.error().code, "webhook.no_forge");
    assert_eq!(send("No%20name", "guid", &other).await.status, 404);
    // The repository that the body speaks of is known at `github`, and its namesake elsewhere is another one.
    let here = plane.settled("guid").await;
    assert_ne!(here.state, DeliveryState::Stored);
    let there = reason(&plane, "ghes:guid").await;
    assert!(there.message.contains("at ghes) is not a repository of this farm"), "{there}");
    assert_eq!((here.times, plane.client.deliveries().await.unwrap().len()), (2, 2));
    plane.stop().await;
}
