//! Figures of a control plane, over real HTTP on loopback: `figures PART`.
//!
//! Each figure is one line of JSON, which `cargo xtask bench` collects into its table: what was measured, a peer or
//! floor that was measured in the same run, and the aim.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark stops at the first error and prints"
)]

mod artifacts;
mod decisions;
mod front;
mod hub;
mod plane;
mod restart;
mod site;
mod webhooks;

use std::time::Duration;

/// Prints one figure.
fn figure(text: &str, value: f64, unit: &str, peer: Option<(&str, f64)>, aim: Option<(&str, f64)>) {
    let line = serde_json::json!({
        "figure": text,
        "value": value,
        "unit": unit,
        "peer": peer.map(|peer| peer.0),
        "peer_value": peer.map(|peer| peer.1),
        "aim": aim.map(|aim| aim.0),
        "aim_value": aim.map(|aim| aim.1),
    });
    println!("{line}");
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The time that this part of all stayed below, in milliseconds.
fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    times.get((times.len() * percent / 100).min(last)).map_or(f64::NAN, |time| millis(*time))
}

#[tokio::main]
async fn main() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    match std::env::args().nth(1).as_deref() {
        Some("webhooks") => webhooks::measure().await,
        Some("restart") => restart::measure().await,
        Some("artifacts") => artifacts::measure().await,
        Some("burst") => front::burst().await,
        Some("create") => front::create().await,
        Some("decisions") => decisions::measure(),
        _ => eprintln!("usage: figures webhooks | burst | create | decisions | restart | artifacts"),
    }
}
