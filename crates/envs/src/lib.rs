//! Environments: locked sets of packages, made once under a prefix that is derived from the lock.
//!
//! [`make`] goes through five steps, each a function with a clear boundary; what is mounted instead of linked one day
//! replaces the third and nothing else:
//!
//! 1. **solve** ([`conda`]): specs and channels to records;
//! 2. **lock** ([`lock`]): records to a canonical list, its digest, and from that the name of the prefix;
//! 3. **materialise** ([`materialise`], [`prefixes`]): a complete prefix under its final name, or nothing;
//! 4. **activate** ([`conda`]): the variables that a program in the environment sees;
//! 5. **prove** ([`prove`]): run a program in it.
//!
//! Invariants:
//! - equal locks have the same prefix path on every host that uses the same root, so nothing is ever relocated;
//! - a path below the root whose name is a prefix name is complete, or a crash of the whole machine damaged it, which
//!   the marker in it tells; a crash of this program leaves only staging folders, which are swept;
//! - a package is used only if its bytes have the SHA-256 that the channel's index gives, and no package without one;
//! - every failure is an [`Explanation`]: what, where, and what to do.
//!
//! Packages come from channels that the caller trusts. Activation scripts and the program are code of those packages
//! and run with the rights of this process, within limits of time and output; link scripts are never run.

pub mod conda;
mod explain;
pub mod host;
pub mod lock;
pub mod prefixes;
pub mod prove;
pub mod service;

pub use host::VirtualPackage;
pub use lock::Lock;

use forgeyard_model::environment::{EnvironmentState, LockedPackage, ProofRun};
use forgeyard_model::{ChannelName, Digest, EnvironmentId, Explanation};
use std::path::PathBuf;
use std::time::Duration;

/// An environment to make.
#[derive(Debug, Clone)]
pub struct MakeRequest {
    /// Its id, for the log.
    pub id: EnvironmentId,
    /// Its name, for people.
    pub name: ChannelName,
    /// Channels by HTTP URL, most trusted first. The first is asked anew each time; the others may be cached as long as
    /// their server allows.
    pub channel_urls: Vec<String>,
    /// What it must hold, as conda match specs.
    pub specs: Vec<String>,
    /// Further certificate authority to trust when channels are read, PEM file.
    pub ca_file: Option<PathBuf>,
    /// Program and arguments to run as proof; empty = none.
    pub run: Vec<String>,
    /// Folder of all prefixes. Must be the same path wherever the environments are used.
    pub root_dir: PathBuf,
    /// Folder for packages and indexes; best on the same file system as the root, so that files are linked.
    pub cache_dir: PathBuf,
    /// Platform folder, for example `linux-64`.
    pub platform: String,
    /// What the host offers; see [`host::detect`].
    pub virtual_packages: Vec<VirtualPackage>,
    /// How long each step may take.
    pub limits: Limits,
}

/// How long each step may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Reading the indexes.
    pub fetch: Duration,
    /// Solving.
    pub solve: Duration,
    /// Fetching and linking packages.
    pub install: Duration,
    /// Activation scripts.
    pub activate: Duration,
    /// The program.
    pub run: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        Self {
            fetch: minutes(5),
            solve: minutes(2),
            install: minutes(30),
            activate: minutes(1),
            run: minutes(10),
        }
    }
}

/// An environment that is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// What it holds, sorted.
    pub lock: Vec<LockedPackage>,
    /// Digest of the canonical lock.
    pub lock_digest: Digest,
    /// Where it is.
    pub prefix: PathBuf,
    /// It was there already.
    pub reused: bool,
    /// The proof, when one was asked for.
    pub proof: Option<ProofRun>,
}

impl From<Made> for EnvironmentState {
    fn from(made: Made) -> Self {
        EnvironmentState::Ready {
            lock: made.lock,
            lock_digest: made.lock_digest,
            prefix: made.prefix.display().to_string(),
            proof: made.proof,
        }
    }
}

/// Makes an environment and proves it, or says why not.
pub async fn make(request: &MakeRequest) -> Result<Made, Explanation> {
    tracing::info!(environment = %request.id, name = %request.name, specs = ?request.specs, "making an environment");
    let root = prefixes::Root::open(&request.root_dir)?;
    let client = conda::client(request.ca_file.as_deref())?;
    let solved = conda::solve(&client, request).await?;
    let lock = solved.lock()?;
    let (prefix, reused) = materialise(&root, &client, &solved, &lock, request).await?;
    tracing::info!(environment = %request.id, prefix = %prefix.display(), reused, "the prefix is complete");
    let proof = if request.run.is_empty() {
        None
    } else {
        let scratch = prove::Scratch::new()?;
        let variables = conda::activate(&prefix, request, scratch.path()).await?;
        Some(prove::run(&request.run, &prefix, &variables, &scratch, request.limits.run).await?)
    };
    Ok(Made { lock_digest: lock.digest(), lock: lock.into_packages(), prefix, reused, proof })
}

/// Sees to it that the prefix of a lock exists and is complete. Answers where it is and whether it was there already.
pub async fn materialise(
    root: &prefixes::Root,
    client: &conda::Client,
    solved: &conda::Solved,
    lock: &Lock,
    request: &MakeRequest,
) -> Result<(PathBuf, bool), Explanation> {
    let prefix = root.prefix(lock)?;
    let Some(staging) = root.begin(lock).await? else { return Ok((prefix, true)) };
    conda::install(client, solved, request, staging.path(), &prefix).await?;
    staging.commit().await?;
    Ok((prefix, false))
}
