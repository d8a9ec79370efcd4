//! Driving a pipeline with the *simulated* site and agents.

use super::agent::Agent;
use super::packages;
use super::site::Site;
use super::{Plane, eventually};
use forgeyard_api::people::PipelineView;
use forgeyard_model::PipelineId;
use forgeyard_model::artifact::ArtifactKind;
use forgeyard_model::pipeline::PipelineState;
use std::time::{Duration, Instant};

/// Waits for the next job, follows it with a machine and begins it there. Jobs that are at work stay at work.
pub async fn next_job(plane: &Plane, site: &mut Site, at_work: &[&Agent]) -> Agent {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let set = site.turn().await;
        let known = |attempt| at_work.iter().any(|agent| agent.job.attempt == attempt);
        if let Some(machine) = set.runners.iter().find(|machine| machine.attempt.is_some_and(|id| !known(id)))
        {
            return Agent::begin(&plane.url, machine).await;
        }
        assert!(Instant::now() < end, "no further job was placed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Does what a real job would have brought: the rendering, the package, the lock.
pub async fn succeed(agent: &Agent) {
    agent.log(0, "simulated\n").await.unwrap();
    match agent.step() {
        "plan" => {
            agent.upload(ArtifactKind::Plan, "plan.json", packages::plan().as_bytes()).await.unwrap();
        }
        "build" => {
            let bytes = packages::TINY_BYTES;
            agent.upload(ArtifactKind::CondaPackage, packages::TINY, bytes).await.unwrap();
        }
        "test" => {
            let lock = br#"{"packages":[]}"#;
            agent.upload(ArtifactKind::EnvironmentLock, "lock.json", lock).await.unwrap();
        }
        other => panic!("nobody knows the step {other}"),
    }
    agent.finish(0).await.unwrap();
}

/// Runs every job of a pipeline with success, to its end.
pub async fn drive(plane: &Plane, site: &mut Site, pipeline: PipelineId) -> PipelineView {
    for _ in ["plan", "build", "test"] {
        let agent = next_job(plane, site, &[]).await;
        succeed(&agent).await;
        site.turn().await;
    }
    ended(plane, site, pipeline).await
}

/// The pipeline once it is over.
pub async fn ended(plane: &Plane, site: &mut Site, pipeline: PipelineId) -> PipelineView {
    let view = eventually("the pipeline is over", || async {
        Some(plane.client.pipeline(pipeline).await.unwrap()).filter(|view| view.pipeline.state.ended())
    })
    .await;
    site.turn().await;
    view
}

/// Why a pipeline failed, with its evidence.
pub fn failure(view: &PipelineView) -> String {
    match &view.pipeline.state {
        PipelineState::Failed { reason } => reason.to_string(),
        other => panic!("it did not fail: {other:?}"),
    }
}
