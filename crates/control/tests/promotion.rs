//! A whole pipeline over real HTTP: webhook, git, plan, build, test, promotion, channel. Site, machines and agents are
//! *simulated*; nothing is rendered, built or tested, the real rendering and the real package are from fixtures.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod plane;

use ed25519_dalek::VerifyingKey;
use ed25519_dalek::pkcs8::DecodePublicKey as _;
use forgeyard_formats::statement::{self, Predicate, Subject};
use forgeyard_model::Digest;
use forgeyard_model::artifact::ArtifactKind;
use forgeyard_model::pipeline::PipelineState;
use plane::packages::{TINY, TINY_BYTES};
use plane::repository::Repository;
use plane::site::Site;
use plane::{Answer, Setup, chain};

#[tokio::test(flavor = "multi_thread")]
async fn push_to_a_protected_branch_is_promoted_and_served_with_statements_that_verify() {
    let repository = Repository::new();
    let mut setup = Setup::new().with_source(&repository.source());
    let plane = setup.start().await;
    let mut site = Site::join(&plane).await;
    let pipeline = plane.begin("push-1", &repository.pushed(&repository.head())).await;
    let view = chain::drive(&plane, &mut site, pipeline).await;
    assert_eq!(view.pipeline.state, PipelineState::Succeeded);
    assert_eq!(view.pipeline.channel.as_ref().unwrap().as_str(), "main");

    // A client without any token reads the channel.
    let anonymous = |path: &str| Answer::of(plane.http.get(format!("{}{path}", plane.url)));
    let index = anonymous("/channels/main/linux-64/repodata.json").await;
    let record = &index.json()["packages.conda"][TINY];
    assert_eq!(record["sha256"], Digest::of(TINY_BYTES).hex());
    assert_eq!(record["size"], TINY_BYTES.len());
    let packed = anonymous("/channels/main/linux-64/repodata.json.zst").await;
    assert_eq!(zstd::decode_all(packed.body.as_slice()).unwrap(), index.body);
    let noarch = anonymous("/channels/main/noarch/repodata.json").await;
    assert_eq!((noarch.status, &noarch.json()["packages.conda"]), (200, &serde_json::json!({})));
    let package = anonymous(&format!("/channels/main/linux-64/{TINY}")).await;
    assert_eq!(package.body, TINY_BYTES);
    let etag = index.header("etag").to_owned();
    let again = plane.http.get(format!("{}/channels/main/linux-64/repodata.json", plane.url));
    assert_eq!(Answer::of(again.header("if-none-match", etag)).await.status, 304);

    // The public key alone is enough to verify what the farm says.
    let key = VerifyingKey::from_public_key_pem(&plane.client.public_key().await.unwrap().pem).unwrap();
    let artifact =
        view.artifacts.iter().find(|artifact| artifact.kind == ArtifactKind::CondaPackage).unwrap();
    let subject = Subject { name: TINY.to_owned(), digest: Digest::of(TINY_BYTES) };
    let envelopes = plane.client.statements(artifact.id).await.unwrap();
    let predicates: Vec<Predicate> = envelopes
        .iter()
        .map(|envelope| statement::verify_about(&key, envelope.to_string().as_bytes(), &subject).unwrap())
        .collect();
    let [Predicate::TestResult(result), Predicate::Publish(publish)] = predicates.as_slice() else {
        panic!("a test result and a publication were expected: {predicates:?}");
    };
    assert_eq!(result.recipe.commit, repository.head());
    assert!(result.device.as_ref().unwrap().simulated, "a simulated device is called so");
    assert_eq!(publish.target_channel.as_deref(), Some(format!("{}/channels/main", plane.url).as_str()));
    let beside = anonymous(&format!("/channels/main/linux-64/{TINY}.sigs")).await;
    assert_eq!(beside.json(), serde_json::Value::Array(envelopes));
    // All devices and machines are given back.
    site.turn().await;
    assert!(site.turn().await.runners.is_empty());
    let devices = plane.client.devices().await.unwrap();
    assert_eq!(devices[0].state.name(), "ready");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pull_request_is_tested_and_says_why_it_is_not_promoted() {
    let repository = Repository::new();
    let head = repository.pull_request_commit("a change");
    let mut setup = Setup::new().with_source(&repository.source());
    let plane = setup.start().await;
    let mut site = Site::join(&plane).await;
    let pipeline = plane.begin("pr-1", &repository.pull_request("opened", &head)).await;
    let view = chain::drive(&plane, &mut site, pipeline).await;
    assert_eq!(view.pipeline.state, PipelineState::Succeeded);
    let reason = view.pipeline.not_promoted.unwrap();
    assert_eq!(reason.code, "promotion.lane");
    assert!(reason.message.contains("not promotable"), "{reason}");
    assert!(view.artifacts.iter().all(|artifact| !artifact.lane.promotable()));
    assert_eq!(plane.client.channels().await.unwrap(), []);
    let index = plane.get("/channels/main/linux-64/repodata.json");
    assert_eq!(Answer::of(index).await.status, 404);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_of_a_site_that_does_not_count_is_not_promoted() {
    let repository = Repository::new();
    let mut setup = Setup::new().with_source(&repository.source());
    setup.config.repositories[0].sites = ["trusted".parse().unwrap()].into();
    let plane = setup.start().await;
    let mut site = Site::join(&plane).await;
    let pipeline = plane.begin("push-1", &repository.pushed(&repository.head())).await;
    let view = chain::drive(&plane, &mut site, pipeline).await;
    assert_eq!(view.pipeline.state, PipelineState::Succeeded);
    let reason = view.pipeline.not_promoted.unwrap();
    assert_eq!(reason.code, "promotion.site");
    assert!(reason.evidence.iter().any(|line| line == "sites that count: trusted"), "{reason}");
    assert_eq!(plane.client.channels().await.unwrap(), []);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn collection_removes_what_no_record_names_and_nothing_else() {
    use forgeyard_blobs::collect::Grace;
    use forgeyard_control::collector::collect;
    let repository = Repository::new();
    let mut setup = Setup::new().with_source(&repository.source());
    let plane = setup.start().await;
    let mut site = Site::join(&plane).await;
    let pipeline = plane.begin("push-1", &repository.pushed(&repository.head())).await;
    let view = chain::drive(&plane, &mut site, pipeline).await;
    assert_eq!(view.pipeline.state, PipelineState::Succeeded);
    let orphan =
        plane.app.blobs.put_bytes(b"uploaded, and refused before it was recorded").await.unwrap().digest;
    let now = Grace { young: std::time::Duration::ZERO, buried: std::time::Duration::ZERO };
    let later = Grace { young: std::time::Duration::from_secs(3600), ..now };
    assert_eq!(collect(&plane.app, later).await.unwrap().buried, 0, "a young blob stays");
    let mut deleted = 0;
    for _ in 0..2 {
        deleted += collect(&plane.app, now).await.unwrap().deleted;
    }
    assert!(deleted >= 1);
    assert!(plane.app.blobs.stat(orphan).await.unwrap().is_none(), "the orphan is gone");
    for artifact in &view.artifacts {
        assert!(plane.app.blobs.verify(artifact.digest).await.is_ok(), "{} was lost", artifact.name);
    }
    let package = view.artifacts.iter().find(|artifact| artifact.kind == ArtifactKind::CondaPackage).unwrap();
    assert!(!plane.client.statements(package.id).await.unwrap().is_empty(), "statements were lost");
    for job in &view.jobs {
        plane.client.log(job.id, 0).await.unwrap();
    }
    plane.stop().await;
}
