//! For tests and benchmarks, of this crate and of others: sample rows, and a private PostgreSQL.

pub mod postgres;
pub mod samples;
