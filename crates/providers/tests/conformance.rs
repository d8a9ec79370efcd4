//! The contract of [`Provider`], run against the *simulated* twin and against the real sandbox on this host; then what
//! only the sandbox can show. The farm that the agents talk to is simulated.
//!
//! The sandbox needs root, `runc` and `conmon`; elsewhere its tests print `SKIPPED`, or fail if
//! `FORGEYARD_REQUIRE_SANDBOX` is set. The agent program is `FORGEYARD_AGENT`, or is built.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

#[path = "../../agent/tests/farm/mod.rs"]
mod farm;
#[path = "../../agent/tests/rig/mod.rs"]
mod rig;

use forgeyard_model::resources::{Image, ImageRoot, Limit};
use forgeyard_model::runner::ObservedState;
use forgeyard_model::{AttemptId, Digest, Id as _, RunnerId, Timestamp};
use forgeyard_providers::sandbox::ImageSource;
use forgeyard_providers::twin::{Fault, TwinProvider};
use forgeyard_providers::{Error, MachineSpec, Provider};
use rig::{Rig, destroyed};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// The agent program.
fn agent() -> String {
    static AGENT: OnceLock<String> = OnceLock::new();
    let find = || {
        if let Ok(path) = std::env::var("FORGEYARD_AGENT") {
            return path;
        }
        let status =
            Command::new(env!("CARGO")).args(["build", "-q", "-p", "forgeyard-agent"]).status().unwrap();
        assert!(status.success(), "the agent could not be built");
        // The test program lies in `deps`, the agent beside that folder.
        let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
        folder.join("forgeyard-agent").display().to_string()
    };
    AGENT.get_or_init(find).clone()
}

async fn states(provider: &dyn Provider, runner: RunnerId) -> Vec<ObservedState> {
    let seen = provider.list().await.unwrap();
    seen.into_iter().filter(|seen| seen.runner == runner).map(|seen| seen.state).collect()
}

/// What every provider must do. `spec` is a machine that can be made.
async fn keeps_the_contract(provider: &dyn Provider, spec: &MachineSpec) {
    let facts = provider.facts().await.unwrap();
    let cannot: BTreeSet<Limit> = facts.cannot.iter().map(|(limit, _)| *limit).collect();
    assert!(facts.enforces.is_disjoint(&cannot), "a limit is both kept and not kept");
    assert_eq!(facts.enforces.len() + cannot.len(), 6, "each limit is one or the other");

    // Removing what never was is done already.
    destroyed(provider, spec.runner).await;
    assert!(states(provider, spec.runner).await.is_empty());

    // Refused before anything is touched.
    let mut void = spec.clone();
    void.flavor.network = true;
    void.needs = [Limit::Network].into();
    let refused = provider.create(&void).await;
    assert!(matches!(refused, Err(Error::CannotEnforce { limit: Limit::Network, .. })), "{refused:?}");
    assert!(states(provider, spec.runner).await.is_empty(), "a refused machine was touched");

    // Asking twice makes one.
    provider.create(spec).await.unwrap();
    provider.create(spec).await.unwrap();
    assert_eq!(states(provider, spec.runner).await, [ObservedState::Running]);
    let seen = provider.list().await.unwrap();
    assert!(seen.iter().find(|seen| seen.runner == spec.runner).unwrap().enforced.is_superset(&spec.needs));

    destroyed(provider, spec.runner).await;
    assert!(states(provider, spec.runner).await.is_empty());
    destroyed(provider, spec.runner).await;
}

fn spec_without_rig() -> MachineSpec {
    MachineSpec {
        runner: RunnerId::derive(AttemptId::new(Timestamp::from_micros(1), 1), "runner"),
        flavor: rig::flavor(),
        image: Image { name: "host".parse().unwrap(), root: ImageRoot::Host { allow: Vec::new() } },
        devices: Vec::new(),
        needs: [Limit::Memory].into(),
        agent: forgeyard_providers::AgentStart {
            farm_url: "http://127.0.0.1:9".to_owned(),
            token: forgeyard_model::Secret::new("x"),
            ca_file: None,
        },
    }
}

#[tokio::test]
async fn twin_keeps_the_contract() {
    let twin = TwinProvider::new("twin".parse().unwrap(), &[Limit::Disk]);
    keeps_the_contract(&twin, &spec_without_rig()).await;
}

