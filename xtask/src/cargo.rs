//! Cargo, as a person would call it.

use std::path::Path;
use std::process::Command;

/// A cargo command in the root of the repository.
///
/// `cargo xtask` itself runs under cargo, which tells it about this package in variables. Build scripts that watch those
/// would take the next build for another one, and half of the dependencies would be compiled again each time that the
/// two ways of calling take turns; so the variables are not passed on.
pub(crate) fn command(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(about_this_package)) {
        command.env_remove(name);
    }
    command.args(arguments).current_dir(root);
    command
}

/// Crates of the farm whose speed is looked at.
const FAST: [&str; 9] = ["api", "cache", "control", "db", "engine", "forges", "formats", "model", "testkit"];

/// Arguments by which cargo compiles the crates of the farm as a release has them, overflow checks apart, which stay. They
/// change nothing for other builds, which keep their outputs, and third-party crates are not built again. Incremental
/// compilation would cut a crate into many pieces that are optimised apart.
pub(crate) fn optimised() -> Vec<String> {
    let settings = ["opt-level=3", "codegen-units=1", "debug-assertions=false", "overflow-checks=true"];
    let of = |name: &str| settings.map(|set| format!("--config=profile.dev.package.forgeyard-{name}.{set}"));
    let whole = "--config=profile.dev.incremental=false".to_owned();
    FAST.into_iter().flat_map(of).chain([whole]).collect()
}

fn about_this_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_")
        || name.starts_with("CARGO_MANIFEST_")
        || matches!(name, "CARGO_BIN_NAME" | "CARGO_CRATE_NAME" | "CARGO_PRIMARY_PACKAGE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_person_are_passed_on_and_what_cargo_says_of_this_package_is_not() {
        assert!(about_this_package("CARGO_PKG_VERSION") && about_this_package("CARGO_MANIFEST_DIR"));
        for name in ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_BUILD_JOBS", "CARGO_NET_OFFLINE", "CARGO"] {
            assert!(!about_this_package(name), "{name}");
        }
    }
}
