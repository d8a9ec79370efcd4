//! Foreign formats: bytes in, the farm's own vocabulary out, and the other way round.
//!
//! Pure: takes and gives bytes or readers, does no I/O of its own, and never panics on what it is given.

pub mod access;
pub mod canonical;
pub mod conda;
pub mod diff;
pub mod linux;
pub mod pipeline_file;
pub mod plan;
pub mod range;
pub mod statement;
pub mod toml_text;
pub mod webhook;
