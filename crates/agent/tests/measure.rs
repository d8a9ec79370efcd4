//! Figures, not claims: what a step in a sandbox costs beside the bare runtime. Run by hand:
//! `cargo test -p forgeyard-agent --test measure -- --ignored --nocapture`, or by `cargo xtask bench`, which collects the
//! lines of JSON.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod farm;
mod rig;

use forgeyard_providers::Provider as _;
use rig::Rig;
use std::process::Command;
use std::time::{Duration, Instant};

const ROUNDS: usize = 10;

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

#[tokio::test]
#[ignore = "prints figures"]
async fn sandbox_beside_bare_runtime() {
    need_sandbox!();
    let (mut first_byte, mut gone, mut whole, mut bare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let rig = Rig::new(env!("CARGO_BIN_EXE_forgeyard-agent")).await;
        rig.offer(rig::shell(&["date +%s%N > /out/begin"]));
        let wall = std::time::UNIX_EPOCH;
        let begin = Instant::now();
        #[allow(clippy::disallowed_methods, reason = "compared with the job's own clock")]
        let asked = std::time::SystemTime::now().duration_since(wall).unwrap();
        rig.provider_create().await;
        rig.farm.facts().await;
        whole.push(begin.elapsed());
        let text = std::fs::read_to_string(rig.folder().join("out/begin")).unwrap();
        first_byte.push(Duration::from_nanos(text.trim().parse().unwrap()) - asked);

        // The same bundle, without monitor, agent and farm.
        let bundle = rig.folder().join("bundles/0");
        let state = rig.run.join("bare");
        let begin = Instant::now();
        let mut command = Command::new("runc");
        command.arg("--root").arg(&state).args(["run", "-b"]).arg(&bundle).arg("bare");
        assert!(command.output().unwrap().status.success());
        bare.push(begin.elapsed());

        let begin = Instant::now();
        rig.provider.destroy(rig.runner).await.unwrap();
        gone.push(begin.elapsed());
    }
    let bare = median(bare);
    let figure = |text: &str, value: f64, aim: Option<f64>| {
        let line = serde_json::json!({
            "figure": text,
            "value": value,
            "unit": "ms",
            "peer": "bare `runc run`, whole",
            "peer_value": bare,
            "aim": aim.map(|_| "at most"),
            "aim_value": aim,
        });
        println!("{line}");
    };
    figure("sandbox: request → first step", median(first_byte), Some(1000.0));
    figure("sandbox: request → reported end", median(whole), None);
    figure("sandbox: destroy until nothing is left", median(gone), None);
}
