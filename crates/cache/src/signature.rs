//! Signatures of Nix, made when a `narinfo` or a realisation is served, with the key of the scope that it was found in.
//!
//! ```text
//! key file     NAME:base64(seed of 32 bytes ‖ public key of 32 bytes)     as `nix key generate-secret` writes it
//! public key   NAME:base64(public key)                                    as `trusted-public-keys` wants it
//! fingerprint  1;STORE-PATH;NAR-HASH;NAR-SIZE;REFERENCE,REFERENCE…        full paths, sorted, each once
//! line         Sig: NAME:base64(Ed25519 of the fingerprint)
//! ```
//!
//! What is stored stays as it was pushed, so a key is changed by changing its file. Only what two readers cannot understand
//! differently is signed: each field once, names as Nix allows them, and the path that the key of the entry says. Anything
//! else is served as it came. A scope whose key is also that of a scope of another trust is refused: what a pull request
//! wrote must not carry the signature that the readers of main believe.

use crate::authority::{Authority, AuthorityError};
use crate::nix;
use crate::realisation::{Realisation, is_realisation};
use crate::scope::ScopePath;
use crate::store::{Found, Place};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer as _, SigningKey};
use forgeyard_model::{Digest, Secret};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A signing key of Nix.
#[derive(Clone)]
pub struct Signer {
    name: String,
    key: SigningKey,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signer({})", self.public())
    }
}

impl Signer {
    /// Reads a key in the form of `nix key generate-secret`.
    pub fn read(text: &Secret) -> Option<Self> {
        let (name, key) = text.expose().trim().split_once(':')?;
        let good = |b: u8| b.is_ascii_graphic();
        if name.is_empty() || name.len() > 200 || !name.bytes().all(good) {
            return None;
        }
        let bytes = <[u8; 64]>::try_from(STANDARD.decode(key).ok()?).ok()?;
        let key = SigningKey::from_keypair_bytes(&bytes).ok()?;
        Some(Self { name: name.to_owned(), key })
    }

    /// The public key, as `trusted-public-keys` wants it.
    pub fn public(&self) -> String {
        format!("{}:{}", self.name, STANDARD.encode(self.key.verifying_key().as_bytes()))
    }

    /// The line that is put under a `narinfo` with this key of an entry; nothing when it cannot be signed or has it already.
    pub fn line(&self, key: &str, narinfo: &[u8]) -> Option<String> {
        let signature = self.key.sign(fingerprint(key, narinfo)?.as_bytes());
        let value = format!("{}:{}", self.name, STANDARD.encode(signature.to_bytes()));
        let there = nix::fields(narinfo)?.into_iter().any(|field| field == ("Sig", value.as_str()));
        (!there).then(|| format!("Sig: {value}\n"))
    }

    /// A realisation with this key of an entry, with the signature in it; nothing as in [`Self::line`].
    fn realisation(&self, key: &str, bytes: &[u8]) -> Option<String> {
        let read = Realisation::read(key, bytes)?;
        let signature = self.key.sign(read.fingerprint().as_bytes());
        read.signed(&format!("{}:{}", self.name, STANDARD.encode(signature.to_bytes())))
    }

    /// Signs a `narinfo` or a realisation that was found, in the buffer that holds it.
    pub(crate) fn sign(&self, key: &str, found: Found, buffer: &mut Vec<u8>) -> Found {
        let Place::Buffer(range) = &found.place else { return found };
        let bytes = buffer.get(range.clone()).unwrap_or_default();
        let (kept, text) = match is_realisation(key) {
            true => (range.start, self.realisation(key, bytes)),
            false => (range.end, self.line(key, bytes)),
        };
        let Some(text) = text else { return found };
        let range = range.start..kept + text.len();
        buffer.truncate(kept);
        buffer.extend_from_slice(text.as_bytes());
        let mut facts = found.facts;
        facts.size = range.len() as u64;
        facts.digest = Digest::of(buffer.get(range.clone()).unwrap_or_default());
        Found { facts, place: Place::Buffer(range) }
    }
}

/// What Nix signs of a `narinfo`, in the form that Nix reads back.
pub fn fingerprint(key: &str, narinfo: &[u8]) -> Option<String> {
    const ONCE: [&str; 4] = ["StorePath", "NarHash", "NarSize", "References"];
    let fields = nix::fields(narinfo)?;
    let mut values = [None; 4];
    for (name, value) in fields {
        if let Some(at) = ONCE.iter().position(|once| *once == name)
            && values.get_mut(at)?.replace(value).is_some()
        {
            return None;
        }
    }
    let [path, hash, size, references] = values;
    let (path, hash, size) = (path?, hash?, size?);
    let base = path.strip_prefix("/nix/store/").filter(|base| nix::is_base_name(base))?;
    if base.split_at_checked(32)?.0 != key.strip_suffix(".narinfo")? {
        return None;
    }
    let digits = hash.strip_prefix("sha256:")?;
    if digits.len() != 52 || !nix::is_base32(digits) || size.parse::<u64>().ok()?.to_string() != size {
        return None;
    }
    let mut references: Vec<&str> =
        references.unwrap_or_default().split(' ').filter(|r| !r.is_empty()).collect();
    references.sort_unstable();
    references.dedup();
    if !references.iter().all(|reference| nix::is_base_name(reference)) {
        return None;
    }
    let references: Vec<String> = references.iter().map(|base| format!("/nix/store/{base}")).collect();
    Some(format!("1;{path};{hash};{size};{}", references.join(",")))
}

/// Reads the keys that the scopes of an authority name.
pub fn with_keys(
    authority: Authority,
    read: impl Fn(&Path) -> std::io::Result<Vec<u8>>,
) -> Result<Authority, AuthorityError> {
    let (mut signers, mut trust) = (BTreeMap::<ScopePath, Arc<Signer>>::new(), BTreeMap::new());
    for rule in authority.tree().rules() {
        let Some(file) = &rule.sign_key_file else { continue };
        let wrong = |reason: String| AuthorityError::SigningKey {
            scope: rule.path.clone(),
            file: file.clone(),
            reason,
        };
        let bytes = read(file).map_err(|error| wrong(error.to_string()))?;
        let text = String::from_utf8(bytes).ok().map(Secret::new);
        let signer = text.as_ref().and_then(Signer::read);
        let signer =
            signer.ok_or_else(|| wrong("it is no key as `nix key generate-secret` makes it".to_owned()))?;
        if *trust.entry(signer.public()).or_insert(rule.trusted) != rule.trusted {
            return Err(wrong("a trusted scope and one that is not have the same key".to_owned()));
        }
        signers.insert(rule.path.clone(), Arc::new(signer));
    }
    Ok(authority.with_signers(signers))
}

#[cfg(test)]
#[path = "signature_tests.rs"]
mod tests;
