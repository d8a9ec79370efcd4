//! The site against a *simulated* farm (an HTTP server of this test) and *simulated* providers and devices.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod crash;
mod farm;
mod protocol;
mod sim;
