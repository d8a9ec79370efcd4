//! `forgeyard cache relay`: the relay that jobs of a farm have, for anybody else: a laptop, a container, a job of another CI.

use crate::output::Wrong;
use anyhow::{Context as _, Result};
use clap::Args;
use forgeyard_agent::cache::{Counts, Relay, Surroundings, Upstream};
use forgeyard_api::client::HttpOptions;
use forgeyard_model::Secret;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// A cache, and what is to use it.
#[derive(Args, Clone)]
pub struct RelayArgs {
    /// Address of the cache.
    #[arg(long, env = "FORGEYARD_CACHE_URL", default_value = "http://127.0.0.1:8420", value_name = "URL")]
    cache: String,
    /// File with the token. Without it FORGEYARD_CACHE_TOKEN, and without that only public scopes are read.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Scope to address. The token's own when it is not given; needed to read a public scope without a token.
    #[arg(long)]
    scope: Option<String>,
    /// Where to listen; any free port by default.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Further certificate authority to trust, PEM.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// A command that is run with the cache in its environment. Without one, the environment is printed and the relay runs until
    /// it is stopped.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn said(counts: Counts) -> String {
    let Counts { hits, misses, writes, denied, alone, .. } = counts;
    let reads = hits + misses;
    let mut text = format!("cache: {hits} of {reads} reads hit, {writes} entries stored, {denied} refused");
    if alone > 0 {
        text.push_str(&format!("; {alone} requests without the cache"));
    }
    text
}

/// Runs it.
pub async fn run(args: RelayArgs) -> Result<ExitCode> {
    if !args.listen.ip().is_loopback() {
        return Err(Wrong::new(format!("{} can be reached by others, and a relay has no TLS", args.listen))
            .fix("listen on 127.0.0.1")
            .into());
    }
    let token = match &args.token_file {
        Some(path) => Some(fs_err::read_to_string(path)?),
        None => std::env::var("FORGEYARD_CACHE_TOKEN").ok(),
    };
    let token = token.map(|token| Secret::new(token.trim()));
    let secret = format!("{:032x}", rand::random::<u128>());
    let options = HttpOptions { ca_file: args.ca_file.clone(), ..HttpOptions::default() };
    let relay = Relay::new(Secret::new(secret.clone()), &options);
    let listener = std::net::TcpListener::bind(args.listen).with_context(|| {
        Wrong::new(format!("cannot listen on {}", args.listen)).fix("choose another `--listen`")
    })?;
    let address = relay.listen(listener)?;
    relay.connect(Upstream { address: args.cache.clone(), token, ca: None })?;
    let home = tempfile::tempdir()?;
    let surroundings = Surroundings {
        relay: address,
        secret: &secret,
        scope: args.scope.as_deref(),
        nix_keys: &[],
        home: home.path(),
    };
    for (name, text) in surroundings.files() {
        fs_err::write(home.path().join(name), text)?;
    }
    let mut environment = surroundings.environment(false);
    environment.insert("FORGEYARD_BAZELRC".to_owned(), home.path().join(".bazelrc").display().to_string());
    environment
        .insert("SCCACHE_SERVER_UDS".to_owned(), home.path().join("sccache.socket").display().to_string());
    let told = async |relay: &Relay| {
        eprintln!("{}", said(relay.counts()));
        let clients = relay.clients();
        for client in clients.iter().filter(|_| clients.len() > 1) {
            eprintln!("cache, {}", client.text());
        }
        if let Some(cold) = relay.cold().await {
            eprintln!("cache, cold ({}): {}", cold.cause, cold.text);
        }
    };
    let Some((program, arguments)) = args.command.split_first() else {
        for (name, value) in &environment {
            println!("export {name}={}", quoted(value));
        }
        crate::farm::wait_for_signal().await;
        told(&relay).await;
        return Ok(ExitCode::SUCCESS);
    };
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).env_remove("FORGEYARD_CACHE_TOKEN").envs(&environment);
    let ended = command.status().await.with_context(|| Wrong::new(format!("cannot start {program}")))?;
    told(&relay).await;
    let code = ended.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
