//! Everything that speaks with the rattler family: solve, install, activate. No type of it leaves this module.

mod activate;
mod install;
mod solve;

pub use activate::activate;
pub use install::install;
pub use solve::{Solved, solve};

pub(crate) use install::{installed, same_as};

use crate::explain::because;
use forgeyard_model::Explanation;

/// What is fetched with. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client(reqwest::Client);

/// A client for channels.
pub fn client() -> Result<Client, Explanation> {
    // The error says that a provider is set already, which is just as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder()
        .user_agent(concat!("forgeyard-envs/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(std::time::Duration::from_secs(20))
        .read_timeout(std::time::Duration::from_secs(60));
    builder.build().map(Client).map_err(|error| {
        let explanation =
            Explanation::new("environment.client", "the HTTP client for channels could not be made");
        because(explanation, &error)
            .fix("check that the host has its certificate store (package ca-certificates)")
    })
}
