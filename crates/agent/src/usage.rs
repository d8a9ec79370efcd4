//! What the job's cgroup says: out-of-memory kills, peak memory, CPU time, members. Reads both cgroup versions.

use forgeyard_formats::linux::{flat_keyed, single};
use forgeyard_model::machine::{CgroupFile, CgroupVersion};
use std::path::{Path, PathBuf};

fn text(path: PathBuf) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Out-of-memory kills in the job's group and below. Version 1 counts a kill only in the group of the victim, and the
/// count goes with the group, so this is read before a container is removed.
pub(crate) fn oom_kills(cgroup: &CgroupFile) -> u64 {
    let Some(memory) = cgroup.job.get("memory") else { return 0 };
    let kills = |text: &str| flat_keyed(text).get("oom_kill").copied().unwrap_or(0);
    match cgroup.version {
        CgroupVersion::V1 => {
            groups(memory).iter().map(|dir| kills(&text(dir.join("memory.oom_control")))).sum()
        }
        CgroupVersion::V2 => kills(&text(memory.join("memory.events"))),
    }
}

/// Whether counts of removed groups stay in the parent's count.
pub(crate) const fn counts_stay(cgroup: &CgroupFile) -> bool {
    matches!(cgroup.version, CgroupVersion::V2)
}

/// Largest use of memory by all processes together, page cache included, in bytes.
pub(crate) fn peak_memory(cgroup: &CgroupFile) -> Option<u64> {
    let memory = cgroup.job.get("memory")?;
    single(&text(memory.join(match cgroup.version {
        CgroupVersion::V1 => "memory.max_usage_in_bytes",
        CgroupVersion::V2 => "memory.peak",
    })))
}

/// CPU time of all processes, in microseconds.
pub(crate) fn cpu_micros(cgroup: &CgroupFile) -> Option<u64> {
    match cgroup.version {
        CgroupVersion::V1 => {
            single(&text(cgroup.job.get("cpuacct")?.join("cpuacct.usage"))).map(|nanos| nanos / 1000)
        }
        CgroupVersion::V2 => {
            flat_keyed(&text(cgroup.job.get("cpu")?.join("cpu.stat"))).get("usage_usec").copied()
        }
    }
}

/// Processes of the job.
pub(crate) fn members(cgroup: &CgroupFile) -> Vec<i32> {
    let Some(dir) = cgroup.job.get("pids") else { return Vec::new() };
    groups(dir)
        .iter()
        .flat_map(|dir| {
            let procs = text(dir.join("cgroup.procs"));
            procs.lines().filter_map(|line| line.parse().ok()).collect::<Vec<i32>>()
        })
        .collect()
}

/// Puts this process into the group of agents and monitors.
pub(crate) fn join_supervisor(cgroup: &CgroupFile) {
    for dir in &cgroup.supervisor {
        if let Err(error) = std::fs::write(dir.join("cgroup.procs"), std::process::id().to_string()) {
            tracing::warn!(%error, group = %dir.display(), "cannot join the group");
        }
    }
}

/// A group and all below it. The job cannot make groups, so there are few.
fn groups(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let mut at = 0;
    while at < found.len() {
        for entry in std::fs::read_dir(&found[at]).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.push(entry.path());
            }
        }
        at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(version: CgroupVersion, dir: &Path) -> CgroupFile {
        let job = ["memory", "pids", "cpu", "cpuacct"].map(|name| (name.to_owned(), dir.to_owned())).into();
        CgroupFile { path: "/x/job".to_owned(), version, job, supervisor: Vec::new() }
    }

    #[test]
    fn version_1_kills_are_summed_over_the_containers() {
        let dir = tempfile::tempdir().unwrap();
        for (name, kills) in [("step-0", 2), ("step-1", 1)] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(
                dir.path().join(name).join("memory.oom_control"),
                format!("under_oom 0\noom_kill {kills}\n"),
            )
            .unwrap();
            std::fs::write(dir.path().join(name).join("cgroup.procs"), "7\n8\n").unwrap();
        }
        std::fs::write(dir.path().join("memory.max_usage_in_bytes"), "4096\n").unwrap();
        std::fs::write(dir.path().join("cpuacct.usage"), "5000\n").unwrap();
        let group = group(CgroupVersion::V1, dir.path());
        assert_eq!((oom_kills(&group), peak_memory(&group), cpu_micros(&group)), (3, Some(4096), Some(5)));
        assert_eq!(members(&group), [7, 8, 7, 8]);
    }

    #[test]
    fn version_2_counts_are_those_of_the_parent() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("memory.events"), "oom 1\noom_kill 4\n").unwrap();
        std::fs::write(dir.path().join("memory.peak"), "8192\n").unwrap();
        std::fs::write(dir.path().join("cpu.stat"), "usage_usec 77\nuser_usec 1\n").unwrap();
        let group = group(CgroupVersion::V2, dir.path());
        assert_eq!((oom_kills(&group), peak_memory(&group), cpu_micros(&group)), (4, Some(8192), Some(77)));
    }
}
