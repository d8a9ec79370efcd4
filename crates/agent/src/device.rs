//! Evidence that the job used its device, seen from outside the job.
//!
//! `opencl-cpu`: PoCL compiles each kernel that is enqueued to a shared library below a folder `kcache` and maps it.
//! Processes of the job are sampled for such mappings, and the cache folder of the machine, which is new for each, is
//! looked at in the end. A job could make such a file by hand, so this guards against tests that skip silently, not
//! against malice. `nvidia`: device nodes that processes of the job hold open are sampled; this has not
//! been run on a real GPU yet. `amd`: `/dev/kfd` and render nodes likewise, not run either.

use crate::bundle::POCL_CACHE;
use crate::inside;
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::resources::DeviceKind;
use forgeyard_model::verdict::DeviceUse;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Folders of the cache that are looked at, at most.
const MOST: usize = 20_000;
/// Pieces of evidence that are kept.
const EVIDENCE: usize = 10;

/// What these processes hold of the leased devices at this moment: device nodes, or compiled kernels.
pub(crate) fn held(processes: &[i32], devices: &[DeviceFacts]) -> BTreeSet<String> {
    if devices.iter().any(|device| device.kind == DeviceKind::OpenclCpu) {
        let maps =
            |process: &i32| std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        return processes.iter().map(maps).flat_map(|maps| mapped_kernels(&maps)).collect();
    }
    let leased: BTreeSet<&str> =
        devices.iter().flat_map(|device| device.nodes.iter().map(String::as_str)).collect();
    let mut found = BTreeSet::new();
    if leased.is_empty() {
        return found;
    }
    for process in processes {
        for entry in std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten() {
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            if let Some(target) = target.to_str().filter(|target| leased.contains(target)) {
                found.insert(target.to_owned());
            }
        }
    }
    found
}

/// Names of PoCL kernels among the files that a process maps (`/proc/PID/maps`).
fn mapped_kernels(maps: &str) -> BTreeSet<String> {
    let paths = maps.lines().filter_map(|line| line.split_once('/').map(|(_, path)| path));
    let kernels = paths.filter(|path| path.contains("/kcache/")).filter_map(|path| {
        let file = path.trim_end_matches(" (deleted)").rsplit('/').next()?;
        file.strip_suffix(".so").map(|name| name.chars().take(100).collect())
    });
    kernels.take(EVIDENCE).collect()
}

/// What was seen of the devices; `None` when none were leased.
pub(crate) fn seen(work: &Path, devices: &[DeviceFacts], held: &BTreeSet<String>) -> Option<DeviceUse> {
    let kind = devices.first()?.kind;
    let evidence: Vec<String> = match kind {
        DeviceKind::OpenclCpu => {
            let mapped = held
                .iter()
                .map(|kernel| format!("a process of the job had the compiled kernel `{kernel}` mapped"));
            mapped.chain(kernels(work)).take(EVIDENCE).collect()
        }
        DeviceKind::Nvidia | DeviceKind::Amd => {
            held.iter().take(EVIDENCE).map(|node| format!("the job held {node} open")).collect()
        }
    };
    Some(DeviceUse { kind, touched: !evidence.is_empty(), evidence })
}

/// Compiled kernels in the cache of PoCL.
fn kernels(work: &Path) -> Vec<String> {
    let top = PathBuf::from(POCL_CACHE.trim_start_matches("/work/"));
    let mut waiting = vec![top.clone()];
    let mut found = Vec::new();
    let mut looked_at = 0;
    while let Some(folder) = waiting.pop() {
        looked_at += 1;
        if looked_at > MOST || found.len() >= EVIDENCE {
            break;
        }
        for name in inside::list(work, &folder, MOST).unwrap_or_default() {
            let path = folder.join(&name);
            if path.extension().is_some_and(|ending| ending == "so") {
                if inside::open(work, &path).is_ok() && found.len() < EVIDENCE {
                    let shown = path.strip_prefix(&top).unwrap_or(&path).display().to_string();
                    let kernel = shown.split('/').rev().nth(2).unwrap_or_default().to_owned();
                    found.push(format!("PoCL compiled and enqueued kernel `{kernel}` ({shown})"));
                }
            } else if inside::is_folder(work, &path) {
                waiting.push(path);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_kernel_is_named_and_the_driver_itself_is_not() {
        let maps = "7f00-7f01 r-xp 00000000 fe:00 1 /usr/lib/x86_64-linux-gnu/libpocl.so.2.10.0\n\
                    7f02-7f03 r-xp 00000000 fe:00 2 /work/t/.cache/pocl/kcache/NO/ABC/copy/4096-1-1-goffs0/copy.so\n\
                    7f04-7f05 rw-p 00000000 00:00 0 [heap]\n";
        assert_eq!(mapped_kernels(maps), BTreeSet::from(["copy".to_owned()]));
    }

    fn device(kind: DeviceKind, nodes: &[&str]) -> DeviceFacts {
        serde_json::from_value(serde_json::json!({
            "key": "k", "kind": kind, "model": "m", "driver": "d", "memory_mib": 1, "nodes": nodes,
        }))
        .unwrap()
    }

    #[test]
    fn only_an_enqueued_kernel_counts_as_use() {
        let work = tempfile::tempdir().unwrap();
        let devices = [device(DeviceKind::OpenclCpu, &[])];
        let cache = work.path().join(".pocl-cache/AB/CDEF");
        std::fs::create_dir_all(&cache).unwrap();
        std::fs::write(cache.join("program.bc"), "").unwrap();
        assert!(!seen(work.path(), &devices, &BTreeSet::new()).unwrap().touched);
        let kernel = cache.join("axpy/0-0-0");
        std::fs::create_dir_all(&kernel).unwrap();
        std::fs::write(kernel.join("axpy.so"), "x").unwrap();
        let used = seen(work.path(), &devices, &BTreeSet::new()).unwrap();
        assert!(used.touched);
        assert!(used.evidence[0].contains("kernel `axpy`"), "{:?}", used.evidence);
    }

    #[test]
    fn open_nodes_are_found_among_the_leased_ones() {
        let _held = std::fs::File::open("/dev/null").unwrap();
        let me = [std::process::id() as i32];
        assert_eq!(held(&me, &[device(DeviceKind::Nvidia, &["/dev/null"])]).len(), 1);
        assert!(held(&me, &[device(DeviceKind::Nvidia, &["/dev/zero"])]).is_empty());
        assert!(seen(Path::new("/nowhere"), &[], &BTreeSet::new()).is_none());
    }
}
