//! The replay: the job starts of a real afternoon through the whole control plane, on a clock that moves only when nothing
//! is left to do, with faults on every source.
//!
//! What is real and what is *simulated* or *modelled* is said by [`HEADING`], above every result.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a simulation that meets what it does not expect has failed"
)]
#![allow(
    unreachable_pub,
    dead_code,
    reason = "a test and an example, which are crates of their own, share it"
)]

mod hub;
mod machines;
mod plan;
mod report;
mod time;
pub mod trace;
mod world;

#[allow(unused_imports, reason = "the example plays without looking into the report")]
pub use report::Report;
pub use world::{Settings, play};

/// What a reader must know of the figures.
pub const HEADING: &str = "\
real: starts, names and conclusions of jobs (the trace); core, engine, HTTP routes of webhooks and agents, reader, effects,
      loops (redelivery, poll, scale sets, check runs, tick), GitHub client with tokens and budget
simulated: GitHub (no sockets), the database (in memory), sites and machines (reports without their route), agents, runner
      programs, the network, time
modelled, from the seed: durations, labels and flavors, repositories, people, runs, commits, cancels, strangers, all faults";
