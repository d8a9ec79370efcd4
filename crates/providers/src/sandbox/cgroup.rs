//! Control groups: where a machine's processes are limited, counted and found.
//!
//! Layout, the same in each hierarchy: `PARENT/RUNNER/job` carries the limits and the containers below it;
//! `PARENT/RUNNER/supervisor` holds the agent and the monitors, without limits. In version 1 each controller has its own
//! hierarchy, in version 2 there is one; on a hybrid host the controllers of version 1 count, and version 2 only helps to
//! kill. Version 2 alone has been tested on fixtures only: the hosts at hand bind memory and processes to version 1.

use crate::Error;
use forgeyard_formats::linux::{Hierarchies, hierarchies, mounts};
use forgeyard_model::RunnerId;
use forgeyard_model::machine::{CgroupFile, CgroupVersion};
use forgeyard_model::resources::{Flavor, Limit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Length of a CPU accounting period, in microseconds.
const PERIOD: u64 = 100_000;
/// Time in which killed processes must be gone.
const GONE: Duration = Duration::from_secs(10);

/// The groups of all machines of one provider.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    found: Hierarchies,
    parent: String,
}

impl Groups {
    /// Looks at the mounts of this host.
    pub(crate) fn detect(parent: &str) -> Result<Self, Error> {
        let path = Path::new("/proc/mounts");
        let text = std::fs::read_to_string(path).map_err(|source| failed("read", path, source))?;
        Ok(Self::new(hierarchies(&mounts(&text)), parent))
    }

    pub(crate) fn new(found: Hierarchies, parent: &str) -> Self {
        Self { found, parent: parent.trim_matches('/').to_owned() }
    }

    /// Which interface counts memory here, and the folder of each controller.
    fn controllers(&self) -> Option<(CgroupVersion, BTreeMap<String, PathBuf>)> {
        let names = ["memory", "pids", "cpu", "cpuacct"];
        if names.iter().all(|name| self.found.v1.contains_key(*name)) {
            let folders =
                names.iter().map(|name| ((*name).to_owned(), self.found.v1[*name].clone())).collect();
            return Some((CgroupVersion::V1, folders));
        }
        let top = self.found.v2.clone()?;
        let offered = std::fs::read_to_string(top.join("cgroup.controllers")).unwrap_or_default();
        let offered: BTreeSet<&str> = offered.split_whitespace().collect();
        ["memory", "pids", "cpu"].iter().all(|name| offered.contains(name)).then(|| {
            (CgroupVersion::V2, names.iter().map(|name| ((*name).to_owned(), top.clone())).collect())
        })
    }

    /// Limits that can be kept by groups here, and those that cannot with the reason. `swap` says whether the host swaps.
    pub(crate) fn facts(&self, swap: bool) -> (BTreeSet<Limit>, Vec<(Limit, String)>) {
        let all = [Limit::Memory, Limit::Cpu, Limit::Processes];
        let Some((version, folders)) = self.controllers() else {
            let reason = "no hierarchy with the controllers memory, cpu, cpuacct and pids is mounted";
            return (BTreeSet::new(), all.map(|limit| (limit, reason.to_owned())).into());
        };
        let (mut enforces, mut cannot) = (BTreeSet::new(), Vec::new());
        let quota = match version {
            CgroupVersion::V1 => {
                folders["cpu"].join("cpu.cfs_period_us").exists()
                    || !folders["cpu"].join("cpu.shares").exists()
            }
            CgroupVersion::V2 => true,
        };
        let bounded_swap = !swap
            || version == CgroupVersion::V2
            || folders["memory"].join("memory.memsw.limit_in_bytes").exists();
        let mut judge = |limit, holds, reason: &str| {
            if holds {
                enforces.insert(limit);
            } else {
                cannot.push((limit, reason.to_owned()));
            }
        };
        judge(
            Limit::Memory,
            bounded_swap,
            "the host swaps and does not count swap (memory.memsw is missing)",
        );
        judge(Limit::Cpu, quota, "the cpu controller has no quota (cpu.cfs_quota_us is missing)");
        judge(Limit::Processes, true, "");
        (enforces, cannot)
    }

