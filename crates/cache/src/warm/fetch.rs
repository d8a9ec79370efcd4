//! Fetching bytes over HTTP, into memory or into a file beside the store, held against what they must be; and storing them.

use crate::name::{Kind, Name};
use crate::scope::ScopePath;
use crate::service::Core;
use crate::store::large::Finished;
use crate::store::log::Durability;
use crate::store::{Body, INLINE, Policy, Provenance, Store as _, StoreError};
use forgeyard_model::Digest;
use std::time::Duration;

/// What went wrong, where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {fix}")]
pub(super) struct Trouble {
    pub(super) what: String,
    pub(super) fix: &'static str,
}

impl Trouble {
    pub(super) fn new(what: impl Into<String>, fix: &'static str) -> Self {
        Self { what: what.into(), fix }
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::new(format!("the cache cannot store it: {error}"), "look at its disk and its capacity")
    }
}

/// Bytes that were fetched.
pub(super) enum Got {
    Small(Vec<u8>, Digest),
    Large(Finished),
}

impl Got {
    pub(super) fn digest(&self) -> Digest {
        match self {
            Self::Small(_, digest) => *digest,
            Self::Large(file) => file.digest,
        }
    }

    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Small(bytes, _) => bytes.len() as u64,
            Self::Large(file) => file.size,
        }
    }
}

/// Bytes on their way in: in memory as long as they are few.
pub(super) struct Taking<'c> {
    core: &'c Core,
    small: Vec<u8>,
    large: Option<crate::store::large::Spool>,
    most: u64,
    size: u64,
}

impl<'c> Taking<'c> {
    pub(super) fn new(core: &'c Core, most: u64) -> Self {
        Self { core, small: Vec::new(), large: None, most: most.min(core.largest), size: 0 }
    }

    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<u64, Trouble> {
        self.size += bytes.len() as u64;
        if self.size > self.most {
            let text = format!("it has more than {} MiB", self.most >> 20);
            return Err(Trouble::new(text, "raise `most-mib` of the list or `largest-mib` of [cache]"));
        }
        if self.large.is_none() && self.size > INLINE {
            let mut spool = self.core.store.spool()?;
            spool.write(&std::mem::take(&mut self.small))?;
            self.large = Some(spool);
        }
        match &mut self.large {
            Some(spool) => spool.write(bytes)?,
            None => self.small.extend_from_slice(bytes),
        }
        Ok(self.size)
    }

    pub(super) fn finish(self) -> Result<Got, Trouble> {
        Ok(match self.large {
            Some(spool) => Got::Large(spool.finish(self.core.store.durability() == Durability::Group)?),
            None => {
                let digest = Digest::of(&self.small);
                Got::Small(self.small, digest)
            }
        })
    }
}

/// The client for all sources. Redirects are followed: registries and release pages send to where the bytes are.
pub(super) fn client() -> Result<reqwest::Client, Trouble> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .connect_timeout(Duration::from_secs(10))
        .read_timeout(Duration::from_secs(60))
        .user_agent(concat!("forgeyard/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| Trouble::new(error.to_string(), "restart the cache"))
}

pub(super) fn network(error: reqwest::Error) -> Trouble {
    use std::error::Error as _;
    // the cause stands at the end of the chain
    let error = error.without_url();
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    Trouble::new(text, "look whether this host reaches it")
}

/// The answer to a request, when it is one of success.
pub(super) async fn answer(request: reqwest::RequestBuilder) -> Result<reqwest::Response, Trouble> {
    let answer = request.send().await.map_err(network)?;
    match answer.status().as_u16() {
        200..300 => Ok(answer),
        401 | 403 => Err(Trouble::new(
            format!("its source answers {}", answer.status()),
            "only what needs no password is fetched",
        )),
        404 | 410 => {
            Err(Trouble::new(format!("its source answers {}", answer.status()), "correct its address"))
        }
        _ => Err(Trouble::new(
            format!("its source answers {}", answer.status()),
            "it is tried again by itself",
        )),
    }
}

/// The body of an answer.
pub(super) async fn body(
    core: &Core,
    mut answer: reqwest::Response,
    most: u64,
    mut seen: impl FnMut(u64),
) -> Result<Got, Trouble> {
    let mut taking = Taking::new(core, most);
    if answer.content_length().is_some_and(|length| length > taking.most) {
        taking.take(&[])?;
        let text = format!("it has {} MiB", answer.content_length().unwrap_or_default() >> 20);
        return Err(Trouble::new(text, "raise `most-mib` of the list or `largest-mib` of [cache]"));
    }
    while let Some(bytes) = answer.chunk().await.map_err(network)? {
        seen(taking.take(&bytes)?);
    }
    taking.finish()
}

/// Holds what was fetched against what it must be.
pub(super) fn verify(got: &Got, digest: Digest) -> Result<(), Trouble> {
    if got.digest() == digest {
        return Ok(());
    }
    let text = format!("its bytes have the SHA-256 {} and not {}", got.digest().hex(), digest.hex());
    Err(Trouble::new(text, "its source was changed: look what it is now before writing down the new digest"))
}

/// Whether a key is there; if so, it counts as used.
pub(super) fn is_here(core: &Core, scope: &ScopePath, key: &str) -> Result<Option<u64>, Trouble> {
    let name = Name { scope: scope.clone(), kind: Kind::Warm, key: key.to_owned() };
    Ok(core.store.facts(name.hash())?.map(|facts| facts.size))
}

/// Stores what was fetched.
pub(super) async fn keep(
    core: &Core,
    scope: &ScopePath,
    key: &str,
    got: Got,
    list: &str,
) -> Result<(), Trouble> {
    let name = Name { scope: scope.clone(), kind: Kind::Warm, key: key.to_owned() };
    let by =
        Provenance { principal: "prewarm".to_owned(), run: Some(list.to_owned()), ..Provenance::default() };
    let put = match got {
        Got::Small(bytes, digest) => {
            core.store.put(&name, Body::Checked(&bytes, digest), Policy::Replace, &by)
        }
        Got::Large(file) => core.store.put(&name, Body::Large(file), Policy::Replace, &by),
    };
    Ok(core.store.settled(put?.ticket).await?)
}
