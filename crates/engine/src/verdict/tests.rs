//! Tests of rules, scanning, judging and retrying.

use super::*;
use forgeyard_model::job::{JobKind, Subject};
use forgeyard_model::resources::{DeviceKind, Limit};
use forgeyard_model::verdict::{
    Blame, DeviceUse, ExitFacts, Hit, LogLine, OomFacts, Outcome, RetryPolicy, StepFacts, Verdict,
};
use forgeyard_model::{Digest, Timestamp};
use proptest::prelude::*;
use rstest::rstest;
use std::time::Duration;

fn step(exit_code: Option<i32>, signal: Option<i32>) -> StepFacts {
    let at = Timestamp::from_micros(0);
    StepFacts { name: "work".into(), started_at: at, ended_at: at, exit_code, signal }
}

fn ended(code: i32) -> ExitFacts {
    ExitFacts { steps: vec![step(Some(code), None)], ..ExitFacts::default() }
}

fn hits(log: &str) -> Vec<Hit> {
    scan(Rules::builtin(), log.lines())
}

fn judge_build(facts: &ExitFacts, log: &str) -> Verdict {
    let tail: Vec<LogLine> =
        (1..).zip(log.lines()).map(|(number, text)| LogLine { number, text: text.into() }).collect();
    let hits = hits(log);
    let job = JobKind::Build;
    judge(&Ending { facts, hits: &hits, tail: &tail, job, subject: None, wanted_device: false })
}

fn judge_test(facts: &ExitFacts, log: &str, wanted_device: bool) -> Verdict {
    let hits = hits(log);
    judge(&Ending { facts, hits: &hits, tail: &[], job: JobKind::Test, subject: None, wanted_device })
}

fn class(verdict: &Verdict) -> &str {
    verdict.class.as_deref().unwrap_or("(abstains)")
}

#[test]
fn all_rules_compile_and_are_counted() {
    assert_eq!(Rules::builtin().all().len(), 243);
}

#[test]
fn every_rule_matches_its_own_example() {
    let rules = Rules::builtin();
    let matches = |rule: &&Rule| {
        // An example that ends in a space stands for a line that goes on.
        let line =
            if rule.literal.ends_with(' ') { format!("{}more", rule.literal) } else { rule.literal.clone() };
        rules.matching(&normalise(&line)).any(|other| other.id == rule.id)
    };
    let miss: Vec<&str> =
        rules.all().iter().filter(|rule| !matches(rule)).map(|rule| rule.id.as_str()).collect();
    assert_eq!(miss, Vec::<&str>::new());
}

#[test]
fn data_that_is_no_rule_is_refused_by_line() {
    assert!(Rules::parse("{}").unwrap_err().to_string().starts_with("rule in line 1:"));
    let line = include_str!("../../data/signatures.jsonl").lines().next().unwrap();
    assert!(matches!(Rules::parse(&format!("{line}\n{line}\n")), Err(RulesError::Twice(id)) if id == "L01"));
    let broken = line.replace("\"regex\": \"", "\"regex\": \"(");
    assert!(matches!(Rules::parse(&broken), Err(RulesError::Regex(_))));
}

#[test]
fn our_own_stop_comes_before_everything() {
    let facts = ExitFacts { canceled: true, limit: Some(Limit::Wall), ..ended(137) };
    let verdict = judge_build(&facts, "file.cpp:1:1: error: x");
    assert_eq!((verdict.outcome, class(&verdict)), (Outcome::Canceled, "(abstains)"));
    assert_eq!(retry(&verdict, 0), None);
}

#[test]
fn our_own_fault_is_lost_and_tried_again() {
    let broken = ExitFacts { supervisor_error: Some("upload of `x`: 503".into()), ..ended(0) };
    let silent = ExitFacts { steps: vec![step(None, None)], ..ExitFacts::default() };
    for facts in [broken, silent, ExitFacts::default()] {
        let verdict = judge_build(&facts, "");
        assert_eq!(verdict.outcome, Outcome::Lost, "{verdict:?}");
        assert_eq!(retry(&verdict, 0).unwrap().wait, Duration::from_secs(1));
        assert_eq!(retry(&verdict, 8), None);
    }
}

