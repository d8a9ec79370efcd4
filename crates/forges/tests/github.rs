//! The GitHub client against the *simulated* GitHub of the feature `twin`. Nothing here speaks to GitHub.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "github/world.rs"]
mod world;

#[path = "github/doctor.rs"]
mod doctor;
#[path = "github/identity.rs"]
mod identity;
#[path = "github/jobs.rs"]
mod jobs;
#[path = "github/limits.rs"]
mod limits;
#[path = "github/runners.rs"]
mod runners;
#[path = "github/scale_sets.rs"]
mod scale_sets;
#[path = "github/speech.rs"]
mod speech;
