//! A *simulated* runner program: a stand-in for the forge's own, which speaks to the simulated GitHub only.
//!
//! ```text
//! simulated_runner --jitconfig BASE64        (or the variable ACTIONS_RUNNER_INPUT_JITCONFIG)
//! ```
//!
//! Like the real program it takes one job and exits, and it runs the hooks that `ACTIONS_RUNNER_HOOK_JOB_STARTED` and
//! `ACTIONS_RUNNER_HOOK_JOB_COMPLETED` name, with `GITHUB_*` variables of the job that it really took: when the first
//! one fails, no step runs and the job fails. What the job's steps are is set by hand:
//!
//! - `SIMULATED_RUNNER_STEPS`: a shell command; without it, nothing is done and the job ends as it says of itself;
//! - `SIMULATED_RUNNER_EXIT=7`: exits with that code at once, as a program that is too old does.

use forgeyard_forges::twin::{GivenJob, Runner};
use std::process::ExitCode;
use tokio::process::Command;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    if let Some(code) = std::env::var("SIMULATED_RUNNER_EXIT").ok().and_then(|code| code.parse::<u8>().ok()) {
        eprintln!("simulated runner: this version is too old and can no longer be used");
        return ExitCode::from(code);
    }
    let Some(encoded) = jit_config() else {
        eprintln!(
            "simulated runner: no JIT configuration: give --jitconfig or ACTIONS_RUNNER_INPUT_JITCONFIG"
        );
        return ExitCode::from(2);
    };
    println!("simulated runner: connecting");
    let code = Runner::run(&encoded, work).await;
    println!("simulated runner: exits with {code}");
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}

fn jit_config() -> Option<String> {
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--jitconfig" {
            return arguments.next();
        }
    }
    std::env::var("ACTIONS_RUNNER_INPUT_JITCONFIG").ok()
}

/// The job: the hook that may refuse it, its steps, the hook at the end.
async fn work(job: GivenJob) -> String {
    println!("simulated runner: running job {} ({}) of {}", job.name, job.job, job.repository);
    if !hook("ACTIONS_RUNNER_HOOK_JOB_STARTED", &job).await {
        println!("simulated runner: the hook refused the job; no step is run");
        return "failure".to_owned();
    }
    let conclusion = match std::env::var("SIMULATED_RUNNER_STEPS") {
        Err(_) => job.conclusion.clone(),
        Ok(steps) => {
            let passed = ran(Command::new("sh").arg("-c").arg(steps), &job).await;
            if passed { "success" } else { "failure" }.to_owned()
        }
    };
    hook("ACTIONS_RUNNER_HOOK_JOB_COMPLETED", &job).await;
    println!("simulated runner: job {} completed with {conclusion}", job.name);
    conclusion
}

async fn hook(variable: &str, job: &GivenJob) -> bool {
    match std::env::var_os(variable) {
        None => true,
        Some(program) => ran(&mut Command::new(program), job).await,
    }
}

async fn ran(command: &mut Command, job: &GivenJob) -> bool {
    command
        // Hooks and steps do not inherit the configuration, as with the real program.
        .env_remove("ACTIONS_RUNNER_INPUT_JITCONFIG")
        .env("GITHUB_ACTIONS", "true")
        .env("GITHUB_RUN_ID", job.run.to_string())
        .env("GITHUB_RUN_ATTEMPT", job.attempt.to_string())
        .env("GITHUB_JOB", &job.name)
        .env("GITHUB_REPOSITORY", &job.repository)
        .env("GITHUB_REPOSITORY_ID", job.repository_id.to_string())
        .env("GITHUB_ACTOR", &job.actor)
        .env("GITHUB_TRIGGERING_ACTOR", &job.triggering_actor)
        .env("GITHUB_ACTOR_ID", job.actor_id.to_string());
    command.status().await.is_ok_and(|status| status.success())
}
