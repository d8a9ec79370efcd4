//! What builds and plans bring that cannot be used fails the pipeline with a reason that names it. Site and agents are
//! *simulated*; the hostile renderings and packages are made here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod plane;

use forgeyard_model::artifact::ArtifactKind;
use plane::repository::Repository;
use plane::site::Site;
use plane::{Setup, chain, packages};

/// How a pipeline ends whose plan job brings this rendering.
async fn planned(plan: &str) -> String {
    let repository = Repository::new();
    let mut setup = Setup::new().with_source(&repository.source());
    let plane = setup.start().await;
    let mut site = Site::join(&plane).await;
    let pipeline = plane.begin("push", &repository.pushed(&repository.head())).await;
    let agent = chain::next_job(&plane, &mut site, &[]).await;
    agent.upload(ArtifactKind::Plan, "plan.json", plan.as_bytes()).await.unwrap();
    agent.finish(0).await.unwrap();
    let failure = chain::failure(&chain::ended(&plane, &mut site, pipeline).await);
    plane.stop().await;
    failure
}

/// How a pipeline ends whose build brings this package.
async fn built(name: &str, bytes: &[u8]) -> String {
    let repository = Repository::new();
    let mut setup = Setup::new().with_source(&repository.source());
    let plane = setup.start().await;
    let mut site = Site::join(&plane).await;
    let pipeline = plane.begin("push", &repository.pushed(&repository.head())).await;
    let agent = chain::next_job(&plane, &mut site, &[]).await;
    chain::succeed(&agent).await;
    let agent = chain::next_job(&plane, &mut site, &[&agent]).await;
    assert_eq!(agent.step(), "build");
    agent.upload(ArtifactKind::CondaPackage, name, bytes).await.unwrap();
    agent.finish(0).await.unwrap();
    let view = chain::ended(&plane, &mut site, pipeline).await;
    assert_eq!(plane.client.channels().await.unwrap(), []);
    plane.stop().await;
    chain::failure(&view)
}

#[tokio::test(flavor = "multi_thread")]
async fn plan_with_a_circle_names_the_outputs_of_the_circle() {
    let plan = packages::plan_of(&[("liba", &["libb"]), ("libb", &["libc"]), ("libc", &["liba"])]);
    let failure = planned(&plan).await;
    assert!(failure.contains("plan.cycle"), "{failure}");
    for name in ["`liba`", "`libb`", "`libc`"] {
        assert!(failure.contains(name), "{failure}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plan_that_cannot_be_read_says_where() {
    let failure =
        planned(r#"{"format":1,"outputs":[{"recipe":{"package":{"name":"../x","version":1}}}]}"#).await;
    assert!(failure.contains("plan.unreadable") && failure.contains("output 0"), "{failure}");
    let failure = planned(r#"{"format":99,"outputs":[]}"#).await;
    assert!(failure.contains("format 99"), "{failure}");
    let failure = planned(r#"{"format":1,"outputs":[]}"#).await;
    assert!(failure.contains("plan.empty"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn package_that_the_plan_does_not_name_is_refused_by_its_name() {
    let failure = built("p-1-0.conda", &packages::package(&[("bin/x", b"x")])).await;
    assert!(failure.contains("plan.unexpected_package") && failure.contains("`p-1-0`"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn package_with_a_path_that_climbs_out_is_refused_by_the_entry() {
    let failure = built("p-1-0.conda", &packages::package(&[("bin/../../escape", b"x")])).await;
    assert!(failure.contains("package.unreadable") && failure.contains("bin/../../escape"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn package_with_the_same_path_twice_is_refused_by_the_entry() {
    let failure = built("p-1-0.conda", &packages::package(&[("bin/x", b"1"), ("bin/x", b"2")])).await;
    assert!(failure.contains("package.unreadable") && failure.contains("bin/x"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn package_that_is_no_archive_is_refused_by_its_name() {
    let failure = built("p-1-0.conda", b"PK\x03\x04 and then nothing").await;
    assert!(failure.contains("package.unreadable") && failure.contains("p-1-0.conda"), "{failure}");
}
