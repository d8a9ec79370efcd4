//! A made-up farm for tests and for the example that writes all pages: one repository with a recipe of four packages
//! that depend on each other as a diamond, two sites, three devices (one simulated).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "fixtures are written by hand and known to be well formed"
)]
#![allow(unreachable_pub, reason = "shared by tests and an example, which are crates of their own")]
#![allow(dead_code, reason = "each user takes its part")]

pub mod answers;
pub mod caches;
pub mod chain;
pub mod rows;
pub mod work;

pub use answers::*;
pub use chain::*;
pub use rows::*;
pub use work::*;

use forgeyard_control::console::{Shell, Viewer};
use forgeyard_model::principal::Role;
use forgeyard_model::{Digest, Id, Timestamp};
use std::time::Duration;

/// 2026-03-14 09:26:53 UTC, when all this is looked at.
pub const NOW: Timestamp = Timestamp::from_micros(1_773_480_413_000_000);

/// So many seconds before [`NOW`].
pub fn ago(seconds: u64) -> Timestamp {
    Timestamp::from_micros(NOW.as_micros() - i64::try_from(seconds).unwrap() * 1_000_000)
}

/// So many seconds later.
pub fn after(at: Timestamp, seconds: u64) -> Timestamp {
    at.plus(Duration::from_secs(seconds))
}

/// An id that is the same in every run.
pub fn id<I: Id>(at: Timestamp, key: u64) -> I {
    I::new(at, u128::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

/// A digest that is the same in every run.
pub fn digest(of: &str) -> Digest {
    Digest::of(of.as_bytes())
}

/// A name out of its text.
pub fn name<N: std::str::FromStr>(text: &str) -> N
where
    N::Err: std::fmt::Debug,
{
    text.parse().unwrap()
}

/// The frame, with this role signed in.
pub fn shell(role: Option<Role>) -> Shell {
    Shell {
        farm: "north shed".to_owned(),
        version: "0.1.0".to_owned(),
        public_url: "https://farm.example.org".to_owned(),
        hooks: vec!["github".to_owned()],
        now: NOW,
        viewer: role.map(|role| Viewer {
            name: "mira".to_owned(),
            role,
            judges: if role >= Role::Maintainer { [481_516].into() } else { [].into() },
        }),
        csrf: "c5f0a1d2e3b4".to_owned(),
        alarms: 1,
        theme: None,
    }
}
