//! Foreign formats: takes and gives bytes or readers, does no I/O of its own, and never panics on outside input.

pub mod linux;
