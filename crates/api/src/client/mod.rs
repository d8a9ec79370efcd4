//! Typed HTTP client, one type for each face of the farm.

pub mod http;
pub mod site;

pub use http::{ClientError, HttpOptions};
