//! Keys and tokens of the farm.
//!
//! In the data folder, each readable by its owner only: `farm.key` (Ed25519, PKCS#8 PEM, signs statements),
//! `token.key` (32 random bytes in hexadecimal, makes every token that is derived), `join.token` (lets a site join)
//! and `admin.token` (made at the first start). Derived tokens are HMAC-SHA256 over what they are for, so nothing
//! about them needs to be stored, and a token of one attempt, fence or purpose is never valid for another.

use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey as _, EncodePrivateKey as _, EncodePublicKey as _};
use forgeyard_model::attempt::Attempt;
use forgeyard_model::runner::Runner;
use forgeyard_model::{AttemptId, Digest, RunnerId, Secret};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::io;
use std::path::{Path, PathBuf};
use subtle::ConstantTimeEq as _;

/// Keys of a farm.
#[derive(Clone)]
pub struct Keys {
    /// Signs statements.
    pub signing: SigningKey,
    /// Ready to take what a token is for; nothing where the key is not usable.
    mac: Option<Hmac<Sha256>>,
    join: Secret,
    admin_file: PathBuf,
}

/// What can go wrong with key files.
#[derive(Debug, thiserror::Error)]
#[error("key file {path}: {reason}; see that the data folder belongs to the user that runs the farm")]
pub struct KeyError {
    path: String,
    reason: String,
}

fn trouble(path: &Path, reason: impl ToString) -> KeyError {
    KeyError { path: path.display().to_string(), reason: reason.to_string() }
}

impl Keys {
    /// Reads the keys of a data folder; makes those that are missing.
    pub fn open(folder: &Path) -> Result<Self, KeyError> {
        fs_err::create_dir_all(folder).map_err(|error| trouble(folder, error))?;
        let path = folder.join("farm.key");
        let pem = read_or_make(&path, || {
            let key = SigningKey::from_bytes(&rand::random());
            key.to_pkcs8_pem(LineEnding::LF).map(|pem| pem.to_string()).map_err(io::Error::other)
        })?;
        let signing = SigningKey::from_pkcs8_pem(&pem).map_err(|error| trouble(&path, error))?;
        let fresh = || Ok(hex::encode(rand::random::<[u8; 32]>()));
        let token = Secret::new(read_or_make(&folder.join("token.key"), fresh)?.trim());
        let join = Secret::new(read_or_make(&folder.join("join.token"), fresh)?.trim());
        let mac = Hmac::<Sha256>::new_from_slice(token.expose().as_bytes()).ok();
        Ok(Self { signing, mac, join, admin_file: folder.join("admin.token") })
    }

    /// Token that lets a site join.
    pub fn join_token(&self) -> &Secret {
        &self.join
    }

    /// The admin token; made at the first start, `true` when it is new.
    pub fn admin_token(&self) -> Result<(Secret, bool), KeyError> {
        let new = !self.admin_file.exists();
        let text = read_or_make(&self.admin_file, || Ok(new_token()))?;
        Ok((Secret::new(text.trim()), new))
    }

    /// The public key, PEM.
    pub fn public_pem(&self) -> String {
        self.signing.verifying_key().to_public_key_pem(LineEnding::LF).unwrap_or_default()
    }

    fn mac(&self, purpose: &str, what: &str) -> String {
        // A key of any length is allowed, so there always is one; an empty tag would match nothing.
        let Some(mut mac) = self.mac.clone() else { return String::new() };
        mac.update(purpose.as_bytes());
        mac.update(&[0]);
        mac.update(what.as_bytes());
        hex::encode(mac.finalize().into_bytes())
    }

    /// The one-shot token of an attempt. It names its attempt, so that a wrong one can be answered by name.
    pub fn attempt_token(&self, attempt: &Attempt) -> String {
        let tag = self.mac("attempt", &format!("{} {}", attempt.id, attempt.fence));
        format!("{}.{tag}", attempt.id)
    }

    /// Reads a one-shot token: the attempt that it names, and the tag to compare.
    pub fn read_attempt_token(token: &str) -> Option<AttemptId> {
        token.split_once('.').and_then(|(id, _)| id.parse().ok())
    }

    /// The one-shot token of a machine that was made before there was an attempt for it.
    pub fn runner_token(&self, runner: &Runner) -> String {
        format!("{}.{}", runner.id, self.mac("runner", &runner.id.to_string()))
    }

    /// Reads a one-shot token of a machine: the machine that it names, and the tag to compare.
    pub fn read_runner_token(token: &str) -> Option<RunnerId> {
        token.split_once('.').and_then(|(id, _)| id.parse().ok())
    }

    /// Token of the calls of one agent.
    pub fn session_token(&self, attempt: &Attempt, nonce: &str) -> String {
        self.mac("session", &format!("{} {} {nonce}", attempt.id, attempt.fence))
    }

    /// Value of a console session cookie.
    pub fn cookie(&self, token: &Digest, expires: i64) -> String {
        let body = format!("{}.{expires}", token.hex());
        format!("{body}.{}", self.mac("cookie", &body))
    }

    /// Digest and end of a console session cookie, when it is ours.
    pub fn read_cookie(&self, value: &str) -> Option<(Digest, i64)> {
        let (body, tag) = value.rsplit_once('.')?;
        if !same(&self.mac("cookie", body), tag) {
            return None;
        }
        let (digest, expires) = body.split_once('.')?;
        Some((Digest::from_hex(digest).ok()?, expires.parse().ok()?))
    }

    /// Token that every form of a console session carries.
    pub fn csrf(&self, cookie: &str) -> String {
        self.mac("csrf", cookie)
    }
}

/// Compares two texts in constant time.
pub fn same(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

/// 43 characters that nobody guesses: states and verifiers of sign-ins.
pub(crate) fn nonce() -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

/// A new API token.
pub fn new_token() -> String {
    format!("fy_{}", hex::encode(rand::random::<[u8; 24]>()))
}

fn read_or_make(path: &Path, make: impl FnOnce() -> io::Result<String>) -> Result<String, KeyError> {
    match fs_err::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = make().map_err(|error| trouble(path, error))?;
            match write_private(path, &text) {
                Ok(()) => Ok(text),
                // Another control plane of the same farm started at the same moment: its key is the farm's.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    fs_err::read_to_string(path).map_err(|error| trouble(path, error))
                }
                Err(error) => Err(trouble(path, error)),
            }
        }
        Err(error) => Err(trouble(path, error)),
    }
}

/// Writes a file that only its owner can read, whole or not at all, and never over one that is there.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    use fs_err::os::unix::fs::OpenOptionsExt as _;
    use std::io::Write as _;
    let part = path.with_extension(format!("part-{:016x}", rand::random::<u64>()));
    let mut file = fs_err::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    let placed = fs_err::hard_link(&part, path);
    fs_err::remove_file(&part)?;
    placed
}
