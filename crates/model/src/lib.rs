//! The vocabulary of the farm: ids, names, digests, resources, specs, states, inputs, events and effects.
//!
//! Pure: no I/O, no clock, no randomness, no async. Every other crate speaks in these types.
//!
//! Invariants kept here:
//! - an id, a name or a digest that exists has been parsed, so it is well formed;
//! - every state that is not a resting state is given a deadline by [`deadline::limit`];
//! - persisted spellings are those of serde and are pinned by tests.

pub mod access;
pub mod account;
pub mod approval;
pub mod artifact;
pub mod attempt;
pub mod channel;
pub mod commit;
pub mod config;
pub mod deadline;
pub mod delivery;
pub mod demand;
pub mod device;
pub mod digest;
pub mod effect;
pub mod environment;
pub mod explain;
pub mod forge;
pub mod id;
pub mod input;
pub mod job;
pub mod lane;
pub mod lease;
pub mod ledger;
pub mod machine;
pub mod name;
#[cfg(feature = "openapi")]
mod openapi;
pub mod owner;
pub mod package;
pub mod pipeline;
pub mod plan;
pub mod pool;
pub mod principal;
pub mod registration;
pub mod resources;
pub mod rules;
pub mod runner;
pub mod secret;
pub mod site;
pub mod time;
pub mod verdict;
pub mod who;

pub use account::Account;
pub use digest::Digest;
pub use explain::Explanation;
pub use id::*;
pub use lane::Lane;
pub use name::*;
pub use owner::Owner;
pub use secret::Secret;
pub use time::Timestamp;