#[test]
fn out_of_memory_names_peak_limit_victim_and_the_next_size() {
    let oom =
        OomFacts { kills: 1, peak_bytes: 4 << 30, limit_bytes: 4 << 30, victim: Some("cc1plus".into()) };
    let facts = ExitFacts { oom: Some(oom), ..ended(1) };
    let verdict = judge_build(&facts, "c++: fatal error: Killed signal terminated program cc1plus");
    assert_eq!((verdict.outcome, class(&verdict)), (Outcome::Failed, "host.oom"));
    assert_eq!(
        verdict.cause,
        "out of memory: the job reached its limit of 4.0 GiB, peak 4.0 GiB; the kernel killed `cc1plus`"
    );
    assert!(verdict.fix.as_ref().unwrap().contains("8.0 GiB"), "{verdict:?}");
    assert!(retry(&verdict, 0).unwrap().more_memory);
    let long = "x\n".repeat(200);
    assert_eq!(judge_build(&facts, &long).lines.len(), 200, "the last 200 lines are kept");
    assert_eq!(retry(&verdict, 1), None);
}

#[test]
fn kill_without_evidence_is_not_called_lack_of_memory() {
    let log = "c++: fatal error: Killed signal terminated program cc1plus\nmake: exit code 137";
    for facts in [ended(137), ExitFacts { steps: vec![step(None, Some(9))], ..ExitFacts::default() }] {
        let verdict = judge_build(&facts, log);
        assert_eq!(verdict.class, None, "{verdict:?}");
        assert!(verdict.cause.contains("SIGKILL"), "{}", verdict.cause);
    }
    let kernel = "[ 12.345678] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=cc1plus,pid=7";
    let facts = ExitFacts { kernel_lines: vec![kernel.into()], ..ended(137) };
    let verdict = judge_build(&facts, log);
    assert_eq!((class(&verdict), verdict.blame), ("host.oom", Some(Blame::I)));
}

#[rstest]
#[case(Limit::Wall, Outcome::TimedOut, "limit.wall")]
#[case(Limit::Disk, Outcome::Failed, "limit.disk")]
#[case(Limit::Processes, Outcome::Failed, "limit.processes")]
#[case(Limit::Memory, Outcome::Failed, "host.oom")]
#[case(Limit::Network, Outcome::Failed, "limit.network")]
fn limit_decides_before_text(#[case] limit: Limit, #[case] outcome: Outcome, #[case] expected: &str) {
    let facts = ExitFacts { limit: Some(limit), ..ended(1) };
    let verdict = judge_build(&facts, "file.cpp:1:1: error: x");
    assert_eq!((verdict.outcome, class(&verdict)), (outcome, expected));
    assert!(verdict.fix.is_some());
}

#[test]
fn dead_device_explains_a_time_limit() {
    let line = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.";
    let facts = ExitFacts { limit: Some(Limit::Wall), kernel_lines: vec![line.into()], ..ended(1) };
    let verdict = judge_test(&facts, "", true);
    assert_eq!((class(&verdict), verdict.retry), ("gpu.fell-off", RetryPolicy::RQ));
    assert!(retry(&verdict, 0).unwrap().quarantine_device);
}

#[test]
fn other_package_than_asked_for_is_refused() {
    // numba-cuda#685: a public package was tested in place of the built one.
    let subject = Subject { file_name: "fy-1-0.conda".into(), digest: Digest::of(b"built") };
    let run = |installed: Option<String>, code: i32| {
        let mut facts = ended(code);
        facts.installed.extend(installed.map(|digest| (subject.file_name.clone(), digest)));
        let (job, tail) = (JobKind::Test, &[]);
        judge(&Ending { facts: &facts, hits: &[], tail, job, subject: Some(&subject), wanted_device: false })
    };
    assert_eq!(run(Some(subject.digest.to_string()), 0).outcome, Outcome::Succeeded);
    assert_eq!(run(Some(subject.digest.hex()), 0).outcome, Outcome::Succeeded);
    for (installed, code) in [(Some(Digest::of(b"other").to_string()), 0), (Some("?".into()), 1), (None, 0)] {
        let verdict = run(installed, code);
        assert_eq!((verdict.outcome, class(&verdict)), (Outcome::Failed, "artifact.substituted"));
        assert_eq!(retry(&verdict, 0), None);
    }
    assert_eq!(run(None, 1).class, None, "a test that ended early proves nothing of its environment");
}

