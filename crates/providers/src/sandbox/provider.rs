//! [`SandboxProvider`]: the contract of a provider, kept with the parts beside this file.

use crate::sandbox::cgroup::Groups;
use crate::sandbox::image::{self, ImageSource};
use crate::sandbox::oci::{self, Parts, Shown};
use crate::sandbox::probe;
use crate::sandbox::process::{agent_lives, start_agent};
use crate::sandbox::remove::{Remains, unmount_below};
use crate::sandbox::root::{self, Wanted};
use crate::sandbox::users;
use crate::{Error, MachineSpec, Provider, ProviderFacts};
use forgeyard_model::machine::{
    self, CgroupFile, INSIDE_INIT, IdRange, MachineFile, MachineFolder, RuntimeFile,
};
use forgeyard_model::name::ProviderName;
use forgeyard_model::resources::{ImageRoot, Limit};
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::{Explanation, RunnerId};
use nix::mount::{MsFlags, mount};
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Users of one machine.
const IDS: u32 = 65_536;
/// Machines that can exist at once, by users.
const SLOTS: u32 = 2048;
/// User of the job, inside.
const JOB: u32 = 1000;

/// How the provider is set up.
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// Its name.
    pub name: ProviderName,
    /// Where machines and images are kept; for root only.
    pub state_dir: PathBuf,
    /// Where roots of containers are put together. Every user must be able to pass through to it, so it is not below
    /// a home. Default: [`SandboxConfig::RUN_DIR`].
    pub run_dir: PathBuf,
    /// Program and first arguments of the agent, for example `/usr/bin/forgeyard agent`. The program is also process 1 of
    /// each container, so it must be statically linked for images with other libraries than this host's.
    pub agent: Vec<String>,
    /// The OCI runtime; looked for when absent.
    pub runc: Option<PathBuf>,
    /// The container monitor; looked for when absent.
    pub conmon: Option<PathBuf>,
    /// Control group that all machines are below. Default: [`SandboxConfig::CGROUP`].
    pub cgroup_parent: String,
    /// First user id of the host that machines are mapped to. Default: [`SandboxConfig::FIRST_ID`].
    pub first_id: u32,
}

impl SandboxConfig {
    /// Where roots are put together, usually.
    pub const RUN_DIR: &str = "/run/forgeyard";
    /// Control group of all machines, usually.
    pub const CGROUP: &str = "forgeyard";
    /// First user id, usually: above what systemd, containers and directories hand out.
    pub const FIRST_ID: u32 = 2_000_000_000;

    /// A configuration with the usual values.
    pub fn new(name: ProviderName, state_dir: PathBuf, agent: Vec<String>) -> Self {
        Self {
            name,
            state_dir,
            run_dir: Self::RUN_DIR.into(),
            agent,
            runc: None,
            conmon: None,
            cgroup_parent: Self::CGROUP.to_owned(),
            first_id: Self::FIRST_ID,
        }
    }
}

/// Makes sandboxes on this host. One process at a time may use a state folder.
pub struct SandboxProvider {
    config: SandboxConfig,
    images: Arc<dyn ImageSource>,
    /// Machines that are being made or removed by this process.
    busy: Mutex<BTreeSet<RunnerId>>,
}

/// Takes a machine out of `busy` when what was done with it is over.
struct Busy<'a> {
    provider: &'a SandboxProvider,
    runner: RunnerId,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.provider.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.runner);
    }
}

impl SandboxProvider {
    /// A provider. `images` gives the bytes of `rootfs` images. Touches nothing yet.
    pub fn new(config: SandboxConfig, images: Arc<dyn ImageSource>) -> Self {
        Self { config, images, busy: Mutex::default() }
    }

    /// The folder of a machine.
    pub fn folder(&self, runner: RunnerId) -> MachineFolder {
        MachineFolder::new(self.runners().join(runner.to_string()))
    }

    fn runners(&self) -> PathBuf {
        self.config.state_dir.join("runners")
    }

    fn run(&self, runner: RunnerId) -> PathBuf {
        self.config.run_dir.join(runner.to_string())
    }

    fn runc_state(&self) -> PathBuf {
        self.config.run_dir.join("runc")
    }

    fn groups(&self) -> Result<Groups, Error> {
        Groups::detect(&self.config.cgroup_parent)
    }

