//! A *simulated* GitHub: App authentication, REST, webhooks with their deliveries, the actions service with scale sets,
//! and stand-in runners, under a clock that a test moves. Nothing here is GitHub, and everything says so of itself.
//!
//! Layout: [`State`] is the whole of it, pure and deterministic: the same calls on the same seed give the same answers.
//! Tests of decisions and simulations use it directly ([`State::serve`], [`State::take_due_deliveries`],
//! [`State::start_stand_in`]). [`Twin`] puts HTTP on 127.0.0.1 around it for clients and processes.
//!
//! What is known of GitHub comes from its documentation, its OpenAPI description and public reports; where they are
//! silent, [`Setup`] has a knob and says *assumed*. `tests/twin_openapi.rs` holds answers and requests against the
//! published description.
//!
//! Invariants:
//! - a JIT configuration connects once; a runner of one use takes one job and is gone;
//! - a queued job goes to any idle runner in reach whose labels cover it, so that jobs can be stolen;
//! - a job that a runner holds is never handed out again, unless the runner went away before it began;
//! - a call that is not simulated is answered 404 and says so.

mod accounts;
mod actions;
mod auth;
mod bodies;
mod calls;
mod checks;
mod clock;
mod faults;
mod forgejo;
mod forgejo_program;
mod forgejo_rpc;
mod hooks;
mod jit;
mod jobs;
mod limits;
mod login;
mod pages;
mod repositories;
mod rest;
mod runner;
mod runners;
mod runs;
mod scale_sets;
mod server;
mod setup;
mod stand_in;
mod state;
#[cfg(test)]
mod tests;
mod wire;

pub use accounts::Account;
pub use auth::{APP_KEY, App, Installation, PERMISSIONS, app_jwt, sign_jwt};
pub use calls::{Call, Direct, Outcome, Reply, Request, Served};
pub use checks::CheckRun;
pub use clock::{ManualClock, iso};
pub use faults::{CallFault, Misbehaviour};
pub use forgejo::{FORGEJO_TOKEN, ForgejoJob, ForgejoRunner, ForgejoState, ForgejoTwin};
pub use forgejo_program::{FetchedTask, ForgejoProgram, ProgramError};
pub use forgejo_rpc::ForgejoTask;
pub use hooks::{Delivery, Hook, HookChaos, HookFault, HookOwner, Outgoing, Sent, Trouble};
pub use jit::ConnectError;
pub use jobs::{Conclusion, Job, JobSpec, JobStatus, JobView, Rerun, Run, RunSpec, TakenBy};
pub use repositories::{Environment, EnvironmentRule, Pull, Repository};
pub use runner::{EXIT_DONE, EXIT_REFUSED, EXIT_TOO_OLD, GivenJob, Runner, RunnerError};
pub use runners::{Group, MintError, RemoveError, RunnerRow, RunnerSpec, Scope};
pub use scale_sets::{ScaleSet, SetError};
pub use server::Twin;
pub(crate) use server::decoded;
pub use setup::Setup;
pub use stand_in::{Behaviour, Phase};
pub use state::{State, Urls};
pub use wire::{WireAnswer, WireError, call};
