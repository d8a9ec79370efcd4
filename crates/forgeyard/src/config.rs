//! `forgeyard.toml`: what an operator writes, and the defaults of everything that is not written.
//!
//! Secrets are never in it: keys of Apps and secrets of webhooks come from files (`[[forges]]` is in `connect.rs`), and that of
//! a farm without connections from `FORGEYARD_WEBHOOK_SECRET` or a file.

mod cache;
mod check;

use crate::output::Wrong;
use anyhow::{Context as _, Result};
use forgeyard_formats::{access, toml_text};
use forgeyard_model::access::{Access, HOME};
use forgeyard_model::config::{FarmConfig, Flavors, RepositoryConfig};
use forgeyard_model::resources::{Flavor, GpuRequest, Image, ImageRoot, Isolation, Pool};
use forgeyard_model::rules::{Money, QueueRules};
use forgeyard_model::who::ForgeId;
use forgeyard_model::{ForgeName, Secret};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub use cache::CacheConfig;
use check::check;

/// Where a farm listens when nothing else is said.
pub const ADDRESS: &str = "127.0.0.1:8417";

/// TLS by files.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Tls {
    /// Certificate chain, PEM.
    pub certificate: PathBuf,
    /// Key, PEM.
    pub key: PathBuf,
}

/// The file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FileConfig {
    /// Name of the farm.
    pub farm: Option<String>,
    /// Where to listen.
    pub listen: Option<SocketAddr>,
    /// With TLS: where the services of this host reach the farm without it. A loopback address; by default the port
    /// after that of `listen`.
    pub local_listen: Option<SocketAddr>,
    /// How people reach it.
    pub public_url: Option<String>,
    /// Database: `sqlite:` (in the data folder) or `postgres://…`.
    pub database: Option<String>,
    /// TLS by files.
    pub tls: Option<Tls>,
    /// File with the secret of webhooks.
    pub webhook_secret_file: Option<PathBuf>,
    /// Connections to forges.
    #[serde(default)]
    pub forges: Vec<crate::connect::ForgeConfig>,
    /// File with who may use what.
    pub access: Option<PathBuf>,
    /// Repositories.
    #[serde(default)]
    pub repositories: Vec<RepositoryConfig>,
    /// Pools, in order of preference.
    pub pools: Option<Vec<Pool>>,
    /// Shapes.
    pub flavors: Option<Vec<Flavor>>,
    /// Images.
    pub images: Option<Vec<Image>>,
    /// Which flavor each kind of job gets.
    pub use_flavors: Option<Flavors>,
    /// Attempts at once.
    pub max_running: Option<u32>,
    /// Caps, budgets and the order of the queue.
    #[serde(default)]
    pub queue: QueueRules,
    /// Where the conda build engine is.
    pub engine: Option<PathBuf>,
    /// Largest artifact, in MiB.
    pub artifact_limit_mib: Option<u64>,
    /// Offer the simulated GPU beside real ones.
    #[serde(default)]
    pub simulated_beside_real: bool,
    /// The build cache; without it, `up` runs none.
    pub cache: Option<CacheConfig>,
}

/// A name that is written here.
fn name<T: std::str::FromStr>(text: &str) -> Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse().with_context(|| format!("the built-in name `{text}`"))
}

/// What this host offers, for the defaults.
#[derive(Debug, Clone, Copy)]
pub struct HostSize {
    /// CPUs.
    pub cpus: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
}

impl HostSize {
    /// Of this machine.
    pub fn here() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let text = fs_err::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib: u64 = total.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(1 << 20);
        Self { cpus, memory_mib: kib / 1024 }
    }
}

