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
use std::path::Path;

/// What is fetched with. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client(reqwest::Client);

/// A client for channels. Trusts the host's certificate authorities, and those of the file.
pub fn client(ca_file: Option<&Path>) -> Result<Client, Explanation> {
    // The error says that a provider is set already, which is just as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("forgeyard-envs/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(std::time::Duration::from_secs(20))
        .read_timeout(std::time::Duration::from_secs(60));
    if let Some(file) = ca_file {
        let pem = std::fs::read(file).map_err(|error| crate::explain::at("reading", file, &error))?;
        let certificates = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| {
            let message = format!("{} is not a list of certificates", file.display());
            because(Explanation::new("environment.client", message), &error)
                .fix("give certificates of authorities in PEM")
        })?;
        builder = builder.tls_certs_merge(certificates);
    }
    builder.build().map(Client).map_err(|error| {
        let explanation =
            Explanation::new("environment.client", "the HTTP client for channels could not be made");
        because(explanation, &error)
            .fix("check that the host has its certificate store (package ca-certificates)")
    })
}
