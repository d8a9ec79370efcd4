//! What needs no farm: statements about packages, access files.

use crate::rig::{Said, alone};
use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::EncodePublicKey as _;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use forgeyard_formats::statement::{
    self, Attempt, Device, Predicate, Publish, Recipe, Site, Statement, Subject, TestResult,
};
use forgeyard_model::resources::DeviceKind;
use forgeyard_model::verdict::Outcome;
use forgeyard_model::{AttemptId, Digest, Id as _, Lane, Timestamp};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const NAME: &str = "widget-1-0.conda";
const BYTES: &[u8] = b"the bytes of a package";

/// A package, a key and statements, all as files.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = Self { folder };
        fs_err::write(files.path(NAME), BYTES).unwrap();
        let pem = key().verifying_key().to_public_key_pem(LineEnding::LF).unwrap();
        fs_err::write(files.path("farm.pub"), pem).unwrap();
        files.state(&[signed(&key(), NAME, BYTES, tested()), signed(&key(), NAME, BYTES, publish())]);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn state(&self, envelopes: &[Vec<u8>]) {
        let texts: Vec<&str> = envelopes.iter().map(|bytes| std::str::from_utf8(bytes).unwrap()).collect();
        fs_err::write(self.path("statements.json"), format!("[{}]", texts.join(","))).unwrap();
    }

    fn verify(&self, more: &[&str]) -> Said {
        self.verify_file(&self.path(NAME), more)
    }

    fn verify_file(&self, file: &Path, more: &[&str]) -> Said {
        let texts = [file, &self.path("farm.pub"), &self.path("statements.json")];
        let [file, key, statements] = texts.map(|path| path.display().to_string());
        alone(&[&["artifact", "verify", &file, "--key", &key, "--statements", &statements], more].concat())
    }
}

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

fn signed(key: &SigningKey, name: &str, bytes: &[u8], predicate: Predicate) -> Vec<u8> {
    let subject = Subject { name: name.to_owned(), digest: Digest::of(bytes) };
    statement::sign(key, &Statement { subject, predicate }).unwrap()
}

fn publish() -> Predicate {
    Predicate::Publish(Publish { target_channel: Some("https://farm.example/channels/main".to_owned()) })
}

fn tested() -> Predicate {
    Predicate::TestResult(Box::new(TestResult {
        tests: Digest::of(b"tests"),
        test_indexes: vec![0, 2],
        environment_lock: Digest::of(b"lock"),
        recipe: Recipe { repository: "github:12345".into(), commit: "ab".repeat(20) },
        lane: Lane::Protected,
        trigger: "push".into(),
        site: Site { name: "lab".into(), key: "00".repeat(32) },
        device: Some(Device {
            kind: DeviceKind::OpenclCpu,
            model: "a CPU".into(),
            uuid: None,
            driver: "PoCL 3.1".into(),
            simulated: true,
        }),
        started_at: Timestamp::from_micros(1_700_000_000_000_000).to_string(),
        ended_at: Timestamp::from_micros(1_700_000_060_000_000).to_string(),
        outcome: Outcome::Succeeded,
        attempt: Attempt { id: AttemptId::new(Timestamp::from_micros(1), 2), fence: 1 },
        policy_version: "1".into(),
    }))
}

#[test]
fn good_statements_are_explained() {
    let said = Files::new().verify(&[]).ends(0);
    for part in [
        "verified: 2 statements",
        "its tests 0, 2 succeeded, on opencl-cpu (simulated GPU) (a CPU, driver PoCL 3.1)",
        "at the site lab",
        "github:12345",
        "lane protected ref",
        "it may stand in the channel https://farm.example/channels/main",
    ] {
        assert!(said.out.contains(part), "`{part}` is not in: {}", said.out);
    }
    let json: serde_json::Value =
        serde_json::from_str(&Files::new().verify(&["--json"]).ends(0).out).unwrap();
    assert_eq!((&json["verified"], &json["key_is_pinned"]), (&true.into(), &true.into()));
    assert_eq!(json["statements"].as_array().unwrap().len(), 2);
}

