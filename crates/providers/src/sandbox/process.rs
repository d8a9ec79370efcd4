//! The agent of a machine as a process: starting it, seeing that it lives, ending it.

use crate::Error;
use forgeyard_formats::linux::process_stat;
use forgeyard_model::machine::MachineFolder;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{File, TryLockError};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::Command;

/// Starts of one agent, at most; one that always dies is given up.
const STARTS: u64 = 20;
/// Time in which a killed agent must be gone.
const GONE: Duration = Duration::from_secs(10);

/// Whether the machine has a living agent: the agent holds a lock on a file as long as it lives, which no other process
/// with its number can hold.
pub(crate) fn agent_lives(folder: &MachineFolder) -> bool {
    match File::open(folder.agent_lock()) {
        Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
        Err(_) => false,
    }
}

/// Starts the agent; it detaches itself. A second agent of the same machine ends at once. `false`: it has been started
/// too often.
pub(crate) async fn start_agent(agent: &[String], folder: &MachineFolder) -> Result<bool, Error> {
    let count = folder.agent().join("starts");
    let starts = std::fs::metadata(&count).map(|meta| meta.len()).unwrap_or(0);
    if starts >= STARTS {
        return Ok(false);
    }
    let failed = |source| Error::Failed {
        action: "start the agent of",
        object: folder.dir().display().to_string(),
        source,
    };
    let append = |name: &str| File::options().create(true).append(true).open(folder.agent().join(name));
    // One byte for each start: appending cannot lose an earlier count.
    append("starts").and_then(|mut file| std::io::Write::write_all(&mut file, b".")).map_err(failed)?;
    let said = append("agent.log").map_err(failed)?;
    let copy = said.try_clone().map_err(failed)?;
    let (program, arguments) =
        agent.split_first().ok_or_else(|| failed(std::io::Error::other("no agent is configured")))?;
    let status = Command::new(program)
        .args(arguments)
        .args(["supervise", "--detach", "--dir"])
        .arg(folder.dir())
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(said)
        .stderr(copy)
        .status()
        .await
        .map_err(failed)?;
    if status.success() {
        Ok(true)
    } else {
        Err(failed(std::io::Error::other(format!("ended with {status}"))))
    }
}

/// Kills the agent and waits until it is gone. Blocks.
pub(crate) fn kill_agent(folder: &MachineFolder) -> Result<(), Error> {
    let begin = Instant::now();
    while agent_lives(folder) {
        let text = std::fs::read_to_string(folder.agent_pid()).unwrap_or_default();
        let mut numbers = text.split(' ').map(|number| number.parse::<u64>());
        if let (Some(Ok(pid)), Some(Ok(started))) = (numbers.next(), numbers.next()) {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The start time tells it from a later process with its number.
            if process_stat(&stat).is_some_and(|stat| stat.started == started) {
                let _ = kill(Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX)), Signal::SIGKILL);
            }
        }
        if begin.elapsed() > GONE {
            let runner = folder.dir().display().to_string();
            return Err(Error::Left { runner, left: "the agent".to_owned() });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Living processes that name this folder in an argument: agents and monitors of the machine.
pub(crate) fn naming(folder: &Path) -> Vec<i32> {
    let wanted = folder.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // A process that has ended and waits for its parent has no command line.
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let names = |argument: &[u8]| {
            argument.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        if line.split(|byte| *byte == 0).any(names) && pid != std::process::id() as i32 {
            found.push(pid);
        }
    }
    found
}
