//! Claims about a machine that is made before there is work: a real sandbox and a real agent, and a *simulated* farm.
//!
//! Needs root, `runc` and `conmon`; elsewhere each test prints `SKIPPED`, or fails if `FORGEYARD_REQUIRE_SANDBOX` is set.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod farm;
mod rig;

use forgeyard_model::runner::ObservedState;
use forgeyard_model::verdict::ExitFacts;
use forgeyard_providers::Provider as _;
use rig::{Rig, shell};
use std::time::{SystemTime, UNIX_EPOCH};

const AGENT: &str = env!("CARGO_BIN_EXE_forgeyard-agent");

#[allow(clippy::disallowed_methods, reason = "times of steps are those of the host's clock")]
fn now_micros() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

fn milliseconds(facts: &ExitFacts, since: i64) -> f64 {
    (facts.steps[0].started_at.as_micros() - since) as f64 / 1000.0
}

/// Whoever asked for work is who redeemed the token.
fn one_agent(rig: &Rig) -> bool {
    let inner = rig.farm.lock();
    inner.asked.iter().all(|nonce| *nonce == inner.nonces[0])
}

#[tokio::test]
async fn a_machine_that_waits_stands_before_the_job_and_the_first_step_runs_in_it() {
    need_sandbox!();
    // Cold: the job is there, and its machine is made for it.
    let cold = Rig::new(AGENT).await;
    let asked = now_micros();
    cold.run(&["true"]).await;
    let cold_facts = cold.farm.facts().await;
    cold.end().await;

    // Warm: the machine stands, its agent asks, and only then is there a job.
    let rig = Rig::new(AGENT).await;
    rig.provider.create(&rig.waiting_machine()).await.unwrap();
    rig.farm.until("a question for work", |inner| inner.asked.first().cloned()).await;
    let seen = rig.provider_list().await;
    assert!(
        seen.iter().any(|machine| machine.runner == rig.runner && machine.state == ObservedState::Running)
    );
    assert!(rig.farm.lock().nonces.is_empty(), "nothing is redeemed before there is work");
    let offered = now_micros();
    rig.offer(shell(&["echo ran > /work/mark; hostname"]));
    let facts = rig.farm.facts().await;
    assert_eq!(facts.steps[0].exit_code, Some(0), "{facts:?}");
    assert!(rig.folder().join("work/mark").exists(), "the step ran in the machine that waited");
    assert!(one_agent(&rig), "one agent asked and redeemed");
    println!(
        "job to first step: {:.0} ms in a machine that waited, {:.0} ms with one made for it (sandbox, image of the host)",
        milliseconds(&facts, offered),
        milliseconds(&cold_facts, asked)
    );
    // It takes exactly one job: its agent is over.
    rig.farm
        .until("the end of the agent", |_| rig.folder().join("agent/finished").exists().then_some(()))
        .await;
    rig.end().await;
}

#[tokio::test]
async fn an_agent_that_is_killed_while_it_waits_asks_again_as_the_same_one() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.provider.create(&rig.waiting_machine()).await.unwrap();
    rig.farm.until("a question for work", |inner| inner.asked.first().cloned()).await;
    rig.kill_agent().await;
    rig.farm.lock().asked.clear();
    rig.watched(rig.farm.until("a question after the restart", |inner| inner.asked.first().cloned())).await;
    rig.offer(shell(&["true"]));
    let facts = rig.facts_of_a_watched_machine().await;
    assert_eq!(facts.steps[0].exit_code, Some(0), "{facts:?}");
    assert!(one_agent(&rig), "one agent asked and redeemed");
    rig.end().await;
}
