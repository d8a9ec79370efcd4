//! Typed HTTP client, one type for each face of the farm.

pub mod agent;
pub mod backoff;
pub mod http;
pub mod people;
pub mod site;

pub use backoff::Backoff;
pub use http::{ClientError, HttpOptions};
pub use people::Client;
