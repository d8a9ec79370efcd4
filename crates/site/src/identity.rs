//! Who the site is: its Ed25519 key, and the id and token that the farm gave it.
//!
//! Invariants: the key is made once and never leaves the folder; the key is on the disk before the farm hears of it;
//! the join token is not stored.

use crate::error::Error;
use crate::folder::Folder;
use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey as _, EncodePrivateKey as _};
use forgeyard_api::client::site::SiteClient;
use forgeyard_api::site::{Join, VERSION};
use forgeyard_model::{Secret, SiteId, SiteName};
use rand::Rng as _;
use serde::{Deserialize, Serialize};

const KEY: &str = "key.pem";
const IDENTITY: &str = "identity.json";

/// What the farm gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The site's id.
    pub site: SiteId,
    /// Its token.
    pub token: Secret,
}

/// The stored form. It names the farm and the site, so that a folder is not used for another one by mistake.
#[derive(Serialize, Deserialize)]
struct Stored {
    farm_url: String,
    name: SiteName,
    site: SiteId,
    token: String,
}

/// The key of the folder; made when there is none.
pub fn key(folder: &Folder) -> Result<SigningKey, Error> {
    let damaged = |reason: String| Error::Identity { file: folder.file(KEY), reason };
    if let Some(bytes) = folder.read(KEY)? {
        let text = String::from_utf8(bytes).map_err(|error| damaged(error.to_string()))?;
        return SigningKey::from_pkcs8_pem(&text).map_err(|error| damaged(error.to_string()));
    }
    let mut seed = [0u8; 32];
    rand::rng().fill_bytes(&mut seed);
    let key = SigningKey::from_bytes(&seed);
    let pem = key.to_pkcs8_pem(LineEnding::LF).map_err(|error| damaged(error.to_string()))?;
    folder.write(KEY, pem.as_bytes())?;
    Ok(key)
}

/// The stored identity, if it is of this farm and this site.
pub fn stored(folder: &Folder, farm_url: &str, name: &SiteName) -> Result<Option<Identity>, Error> {
    let Some(bytes) = folder.read(IDENTITY)? else { return Ok(None) };
    let stored: Stored = serde_json::from_slice(&bytes)
        .map_err(|error| Error::Identity { file: folder.file(IDENTITY), reason: error.to_string() })?;
    let same = stored.farm_url == farm_url && stored.name == *name;
    Ok(same.then(|| Identity { site: stored.site, token: Secret::new(stored.token) }))
}

/// Joins the farm and stores what it gives.
pub async fn join(
    folder: &Folder,
    client: &SiteClient,
    farm_url: &str,
    name: &SiteName,
    join_token: &Secret,
) -> Result<Identity, Error> {
    let key = key(folder)?;
    let join = Join {
        version: VERSION,
        name: name.clone(),
        join_token: join_token.expose().to_owned(),
        public_key: hex::encode(key.verifying_key().as_bytes()),
    };
    let joined = client.join(&join).await.map_err(|source| Error::JoinRefused { name: name.to_string(), source })?;
    let stored = Stored { farm_url: farm_url.to_owned(), name: name.clone(), site: joined.site, token: joined.token };
    let bytes = serde_json::to_vec_pretty(&stored).map_err(|error| folder.failed("write the identity", error.into()))?;
    folder.write(IDENTITY, &bytes)?;
    tracing::info!(site = %stored.site, name = %name, "joined the farm");
    Ok(Identity { site: stored.site, token: Secret::new(stored.token) })
}
