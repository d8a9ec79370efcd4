//! What the farm reads from a package, and which of its tests run where.

use crate::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One test of a package, in the order of the package's own list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PackageTest {
    /// Index in the package's own list (not in the recipe).
    pub index: u32,
    /// `commands`, `python`, `r`, `perl`, `ruby`, `downstream`.
    pub kind: String,
    /// Text that hints are searched in: scripts, imports, requirements.
    pub text: String,
}

/// Facts of a conda package, read from its own metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PackageFacts {
    /// Package name.
    pub name: String,
    /// Version.
    pub version: String,
    /// Build string.
    pub build: String,
    /// Build number.
    pub build_number: u64,
    /// Platform folder, `linux-64` or `noarch`.
    pub subdir: String,
    /// Run dependencies.
    pub depends: Vec<String>,
    /// Licence expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// Variant keys and values (`info/hash_input.json`).
    #[serde(default)]
    pub variant: BTreeMap<String, String>,
    /// The package's own test list.
    pub tests: Vec<PackageTest>,
    /// Digest of the test list as it stands in the package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests_digest: Option<Digest>,
    /// Shared libraries that its ELF files ask for.
    #[serde(default)]
    pub needed_libraries: Vec<String>,
}

impl PackageFacts {
    /// `name-version-build`.
    pub fn stem(&self) -> String {
        format!("{}-{}-{}", self.name, self.version, self.build)
    }
}

/// Whether tests need a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GpuNeed {
    /// They run on a CPU runner.
    None,
    /// They use one when there is one; run on a CPU runner.
    Optional,
    /// They fail or mean nothing without one.
    Required,
}

/// Tests of one package that run in one place, and why there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TestSelection {
    /// Indexes in the package's own list.
    pub indexes: Vec<u32>,
    /// Whether they need a device.
    pub gpu: GpuNeed,
    /// The step of the decision that settled it, and what it saw.
    pub reason: String,
}
