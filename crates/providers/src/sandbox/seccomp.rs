//! System calls that a job may not make: those that change the host, its kernel or other users' things, and those with
//! a long record of kernel faults that no build or test needs. Everything else is allowed; new user namespaces stay
//! allowed, since build tools make them, and capabilities in them reach only what the namespaces hold.

use serde_json::{Value, json};

/// Refused with "operation not permitted".
const REFUSED: &[&str] = &[
    "acct",
    "add_key",
    "adjtimex",
    "bpf",
    "clock_adjtime",
    "clock_adjtime64",
    "clock_settime",
    "clock_settime64",
    "create_module",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "get_kernel_syms",
    "init_module",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "process_madvise",
    "query_module",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "setdomainname",
    "sethostname",
    "setns",
    "settimeofday",
    "stime",
    "swapoff",
    "swapon",
    "sysfs",
    "syslog",
    "umount",
    "umount2",
    "userfaultfd",
    "uselib",
    "vhangup",
];

/// Refused with "not implemented", so that programs fall back to other ways.
const ABSENT: &[&str] = &["io_uring_enter", "io_uring_register", "io_uring_setup"];

/// The `linux.seccomp` part of an OCI configuration.
pub(crate) fn profile() -> Value {
    let architectures = if cfg!(target_arch = "x86_64") {
        json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"])
    } else if cfg!(target_arch = "aarch64") {
        json!(["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"])
    } else {
        json!([])
    };
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": architectures,
        "syscalls": [
            {"names": REFUSED, "action": "SCMP_ACT_ERRNO", "errnoRet": nix::errno::Errno::EPERM as i32},
            {"names": ABSENT, "action": "SCMP_ACT_ERRNO", "errnoRet": nix::errno::Errno::ENOSYS as i32},
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangerous_calls_are_on_the_list_and_each_is_there_once() {
        for call in ["mount", "bpf", "keyctl", "kexec_load", "init_module", "perf_event_open", "userfaultfd"]
        {
            assert!(REFUSED.contains(&call), "{call}");
        }
        let unique: std::collections::BTreeSet<_> = REFUSED.iter().chain(ABSENT).collect();
        assert_eq!(unique.len(), REFUSED.len() + ABSENT.len());
    }
}
