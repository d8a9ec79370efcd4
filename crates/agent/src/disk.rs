//! The disk limit: the agent measures what the job has written and stops it when that is too much.
//!
//! This is a watch, not a wall: between two looks a job can go over by what the disk takes in that time. Looks are a
//! second apart, or twenty times as long as one look takes in a folder of many files.

use crate::stop::{Cause, Stop};
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Watches until the job is over the limit.
pub(crate) async fn watch(folders: Vec<PathBuf>, limit_bytes: u64, stop: Stop) {
    loop {
        let (begin, looked_at) = (Instant::now(), folders.clone());
        let used = tokio::task::spawn_blocking(move || used(&looked_at)).await.unwrap_or(0);
        if used > limit_bytes {
            tracing::info!(used, limit_bytes, "the job is over its disk limit");
            return stop.ask(Cause::Disk);
        }
        tokio::time::sleep((begin.elapsed() * 20).max(Duration::from_secs(1))).await;
    }
}

/// Bytes in blocks of all files below the folders. Links are not followed; a file with several names counts once.
pub(crate) fn used(folders: &[PathBuf]) -> u64 {
    let mut waiting: Vec<PathBuf> = folders.to_vec();
    let mut seen = HashSet::new();
    let mut sum = 0u64;
    while let Some(folder) = waiting.pop() {
        // The job may remove what we look at.
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.nlink() > 1 && !meta.is_dir() && !seen.insert((meta.dev(), meta.ino())) {
                continue;
            }
            sum = sum.saturating_add(meta.blocks().saturating_mul(512));
            if meta.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_two_names_counts_once_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (work, other) = (dir.path().join("work"), dir.path().join("other"));
        std::fs::create_dir_all(work.join("sub")).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("big"), vec![1u8; 1 << 20]).unwrap();
        std::os::unix::fs::symlink(&other, work.join("link")).unwrap();
        let before = used(std::slice::from_ref(&work));
        std::fs::write(work.join("sub/a"), vec![1u8; 64 << 10]).unwrap();
        std::fs::hard_link(work.join("sub/a"), work.join("b")).unwrap();
        let grown = used(&[work]) - before;
        assert!((64 << 10..128 << 10).contains(&grown), "{grown}");
    }
}
