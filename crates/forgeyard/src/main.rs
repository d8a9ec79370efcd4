//! `forgeyard`: arguments → options → services. Nothing is decided here.

#![allow(unreachable_pub, reason = "a binary has no outside; `pub` here means: of this module for others")]

mod args;
mod cache_address;
mod cache_admin;
mod cache_place;
mod cache_tokens;
mod commands;
mod config;
mod connect;
#[cfg(test)]
mod docs;
mod farm;
mod output;
mod progress;
mod rules;
mod tour;

use std::process::ExitCode;

fn main() -> ExitCode {
    // The agent starts a runtime of its own and must not pay for anything else.
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    if std::env::args_os().nth(1).is_some_and(|first| first == "agent") {
        return forgeyard_agent::run(arguments.skip(1));
    }
    // ccache starts a program of this name, without arguments, see `commands::cache`
    let name = std::path::Path::new(&program).file_name().unwrap_or_default();
    if name.as_encoded_bytes().starts_with(b"ccache-storage-") {
        return args::main(["forgeyard", "cache", "crsh"].map(Into::into).into());
    }
    args::main(std::env::args_os().collect())
}
