//! Process 1 of a container: starts the job's command, passes signals on, collects orphans, and says exactly how the
//! command ended.
//!
//! A command that were process 1 itself would ignore most signals, and its exit code could not be told from a signal.
//! The record that is written here may be forged by the job, which has the same user; it can only say what the job
//! could have done anyway, and the agent believes it only where it agrees with the exit record of the monitor.

use forgeyard_model::machine::INSIDE_STATUS;
use nix::sys::prctl::set_dumpable;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Exit code when the command was not found, as shells have it.
const NOT_FOUND: i32 = 127;
/// Exit code when the command cannot be run, as shells have it.
const NOT_RUNNABLE: i32 = 126;

/// Runs the command and returns the exit code of this process: that of the command, or 128 and its signal.
pub(crate) fn init(argv: &[OsString]) -> i32 {
    let Some((program, arguments)) = argv.split_first() else {
        eprintln!("forgeyard: the step has no command");
        return NOT_RUNNABLE;
    };
    // What process 1 was started with may hold a secret of a runner; a later process of the same user cannot read it.
    if let Err(error) = set_dumpable(false) {
        eprintln!("forgeyard: cannot close process 1: {error}");
        return NOT_RUNNABLE;
    }
    let mut signals = SigSet::empty();
    let passed =
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];
    for signal in passed.into_iter().chain([Signal::SIGCHLD]) {
        signals.add(signal);
    }
    let child = match Command::new(program).args(arguments).process_group(0).spawn() {
        Ok(child) => Pid::from_raw(child.id() as i32),
        Err(error) => {
            eprintln!("forgeyard: cannot start {}: {error}", program.to_string_lossy());
            return if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
        }
    };
    // Blocked signals wait until they are asked for below. The command inherits what is blocked, so it was started
    // before; a signal that came in between was ignored, as process 1 does, and the end of the command is looked for.
    if let Err(error) = signals.thread_block() {
        eprintln!("forgeyard: cannot block signals: {error}");
        return NOT_RUNNABLE;
    }
    if let Some(code) = collect(child) {
        return code;
    }
    loop {
        match signals.wait() {
            Ok(Signal::SIGCHLD) => {
                if let Some(code) = collect(child) {
                    return code;
                }
            }
            // All processes of the container but this one.
            Ok(signal) => drop(kill(Pid::from_raw(-1), signal)),
            Err(_) => {}
        }
    }
}

/// Collects all that have ended; the exit code if the command is among them.
fn collect(child: Pid) -> Option<i32> {
    loop {
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => {
                record(&format!("code {code}"));
                return Some(code);
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                record(&format!("signal {}", signal as i32));
                return Some(128 + signal as i32);
            }
            Ok(WaitStatus::StillAlive) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

fn record(line: &str) {
    // Without the record the agent still has the exit code; it only cannot tell a signal from a code above 128.
    let _ = std::fs::write(format!("{INSIDE_STATUS}/exit"), line);
}
