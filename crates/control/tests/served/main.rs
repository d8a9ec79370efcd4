//! Claims about the control plane as it is served: who may do what, and what people see in a real browser.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod browser;
mod caches;
mod guard;
mod people;
mod rig;