#[rstest]
#[case(
    "root cause before wrappers",
    "ld: undefined reference to `x'\nninja: build stopped: subcommand failed.\nmake: *** [all] Error 2",
    "build.link",
    1
)]
#[case("last compiler error", "a.cpp:1:1: error: one\nok\nb.cpp:2:2: error: two", "build.compile", 3)]
#[case(
    "first of collectives",
    "x\nNET/IB : Got completion from peer 1 with status=12\nNET/IB : Got completion from peer 2 with status=5",
    "coll.ib",
    2
)]
#[case("wrapper when nothing else", "step\nninja: build stopped: subcommand failed.", "build.ninja", 2)]
#[case("disk", "cp: write error: No space left on device", "host.disk-full", 1)]
#[case(
    "shared memory",
    "cp: No space left on device\nx\nx\nNCCL WARN Error while creating shared memory segment /dev/shm/nccl-1 (size 9)",
    "coll.shm",
    1
)]
#[case(
    "driver library",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
    "load.driver-lib-absent",
    1
)]
fn text_decides_by_priority(
    #[case] what: &str,
    #[case] log: &str,
    #[case] expected: &str,
    #[case] line: u64,
) {
    let verdict = judge_build(&ended(1), log);
    assert_eq!(class(&verdict), expected, "{what}: {verdict:?}");
    assert_eq!(verdict.lines[0].number, line, "{what}: {verdict:?}");
    assert!(verdict.cause.starts_with("step `work` failed with exit code 1: "), "{}", verdict.cause);
}

#[rstest]
#[case("unable to download 'https://x': HTTP error 502; retrying in 329 ms\nall fine")]
#[case("-- Could NOT find CUDAToolkit (missing: CUDAToolkit_NVCC_EXECUTABLE)")]
#[case("sccache: error: storage write check failed: PermissionDenied: AccessDenied")]
#[case("node7:1:2 [0] NCCL INFO NET/IB : Got completion failed with error 12")]
#[case("XFAIL tests/test_x.py::test_y - AssertionError: Tensor-likes are not close!")]
#[case(
    "Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file"
)]
#[case(
    "warning: ignoring substitute for 'x', as it's not signed by any of the keys in 'trusted-public-keys'"
)]
fn line_that_only_looks_fatal_never_decides(#[case] log: &str) {
    let verdict = judge_build(&ended(1), log);
    assert_eq!(verdict.class, None, "{verdict:?}");
    assert!(!verdict.lines.is_empty(), "an abstaining verdict shows the last lines");
    assert_eq!(retry(&verdict, 0), None);
}

#[test]
fn announced_retry_that_nothing_follows_is_a_failure() {
    let verdict =
        judge_build(&ended(1), "start\nunable to download 'https://x': HTTP error 502; retrying in 9 ms\n\n");
    assert_eq!((class(&verdict), verdict.retry), ("net.download", RetryPolicy::RB));
}

#[test]
fn job_cannot_pass_for_the_kernel_or_quarantine_a_device() {
    let printed = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.";
    assert_eq!(judge_test(&ended(1), printed, true).class, None);
    let verdict = judge_test(&ended(1), "CUDA error: uncorrectable ECC error encountered", true);
    assert_eq!((class(&verdict), verdict.retry), ("gpu.ecc", RetryPolicy::R2));
    let next = retry(&verdict, 0).unwrap();
    assert!(next.avoid_host && !next.quarantine_device);
}

