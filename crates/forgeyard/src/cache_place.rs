//! The build cache of a farm: its folder, the key of its tokens, its authority, and how it is started as configured.
//!
//! Beside the farm's data lies the folder `cache`: `token.key` (who has it can make tokens), `authority.json` (what the
//! cache goes by), `live.json` (attempts whose tokens hold) and `store`. The scopes come from `[cache]` in forgeyard.toml.

use crate::cache_address;
use crate::config::CacheConfig;
use crate::output::Wrong;
use anyhow::{Context as _, Result};
use ed25519_dalek::SigningKey;
use forgeyard_cache::authority::{Authority, Snapshot};
use forgeyard_cache::identity::Minter;
use forgeyard_cache::scope::ScopeRule;
use forgeyard_cache::service::{self, Options, Running, ServiceError};
use forgeyard_cache::store::log::Config;
use forgeyard_control::clock::Clock;
use forgeyard_model::config::RepositoryConfig;
use forgeyard_model::rules::Money;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Id of the key that signs tokens.
pub const KEY: &str = "farm";

fn folder(data: &Path) -> PathBuf {
    data.join("cache")
}

/// File of the authority of the cache.
pub fn authority_path(data: &Path) -> PathBuf {
    folder(data).join("authority.json")
}

/// The key that signs tokens; made at the first start.
pub fn signing_key(data: &Path) -> Result<SigningKey> {
    let path = folder(data).join("token.key");
    if !path.exists() {
        fs_err::create_dir_all(folder(data))?;
        let seed: [u8; 32] = rand::random();
        let beside = path.with_extension("new");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&beside)?;
        file.write_all(&seed)?;
        file.sync_all()?;
        fs_err::rename(&beside, &path)?;
    }
    let seed: [u8; 32] = fs_err::read(&path)?
        .try_into()
        .map_err(|_| Wrong::new(format!("{} is not a key of 32 bytes", path.display())))?;
    Ok(SigningKey::from_bytes(&seed))
}

/// Changes the authority's file as a whole, where the change says that there is one. Others who change it wait meanwhile.
pub fn change_authority(
    data: &Path,
    change: impl FnOnce(&mut Snapshot) -> Result<bool>,
) -> Result<(PathBuf, Snapshot)> {
    fs_err::create_dir_all(folder(data))?;
    let path = authority_path(data);
    let guard = std::fs::File::create(path.with_extension("lock"))?;
    guard.lock()?;
    let known = fs_err::read(&path);
    let mut snapshot: Snapshot = match &known {
        Ok(bytes) => serde_json::from_slice(bytes)
            .with_context(|| Wrong::new(format!("{} cannot be read", path.display())))?,
        Err(_) => Snapshot::default(),
    };
    if !change(&mut snapshot)? && known.is_ok() {
        return Ok((path, snapshot));
    }
    Authority::new(snapshot.clone())
        .map_err(|error| Wrong::new(error.to_string()).fix("correct [cache] in the configuration"))?;
    let beside = path.with_extension("json.new");
    fs_err::write(&beside, serde_json::to_vec_pretty(&snapshot)?)?;
    fs_err::rename(&beside, &path)?;
    Ok((path, snapshot))
}

/// The scopes as configured, with files that are found from anywhere.
pub fn scopes(config: &CacheConfig) -> Result<Vec<ScopeRule>> {
    let mut scopes = config.scopes.clone();
    for file in scopes.iter_mut().filter_map(|rule| rule.sign_key_file.as_mut()) {
        *file = std::path::absolute(&file)?;
    }
    Ok(scopes)
}

/// Starts the cache as configured, with what a CPU costs for an hour. Blocks while the index is read.
pub fn start(
    data: &Path,
    config: &CacheConfig,
    repositories: &[RepositoryConfig],
    price: Option<Money>,
) -> Result<Running> {
    let key = signing_key(data)?;
    let public = forgeyard_cache::authority::public_text(&key.verifying_key());
    let scopes = crate::cache_tokens::rules(scopes(config)?, config, repositories)?;
    let (authority, _) = change_authority(data, |snapshot| {
        snapshot.keys.insert(KEY.to_owned(), public);
        snapshot.scopes = scopes;
        snapshot.issuers = config.issuers.clone();
        snapshot.forget_ended(Clock::system().now());
        Ok(true)
    })?;
    if let Some(warning) = cache_address::warning(config)? {
        eprintln!("warning: {warning}");
    }
    let mut store = Config::new(folder(data).join("store"));
    store.capacity = config.capacity_gib.unwrap_or(50) << 30;
    store.durability = config.durability.unwrap_or(store.durability);
    store.compression = config.compression()?;
    store.tier = match &config.tier {
        Some(tier) => {
            let fix = "see docs/cache.md, Tier";
            Some(tier.config().map_err(|error| Wrong::new(error.to_string()).fix(fix))?)
        }
        None => None,
    };
    let clock = Clock::system();
    let options = Options {
        listen: cache_address::listen(config)?,
        tls: cache_address::tls(config)?,
        store,
        authority,
        largest: config.largest_mib.unwrap_or(8 << 10) << 20,
        threads: config.threads.unwrap_or(0),
        scrub_bytes: service::SCRUB_BYTES,
        clock: Arc::new(move || clock.now()),
    };
    let started = service::start_with(options, Some(Minter { id: KEY.to_owned(), key }));
    let mut running = started.map_err(|error| match error {
        ServiceError::Tls(error) => {
            anyhow::Error::from(Wrong::new(error.to_string()).fix(format!("{} ([cache.tls])", error.fix())))
        }
        error => error.into(),
    })?;
    if let Some(price) = price {
        running.price(price);
    }
    if !config.warm.is_empty() {
        let fix = "correct [[cache.warm]] in the configuration";
        let started = running.warm(config.warm.clone(), folder(data).join("mirrors"));
        started.map_err(|error| Wrong::new(error.to_string()).fix(fix))?;
    }
    match running.local {
        Some(local) => {
            println!("cache:   https://{}/", running.address);
            println!("         http://{local}/ on this host");
        }
        None => println!("cache:   http://{}/", running.address),
    }
    Ok(running)
}
