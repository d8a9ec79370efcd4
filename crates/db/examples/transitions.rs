//! Durable transitions per second, by size of batch, against a floor: as many appends of the same bytes to a file, each
//! batch ended by one `fdatasync`.
//!
//! A transition here is what a running job does most: job, attempt and runner change state; one journal entry, three
//! events, one usage fact. `--seconds N` sets how long each figure is measured; `--figures` prints lines of JSON for
//! the table of `cargo xtask bench`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark stops at the first error and prints"
)]

use forgeyard_db::testing::postgres;
use forgeyard_db::testing::samples::Samples;
use forgeyard_db::twin::Twin;
use forgeyard_db::{Batch, Store};
use forgeyard_model::attempt::Attempt;
use forgeyard_model::commit::{Commit, Row};
use forgeyard_model::job::Job;
use forgeyard_model::runner::Runner;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZES: [usize; 4] = [1, 16, 64, 256];
/// Jobs that take turns.
const JOBS: usize = 300;

/// A farm whose jobs change state one after the other.
struct Load {
    samples: Samples,
    threes: Vec<(Job, Attempt, Runner)>,
    next: usize,
}

impl Load {
    async fn begin(store: &dyn Store) -> Load {
        let mut samples = Samples::new();
        let site = samples.site();
        let delivery = samples.delivery();
        let pipeline = samples.pipeline(&delivery);
        let mut rows: Vec<Row> = vec![site.clone().into(), delivery.into(), pipeline.clone().into()];
        let mut threes = Vec::new();
        for _ in 0..JOBS {
            let job = samples.job(&pipeline);
            let id = samples.id();
            let runner = samples.runner(&site, id);
            let attempt = samples.attempt(&job, &runner, 1);
            rows.extend([job.clone().into(), runner.clone().into(), attempt.clone().into()] as [Row; 3]);
            threes.push((job, attempt, runner));
        }
        let commits = vec![samples.commit(rows)];
        store.commit(&Batch { epoch: 0, commits, bodies: Vec::new() }).await.unwrap();
        Load { samples, threes, next: 0 }
    }

    fn transition(&mut self) -> Commit {
        let place = self.next % self.threes.len();
        self.next += 1;
        let (job, attempt, runner) = &mut self.threes[place];
        job.generation += 1;
        attempt.generation += 1;
        runner.generation += 1;
        let rows = vec![job.clone().into(), attempt.clone().into(), runner.clone().into()];
        self.samples.commit(rows)
    }

    fn batch(&mut self, size: usize) -> Batch {
        let commits = (0..size).map(|_| self.transition()).collect();
        Batch { epoch: 0, commits, bodies: Vec::new() }
    }
}

/// Transitions per second; making the batches is not counted.
async fn measure(store: &dyn Store, load: &mut Load, size: usize, time: Duration) -> f64 {
    let (mut spent, mut done) = (Duration::ZERO, 0_u32);
    while spent < time {
        let batch = load.batch(size);
        let begun = Instant::now();
        store.commit(&batch).await.unwrap();
        spent += begun.elapsed();
        done += u32::try_from(size).unwrap();
    }
    f64::from(done) / spent.as_secs_f64()
}

fn floor(folder: &Path, load: &mut Load, size: usize, time: Duration) -> f64 {
    let mut file = std::fs::File::create(folder.join("floor")).unwrap();
    let (mut spent, mut done) = (Duration::ZERO, 0_u32);
    while spent < time {
        let texts: Vec<String> =
            load.batch(size).commits.iter().map(|commit| serde_json::to_string(commit).unwrap()).collect();
        let begun = Instant::now();
        for text in &texts {
            file.write_all(text.as_bytes()).unwrap();
        }
        file.sync_data().unwrap();
        spent += begun.elapsed();
        done += u32::try_from(size).unwrap();
    }
    f64::from(done) / spent.as_secs_f64()
}

/// The figures of the two real databases, by size of batch. The core stores what waits together, up to 256 decisions, so
/// the aim is for what a busy farm does.
fn figures(rows: &[(&str, Vec<f64>)], of_floor: &[f64]) {
    for (name, rates) in rows.iter().filter(|(name, _)| matches!(*name, "SQLite" | "PostgreSQL")) {
        for ((size, rate), floor) in SIZES.iter().zip(rates).zip(of_floor) {
            let aim = (*size >= 64).then_some(("at least", 2000.0));
            let line = serde_json::json!({
                "figure": format!("durable transitions, {name}, {size} in a commit"),
                "value": rate,
                "unit": "/s",
                "peer": "append + fdatasync",
                "peer_value": floor,
                "aim": aim.map(|aim| aim.0),
                "aim_value": aim.map(|aim| aim.1),
            });
            println!("{line}");
        }
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut args = std::env::args().skip_while(|arg| arg != "--seconds").skip(1);
    let time = Duration::from_secs_f64(args.next().and_then(|text| text.parse().ok()).unwrap_or(2.0));
    let folder = tempfile::tempdir().unwrap();
    let mut rows: Vec<(&str, Vec<f64>)> = Vec::new();

    let mut of_floor = Vec::new();
    let mut load = Load::begin(&Twin::new()).await;
    for size in SIZES {
        of_floor.push(floor(folder.path(), &mut load, size, time));
    }
    rows.push(("floor: append and fdatasync", of_floor.clone()));

    let mut stores: Vec<(&str, Arc<dyn Store>)> =
        vec![("SQLite", forgeyard_db::open("sqlite:", folder.path()).await.unwrap())];
    let schema = postgres::schema().await;
    if let Some(schema) = &schema {
        stores.push(("PostgreSQL", forgeyard_db::open(&schema.url, folder.path()).await.unwrap()));
    }
    stores.push(("twin (in memory, not durable)", Arc::new(Twin::new())));
    for (name, store) in stores {
        let mut load = Load::begin(&*store).await;
        let mut figures = Vec::new();
        for size in SIZES {
            figures.push(measure(&*store, &mut load, size, time).await);
        }
        rows.push((name, figures));
        store.close().await;
    }

    if std::env::args().any(|arg| arg == "--figures") {
        return figures(&rows, &of_floor);
    }
    println!("durable transitions per second by batch size (in brackets: part of the floor)");
    print!("{:<32}", "");
    for size in SIZES {
        print!("{size:>18}");
    }
    println!();
    for (name, figures) in rows {
        print!("{name:<32}");
        for (figure, floor) in figures.iter().zip(&of_floor) {
            print!("{:>18}", format!("{figure:.0} ({:.2})", figure / floor));
        }
        println!();
    }
}
