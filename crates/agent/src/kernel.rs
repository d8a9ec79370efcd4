//! What the kernel's log says of this job: out-of-memory kills in its group, and faults of its devices.

use forgeyard_formats::linux::{KernelRecord, kernel_record, oom_kill};
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::resources::DeviceKind;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;

/// Lines that are kept, at most.
const MOST: usize = 50;
/// Characters of a line that are kept.
const WIDTH: usize = 400;

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelFacts {
    pub(crate) lines: Vec<String>,
    pub(crate) victim: Option<String>,
}

/// Reads all records since `since_micros` after boot; none where the log may not be read.
pub(crate) fn records(since_micros: u64) -> Vec<KernelRecord> {
    let opened = std::fs::File::options()
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
        .open("/dev/kmsg");
    let Ok(mut file) = opened else { return Vec::new() };
    let mut buffer = vec![0u8; 16 << 10];
    let mut found = Vec::new();
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => found.extend(
                kernel_record(&String::from_utf8_lossy(&buffer[..length]))
                    .filter(|r| r.micros >= since_micros),
            ),
            // The record was overwritten while it was to be read; the next read goes on behind it.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    found
}

/// Picks what speaks of this job's group or devices.
pub(crate) fn pick(records: &[KernelRecord], group: &str, devices: &[DeviceFacts]) -> KernelFacts {
    let below =
        |path: &str| path == group || path.strip_prefix(group).is_some_and(|rest| rest.starts_with('/'));
    let mut facts = KernelFacts::default();
    let mut victims = Vec::new();
    for record in records {
        let text = &record.text;
        let ours = if let Some(kill) = oom_kill(text) {
            let ours = below(&kill.group);
            if ours {
                victims.push(kill.process);
                facts.victim = Some(kill.command);
            }
            ours
        } else if let Some((_, rest)) = text.split_once("Killed process ") {
            rest.split(' ')
                .next()
                .and_then(|pid| pid.parse().ok())
                .is_some_and(|pid: i32| victims.contains(&pid))
        } else {
            devices.iter().any(|device| speaks_of(text, device))
        };
        if ours && facts.lines.len() < MOST {
            facts.lines.push(text.chars().take(WIDTH).collect());
        }
    }
    facts
}

/// `NVRM: Xid (PCI:0000:9b:00): 79, …` and faults of amdgpu and PCIe name the address of the device.
fn speaks_of(text: &str, device: &DeviceFacts) -> bool {
    if device.kind == DeviceKind::OpenclCpu {
        return false;
    }
    let Some(address) = device.key.strip_prefix("pci:") else { return false };
    let address = address.to_ascii_lowercase();
    let short = address.split('.').next().unwrap_or(&address);
    !short.is_empty() && text.to_ascii_lowercase().contains(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &str) -> KernelRecord {
        KernelRecord { sequence: 1, micros: 1, text: text.to_owned() }
    }

    #[test]
    fn only_kills_in_the_own_group_are_ours() {
        let kill = |group: &str, task: &str, pid: i32| {
            record(&format!(
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={group},task_memcg={group}/step-0,task={task},pid={pid},uid=1"
            ))
        };
        let records = [
            kill("/f/rnr_1/job", "python3", 10),
            record("Memory cgroup out of memory: Killed process 10 (python3) total-vm:1kB"),
            kill("/f/rnr_10/job", "other", 11),
            record("Memory cgroup out of memory: Killed process 11 (other) total-vm:1kB"),
        ];
        let facts = pick(&records, "/f/rnr_1/job", &[]);
        assert_eq!(facts.victim.as_deref(), Some("python3"));
        assert_eq!(facts.lines.len(), 2);
    }

    #[test]
    fn only_faults_of_leased_devices_are_ours() {
        let device: DeviceFacts = serde_json::from_value(serde_json::json!({
            "key": "pci:0000:9b:00.0", "kind": "nvidia", "model": "m", "driver": "d", "memory_mib": 1,
        }))
        .unwrap();
        let records = [
            record("NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."),
            record("NVRM: Xid (PCI:0000:18:00): 31, pid=1"),
        ];
        assert_eq!(pick(&records, "/x", &[device]).lines.len(), 1);
    }
}
