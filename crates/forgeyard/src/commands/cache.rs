//! `forgeyard cache`: runs the build cache, makes its tokens, looks at its entries and removes them.

mod tables;

use crate::cache_address;
use crate::cache_place::{KEY, authority_path, change_authority, scopes, signing_key, start};
use crate::config::{CacheConfig, FileConfig, HostSize};
use crate::output::{self, Wrong, table_or};
use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use ed25519_dalek::SigningKey;
use forgeyard_api::client::HttpOptions;
use forgeyard_cache::admin::{Removed, Stat};
use forgeyard_cache::authority::{Authority, Snapshot};
use forgeyard_cache::budget::{Report, Verdict};
use forgeyard_cache::helper::{self, settings::Settings};
use forgeyard_cache::readers::Reading;
use forgeyard_cache::scope::ScopePath;
use forgeyard_cache::signature::with_keys;
use forgeyard_cache::store::Listed;
use forgeyard_cache::token::{self, Access, Claims};
use forgeyard_control::clock::Clock;
use forgeyard_model::Secret;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tables::{readings_table, size, stat_table};

/// Folder and configuration.
#[derive(Args, Clone)]
pub struct PlaceArgs {
    /// Folder of the farm.
    #[arg(long, env = "FORGEYARD_DATA", default_value = "forgeyard-data", value_name = "FOLDER")]
    data: PathBuf,
    /// Configuration; its part `[cache]` says which scopes there are.
    #[arg(long, env = "FORGEYARD_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// How the cache is reached by those who look after it.
#[derive(Args, Clone)]
pub struct AdminArgs {
    /// Address of the cache; by default where the configuration says that it listens, else http://127.0.0.1:8420.
    #[arg(long, env = "FORGEYARD_CACHE_URL", value_name = "URL")]
    cache: Option<String>,
    /// Further certificate authority to trust, PEM.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    place: PlaceArgs,
}

/// What can be done with the cache.
#[derive(Subcommand, Clone)]
pub enum CacheCommand {
    /// Run the build cache alone.
    Run(PlaceArgs),
    /// Print a token for a scope.
    Token(TokenArgs),
    /// Take tokens back: one by its id, or all that were ever made.
    Revoke {
        /// Id of the token.
        #[arg(required_unless_present = "all")]
        id: Option<String>,
        /// All tokens.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Print the public key that signs what Nix reads from a scope, and the lines that its readers need.
    Key {
        /// The scope.
        scope: String,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Serve as the storage helper of ccache 4.13 and later. ccache starts it by itself, through a link called
    /// ccache-storage-forgeyard to this program, and says in CRSH_* variables what to do.
    Crsh,
    /// Run a command with the cache: sccache, ccache, Bazel, Nix and GitHub's clients find it in their environment. A
    /// cache that is gone, hangs or fails is an empty one, so the command does not suffer from it.
    Relay(super::relay::RelayArgs),
    /// Show what the scopes hold, how they are hit, and what that saves.
    Stat(AdminArgs),
    /// Fetch what [[cache.warm]] names now: mirrors of repositories, containers, inputs. The cache does the same by itself,
    /// on its schedule. Ends with 1 when a source fails.
    Prewarm(super::prewarm::PrewarmArgs),
    /// Look whether a scope is hit as often as its budget asks for. Ends with 1 and the cause when it is not.
    Check {
        /// The scope.
        scope: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// List the entries of a scope, and who wrote them.
    Ls {
        /// The scope.
        scope: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Remove the entries of a scope.
    Rm {
        /// The scope.
        scope: String,
        /// Only those whose key begins so.
        #[arg(long, default_value = "")]
        prefix: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Show who read the entries of a writer or a scope: the builds to look at when they were poisoned.
    WhoRead {
        /// Principal or run that wrote them, as `forgeyard cache ls` shows it.
        #[arg(long, required_unless_present = "scope")]
        writer: Option<String>,
        /// The scope that they are in; all when left out.
        #[arg(long)]
        scope: Option<String>,
        /// Only those whose key begins so.
        #[arg(long, default_value = "")]
        prefix: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Remove everything that a principal or a run wrote, in every scope.
    Purge {
        /// Principal or run, as `forgeyard cache ls` shows it.
        #[arg(long)]
        writer: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// What a token is to allow.
#[derive(Args, Clone)]
pub struct TokenArgs {
    /// The scope that it writes, and from which it reads upwards.
    scope: String,
    /// Who will hold it: the name in the provenance of entries.
    #[arg(long, default_value = "someone")]
    name: String,
    /// The run that it is for.
    #[arg(long)]
    run: Option<String>,
    /// Reads only.
    #[arg(long)]
    read_only: bool,
    /// Release mode: reads no parents.
    #[arg(long)]
    cold: bool,
    /// Print it as a JWT, as GitHub's official clients want it in ACTIONS_RUNTIME_TOKEN.
    #[arg(long)]
    jwt: bool,
    /// How long it holds.
    #[arg(long, default_value_t = 24)]
    hours: u64,
    #[command(flatten)]
    place: PlaceArgs,
}

/// The public key of a scope, with what a reader writes into nix.conf.
fn public_key(scope: &str, config: &CacheConfig) -> Result<String> {
    let scope: ScopePath = scope.parse().map_err(|error| Wrong::new(format!("{error}")))?;
    let snapshot = Snapshot { scopes: scopes(config)?, ..Snapshot::default() };
    let authority =
        Authority::new(snapshot).and_then(|authority| with_keys(authority, |path| fs_err::read(path)));
    let signer =
        authority.map_err(|error| Wrong::new(error.to_string()))?.signer(&scope).ok_or_else(|| {
            Wrong::new(format!("scope `{scope}` has no key that signs for Nix")).fix(
                "make one with `nix key generate-secret` and name its file as `sign-key-file` of the scope",
            )
        })?;
    let address = cache_address::of_jobs(config)?;
    let address = address.trim_end_matches('/');
    let public = signer.public();
    Ok(format!(
        "{public}\n\nnix.conf of whoever reads:\nextra-substituters = {address}/{scope}/-/nix\n\
         extra-trusted-public-keys = {public}\n"
    ))
}

pub(crate) fn claims(
    data: &Path,
    scope: &str,
    name: &str,
    access: Access,
    life: Duration,
) -> Result<(Claims, SigningKey)> {
    let epoch = match fs_err::read(authority_path(data)) {
        Ok(bytes) => serde_json::from_slice::<Snapshot>(&bytes)?.epoch,
        Err(_) => 0,
    };
    let scope = scope.parse().map_err(|error| Wrong::new(format!("{error}")))?;
    let claims = Claims {
        id: format!("{:016x}", rand::random::<u64>()),
        key: KEY.to_owned(),
        principal: name.to_owned(),
        scope,
        access,
        expires_at: Clock::system().now().plus(life),
        epoch,
        cold: false,
        listed: false,
        run: None,
    };
    Ok((claims, signing_key(data)?))
}

/// The cache, asked with a token of access `admin`.
pub(crate) struct Admin {
    url: String,
    token: Secret,
    client: reqwest::Client,
}

impl AdminArgs {
    pub(super) fn admin(&self) -> Result<Admin> {
        let token = match std::env::var("FORGEYARD_CACHE_TOKEN") {
            Ok(token) => Secret::new(token),
            Err(_) => {
                let life = Duration::from_secs(600);
                let (claims, key) =
                    claims(&self.place.data, "admin", "forgeyard cache", Access::Admin, life)?;
                token::mint(&claims, &key)?
            }
        };
        let cache = match &self.cache {
            Some(cache) => cache.clone(),
            None => {
                let file = FileConfig::read(self.place.config.as_deref())?;
                cache_address::of_this_host(&file.cache.unwrap_or_default())?
            }
        };
        Admin::new(&cache, token, self.ca_file.clone())
    }
}

impl Admin {
    /// Of the cache at this address.
    pub(crate) fn new(cache: &str, token: Secret, ca_file: Option<PathBuf>) -> Result<Self> {
        let options = HttpOptions { ca_file, ..HttpOptions::default() };
        let client = forgeyard_api::client::http::build(&options)?;
        Ok(Self { url: format!("{}/-/admin", cache.trim_end_matches('/')), token, client })
    }

    /// The text of an answer.
    pub(crate) async fn ask(
        &self,
        method: reqwest::Method,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<String> {
        let pairs: Vec<String> =
            query.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
        let url = format!("{}/{path}?{}", self.url, pairs.join("&"));
        let request = self.client.request(method, &url).bearer_auth(self.token.expose());
        let answer =
            request.send().await.with_context(|| format!("no answer from the cache at {}", self.url))?;
        let status = answer.status();
        let text = answer.text().await?;
        if !status.is_success() {
            return Err(Wrong::new(format!("the cache answered {status}: {}", text.trim())).into());
        }
        Ok(text)
    }

    async fn remove(&self, json: bool, query: &[(&str, &str)]) -> Result<ExitCode> {
        let removed: Removed =
            serde_json::from_str(&self.ask(reqwest::Method::DELETE, "entries", query).await?)?;
        output::show(json, &removed, |removed| format!("{} entries removed", removed.removed))
    }
}

fn escape(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Runs a command.
pub async fn run(command: CacheCommand) -> Result<ExitCode> {
    match command {
        CacheCommand::Run(place) => {
            crate::farm::logging("info");
            let file = FileConfig::read(place.config.as_deref())?;
            // a cache alone needs none of the farm's files, which may be wrong or absent here
            let farm = file.farm(HostSize::here()).ok();
            let price = farm.and_then(|farm| file.price_per_cpu_hour(&farm));
            let price = price.or_else(|| file.cache.as_ref()?.price_per_cpu_hour);
            let (config, repositories) = (file.cache.unwrap_or_default(), file.repositories);
            let data = crate::farm::folder(&place.data)?;
            let begin = move || start(&data, &config, &repositories, price);
            let running = tokio::task::spawn_blocking(begin).await??;
            crate::farm::wait_for_signal().await;
            tokio::task::spawn_blocking(move || running.stop()).await??;
            Ok(ExitCode::SUCCESS)
        }
        CacheCommand::Token(args) => {
            let access = if args.read_only { Access::Read } else { Access::Write };
            let life = Duration::from_secs(args.hours * 3600);
            let (mut claims, key) = claims(&args.place.data, &args.scope, &args.name, access, life)?;
            claims.run = args.run;
            claims.cold = args.cold;
            let token = if args.jwt { token::mint_jwt(&claims, &key)? } else { token::mint(&claims, &key)? };
            println!("{}", token.expose());
            eprintln!("id {}, until {}", claims.id, claims.expires_at);
            Ok(ExitCode::SUCCESS)
        }
        CacheCommand::Revoke { id, all, place } => {
            change_authority(&place.data, |snapshot| {
                snapshot.revoked.extend(id);
                if all {
                    snapshot.epoch += 1;
                    snapshot.revoked.clear();
                    snapshot.ends.clear();
                }
                Ok(true)
            })?;
            Ok(ExitCode::SUCCESS)
        }
        CacheCommand::Key { scope, place } => {
            let config = FileConfig::read(place.config.as_deref())?.cache.unwrap_or_default();
            print!("{}", public_key(&scope, &config)?);
            Ok(ExitCode::SUCCESS)
        }
        CacheCommand::Crsh => {
            let settings = Settings::read(|name| std::env::var(name).ok())
                .map_err(|error| Wrong::new(error.to_string()).fix("see docs/cache.md, ccache"))?;
            helper::run(settings).await?;
            Ok(ExitCode::SUCCESS)
        }
        CacheCommand::Relay(args) => super::relay::run(args).await,
        CacheCommand::Prewarm(args) => super::prewarm::run(args).await,
        CacheCommand::Stat(args) => {
            let stat: Stat =
                serde_json::from_str(&args.admin()?.ask(reqwest::Method::GET, "stat", &[]).await?)?;
            output::show(args.json, &stat, stat_table)
        }
        CacheCommand::Check { scope, admin } => {
            let text = admin.admin()?.ask(reqwest::Method::GET, "check", &[("scope", &scope)]).await;
            let report: Report = serde_json::from_str(&text.with_context(|| {
                Wrong::new(format!("no verdict on scope `{scope}`"))
                    .fix("give the scope a `budget` in the configuration, and look whether the cache runs")
            })?)?;
            let shown = output::show(admin.json, &report, |report| report.text.clone())?;
            Ok(if matches!(report.verdict, Verdict::Cold(_)) { ExitCode::FAILURE } else { shown })
        }
        CacheCommand::Ls { scope, admin } => {
            let text = admin.admin()?.ask(reqwest::Method::GET, "entries", &[("scope", &scope)]).await?;
            let entries: Vec<Listed> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
            output::show(admin.json, &entries, |entries| {
                let row = |entry: &Listed| {
                    vec![
                        entry.kind.as_str().to_owned(),
                        entry.key.clone(),
                        size(entry.size),
                        entry.stored_at.to_string(),
                        entry.by.principal.clone(),
                        entry.by.run.clone().unwrap_or_default(),
                        entry.by.client.clone(),
                    ]
                };
                let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
                table_or("no entry", &["kind", "key", "size", "stored", "by", "run", "client"], &rows)
            })
        }
        CacheCommand::Rm { scope, prefix, admin } => {
            admin.admin()?.remove(admin.json, &[("scope", &scope), ("prefix", &prefix)]).await
        }
        CacheCommand::WhoRead { writer, scope, prefix, admin } => {
            let mut query = vec![("prefix", prefix.as_str())];
            query.extend(writer.as_deref().map(|writer| ("writer", writer)));
            query.extend(scope.as_deref().map(|scope| ("scope", scope)));
            let text = admin.admin()?.ask(reqwest::Method::GET, "readers", &query).await?;
            let readings: Vec<Reading> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
            output::show(admin.json, &readings, |readings| readings_table(readings))
        }
        CacheCommand::Purge { writer, admin } => {
            admin.admin()?.remove(admin.json, &[("writer", &writer)]).await
        }
    }
}
