//! Reading the engine's rendering.

use super::{Trouble, gone};
use crate::app::App;
use forgeyard_formats::plan::{PlanError, read_plan};
use forgeyard_model::effect::EffectResult;
use forgeyard_model::{ArtifactId, Explanation};

/// Largest rendering that is read, in bytes.
const LIMIT: u64 = 64 << 20;

/// Reads `plan.json`.
pub(super) async fn read(app: &App, id: ArtifactId) -> Result<EffectResult, Trouble> {
    let artifact = app.core.read().artifacts.get(&id).cloned().ok_or_else(|| gone(id))?;
    if artifact.size > LIMIT {
        let text = format!("the rendering has {} bytes; at most {LIMIT} are read", artifact.size);
        return Err(Trouble::Never(Explanation::new("plan.too_large", text)));
    }
    let bytes = app.blobs.get(artifact.digest, None).await?.bytes().await?;
    let plan = read_plan(&bytes).map_err(|error| {
        Trouble::Never(match error {
            PlanError::UnknownOutput { .. } => Explanation::new("plan.unknown-output", error.to_string())
                .fix("declare the output, or correct the name in `pin_subpackage`"),
            _ => Explanation::new("plan.unreadable", format!("the rendering cannot be read: {error}"))
                .with(artifact.digest.to_string()),
        })
    })?;
    Ok(EffectResult::Plan { plan })
}