    fn claim(&self, runner: RunnerId) -> Option<Busy<'_>> {
        // The guard is made after the lock is given back, and only when the claim was new: dropping it takes the lock.
        let new = self.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(runner);
        new.then(|| Busy { provider: self, runner })
    }

    /// Waits until nobody else works on the machine.
    async fn claim_waiting(&self, runner: RunnerId) -> Busy<'_> {
        loop {
            if let Some(busy) = self.claim(runner) {
                return busy;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    async fn programs(&self) -> Result<RuntimeFile, Error> {
        probe::possible()?;
        let program = |given: &Option<PathBuf>, name| given.clone().map_or_else(|| probe::find(name), Ok);
        let (runc, conmon) = (program(&self.config.runc, "runc")?, program(&self.config.conmon, "conmon")?);
        tokio::try_join!(probe::answers(&runc), probe::answers(&conmon))?;
        let mut init = vec![INSIDE_INIT.to_owned()];
        init.extend(self.config.agent.iter().skip(1).cloned());
        init.push("init".to_owned());
        Ok(RuntimeFile { runc, conmon, state: self.runc_state(), init })
    }

    /// Refuses what cannot be done here, before anything is touched.
    fn refuse(&self, spec: &MachineSpec, facts: &ProviderFacts) -> Result<Vec<PathBuf>, Error> {
        for limit in &spec.needs {
            if *limit == Limit::Network && spec.flavor.network {
                let reason = format!("flavor {} gives the network of the host", spec.flavor.name);
                return Err(Error::CannotEnforce { limit: *limit, reason });
            }
            if !facts.enforces.contains(limit) {
                let known =
                    facts.cannot.iter().find(|(cannot, _)| cannot == limit).map(|(_, reason)| reason.clone());
                let reason = known.unwrap_or_else(|| "not supported".to_owned());
                return Err(Error::CannotEnforce { limit: *limit, reason });
            }
        }
        match &spec.image.root {
            ImageRoot::Host { allow } => {
                let ours = [self.config.state_dir.as_path(), self.config.run_dir.as_path()];
                root::check_allowed(allow, &ours)
                    .map_err(|reason| Error::Image { image: spec.image.name.to_string(), reason })
            }
            ImageRoot::Rootfs { .. } => Ok(Vec::new()),
        }
    }

    /// Makes everything and writes `machine.json` last.
    async fn make(
        &self,
        spec: &MachineSpec,
        facts: &ProviderFacts,
        runtime: RuntimeFile,
        allow: &[PathBuf],
    ) -> Result<(), Error> {
        let folder = self.folder(spec.runner);
        private(&self.config.state_dir)?;
        passable(&self.config.run_dir)?;
        passable(&self.runc_state())?;
        let tree = match &spec.image.root {
            ImageRoot::Rootfs { digest } => {
                let images = self.config.state_dir.join("images");
                Some(image::ready(&images, *digest, self.images.as_ref()).await?)
            }
            ImageRoot::Host { .. } => None,
        };
        let ids = self.range(&folder).await?;
        let cgroup = self.groups()?.create(spec.runner, &spec.flavor)?;
        folders(&folder, ids)?;
        let root = self.run(spec.runner).join("root");
        let shown = self.root(spec, &folder, &root, tree.as_deref(), allow)?;
        let template = oci::template(&Parts {
            folder: &folder,
            root: &root,
            shown: &shown,
            init: Path::new(self.config.agent.first().map_or("", String::as_str)),
            ids,
            devices: &spec.devices,
            network: spec.flavor.network,
            memory_mib: spec.flavor.memory_mib,
            hostname: "job",
        })?;
        write_private(&folder.bundle_template(), template.to_string().as_bytes())?;
        write_private(&folder.token(), spec.agent.token.expose().as_bytes())?;
        let file = machine_file(spec, facts, runtime, cgroup, ids);
        let text = serde_json::to_vec_pretty(&file)
            .map_err(|error| failed("write", &folder.machine_file(), error.into()))?;
        write_private(&folder.machine_file(), &text)
    }

    /// Chooses user ids that no other machine of this host has, and writes the choice down.
    async fn range(&self, folder: &MachineFolder) -> Result<IdRange, Error> {
        private(folder.dir())?;
        let (users, machine) = (self.config.run_dir.join("users"), folder.dir().to_owned());
        private(&users)?;
        let chosen = tokio::task::spawn_blocking(move || users::choose(&users, &machine, SLOTS)).await;
        let base = match chosen.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(Some(slot)) => {
                slot.checked_mul(IDS).and_then(|offset| self.config.first_id.checked_add(offset))
            }
            Ok(None) => None,
            Err(source) => return Err(failed("choose users for", folder.dir(), source)),
        };
        let full = || failed("choose users for", folder.dir(), std::io::Error::other("all ranges are taken"));
        Ok(IdRange { base: base.ok_or_else(full)?, count: IDS, job: JOB })
    }

    fn root(
        &self,
        spec: &MachineSpec,
        folder: &MachineFolder,
        root: &Path,
        tree: Option<&Path>,
        allow: &[PathBuf],
    ) -> Result<Vec<Shown>, Error> {
        passable(&self.run(spec.runner))?;
        std::fs::create_dir_all(root).map_err(|source| failed("make", root, source))?;
        let wanted = Wanted {
            allow,
            devices: !spec.devices.is_empty(),
            network: spec.flavor.network,
            hostname: "job",
            job: JOB,
        };
        let Some(tree) = tree else { return root::host(root, &wanted) };
        let (upper, work) = (folder.dir().join("overlay/upper"), folder.dir().join("overlay/work"));
        for path in [&upper, &work] {
            std::fs::create_dir_all(path).map_err(|source| failed("make", path, source))?;
        }
        // An earlier try may have left one.
        unmount_below(root)?;
        let options =
            format!("lowerdir={},upperdir={},workdir={}", tree.display(), upper.display(), work.display());
        mount(
            Some("overlay"),
            root,
            Some("overlay"),
            MsFlags::MS_NODEV | MsFlags::MS_NOSUID,
            Some(options.as_str()),
        )
        .map_err(|errno| failed("mount the overlay at", root, errno.into()))?;
        root::tree(root, &wanted)
    }

    fn remains(&self, runner: RunnerId) -> Result<Remains, Error> {
        // Without a runtime there is no container either; its absence must not keep the rest from going.
        let runc =
            self.config.runc.clone().or_else(|| probe::find("runc").ok()).unwrap_or_else(|| "runc".into());
        Ok(Remains {
            runner,
            folder: self.folder(runner),
            run: self.run(runner),
            runc_state: self.runc_state(),
            runc,
            groups: self.groups()?,
        })
    }

    async fn remove(&self, runner: RunnerId) -> Result<(), Error> {
        let remains = self.remains(runner)?;
        let removed = tokio::task::spawn_blocking(move || remains.remove()).await;
        removed.unwrap_or_else(|error| {
            Err(Error::Failed {
                action: "remove",
                object: runner.to_string(),
                source: std::io::Error::other(error),
            })
        })
    }

    /// What is seen of one machine; brings back its agent if that has died.
    async fn observe(&self, runner: RunnerId) -> Result<ObservedRunner, Error> {
        let folder = self.folder(runner);
        let seen = |state, enforced| Ok(ObservedRunner { runner, state, enforced });
        let Some(busy) = self.claim(runner) else { return seen(ObservedState::Creating, BTreeSet::new()) };
        let file: MachineFile =
            match std::fs::read(folder.machine_file()).map(|bytes| serde_json::from_slice(&bytes)) {
                Ok(Ok(file)) => file,
                Ok(Err(error)) => {
                    let reason = Explanation::new("sandbox.broken", "its machine file cannot be read")
                        .with(error.to_string());
                    return seen(ObservedState::Failed { reason }, BTreeSet::new());
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    let reason = Explanation::new("sandbox.incomplete", "making it was interrupted");
                    return seen(ObservedState::Failed { reason }, BTreeSet::new());
                }
                Err(source) => return Err(failed("read", &folder.machine_file(), source)),
            };
        let state = if let Ok(how) = std::fs::read_to_string(folder.finished()) {
            let reason = Explanation::new("agent.finished", "its agent has done its work").with(how);
            ObservedState::Exited { reason }
        } else if agent_lives(&folder) || start_agent(&self.config.agent, &folder).await? {
            ObservedState::Running
        } else {
            let reason = Explanation::new("agent.keeps_dying", "its agent died again and again")
                .with(format!("see {}", folder.agent().join("agent.log").display()));
            ObservedState::Exited { reason }
        };
        drop(busy);
        seen(state, file.enforced)
    }
}

