//! Claims about machines that are runners of a forge, in real containers on this host. The farm is simulated, and so is the
//! runner program: a *simulated* one, in shell, that takes its configuration and calls its hook as GitHub's does. That
//! program itself was never run here.
//!
//! Needs root, `runc` and `conmon`; elsewhere each test prints `SKIPPED`, or fails if `FORGEYARD_REQUIRE_SANDBOX` is set.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod farm;
mod rig;

use forgeyard_model::Explanation;
use forgeyard_model::registration::TakenAnswer;
use rig::{Rig, spec};
use serde_json::json;

const AGENT: &str = env!("CARGO_BIN_EXE_forgeyard-agent");

/// Longer than a line of base64, and without a part that is in any log by chance.
fn config() -> String {
    (0..40).map(|n| format!("Q{:06}x", n * 7919)).collect()
}

/// The simulated program: it takes its configuration out of its environment, and one job, and runs the hook and the steps
/// in a part of its own, as GitHub's does. `WORKER` is that part.
const LISTENER: &str = r#"
config=$ACTIONS_RUNNER_INPUT_JITCONFIG
unset ACTIONS_RUNNER_INPUT_JITCONFIG
[ -n "$config" ] || { echo "no configuration"; exit 2; }
echo start >> /work/starts
echo "simulated runner: listening"
export GITHUB_REPOSITORY_ID=42 GITHUB_REPOSITORY=lab/solver GITHUB_RUN_ID=9007199254740993 GITHUB_RUN_ATTEMPT=2
export GITHUB_JOB=build GITHUB_ACTOR_ID=7 GITHUB_ACTOR=ada GITHUB_TRIGGERING_ACTOR=bob
ln -s /bin/sh /work/Runner.Worker
/work/Runner.Worker /in/worker.sh
echo "simulated runner: the worker ended with $?"
exit 0
"#;

/// The steps of a job: a plain one, and one that is to run always.
const WORKER: &str = r#"
if bash -e "$ACTIONS_RUNNER_HOOK_JOB_STARTED"; then echo "step ran"; fi
echo "always step ran"
"#;

impl Rig {
    /// Offers a runner with this program and worker, and makes the machine.
    async fn runner(&self, listener: &str, worker: &str) {
        self.offer(spec(json!({
            "files": [
                {"path": "listener.sh", "text": listener},
                {"path": "worker.sh", "text": worker},
            ],
            "steps": [],
            "forge_runner": {"forge": "github", "labels": ["gpu"], "program": ["/bin/sh", "/in/listener.sh"]},
        })));
        self.provider_create().await;
    }

    async fn asked(&self) {
        self.farm.until("the question of the hook", |inner| (!inner.took.is_empty()).then_some(())).await;
    }
}

fn allowed() -> Option<TakenAnswer> {
    Some(TakenAnswer::Allowed { by: vec!["demo".to_owned()] })
}

fn refused() -> Option<TakenAnswer> {
    let reason = Explanation::new("gate.no_grant", "nobody grants it to ada").fix("ask for a grant");
    Some(TakenAnswer::Refused { reason })
}

#[tokio::test]
async fn allowed_job_runs_after_the_farm_has_decided() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.farm.lock().config = Some(config());
    rig.runner(LISTENER, WORKER).await;
    rig.asked().await;
    // Asked again and again, and nothing runs meanwhile.
    rig.farm.until("a second question", |inner| (inner.took.len() > 1).then_some(())).await;
    assert!(!rig.farm.log_text().contains("step ran"));
    rig.farm.lock().answer = allowed();
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert_eq!((facts.supervisor_error, facts.steps.len()), (None, 1), "{log}");
    assert_eq!((facts.steps[0].name.as_str(), facts.steps[0].exit_code), ("runner", Some(0)), "{log}");
    let at = |text: &str| log.find(text).unwrap_or_else(|| panic!("{text} is missing in\n{log}"));
    assert!(at("waiting for the configuration") < at("starting the runner program: /bin/sh\n"));
    // Streams of two writers: ours comes near to where it belongs.
    assert!(at("starting the runner program") < at("the runner took job `build` of lab/solver"));
    assert!(at("this job may run here, by demo") < at("step ran"));
    let (took, heartbeats) = {
        let inner = rig.farm.lock();
        (inner.took[0].clone(), inner.heartbeats.clone())
    };
    assert_eq!((took.repository_id, took.repository.as_str()), (42, "lab/solver"));
    assert_eq!((took.run, took.run_attempt, took.job.as_str()), (9_007_199_254_740_993, 2, "build"));
    assert_eq!((took.actor_id, took.actor.as_deref()), (Some(7), Some("ada")));
    let said = |step: &str| heartbeats.contains(&Some(step.to_owned()));
    assert!(said("runner: waits for a job") && said("runner: job taken: build"), "{heartbeats:?}");
    rig.end().await;
}