impl FileConfig {
    /// Reads the file, when there is one.
    pub fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = fs_err::read_to_string(path)
            .context(Wrong::new(format!("cannot read the configuration {}", path.display())))?;
        toml_text::read(&path.display().to_string(), &text)
            .map_err(|error| Wrong::new(error.to_string()).into())
    }

    /// Secret of webhooks of the forge `github`, for a farm whose connections name none: the environment first, then
    /// the file.
    pub fn webhook_secret(&self) -> Result<Option<Secret>> {
        if let Ok(text) = std::env::var("FORGEYARD_WEBHOOK_SECRET") {
            return Ok(Some(Secret::new(text)));
        }
        self.webhook_secret_file.as_deref().map(crate::connect::webhook_secret).transpose()
    }

    /// Where the engine is: the file, then `FORGEYARD_ENGINE`, then the usual place.
    pub fn engine(&self) -> PathBuf {
        let from_environment = || std::env::var_os("FORGEYARD_ENGINE").map(PathBuf::from);
        self.engine.clone().or_else(from_environment).unwrap_or_else(|| "/opt/forgeyard/engine".into())
    }

    /// Names of the forges of the farm: connections first, then those of repositories alone.
    fn forge_names(&self) -> Vec<&ForgeName> {
        let mut names: Vec<&ForgeName> = Vec::new();
        let connected = self.forges.iter().map(|forge| &forge.name);
        for name in connected.chain(self.repositories.iter().map(|repository| &repository.forge)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Says of which forge numbers are that stand alone: that of a farm with one; of several, the one that the access file
    /// names. A number whose forge is open opens nothing: the file is refused.
    fn homed(&self, mut access: Access) -> Result<Access> {
        let names = self.forge_names();
        let shown = || names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let of_people = self.queue.caps.people.keys();
        let numbers: Vec<(String, ForgeId)> = access
            .numbers()
            .into_iter()
            .chain(of_people.map(|id| ("[queue.caps.people]".to_owned(), id.clone())))
            .collect();
        let unknown = |forge: &ForgeName| !names.is_empty() && !names.contains(&forge);
        if let Some(forge) = access.forge.as_ref().filter(|forge| unknown(forge)) {
            let text = format!("the access file is about the forge `{forge}`; this farm has {}", shown());
            return Err(Wrong::new(text).fix("write one of these as `forge` of the access file").into());
        }
        let strange = |(_, id): &&(String, ForgeId)| id.forge.as_ref().is_some_and(unknown);
        if let Some((place, id)) = numbers.iter().find(strange) {
            let text = format!("{place} names \"{id}\", and this farm has only {}", shown());
            return Err(Wrong::new(text).fix("write a forge of this farm, or connect that one").into());
        }
        match names.as_slice() {
            [] => {}
            [one] => {
                access.forge = access.forge.or_else(|| Some((*one).clone())).filter(|it| it.as_str() != HOME)
            }
            [first, second, ..] if access.forge.is_none() => {
                if let Some((place, id)) = numbers.iter().find(|(_, id)| id.forge.is_none()) {
                    let text = format!(
                        "{place} names {id}, and this farm has the forges {}: {id} is somebody else at each of them",
                        shown()
                    );
                    return Err(Wrong::new(text)
                        .fix(format!(
                            "write `forge = \"{first}\"` at the top of the access file for all numbers that stand alone, and \
                             \"{second}:{id}\" for those of {second}"
                        ))
                        .into());
                }
            }
            _ => {}
        }
        Ok(access)
    }

    /// The configuration that decisions are made under.
    pub fn farm(&self, host: HostSize) -> Result<FarmConfig> {
        let engine = self.engine();
        let access = match &self.access {
            Some(path) => {
                let text = fs_err::read_to_string(path)
                    .context(Wrong::new(format!("cannot read the access file {}", path.display())))?;
                access::read(&path.display().to_string(), &text)
                    .map_err(|error| Wrong::new(error.to_string()))?
            }
            None => Access::default(),
        };
        let flavors = match &self.flavors {
            Some(flavors) => flavors.clone(),
            None => default_flavors(host)?,
        };
        let images = match &self.images {
            Some(images) => images.clone(),
            None => vec![Image {
                name: name("host")?,
                root: ImageRoot::Host { allow: vec![engine.display().to_string()] },
            }],
        };
        let pools = match &self.pools {
            Some(pools) => pools.clone(),
            None => vec![Pool::new(
                name("local")?,
                name("sandbox")?,
                flavors.iter().map(|flavor| flavor.name.clone()).collect(),
                images.first().map_or_else(|| name("host"), |image| Ok(image.name.clone()))?,
                Isolation::SharedKernel,
                8,
            )],
        };
        let use_flavors = match &self.use_flavors {
            Some(flavors) => flavors.clone(),
            None => Flavors {
                plan: name("small")?,
                build: name("build")?,
                test: name("small")?,
                gpu_test: name("gpu")?,
            },
        };
        let access = self.homed(access)?;
        let config = FarmConfig {
            farm: self.farm.clone().unwrap_or_else(|| "forgeyard".to_owned()),
            pools,
            flavors,
            images,
            use_flavors,
            repositories: self.repositories.clone(),
            access,
            max_running: self.max_running.unwrap_or(16),
            queue: self.rules(),
            folder_channel: name("folders")?,
            engine_path: engine.display().to_string(),
        };
        check(&config)?;
        if let Some(cache) = &self.cache {
            cache::warm(cache, &config)?;
        }
        Ok(config)
    }

    /// What a CPU costs for an hour: as it is written, or the price of the shape of builds in the first pool that offers it,
    /// for one of its CPUs.
    pub fn price_per_cpu_hour(&self, farm: &FarmConfig) -> Option<Money> {
        let written = self.cache.as_ref().and_then(|cache| cache.price_per_cpu_hour);
        written.or_else(|| {
            let flavor = farm.flavor(&farm.use_flavors.build)?;
            let pool = farm.pools.iter().find(|pool| pool.flavors.contains(&flavor.name))?;
            let Money(whole) = self.queue.per_hour(&pool.name, &flavor.name);
            let part = whole.saturating_mul(1000).checked_div(u64::from(flavor.cpu_millis))?;
            (part > 0).then_some(Money(part))
        })
    }
}

impl FileConfig {
    /// Rules of the queue, with how fast each GitHub lets its Apps register runners where that is not written.
    fn rules(&self) -> QueueRules {
        let mut rules = self.queue.clone();
        for forge in &self.forges {
            if let Some(rate) = forge.registrations_per_minute() {
                rules.registrations_per_minute.entry(forge.name.clone()).or_insert(rate);
            }
        }
        rules
    }
}

fn default_flavors(host: HostSize) -> Result<Vec<Flavor>> {
    let build = (host.memory_mib * 7 / 10).max(512);
    let flavor =
        |text: &str, cpus: u32, memory_mib: u64, disk_mib: u64, hours: u64, gpu: bool| -> Result<Flavor> {
            Ok(Flavor {
                name: name(text)?,
                cpu_millis: cpus * 1000,
                memory_mib,
                disk_mib,
                processes: 4096,
                time_limit_seconds: hours * 3600,
                gpu: gpu.then_some(GpuRequest {
                    count: 1,
                    kind: None,
                    min_memory_mib: 0,
                    min_compute_capability: 0,
                }),
                network: false,
            })
        };
    Ok(vec![
        flavor("small", 1, (host.memory_mib / 8).clamp(512, 4096), 8 << 10, 1, false)?,
        flavor("build", host.cpus, build, 64 << 10, 12, false)?,
        flavor("gpu", host.cpus, (host.memory_mib / 2).max(512), 32 << 10, 6, true)?,
    ])
}

#[cfg(test)]
mod tests;