    /// What the agent needs to know.
    pub(crate) fn file(&self, runner: RunnerId) -> Result<CgroupFile, Error> {
        let Some((version, folders)) = self.controllers() else {
            let reason = "the controllers memory, cpu, cpuacct and pids are not all there".to_owned();
            return Err(Error::CannotEnforce { limit: Limit::Memory, reason });
        };
        let path = format!("/{}/{runner}/job", self.parent);
        let job = folders.into_iter().map(|(name, top)| (name, top.join(&path[1..]))).collect();
        let supervisor = match version {
            CgroupVersion::V1 => ["pids", "freezer"]
                .iter()
                .filter_map(|name| self.found.v1.get(*name))
                .map(|top| self.of(top, runner).join("supervisor"))
                .collect(),
            CgroupVersion::V2 => {
                self.found.v2.iter().map(|top| self.of(top, runner).join("supervisor")).collect()
            }
        };
        Ok(CgroupFile { path, version, job, supervisor })
    }

    fn of(&self, top: &Path, runner: RunnerId) -> PathBuf {
        top.join(&self.parent).join(runner.to_string())
    }

    /// Makes the groups of a machine and sets the limits of its flavor. Doing it again changes nothing.
    pub(crate) fn create(&self, runner: RunnerId, flavor: &Flavor) -> Result<CgroupFile, Error> {
        let file = self.file(runner)?;
        let folders: BTreeSet<&PathBuf> = file.job.values().chain(&file.supervisor).collect();
        for folder in folders {
            std::fs::create_dir_all(folder).map_err(|source| failed("make", folder, source))?;
        }
        if let (CgroupVersion::V2, Some(top)) = (file.version, &self.found.v2) {
            // Each group above must hand the controllers down before a limit can be set below.
            let mut at = top.clone();
            for part in
                Path::new(&self.parent).components().chain(Path::new(&runner.to_string()).components())
            {
                write(&at.join("cgroup.subtree_control"), "+memory +pids +cpu")?;
                at.push(part);
            }
            write(&at.join("cgroup.subtree_control"), "+memory +pids +cpu")?;
        }
        for (controller, name, value) in limits(file.version, flavor) {
            let path = file.job[controller].join(name);
            // Swap is counted only by some hosts; `facts` has judged whether that matters.
            if path.exists() || !name.contains("sw") {
                write(&path, &value)?;
            }
        }
        Ok(file)
    }

    /// All folders of a machine that exist.
    pub(crate) fn left(&self, runner: RunnerId) -> Vec<PathBuf> {
        let tops: BTreeSet<&PathBuf> =
            self.found.v1.values().chain(&self.found.others).chain(&self.found.v2).collect();
        tops.into_iter().map(|top| self.of(top, runner)).filter(|folder| folder.exists()).collect()
    }