#[test]
fn one_flipped_byte_of_the_package_is_refused() {
    for at in 0..BYTES.len() {
        let files = Files::new();
        let mut bytes = BYTES.to_vec();
        bytes[at] ^= 1;
        fs_err::write(files.path(NAME), bytes).unwrap();
        if at % 7 == 0 {
            let said = files.verify(&[]).ends(1);
            assert!(said.out.contains("REFUSED: 2 of 2"), "{}", said.out);
        }
    }
}

#[test]
fn one_flipped_byte_of_a_statement_is_refused() {
    let files = Files::new();
    let good = fs_err::read(files.path("statements.json")).unwrap();
    for at in (1..good.len() - 1).step_by(good.len() / 12) {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        fs_err::write(files.path("statements.json"), &bytes).unwrap();
        let said = files.verify(&[]);
        // Refused as a statement, or not even readable as a list of them.
        assert!(matches!(said.code, 1 | 2), "byte {at}: {} {}", said.out, said.err);
    }
}

#[test]
fn statements_of_another_key_or_about_another_package_are_refused() {
    let files = Files::new();
    let other = SigningKey::from_bytes(&[8; 32]);
    files.state(&[signed(&key(), NAME, BYTES, publish()), signed(&other, NAME, BYTES, tested())]);
    let said = files.verify(&[]).ends(1);
    assert!(said.out.contains("REFUSED: 1 of 2") && said.out.contains("another key"), "{}", said.out);
    files.state(&[signed(&key(), "gadget-1-0.conda", b"others", publish())]);
    assert!(files.verify(&[]).ends(1).out.contains("gadget-1-0.conda"));
    files.state(&[]);
    assert!(files.verify(&[]).ends(1).out.contains("there is no statement about it"));
}

#[test]
fn a_renamed_package_is_told_from_a_changed_one() {
    let files = Files::new();
    let renamed = files.path("renamed.conda");
    fs_err::rename(files.path(NAME), &renamed).unwrap();
    assert!(files.verify_file(&renamed, &[]).ends(1).out.contains("--name"));
    files.verify_file(&renamed, &["--name", NAME]).ends(0);
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let files = Files::new();
    fs_err::write(files.path("farm.pub"), "no key").unwrap();
    files.verify(&[]).ends(2).names(&["farm.pub", "Ed25519", "forgeyard public-key"]);
    let files = Files::new();
    fs_err::write(files.path("statements.json"), "{").unwrap();
    files.verify(&[]).ends(2).names(&["statements.json", "fix:"]);
    files.verify_file(&files.path("nothing.conda"), &[]).ends(2).names(&["nothing.conda", "artifact list"]);
}

const POLICY: &str = "version: 1\npolicies:\n  - id: widget-policy\n    repo: widget\n    roles: [admin, write]\n    \
                      pull_request: true\n    users_from_json: users.json\naccess_control:\n  - resource: gpu\n    \
                      policies: [widget-policy]\n";
const USERS: &str = r#"{"users": [{"github": "ada", "id": 100000}]}"#;

#[test]
fn imported_access_is_checked_and_explained_without_a_farm() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs_err::write(path("access.yml"), POLICY).unwrap();
    fs_err::write(path("users.json"), USERS).unwrap();
    let (access, users, output) = (path("access.yml"), path("users.json"), path("access.toml"));
    let import = ["access", "import", "--access", &access, "--users", &users, "--owner", "widgets"];

    // Without the numeric id of the repository the grant opens nothing, and says so.
    let said = alone(&import).ends(0).names(&["widgets/widget", "numeric id"]);
    fs_err::write(&output, &said.out).unwrap();
    let said = alone(&["access", "check", &output]).ends(1);
    assert!(said.out.contains("allows nothing"), "{}", said.out);

    alone(&[&import[..], &["--repository", "widgets/widget=42", "--output", &output]].concat()).ends(0);
    alone(&["access", "check", &output]).ends(0);
    let json = alone(&["access", "check", "--json", &output]).ends(0).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["access"]["grants"][0]["repository"]["id"], 42);

    let explain = |resource| {
        let question = ["--repository", "widgets/widget", "--person", "ada", "--event", "push"];
        alone(&[&["access", "explain", "--file", &output, "--resource", resource], &question[..]].concat())
    };
    // The grant asks for a role as well, and the imported files know none.
    assert!(explain("gpu").ends(1).out.contains("role"));
    let mut text = fs_err::read_to_string(&output).unwrap();
    text.push_str("\n[roles.42]\n100000 = \"write\"\n");
    fs_err::write(&output, text).unwrap();
    assert!(explain("gpu").ends(0).out.contains("allowed by widget-policy"));
    assert!(explain("tpu").ends(1).out.contains("refused"));
}

