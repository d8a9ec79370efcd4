//! What happens: the real starts of one afternoon, and what is *modelled* around them.
//!
//! The trace has start, name and conclusion of each job (see the README of the corpus). Everything else is made up here, from
//! a seed: durations, labels, repositories, runs, commits, people and cancels.

use forgeyard_testkit::rng::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A job start of the trace.
#[derive(Debug, Clone)]
pub struct Start {
    /// Seconds since the first one.
    pub at: u64,
    pub job: String,
    pub success: bool,
}

/// A kind of job, with its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Small,
    Large,
    Gpu,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Small, Self::Large, Self::Gpu];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
            Self::Gpu => "gpu",
        }
    }

    /// The label that its jobs ask for, which no other kind offers.
    pub fn label(self) -> String {
        format!("linux-{}", self.name())
    }

    /// *Modelled*: by words in the name of the job.
    fn of(job: &str) -> Self {
        let job = job.to_ascii_lowercase();
        let any = |words: &[&str]| words.iter().any(|word| job.contains(word));
        if any(&["cuda", "gpu", "rocm", "nvidia"]) && !job.contains("build") {
            Self::Gpu
        } else if any(&["build", "linux", "win", "mac", "test"]) {
            Self::Large
        } else {
            Self::Small
        }
    }

    /// *Modelled*: median in seconds and spread of its durations, which are log-normal.
    const fn duration(self) -> (f64, f64) {
        match self {
            Self::Small => (40.0, 0.5),
            Self::Large => (420.0, 0.7),
            Self::Gpu => (540.0, 0.6),
        }
    }
}

/// A run to start.
#[derive(Debug, Clone)]
pub struct Plan {
    pub at: Duration,
    /// Place of its repository.
    pub repository: usize,
    /// Place of the person who starts it; none is a stranger, whom no grant names.
    pub person: Option<usize>,
    /// Its commit, 40 hexadecimal digits.
    pub head: String,
    pub jobs: Vec<(String, Kind, Duration, bool)>,
    /// After how long somebody cancels it.
    pub cancel: Option<Duration>,
}

/// Repositories and people of the model.
pub const REPOSITORIES: usize = 12;
pub const PEOPLE: usize = 20;
/// Jobs of one run, at most.
const RUN: usize = 20;
/// A repository gets a new commit so often, if anything runs there at all; runs that begin meanwhile are of the last one.
const COMMIT: Duration = Duration::from_secs(300);
/// Runs in a thousand that somebody cancels, and that a stranger starts.
const CANCELLED: u64 = 40;
const STRANGERS: u64 = 5;

/// Reads the trace of a corpus.
pub fn read(corpus: &Path) -> Vec<Start> {
    let file = corpus.join("traces/pytorch-jobs-2024-08-14.csv.gz");
    let output = Command::new("gzip").arg("-dc").arg(&file).output().unwrap();
    assert!(output.status.success(), "{} cannot be read", file.display());
    let text = String::from_utf8(output.stdout).unwrap();
    let mut starts: Vec<Start> = text.lines().skip(1).map(|line| start(&fields(line))).collect();
    starts.sort_by_key(|start| start.at);
    let first = starts.first().map_or(0, |start| start.at);
    starts.iter_mut().for_each(|start| start.at -= first);
    starts
}

/// Starts like those of the trace, for machines without it: bursts of one to thirty jobs.
pub fn made_up(count: usize, seed: u64) -> Vec<Start> {
    let mut rng = Rng::new(seed);
    let names =
        ["lintrunner / linux-job", "linux-focal-py3.11 / build", "linux-focal-cuda12.1 / test", "assign"];
    let mut starts = Vec::new();
    let mut at = 0;
    while starts.len() < count {
        for _ in 0..=rng.below(30).min(count - starts.len() - 1) {
            let job = (*rng.pick(&names).unwrap()).to_owned();
            starts.push(Start { at, job, success: rng.chance(96) });
        }
        at += 1 + rng.below(28) as u64;
    }
    starts
}

fn start(fields: &[String]) -> Start {
    let [time, job, _, conclusion] = fields else {
        panic!("a line of the trace has {} fields", fields.len())
    };
    let number = |from: usize, to: usize| time[from..to].parse::<u64>().unwrap();
    // All of it is one day.
    let at = number(8, 10) * 86_400 + number(11, 13) * 3600 + number(14, 16) * 60 + number(17, 19);
    Start { at, job: job.clone(), success: conclusion == "success" }
}

/// Fields of a line of comma-separated values, each in double quotes.
fn fields(line: &str) -> Vec<String> {
    let (mut all, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(std::mem::take(&mut field)),
            letter => field.push(letter),
        }
    }
    all.push(field);
    all
}

/// Makes runs of the starts: those of one second are up to [`RUN`] jobs of one run. `load` presses time together.
pub fn plans(starts: &[Start], load: u32, seed: u64) -> Vec<Plan> {
    let mut rng = Rng::new(seed);
    let mut seconds: BTreeMap<u64, Vec<&Start>> = BTreeMap::new();
    for start in starts {
        seconds.entry(start.at).or_default().push(start);
    }
    let mut plans = Vec::new();
    let mut heads: BTreeMap<usize, (Duration, u64)> = BTreeMap::new();
    for (at, starts) in seconds {
        let at = Duration::from_secs(at);
        for chunk in starts.chunks(RUN) {
            let jobs = chunk.iter().enumerate().map(|(place, start)| {
                let kind = Kind::of(&start.job);
                let (median, spread) = kind.duration();
                let seconds = median * (spread * normal(&mut rng)).exp();
                let duration = Duration::from_secs_f64(seconds.clamp(5.0, 5400.0));
                (format!("{} ({place})", start.job), kind, duration, start.success)
            });
            let jobs = jobs.collect();
            let cancel =
                (rng.next_u64() % 1000 < CANCELLED).then(|| Duration::from_secs(1 + rng.below(900) as u64));
            let stranger = rng.next_u64() % 1000 < STRANGERS;
            let repository = rng.below(REPOSITORIES);
            let (since, head) = heads.entry(repository).or_insert_with(|| (at, rng.next_u64()));
            if at.saturating_sub(*since) >= COMMIT {
                (*since, *head) = (at, rng.next_u64());
            }
            plans.push(Plan {
                at: at / load,
                repository,
                head: format!("{head:040x}"),
                person: (!stranger).then(|| rng.below(PEOPLE)),
                jobs,
                // Nobody approves; somebody gives up in the end.
                cancel: if stranger { Some(Duration::from_secs(1800)) } else { cancel },
            });
        }
    }
    plans
}

/// A number of the standard normal distribution (Box and Muller 1958).
fn normal(rng: &mut Rng) -> f64 {
    let mut unit = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let (one, two) = (unit().max(1e-12), unit());
    (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * two).cos()
}
