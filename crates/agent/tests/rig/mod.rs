//! One sandbox machine on this host, with a simulated farm: what the tests of real containers share.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use crate::farm::{Farm, TOKEN, WAITING_TOKEN};
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::job::JobSpec;
use forgeyard_model::resources::{Flavor, Image, ImageRoot};
use forgeyard_model::runner::ObservedRunner;
use forgeyard_model::{Id as _, RunnerId, Secret, Timestamp};
use forgeyard_providers::sandbox::{ImageSource, NoImages, SandboxConfig, SandboxProvider};
use forgeyard_providers::{AgentStart, Error as ProviderError, MachineSpec, Provider};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Says why the tests of real containers cannot run here, or nothing.
pub(crate) fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    let folders = ["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/bin"];
    let absent = |name: &&str| !folders.iter().any(|folder| Path::new(folder).join(name).exists());
    ["runc", "conmon"].iter().find(|name| absent(name)).map(|name| format!("{name} is not installed"))
}

/// Leaves the test with a visible note where containers cannot run, unless they are required.
#[macro_export]
macro_rules! need_sandbox {
    () => {
        if let Some(reason) = $crate::rig::missing() {
            assert!(std::env::var_os("FORGEYARD_REQUIRE_SANDBOX").is_none(), "sandbox required: {reason}");
            println!("SKIPPED: {reason}");
            return;
        }
    };
}

static COUNT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Rig {
    pub(crate) farm: Farm,
    pub(crate) provider: Arc<SandboxProvider>,
    pub(crate) runner: RunnerId,
    pub(crate) flavor: Flavor,
    pub(crate) image: Image,
    pub(crate) devices: Vec<DeviceFacts>,
    pub(crate) state: PathBuf,
    pub(crate) run: PathBuf,
    pub(crate) cgroup_parent: String,
    config: SandboxConfig,
    _dirs: [tempfile::TempDir; 2],
}

pub(crate) fn flavor() -> Flavor {
    serde_json::from_value(json!({
        "name": "small", "cpu-millis": 1000, "memory-mib": 128, "disk-mib": 256, "processes": 64,
        "time-limit-seconds": 100,
    }))
    .unwrap()
}

impl Rig {
    pub(crate) async fn new(agent: &str) -> Self {
        Self::with_images(agent, Arc::new(NoImages)).await
    }

    pub(crate) async fn with_images(agent: &str, images: Arc<dyn ImageSource>) -> Self {
        let farm = Farm::start().await;
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let unique = (std::process::id() << 8) | COUNT.fetch_add(1, Ordering::Relaxed);
        let cgroup_parent = format!("forgeyard-test-{unique}");
        let config = SandboxConfig {
            state_dir: dirs[0].path().join("state"),
            run_dir: dirs[1].path().to_owned(),
            cgroup_parent: cgroup_parent.clone(),
            first_id: 2_000_000_000 + (unique % 1000) * 65_536,
            ..SandboxConfig::new("sandbox".parse().unwrap(), PathBuf::new(), vec![agent.to_owned()])
        };
        let (state, run) = (config.state_dir.clone(), config.run_dir.clone());
        let provider = Arc::new(SandboxProvider::new(config.clone(), images));
        let image = Image { name: "host".parse().unwrap(), root: ImageRoot::Host { allow: Vec::new() } };
        let runner = RunnerId::new(Timestamp::from_micros(1_000_000), u128::from(unique));
        Self {
            farm,
            provider,
            runner,
            flavor: flavor(),
            image,
            devices: Vec::new(),
            state,
            run,
            cgroup_parent,
            config,
            _dirs: dirs,
        }
    }

    /// A second provider on the same folders, as after a restart.
    pub(crate) fn reopened(&self) -> SandboxProvider {
        SandboxProvider::new(self.config.clone(), Arc::new(NoImages))
    }

