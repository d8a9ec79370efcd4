//! Text files of the Linux kernel: cgroup membership and mounts, flat-keyed counters, process status, kernel log.
//!
//! Layouts are those of `proc(5)`, `cgroups(7)` and the kernel's admin guide. Readers take what they know and skip
//! what they do not; a line that is cut or strange is never an error of the whole file.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// One line of `/proc/PID/cgroup`: `hierarchy:controllers:path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// Number of the hierarchy; 0 is version 2.
    pub hierarchy: u32,
    /// Controllers of a version 1 hierarchy; empty for version 2.
    pub controllers: Vec<String>,
    /// Path from the top of the hierarchy.
    pub path: String,
}

/// Reads `/proc/PID/cgroup`.
pub fn memberships(text: &str) -> Vec<Membership> {
    text.lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let hierarchy = parts.next()?.parse().ok()?;
            let controllers =
                parts.next()?.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            Some(Membership { hierarchy, controllers, path: parts.next()?.to_owned() })
        })
        .collect()
}

/// One line of `/proc/mounts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// What is mounted.
    pub source: String,
    /// Where.
    pub target: PathBuf,
    /// Kind of file system.
    pub kind: String,
    /// Options.
    pub options: Vec<String>,
}

/// Reads `/proc/mounts`.
pub fn mounts(text: &str) -> Vec<Mount> {
    text.lines()
        .filter_map(|line| {
            let mut parts = line.split(' ');
            Some(Mount {
                source: unescape(parts.next()?),
                target: unescape(parts.next()?).into(),
                kind: parts.next()?.to_owned(),
                options: parts.next()?.split(',').map(str::to_owned).collect(),
            })
        })
        .collect()
}

/// Space, tab, newline and backslash are written as `\ooo` there.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = bytes
            .get(at + 1..at + 4)
            .filter(|digits| bytes[at] == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)))
            .and_then(|digits| {
                digits.iter().try_fold(0u8, |sum, d| sum.checked_mul(8)?.checked_add(d - b'0'))
            });
        match octal {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Where the hierarchies of control groups are mounted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hierarchies {
    /// Version 1: folder of each controller.
    pub v1: BTreeMap<String, PathBuf>,
    /// Version 1 hierarchies without a controller (`name=systemd`), and version 2 beside version 1.
    pub others: Vec<PathBuf>,
    /// Version 2.
    pub v2: Option<PathBuf>,
}

/// Controllers that version 1 mounts by name.
const CONTROLLERS: [&str; 13] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
];

/// Finds the hierarchies in the mounts.
pub fn hierarchies(mounts: &[Mount]) -> Hierarchies {
    let mut found = Hierarchies::default();
    for mount in mounts {
        match mount.kind.as_str() {
            "cgroup" => {
                let mut named = false;
                for option in mount.options.iter().filter(|option| CONTROLLERS.contains(&option.as_str())) {
                    named = true;
                    found.v1.entry(option.clone()).or_insert_with(|| mount.target.clone());
                }
                if !named {
                    found.others.push(mount.target.clone());
                }
            }
            "cgroup2" if found.v2.is_none() => found.v2 = Some(mount.target.clone()),
            _ => {}
        }
    }
    found
}

/// Reads a flat-keyed file (`memory.events`, `memory.oom_control`, `cpu.stat`, `pids.events`).
pub fn flat_keyed(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| {
            let (key, value) = line.split_once(' ')?;
            Some((key.to_owned(), value.trim().parse().ok()?))
        })
        .collect()
}

/// Reads a file with one number; `max` is the largest.
pub fn single(text: &str) -> Option<u64> {
    match text.trim() {
        "max" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// What `/proc/PID/stat` says that matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStat {
    /// State letter; `Z` is a zombie.
    pub state: char,
    /// Parent.
    pub parent: i32,
    /// Start, in clock ticks since boot; tells a process from a later one with the same id.
    pub started: u64,
}

/// Reads `/proc/PID/stat`. The name in it may hold spaces and parentheses, so fields count from the last `)`.
pub fn process_stat(text: &str) -> Option<ProcessStat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(ProcessStat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// One record of `/dev/kmsg`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRecord {
    /// Its number; rises by one.
    pub sequence: u64,
    /// Microseconds since boot.
    pub micros: u64,
    /// The text.
    pub text: String,
}

/// Reads one record of `/dev/kmsg`: `priority,sequence,micros,flags;text`, then lines of tags that are skipped.
pub fn kernel_record(record: &str) -> Option<KernelRecord> {
    let (head, text) = record.split_once(';')?;
    let mut fields = head.split(',');
    fields.next()?.parse::<u32>().ok()?;
    Some(KernelRecord {
        sequence: fields.next()?.parse().ok()?,
        micros: fields.next()?.parse().ok()?,
        text: text.lines().next().unwrap_or_default().to_owned(),
    })
}

/// What the kernel's `oom-kill:` line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomKill {
    /// Group whose limit was hit; absent when the whole host ran out.
    pub limited: Option<String>,
    /// Group of the victim.
    pub group: String,
    /// Command name of the victim.
    pub command: String,
    /// Process id of the victim.
    pub process: i32,
}

/// Reads `oom-kill:constraint=…,oom_memcg=/a,task_memcg=/a/b,task=name,pid=1,uid=2`.
/// The command name is chosen by the job and may hold commas, so it ends at the last `,pid=`.
pub fn oom_kill(text: &str) -> Option<OomKill> {
    let rest = &text[text.find("oom-kill:")? + "oom-kill:".len()..];
    let (before, named) = rest.split_once(",task=")?;
    let (command, ids) = named.rsplit_once(",pid=")?;
    let value = |key: &str| {
        let at = before.find(key)? + key.len();
        before[at..].split(',').next().map(str::to_owned)
    };
    Some(OomKill {
        limited: value(",oom_memcg="),
        group: value(",task_memcg=")?,
        command: command.to_owned(),
        process: ids.split(',').next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests;
