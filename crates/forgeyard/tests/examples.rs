//! The broken examples, each through `forgeyard run` against a farm of its own test: they end as their README says.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails")]

mod chain;

use chain::{Life, PROGRAM, Place, possible, rows::Rows, traces};
use forgeyard_api::client::{Client, HttpOptions};
use forgeyard_api::people::{PipelineView, Why};
use forgeyard_model::job::{Job, JobState};
use forgeyard_model::pipeline::PipelineState;
use forgeyard_model::verdict::Outcome;
use forgeyard_model::{JobId, PipelineId, Secret};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Memory of a build here: enough for a small build, and soon full.
const MEMORY_MIB: u64 = 512;
/// Time limit of a job here. Long enough for a small build on a busy host.
const SECONDS: u64 = 40;

struct Farm<'p> {
    place: &'p Place,
    url: String,
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Farm<'_> {
    fn start(place: &Place) -> (Life, Farm<'_>) {
        std::fs::create_dir_all(&place.data).unwrap();
        let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let flavors: String = [("small", ""), ("build", ""), ("gpu", "gpu = { count = 1 }")]
            .iter()
            .map(|(name, gpu)| {
                format!(
                    "[[flavors]]\nname = \"{name}\"\ncpu-millis = 1000\nmemory-mib = {MEMORY_MIB}\n\
                     disk-mib = 2048\ntime-limit-seconds = {SECONDS}\n{gpu}\n\n"
                )
            })
            .collect();
        let config = place.data.join("forgeyard.toml");
        std::fs::write(&config, format!("listen = \"{listen}\"\n\n{flavors}")).unwrap();
        let (data, config) = (place.data.display().to_string(), config.display().to_string());
        let mut life = place.start(&["up", "--data", &data, "--config", &config]);
        let token = place.data.join("admin.token");
        while std::net::TcpStream::connect(listen).is_err() || !token.exists() {
            assert!(life.over().is_none(), "the farm ended:\n{}", place.said());
            std::thread::sleep(Duration::from_millis(20));
        }
        let secret = Secret::new(std::fs::read_to_string(&token).unwrap().trim());
        let url = format!("http://{listen}");
        let client = Client::new(&url, Some(secret), &HttpOptions::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        (life, Farm { place, url, client, runtime })
    }

    /// A request by the command line: its exit code, and all that it said.
    fn ask(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(PROGRAM)
            .args(arguments)
            .args(["--farm", &self.url, "--token-file"])
            .arg(self.place.data.join("admin.token"))
            .env_remove("FORGEYARD_TOKEN")
            .output()
            .unwrap();
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        (output.status.code(), said)
    }

    /// Runs a broken example by the command line, to its end.
    fn run(&self, example: &str) -> (PipelineView, String) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/broken").join(example);
        let (code, said) = self.ask(&["run", &folder.display().to_string()]);
        println!("{example}:\n{said}");
        assert_eq!(code, Some(1), "{example} is broken");
        let mut words = said.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let id = words.find_map(|word| word.parse::<PipelineId>().ok());
        (self.view(id.expect("`run` names its pipeline")), said)
    }

    fn view(&self, id: PipelineId) -> PipelineView {
        self.runtime.block_on(self.client.pipeline(id)).unwrap()
    }

    fn why(&self, job: JobId) -> Why {
        self.runtime.block_on(self.client.why(job)).unwrap()
    }
}

fn job<'v>(view: &'v PipelineView, key: &str) -> &'v Job {
    view.jobs.iter().find(|job| job.key == key).unwrap_or_else(|| {
        panic!("no job {key} among {:?}", view.jobs.iter().map(|job| &job.key).collect::<Vec<_>>())
    })
}

fn ended(job: &Job) -> Outcome {
    let JobState::Ended { outcome } = job.state else { panic!("{} is {}", job.key, job.state.name()) };
    outcome
}

/// Why the pipeline failed, with the reason of its plan job where that is what failed.
fn reasons(farm: &Farm<'_>, view: &PipelineView) -> String {
    let PipelineState::Failed { reason } = &view.pipeline.state else {
        panic!("the pipeline is {}", view.pipeline.state.name())
    };
    let why = farm.why(job(view, "plan").id);
    let lines: String = why.lines.iter().map(|line| format!("{}\n", line.text)).collect();
    format!("{reason}\n{}\n{lines}", why.reason)
}

fn a_cycle_fails_the_pipeline_and_its_outputs_are_named(farm: &Farm<'_>) {
    let (view, said) = farm.run("cycle");
    let reasons = reasons(farm, &view);
    println!("{reasons}");
    for word in ["cycle", "hen", "egg"] {
        assert!(reasons.contains(word), "`{word}` is not in: {reasons}");
    }
    assert_eq!(job(&view, "plan").fence, 1, "a recipe that is wrong is not tried again");
    assert!(said.contains("failed"), "`run` says how it ended");
}

fn an_unknown_output_is_named(farm: &Farm<'_>) {
    let (view, _) = farm.run("unknown-output");
    let reasons = reasons(farm, &view);
    println!("{reasons}");
    assert!(reasons.contains("`known`") && reasons.contains("`unknown`"), "{reasons}");
    assert!(view.jobs.iter().all(|job| job.key == "plan"), "nothing is built");
}

