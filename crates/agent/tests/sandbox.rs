//! Claims about jobs in real containers on this host. The farm is simulated; everything else is real.
//!
//! Needs root, `runc` and `conmon`; elsewhere each test prints `SKIPPED`, or fails if `FORGEYARD_REQUIRE_SANDBOX` is set.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod farm;
mod rig;

use forgeyard_model::resources::Limit;
use rig::{Rig, shell, spec};
use serde_json::json;

const AGENT: &str = env!("CARGO_BIN_EXE_forgeyard-agent");

#[tokio::test]
async fn steps_run_in_order_and_the_first_failure_ends_the_job() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.run(&["echo one > /work/x", "cat /work/x; exit 7", "echo never"]).await;
    let facts = rig.farm.facts().await;
    let codes: Vec<_> = facts.steps.iter().map(|step| (step.exit_code, step.signal)).collect();
    assert_eq!(codes, [(Some(0), None), (Some(7), None)]);
    assert_eq!(facts.supervisor_error, None);
    assert_eq!(facts.limit, None);
    assert!(facts.cpu_micros.unwrap() > 0 && facts.peak_memory_bytes.unwrap() > 0);
    let log = rig.farm.log_text();
    assert_eq!(
        log,
        "[forgeyard] preparing inputs\n[forgeyard] step 1 of 3: step-0\n[forgeyard] step 2 of 3: step-1\none\n"
    );
    assert_eq!(rig.farm.lock().nonces.len(), 1);
    rig.end().await;
}

#[tokio::test]
async fn exit_codes_and_signals_are_exact() {
    need_sandbox!();
    // A code above 128 is no signal, and a signal is not swallowed as it would be by process 1.
    let cases = [
        (json!(["/bin/sh", "-c", "exit 137"]), Some(137), None),
        (json!(["/bin/sh", "-c", "kill -SEGV $$"]), Some(139), Some(11)),
        (json!(["/bin/sh", "-c", "kill -TERM $$"]), Some(143), Some(15)),
        (json!(["/no/such/program"]), Some(127), None),
    ];
    for (argv, code, signal) in cases {
        let rig = Rig::new(AGENT).await;
        rig.offer(spec(json!({"steps": [{"name": "s", "argv": argv}]})));
        rig.provider_create().await;
        let facts = rig.farm.facts().await;
        assert_eq!((facts.steps[0].exit_code, facts.steps[0].signal), (code, signal), "{argv}");
        assert_eq!((facts.oom, facts.limit), (None, None));
        rig.end().await;
    }
}

#[tokio::test]
async fn job_sees_no_home_no_secret_no_other_machine() {
    need_sandbox!();
    let (other, rig) = (Rig::new(AGENT).await, Rig::new(AGENT).await);
    other.run(&["echo up; exec sleep 1000"]).await;
    other.farm.logged("up").await;
    let state = rig.state.parent().unwrap().display().to_string();
    let script = format!(
        "id; echo root: $(ls /root /home 2>&1 | wc -c); ls -A / | tr '\\n' ' '; echo; ls {state} 2>&1; \
         echo procs $(ls /proc | grep -c '^[0-9]'); ps=$(cat /proc/[0-9]*/cmdline | tr '\\0' ' '); echo \"$ps\"; \
         env; cat /etc/shadow 2>&1; ls /dev; ls /etc/OpenCL 2>&1; mount -t tmpfs x /tmp 2>&1; \
         touch /usr/x /in/x /x /etc/x /.forgeyard/init 2>&1; cat /proc/self/oom_score_adj; cat /proc/1/environ | tr '\\0' ' '; \
         grep -E 'NoNewPrivs|CapBnd|Seccomp:' /proc/self/status; unshare -r id -u 2>&1; echo end > /dev/shm/x && echo end > /run/x && echo shm"
    );
    rig.run(&[&script]).await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert_eq!(facts.steps[0].exit_code, Some(0), "{log}");
    assert!(log.contains("uid=1000(job) gid=1000(job)"), "{log}");
    assert!(!log.contains("sleep"), "another machine's process is seen:\n{log}");
    for line in ["NoNewPrivs:\t1", "CapBnd:\t0000000000000000", "Seccomp:\t2", "\n500\n", "shm"] {
        assert!(log.contains(line), "{line:?} is missing in\n{log}");
    }
    let top = log.lines().find(|line| line.starts_with(".forgeyard")).unwrap();
    assert!(!top.contains("root") && !top.contains("home"), "{top}");
    assert!(log.contains(&format!("cannot access '{state}'")), "{log}");
    assert!(log.contains("/etc/shadow: No such file"), "{log}");
    assert!(log.contains("'/etc/OpenCL': No such file"), "no device was leased:\n{log}");
    for word in [farm::TOKEN, farm::SESSION, "kmsg", "vda", "fuse", "kvm", rig.farm.url.as_str()] {
        assert!(!log.contains(word), "{word} is seen in\n{log}");
    }
    let refused = ["/usr/x", "/in/x", "/x", "/etc/x", "/.forgeyard/init"];
    for path in refused {
        assert!(log.contains(&format!("touch: cannot touch '{path}'")), "{path} could be written:\n{log}");
    }
    other.end().await;
    rig.end().await;
}

