//! GitHub, as a client: App identity, typed REST calls for runners, jobs, deliveries and checks, and runner scale
//! sets.
//!
//! - [`Github`] holds one or more Apps. A call for an organisation or repository goes through the App that has the
//!   most left of its hourly limit; calls on check runs always go through the first, since GitHub lets only the App
//!   that made one change it.
//! - Time comes from the [`Clock`] that the caller gives. Nothing here sleeps or repeats on a timer: a call that
//!   must wait fails with [`GithubError::Limited`] and the time, and reconcilers come back. Only the [`doctor`] waits.
//! - Refusals have a [`Cause`] with an explanation and a fix.
//!
//! Invariants:
//! - no call is made without credentials. The exceptions have their own: [`convert_manifest`] is authorised by the
//!   one-time code in its path, [`LoginApp::redeem`] by a one-time code and the App's secret in its body;
//! - tokens, configurations and keys are `Secret` and appear in no error;
//! - tokens are sent to `https` addresses only, or to this machine, and follow redirects within one origin only;
//! - all ids are 64 bits wide;
//! - the headers of every answer reach the [`budget`];
//! - a call that changes something is sent once. When its answer is lost, [`GithubError::outcome_unknown`] says
//!   that the outcome is to be read back.
//!
//! Facts come from `runners.md` §3 (GitHub's documentation and published clients). It was tested against a simulated
//! GitHub and never against GitHub itself.

pub(crate) mod answer;
mod apps;
mod branches;
pub mod budget;
pub mod cause;
mod checks;
mod client;
mod deliveries;
pub mod doctor;
pub(crate) mod endpoint;
pub(crate) mod error;
mod jobs;
mod key;
mod link;
mod login;
pub mod needs;
mod pulls;
mod repositories;
pub mod rs256;
mod runners;
pub mod scaleset;
mod token;
pub(crate) mod wire;

pub use apps::{Account, AppDescription, ConvertedApp, HookConfig, Installation, convert_manifest};
pub use cause::{Again, Cause};
pub use checks::{CheckAction, CheckRun, CheckState, Conclusion, NewCheck};
pub use client::{Clock, Github, GithubOptions};
pub use deliveries::{DeliveredRequest, Delivery, DeliveryDetail, DeliveryPage};
pub use endpoint::{Endpoint, Login, NameRefused, RepositoryPath, Target};
pub use error::{GithubError, Silence};
pub use jobs::{Etag, Job, Polled, RepositoryRef, Rerun, RunStatus, Runs, WorkflowRun};
pub use key::{AppIdentity, AppKey};
pub use login::{LoginApp, LoginError, LoginKind, challenge};
pub use pulls::Pull;
pub use repositories::Role;
pub use runners::{Deleted, Jit, JitRequest, MintedRunner, RegistrationToken, Runner};
pub use wire::HttpOptions;
