//! Persisted spellings. A changed one strands rows that exist: change it only together with a migration.

use forgeyard_db::testing::samples::Samples;
use std::collections::{BTreeMap, BTreeSet};

const SPELLINGS: &str = "\
artifact.kind: conda_package environment_lock plan report source
artifact.lane: fork_pr protected same_repo_pr
attempt.state: ended placed running starting
attempt.token: closed redeemed unused
delivery.state: rejected settled started stored
demand.state: ended held launching refused running unread waiting wanted withdrawn
device.state: leased quarantined ready resetting verifying
effect.effect: deregister fetch_source inspect_package look_up_run make_environment mint_runner promote read_job read_plan repeat_jobs
environment.state: failed ready requested
job.kind: build plan runner test
job.outcome: canceled failed lost succeeded timed_out
job.state: ended held placed queued running starting
job.waits_for: approval artifacts inspection retry source
lease.state: claimed ended held releasing written_off
pipeline.lane: fork_pr protected same_repo_pr
pipeline.state: canceled environment failed promoting running succeeded
pool.breaker: closed half_open open probing
runner.state: booting busy creating deleted deleting draining failed kept leaving ready registered requested
token.principal: agent farm person site token";

#[test]
fn states_are_spelled_as_rows_that_exist_spell_them() {
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut samples = Samples::new();
    for _ in 0..500 {
        for row in samples.farm() {
            let json = serde_json::to_value(&row).unwrap();
            for field in ["state", "token", "waits_for", "outcome", "effect", "kind", "lane", "breaker"] {
                // A digest is no state.
                if let Some(text) = json[field].as_str().filter(|text| !text.contains(':')) {
                    seen.entry(format!("{}.{field}", row.kind())).or_default().insert(text.to_owned());
                }
            }
            if let Some(kind) = json["principal"]["kind"].as_str() {
                seen.entry("token.principal".to_owned()).or_default().insert(kind.to_owned());
            }
        }
    }
    let lines: Vec<String> = seen
        .into_iter()
        .map(|(name, texts)| format!("{name}: {}", texts.into_iter().collect::<Vec<_>>().join(" ")))
        .collect();
    assert_eq!(lines.join("\n"), SPELLINGS);
}
