//! The site against a *simulated* farm (an HTTP server of this test) and *simulated* providers and devices.

mod crash;
mod farm;
mod protocol;
mod sim;
