//! Where the programs of real clients are.

use std::path::PathBuf;

/// The folder into which `scripts/install-clients.sh` puts them.
pub(crate) fn clients() -> PathBuf {
    std::env::var_os("FORGEYARD_CLIENTS").map_or_else(|| "/opt/forgeyard/clients".into(), PathBuf::from)
}

/// A program: the system's one, or that of the folder. Says visibly that a test is skipped without it.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let ours = ["bin", "ccache/bin", "node/node_modules/.bin"].map(|folder| clients().join(folder));
    let mut places = std::env::split_paths(&folders).chain(ours).map(|folder| folder.join(program));
    let found = places.find(|path| path.is_file());
    if found.is_none() {
        println!("SKIPPED: {program} is not installed (scripts/install-clients.sh)");
    }
    found
}
