//! The rules against real logs. `FORGEYARD_CORPUS` names the folder; without it these tests are skipped and say so.
//!
//! The numbers asserted here were reached with the rules as they stand; they are a floor that may rise, not a goal
//! that rules are bent to.

use super::*;
use forgeyard_model::Timestamp;
use forgeyard_model::job::JobKind;
use forgeyard_model::verdict::{ExitFacts, LogLine, StepFacts, Verdict};
use std::collections::BTreeMap;
use std::path::PathBuf;

fn corpus() -> Option<PathBuf> {
    let folder = std::env::var_os("FORGEYARD_CORPUS").map(PathBuf::from);
    if folder.is_none() {
        println!("SKIPPED: FORGEYARD_CORPUS is not set");
    }
    folder
}

fn facts(kernel_lines: Vec<String>) -> ExitFacts {
    let at = Timestamp::from_micros(0);
    let step =
        StepFacts { name: "job".into(), started_at: at, ended_at: at, exit_code: Some(1), signal: None };
    ExitFacts { steps: vec![step], kernel_lines, ..ExitFacts::default() }
}

fn judge_log(text: &str) -> Verdict {
    let hits = scan(Rules::builtin(), text.lines());
    let tail: Vec<LogLine> = Vec::new();
    let facts = facts(Vec::new());
    judge(&Ending {
        facts: &facts,
        hits: &hits,
        tail: &tail,
        job: JobKind::Test,
        subject: None,
        wanted_device: false,
    })
}

#[derive(serde::Deserialize)]
struct Expected {
    line: u64,
}

#[test]
fn verdicts_point_at_the_line_that_a_good_reader_points_at() {
    let Some(corpus) = corpus() else { return };
    let folder = corpus.join("logs");
    let expected: BTreeMap<String, Expected> =
        serde_json::from_slice(&std::fs::read(folder.join("expected-lines.json")).unwrap()).unwrap();
    let (mut agree, mut abstain, mut differ) = (0, 0, 0);
    for (name, expected) in &expected {
        let text = String::from_utf8_lossy(&std::fs::read(folder.join(name)).unwrap()).into_owned();
        let verdict = judge_log(&text);
        let line = verdict.lines.first().map(|line| line.number);
        let what = match (&verdict.class, line) {
            (None, _) => {
                abstain += 1;
                "abstains"
            }
            (Some(_), Some(line)) if line == expected.line => {
                agree += 1;
                "agrees"
            }
            _ => {
                differ += 1;
                "differs"
            }
        };
        println!(
            "{what:9} {name}: expected line {}, found {line:?} {:?} {:?}",
            expected.line, verdict.class, verdict.rule
        );
    }
    println!("{agree} agree, {abstain} abstain, {differ} differ, of {}", expected.len());
    assert!(agree >= 16 && differ <= 3, "{agree} agree, {differ} differ");
}

#[test]
fn kernel_logs_give_their_class() {
    let Some(corpus) = corpus() else { return };
    for (name, class) in [
        ("memory-dmesg.decode.iso.log", "host.oom"),
        ("nvidia-xid-dmesg-with-xid-119.log", "gpu.gsp"),
        ("nvidia-nccl-dmesg.decode.iso.log", "load.crash-in-lib"),
        ("os-dmesg.decode.iso.log", "host.limits"),
    ] {
        let text = std::fs::read_to_string(corpus.join("dmesg").join(name)).unwrap();
        let facts = facts(text.lines().map(str::to_owned).collect());
        let ending = Ending {
            facts: &facts,
            hits: &[],
            tail: &[],
            job: JobKind::Test,
            subject: None,
            wanted_device: true,
        };
        let verdict = judge(&ending);
        assert_eq!(verdict.class.as_deref(), Some(class), "{name}: {verdict:?}");
    }
}