#[tokio::test]
async fn network_is_off_but_loopback() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    let port = rig.farm.url.rsplit(':').next().unwrap().to_owned();
    // The farm listens on the host's loopback, which is not the job's.
    let script = format!(
        "grep -v -E 'Inter|face' /proc/net/dev | cut -d: -f1; \
         python3 -c 'import socket\ns=socket.socket(); s.settimeout(3)\ntry: s.connect((\"127.0.0.1\",{port})); print(\"reached\")\nexcept OSError as e: print(\"refused\", e)\n\
         l=socket.create_server((\"127.0.0.1\",0)); socket.create_connection(l.getsockname()); print(\"own loopback\")\n\
         try: socket.create_connection((\"192.0.2.1\",80),3)\nexcept OSError as e: print(\"out\", e)'"
    );
    rig.run(&[&script]).await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert_eq!(facts.steps[0].exit_code, Some(0), "{log}");
    assert!(log.contains("    lo\nrefused"), "{log}");
    assert!(log.contains("own loopback") && log.contains("out [Errno 101]"), "{log}");
    rig.end().await;
}

#[tokio::test]
async fn memory_hog_ends_with_the_facts_of_its_death_and_its_last_lines() {
    need_sandbox!();
    let mut rig = Rig::new(AGENT).await;
    rig.flavor.memory_mib = 48;
    rig.run(&["echo last words; tail /dev/zero"]).await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert!(log.contains("last words"), "{log}");
    let oom = facts.oom.unwrap();
    assert!(oom.kills >= 1);
    assert_eq!(oom.limit_bytes, 48 << 20);
    assert!((40 << 20..=48 << 20).contains(&oom.peak_bytes), "{}", oom.peak_bytes);
    assert_eq!(facts.limit, Some(Limit::Memory));
    assert_eq!(facts.steps[0].exit_code, Some(137));
    if std::fs::File::open("/dev/kmsg").is_ok() {
        assert_eq!(oom.victim.as_deref(), Some("tail"), "{:?}", facts.kernel_lines);
        assert!(
            facts.kernel_lines.iter().any(|line| line.contains("Killed process")),
            "{:?}",
            facts.kernel_lines
        );
    } else {
        println!("SKIPPED: the kernel's log cannot be read here");
    }
    rig.end().await;
}

#[tokio::test]
async fn fork_bomb_is_bounded() {
    need_sandbox!();
    let mut rig = Rig::new(AGENT).await;
    rig.flavor.processes = 24;
    rig.run(&["trap '' TERM; i=0; while [ $i -lt 200 ]; do sleep 100 & i=$((i+1)); done; echo unbounded"])
        .await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert!(log.contains("Cannot fork"), "{log}");
    assert!(!log.contains("unbounded"), "{log}");
    assert_ne!(facts.steps[0].exit_code, Some(0));
    rig.end().await;
}

#[tokio::test]
async fn wall_limit_asks_first_and_the_job_ends() {
    need_sandbox!();
    let mut rig = Rig::new(AGENT).await;
    rig.flavor.time_limit_seconds = 2;
    rig.run(&["trap 'echo asked; exit 3' TERM; echo up; while :; do sleep 0.1; done", "echo never"]).await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    // The shell may add a word about its own child in between.
    assert!(log.contains("up\n") && log.contains("\nasked\n"), "{log}");
    assert!(log.ends_with("[forgeyard] stopped: its time limit is over\n"), "{log}");
    assert_eq!(facts.limit, Some(Limit::Wall));
    assert_eq!(facts.steps.len(), 1);
    assert_eq!(facts.steps[0].exit_code, Some(3));
    rig.end().await;
}

