//! The agent with the *simulated* GitHub and its *simulated* runner program, in a real container of this host: the program
//! connects with its configuration, takes the job that the forge gives it, and tells the forge how it ended.
//!
//! Needs the example `simulated_runner` of the crate of forges, which `cargo test --workspace` builds; alone:
//! `cargo build -p forgeyard-forges --features twin --example simulated_runner`.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod farm;
mod rig;

use forgeyard_forges::twin::{Conclusion, JobSpec, RunSpec, RunnerSpec, Scope, Setup, State, Twin};
use forgeyard_model::Explanation;
use forgeyard_model::registration::TakenAnswer;
use rig::{Rig, spec};
use serde_json::json;
use std::path::Path;

const AGENT: &str = env!("CARGO_BIN_EXE_forgeyard-agent");

fn program() -> Option<Vec<u8>> {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(Path::parent)?.join("examples/simulated_runner");
    let bytes = std::fs::read(path).ok();
    if bytes.is_none() {
        println!("SKIPPED: the example simulated_runner is not built");
    }
    bytes
}

/// A job of a simulated GitHub, run by a machine whose farm gives this answer. Gives conclusion and log.
async fn job_that_is(answer: TakenAnswer, program: Vec<u8>) -> (Option<Conclusion>, String) {
    let mut state = State::new(Setup::default());
    let org = state.add_organization("lab");
    let repository = state.add_repository("lab/solver");
    let person = state.add_user("ada");
    let twin = Twin::start_with(state).await.unwrap();
    let (run, job, encoded) = twin.with(|state| {
        let run = state.start_run(RunSpec::push(repository, &person, vec![JobSpec::new("build", &["gpu"])]));
        let runner = RunnerSpec {
            scope: Scope::Organization(org),
            name: "forgeyard-1".to_owned(),
            group: 1,
            labels: vec!["gpu".to_owned()],
            work_folder: "_work".to_owned(),
            set: None,
        };
        (run, state.current_jobs(run)[0].id, state.mint_jit(runner).unwrap().1)
    });

    let mut rig = Rig::new(AGENT).await;
    (rig.flavor.network, rig.flavor.disk_mib, rig.flavor.memory_mib) = (true, 2048, 512);
    let bytes = rig.farm.blob(program);
    {
        let mut inner = rig.farm.lock();
        (inner.config, inner.answer) = (Some(encoded.clone()), Some(answer));
    }
    let start = "cp /in/runner /work/runner; chmod 755 /work/runner; \
        export SIMULATED_RUNNER_STEPS='echo step of $GITHUB_REPOSITORY; env | grep -c ^ACTIONS_RUNNER_INPUT; true'; \
        exec /work/runner";
    rig.offer(spec(json!({
        "inputs": [{"digest": bytes, "path": "runner"}],
        "steps": [],
        "forge_runner": {"forge": "github", "labels": ["gpu"], "program": ["/bin/sh", "-c", start]},
    })));
    rig.provider_create().await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert_eq!((facts.supervisor_error, facts.steps[0].exit_code), (None, Some(0)), "{log}");
    assert!(!log.contains(&encoded[..64]), "{log}");
    let took = rig.farm.lock().took[0].clone();
    assert_eq!((took.repository_id, took.run, took.job.as_str()), (repository, run, "build"));
    assert_eq!((took.actor_id, took.actor.as_deref()), (Some(person.id), Some("ada")));
    rig.end().await;
    (twin.with(|state| state.job(job).unwrap().view().conclusion), log)
}

#[tokio::test]
async fn job_of_the_forge_runs_in_the_sandbox_and_the_forge_hears_how_it_ended() {
    need_sandbox!();
    let Some(program) = program() else { return };
    let (conclusion, log) = job_that_is(TakenAnswer::Allowed { by: vec!["demo".to_owned()] }, program).await;
    assert_eq!(conclusion, Some(Conclusion::Success), "{log}");
    assert!(log.contains("step of lab/solver\n0\n"), "{log}");
}

#[tokio::test]
async fn refused_job_fails_at_the_forge_with_the_reason_in_its_log() {
    need_sandbox!();
    let Some(program) = program() else { return };
    let reason = Explanation::new("gate.no_grant", "nobody grants it to ada").fix("ask for a grant");
    let (conclusion, log) = job_that_is(TakenAnswer::Refused { reason }, program).await;
    assert_eq!(conclusion, Some(Conclusion::Failure), "{log}");
    assert!(log.contains("nobody grants it to ada [gate.no_grant]") && !log.contains("step of lab"), "{log}");
}
