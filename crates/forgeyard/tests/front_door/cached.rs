//! Jobs of a farm with a build cache: they are told nothing of it, and real ccache and sccache use it.

use crate::door::{By, CLIENTS, Door, LABELS, runner_program};
use forgeyard_model::demand::Demand;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

/// What the agent counted: hits, reads, entries stored.
fn counted(log: &str) -> (u64, u64, u64) {
    let line = log.lines().find(|line| line.contains("reads hit")).unwrap_or_else(|| panic!("{log}"));
    let words: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    (words[0], words[1], words[2])
}

/// One request to the cache itself; its status.
fn ask(cache: &str, method: &str, path: &str, token: &str, body: &str) -> u16 {
    let mut stream = TcpStream::connect(cache).unwrap();
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: cache\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer[9..12].parse().unwrap()
}

/// Whether there is a client of the cache. Says visibly that a test is skipped without one.
fn client() -> bool {
    let found = Path::new("/usr/bin/ccache").is_file() || Path::new(CLIENTS).join("bin/sccache").is_file();
    if !found {
        println!("SKIPPED: neither ccache nor sccache is installed (scripts/install-clients.sh)");
    }
    found
}

/// Runs a job to its end, and answers what the farm has of it, its log, and the token that its agent had.
async fn run(
    door: &Door,
    job: u64,
    before: &[forgeyard_model::RunnerId],
) -> (Demand, String, String, forgeyard_model::RunnerId) {
    let machine = door.machine(before).await;
    let step = door.witness.step().await;
    let state = std::fs::read(door.folder(machine.id).join("agent/state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let (attempt, session) = (text(&state["redeemed"]["attempt"]), text(&state["redeemed"]["session"]));
    let access = door.cache_access(&attempt, &session).await;
    let token = text(&access["token"]);
    assert!(ask(&door.cache, "PUT", "/-/kv/while-it-runs", &token, "x") < 300);
    step.go_on().await;
    let demand = door.demand(job, "ended").await;
    assert_eq!(demand.conclusion.as_deref(), Some("success"), "{}", door.log(&demand).await);
    door.gone(machine.id).await;
    let log = door.log(&demand).await;
    assert!(!log.contains(&token), "the token of the cache is in the log");
    (demand, log, token, machine.id)
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_use_the_cache_by_themselves_forks_read_main_and_tokens_end_with_the_job() {
    let Some(program) = runner_program() else { return };
    if !client() {
        return;
    }
    let door = Door::open(&program, By::Cached).await;
    let (main, mut seen) = (format!("github/{}/main", door.repository), Vec::new());

    let (_, log, first, machine) = run(&door, door.push(door.repository, &LABELS, None), &seen).await;
    println!("cold:\n{log}");
    seen.push(machine);
    let cold = counted(&log);
    assert!(cold.0 == 0 && cold.2 > 0, "{cold:?}");
    assert!(log.contains(&format!("reads and writes {main}")) && log.contains("***"), "{log}");
    let stored = door.cache(&["ls", &main]);
    assert!(
        stored.contains("job_") && stored.contains("github/"),
        "who wrote it, and in which run: {stored}"
    );

    let (_, log, ..) = {
        let run = run(&door, door.push(door.repository, &LABELS, None), &seen).await;
        seen.push(run.3);
        run
    };
    let warm = counted(&log);
    assert!(warm.0 > 0 && warm.0 * 4 >= warm.1 * 3, "three of four files hit: {warm:?}");

    // A fork: what main wrote is there, what it writes is its own.
    let entries = door.cache(&["ls", &main]);
    let (number, job) = door.pull();
    let (_, log, of_fork, machine) = run(&door, job, &seen).await;
    seen.push(machine);
    println!("fork:\n{log}");
    let own = format!("github/{}/pr/{number}", door.repository);
    assert!(log.contains(&format!("reads and writes {own}")), "{log}");
    assert_eq!(counted(&log), warm, "as fast as main");
    assert_eq!(door.cache(&["ls", &main]), entries, "nothing of it is in main");
    assert!(door.cache(&["ls", &own]).contains("while-it-runs"));

    // Tokens are over with their jobs; a fork's never opened anything else.
    for token in [&first, &of_fork] {
        door.until("the token is refused", async || {
            (ask(&door.cache, "PUT", "/-/kv/afterwards", token, "x") == 403).then_some(())
        })
        .await;
        assert_eq!(ask(&door.cache, "GET", "/-/kv/while-it-runs", token, ""), 404);
    }

    // Closed: what it wrote goes.
    door.twin.with(|state| state.close_pull(door.repository, number, &door.stranger));
    door.until("the scope of the closed pull request is empty", async || {
        (!door.cache(&["ls", &own]).contains("while-it-runs")).then_some(())
    })
    .await;
    assert_eq!(door.cache(&["ls", &main]), entries);
    let _ = door.close();
}

/// The authority of the certificate is known to nobody but the farm, which tells its jobs of it.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_use_a_cache_by_tls_whose_authority_the_farm_tells_them_of() {
    let Some(program) = runner_program() else { return };
    if !client() {
        return;
    }
    let door = Door::open(&program, By::Secured).await;
    let mut seen = Vec::new();
    let mut counts = Vec::new();
    for _ in 0..2 {
        let (_, log, _, machine) = run(&door, door.push(door.repository, &LABELS, None), &seen).await;
        seen.push(machine);
        assert!(!log.contains("does not answer"), "{log}");
        counts.push(counted(&log));
    }
    let [cold, warm] = counts[..] else { panic!("{counts:?}") };
    assert!(cold.0 == 0 && cold.2 > 0, "{cold:?}");
    assert!(warm.0 > 0 && warm.0 * 4 >= warm.1 * 3, "three of four files hit: {warm:?}");
    let _ = door.close();
}
