//! The built program from outside: help texts, exit codes, JSON, errors, against a real `forgeyard serve`.

#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests")]

mod asking;
mod cache;
mod connect;
mod help;
mod offline;
mod prewarm;
mod reload;
mod rig;
mod starting;
mod tls;
