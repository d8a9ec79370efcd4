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

/// A play that broke a promise can be played again. Threads, real timers and wakers in random order are what would spoil it.
#[test]
fn plays_of_one_seed_go_the_same_way_each_time() {
    let starts = trace::made_up(120, 5);
    let seen = || {
        let settings = Settings { title: "the same", capacity: 20, crashes: 1, ..Settings::default() };
        let report = play(&starts, &settings);
        // The time on the wall is the only thing that may differ.
        let told = report.text.lines().filter(|line| !line.contains(" simulated in "));
        told.map(str::to_owned).collect::<Vec<_>>()
    };
    let first = seen();
    assert!(first.iter().any(|line| line.contains("calls to the forge")), "{first:?}");
    assert_eq!(first, seen());
}

#[test]
fn real_starts_with_faults_on_every_source_lose_nothing() {
    let Some(starts) = slice(600) else { return };
    println!("{HEADING}");
    held(&play(&starts, &Settings { title: "a slice", ..Settings::default() }));
}

/// Row 16: ARC #206. Minting, whose work it is, polls of queues and of runs, lists of deliveries: all of it, over all jobs.
#[test]
fn a_job_costs_at_most_three_rest_calls_besides_check_runs_arc_206() {
    let Some(starts) = slice(600) else { return };
    let report = play(
        &starts,
        &Settings { title: "calls of a slice", faults: false, crashes: 0, ..Settings::default() },
    );
    held(&report);
    assert!(report.calls_per_job <= 3.0, "{}", report.text);
}

/// Only polling and the scale set tell of jobs.
#[test]
fn real_starts_without_webhooks_are_all_known_in_five_minutes() {
    let Some(starts) = slice(400) else { return };
    held(&play(
        &starts,
        &Settings { title: "webhooks off", webhooks: false, crashes: 0, ..Settings::default() },
    ));
}

/// taskscaler #25: a restart forgot which instances were busy and deleted them.
#[test]
fn taskscaler_25_restart_with_a_thousand_busy_runners_kills_none() {
    // As fast as one App may register runners; some are canceled, so that there are a few more than a thousand.
    let start = |at| trace::Start { at, job: "linux / test".to_owned(), success: true };
    let starts: Vec<trace::Start> = (0..1120).map(|number| start(number * 2 / 5)).collect();
    let report = play(
        &starts,
        &Settings {
            title: "a thousand busy runners",
            faults: false,
            crashes: 1,
            capacity: 200,
            lasting: Some(std::time::Duration::from_secs(1000)),
            ..Settings::default()
        },
    );
    held(&report);
    println!("{} runners were busy when the control plane was killed", report.busy_at_crash);
    assert!(report.busy_at_crash >= 1000, "{}", report.busy_at_crash);
}