#[tokio::test]
async fn refused_job_runs_no_step_not_even_one_that_is_to_run_always_and_is_told_why() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    {
        let mut inner = rig.farm.lock();
        (inner.config, inner.answer) = (Some(config()), refused());
    }
    rig.runner(LISTENER, WORKER).await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert!(!log.contains("step ran"), "{log}");
    // Once by the hook, for the log at the forge, and once by the agent.
    let why = "[forgeyard] refused, so no step of this job runs: nobody grants it to ada [gate.no_grant]\n";
    assert_eq!(log.matches(why).count(), 2, "{log}");
    assert!(log.contains("[forgeyard] fix: ask for a grant\n"), "{log}");
    // What speaks to the forge lives on and reports.
    assert!(log.contains("the worker ended with 137"), "{log}");
    assert_eq!((facts.steps[0].exit_code, facts.supervisor_error), (Some(0), None), "{log}");
    rig.end().await;
}

#[tokio::test]
async fn hook_fails_when_refused_by_any_name_and_any_shell() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    {
        let mut inner = rig.farm.lock();
        (inner.config, inner.answer) = (Some(config()), refused());
    }
    let listener =
        LISTENER.replace("/work/Runner.Worker /in/worker.sh", "\"$ACTIONS_RUNNER_HOOK_JOB_STARTED\"");
    rig.runner(&listener, "").await;
    rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert!(log.contains("the worker ended with 1\n"), "{log}");
    rig.end().await;
}

#[tokio::test]
async fn refused_runner_that_does_not_end_is_ended() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    {
        let mut inner = rig.farm.lock();
        (inner.config, inner.answer) = (Some(config()), refused());
    }
    let listener = LISTENER.replace("exit 0", "trap 'echo asked to end' TERM; while :; do sleep 0.2; done");
    rig.runner(&listener, WORKER).await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert_eq!((facts.steps[0].exit_code, facts.steps[0].signal), (Some(137), Some(9)), "{log}");
    assert!(!log.contains("asked to end") && !log.contains("step ran"), "{log}");
    assert!(!facts.canceled);
    rig.end().await;
}

