//! What every handler and worker of the control plane shares.

use crate::cache_admin::Cache;
use crate::cache_tokens::Tokens;
use crate::clock::Clock;
use crate::core::Core;
use crate::demand::Sources;
use crate::forges::Connections;
use crate::http::console::Logins;
use crate::keys::Keys;
use crate::rules::Rules;
use crate::sealed::Sealed;
use crate::version::Version;
use forgeyard_blobs::BlobStore;
use forgeyard_db::Store;
use forgeyard_forges::GitSource;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::{ForgeName, Secret};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The forge that a farm has when nothing is configured.
const FIRST_FORGE: &str = "github";

/// The shared parts. Cheap to clone: routes do so for each layer of each request.
#[derive(Clone)]
pub struct App(Arc<Parts>);

impl std::ops::Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// What a control plane is made of.
pub struct Parts {
    /// Decides and stores.
    pub core: Core,
    /// Rows that are older than memory, events, logs.
    pub store: Arc<dyn Store>,
    /// Bytes.
    pub blobs: Arc<dyn BlobStore>,
    /// Sources.
    pub git: GitSource,
    /// Connections to forges.
    pub forges: Connections,
    /// Configurations of runners that their machines have not begun to use.
    pub sealed: Sealed,
    /// Sign-ins by a forge that are under way.
    pub logins: Arc<Logins>,
    /// What the sources of demand remember.
    pub sources: Arc<Sources>,
    /// The build cache, as far as it answers.
    pub cache_admin: Cache,
    /// The rules' files, and what became of them when they were read last.
    pub rules: Arc<Rules>,
    /// Keys and tokens.
    pub keys: Arc<Keys>,
    /// The time.
    pub clock: Clock,
    /// What webhooks of the forge `github` are signed with, unless its connection has secrets of its own.
    pub webhook_secret: Option<Secret>,
    /// How people reach the farm.
    pub public_url: String,
    /// Whether people reach it by TLS, so that cookies are marked.
    pub secure: bool,
    /// Renders `/metrics`.
    pub metrics: metrics_exporter_prometheus::PrometheusHandle,
    /// Largest artifact, in bytes.
    pub artifact_limit: u64,
    /// Tokens of the build cache that jobs get, when there is one.
    pub cache_tokens: Option<Arc<Tokens>>,
    /// Cancelled when the control plane ends: what would wait longer must not hold it up.
    pub stop: CancellationToken,
}

impl App {
    /// A control plane of these parts.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// The configuration that is decided under.
    pub fn config(&self) -> Arc<FarmConfig> {
        self.core.config()
    }

    /// What webhooks of a forge may be signed with; none means that they are refused.
    pub fn webhook_secrets(&self, forge: &ForgeName) -> Vec<&Secret> {
        let own = self.forges.webhook_secrets(forge);
        if own.is_empty() && forge.as_str() == FIRST_FORGE {
            return self.webhook_secret.iter().collect();
        }
        own.iter().collect()
    }

    /// Names of the forges that may speak to this farm: those that are connected, those of configured repositories, and
    /// `github`, which needs no section in the configuration.
    pub fn forge_names(&self) -> BTreeSet<ForgeName> {
        let config = self.config();
        let of_repositories = config.repositories.iter().map(|repository| &repository.forge);
        let named = self.forges.names().chain(of_repositories).cloned();
        named.chain(FIRST_FORGE.parse()).collect()
    }

    /// Names of the forges whose webhooks are understood, as addresses spell them. A Forgejo is polled, and is named where
    /// its webhooks can be believed.
    pub fn hook_names(&self) -> Vec<String> {
        let config = self.config();
        let of_repositories = config.repositories.iter().map(|repository| &repository.forge);
        let connected = self.forges.iter().map(|connection| connection.forge());
        let all: BTreeSet<&ForgeName> =
            connected.chain(of_repositories).filter(|name| self.forges.forgejo(name).is_none()).collect();
        let trusted = |name: &&ForgeName| !self.forges.webhook_secrets(name).is_empty();
        let all: BTreeSet<&ForgeName> =
            all.into_iter().chain(self.forges.forgejos().map(|(name, _)| name).filter(trusted)).collect();
        match all.is_empty() {
            true => vec![FIRST_FORGE.to_owned()],
            false => all.into_iter().map(ToString::to_string).collect(),
        }
    }

    /// Waits for a change; `false` when the time is over or the control plane stops.
    pub async fn changed(&self, version: &mut Version, deadline: Instant) -> bool {
        // A timer that is due already would still take the rest of a millisecond.
        if Instant::now() >= deadline {
            return false;
        }
        tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            changed = tokio::time::timeout_at(deadline, version.changed()) => matches!(changed, Ok(Ok(()))),
        }
    }
}
