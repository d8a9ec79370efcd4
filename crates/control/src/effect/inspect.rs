//! Reading the metadata of a package.

use super::{Trouble, gone};
use crate::app::App;
use forgeyard_formats::conda::{Limits, Package, read_package};
use forgeyard_model::artifact::Artifact;
use forgeyard_model::effect::EffectResult;
use forgeyard_model::{ArtifactId, Explanation};
use tokio::io::AsyncWriteExt as _;

/// Reads a package from the blob store, through a file that can be sought.
pub(super) async fn package(app: &App, artifact: &Artifact) -> Result<Package, Trouble> {
    let again = |error: std::io::Error| Trouble::Again(format!("a copy of {}: {error}", artifact.name));
    let mut blob = app.blobs.get(artifact.digest, None).await?;
    let file = tokio::task::spawn_blocking(tempfile::tempfile)
        .await
        .map_err(|error| Trouble::Again(error.to_string()))?;
    let mut copy = tokio::fs::File::from_std(file.map_err(again)?);
    tokio::io::copy(&mut blob.reader, &mut copy).await.map_err(again)?;
    copy.flush().await.map_err(again)?;
    let file = copy.into_std().await;
    let name = artifact.name.clone();
    let read = tokio::task::spawn_blocking(move || {
        use std::io::Seek as _;
        let mut file = file;
        file.rewind().map_err(|error| error.to_string())?;
        read_package(&name, file, &Limits::default()).map_err(|error| error.to_string())
    });
    let read = read.await.map_err(|error| Trouble::Again(error.to_string()))?;
    read.map_err(|reason| {
        Trouble::Never(
            Explanation::new(
                "package.unreadable",
                format!("{} is not a package that can be taken: {reason}", artifact.name),
            )
            .with(artifact.digest.to_string())
            .fix("see what the build wrote; nothing of the package was used"),
        )
    })
}

/// Reads what decides about its tests.
pub(super) async fn inspect(app: &App, id: ArtifactId) -> Result<EffectResult, Trouble> {
    let artifact = app.core.read().artifacts.get(&id).cloned().ok_or_else(|| gone(id))?;
    let package = package(app, &artifact).await?;
    Ok(EffectResult::Package { facts: Box::new(package.facts) })
}
