//! Evidence that the job used its device, seen from outside the job.
//!
//! `opencl-cpu`: PoCL leaves a shared library in its cache folder for each kernel that was compiled and enqueued; the
//! folder is new for each machine. A job could make such a file by hand, so this guards against tests that skip
//! silently, not against malice. `nvidia`: device nodes that processes of the job hold open are sampled; this has not
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

/// Device nodes that these processes have open, among those that were leased.
pub(crate) fn open_nodes(processes: &[i32], devices: &[DeviceFacts]) -> BTreeSet<String> {
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

/// What was seen of the devices; `None` when none were leased.
pub(crate) fn seen(work: &Path, devices: &[DeviceFacts], nodes_open: &BTreeSet<String>) -> Option<DeviceUse> {
    let kind = devices.first()?.kind;
    let evidence = match kind {
        DeviceKind::OpenclCpu => kernels(work),
        DeviceKind::Nvidia | DeviceKind::Amd => {
            nodes_open.iter().take(EVIDENCE).map(|node| format!("the job held {node} open")).collect()
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
        assert_eq!(open_nodes(&me, &[device(DeviceKind::Nvidia, &["/dev/null"])]).len(), 1);
        assert!(open_nodes(&me, &[device(DeviceKind::Nvidia, &["/dev/zero"])]).is_empty());
        assert!(seen(Path::new("/nowhere"), &[], &BTreeSet::new()).is_none());
    }
}
