//! Tests of statements.

use super::*;
use forgeyard_model::Id as _;
use forgeyard_model::Timestamp;
use proptest::prelude::*;

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

fn result() -> TestResult {
    TestResult {
        tests: Digest::of(b"tests"),
        test_indexes: vec![0, 2],
        environment_lock: Digest::of(b"lock"),
        recipe: Recipe { repository: "github:12345".into(), commit: "ab".repeat(20) },
        lane: Lane::Protected,
        trigger: "push".into(),
        site: Site { name: "lab".into(), key: "00".repeat(32) },
        device: Some(Device {
            kind: DeviceKind::OpenclCpu,
            model: "cpu".into(),
            uuid: None,
            driver: "pocl 6.0".into(),
            simulated: true,
        }),
        started_at: Timestamp::from_micros(1_700_000_000_123_456).to_string(),
        ended_at: Timestamp::from_micros(1_700_000_060_000_000).to_string(),
        outcome: Outcome::Succeeded,
        attempt: Attempt { id: AttemptId::new(Timestamp::from_micros(1), 2), fence: 1 },
        policy_version: "1".into(),
    }
}

fn subject() -> Subject {
    Subject { name: "fy-1-0.conda".into(), digest: Digest::of(b"package") }
}

fn statement() -> Statement {
    Statement { subject: subject(), predicate: Predicate::TestResult(Box::new(result())) }
}

fn publish(channel: Option<&str>) -> Statement {
    let target_channel = channel.map(str::to_owned);
    Statement { subject: subject(), predicate: Predicate::Publish(Publish { target_channel }) }
}

/// Signs any payload, as a thief of the key could.
fn seal(payload: &[u8]) -> Vec<u8> {
    let sig = STANDARD.encode(key().sign(&pre_authentication(payload)).to_bytes());
    let keyid = key_id(&key().verifying_key());
    let payload = STANDARD.encode(payload);
    let envelope = serde_json::json!({
        "payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": [{"keyid": keyid, "sig": sig}],
    });
    serde_json::to_vec(&envelope).unwrap()
}

fn payload(statement: &Statement) -> serde_json::Value {
    serde_json::to_value(wire(statement).unwrap()).unwrap()
}

#[test]
fn pre_authentication_is_that_of_the_dsse_protocol() {
    let text = String::from_utf8(pre_authentication(b"hello")).unwrap();
    assert_eq!(text, "DSSEv1 28 application/vnd.in-toto+json 5 hello");
}

#[test]
fn publish_attestation_has_the_form_of_cep_27() {
    let envelope: serde_json::Value =
        serde_json::from_slice(&sign(&key(), &publish(Some("https://farm.example/main"))).unwrap()).unwrap();
    let payload = STANDARD.decode(envelope["payload"].as_str().unwrap()).unwrap();
    let digest = Digest::of(b"package").hex();
    let expected = format!(
        "{{\"_type\":\"https://in-toto.io/Statement/v1\",\"predicate\":{{\"targetChannel\":\"https://farm.example/main\"}},\
         \"predicateType\":\"{PUBLISH}\",\"subject\":[{{\"digest\":{{\"sha256\":\"{digest}\"}},\"name\":\"fy-1-0.conda\"}}]}}"
    );
    assert_eq!(String::from_utf8(payload).unwrap(), expected);
}

#[test]
fn statements_read_back() {
    for one in [statement(), publish(None), publish(Some("https://farm.example/main"))] {
        let envelope = sign(&key(), &one).unwrap();
        assert_eq!(verify(&key().verifying_key(), &envelope).unwrap(), one);
        assert_eq!(sign(&key(), &one).unwrap(), envelope, "the same statement gives the same bytes");
    }
}

#[test]
fn statement_of_another_key_is_refused() {
    let envelope = sign(&SigningKey::from_bytes(&[8; 32]), &statement()).unwrap();
    let error = verify(&key().verifying_key(), &envelope).unwrap_err();
    assert!(error.to_string().contains("another key"), "{error}");
    // The id alone proves nothing.
    let id = key_id(&SigningKey::from_bytes(&[8; 32]).verifying_key());
    let forged = String::from_utf8(envelope).unwrap().replace(&id, &key_id(&key().verifying_key()));
    let error = verify(&key().verifying_key(), forged.as_bytes()).unwrap_err();
    assert!(matches!(error, StatementError::Signature { .. }), "{error}");
}

