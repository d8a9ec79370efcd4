//! Claims about webhooks. Own fixtures are composed; the corpus, where it is given, is real.

use super::compose::{ComposedPullRequest, ComposedPush, ComposedRepository};
use super::*;
use forgeyard_model::Secret;
use proptest::prelude::*;

const HEAD: &str = "00112233445566778899aabbccddeeff00112233";
const BASE: &str = "ffeeddccbbaa99887766554433221100ffeeddcc";

fn forge() -> ForgeName {
    "github".parse().unwrap()
}

fn person(id: u64, login: &str) -> Person {
    Person { id, login: login.to_owned() }
}

fn upstream() -> ComposedRepository {
    ComposedRepository {
        id: 1,
        full_name: "widgets/widget".to_owned(),
        owner: person(10, "widgets"),
        default_branch: "main".to_owned(),
        fork: false,
    }
}

fn fork() -> ComposedRepository {
    ComposedRepository {
        id: 2,
        full_name: "stranger/widget".to_owned(),
        owner: person(20, "stranger"),
        fork: true,
        ..upstream()
    }
}

fn pull_request(action: &str, head_repository: ComposedRepository) -> ComposedPullRequest {
    ComposedPullRequest {
        action: action.to_owned(),
        repository: upstream(),
        number: 7,
        title: "faster".to_owned(),
        base: "main".to_owned(),
        base_sha: BASE.to_owned(),
        head_repository,
        head: "topic".to_owned(),
        head_sha: HEAD.to_owned(),
        before: BASE.to_owned(),
        author: person(20, "stranger"),
        sender: person(21, "helper"),
        installation: 5_000_000_000,
        at: "2026-01-31T12:00:00Z".to_owned(),
    }
}

fn push(git_ref: &str) -> ComposedPush {
    ComposedPush {
        repository: upstream(),
        git_ref: git_ref.to_owned(),
        before: Some(BASE.to_owned()),
        after: Some(HEAD.to_owned()),
        message: "faster".to_owned(),
        sender: person(10, "widgets"),
        installation: 5_000_000_000,
        at: "2026-01-31T12:00:00Z".to_owned(),
    }
}

fn job(id: Value) -> Value {
    serde_json::json!({
        "action": "queued",
        "workflow_job": { "id": id, "run_id": 9_000_000_000u64, "labels": ["self-hosted", "gpu"], "head_sha": HEAD,
            "runner_id": null, "runner_name": null },
        "repository": { "id": 1, "full_name": "widgets/widget" },
        "sender": { "id": 10, "login": "widgets" },
    })
}

fn read_value(event: &str, value: &Value) -> Result<Meaning, Explanation> {
    read(&forge(), event, value.to_string().as_bytes())
}

fn work(event: &str, value: &Value) -> ForgeEvent {
    match read_value(event, value).unwrap() {
        Meaning::Work(event) => *event,
        other => panic!("expected work, found {other:?}"),
    }
}

fn reason(event: &str, value: &Value) -> String {
    match read_value(event, value).unwrap() {
        Meaning::Nothing { reason } => reason,
        other => panic!("expected nothing, found {other:?}"),
    }
}

#[test]
fn synchronize_of_a_fork_is_work_at_the_head_commit() {
    let event = work("pull_request", &pull_request("synchronize", fork()).json());
    assert_eq!(event.head_sha, HEAD);
    assert_eq!(event.author, Some(person(20, "stranger")));
    assert_eq!(event.sender, person(21, "helper"));
    assert_eq!(
        event.trigger,
        Trigger::PullRequest {
            number: 7,
            base: "main".to_owned(),
            base_sha: BASE.to_owned(),
            head_repository: 2,
            fork: true
        }
    );
}

#[test]
fn pull_request_of_the_same_repository_is_no_fork_even_if_that_repository_is_one() {
    let mut body = pull_request("opened", ComposedRepository { fork: true, ..upstream() });
    body.repository.fork = true;
    assert!(matches!(
        work("pull_request", &body.json()).trigger,
        Trigger::PullRequest { fork: false, head_repository: 1, .. }
    ));
}

#[test]
fn head_of_another_repository_is_a_fork_even_if_that_repository_says_it_is_none() {
    let body = pull_request("reopened", ComposedRepository { fork: false, ..fork() });
    assert!(matches!(work("pull_request", &body.json()).trigger, Trigger::PullRequest { fork: true, .. }));
}

