//! Turning errors of libraries into explanations.

use forgeyard_model::Explanation;
use std::error::Error;
use std::path::Path;

/// Adds an error and its causes as evidence, each once: libraries like to repeat a cause in the message above it.
pub(crate) fn because(mut explanation: Explanation, error: &dyn Error) -> Explanation {
    let mut next = Some(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if !explanation.evidence.contains(&text) {
            explanation.evidence.push(text);
        }
        next = cause.source();
    }
    explanation
}

/// Whether an error or one of its causes is a full disk.
pub(crate) fn disk_full(error: &(dyn Error + 'static)) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = next {
        if let Some(io) = cause.downcast_ref::<std::io::Error>()
            && matches!(io.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
        {
            return true;
        }
        next = cause.source();
    }
    false
}

/// A failed step on a file or folder.
pub(crate) fn at(action: &str, path: &Path, error: &std::io::Error) -> Explanation {
    if disk_full(error) {
        let message = format!("no space left while {action} {}", path.display());
        return Explanation::new("environment.no_space", message)
            .fix("free space, or remove environments that are not used");
    }
    let message = format!("{action} {} failed", path.display());
    let explanation = because(Explanation::new("environment.folder", message), error);
    explanation
        .fix("check that the folder exists and that the user that runs the environment service owns it")
}
