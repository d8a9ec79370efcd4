//! What stands in for the rest of a farm: a *simulated* site that only reports room, and *simulated* sources.

use crate::plane::Plane;
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::plan::PipelineFile;
use forgeyard_model::resources::Limit;
use forgeyard_model::site::{HostFacts, SiteReport};
use forgeyard_model::{ArtifactId, Digest, EffectId, Id as _, Lane, PipelineId, SiteId, Timestamp};
use forgeyard_testkit::build;
use std::collections::BTreeSet;

/// What the site names itself with.
pub(crate) const TOKEN: &str = "site";

/// A host with room for everything.
pub(crate) fn host() -> HostFacts {
    HostFacts {
        host: "box".to_owned(),
        cpu_millis: 1_000_000,
        memory_mib: 1 << 40,
        kernel: "simulated".to_owned(),
        providers: [build::name("sandbox")].into(),
        enforces: [Limit::Memory, Limit::Cpu, Limit::Processes, Limit::Wall, Limit::Disk, Limit::Network]
            .into(),
        cannot: Vec::new(),
    }
}

/// A site joins and reports room for everything. It makes no machine.
pub(crate) async fn join(plane: &Plane) -> SiteId {
    let join = Input::SiteJoined {
        name: build::name("box"),
        token: Digest::of(TOKEN.as_bytes()),
        public_key: "simulated".to_owned(),
    };
    let Reply::Site { site } = plane.give(join).await else { panic!("the site did not join") };
    let host = host();
    let epoch = plane.app.core.read().epoch;
    let (devices, runners, leases) = Default::default();
    let report = Box::new(SiteReport { epoch, generation: 1, host, devices, runners, leases });
    plane.give(Input::SiteReported { site, report }).await;
    site
}

fn source(pipeline: PipelineId, lane: Lane, commit: &str) -> EffectResult {
    EffectResult::Source {
        artifact: Artifact {
            id: ArtifactId::derive(pipeline, "source"),
            kind: ArtifactKind::Source,
            name: "source.tar".to_owned(),
            digest: Digest::of(commit.as_bytes()),
            size: 1,
            pipeline,
            job: None,
            attempt: None,
            lane,
            package: None,
            stored_at: Timestamp::from_micros(0),
            generation: 0,
        },
        commit: commit.to_owned(),
        file: Box::new(PipelineFile::default()),
        file_commit: commit.to_owned(),
    }
}

/// Inputs that bring every source that is waited for and was not brought before.
pub(crate) fn sources(plane: &Plane, brought: &mut BTreeSet<EffectId>) -> Vec<Input> {
    let farm = plane.app.core.read();
    let mut inputs = Vec::new();
    for id in &farm.index.outbox {
        let Some(Effect::FetchSource { pipeline }) = farm.effects.get(id).map(|effect| &effect.effect) else {
            continue;
        };
        let Some(row) = farm.pipelines.get(pipeline).filter(|_| brought.insert(*id)) else { continue };
        let result = Box::new(source(*pipeline, row.lane, &row.event.head_sha));
        inputs.push(Input::EffectSettled { effect: *id, result });
    }
    inputs
}