#[test]
fn closed_pull_request_is_told_apart() {
    let meaning = read_value("pull_request", &pull_request("closed", fork()).json()).unwrap();
    assert!(matches!(meaning, Meaning::PullRequestClosed { number: 7, .. }), "{meaning:?}");
}

#[test]
fn labelled_pull_request_is_nothing_and_says_why() {
    assert!(reason("pull_request", &pull_request("labeled", fork()).json()).contains("changes no commit"));
}

#[test]
fn pull_request_whose_fork_was_deleted_is_nothing_and_says_why() {
    let mut body = pull_request("synchronize", fork()).json();
    body["pull_request"]["head"]["repo"] = Value::Null;
    assert!(reason("pull_request", &body).contains("is gone"));
}

#[test]
fn push_to_a_branch_is_work() {
    let event = work("push", &push("refs/heads/main").json());
    assert_eq!(event.trigger, Trigger::Push { git_ref: "refs/heads/main".to_owned() });
    assert_eq!((event.head_sha.as_str(), event.author), (HEAD, None));
}

#[test]
fn push_that_deletes_and_push_of_a_tag_are_nothing() {
    let deleting = ComposedPush { after: None, ..push("refs/heads/main") };
    assert!(reason("push", &deleting.json()).contains("was deleted"));
    assert!(reason("push", &push("refs/tags/v1").json()).contains("is a tag"));
    assert!(reason("push", &push("refs/notes/x").json()).contains("is not a branch"));
    assert!(reason("push", &push("refs/heads/").json()).contains("is not a branch"));
}

#[test]
fn job_ids_beyond_32_bits_are_kept_arc_4602() {
    let Meaning::Demand(job) = read_value("workflow_job", &job(94_396_871_545u64.into())).unwrap() else {
        panic!("a workflow job is a demand");
    };
    assert_eq!((job.job, job.run), (94_396_871_545, 9_000_000_000));
    assert_eq!(job.labels, ["self-hosted", "gpu"]);
}

#[test]
fn a_runner_is_read_when_there_is_one_and_zero_or_empty_is_none() {
    let mut body = job(12.into());
    body["workflow_job"]["runner_id"] = 0.into();
    body["workflow_job"]["runner_name"] = "".into();
    body["workflow_job"]["run_attempt"] = 2.into();
    body["installation"] = serde_json::json!({ "id": 77 });
    let Meaning::Demand(read) = read_value("workflow_job", &body).unwrap() else { panic!("a demand") };
    assert_eq!((read.runner_id, read.runner_name, read.run_attempt), (None, None, 2));
    assert_eq!(read.installation, Some(77));
    body["workflow_job"]["runner_id"] = 9_000_000_001u64.into();
    body["workflow_job"]["runner_name"] = "forgeyard-x".into();
    let Meaning::Demand(read) = read_value("workflow_job", &body).unwrap() else { panic!("a demand") };
    assert_eq!((read.runner_id, read.runner_name.as_deref()), (Some(9_000_000_001), Some("forgeyard-x")));
    body["workflow_job"]["run_attempt"] = (1u64 << 40).into();
    assert!(read_value("workflow_job", &body).unwrap_err().message.contains("run_attempt"));
}

#[test]
fn unknown_event_is_stored_only() {
    assert_eq!(reason("galaxy_formed", &serde_json::json!({})), "unknown event `galaxy_formed`: stored only");
}

#[test]
fn mistyped_and_missing_fields_are_named_by_path() {
    let mistyped = read_value("workflow_job", &job("12".into())).unwrap_err();
    assert_eq!(mistyped.code, "webhook.unexpected_value");
    assert!(mistyped.message.contains("`$.workflow_job.id`"), "{mistyped}");

    let mut body = job(12.into());
    body["workflow_job"]["labels"][1] = 3.into();
    assert!(read_value("workflow_job", &body).unwrap_err().message.contains("`$.workflow_job.labels[1]`"));

    let mut body = pull_request("opened", fork()).json();
    body["pull_request"]["head"].as_object_mut().unwrap().remove("sha");
    let missing = read_value("pull_request", &body).unwrap_err();
    assert_eq!(missing.code, "webhook.missing_field");
    assert!(missing.message.contains("`$.pull_request.head.sha`"), "{missing}");
}

