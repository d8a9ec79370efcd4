//! The control plane: HTTP, the core that decides and stores, workers that do what was decided, the console.
//!
//! ```text
//! webhook, site, agent, person ──► http ──► core (decide + one transaction) ──► replica ──► readers, live views
//!                                             ▲            │
//!                       reader, effects, tick ┘            └──► outbox ──► effects
//! ```
//!
//! Invariants: nothing is answered before it is stored; readers see only what is stored; there is one way to change
//! anything, [`core::Core::give`].

pub mod app;
pub mod auth;
pub mod cache_admin;
pub mod cache_tokens;
pub mod clock;
pub mod collector;
pub mod console;
pub mod core;
pub mod demand;
pub mod effect;
pub mod forges;
pub mod history;
pub mod http;
pub mod keys;
pub mod logs;
pub mod past;
pub mod reader;
pub mod rules;
pub mod sealed;
pub mod serve;
mod standby;
pub mod usage;
pub mod version;
pub mod views;