#[test]
fn line_that_follows_another_failure_never_decides_alone() {
    let lines = |numbers: &[u32]| ExitFacts {
        kernel_lines: numbers.iter().map(|n| format!("NVRM: Xid (PCI:0000:9b:00): {n}, pid=1")).collect(),
        ..ended(1)
    };
    assert_eq!(judge_test(&lines(&[45, 63, 154]), "", true).class, None);
    assert_eq!(class(&judge_test(&lines(&[110]), "", true)), "gpu.xid-other");
    assert_eq!(class(&judge_test(&lines(&[45, 79]), "", true)), "gpu.fell-off");
}

#[test]
fn failure_of_the_tests_themselves_is_never_tried_again() {
    for log in [
        "FAILED tests/test_x.py::test_y - AssertionError",
        "AssertionError: Tensor-likes are not close!",
        "[  FAILED  ] Suite.Case (12 ms)",
        "RuntimeError: wrong answer",
    ] {
        let verdict = judge_test(&ended(1), log, false);
        assert!(class(&verdict).starts_with("test."), "{verdict:?}");
        assert_eq!((verdict.outcome, retry(&verdict, 0)), (Outcome::Failed, None));
    }
}

#[rstest]
#[case(4, "arch.mismatch", "SIGILL")]
#[case(11, "test.crash", "SIGSEGV")]
#[case(6, "test.crash", "SIGABRT")]
#[case(7, "host.bus", "SIGBUS")]
fn signal_is_named(#[case] signal: i32, #[case] expected: &str, #[case] name: &str) {
    for one in [step(None, Some(signal)), step(Some(128 + signal), None)] {
        let facts = ExitFacts { steps: vec![one], ..ExitFacts::default() };
        let verdict = judge_test(&facts, "", false);
        assert_eq!(class(&verdict), expected, "{verdict:?}");
        assert!(verdict.cause.contains(name), "{}", verdict.cause);
    }
}

#[test]
fn green_without_outputs_is_red() {
    let facts = ExitFacts { missing_outputs: vec!["*.conda".into()], ..ended(0) };
    let verdict = judge_build(&facts, "");
    assert_eq!((verdict.outcome, class(&verdict)), (Outcome::Failed, "build.output-missing"));
    assert!(verdict.cause.contains("*.conda"), "{}", verdict.cause);
}

#[test]
fn green_without_tests_is_red() {
    for (log, expected) in [
        ("collected 0 items\n===== no tests ran in 0.01s =====", "test.none-ran"),
        ("======= 41 skipped in 2.31s =======", "test.all-skipped"),
    ] {
        let verdict = judge_test(&ended(0), log, false);
        assert_eq!((verdict.outcome, class(&verdict)), (Outcome::Failed, expected));
        assert_eq!(retry(&verdict, 0), None);
    }
    let mixed = "======= 41 skipped in 2.31s =======\n===== 3 passed in 0.1s =====";
    assert_eq!(judge_test(&ended(0), mixed, false).outcome, Outcome::Succeeded);
    assert_eq!(judge_build(&ended(0), "collected 0 items").outcome, Outcome::Succeeded);
}

#[test]
fn device_that_was_asked_for_and_not_touched_is_red() {
    let with = |touched: bool| ExitFacts {
        device: Some(DeviceUse {
            kind: DeviceKind::OpenclCpu,
            touched,
            evidence: vec!["no handle was open".into()],
        }),
        ..ended(0)
    };
    assert_eq!(judge_test(&with(true), "3 passed in 0.1s", true).outcome, Outcome::Succeeded);
    let verdict = judge_test(&with(false), "3 passed in 0.1s", true);
    assert_eq!((verdict.outcome, class(&verdict)), (Outcome::Failed, "test.device-unused"));
    assert!(verdict.cause.starts_with("DeviceUnused: "), "{}", verdict.cause);
    assert!(verdict.cause.contains("simulated GPU"), "{}", verdict.cause);
    assert_eq!(
        judge_test(&ended(0), "", true).outcome,
        Outcome::Failed,
        "without an observation nothing is proven"
    );

    let verdict = judge_test(&with(false), "No GPU/TPU found, falling back to CPU.", true);
    assert_eq!((class(&verdict), verdict.rule.as_deref()), ("load.silent-cpu-fallback", Some("L13")));
    assert_eq!(
        judge_test(&with(false), "No GPU/TPU found, falling back to CPU.", false).outcome,
        Outcome::Succeeded
    );
}

