//! The agent beside a job: it stands outside the container, holds the token, runs the steps and says how they ended.
//!
//! One agent per machine folder ([`forgeyard_model::machine::MachineFolder`]). All that it knows is on disk before it
//! acts on it, so it may be killed at any point and started again: same nonce, same running container, same place in
//! the log. Containers are kept by `conmon`, which writes log and exit record whether or not an agent lives.
//!
//! Trust: everything below `work`, `out` and `tmp` was written by the job. It is read through [`inside`], which follows
//! no link, and every reader has a bound.

mod bundle;
pub mod cache;
mod clock;
mod container;
mod device;
mod disk;
mod error;
mod harvest;
mod heartbeat;
mod init;
mod inside;
mod kernel;
mod log;
mod mask;
mod prepare;
mod program;
mod runner;
mod shipper;
mod spool;
mod state;
mod steps;
mod stop;
mod supervise;
mod untar;
mod usage;

pub use error::Error;
pub use program::run;
pub use supervise::supervise;
