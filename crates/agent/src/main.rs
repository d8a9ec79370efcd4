//! `forgeyard-agent`: the agent as a small program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    forgeyard_agent::run(std::env::args_os().skip(1))
}
