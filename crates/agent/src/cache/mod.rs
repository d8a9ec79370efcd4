//! The build cache, as a job sees it: a relay on loopback, and the environment that makes clients use it.
//!
//! ```text
//! job ── relay (this) ── cache            the relay's own secret in the job, the token of the cache in the agent
//! ```
//!
//! Why not the cache itself:
//! - **No client survives every trouble of a cache.** sccache does not start when it cannot read, ccache waits ten seconds at each
//!   file for one that hangs. The relay answers as an empty cache does ([`answers`]) when there is trouble, at once, and looks
//!   by itself whether it is over ([`health`]).
//! - **The token stays out of the job.** What the job holds is good for this relay, which ends with the machine. So a token can
//!   neither be carried away nor be printed.
//! - **A runner of a forge** is started before anybody knows whose work it will do. The environment is there from the
//!   beginning, what the job may do comes after the second gate ([`Relay::connect`]); until then the cache is empty.
//! - Clients that speak no TLS (ccache) reach a cache that does.
//!
//! Limits: HTTP/1.1 only, so Bazel uses HTTP here and not gRPC.

mod answers;
mod counts;
mod environment;
mod health;
mod job;
mod prompt;
mod pulse;
mod relay;

pub use counts::Counts;
pub use environment::Surroundings;
pub(crate) use job::{CacheRecord, JobCache};
pub use relay::{Relay, RelayError, Upstream};