#[async_trait::async_trait]
impl Provider for SandboxProvider {
    fn name(&self) -> ProviderName {
        self.config.name.clone()
    }

    async fn facts(&self) -> Result<ProviderFacts, Error> {
        self.programs().await?;
        Ok(probe::facts(&self.groups()?))
    }

    async fn create(&self, spec: &MachineSpec) -> Result<(), Error> {
        let _busy = self.claim_waiting(spec.runner).await;
        let folder = self.folder(spec.runner);
        if !folder.machine_file().exists() {
            let runtime = self.programs().await?;
            let facts = probe::facts(&self.groups()?);
            let allow = self.refuse(spec, &facts)?;
            if let Err(error) = self.make(spec, &facts, runtime, &allow).await {
                if let Err(left) = self.remove(spec.runner).await {
                    tracing::error!(runner = %spec.runner, error = %left, "cannot clean up after a failed start");
                }
                return Err(error);
            }
        }
        if folder.finished().exists() || agent_lives(&folder) {
            return Ok(());
        }
        start_agent(&self.config.agent, &folder).await.map(drop)
    }

    async fn list(&self) -> Result<Vec<ObservedRunner>, Error> {
        let runners = self.runners();
        let entries = match std::fs::read_dir(&runners) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(failed("read", &runners, source)),
        };
        let mut seen = Vec::new();
        for entry in entries.flatten() {
            if let Some(runner) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                seen.push(self.observe(runner).await?);
            }
        }
        Ok(seen)
    }

    async fn destroy(&self, runner: RunnerId) -> Result<(), Error> {
        let _busy = self.claim_waiting(runner).await;
        self.remove(runner).await
    }
}

