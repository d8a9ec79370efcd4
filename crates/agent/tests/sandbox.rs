//! Claims about jobs in real containers on this host. The farm is simulated; everything else is real.
//!
//! Needs root, `runc` and `conmon`; elsewhere each test prints `SKIPPED`, or fails if `FORGEYARD_REQUIRE_SANDBOX` is set.

mod farm;
mod rig;

use rig::Rig;

const AGENT: &str = env!("CARGO_BIN_EXE_forgeyard-agent");

#[tokio::test]
async fn steps_run_in_order_and_the_first_failure_ends_the_job() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.run(&["echo one > /work/x", "cat /work/x; exit 7", "echo never"]).await;
    let facts = rig.farm.facts().await;
    let codes: Vec<_> = facts.steps.iter().map(|step| (step.exit_code, step.signal)).collect();
    assert_eq!(codes, [(Some(0), None), (Some(7), None)]);
    assert_eq!(facts.supervisor_error, None);
    assert_eq!(facts.limit, None);
    assert!(facts.cpu_micros.unwrap() > 0 && facts.peak_memory_bytes.unwrap() > 0);
    let log = rig.farm.log_text();
    assert_eq!(log, "[forgeyard] preparing inputs\n[forgeyard] step 1 of 3: step-0\n[forgeyard] step 2 of 3: step-1\none\n");
    assert_eq!(rig.farm.lock().nonces.len(), 1);
    rig.end().await;
}
