//! Decisions of the farm. Pure: no async, clock, randomness or files.

pub mod plan;