    /// Kills everything in the groups of a machine and waits until it is gone. Blocks.
    pub(crate) fn kill_all(&self, runner: RunnerId) -> Result<(), Error> {
        let begin = Instant::now();
        let mut wait = Duration::from_millis(2);
        loop {
            let folders = self.left(runner);
            let processes: BTreeSet<i32> = folders.iter().flat_map(|folder| processes(folder)).collect();
            if processes.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > GONE {
                let left = format!("process {:?}", processes);
                return Err(Error::Left { runner: runner.to_string(), left });
            }
            let freezer = self.found.v1.get("freezer").map(|top| self.of(top, runner).join("freezer.state"));
            // A frozen group cannot fork away from the list of its processes. Neither help is needed to get there,
            // since the loop ends only when nothing is left.
            if let Some(state) = &freezer {
                let _ = std::fs::write(state, "FROZEN");
            }
            if let Some(top) = &self.found.v2 {
                let _ = std::fs::write(self.of(top, runner).join("cgroup.kill"), "1");
            }
            for process in &processes {
                let _ = kill(Pid::from_raw(*process), Signal::SIGKILL);
            }
            if let Some(state) = &freezer {
                let _ = std::fs::write(state, "THAWED");
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(Duration::from_millis(100));
        }
    }

    /// Removes the groups of a machine. Blocks while the kernel still counts a process that has just ended.
    pub(crate) fn remove(&self, runner: RunnerId) -> Result<(), Error> {
        let begin = Instant::now();
        for folder in self.left(runner) {
            for group in below(&folder).iter().rev() {
                loop {
                    match std::fs::remove_dir(group) {
                        Ok(()) => break,
                        Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
                        Err(_) if begin.elapsed() < GONE => std::thread::sleep(Duration::from_millis(5)),
                        Err(source) => return Err(failed("remove", group, source)),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Files and values that set the limits: controller, file, value, in the order of writing.
fn limits(version: CgroupVersion, flavor: &Flavor) -> Vec<(&'static str, &'static str, String)> {
    let memory = flavor.memory_mib.saturating_mul(1 << 20).to_string();
    let quota = (u64::from(flavor.cpu_millis).saturating_mul(PERIOD) / 1000).max(1000);
    let processes = flavor.processes.to_string();
    match version {
        CgroupVersion::V1 => vec![
            ("memory", "memory.limit_in_bytes", memory.clone()),
            // Memory and swap together: equal to memory alone, so nothing is swapped beyond it.
            ("memory", "memory.memsw.limit_in_bytes", memory),
            ("cpu", "cpu.cfs_period_us", PERIOD.to_string()),
            ("cpu", "cpu.cfs_quota_us", quota.to_string()),
            ("pids", "pids.max", processes),
        ],
        CgroupVersion::V2 => vec![
            ("memory", "memory.max", memory),
            ("memory", "memory.swap.max", "0".to_owned()),
            ("cpu", "cpu.max", format!("{quota} {PERIOD}")),
            ("pids", "pids.max", processes),
        ],
    }
}

/// A group and all below it, parents first.
fn below(top: &Path) -> Vec<PathBuf> {
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

fn processes(folder: &Path) -> BTreeSet<i32> {
    below(folder)
        .iter()
        .flat_map(|group| {
            let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<i32>>()
        })
        .collect()
}

fn write(path: &Path, value: &str) -> Result<(), Error> {
    std::fs::write(path, value).map_err(|source| failed("write", path, source))
}

fn failed(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::Failed { action, object: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forgeyard_model::{Id as _, Timestamp};

    fn flavor() -> Flavor {
        serde_json::from_value(serde_json::json!({
            "name": "small", "cpu-millis": 1500, "memory-mib": 64, "disk-mib": 1, "processes": 33,
            "time-limit-seconds": 1,
        }))
        .unwrap()
    }

    fn runner() -> RunnerId {
        RunnerId::new(Timestamp::from_micros(1), 7)
    }

    /// A folder that stands for a version 2 hierarchy. It has no kernel behind it.
    #[test]
    fn version_2_fixture_gets_all_limits() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io memory pids").unwrap();
        let found = Hierarchies { v2: Some(dir.path().to_owned()), ..Hierarchies::default() };
        let groups = Groups::new(found, "/forgeyard");
        assert_eq!(groups.facts(true).0.len(), 3);
        let job = dir.path().join(format!("forgeyard/{}/job", runner()));
        std::fs::create_dir_all(&job).unwrap();
        std::fs::write(job.join("memory.swap.max"), "max").unwrap();
        let file = groups.create(runner(), &flavor()).unwrap();
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        assert_eq!(file.path, format!("/forgeyard/{}/job", runner()));
        assert_eq!(read(job.join("memory.max")), "67108864");
        assert_eq!(read(job.join("memory.swap.max")), "0");
        assert_eq!(read(job.join("cpu.max")), "150000 100000");
        assert_eq!(read(job.join("pids.max")), "33");
        for folder in ["", "forgeyard", &format!("forgeyard/{}", runner())] {
            assert_eq!(read(dir.path().join(folder).join("cgroup.subtree_control")), "+memory +pids +cpu");
        }
    }

    #[test]
    fn a_host_without_the_controllers_enforces_nothing_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cgroup.controllers"), "hugetlb").unwrap();
        let found = Hierarchies { v2: Some(dir.path().to_owned()), ..Hierarchies::default() };
        let groups = Groups::new(found, "forgeyard");
        let (enforces, cannot) = groups.facts(false);
        assert!(enforces.is_empty());
        assert_eq!(cannot.len(), 3);
        assert!(matches!(groups.create(runner(), &flavor()), Err(Error::CannotEnforce { .. })));
    }

    #[test]
    fn swap_that_is_not_counted_makes_the_memory_limit_void() {
        let dir = tempfile::tempdir().unwrap();
        let v1 =
            ["memory", "pids", "cpu", "cpuacct"].map(|name| (name.to_owned(), dir.path().to_owned())).into();
        let groups = Groups::new(Hierarchies { v1, ..Hierarchies::default() }, "forgeyard");
        assert!(groups.facts(false).0.contains(&Limit::Memory));
        assert_eq!(groups.facts(true).1[0].0, Limit::Memory);
    }
}