#[test]
fn access_file_that_cannot_be_read_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.toml");
    fs_err::write(&file, "[[grants]]\nid = \"x\"\nrepositry = 1\n").unwrap();
    let file = file.display().to_string();
    alone(&["access", "check", &file]).ends(2).names(&[&file, "line 3", "repositry", "repository"]);
    alone(&["access", "check", "/nowhere/access.toml"]).ends(2).names(&["/nowhere/access.toml"]);
}

#[test]
fn corpus_of_a_real_farm_is_imported_whole() {
    let Some(corpus) = std::env::var_os("FORGEYARD_CORPUS") else {
        println!("SKIPPED: FORGEYARD_CORPUS is not set");
        return;
    };
    let path = |name: &str| Path::new(&corpus).join("access").join(name).display().to_string();
    let (access, runners, users) = (path("access.yml"), path("cirun.global.yml"), path("users.json"));
    let files = ["--access", &access, "--runners", &runners, "--users", &users, "--owner", "conda-forge"];
    let said = alone(&[&["access", "import", "--json"], &files[..]].concat()).ends(0);
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert!(json["access"]["grants"].as_array().unwrap().len() > 10);
    assert!(!json["runners"].as_array().unwrap().is_empty());
}

const CREW: &str = "[[grants]]\nid = \"w\"\nrepository = { id = 7, name = \"widgets/widget\" }\nresources = [\"gpu\"]\n\
                    events = [\"push\"]\nlists = [\"crew\"]\n[lists]\ncrew = [1, 2]\n[logins]\n1 = \"ada\"\n";

#[test]
fn change_of_access_is_told_by_whom_it_touches() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (old, new) = (path("old.toml"), path("new.toml"));
    fs_err::write(&old, CREW).unwrap();
    fs_err::write(&new, CREW.replace("crew = [1, 2]", "crew = [2, 3]")).unwrap();
    let said = alone(&["access", "diff", &old, &new]).ends(1).out;
    assert!(said.contains("ada (1)") && said.contains("opens, by w"), "{said}");
    let said = alone(&["access", "diff", &old, &old]).ends(0).out;
    assert!(said.contains("nothing changes"), "{said}");
    let json = alone(&["access", "diff", "--json", &old, &new]).ends(1).out;
    let lines: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((lines[0]["change"].as_str(), lines[0]["people"][0].as_str()), (Some("opened"), Some("3")));
}

#[test]
fn recorded_webhook_is_decided_by_an_access_file_without_a_farm() {
    use forgeyard_formats::webhook::compose::{ComposedPush, ComposedRepository};
    use forgeyard_model::forge::Person;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (access, body, broken) = (path("access.toml"), path("push.1.json"), path("push.2.json"));
    fs_err::write(&access, CREW).unwrap();
    let push = |person: u64| ComposedPush {
        repository: ComposedRepository {
            id: 7,
            full_name: "widgets/widget".to_owned(),
            owner: Person { id: 5, login: "widgets".to_owned() },
            default_branch: "main".to_owned(),
            fork: false,
        },
        git_ref: "refs/heads/main".to_owned(),
        before: None,
        after: Some("1".repeat(40)),
        message: "x".to_owned(),
        sender: Person { id: person, login: "somebody".to_owned() },
        installation: 1,
        at: "2026-01-01T00:00:00Z".to_owned(),
    };
    let secret = forgeyard_model::Secret::new("s");
    fs_err::write(&broken, "{").unwrap();
    for (person, answer) in [(1, "allowed"), (9, "refused")] {
        fs_err::write(&body, push(person).signed(&secret).unwrap().body).unwrap();
        let json = alone(&["access", "simulate", "--json", &access, &body, &broken]).ends(0).out;
        let lines: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(lines[0]["answer"], answer, "{json}");
        assert_eq!(lines[1]["answer"], "unreadable", "{json}");
    }
}