#[test]
fn statement_about_other_bytes_is_refused() {
    let envelope = sign(&key(), &statement()).unwrap();
    verify_about(&key().verifying_key(), &envelope, &subject()).unwrap();
    for other in [
        Subject { name: "fy-2-0.conda".into(), ..subject() },
        Subject { digest: Digest::of(b"swapped"), ..subject() },
    ] {
        let error = verify_about(&key().verifying_key(), &envelope, &other).unwrap_err();
        assert!(matches!(error, StatementError::Subject { .. }), "{error}");
    }
}

#[test]
fn envelope_with_none_or_two_signatures_is_refused() {
    let envelope: serde_json::Value = serde_json::from_slice(&sign(&key(), &statement()).unwrap()).unwrap();
    let one = envelope["signatures"][0].clone();
    for signatures in [serde_json::json!([]), serde_json::json!([one, one])] {
        let mut changed = envelope.clone();
        changed["signatures"] = signatures;
        let error = verify(&key().verifying_key(), changed.to_string().as_bytes()).unwrap_err();
        assert!(error.to_string().contains("exactly one signature"), "{error}");
    }
}

#[test]
fn signed_nonsense_is_refused() {
    // artifact-keeper#4048: a well-formed document was taken for an attestation. Here even the signature is right.
    let good = payload(&statement());
    let change = |pointer: &str, value: serde_json::Value| {
        let mut changed = good.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        canonical::to_bytes(&changed).unwrap()
    };
    let subject = good["subject"][0].clone();
    let cases = [
        ("another statement type", change("/_type", "https://in-toto.io/Statement/v0.1".into())),
        ("unknown predicate", change("/predicateType", "https://slsa.dev/provenance/v1".into())),
        ("two subjects", change("/subject", serde_json::json!([subject, subject]))),
        ("no subject", change("/subject", serde_json::json!([]))),
        (
            "two digests",
            change("/subject/0/digest", serde_json::json!({"sha256": "0".repeat(64), "md5": "0"})),
        ),
        ("path as name", change("/subject/0/name", "../x.conda".into())),
        ("simulated device called real", change("/predicate/device/simulated", false.into())),
        ("indexes twice", change("/predicate/testIndexes", serde_json::json!([1, 1]))),
        ("no time", change("/predicate/startedAt", "yesterday".into())),
        ("unknown field", change("/predicate/site", serde_json::json!({"name": "x", "key": "y", "z": 1}))),
        ("not canonical", serde_json::to_vec_pretty(&good).unwrap()),
        ("not JSON", b"payload".to_vec()),
    ];
    verify(&key().verifying_key(), &seal(&canonical::to_bytes(&good).unwrap())).unwrap();
    for (what, bytes) in cases {
        assert!(verify(&key().verifying_key(), &seal(&bytes)).is_err(), "{what}");
    }
    let doubled = canonical::to_bytes(&good).unwrap();
    let doubled = String::from_utf8(doubled).unwrap().replacen('{', "{\"_type\":\"x\",", 1);
    assert!(verify(&key().verifying_key(), &seal(doubled.as_bytes())).is_err(), "a key stands twice");
}

#[test]
fn what_could_not_be_verified_is_not_signed() {
    let mut wrong = result();
    wrong.device.as_mut().unwrap().simulated = false;
    let wrong = Statement { subject: subject(), predicate: Predicate::TestResult(Box::new(wrong)) };
    assert!(sign(&key(), &wrong).unwrap_err().to_string().contains("simulated"));
    assert!(sign(&key(), &publish(Some("https://farm.example/main/"))).is_err());
}

proptest! {
    #[test]
    fn any_changed_byte_is_refused(at: prop::sample::Index, flip in 1u8..=255) {
        let mut envelope = sign(&key(), &statement()).unwrap();
        let at = at.index(envelope.len());
        envelope[at] ^= flip;
        prop_assert!(verify(&key().verifying_key(), &envelope).is_err());
    }

    #[test]
    fn any_bytes_are_refused(bytes: Vec<u8>) {
        prop_assert!(verify(&key().verifying_key(), &bytes).is_err());
    }

    #[test]
    fn every_result_reads_back(
        indexes in prop::collection::btree_set(any::<u32>(), 0..6),
        trigger in ".{0,30}",
        model in ".{0,30}",
        fence: u32,
        lock: [u8; 32],
    ) {
        let mut one = result();
        one.test_indexes = indexes.into_iter().collect();
        one.trigger = trigger;
        one.device.as_mut().unwrap().model = model;
        one.attempt.fence = fence;
        one.environment_lock = Digest::from_bytes(lock);
        let one = Statement { subject: subject(), predicate: Predicate::TestResult(Box::new(one)) };
        prop_assert_eq!(verify(&key().verifying_key(), &sign(&key(), &one).unwrap()).unwrap(), one);
    }
}
