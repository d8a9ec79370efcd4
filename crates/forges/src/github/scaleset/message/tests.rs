use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn envelope(body: &Value) -> Vec<u8> {
    json!({
        "messageId": 7, "messageType": JOB_MESSAGES, "body": body.to_string(),
        "statistics": {"totalAvailableJobs": 1, "totalAssignedJobs": 2, "totalNew": 3},
    })
    .to_string()
    .into_bytes()
}

fn entry(kind: &str) -> Value {
    json!({
        "messageType": kind, "runnerRequestId": 94_396_871_545_u64, "repositoryName": "r", "ownerName": "o",
        "jobId": "a-guid", "jobWorkflowRef": "o/r/.github/workflows/ci.yml@refs/heads/main", "jobDisplayName": "build",
        "workflowRunId": 20_000_000_001_u64, "eventName": "push", "requestLabels": ["gpu"],
        "queueTime": "2023-11-14T22:13:20Z", "scaleSetAssignTime": "0001-01-01T00:00:00Z",
        "runnerAssignTime": "0001-01-01T00:00:00", "finishTime": "not a time", "acquireJobUrl": "https://x", "new": [],
    })
}

fn read(bytes: &[u8]) -> Message {
    parse("GET messages", bytes).unwrap().unwrap()
}

#[test]
fn every_kind_of_event_is_read() {
    let mut started = entry("JobStarted");
    started["runnerId"] = json!(5);
    started["runnerName"] = json!("gpu-1");
    let mut completed = entry("JobCompleted");
    completed["result"] = json!("canceled");
    completed["runnerId"] = json!(0);
    completed["runnerName"] = json!("");
    let body = json!([entry("JobAvailable"), entry("JobAssigned"), started, completed, entry("JobPraised")]);
    let message = read(&envelope(&body));
    assert_eq!((message.id, message.other, message.unreadable.len()), (7, None, 0));
    assert_eq!(message.statistics.map(|numbers| numbers.total_assigned_jobs), Some(2));
    let job = message.events[0].job().unwrap().clone();
    assert_eq!((job.runner_request_id, job.workflow_run_id), (94_396_871_545, Some(20_000_000_001)));
    assert_eq!(job.queue_time, Some(Timestamp::from_micros(1_700_000_000_000_000)));
    assert_eq!((job.scale_set_assign_time, job.runner_assign_time, job.finish_time), (None, None, None));
    let expected = [
        JobEvent::Available { job: job.clone() },
        JobEvent::Assigned { job: job.clone() },
        JobEvent::Started { job: job.clone(), runner_id: Some(5), runner_name: Some("gpu-1".into()) },
        JobEvent::Completed { job, result: "canceled".into(), runner_id: None, runner_name: None },
        JobEvent::Unknown { kind: "JobPraised".into() },
    ];
    assert_eq!(message.events, expected);
}

/// ARC #4285: 200 with nothing in it.
#[test]
fn arc_4285_an_empty_answer_is_no_message() {
    for empty in ["", "  \n", "\u{feff}", "null"] {
        assert_eq!(parse("GET messages", empty.as_bytes()).unwrap(), None, "{empty:?}");
    }
}

/// ARC #3420: statistics of zero beside an assigned job; both are handed on.
#[test]
fn arc_3420_an_assigned_job_is_told_beside_statistics_of_zero() {
    let bytes = json!({
        "messageId": 8, "messageType": JOB_MESSAGES, "body": json!([entry("JobAssigned")]).to_string(),
        "statistics": {"totalAssignedJobs": 0},
    })
    .to_string();
    let message = read(bytes.as_bytes());
    assert_eq!(message.statistics, Some(Statistics::default()));
    assert_eq!(message.events.len(), 1);
}

#[test]
fn one_entry_that_cannot_be_read_does_not_spoil_the_others() {
    let mut bad = entry("JobAvailable");
    bad["runnerRequestId"] = json!("many");
    let message = read(&envelope(&json!([entry("JobAvailable"), bad, 5, entry("JobAssigned")])));
    assert_eq!(message.events.len(), 2);
    assert_eq!(message.unreadable.iter().map(|bad| bad.place).collect::<Vec<_>>(), [Some(1), Some(2)]);
    assert!(message.unreadable[0].reason.contains("runnerRequestId"), "{:?}", message.unreadable);
}

#[test]
fn a_message_that_holds_nothing_for_us_can_still_be_acknowledged() {
    for body in [json!(""), json!(null), json!("[]")] {
        let text = json!({"messageId": 9, "messageType": JOB_MESSAGES, "body": body, "statistics": null});
        let message = read(text.to_string().as_bytes());
        assert_eq!((message.id, message.events.len(), message.unreadable.len()), (9, 0, 0));
    }
    let other = read(br#"{"messageId":10,"messageType":"Weather","body":"rain"}"#);
    assert_eq!(other.other.as_deref(), Some("Weather"));
    let broken =
        read(&json!({"messageId": 11, "messageType": JOB_MESSAGES, "body": "{"}).to_string().into_bytes());
    assert_eq!(broken.unreadable[0].place, None);
}

#[test]
fn an_envelope_without_an_id_is_an_error_that_names_it() {
    let error = parse("GET messages", br#"{"messageType":"x"}"#).unwrap_err().to_string();
    assert!(error.contains("GET messages") && error.contains("messageId"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse("GET messages", &bytes);
    }

    #[test]
    fn any_body_keeps_the_id(id in any::<u64>(), body in ".{0,200}") {
        let bytes = json!({"messageId": id, "messageType": JOB_MESSAGES, "body": body}).to_string();
        prop_assert_eq!(read(bytes.as_bytes()).id, id);
    }

    #[test]
    fn entries_are_read_or_told_one_by_one(
        kinds in proptest::collection::vec(
            prop_oneof![Just("JobAvailable"), Just("JobAssigned"), Just("JobStarted"), Just("JobCompleted"), Just("?")],
            0..60,
        ),
        broken in proptest::collection::vec(any::<bool>(), 60),
    ) {
        let entries: Vec<Value> = kinds
            .iter()
            .zip(&broken)
            .map(|(kind, broken)| if *broken { json!({"messageType": [kind]}) } else { entry(kind) })
            .collect();
        let message = read(&envelope(&Value::Array(entries)));
        prop_assert_eq!(message.events.len() + message.unreadable.len(), kinds.len());
        let lost = broken.iter().take(kinds.len()).filter(|broken| **broken).count();
        prop_assert_eq!(message.unreadable.len(), lost);
    }
}
