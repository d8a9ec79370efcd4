//! Where the programs of real clients are.

use std::path::{Path, PathBuf};

/// The folder into which `scripts/install-clients.sh` puts them.
pub fn clients() -> PathBuf {
    std::env::var_os("FORGEYARD_CLIENTS").map_or_else(|| "/opt/forgeyard/clients".into(), PathBuf::from)
}

/// A program: the system's one, or that of the folder.
pub fn look(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&folders).chain([clients().join("bin")]);
    places.map(|folder| folder.join(program)).find(|path: &PathBuf| Path::is_file(path))
}

/// The same; says visibly that a test is skipped without it.
pub fn find(program: &str) -> Option<PathBuf> {
    let found = look(program);
    if found.is_none() {
        println!("SKIPPED: {program} is not installed (scripts/install-clients.sh)");
    }
    found
}
