//! The build cache as the program runs it, with real clients by way of the relay that every job of a farm has. What is not installed is
//! skipped, visibly (`scripts/install-clients.sh`). The clients by themselves are in `crates/cache/tests`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

#[path = "../chain/certificates.rs"]
mod certificates;
mod gradle;
mod place;
mod programs;
mod sick;
mod tls;
mod trouble;
mod turbo;