#[tokio::test]
async fn configuration_comes_when_the_machine_is_up_and_stays_with_the_program() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    let config = config();
    let listener = LISTENER.replace(
        "echo start",
        "echo \"whole $config\"; echo $config | fold -w 76; echo $config | fold -w 64\necho start",
    );
    // A later process: the environment of process 1 is closed, and no file or variable holds it.
    let worker = format!(
        "bash -e \"$ACTIONS_RUNNER_HOOK_JOB_STARTED\" || exit 1\n\
         cat /proc/1/environ && echo process 1 is open\nenv | grep -c JITCONFIG\n\
         grep -rl \"$(printf '%s%s' {} {})\" /in /out /work /tmp /run /dev/shm /.forgeyard/status /.forgeyard/hook /.forgeyard/taken && echo a file holds it\n\
         for f in /.forgeyard/hook/answer /.forgeyard/hook/x /.forgeyard/hook/job-started.sh; do \
           echo forged > $f && echo forged $f; done\n\
         rm -f /.forgeyard/hook/answer /.forgeyard/taken/job; ln -s /etc/passwd /.forgeyard/taken/job; echo step ran",
        &config[..20],
        &config[20..40]
    );
    rig.runner(&listener, &worker).await;
    rig.farm.logged("waiting for the configuration of the runner").await;
    rig.farm.until("a sign of life", |inner| (inner.heartbeats.len() > 1).then_some(())).await;
    assert!(rig.farm.lock().heartbeats.iter().all(Option::is_none), "it is not running yet");
    {
        let mut inner = rig.farm.lock();
        (inner.config, inner.answer) = (Some(config.clone()), allowed());
    }
    rig.farm.logged("listening").await;
    let bundle = std::fs::read_to_string(rig.folder().join("bundles/0/config.json")).unwrap();
    assert!(bundle.contains("ACTIONS_RUNNER_HOOK_JOB_STARTED"));
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert_eq!(facts.steps[0].exit_code, Some(0), "{log}");
    assert!(log.contains("step ran") && log.contains("whole ***\n"), "{log}");
    for line in config.as_bytes().chunks(64) {
        assert!(!log.contains(std::str::from_utf8(line).unwrap()), "{log}");
    }
    assert!(!log.contains("is open") && !log.contains("holds it") && !log.contains("forged"), "{log}");
    for file in
        ["agent/state.json", "agent/log", "agent/log.json", "agent/agent.log", "bundles/0/config.json"]
    {
        let text = std::fs::read_to_string(rig.folder().join(file)).unwrap();
        assert!(!text.contains(&config[..64]), "{file} holds it");
    }
    assert_eq!(rig.farm.lock().took.len(), 1, "the first report counts");
    rig.end().await;
}

#[tokio::test]
async fn runner_program_that_is_too_old_ends_with_its_code_and_takes_nothing() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.farm.lock().config = Some(config());
    rig.runner("exit 7", "").await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert_eq!((facts.steps[0].exit_code, facts.supervisor_error), (Some(7), None));
    assert!(log.contains("too old for its forge (exit code 7): rebuild the image"), "{log}");
    assert!(rig.farm.lock().took.is_empty());
    rig.end().await;
}

#[tokio::test]
async fn out_of_memory_in_the_job_is_seen_although_the_runner_program_lives_arc_4155() {
    need_sandbox!();
    let mut rig = Rig::new(AGENT).await;
    rig.flavor.memory_mib = 48;
    {
        let mut inner = rig.farm.lock();
        (inner.config, inner.answer) = (Some(config()), allowed());
    }
    let worker = format!("{WORKER}\necho last words; tail /dev/zero; echo \"step ended with $?\"");
    rig.runner(LISTENER, &worker).await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert_eq!(facts.steps[0].exit_code, Some(0), "the runner program was not the victim:\n{log}");
    assert!(log.contains("last words\n") && log.contains("step ended with 137"), "{log}");
    let oom = facts.oom.unwrap();
    assert!(oom.kills >= 1);
    assert_eq!(oom.limit_bytes, 48 << 20);
    rig.end().await;
}

#[tokio::test]
async fn killed_agent_goes_on_with_the_same_runner_wherever_the_gate_is() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.farm.lock().config = Some(config());
    rig.runner(LISTENER, WORKER).await;
    rig.asked().await;
    let container = rig.pid("bundles/0/pid").unwrap();
    rig.kill_agent().await;
    assert!(rig::alive(container), "the runner died with the agent");
    rig.farm.lock().took.clear();
    rig.watched(rig.asked()).await;
    rig.farm.lock().answer = allowed();
    let facts = rig.facts_of_a_watched_machine().await;
    let log = rig.farm.log_text();
    assert_eq!((facts.steps[0].exit_code, facts.supervisor_error), (Some(0), None), "{log}");
    assert_eq!(rig.pid("bundles/0/pid").unwrap(), container);
    for once in ["listening", "starting the runner program", "\nstep ran", "waiting for the configuration"] {
        assert_eq!(log.matches(once).count(), 1, "{once} in\n{log}");
    }
    let took = rig.farm.lock().took.clone();
    assert!(took.iter().all(|took| took.job == "build"), "{took:?}");
    assert_eq!(rig.farm.lock().configs, 1);
    rig.end().await;
}

