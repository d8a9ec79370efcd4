//! What every handler and worker of the control plane shares.

use crate::clock::Clock;
use crate::core::Core;
use crate::keys::Keys;
use forgeyard_blobs::BlobStore;
use forgeyard_db::Store;
use forgeyard_forges::GitSource;
use forgeyard_model::Secret;
use forgeyard_model::config::FarmConfig;
use std::sync::Arc;

/// The shared parts. Cheap to clone.
#[derive(Clone)]
pub struct App {
    /// Decides and stores.
    pub core: Core,
    /// Rows that are older than memory, events, logs.
    pub store: Arc<dyn Store>,
    /// Bytes.
    pub blobs: Arc<dyn BlobStore>,
    /// Sources.
    pub git: GitSource,
    /// Keys and tokens.
    pub keys: Arc<Keys>,
    /// The time.
    pub clock: Clock,
    /// What a webhook body is signed with; without one, webhooks are refused.
    pub webhook_secret: Option<Secret>,
    /// How people reach the farm.
    pub public_url: String,
    /// Whether people reach it by TLS, so that cookies are marked.
    pub secure: bool,
    /// Renders `/metrics`.
    pub metrics: metrics_exporter_prometheus::PrometheusHandle,
    /// Largest artifact, in bytes.
    pub artifact_limit: u64,
}

impl App {
    /// The configuration that is decided under.
    pub fn config(&self) -> &FarmConfig {
        self.core.config()
    }
}
