//! What belongs to one job: verdict, exit facts, machine, reason, log.

use super::*;
use forgeyard_api::people::{JobView, PipelineView, Why};
use forgeyard_control::console::log::LogWindow;
use forgeyard_model::Explanation;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::job::{Hold, JobState};
use forgeyard_model::resources::{DeviceKind, Flavor, Image, ImageRoot};
use forgeyard_model::runner::{Runner, RunnerState, RunnerWork};
use forgeyard_model::verdict::{
    Blame, DeviceUse, ExitFacts, LogLine, Metric, Outcome, RetryPolicy, StepFacts, Verdict,
};

pub fn verdict() -> Verdict {
    let line = |number, text: &str| LogLine { number, text: text.to_owned() };
    Verdict {
        outcome: Outcome::Failed,
        class: Some("numeric.mismatch".to_owned()),
        cause: "3 of 48 tests compare results with a reference and differ by more than the tolerance".to_owned(),
        rule: Some("N04".to_owned()),
        blame: Some(Blame::U),
        retry: RetryPolicy::R0,
        lines: vec![
            line(412, "E   AssertionError: Not equal to tolerance rtol=1e-05, atol=0"),
            line(414, "E   Mismatched elements: 37 / 4096 (0.903%)"),
            line(418, "FAILED tests/test_cg.py::test_residual[float32-4096] - AssertionError"),
        ],
        fix: Some("the same test passed at the base commit on this device: look at the change to the reduction in src/cg.cl".to_owned()),
    }
}

pub fn facts(at: Timestamp, code: i32) -> ExitFacts {
    ExitFacts {
        steps: vec![StepFacts {
            name: "test".to_owned(),
            started_at: at,
            ended_at: after(at, 60),
            exit_code: Some(code),
            signal: None,
        }],
        peak_memory_bytes: Some(2_811_000_000),
        device: Some(DeviceUse {
            kind: DeviceKind::Nvidia,
            touched: true,
            evidence: vec!["412 s of kernel time by NVML accounting".to_owned()],
        }),
        metrics: [("saxpy".to_owned(), Metric { value: "187.4".to_owned(), unit: "GFLOP/s".to_owned() })]
            .into(),
        ..ExitFacts::default()
    }
}

pub fn runner_of(attempt: &Attempt, state: RunnerState) -> Runner {
    Runner {
        id: attempt.runner,
        site: attempt.site,
        pool: name("sheds"),
        provider: name("sandbox"),
        flavor: name("gpu-medium"),
        image: name("host"),
        shape: Flavor {
            name: name("gpu-medium"),
            cpu_millis: 8000,
            memory_mib: 32 << 10,
            disk_mib: 64 << 10,
            processes: 4096,
            time_limit_seconds: 3600,
            gpu: None,
            network: false,
        },
        boots: Image { name: name("host"), root: ImageRoot::Host { allow: Vec::new() } },
        seen_at: attempt.started_at,
        unwanted_from: 0,
        outdated_at: None,
        work: RunnerWork::Attempt(attempt.id),
        registration: None,
        state,
        requested_at: attempt.placed_at,
        ready_at: attempt.started_at,
        since: attempt.placed_at,
        deadline: None,
        generation: 6,
    }
}

/// The job of this key with all that belongs to it.
pub fn job_view(view: &PipelineView, key: &str) -> JobView {
    let job = view.jobs.iter().find(|job| job.key == key).unwrap().clone();
    let attempts: Vec<Attempt> =
        view.attempts.iter().filter(|attempt| attempt.job == job.id).cloned().collect();
    JobView {
        pipeline: Some(view.pipeline.clone()),
        demand: None,
        runners: attempts
            .iter()
            .map(|attempt| {
                runner_of(attempt, if job.state.ended() { RunnerState::Deleted } else { RunnerState::Busy })
            })
            .collect(),
        leases: view
            .leases
            .iter()
            .filter(|lease| attempts.iter().any(|attempt| Some(attempt.id) == lease.attempt))
            .cloned()
            .collect(),
        artifacts: view.artifacts.iter().filter(|artifact| artifact.job == Some(job.id)).cloned().collect(),
        events: if attempts.is_empty() { Vec::new() } else { events().into_iter().take(5).collect() },
        attempts,
        job,
    }
}

pub fn why(view: &JobView) -> Why {
    let job = &view.job;
    let (reason, next, position) = match &job.state {
        JobState::Ended { outcome: Outcome::Succeeded } => {
            (Explanation::new("job.succeeded", "everything that was asked was done and seen"), "", None)
        }
        JobState::Ended { .. } => (
            Explanation::new("test.failed", "the test itself failed; the machine and the device were well")
                .with("exit status 1 of the step test")
                .with("device verified after the run: ready"),
            "nothing: a genuine test failure is never run again by itself",
            None,
        ),
        JobState::Queued => (
            job.waiting.clone().unwrap_or_else(waiting),
            "starts as soon as a machine is free, expected within 3 minutes",
            Some(2),
        ),
        JobState::Held(Hold::Approval { reason }) => (reason.clone(), "waits for the approval", None),
        JobState::Held(_) => (
            Explanation::new("hold.artifacts", "waits for the package of build/fy-mesh"),
            "queued as soon as the package is stored",
            None,
        ),
        _ => (
            Explanation::new("job.running", "step test runs on shed-1, last heard 1 s ago"),
            "ends at the latest in 56 min, when its time limit is reached",
            None,
        ),
    };
    Why {
        state: job.state.name().to_owned(),
        reason,
        position,
        outlook: None,
        next: next.to_owned(),
        lines: Vec::new(),
        allowed_by: vec!["kestrel-main".to_owned()],
        cache: Vec::new(),
    }
}

/// A window of a test's log around its decisive line.
pub fn log(decisive: bool) -> LogWindow {
    let mut lines: Vec<String> = (380..412)
        .map(|n| format!("\u{1b}[32mPASSED\u{1b}[0m tests/test_cg.py::test_residual[float64-{}]", n * 8))
        .collect();
    lines.extend([
        "E   \u{1b}[1m\u{1b}[31mAssertionError\u{1b}[0m: Not equal to tolerance rtol=1e-05, atol=0".to_owned(),
        "E   ".to_owned(),
        "E   Mismatched elements: 37 / 4096 (0.903%)".to_owned(),
        "E   Max absolute difference among violations: 0.00021362".to_owned(),
        "E    ACTUAL: array([1.      , 0.999871, 1.000043, ..., 0.99989 , 1.000151, 1.      ], dtype=float32)".to_owned(),
        "E    DESIRED: array([1., 1., 1., ..., 1., 1., 1.], dtype=float32)".to_owned(),
        "FAILED tests/test_cg.py::test_residual[float32-4096] - AssertionError".to_owned(),
        "compiling kernels   1%\rcompiling kernels  50%\rcompiling kernels 100%".to_owned(),
        "===== 3 failed, 45 passed in 58.31s =====".to_owned(),
    ]);
    LogWindow {
        first: 380,
        start: 30_112,
        lines,
        next: 33_871,
        decisive: decisive.then_some(412),
        complete: decisive,
        dropped: 0,
    }
}
