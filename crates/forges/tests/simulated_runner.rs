//! The *simulated* runner program as a process of its own, against the simulated GitHub.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use forgeyard_forges::twin::{
    Conclusion, JobSpec, JobStatus, RunSpec, RunnerSpec, Scope, Setup, State, Twin,
};
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// The program, when it was built: `cargo test` builds it, `cargo test --test simulated_runner` alone does not.
fn program() -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(Path::parent)?.join("examples/simulated_runner");
    if path.exists() {
        return Some(path);
    }
    println!("SKIPPED: the example simulated_runner is not built");
    None
}

/// A twin with one queued job, its id, and a JIT configuration.
async fn twin() -> (Twin, u64, String) {
    let mut state = State::new(Setup::default());
    let org = state.add_organization("lab");
    let repository = state.add_repository("lab/solver");
    let person = state.add_user("ada");
    let twin = Twin::start_with(state).await.unwrap();
    let (job, encoded) = twin.with(|state| {
        let run = state.start_run(RunSpec::push(repository, &person, vec![JobSpec::new("build", &["gpu"])]));
        let spec = RunnerSpec {
            scope: Scope::Organization(org),
            name: "program".to_owned(),
            group: 1,
            labels: vec!["gpu".to_owned()],
            work_folder: "_work".to_owned(),
            set: None,
        };
        (state.current_jobs(run)[0].id, state.mint_jit(spec).unwrap().1)
    });
    (twin, job, encoded)
}

fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn the_program_takes_one_job_runs_its_steps_and_exits() {
    let Some(program) = program() else { return };
    let (twin, job, encoded) = twin().await;
    let folder = tempfile::tempdir().unwrap();
    let steps = format!("echo \"$GITHUB_REPOSITORY by $GITHUB_ACTOR\" > {}/did", folder.path().display());
    let run = |encoded: String, steps: String| {
        let mut command = Command::new(&program);
        command.env("ACTIONS_RUNNER_INPUT_JITCONFIG", encoded).env("SIMULATED_RUNNER_STEPS", steps);
        async move { command.status().await.unwrap().code() }
    };
    assert_eq!(run(encoded.clone(), steps).await, Some(0));
    assert_eq!(std::fs::read_to_string(folder.path().join("did")).unwrap(), "lab/solver by ada\n");
    let view = twin.with(|state| state.job(job).unwrap().view());
    assert_eq!((view.status, view.conclusion), (JobStatus::Completed, Some(Conclusion::Success)));
    assert_eq!(run(encoded, "true".to_owned()).await, Some(1), "a JIT configuration is used once");
}

#[tokio::test]
async fn a_hook_that_refuses_lets_no_step_run_and_fails_the_job() {
    let Some(program) = program() else { return };
    let (twin, job, encoded) = twin().await;
    let folder = tempfile::tempdir().unwrap();
    let hook = script(folder.path(), "hook", "test \"$GITHUB_RUN_ID\" = \"\"");
    let steps = format!("touch {}/did", folder.path().display());
    let mut command = Command::new(&program);
    command.arg("--jitconfig").arg(&encoded).env("SIMULATED_RUNNER_STEPS", steps);
    command.env("ACTIONS_RUNNER_HOOK_JOB_STARTED", &hook);
    assert_eq!(command.status().await.unwrap().code(), Some(0));
    assert!(!folder.path().join("did").exists());
    let view = twin.with(|state| state.job(job).unwrap().view());
    assert_eq!(view.conclusion, Some(Conclusion::Failure));
}

#[tokio::test]
async fn a_program_that_is_too_old_exits_with_seven_and_takes_nothing() {
    let Some(program) = program() else { return };
    let (twin, job, encoded) = twin().await;
    let mut command = Command::new(&program);
    command.arg("--jitconfig").arg(&encoded).env("SIMULATED_RUNNER_EXIT", "7");
    assert_eq!(command.status().await.unwrap().code(), Some(7));
    assert_eq!(twin.with(|state| state.job(job).unwrap().status()), JobStatus::Queued);
}
