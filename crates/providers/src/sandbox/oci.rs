//! The OCI configuration of a machine's containers, complete but for command, environment and cgroup path, which the
//! agent adds for each step.

use crate::Error;
use crate::sandbox::seccomp;
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::machine::{INSIDE_INIT, IdRange, MachineFolder};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::{SFlag, major, minor, stat};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Open files at once, where the host allows as many.
const FILES: u64 = 65_536;
/// What a process may open without asking for more.
const FILES_SOFT: u64 = 4096;
/// The kernel ends jobs before it ends anything of ours.
const OOM_SCORE: i32 = 500;

/// A folder or file of the host that is shown inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Path on the host.
    pub(crate) source: PathBuf,
    /// Path inside.
    pub(crate) target: PathBuf,
}

/// What a configuration is made from.
pub(crate) struct Parts<'a> {
    pub(crate) folder: &'a MachineFolder,
    pub(crate) root: &'a Path,
    pub(crate) shown: &'a [Shown],
    pub(crate) init: &'a Path,
    pub(crate) ids: IdRange,
    pub(crate) devices: &'a [DeviceFacts],
    pub(crate) network: bool,
    pub(crate) memory_mib: u64,
    pub(crate) hostname: &'a str,
}

/// Makes the template.
pub(crate) fn template(parts: &Parts<'_>) -> Result<Value, Error> {
    let (nodes, rules) = devices(parts)?;
    let mut namespaces = vec!["user", "mount", "pid", "uts", "ipc", "cgroup"];
    if !parts.network {
        namespaces.push("network");
    }
    let namespaces: Vec<Value> = namespaces.into_iter().map(|kind| json!({"type": kind})).collect();
    let mapping = json!([{"containerID": 0, "hostID": parts.ids.base, "size": parts.ids.count}]);
    let none = json!([]);
    Ok(json!({
        "ociVersion": "1.0.2",
        "hostname": parts.hostname,
        "root": {"path": parts.root, "readonly": true},
        "mounts": mounts(parts),
        "process": {
            "terminal": false,
            "user": {"uid": parts.ids.job, "gid": parts.ids.job, "umask": 0o022},
            "args": [],
            "env": [],
            "cwd": "/work",
            "noNewPrivileges": true,
            "oomScoreAdj": OOM_SCORE,
            "capabilities": {
                "bounding": none, "effective": none, "inheritable": none, "permitted": none, "ambient": none,
            },
            "rlimits": limits(),
        },
        "linux": {
            "uidMappings": mapping,
            "gidMappings": mapping,
            "namespaces": namespaces,
            "devices": nodes,
            "resources": {"devices": rules},
            "seccomp": seccomp::profile(),
            "maskedPaths": [
                "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
                "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/proc/kmsg", "/proc/sysrq-trigger",
            ],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"],
        },
    }))
}

fn mounts(parts: &Parts<'_>) -> Vec<Value> {
    let bind = |source: &Path, target: &Path, mode: &str| {
        json!({
            "destination": target, "type": "bind", "source": source, "options": ["rbind", mode, "nosuid", "nodev"],
        })
    };
    // Shared memory is memory: its size is bounded by half of it, and its pages count in the job's group.
    let shared = format!("size={}m", (parts.memory_mib / 2).max(16));
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}),
        json!({
            "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=1m"],
        }),
        json!({
            "destination": "/dev/pts", "type": "devpts", "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        }),
        json!({
            "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
            "options": ["nosuid", "nodev", "mode=1777", shared],
        }),
        json!({
            "destination": "/run", "type": "tmpfs", "source": "run",
            "options": ["nosuid", "nodev", "mode=1777", "size=16m"],
        }),
    ];
    mounts.extend(parts.shown.iter().map(|shown| bind(&shown.source, &shown.target, "ro")));
    mounts.push(bind(parts.init, Path::new(INSIDE_INIT), "ro"));
    mounts.push(bind(&parts.folder.input(), Path::new("/in"), "ro"));
    mounts.push(bind(&parts.folder.work(), Path::new("/work"), "rw"));
    mounts.push(bind(&parts.folder.out(), Path::new("/out"), "rw"));
    mounts.push(bind(&parts.folder.tmp(), Path::new("/tmp"), "rw"));
    mounts
}

/// Limits of one process. They are only ever lowered: raising needs a privilege that the host may not give.
fn limits() -> Value {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    let hard = most.min(FILES);
    json!([
        {"type": "RLIMIT_NOFILE", "soft": hard.min(FILES_SOFT), "hard": hard},
        {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
    ])
}

/// Device nodes, and the rules that let them be opened. All others are refused.
fn devices(parts: &Parts<'_>) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let (mut nodes, mut rules) = (Vec::new(), vec![json!({"allow": false, "access": "rwm"})]);
    for path in parts.devices.iter().flat_map(|device| &device.nodes) {
        let failed = |source| Error::Failed { action: "look at device node", object: path.clone(), source };
        let meta = stat(path.as_str()).map_err(|errno| failed(errno.into()))?;
        if !path.starts_with("/dev/")
            || SFlag::from_bits_truncate(meta.st_mode) & SFlag::S_IFMT != SFlag::S_IFCHR
        {
            return Err(failed(std::io::Error::other("not a character device below /dev")));
        }
        let (major, minor) = (major(meta.st_rdev), minor(meta.st_rdev));
        nodes.push(json!({
            "path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o666,
        }));
        rules.push(json!({"allow": true, "type": "c", "major": major, "minor": minor, "access": "rw"}));
    }
    Ok((nodes, rules))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'a>(folder: &'a MachineFolder, devices: &'a [DeviceFacts], network: bool) -> Parts<'a> {
        Parts {
            folder,
            root: Path::new("/r"),
            shown: &[],
            init: Path::new("/a"),
            ids: IdRange { base: 100_000, count: 65_536, job: 1000 },
            devices,
            network,
            memory_mib: 64,
            hostname: "job",
        }
    }

    #[test]
    fn job_has_no_capability_no_new_privilege_and_no_network() {
        let folder = MachineFolder::new("/x");
        let config = template(&parts(&folder, &[], false)).unwrap();
        let kinds: Vec<&str> = config["linux"]["namespaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n["type"].as_str().unwrap())
            .collect();
        for kind in ["user", "mount", "pid", "uts", "ipc", "cgroup", "network"] {
            assert!(kinds.contains(&kind), "{kind}");
        }
        assert_eq!(config["process"]["noNewPrivileges"], true);
        assert_eq!(config["process"]["capabilities"]["bounding"], json!([]));
        assert_eq!(config["linux"]["resources"]["devices"], json!([{"allow": false, "access": "rwm"}]));
        let with = template(&parts(&folder, &[], true)).unwrap();
        assert!(!with["linux"]["namespaces"].to_string().contains("network"));
    }

    #[test]
    fn only_character_devices_can_be_handed_in() {
        let folder = MachineFolder::new("/x");
        let device = |node: &str| -> DeviceFacts {
            serde_json::from_value(json!({
                "key": "k", "kind": "nvidia", "model": "m", "driver": "d", "memory_mib": 1, "nodes": [node],
            }))
            .unwrap()
        };
        let config = template(&parts(&folder, &[device("/dev/null")], false)).unwrap();
        assert_eq!(config["linux"]["devices"][0]["minor"], 3);
        assert!(template(&parts(&folder, &[device("/etc/passwd")], false)).is_err());
        assert!(template(&parts(&folder, &[device("/dev/does-not-exist")], false)).is_err());
    }
}
