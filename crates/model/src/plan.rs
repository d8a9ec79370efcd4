//! Plans: what the recipe renders to, and what the repository's own pipeline file asks for.

use crate::ChannelName;
use crate::package::GpuNeed;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// One output of a rendered recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedOutput {
    /// Package name.
    pub name: String,
    /// Version.
    pub version: String,
    /// Build string, when the engine fixed it.
    #[serde(default)]
    pub build: String,
    /// Platform folder.
    pub subdir: String,
    /// Names that its build, host and run requirements ask for, and outputs whose staging it inherits.
    pub depends: BTreeSet<String>,
    /// Outputs or staging caches that it must be built together with.
    #[serde(default)]
    pub together_with: BTreeSet<String>,
    /// Variant keys and values.
    #[serde(default)]
    pub variant: BTreeMap<String, String>,
}

/// A rendered recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenderedPlan {
    /// Its outputs, in the engine's order.
    pub outputs: Vec<PlannedOutput>,
}

/// A rule of the repository's pipeline file on tests. The first that matches counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TestRule {
    /// Package name; absent = all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// Index in the package's own list; absent = all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Whether the tests need a device.
    pub gpu: GpuNeed,
    /// Least device memory, in MiB.
    #[serde(default)]
    pub min_memory_mib: u64,
}

/// Environment that the repository wants made after promotion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EnvironmentRequest {
    /// Its name.
    pub name: ChannelName,
    /// What it holds, as conda match specs.
    pub specs: Vec<String>,
    /// Program to run in it as proof, with arguments.
    #[serde(default)]
    pub run: Vec<String>,
}

/// The repository's pipeline file, `forgeyard.toml` in its root, read from the base ref and never from a pull
/// request's own head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PipelineFile {
    /// Path of the recipe in the repository.
    #[serde(default = "default_recipe")]
    pub recipe: String,
    /// Rules on tests.
    #[serde(default)]
    pub tests: Vec<TestRule>,
    /// Environment to make after promotion.
    #[serde(default)]
    pub environment: Option<EnvironmentRequest>,
}

fn default_recipe() -> String {
    "recipe/recipe.yaml".to_owned()
}

impl Default for PipelineFile {
    fn default() -> Self {
        Self { recipe: default_recipe(), tests: Vec::new(), environment: None }
    }
}