#[test]
fn commit_that_could_be_an_option_of_git_is_refused() {
    let mut body = push("refs/heads/main").json();
    body["after"] = "--upload-pack=evil".into();
    assert!(read_value("push", &body).unwrap_err().message.contains("`$.after`"));
}

#[test]
fn base_of_another_repository_is_refused() {
    let mut body = pull_request("opened", fork()).json();
    body["pull_request"]["base"]["repo"]["id"] = 99.into();
    assert!(read_value("pull_request", &body).unwrap_err().message.contains("`$.pull_request.base.repo.id`"));
}

#[test]
fn truncated_body_says_at_which_byte() {
    let body = push("refs/heads/main").json().to_string();
    let error = read(&forge(), "push", &body.as_bytes()[..100]).unwrap_err();
    assert_eq!(error.code, "webhook.truncated");
    assert!(error.message.contains("at byte 100"), "{error}");
}

#[test]
fn wrong_byte_in_the_middle_is_named() {
    let error = read(&forge(), "push", b"{\n \"a\": 1,\n \"b\": ?}").unwrap_err();
    assert_eq!(error.code, "webhook.not_json");
    assert!(error.message.contains("byte 17"), "{error}");
}

#[test]
fn form_encoded_body_names_the_setting_to_change() {
    let error = read(&forge(), "push", b"payload=%7B%7D").unwrap_err();
    assert_eq!(error.code, "webhook.form_encoded");
    assert!(error.fix.unwrap().contains("application/json"));
}

#[test]
fn signature_fits_only_its_body_and_its_secret() {
    let secret = Secret::new("It's a Secret to Everybody");
    // The example that GitHub publishes for checking an implementation.
    let published = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    assert_eq!(verify_signature(&secret, Some(published), b"Hello, World!"), Ok(()));
    assert_eq!(sign(&secret, b"Hello, World!").as_deref(), Ok(published));
    assert_eq!(verify_signature(&secret, Some(published), b"Hello, World?"), Err(SignatureError::Mismatch));
    let other = Secret::new("other");
    assert_eq!(verify_signature(&other, Some(published), b"Hello, World!"), Err(SignatureError::Mismatch));
}

#[test]
fn signature_that_is_absent_or_ill_formed_is_named() {
    let secret = Secret::new("s");
    let check = |header| verify_signature(&secret, header, b"");
    assert_eq!(check(None), Err(SignatureError::Missing));
    assert_eq!(check(Some("sha1=0000")), Err(SignatureError::Algorithm));
    assert_eq!(check(Some("sha256=abc")), Err(SignatureError::Form { found: 3 }));
    let upper = sign(&secret, b"").unwrap().to_uppercase().replace("SHA256", "sha256");
    assert_eq!(check(Some(&upper)), Err(SignatureError::Form { found: 64 }));
    assert_eq!(verify_signature(&Secret::new(""), Some("sha256=00"), b""), Err(SignatureError::EmptySecret));
}

#[test]
fn composed_bodies_verify_and_read() {
    let secret = Secret::new("s");
    for signed in [
        pull_request("synchronize", fork()).signed(&secret).unwrap(),
        push("refs/heads/main").signed(&secret).unwrap(),
    ] {
        assert_eq!(verify_signature(&secret, Some(&signed.signature), &signed.body), Ok(()));
        assert!(matches!(read(&forge(), signed.event, &signed.body), Ok(Meaning::Work(_))));
    }
}

/// All files of the corpus; `None` when it is not given, which is said aloud.
fn corpus() -> Option<Vec<(String, Vec<u8>)>> {
    let Some(folder) = std::env::var_os("FORGEYARD_CORPUS") else {
        // Not `println!`, which the test harness swallows when a test passes.
        std::io::Write::write_all(&mut std::io::stderr(), b"SKIPPED: FORGEYARD_CORPUS is not set\n").unwrap();
        return None;
    };
    let mut files: Vec<_> = std::fs::read_dir(std::path::Path::new(&folder).join("webhooks"))
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        })
        .filter(|(name, _)| name.ends_with(".json"))
        .collect();
    files.sort();
    Some(files)
}