fn a_failing_test_is_never_tried_again_and_runs_again_alone_when_asked(farm: &Farm<'_>) {
    let (view, _) = farm.run("failing-test");
    let test = job(&view, "test/failing-test");
    assert_eq!(ended(test), Outcome::Failed);
    assert_eq!((test.fence, test.retries), (1, 0), "a failure of a test is never tried again");
    let why = farm.why(test.id);
    println!("{}\n{:?}", why.reason, why.lines);
    assert!(
        why.lines.iter().any(|line| line.text.contains("expected 42 and found 41")),
        "the decisive line is missing: {:?}",
        why.lines
    );
    assert!(why.next.contains("not retried"), "{}", why.next);

    let build = job(&view, "build/failing-test");
    let (code, said) = farm.ask(&["job", "rerun", &build.id.to_string(), "--test-only"]);
    assert_eq!(code, Some(3), "--test-only must refuse a build: {said}");
    let (code, said) = farm.ask(&["job", "rerun", &test.id.to_string(), "--test-only"]);
    assert_eq!(code, Some(0), "{said}");
    let again = loop {
        let view = farm.view(view.pipeline.id);
        if view.pipeline.state.ended() {
            break view;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let (first, second) = (job(&view, "test/failing-test"), job(&again, "test/failing-test"));
    assert_eq!((second.fence, ended(second)), (2, Outcome::Failed));
    assert_eq!(job(&again, "build/failing-test").fence, 1, "the build was not run again");
    let subject = |job: &Job| job.spec.as_ref().and_then(|spec| spec.subject.clone()).unwrap();
    assert_eq!(subject(first), subject(second), "the same bytes were tested again");
}

fn a_test_that_does_not_use_its_gpu_is_not_green(farm: &Farm<'_>) {
    let (view, _) = farm.run("unused-gpu");
    let test = view.jobs.iter().find(|job| job.key.starts_with("test/unused-gpu")).unwrap();
    assert_eq!(ended(test), Outcome::Failed);
    let verdict = test.verdict.as_ref().unwrap();
    println!("{}", verdict.cause);
    assert!(verdict.cause.starts_with("DeviceUnused"), "{}", verdict.cause);
    assert_eq!(test.fence, 1);
}

fn a_build_that_takes_all_memory_is_told_peak_limit_and_victim(farm: &Farm<'_>) {
    let (view, _) = farm.run("out-of-memory");
    let build = job(&view, "build/out-of-memory");
    assert_eq!(ended(build), Outcome::Failed);
    let verdict = build.verdict.as_ref().unwrap();
    println!("{}", verdict.cause);
    assert_eq!(verdict.class.as_deref(), Some("host.oom"), "{}", verdict.cause);
    let attempt = view.attempts.iter().find(|attempt| attempt.job == build.id).unwrap();
    let oom = attempt.facts.as_ref().and_then(|facts| facts.oom.as_ref()).unwrap();
    assert!(oom.kills >= 1);
    assert_eq!(oom.limit_bytes, MEMORY_MIB << 20);
    assert!(oom.peak_bytes > oom.limit_bytes / 2 && oom.peak_bytes <= oom.limit_bytes, "{oom:?}");
    assert!(verdict.cause.contains("512 MiB"), "{}", verdict.cause);
    match &oom.victim {
        Some(victim) => assert!(victim.contains("python"), "{victim}"),
        // Where this user may not read the kernel's log, nobody knows.
        None => assert!(!kernel_log_can_be_read(), "the victim is not named"),
    }
}

fn kernel_log_can_be_read() -> bool {
    let Ok(output) = Command::new("dmesg").output() else { return false };
    String::from_utf8_lossy(&output.stdout).contains("oom")
}

fn an_endless_build_ends_at_its_time_limit(farm: &Farm<'_>) {
    let (view, _) = farm.run("endless");
    let build = job(&view, "build/endless");
    assert_eq!(ended(build), Outcome::TimedOut);
    let verdict = build.verdict.as_ref().unwrap();
    println!("{}", verdict.cause);
    assert_eq!(verdict.class.as_deref(), Some("limit.wall"), "{}", verdict.cause);
    assert_eq!(build.fence, 1, "a time limit is not tried again");
}

/// A claim about the farm and its name.
type Claim = (&'static str, fn(&Farm<'_>));

macro_rules! claims {
    ($($name:ident),* $(,)?) => { [$((stringify!($name), $name as fn(&Farm<'_>))),*] };
}

#[test]
fn broken_examples_end_as_their_readme_says() {
    if !possible() {
        return;
    }
    let claims: [Claim; 6] = claims![
        a_cycle_fails_the_pipeline_and_its_outputs_are_named,
        an_unknown_output_is_named,
        a_failing_test_is_never_tried_again_and_runs_again_alone_when_asked,
        a_test_that_does_not_use_its_gpu_is_not_green,
        a_build_that_takes_all_memory_is_told_peak_limit_and_victim,
        an_endless_build_ends_at_its_time_limit,
    ];
    let place = Place::new();
    let (life, farm) = Farm::start(&place);
    let farm = &farm;
    let broken: Vec<&str> = std::thread::scope(|scope| {
        let started = claims.map(|(name, claim)| (name, scope.spawn(move || claim(farm))));
        started.into_iter().filter_map(|(name, thread)| thread.join().is_err().then_some(name)).collect()
    });
    // At rest, so that what is left is really left.
    loop {
        let status = farm.runtime.block_on(farm.client.status()).unwrap();
        let leases = farm.runtime.block_on(farm.client.leases()).unwrap();
        if status.runners.is_empty() && leases.iter().all(|lease| !lease.state.live()) {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let ended = life.stop(&place);
    assert!(ended.success(), "{ended}\n{}", place.said());
    let rows = Rows::read(&place.data);
    assert_eq!(rows.broken(), Vec::<String>::new());
    assert_eq!(traces::of(&place.data, &rows.machines()), Vec::<String>::new());
    assert_eq!(broken, Vec::<&str>::new(), "\n{}", place.said());
}
