//! Signed statements about packages: a DSSE envelope around an in-toto Statement v1.
//!
//! Envelope: `{"payload": BASE64, "payloadType": "application/vnd.in-toto+json", "signatures": [{"keyid", "sig"}]}`.
//! What is signed is the pre-authentication encoding of type and payload, `DSSEv1 LEN TYPE LEN PAYLOAD`, with
//! Ed25519. `keyid` is the SHA-256 of the raw public key in hexadecimal.
//!
//! Two kinds of predicate are written and read:
//! - [`PUBLISH`], the publish attestation of CEP 27: one package may stand in one channel;
//! - [`TEST_RESULT`], our own: which tests of exactly these bytes ran where, on what, with which outcome.
//!
//! Verification is strict: one signature, by the expected key, over a payload in canonical JSON with one subject and
//! without unknown fields. A statement that verifies has been written by [`sign`] with that key, byte for byte.

use crate::canonical;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use forgeyard_model::resources::DeviceKind;
use forgeyard_model::verdict::Outcome;
use forgeyard_model::{AttemptId, Digest, Lane};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// Payload type of every envelope.
pub const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// Type of every statement.
pub const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
/// Predicate of a publish attestation (CEP 27).
pub const PUBLISH: &str = "https://schemas.conda.org/attestations-publish-1.schema.json";
/// Predicate of a test result.
pub const TEST_RESULT: &str = "https://forgeyard.dev/conda-test-result/v1";
/// Largest envelope that is read, in bytes.
pub const MAX_BYTES: usize = 1 << 20;

/// Why a statement was refused or could not be written.
#[derive(Debug, thiserror::Error)]
pub enum StatementError {
    /// The envelope is larger than [`MAX_BYTES`].
    #[error("the envelope has {0} bytes, at most {MAX_BYTES} are read")]
    TooLarge(usize),
    /// Envelope or payload is not the described JSON.
    #[error("cannot read the {what}: {error}")]
    Json {
        /// Which of both.
        what: &'static str,
        /// Why.
        error: serde_json::Error,
    },
    /// A part of the envelope is not what it must be.
    #[error("the envelope is refused: {0}")]
    Envelope(&'static str),
    /// The signature is not by the expected key over these bytes.
    #[error("the signature of the envelope does not verify with key {key}")]
    Signature {
        /// Id of the expected key.
        key: String,
    },
    /// The statement says something that it may not say.
    #[error("the statement is refused: {0}")]
    Statement(String),
    /// The statement is about other bytes.
    #[error("the statement is about `{found}`, expected `{expected}`")]
    Subject {
        /// Name and digest that are stated.
        found: String,
        /// Name and digest that were expected.
        expected: String,
    },
}

/// What a statement is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// File name of the package.
    pub name: String,
    /// Digest of the package.
    pub digest: Digest,
}

/// What is stated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Predicate {
    /// The package may stand in this channel.
    Publish(Publish),
    /// These tests of the package ran.
    TestResult(Box<TestResult>),
}

/// A statement about one package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// What it is about.
    pub subject: Subject,
    /// What is stated.
    pub predicate: Predicate,
}

/// Predicate of a publish attestation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Publish {
    /// URL of the channel, without a closing slash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_channel: Option<String>,
}

/// Predicate of a test result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TestResult {
    /// Digest of the package's test list.
    pub tests: Digest,
    /// Which tests of it ran.
    pub test_indexes: Vec<u32>,
    /// Digest of the lock of the environment that they ran in.
    pub environment_lock: Digest,
    /// Where the recipe comes from.
    pub recipe: Recipe,
    /// How far the event was trusted.
    pub lane: Lane,
    /// What started the work, for example `push`.
    pub trigger: String,
    /// Who ran it.
    pub site: Site,
    /// What it ran on; absent for a test without a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// When the first step began, RFC 3339 in UTC.
    pub started_at: String,
    /// When the last step ended, RFC 3339 in UTC.
    pub ended_at: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Which attempt.
    pub attempt: Attempt,
    /// Version of the policy that accepted it.
    pub policy_version: String,
}