#[tokio::test]
async fn twin_plays_lost_answers_and_remnants() {
    let spec = spec_without_rig();
    let twin = TwinProvider::new("twin".parse().unwrap(), &[]);
    twin.plan(Fault::CreateAnswerLost);
    twin.plan(Fault::DestroyLeaves);
    assert!(twin.create(&spec).await.is_err());
    // The unknown outcome is settled by listing, and asking again makes no second machine.
    assert_eq!(states(&twin, spec.runner).await, [ObservedState::Running]);
    twin.create(&spec).await.unwrap();
    assert!(matches!(twin.destroy(spec.runner).await, Err(Error::Left { .. })));
    assert_eq!(states(&twin, spec.runner).await.len(), 1);
    twin.destroy(spec.runner).await.unwrap();
}

#[tokio::test]
async fn sandbox_keeps_the_contract() {
    need_sandbox!();
    let rig = Rig::new(&agent()).await;
    rig.offer(rig::shell(&["sleep 1000"]));
    let mut spec = rig.machine();
    spec.needs =
        [Limit::Memory, Limit::Cpu, Limit::Processes, Limit::Wall, Limit::Disk, Limit::Network].into();
    keeps_the_contract(rig.provider.as_ref(), &spec).await;
    assert!(!rig.folder().exists());
}

/// Everything of ours on this host: mounts, groups, processes, files.
fn traces(rig: &Rig) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let (state, run) = (rig.state.display().to_string(), rig.run.display().to_string());
    found.extend(
        mounts.lines().filter(|line| line.contains(&state) || line.contains(&run)).map(str::to_owned),
    );
    for top in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        walk(&top.path().join(&rig.cgroup_parent), &mut found);
    }
    walk(&rig.state.join("runners"), &mut found);
    walk(&rig.run, &mut found);
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&rig.runner.to_string()) || line.contains("marker-of-the-job") {
            found.insert(format!("process {line}"));
        }
    }
    found
}

fn walk(path: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        // Files of a group are the kernel's.
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_dir || !entry.path().starts_with("/sys") {
            found.insert(entry.path().display().to_string());
        }
        if is_dir {
            walk(&entry.path(), found);
        }
    }
}

#[tokio::test]
async fn after_destroy_nothing_is_left() {
    need_sandbox!();
    let rig = Rig::new(&agent()).await;
    // The folders and groups that all machines share are there already.
    rig.provider.create(&rig.machine()).await.unwrap();
    destroyed(&*rig.provider, rig.runner).await;
    let before = traces(&rig);

    let script = "(setsid sh -c 'sleep 1000; : marker-of-the-job' &); trap '' TERM; echo up; touch /work/x; \
                  while :; do (sleep 3 &); sleep 0.05; done";
    rig.run(&[script]).await;
    rig.farm.logged("up").await;
    assert!(traces(&rig).len() > before.len() + 10);
    destroyed(&*rig.provider, rig.runner).await;
    assert_eq!(traces(&rig), before);

    // The same with the agent dead and a mount that nobody expects.
    rig.farm.lock().log.clear();
    rig.farm.lock().closed = false;
    rig.run(&["echo up; sleep 1000"]).await;
    rig.farm.logged("up").await;
    rig.kill_agent().await;
    let spot = rig.folder().join("work/home");
    nix::mount::mount(None::<&str>, &spot, Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>)
        .unwrap();
    destroyed(&*rig.provider, rig.runner).await;
    assert_eq!(traces(&rig), before);
}

#[tokio::test]
async fn machine_outlives_the_provider_that_made_it() {
    need_sandbox!();
    let rig = Rig::new(&agent()).await;
    rig.run(&["echo up; sleep 1; echo end"]).await;
    rig.farm.logged("up").await;
    let again = rig.reopened();
    assert_eq!(states(&again, rig.runner).await, [ObservedState::Running]);
    let facts = rig.farm.facts().await;
    assert_eq!(facts.steps[0].exit_code, Some(0));
    rig.farm.until("the last word", |_| rig.folder().join("agent/finished").exists().then_some(())).await;
    let seen = states(&again, rig.runner).await;
    assert!(
        matches!(&seen[..], [ObservedState::Exited { reason }] if reason.code == "agent.finished"),
        "{seen:?}"
    );
    destroyed(&again, rig.runner).await;
    assert!(states(rig.provider.as_ref(), rig.runner).await.is_empty());
}

