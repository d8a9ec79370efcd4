//! The front door: jobs of a *simulated* GitHub get runners from a real control plane with SQLite.
//!
//! Real here: the control plane with its database, HTTP and effects, the GitHub client, the agents' client. Simulated: GitHub
//! (`forgeyard_forges::twin`, over real HTTP), the site and its machines, the runner program. Time is one clock that the
//! tests move.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../plane/mod.rs"]
mod plane;
mod world;

mod approve;
mod forgejo;
mod lab;
mod login;
mod past;
mod port;
mod refused;
mod repeat;
mod rules;
mod runner;
mod sources;
mod tags;
mod told;