#[test]
fn every_webhook_of_the_corpus_is_understood() {
    let Some(files) = corpus() else { return };
    let mut counts = std::collections::BTreeMap::new();
    for (name, body) in &files {
        let event = name.split('.').next().unwrap();
        let meaning = read(&forge(), event, body).unwrap_or_else(|error| panic!("{name}: {error}"));
        let kind = match (event, &meaning) {
            ("workflow_job", Meaning::Demand(_)) => "demand",
            ("pull_request", Meaning::Work(_)) | ("push", Meaning::Work(_)) => "work",
            ("pull_request", Meaning::PullRequestClosed { .. }) => "closed",
            // Buttons of other Apps; the farm says that they are not its own.
            ("check_run", Meaning::Pressed(_)) => "pressed",
            ("workflow_job", other) => panic!("{name}: {other:?}"),
            (_, Meaning::Nothing { reason }) => {
                assert!(!reason.contains("unknown event"), "{name}: {reason}");
                "nothing"
            }
            (_, other) => panic!("{name}: {other:?}"),
        };
        *counts.entry(kind).or_insert(0) += 1;
    }
    println!("{} webhooks: {counts:?}", files.len());
    assert!(
        ["work", "demand", "closed", "pressed", "nothing"].iter().all(|kind| counts.contains_key(kind)),
        "{counts:?}"
    );
}

/// Corpus bodies turned into the two that the corpus lacks, by the documented differences.
#[test]
fn synchronize_and_fork_derived_from_the_corpus_are_understood() {
    let Some(files) = corpus() else { return };
    let mut derived = 0;
    for (name, body) in files.iter().filter(|(name, _)| name.starts_with("pull_request.opened")) {
        let mut value: Value = serde_json::from_slice(body).unwrap();
        value["action"] = "synchronize".into();
        value["before"] = BASE.into();
        value["after"] = value["pull_request"]["head"]["sha"].clone();
        assert!(
            matches!(work("pull_request", &value).trigger, Trigger::PullRequest { fork: false, .. }),
            "{name}"
        );
        value["pull_request"]["head"]["repo"]["id"] = 4_294_967_297u64.into();
        value["pull_request"]["head"]["repo"]["fork"] = true.into();
        assert!(
            matches!(
                work("pull_request", &value).trigger,
                Trigger::PullRequest { fork: true, head_repository: 4_294_967_297, .. }
            ),
            "{name}"
        );
        derived += 1;
    }
    assert!(derived > 0);
}

fn valid_bodies() -> Vec<(&'static str, Value)> {
    vec![
        ("push", push("refs/heads/main").json()),
        ("pull_request", pull_request("synchronize", fork()).json()),
        ("workflow_job", job(1.into())),
        ("ping", serde_json::json!({"zen": "x", "hook_id": 1})),
    ]
}

/// All paths to values inside a body.
fn pointers(value: &Value, at: String, into: &mut Vec<String>) {
    into.push(at.clone());
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| pointers(value, format!("{at}/{key}"), into))
        }
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(place, value)| pointers(value, format!("{at}/{place}"), into));
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(event in "(push|pull_request|workflow_job|[a-z_]{0,12})", body: Vec<u8>, header: String) {
        let _ = read(&forge(), &event, &body);
        let _ = verify_signature(&Secret::new("s"), Some(&header), &body);
    }

    #[test]
    fn body_with_one_value_replaced_never_panics_and_never_yields_a_wild_commit(
        which in 0usize..4, place: prop::sample::Index, kind in 0u8..7, text in ".{0,50}", number: i64,
    ) {
        let (event, mut value) = valid_bodies().swap_remove(which);
        let mut paths = Vec::new();
        pointers(&value, String::new(), &mut paths);
        let path = place.get(&paths).clone();
        *value.pointer_mut(&path).unwrap() = match kind {
            0 => Value::Null,
            1 => number.into(),
            2 => text.into(),
            3 => serde_json::json!([]),
            4 => serde_json::json!({}),
            5 => true.into(),
            _ => 1.5.into(),
        };
        if let Ok(Meaning::Work(event)) = read_value(event, &value) {
            prop_assert!(event.head_sha.len() >= 40 && event.head_sha.bytes().all(|b| b.is_ascii_hexdigit()));
        }
    }

    #[test]
    fn body_with_bytes_flipped_or_cut_never_panics(which in 0usize..4, at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let (event, value) = valid_bodies().swap_remove(which);
        let mut body = value.to_string().into_bytes();
        let place = at.index(body.len());
        body[place] = byte;
        body.truncate(cut.index(body.len()) + 1);
        let _ = read(&forge(), event, &body);
    }
}