#[test]
fn green_with_a_crash_at_exit_stays_green() {
    let verdict = judge_test(&ended(0), "3 passed in 0.1s\nSegmentation fault (core dumped)", false);
    assert_eq!((verdict.outcome, verdict.class), (Outcome::Succeeded, None));
}

#[test]
fn retries_of_every_policy_end() {
    for policy in [
        RetryPolicy::R0,
        RetryPolicy::R1,
        RetryPolicy::R2,
        RetryPolicy::R3,
        RetryPolicy::RB,
        RetryPolicy::RQ,
        RetryPolicy::RM,
        RetryPolicy::RE,
    ] {
        let verdict = Verdict { retry: policy, ..judge_build(&ended(1), "x") };
        assert!((0..100).filter(|retries| retry(&verdict, *retries).is_some()).count() <= 5, "{policy:?}");
        assert_eq!(retry(&verdict, u32::MAX), None, "{policy:?}");
    }
}

proptest! {
    #[test]
    fn any_log_is_scanned_with_bounded_evidence(lines in prop::collection::vec("(.{0,80}|[a-z./:]{0,20}error: .{0,20}|No space left on device|NCCL .{0,9})", 0..60)) {
        let found = scan(Rules::builtin(), lines.iter().map(String::as_str));
        prop_assert!(found.len() <= 2 * 243 + 1);
        prop_assert!(found.iter().all(|hit| hit.line.number >= 1 && hit.line.number <= lines.len() as u64));
        prop_assert!(found.is_sorted_by_key(|hit| hit.line.number));
    }

    #[test]
    fn any_end_is_judged_without_panic(
        code in prop::option::of(any::<i32>()),
        signal in prop::option::of(any::<i32>()),
        peak: u64,
        limit: u64,
        oom: bool,
        wanted: bool,
    ) {
        let oom = oom.then_some(OomFacts { kills: 1, peak_bytes: peak, limit_bytes: limit, victim: None });
        let facts = ExitFacts { steps: vec![step(code, signal)], oom, ..ExitFacts::default() };
        let verdict = judge_test(&facts, "x", wanted);
        prop_assert_eq!(&verdict, &judge_test(&facts, "x", wanted), "the same facts give the same verdict");
        if verdict.outcome == Outcome::Succeeded {
            prop_assert!(code == Some(0) && signal.is_none() && !wanted);
        }
    }
}

#[test]
fn refusal_of_our_own_step_is_its_cause_and_is_not_retried() {
    let facts =
        ExitFacts { steps: vec![StepFacts { name: "plan".into(), ..step(Some(2), None) }], ..ended(2) };
    let log = "RuntimeError: deep inside\nplan: refused: recipe.yaml: the outputs egg, hen need each other in a cycle";
    let verdict = judge_build(&facts, log);
    assert_eq!((verdict.outcome, class(&verdict)), (Outcome::Failed, "plan.refused"));
    assert_eq!(verdict.cause, "recipe.yaml: the outputs egg, hen need each other in a cycle");
    assert_eq!((verdict.lines[0].number, retry(&verdict, 0)), (2, None));
    // A program of the job that says the same and ends in another way is no step of ours.
    let other =
        ExitFacts { steps: vec![StepFacts { name: "plan".into(), ..step(Some(1), None) }], ..ended(1) };
    assert_ne!(class(&judge_build(&other, log)), "plan.refused");
}

#[test]
fn a_job_that_wants_docker_where_there_is_none_is_told_so_and_not_tried_again() {
    for line in [
        "##[error]File not found: 'docker'",
        "Cannot connect to the Docker daemon at tcp://docker:2375. Is the docker daemon running?",
    ] {
        let verdict = judge_build(&ended(1), line);
        assert_eq!((class(&verdict), verdict.retry), ("infra.no-docker", RetryPolicy::R0), "{line}");
    }
    // One that only speaks of it.
    assert_eq!(class(&judge_build(&ended(1), "File not found: 'docker-compose.yml'")), "(abstains)");
}