#[tokio::test]
async fn a_job_that_ignores_the_question_is_killed_when_canceled() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.run(&["trap '' TERM; echo up; while :; do sleep 0.1; done"]).await;
    rig.farm.logged("up").await;
    rig.farm.lock().cancel = true;
    let facts = rig.farm.facts().await;
    assert!(facts.canceled);
    assert_eq!((facts.steps[0].exit_code, facts.steps[0].signal), (Some(137), Some(9)));
    assert_eq!(facts.oom, None);
    assert!(rig.farm.lock().heartbeats.contains(&Some("step-0".to_owned())));
    rig.end().await;
}

#[tokio::test]
async fn superseded_attempt_stops_at_once_and_reports_nothing() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.run(&["echo up; sleep 1000"]).await;
    rig.farm.logged("up").await;
    let agent = rig.pid("agent/pid").unwrap();
    rig.farm.lock().superseded = true;
    while rig::alive(agent) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(std::fs::read_to_string(rig.folder().join("agent/finished")).unwrap(), "superseded");
    assert_eq!(rig.farm.lock().finishes, 0);
    rig.end().await;
}

#[tokio::test]
async fn secret_is_masked_even_when_it_is_written_in_two_parts() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.run(&["printf 'a hunter2-'; sleep 0.6; echo 'secret b'; echo hunter2-secret >&2; cat /in/none 2>&1"])
        .await;
    rig.farm.facts().await;
    let log = rig.farm.log_text();
    // Two streams: what is written to one may come before or after what is written to the other.
    assert!(log.contains("a *** b\n") && log.contains("\n***\n"), "{log}");
    assert!(!log.contains("hunter2"), "{log}");
    rig.end().await;
}

#[tokio::test]
async fn killed_agent_is_brought_back_and_the_same_container_goes_on() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.run(&[
        "echo first",
        "echo $$ begins; for i in 1 2 3 4 5 6 7 8; do sleep 0.2; echo tick $i; done; exit 5",
    ])
    .await;
    rig.farm.logged("tick 2").await;
    let (container, agent) = (rig.pid("bundles/1/pid").unwrap(), rig.pid("agent/pid").unwrap());
    rig.kill_agent().await;
    assert!(rig::alive(container), "the container died with the agent");
    assert_eq!(rig.provider_list().await.len(), 1);
    let facts = rig.facts_of_a_watched_machine().await;
    assert_eq!(facts.steps.len(), 2);
    assert_eq!(facts.steps[1].exit_code, Some(5));
    assert_eq!(facts.supervisor_error, None);
    assert_ne!(rig.pid("agent/pid").unwrap(), agent);
    assert_eq!(rig.pid("bundles/1/pid").unwrap(), container);
    let log = rig.farm.log_text();
    assert_eq!(log.matches("begins").count(), 1, "{log}");
    for tick in 1..=8 {
        assert_eq!(log.matches(&format!("tick {tick}\n")).count(), 1, "{log}");
    }
    assert_eq!(rig.farm.lock().nonces.len(), 1);
    rig.end().await;
}

#[tokio::test]
async fn agent_killed_again_and_again_loses_nothing() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    let steps: Vec<String> =
        (0..4).map(|n| format!("for i in 1 2 3; do sleep 0.15; echo {n}-$i; done")).collect();
    rig.run(&steps.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for wait in [20, 90, 150, 60, 200, 40, 110, 170] {
        tokio::time::sleep(std::time::Duration::from_millis(wait)).await;
        if rig.folder().join("agent/finished").exists() {
            break;
        }
        if let Some(pid) = rig.pid("agent/pid").filter(|pid| rig::alive(*pid)) {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        rig.provider_list().await;
    }
    let facts = rig.facts_of_a_watched_machine().await;
    let codes: Vec<_> = facts.steps.iter().map(|step| step.exit_code).collect();
    assert_eq!(codes, [Some(0); 4], "{:?}", facts.supervisor_error);
    let log = rig.farm.log_text();
    for step in 0..4 {
        assert_eq!(log.matches(&format!("step {} of 4", step + 1)).count(), 1, "{log}");
        for i in 1..=3 {
            assert_eq!(log.matches(&format!("{step}-{i}\n")).count(), 1, "{log}");
        }
    }
    let nonces = rig.farm.lock().nonces.clone();
    assert!(nonces.iter().all(|nonce| *nonce == nonces[0]), "{nonces:?}");
    rig.end().await;
}

#[tokio::test]
async fn agent_killed_at_any_moment_of_a_start_starts_the_step_once() {
    need_sandbox!();
    // Commands of the runtime outlive the agent that gave them; making the container anew beside one broke both.
    for millis in (0..120).step_by(6) {
        let rig = Rig::new(AGENT).await;
        rig.run(&["echo once; sleep 0.1; exit 4"]).await;
        tokio::time::sleep(std::time::Duration::from_millis(millis)).await;
        if let Some(pid) = rig.pid("agent/pid").filter(|pid| rig::alive(*pid)) {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        let facts = rig.facts_of_a_watched_machine().await;
        assert_eq!(facts.supervisor_error, None, "killed after {millis} ms");
        assert_eq!(facts.steps[0].exit_code, Some(4), "killed after {millis} ms");
        assert_eq!(rig.farm.log_text().matches("once").count(), 1, "killed after {millis} ms");
        rig.end().await;
    }
}

#[tokio::test]
async fn container_whose_monitor_died_is_our_fault_and_has_no_exit_code() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.run(&["echo up; sleep 1000"]).await;
    rig.farm.logged("up").await;
    let (monitor, container) = (rig.pid("bundles/0/conmon.pid").unwrap(), rig.pid("bundles/0/pid").unwrap());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(monitor), nix::sys::signal::Signal::SIGKILL).unwrap();
    let facts = rig.farm.facts().await;
    assert_eq!(facts.steps[0].exit_code, None);
    assert!(facts.supervisor_error.unwrap().contains("monitor"), "no reason given");
    assert!(!rig::alive(container));
    rig.end().await;
}

