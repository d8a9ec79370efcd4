//! Fetching the source: the tree at the head, the pipeline file at the base.

use super::{Trouble, gone};
use crate::app::App;
use forgeyard_forges::{FetchRequest, GitError};
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::effect::EffectResult;
use forgeyard_model::{ArtifactId, Explanation, Id, PipelineId};

fn trouble(error: GitError) -> Trouble {
    if error.transient() {
        return Trouble::Again(error.to_string());
    }
    let mut explanation = Explanation::new("source.unavailable", error.to_string());
    let mut cause = std::error::Error::source(&error);
    while let Some(source) = cause {
        explanation = explanation.with(source.to_string());
        cause = source.source();
    }
    Trouble::Never(
        explanation
            .fix("check the repository's `source` in forgeyard.toml and that the commit is still on its ref"),
    )
}

/// Fetches, and stores the tree under its digest.
pub(super) async fn fetch(app: &App, id: PipelineId) -> Result<EffectResult, Trouble> {
    let pipeline = app.core.read().pipelines.get(&id).cloned().ok_or_else(|| gone(id))?;
    let event = &pipeline.event;
    let config = app.config();
    let repository = config.repository(&event.repository.forge, event.repository.id);
    let repository = repository.ok_or_else(|| gone(&event.repository.name))?;
    let request = FetchRequest::for_event(event, repository).map_err(trouble)?;
    let fetched = app.git.fetch(&request).await.map_err(trouble)?;
    let file = app.git.pipeline_file(&fetched).await.map_err(trouble)?;
    let folder =
        tempfile::tempdir().map_err(|error| Trouble::Again(format!("no temporary folder: {error}")))?;
    let path = folder.path().join("source.tar");
    let tree = app.git.export(&fetched, &fetched.head, &path).await.map_err(trouble)?;
    let archive = tokio::fs::File::open(&path).await.map_err(|error| Trouble::Again(error.to_string()))?;
    let stored = app.blobs.put(Some(tree.digest), Box::new(archive)).await?;
    Ok(EffectResult::Source {
        artifact: Artifact {
            id: ArtifactId::derive(id, "source"),
            kind: ArtifactKind::Source,
            name: "source.tar".to_owned(),
            digest: stored.digest,
            size: stored.size,
            pipeline: id,
            job: None,
            attempt: None,
            lane: pipeline.lane,
            package: None,
            stored_at: app.clock.now(),
            generation: 0,
        },
        commit: fetched.head.as_str().to_owned(),
        file: Box::new(file),
        file_commit: fetched.pipeline_file_commit().as_str().to_owned(),
    })
}