    pub(crate) fn machine(&self) -> MachineSpec {
        MachineSpec {
            runner: self.runner,
            flavor: self.flavor.clone(),
            image: self.image.clone(),
            devices: self.devices.clone(),
            needs: Default::default(),
            agent: AgentStart { farm_url: self.farm.url.clone(), token: Secret::new(TOKEN), ca_file: None },
        }
    }

    /// The same, made before there is work.
    pub(crate) fn waiting_machine(&self) -> MachineSpec {
        let mut machine = self.machine();
        machine.agent.token = Secret::new(WAITING_TOKEN);
        machine
    }

    pub(crate) fn offer(&self, spec: JobSpec) {
        self.farm.offer(spec, self.flavor.clone(), self.devices.clone(), 1 << 20, &["hunter2-secret"]);
    }

    /// Offers shell steps and makes the machine.
    pub(crate) async fn run(&self, steps: &[&str]) {
        self.offer(shell(steps));
        self.provider_create().await;
    }

    pub(crate) async fn provider_create(&self) {
        self.provider.create(&self.machine()).await.unwrap();
    }

    pub(crate) async fn provider_list(&self) -> Vec<ObservedRunner> {
        self.provider.list().await.unwrap()
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.provider.folder(self.runner).dir().to_owned()
    }

    pub(crate) fn pid(&self, file: &str) -> Option<i32> {
        let text = std::fs::read_to_string(self.folder().join(file)).ok()?;
        text.split(' ').next()?.trim().parse().ok()
    }

    /// The end of a machine that is looked at again and again, as a site does.
    pub(crate) async fn facts_of_a_watched_machine(&self) -> forgeyard_model::verdict::ExitFacts {
        self.watched(self.farm.facts()).await
    }

    /// Waits for something while the machine is looked at again and again. One look is not enough: it may find the last
    /// moments of an agent that was killed.
    pub(crate) async fn watched<T>(&self, awaited: impl Future<Output = T>) -> T {
        let watch = async {
            loop {
                self.provider_list().await;
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            found = awaited => found,
            () = watch => unreachable!("the watch has no end"),
        }
    }

    /// Kills the agent at once, as a crash would.
    pub(crate) async fn kill_agent(&self) {
        let pid = self.pid("agent/pid").unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        while alive(pid) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn agent_log(&self) -> String {
        std::fs::read_to_string(self.folder().join("agent/agent.log")).unwrap_or_default()
    }

    pub(crate) async fn end(self) {
        destroyed(&*self.provider, self.runner).await;
    }
}

/// Removes a machine as a site does: what is left after one try, because the host is busy, is looked for again.
pub(crate) async fn destroyed(provider: &dyn Provider, runner: RunnerId) {
    for _ in 0..12 {
        match provider.destroy(runner).await {
            Err(ProviderError::Left { left, .. }) => println!("left for now: {left}"),
            ended => return ended.unwrap(),
        }
    }
    panic!("machine {runner} is never gone");
}

impl Drop for Rig {
    fn drop(&mut self) {
        let (provider, runner, parent) = (self.provider.clone(), self.runner, self.cgroup_parent.clone());
        if std::thread::panicking() {
            println!("agent said:\n{}", self.agent_log());
        }
        // A failed test must leave nothing either; a runtime cannot be started inside another.
        let _ = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _ = runtime.block_on(provider.destroy(runner));
            for entry in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
                let _ = std::fs::remove_dir(entry.path().join(&parent));
            }
        })
        .join();
    }
}

pub(crate) fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    forgeyard_formats::linux::process_stat(&stat).is_some_and(|stat| stat.state != 'Z')
}

pub(crate) fn shell(steps: &[&str]) -> JobSpec {
    spec(json!({
        "steps": steps.iter().enumerate().map(|(number, script)| {
            json!({"name": format!("step-{number}"), "argv": ["/bin/sh", "-c", script]})
        }).collect::<Vec<_>>(),
    }))
}

pub(crate) fn spec(mut value: Value) -> JobSpec {
    value["flavor"] = json!("small");
    serde_json::from_value(value).unwrap()
}