fn machine_file(
    spec: &MachineSpec,
    facts: &ProviderFacts,
    runtime: RuntimeFile,
    cgroup: CgroupFile,
    ids: IdRange,
) -> MachineFile {
    let mut enforced = facts.enforces.clone();
    if spec.flavor.network {
        enforced.remove(&Limit::Network);
    }
    MachineFile {
        version: machine::VERSION,
        runner: spec.runner,
        flavor: spec.flavor.clone(),
        devices: spec.devices.clone(),
        enforced,
        image: match spec.image.root {
            ImageRoot::Rootfs { digest } => Some(digest),
            ImageRoot::Host { .. } => None,
        },
        farm_url: spec.agent.farm_url.clone(),
        ca_file: spec.agent.ca_file.clone(),
        runtime,
        cgroup,
        ids,
    }
}

/// Makes the folders of agent and job, with their owners.
fn folders(folder: &MachineFolder, ids: IdRange) -> Result<(), Error> {
    for path in [folder.agent(), folder.bundles()] {
        private(&path)?;
    }
    let input = folder.input();
    std::fs::create_dir_all(&input).map_err(|source| failed("make", &input, source))?;
    let job = Some(ids.host_job());
    for path in [folder.work(), folder.out(), folder.tmp(), folder.work().join("home")] {
        std::fs::create_dir_all(&path)
            .and_then(|()| chown(&path, job, job))
            .map_err(|source| failed("make", &path, source))?;
    }
    let sticky = Permissions::from_mode(0o1777);
    std::fs::set_permissions(folder.tmp(), sticky).map_err(|source| failed("open up", &folder.tmp(), source))
}

/// Makes a folder that only root may enter.
fn private(path: &Path) -> Result<(), Error> {
    with_mode(path, 0o700)
}

/// Makes a folder that others may pass through.
fn passable(path: &Path) -> Result<(), Error> {
    with_mode(path, 0o711)
}

fn with_mode(path: &Path, mode: u32) -> Result<(), Error> {
    std::fs::create_dir_all(path)
        .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(mode)))
        .map_err(|source| failed("make", path, source))
}

/// Replaces a file that only root may read.
fn write_private(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let fresh = path.with_extension("new");
    std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&fresh, path))
        .map_err(|source| failed("write", path, source))
}

fn failed(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::Failed { action, object: path.display().to_string(), source }
}
