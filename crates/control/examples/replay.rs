//! The whole afternoon: `cargo xtask replay [SEED [STARTS [PLAY]]]`.
//!
//! Four plays on one clock each: the afternoon with faults on every source and a control plane that is killed; a part of it
//! with webhooks off; a part at ten times the load; and a part with half of the machines. Ends with 1 when a promise is
//! broken. Without the trace it says so and plays nothing.

/// A fifth of the time of a play went into malloc and free of the C library.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[path = "../tests/replay/mod.rs"]
mod replay;

use replay::{HEADING, Settings, play, trace};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(corpus) = std::env::var_os("FORGEYARD_CORPUS").map(PathBuf::from) else {
        println!("SKIPPED: FORGEYARD_CORPUS is not set");
        return ExitCode::SUCCESS;
    };
    let argument = |place| std::env::args().nth(place).and_then(|text| text.parse::<usize>().ok());
    let (seed, count) = (argument(1).unwrap_or(1) as u64, argument(2).unwrap_or(usize::MAX));
    let starts = trace::read(&corpus);
    let part = |of: usize| &starts[..of.min(count).min(starts.len())];
    println!("{HEADING}");
    let base = || Settings { seed, ..Settings::default() };
    let plays = [
        (part(usize::MAX), base()),
        (part(1500), Settings { title: "webhooks off", webhooks: false, crashes: 1, ..base() }),
        (part(1500), Settings { title: "ten times the load", load: 10, crashes: 1, ..base() }),
        (part(1000), Settings { title: "a fifth of the machines", capacity: 20, crashes: 0, ..base() }),
    ];
    let told = |(starts, settings): &(&[trace::Start], Settings)| {
        let report = play(starts, settings);
        println!("{}", report.text);
        report.broken.len()
    };
    let begin = std::time::Instant::now();
    if let Some(play) = argument(3).and_then(|number| plays.get(number)) {
        return if told(play) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    // Each play has a clock, a farm and a thread of its own; the first one is the longest, the others take turns beside it.
    let [first, others @ ..] = &plays;
    let broken: usize = std::thread::scope(|scope| {
        let beside = scope.spawn(|| others.iter().map(told).sum::<usize>());
        let first = told(first);
        // A play that panics has failed, and says why by itself.
        first + beside.join().unwrap_or(1)
    });
    println!("{:.1} s of wall time; promises broken: {broken}", begin.elapsed().as_secs_f64());
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
