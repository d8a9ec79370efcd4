//! What a farm left on this host. Other farms may run beside it, so everything is told by the data folder and by the
//! ids of its machines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where the provider puts roots together.
const RUN: &str = "/run/forgeyard";
/// The group that all machines are below.
const GROUP: &str = "forgeyard";

/// Everything of these machines and of this data folder that is still here: processes, mounts, control groups,
/// containers, folders of machines.
pub(crate) fn of(data: &Path, machines: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    let names = |text: &str| {
        text.contains(&*data.to_string_lossy()) || machines.iter().any(|machine| text.contains(machine))
    };
    for (process, line) in processes() {
        if names(&line) && process != std::process::id() as i32 {
            found.push(format!("process {process}: {line}"));
        }
    }
    for mount in mounts() {
        if names(&mount) {
            found.push(format!("mount {mount}"));
        }
    }
    for machine in machines {
        let groups = hierarchies().into_iter().map(|top| top.join(GROUP).join(machine));
        found.extend(groups.filter(|group| group.exists()).map(|group| format!("group {}", group.display())));
    }
    for folder in [PathBuf::from(RUN), Path::new(RUN).join("runc"), data.join("site/sandbox/runners")] {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if folder.starts_with(data) || machines.iter().any(|machine| name.starts_with(machine)) {
                found.push(format!("folder {}", entry.path().display()));
            }
        }
    }
    found
}

/// Agents, monitors and runtime commands of a data folder.
pub(crate) fn helpers(data: &Path) -> Vec<i32> {
    let machines = super::machines(data);
    let ours = |line: &str| {
        line.contains(&*data.to_string_lossy()) || machines.iter().any(|machine| line.contains(machine))
    };
    let helper = |line: &str| {
        let program = line.split('\0').next().unwrap_or_default();
        let name = program.rsplit('/').next().unwrap_or_default();
        ["forgeyard", "forgeyard-agent", "conmon", "runc"].contains(&name)
    };
    processes()
        .into_iter()
        .filter(|(_, line)| helper(line) && ours(line))
        .map(|(process, _)| process)
        .collect()
}

/// Processes with their command lines; arguments are parted by NUL. One that is dead has none.
fn processes() -> Vec<(i32, String)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter_map(|process| {
            let line = std::fs::read(format!("/proc/{process}/cmdline")).ok()?;
            (!line.is_empty()).then(|| (process, String::from_utf8_lossy(&line).into_owned()))
        })
        .collect()
}

fn mounts() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap();
    text.lines().map(str::to_owned).collect()
}

fn hierarchies() -> Vec<PathBuf> {
    let text = mounts();
    let fields = text.iter().map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| matches!(fields.get(2), Some(&"cgroup" | &"cgroup2")))
        .map(|fields| PathBuf::from(fields[1]))
        .collect()
}
