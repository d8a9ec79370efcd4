//! The variables that a program in an environment sees.

use crate::MakeRequest;
use crate::explain::because;
use forgeyard_model::Explanation;
use rattler_shell::activation::{
    ActivationVariables, Activator, BoundedActivationError, PathModificationBehavior,
};
use rattler_shell::environment::EnvironmentSnapshot;
use rattler_shell::process::ProcessLimits;
use rattler_shell::shell::Bash;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Folders of the host that are searched after those of the environment.
const HOST_PATH: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/usr/local/sbin", "/bin"];

/// Most output of activation scripts.
const OUTPUT_LIMIT: usize = 4 * 1024 * 1024;

/// Activates the prefix in a clean environment and says what came of it: `env_vars.d`, `activate.d`, `PATH`. Nothing
/// of the environment of this process is passed on. `home` is an empty folder.
pub async fn activate(
    prefix: &Path,
    request: &MakeRequest,
    home: &Path,
) -> Result<BTreeMap<OsString, OsString>, Explanation> {
    let failed = |error: &dyn std::error::Error| {
        let message = format!("the environment in {} could not be activated", prefix.display());
        let fix = "look at the scripts in etc/conda/activate.d of the environment; bash must be on the host";
        because(Explanation::new("environment.activation_failed", message), error).fix(fix)
    };
    let platform = super::solve::platform(&request.platform)?;
    let mut clean = EnvironmentSnapshot::default();
    let search = HOST_PATH.join(":");
    for (name, value) in [("PATH", search.as_str()), ("LANG", "C.UTF-8"), ("TZ", "UTC"), ("TERM", "dumb")] {
        clean.insert(name, value);
    }
    for name in ["HOME", "TMPDIR"] {
        clean.insert(name, home);
    }
    let variables = ActivationVariables {
        conda_prefix: None,
        path: Some(HOST_PATH.iter().map(PathBuf::from).collect()),
        path_modification_behavior: PathModificationBehavior::Prepend,
        current_env: clean.unicode_variables(),
    };
    let limits = ProcessLimits { timeout: request.limits.activate, output_limit: OUTPUT_LIMIT };
    let activator =
        Activator::from_path(prefix, Bash::default(), platform).map_err(|error| failed(&error))?;
    let active = activator.run_activation_bounded(variables, &clean, limits).await.map_err(|error| {
        let explanation = failed(&error);
        match &error {
            BoundedActivationError::Failed { stderr, .. } => explanation.with(tail(stderr)),
            BoundedActivationError::Process(process) => match process.stderr() {
                Some(stderr) if !stderr.is_empty() => explanation.with(tail(stderr)),
                _ => explanation,
            },
            _ => explanation,
        }
    })?;
    Ok(active.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// The end of what a script said.
fn tail(bytes: &[u8]) -> String {
    let from = bytes.len().saturating_sub(2000);
    String::from_utf8_lossy(&bytes[from..]).trim().to_owned()
}