#[tokio::test]
async fn inputs_are_verified_and_outputs_come_back_by_digest() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(5);
    header.set_mode(0o755);
    builder.append_data(&mut header, "sub/file", &b"inner"[..]).unwrap();
    let tree = rig.farm.blob(builder.into_inner().unwrap());
    let large: Vec<u8> = (0..3_000_000u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let plain = rig.farm.blob(large.clone());
    rig.farm.lock().cut_blobs = 2;
    let hex = "a".repeat(64);
    let script = format!(
        "set -e; cat /in/src/sub/file /in/config/hello; cp /in/plain.bin /out/pkgs/copy.conda 2>/dev/null || (mkdir /out/pkgs; cp /in/plain.bin /out/pkgs/copy.conda); \
         ln -s /etc/passwd /out/pkgs/evil.conda; echo '{{\"triad\": {{\"value\": 1.5, \"unit\": \"GB/s\"}}}}' > /out/metrics.json; \
         mkdir -p /work/prefix/conda-meta; echo '{{\"fn\": \"p-1-0.conda\", \"sha256\": \"{hex}\"}}' > /work/prefix/conda-meta/p.json"
    );
    rig.offer(spec(json!({
        "inputs": [
            {"digest": tree, "path": "src", "unpack": true},
            {"digest": plain, "path": "plain.bin"},
        ],
        "files": [{"path": "config/hello", "text": " hello\n"}],
        "steps": [{"name": "s", "argv": ["/bin/sh", "-c", script]}],
        "outputs": [
            {"folder": "pkgs", "ending": ".conda", "kind": "conda_package", "required": true},
            {"folder": "", "ending": ".lock", "kind": "environment_lock", "required": true},
        ],
    })));
    rig.provider_create().await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert_eq!(facts.steps[0].exit_code, Some(0), "{log}");
    assert!(log.contains("inner hello\n"), "{log}");
    assert_eq!(facts.missing_outputs, ["*.lock"]);
    assert_eq!(facts.metrics["triad"].value, "1.5");
    assert_eq!(facts.installed["p-1-0.conda"], format!("sha256:{hex}"));
    {
        let inner = rig.farm.lock();
        let names: Vec<_> = inner.artifacts.keys().cloned().collect();
        assert_eq!(names, [("conda_package".to_owned(), "copy.conda".to_owned())]);
        assert_eq!(inner.artifacts[&names[0]], large);
        assert!(
            inner.ranges.iter().any(|range| range.is_some()),
            "a cut download begins where it was: {:?}",
            inner.ranges
        );
    }
    rig.end().await;
}

#[tokio::test]
async fn input_that_is_not_there_is_our_fault_and_no_step_runs() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    let missing = forgeyard_model::Digest::of(b"missing");
    rig.offer(spec(json!({
        "inputs": [{"digest": missing, "path": "x"}],
        "steps": [{"name": "s", "argv": ["/bin/true"]}],
    })));
    rig.provider_create().await;
    let facts = rig.farm.facts().await;
    assert!(facts.steps.is_empty());
    assert!(facts.supervisor_error.unwrap().contains(&missing.to_string()));
    rig.end().await;
}