#[tokio::test]
async fn consumed_configuration_is_never_used_again_when_the_container_is_lost_arc_4148() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.farm.lock().config = Some(config());
    rig.runner(LISTENER, WORKER).await;
    rig.asked().await;
    // As after a restart of the host: no agent, no container, no memory of one.
    let (monitor, container) = (rig.pid("bundles/0/conmon.pid").unwrap(), rig.pid("bundles/0/pid").unwrap());
    rig.kill_agent().await;
    for pid in [monitor, container] {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        while rig::alive(pid) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    let machine: serde_json::Value =
        serde_json::from_slice(&std::fs::read(rig.folder().join("machine.json")).unwrap()).unwrap();
    let deleted = std::process::Command::new("runc")
        .arg("--root")
        .arg(machine["runtime"]["state"].as_str().unwrap())
        .args(["delete", "--force", &format!("{}-0", rig.runner)])
        .status()
        .unwrap();
    assert!(deleted.success());
    let facts = rig.facts_of_a_watched_machine().await;
    let log = rig.farm.log_text();
    assert_eq!(facts.steps[0].exit_code, None, "{log}");
    assert!(facts.supervisor_error.unwrap().contains("the container is gone"), "{log}");
    assert_eq!(log.matches("listening").count(), 1, "{log}");
    assert_eq!(std::fs::read_to_string(rig.folder().join("work/starts")).unwrap(), "start\n");
    assert_eq!(rig.farm.lock().configs, 1);
    rig.end().await;
}

#[tokio::test]
async fn stop_while_waiting_for_the_configuration_ends_without_a_runner() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.runner(LISTENER, WORKER).await;
    rig.farm.logged("waiting for the configuration").await;
    rig.farm.lock().cancel = true;
    let facts = rig.farm.facts().await;
    assert!(facts.canceled && facts.steps.is_empty());
    assert_eq!(facts.supervisor_error, None);
    assert!(rig.farm.log_text().ends_with("[forgeyard] stopped: somebody asked to cancel it\n"));
    rig.end().await;
}

#[tokio::test]
async fn runner_is_not_asked_to_end_before_its_job_is_allowed() {
    need_sandbox!();
    // Asked to end, a runner program cancels its job, and a canceled job runs the steps that are to run always.
    for decided in [false, true] {
        let rig = Rig::new(AGENT).await;
        {
            let mut inner = rig.farm.lock();
            (inner.config, inner.answer) = (Some(config()), decided.then(allowed).flatten());
        }
        let listener = format!("trap 'echo asked to end; exit 3' TERM\n{LISTENER}");
        rig.runner(&listener, &format!("{WORKER}\nwhile :; do sleep 0.1; done")).await;
        rig.asked().await;
        if decided {
            rig.farm.logged("always step ran").await;
        }
        rig.farm.lock().cancel = true;
        let facts = rig.farm.facts().await;
        let log = rig.farm.log_text();
        assert!(facts.canceled, "{log}");
        assert_eq!(log.contains("asked to end"), decided, "{log}");
        assert_eq!(log.contains("step ran"), decided, "{log}");
        rig.end().await;
    }
}

#[tokio::test]
async fn report_that_cannot_be_understood_runs_no_step() {
    need_sandbox!();
    for report in ["echo rubbish > /work/x; mv /work/x", "ln -s /etc/passwd"] {
        let rig = Rig::new(AGENT).await;
        {
            let mut inner = rig.farm.lock();
            (inner.config, inner.answer) = (Some(config()), allowed());
        }
        // The hook says nothing: what reports is something else.
        let worker = format!(
            "{report} /.forgeyard/taken/job\nuntil [ -f /.forgeyard/hook/answer ]; do sleep 0.1; done\n\
             read -r word < /.forgeyard/hook/answer; echo \"told $word\""
        );
        rig.runner(LISTENER, &worker).await;
        let facts = rig.farm.facts().await;
        let log = rig.farm.log_text();
        assert!(log.contains("told refused"), "{log}");
        assert!(facts.supervisor_error.unwrap().contains("cannot be understood"), "{log}");
        assert!(rig.farm.lock().took.is_empty());
        rig.end().await;
    }
}
