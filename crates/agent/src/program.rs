//! The commands of the agent program.
//!
//! `supervise --dir FOLDER [--detach]` runs the agent of a machine; `init -- COMMAND…` is process 1 of a container.

use crate::{init, supervise};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

const USAGE: &str =
    "usage: forgeyard-agent supervise --dir FOLDER [--detach] | init -- COMMAND [ARGUMENT]...";

/// Runs the command in `args` (without the program's own name) and returns when it is over. Must be called where no
/// runtime is running, since it starts its own.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    match args.first().and_then(|first| first.to_str()) {
        Some("init") if args.get(1).is_some_and(|dashes| dashes == "--") => {
            ExitCode::from(u8::try_from(init::init(&args[2..])).unwrap_or(u8::MAX))
        }
        Some("supervise") => match parse(&args[1..]) {
            Some((_, true)) => detach(),
            Some((dir, false)) => in_folder(dir),
            None => usage(),
        },
        Some("--version") => {
            println!("forgeyard-agent {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn parse(args: &[OsString]) -> Option<(PathBuf, bool)> {
    let (mut dir, mut detach) = (None, false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str()? {
            "--dir" => dir = Some(PathBuf::from(args.next()?)),
            "--detach" => detach = true,
            _ => return None,
        }
    }
    Some((dir?, detach))
}

/// Starts the same command again without `--detach` and leaves it behind, so that whoever asked has nothing to wait for
/// and the agent is nobody's child.
fn detach() -> ExitCode {
    let Ok(program) = std::env::current_exe() else { return ExitCode::FAILURE };
    let args = std::env::args_os().skip(1).filter(|arg| arg != "--detach");
    match Command::new(program).args(args).stdin(Stdio::null()).spawn() {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot start the agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn in_folder(dir: PathBuf) -> ExitCode {
    // Fails only for the leader of a group, which then has no terminal to lose.
    let _ = nix::unistd::setsid();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "cannot start the runtime");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(supervise::supervise(&dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = error.line(), "the agent gives up");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_in_any_order_and_unknown_ones_are_refused() {
        let parse = |text: &str| parse(&text.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(parse("--detach --dir /x"), Some((PathBuf::from("/x"), true)));
        assert_eq!(parse("--dir /x"), Some((PathBuf::from("/x"), false)));
        assert_eq!(parse("--dir"), None);
        assert_eq!(parse("--dir /x --fast"), None);
    }
}
