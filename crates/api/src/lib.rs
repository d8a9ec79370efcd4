//! The contract between the farm and everybody who talks to it: routes, requests, answers, one error type.
//!
//! Three faces, each versioned in its path: `/api/v1` for people and programs, `/site/v1` for sites, `/agent/v1` for
//! agents. The typed client is behind the feature `client`.

pub mod agent;
pub mod cache;
#[cfg(feature = "client")]
pub mod client;
pub mod error;
#[cfg(feature = "openapi")]
pub mod openapi;
pub mod people;
pub mod pools;
pub mod routes;
pub mod rules;
pub mod site;
pub mod usage;

pub use error::ApiError;