#[tokio::test]
async fn slow_farm_does_not_hold_the_job_up_and_gets_every_byte() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.farm.lock().refuse_logs = 4;
    rig.run(&["seq 1 50000; echo done > /out/done"]).await;
    let facts = rig.farm.facts().await;
    assert_eq!((facts.steps[0].exit_code, facts.log_dropped_bytes), (Some(0), 0));
    let log = rig.farm.log_text();
    let numbers: String = (1..=50_000).map(|n| format!("{n}\n")).collect();
    assert!(log.ends_with(&numbers), "{} bytes", log.len());
    rig.end().await;
}

#[tokio::test]
async fn log_cap_holds_and_the_end_of_the_log_is_kept() {
    need_sandbox!();
    let rig = Rig::new(AGENT).await;
    rig.farm.offer(shell(&["seq 1 300000; echo the end"]), rig.flavor.clone(), Vec::new(), 100_000, &[]);
    rig.provider_create().await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert!(log.len() <= 100_000, "{}", log.len());
    assert!(log.ends_with("300000\nthe end\n"));
    assert!(log.contains(&format!("{} bytes are missing here", facts.log_dropped_bytes)));
    assert!(facts.log_dropped_bytes > 1_500_000);
    rig.end().await;
}

#[tokio::test]
async fn job_that_fills_its_disk_is_stopped() {
    need_sandbox!();
    let mut rig = Rig::new(AGENT).await;
    rig.flavor.disk_mib = 32;
    rig.run(&["while :; do head -c 8388608 /dev/urandom >> /work/big; sleep 0.1; done"]).await;
    let facts = rig.farm.facts().await;
    assert_eq!(facts.limit, Some(Limit::Disk));
    assert!(rig.farm.log_text().contains("disk limit"));
    rig.end().await;
}

/// The stand-in for a GPU, as a site would find it.
fn opencl() -> forgeyard_model::device::DeviceFacts {
    serde_json::from_value(json!({
        "key": "opencl:0:0", "kind": "opencl-cpu", "model": "cpu", "driver": "pocl", "memory_mib": 1024,
    }))
    .unwrap()
}

fn pocl_is_missing(also: &str) -> bool {
    let missing =
        [also, "/etc/OpenCL/vendors/pocl.icd"].into_iter().find(|path| !std::path::Path::new(path).exists());
    if let Some(path) = missing {
        println!("SKIPPED: there is no {path}");
    }
    missing.is_some()
}

#[tokio::test]
async fn opencl_device_is_seen_with_a_lease_and_a_listing_is_no_use_of_it() {
    need_sandbox!();
    if pocl_is_missing("/usr/bin/clinfo") {
        return;
    }
    let mut rig = Rig::new(AGENT).await;
    rig.flavor.memory_mib = 1024;
    rig.devices = vec![opencl()];
    rig.run(&["clinfo -l"]).await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert_eq!(facts.steps[0].exit_code, Some(0), "{log}");
    assert!(log.contains("Portable Computing Language"), "{log}");
    assert!(log.contains("Device #0"), "{log}");
    let device = facts.device.unwrap();
    assert!(!device.touched, "{:?}", device.evidence);
    rig.end().await;
}

#[tokio::test]
async fn kernel_that_was_enqueued_is_evidence_of_use() {
    need_sandbox!();
    if pocl_is_missing("/usr/include/CL/cl.h") {
        return;
    }
    let mut rig = Rig::new(AGENT).await;
    rig.flavor.memory_mib = 2048;
    rig.devices = vec![opencl()];
    rig.offer(spec(json!({
        "files": [{"path": "axpy.c", "text": include_str!("fixtures/axpy.c")}],
        "steps": [
            {"name": "compile", "argv": ["gcc", "-w", "/in/axpy.c", "-o", "/work/axpy", "-lOpenCL"]},
            {"name": "run", "argv": ["/work/axpy"]},
        ],
    })));
    rig.provider_create().await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert!(log.contains("kernel ran"), "{log}");
    let device = facts.device.unwrap();
    assert!(device.touched);
    assert!(device.evidence[0].contains("axpy"), "{:?}", device.evidence);
    rig.end().await;
}

#[tokio::test]
async fn flavor_with_network_has_it_and_does_not_claim_the_limit() {
    need_sandbox!();
    let mut rig = Rig::new(AGENT).await;
    rig.flavor.network = true;
    let port = rig.farm.url.rsplit(':').next().unwrap().to_owned();
    let script = format!(
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\",{port}),5); print(\"reached\")'"
    );
    rig.run(&[&script]).await;
    let facts = rig.farm.facts().await;
    assert_eq!(facts.steps[0].exit_code, Some(0), "{}", rig.farm.log_text());
    assert!(!rig.provider_list().await[0].enforced.contains(&Limit::Network));
    rig.end().await;
}
