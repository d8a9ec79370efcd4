//! A slice of the replayed afternoon as an ordinary test; the whole of it is `cargo xtask replay`.

#[path = "replay/mod.rs"]
mod replay;

use replay::{HEADING, Report, Settings, play, trace};
use std::path::PathBuf;

fn held(report: &Report) {
    println!("{}", report.text);
    assert!(report.broken.is_empty(), "{}", report.text);
}

fn slice(count: usize) -> Option<Vec<trace::Start>> {
    let Some(corpus) = std::env::var_os("FORGEYARD_CORPUS").map(PathBuf::from) else {
        println!("SKIPPED: FORGEYARD_CORPUS is not set");
        return None;
    };
    let all = trace::read(&corpus);
    assert_eq!(all.len(), 18_953);
    Some(all.into_iter().take(count).collect())
}

#[test]
fn made_up_afternoon_with_faults_loses_nothing() {
    println!("{HEADING}");
    let starts = trace::made_up(250, 7);
    held(&play(&starts, &Settings { title: "made-up starts", capacity: 20, ..Settings::default() }));
}

#[test]
fn thousand_real_starts_with_faults_on_every_source_lose_nothing() {
    let Some(starts) = slice(1000) else { return };
    println!("{HEADING}");
    held(&play(&starts, &Settings { title: "a thousand starts", ..Settings::default() }));
}
