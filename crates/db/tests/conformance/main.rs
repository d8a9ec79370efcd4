//! The conformance suite of the store: every claim is tried on SQLite, on PostgreSQL and on the twin.
//!
//! PostgreSQL is a private server of the test process; see `forgeyard_db::testing::postgres` for how to use another,
//! and for what happens when there is none.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "the whole program is a test")]

mod constraints;
mod epochs;
mod ledger;
mod logs;
mod restart;
mod rows;
mod support;
