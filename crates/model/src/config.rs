//! What a farm is made of, as data. The engine decides under exactly one configuration, named by its digest.

use crate::Digest;
use crate::access::Access;
use crate::name::{ChannelName, FlavorName, ForgeName, ImageName, PoolName, SiteName};
use crate::resources::{Flavor, Image, Pool};
use crate::rules::QueueRules;
use crate::who::ForgeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A repository that the farm works for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RepositoryConfig {
    /// The forge.
    pub forge: ForgeName,
    /// Numeric id at the forge.
    pub id: u64,
    /// `owner/name`, for display.
    pub name: String,
    /// Where git fetches from: a URL or a folder. Never taken from a webhook.
    pub source: String,
    /// Branches that are protected, without `refs/heads/`.
    pub protected: Vec<String>,
    /// Channel that its packages are promoted to.
    pub channel: ChannelName,
    /// Sites whose results count for promotion; empty = all that joined. A site can lie, and then its packages would
    /// reach the channel.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub sites: BTreeSet<SiteName>,
}

/// Which flavor each kind of job gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Flavors {
    /// Plan jobs.
    pub plan: FlavorName,
    /// Builds.
    pub build: FlavorName,
    /// Tests that need no device.
    pub test: FlavorName,
    /// Tests that need one.
    pub gpu_test: FlavorName,
}

/// The configuration that decisions are made under.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FarmConfig {
    /// Name of the farm, in statements and pages.
    pub farm: String,
    /// Pools, in order of preference.
    pub pools: Vec<Pool>,
    /// Shapes.
    pub flavors: Vec<Flavor>,
    /// Images.
    pub images: Vec<Image>,
    /// Which flavor each kind of job gets.
    pub use_flavors: Flavors,
    /// Repositories.
    #[serde(default)]
    pub repositories: Vec<RepositoryConfig>,
    /// The gate's data.
    #[serde(default)]
    pub access: Access,
    /// Attempts at once in the whole farm.
    pub max_running: u32,
    /// Caps, budgets and the order of the queue.
    #[serde(default, skip_serializing_if = "QueueRules::is_default")]
    pub queue: QueueRules,
    /// Channel of recipe folders that a person hands in; they are never promoted to a repository's channel.
    pub folder_channel: ChannelName,
    /// Where the conda build engine is mounted in a machine.
    pub engine_path: String,
}

impl FarmConfig {
    /// The flavor of this name.
    pub fn flavor(&self, name: &FlavorName) -> Option<&Flavor> {
        self.flavors.iter().find(|flavor| flavor.name == *name)
    }

    /// The image of this name.
    pub fn image(&self, name: &ImageName) -> Option<&Image> {
        self.images.iter().find(|image| image.name == *name)
    }

    /// The pool of this name.
    pub fn pool(&self, name: &PoolName) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == *name)
    }

    /// The repository with this id.
    pub fn repository(&self, forge: &ForgeName, id: u64) -> Option<&RepositoryConfig> {
        self.repositories.iter().find(|repository| repository.id == id && repository.forge == *forge)
    }

    /// The repository that a person means by this: of the forge that is written, else of the home forge, and where that has
    /// none of the number, the one that any other forge has.
    pub fn repository_meant(&self, id: &ForgeId) -> Option<&RepositoryConfig> {
        let home = self.access.home();
        let mut all = self.repositories.iter().filter(|repository| repository.id == id.id);
        match &id.forge {
            Some(forge) => all.find(|repository| repository.forge == *forge),
            None => {
                let all: Vec<&RepositoryConfig> = all.collect();
                let at_home = all.iter().find(|repository| repository.forge.as_str() == home).copied();
                at_home.or(if let [only] = all.as_slice() { Some(only) } else { None })
            }
        }
    }

    /// Digest of its canonical JSON.
    pub fn digest(&self) -> Digest {
        // Serialising plain data with string keys cannot fail; an empty text would only make the digest useless.
        Digest::of(serde_json::to_string(self).unwrap_or_default().as_bytes())
    }
}
