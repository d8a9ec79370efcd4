//! Signed statements: raw envelopes, and payloads under a signature that is good, so that what is behind the signature
//! is reached. What verifies must be what signing writes.
#![no_main]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer as _, SigningKey};
use forgeyard_formats::statement;
use libfuzzer_sys::fuzz_target;

const KIND: &str = "application/vnd.in-toto+json";

fuzz_target!(|data: &[u8]| {
    let key = SigningKey::from_bytes(&[7; 32]);
    let public = key.verifying_key();
    let _ = statement::verify(&public, data);
    let mut signed = format!("DSSEv1 {} {KIND} {} ", KIND.len(), data.len()).into_bytes();
    signed.extend_from_slice(data);
    let signature = key.sign(&signed);
    let envelope = serde_json::json!({
        "payload": STANDARD.encode(data),
        "payloadType": KIND,
        "signatures": [{ "keyid": statement::key_id(&public), "sig": STANDARD.encode(signature.to_bytes()) }],
    });
    let envelope = envelope.to_string().into_bytes();
    if let Ok(read) = statement::verify(&public, &envelope) {
        let again = statement::sign(&key, &read).expect("what verifies can be signed");
        assert_eq!(statement::verify(&public, &again).ok(), Some(read));
    }
});
