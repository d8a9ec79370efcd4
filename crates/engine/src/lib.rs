//! Decisions of the farm. Pure: no async, clock, randomness or files.

pub mod plan;
pub mod test_placement;
pub mod verdict;