/// Where a recipe comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Recipe {
    /// Forge and immutable numeric id (`github:12345`), or `folder:NAME`.
    pub repository: String,
    /// Commit, or digest of the folder.
    pub commit: String,
}

/// The site that ran a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// Its public key, in hexadecimal.
    pub key: String,
}

/// The device that a test ran on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// What kind.
    pub kind: DeviceKind,
    /// Model as the driver names it.
    pub model: String,
    /// UUID, where the driver gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Driver and its version.
    pub driver: String,
    /// Whether it only stands in for a GPU. Must agree with the kind.
    pub simulated: bool,
}

/// The attempt that a result belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Attempt {
    /// Its id.
    pub id: AttemptId,
    /// Its number.
    pub fence: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WireEnvelope {
    payload: String,
    payload_type: String,
    signatures: Vec<WireSignature>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireSignature {
    keyid: String,
    sig: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WireStatement {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<WireSubject>,
    predicate_type: String,
    predicate: serde_json::Value,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireSubject {
    name: String,
    digest: BTreeMap<String, String>,
}

/// The id of a key: SHA-256 of its 32 raw bytes, in hexadecimal.
pub fn key_id(key: &VerifyingKey) -> String {
    hex::encode(Sha256::digest(key.as_bytes()))
}

/// The bytes that are signed.
fn pre_authentication(payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {PAYLOAD_TYPE} {} ", PAYLOAD_TYPE.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

/// Writes and signs a statement; gives the envelope.
///
/// # Errors
/// When the statement says something that [`verify`] would refuse.
pub fn sign(key: &SigningKey, statement: &Statement) -> Result<Vec<u8>, StatementError> {
    check(statement)?;
    let json = |what| move |error| StatementError::Json { what, error };
    let payload =
        canonical::to_bytes(&wire(statement).map_err(json("statement"))?).map_err(json("statement"))?;
    let signature = key.sign(&pre_authentication(&payload));
    let envelope = WireEnvelope {
        payload: STANDARD.encode(&payload),
        payload_type: PAYLOAD_TYPE.to_owned(),
        signatures: vec![WireSignature {
            keyid: key_id(&key.verifying_key()),
            sig: STANDARD.encode(signature.to_bytes()),
        }],
    };
    canonical::to_bytes(&envelope).map_err(json("envelope"))
}

/// Verifies an envelope and reads its statement.
///
/// # Errors
/// When anything is not exactly as [`sign`] with this key writes it.
pub fn verify(key: &VerifyingKey, envelope: &[u8]) -> Result<Statement, StatementError> {
    if envelope.len() > MAX_BYTES {
        return Err(StatementError::TooLarge(envelope.len()));
    }
    let json = |what| move |error| StatementError::Json { what, error };
    let envelope: WireEnvelope = serde_json::from_slice(envelope).map_err(json("envelope"))?;
    if envelope.payload_type != PAYLOAD_TYPE {
        return Err(StatementError::Envelope("its payload is of another type"));
    }
    let [signature] = envelope.signatures.as_slice() else {
        return Err(StatementError::Envelope("it must have exactly one signature"));
    };
    let id = key_id(key);
    if signature.keyid != id {
        return Err(StatementError::Envelope("it is signed by another key"));
    }
    let not_base64 = |_| StatementError::Envelope("a part of it is not base 64");
    let payload = STANDARD.decode(&envelope.payload).map_err(not_base64)?;
    let bytes = STANDARD.decode(&signature.sig).map_err(not_base64)?;
    let wrong = |_| StatementError::Signature { key: id.clone() };
    let signature = Signature::from_slice(&bytes).map_err(wrong)?;
    key.verify_strict(&pre_authentication(&payload), &signature).map_err(wrong)?;

    let parsed: WireStatement = serde_json::from_slice(&payload).map_err(json("statement"))?;
    let statement = unwire(parsed)?;
    check(&statement)?;
    let again =
        canonical::to_bytes(&wire(&statement).map_err(json("statement"))?).map_err(json("statement"))?;
    if again != payload {
        return Err(StatementError::Statement("it is not in canonical form".to_owned()));
    }
    Ok(statement)
}

/// Verifies an envelope that must be about these bytes under this name.
///
/// # Errors
/// As [`verify`], and when the statement is about something else.
pub fn verify_about(
    key: &VerifyingKey,
    envelope: &[u8],
    subject: &Subject,
) -> Result<Predicate, StatementError> {
    let statement = verify(key, envelope)?;
    if statement.subject != *subject {
        let text = |subject: &Subject| format!("{} {}", subject.name, subject.digest);
        return Err(StatementError::Subject { found: text(&statement.subject), expected: text(subject) });
    }
    Ok(statement.predicate)
}

fn wire(statement: &Statement) -> Result<WireStatement, serde_json::Error> {
    let (predicate_type, predicate) = match &statement.predicate {
        Predicate::Publish(publish) => (PUBLISH, serde_json::to_value(publish)?),
        Predicate::TestResult(result) => (TEST_RESULT, serde_json::to_value(result)?),
    };
    Ok(WireStatement {
        kind: STATEMENT_TYPE.to_owned(),
        subject: vec![WireSubject {
            name: statement.subject.name.clone(),
            digest: BTreeMap::from([("sha256".to_owned(), statement.subject.digest.hex())]),
        }],
        predicate_type: predicate_type.to_owned(),
        predicate,
    })
}

fn unwire(wire: WireStatement) -> Result<Statement, StatementError> {
    let refuse = |what: &str| StatementError::Statement(what.to_owned());
    if wire.kind != STATEMENT_TYPE {
        return Err(refuse("it is not an in-toto statement of version 1"));
    }
    let [subject] = wire.subject.as_slice() else {
        return Err(refuse("it must have exactly one subject"));
    };
    let digest = match (subject.digest.len(), subject.digest.get("sha256")) {
        (1, Some(hex)) => Digest::from_hex(hex).map_err(|error| refuse(&error.to_string()))?,
        _ => return Err(refuse("its subject must have exactly one digest, SHA-256")),
    };
    let json = |error| StatementError::Json { what: "predicate", error };
    let predicate = match wire.predicate_type.as_str() {
        PUBLISH => Predicate::Publish(serde_json::from_value(wire.predicate).map_err(json)?),
        TEST_RESULT => Predicate::TestResult(Box::new(serde_json::from_value(wire.predicate).map_err(json)?)),
        _ => return Err(refuse("its predicate is of an unknown type")),
    };
    Ok(Statement { subject: Subject { name: subject.name.clone(), digest }, predicate })
}

/// What no statement of ours may say, whoever signs it.
fn check(statement: &Statement) -> Result<(), StatementError> {
    let refuse = |what: &str| Err(StatementError::Statement(what.to_owned()));
    let name = &statement.subject.name;
    if name.is_empty() || name.len() > 255 || name.contains(['/', '\\', '\0']) {
        return refuse("the name of its subject is no file name");
    }
    match &statement.predicate {
        Predicate::Publish(publish) => {
            if publish.target_channel.as_ref().is_some_and(|url| url.is_empty() || url.ends_with('/')) {
                return refuse("its target channel is empty or ends in a slash");
            }
        }
        Predicate::TestResult(result) => {
            if let Some(device) = &result.device
                && device.simulated != device.kind.simulated()
            {
                return refuse("it says wrongly whether its device is simulated");
            }
            if result.test_indexes.windows(2).any(|pair| pair[0] >= pair[1]) {
                return refuse("its test indexes are not in order, each once");
            }
            if !instant(&result.started_at) || !instant(&result.ended_at) {
                return refuse("a time in it is not RFC 3339 in UTC with milliseconds");
            }
        }
    }
    Ok(())
}

/// Whether a text has the form `2026-01-31T23:59:59.999Z`.
fn instant(text: &str) -> bool {
    let form = b"dddd-dd-ddTdd:dd:dd.dddZ";
    let fits = |(byte, form): (u8, &u8)| if *form == b'd' { byte.is_ascii_digit() } else { byte == *form };
    text.len() == form.len() && text.bytes().zip(form).all(fits)
}

#[cfg(test)]
mod tests;