#[tokio::test]
async fn half_made_machine_is_reported_and_can_be_removed() {
    need_sandbox!();
    let rig = Rig::new(&agent()).await;
    std::fs::create_dir_all(rig.folder().join("work")).unwrap();
    let seen = states(rig.provider.as_ref(), rig.runner).await;
    assert!(matches!(&seen[..], [ObservedState::Failed { .. }]), "{seen:?}");
    destroyed(&*rig.provider, rig.runner).await;
    assert!(!rig.folder().exists());
}

#[tokio::test]
async fn agent_that_always_dies_is_given_up() {
    need_sandbox!();
    // A program that ends at once and never takes the lock.
    let rig = Rig::new("/bin/true").await;
    rig.provider.create(&rig.machine()).await.unwrap();
    let mut last = Vec::new();
    for _ in 0..25 {
        last = states(rig.provider.as_ref(), rig.runner).await;
    }
    assert!(
        matches!(&last[..], [ObservedState::Exited { reason }] if reason.code == "agent.keeps_dying"),
        "{last:?}"
    );
}

#[tokio::test]
async fn image_that_would_show_a_home_is_refused_before_anything_is_touched() {
    need_sandbox!();
    let mut rig = Rig::new(&agent()).await;
    for path in ["/root", "/", "/home", "/proc", "/etc"] {
        rig.image.root = ImageRoot::Host { allow: vec![path.to_owned()] };
        let error = rig.provider.create(&rig.machine()).await.unwrap_err();
        assert!(
            matches!(&error, Error::Image { reason, .. } if reason.contains(&format!("`{path}`"))),
            "{error}"
        );
    }
    assert!(!rig.state.exists());
}

#[tokio::test]
async fn allowed_folder_of_the_host_is_shown_read_only() {
    need_sandbox!();
    let mut rig = Rig::new(&agent()).await;
    let dir = tempfile::Builder::new().prefix("fy-allowed").tempdir_in("/opt").unwrap();
    std::fs::write(dir.path().join("tool"), "of the host").unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = dir.path().display().to_string();
    rig.image.root = ImageRoot::Host { allow: vec![path.clone()] };
    rig.run(&[&format!("cat {path}/tool; ls /opt | wc -l; touch {path}/x 2>&1; true")]).await;
    rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert!(log.contains("of the host1\n") && log.contains("cannot touch"), "{log}");
    rig.end().await;
}

/// The image that a test makes from programs of this host.
struct Archive(Vec<u8>);

#[async_trait::async_trait]
impl ImageSource for Archive {
    async fn fetch(&self, _digest: Digest, to: &Path) -> std::io::Result<()> {
        std::fs::write(to, &self.0)
    }
}

#[tokio::test]
async fn tree_by_digest_is_the_root_and_what_is_changed_goes_with_the_machine() {
    need_sandbox!();
    let agent = agent();
    let mut files: BTreeSet<PathBuf> = ["/bin/sh", "/bin/cat", "/bin/ls"].map(PathBuf::from).into();
    for program in ["/bin/sh", "/bin/cat", "/bin/ls", &agent] {
        let output = Command::new("ldd").arg(program).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        files.extend(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
    }
    let mut builder = tar::Builder::new(Vec::new());
    for file in &files {
        let name = file.strip_prefix("/").unwrap();
        builder.append_path_with_name(std::fs::canonicalize(file).unwrap(), name).unwrap();
    }
    let mut header = tar::Header::new_gnu();
    header.set_size(3);
    header.set_mode(0o600);
    builder.append_data(&mut header, "etc/of-the-image", &b"yes"[..]).unwrap();
    let bytes = builder.into_inner().unwrap();
    let digest = Digest::of(&bytes);
    let mut rig = Rig::with_images(&agent, Arc::new(Archive(bytes))).await;
    rig.image = Image { name: "tree".parse().unwrap(), root: ImageRoot::Rootfs { digest } };
    rig.run(&[
        "cat /etc/of-the-image; ls /usr/bin 2>&1; echo x > /work/y; cat /work/y; echo x > /etc/z; true",
    ])
    .await;
    rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert!(log.contains("yes") && log.contains("\nx\n"), "{log}");
    assert!(!log.contains("python"), "the host is seen:\n{log}");
    let tree = rig.state.join("images").join(digest.hex()).join("tree");
    assert!(!tree.join("work").exists(), "the shared tree was changed");
    rig.end().await;
}
