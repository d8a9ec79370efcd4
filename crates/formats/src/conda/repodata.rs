//! `repodata.json` of a channel: one record for each package, canonical bytes.
//!
//! Layout: `{"info": {"subdir": …}, "packages": {}, "packages.conda": {FILE: RECORD}, "removed": [],
//! "repodata_version": 1}`, keys sorted, no white space, one closing newline. The same packages give the same bytes.

use super::Package;
use crate::canonical::sorted;
use forgeyard_model::Digest;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Keys of `info/index.json` that belong into a record.
const KEYS: [&str; 18] = [
    "arch",
    "build",
    "build_number",
    "constrains",
    "depends",
    "extra_depends",
    "features",
    "flags",
    "license",
    "license_family",
    "name",
    "noarch",
    "platform",
    "purls",
    "python_site_packages_path",
    "timestamp",
    "track_features",
    "version",
];

/// Why an index could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RepodataError {
    /// A record is of another platform folder.
    #[error("package `{file_name}` belongs to `{found}`, the index is of `{expected}`")]
    Subdir {
        /// The package.
        file_name: String,
        /// Platform folder of the record.
        found: String,
        /// Platform folder of the index.
        expected: String,
    },
    /// Two different records have one file name.
    #[error("package `{0}` stands twice with different content")]
    Twice(String),
    /// Compression failed.
    #[error("cannot compress the index: {0}")]
    Compress(#[from] std::io::Error),
}

/// The record of a package: its own `index.json`, reduced to the known keys, with size and SHA-256 of the file.
/// MD5 is left out: clients check SHA-256, and a weak digest would only invite its use.
pub fn record(package: &Package, digest: &Digest, size: u64) -> Value {
    let known = |(key, _): &(&String, &Value)| KEYS.contains(&key.as_str());
    let mut record: BTreeMap<String, Value> =
        package.index.iter().filter(known).map(|(key, value)| (key.clone(), value.clone())).collect();
    // Clients insist on these even where an engine left them out.
    record.entry("depends".into()).or_insert_with(|| json!([]));
    record.entry("build_number".into()).or_insert_with(|| json!(package.facts.build_number));
    if let (None, Some(license)) = (record.get("license"), &package.facts.license) {
        record.insert("license".into(), json!(license));
    }
    record.insert("subdir".into(), json!(package.facts.subdir));
    record.insert("size".into(), json!(size));
    record.insert("sha256".into(), json!(digest.hex()));
    Value::Object(record.into_iter().collect::<Map<_, _>>())
}

/// The index of one platform folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Repodata {
    subdir: String,
    packages: BTreeMap<String, Value>,
}

impl Repodata {
    /// An empty index. Clients ask for `noarch` even when a channel has none, so an empty one is served too.
    pub fn new(subdir: impl Into<String>) -> Self {
        Self { subdir: subdir.into(), packages: BTreeMap::new() }
    }

    /// Adds a record under its file name. The same record twice is one.
    ///
    /// # Errors
    /// When the record is of another platform folder, or another record has this name.
    pub fn add(&mut self, file_name: &str, record: &Value) -> Result<(), RepodataError> {
        let found = record.get("subdir").and_then(Value::as_str).unwrap_or_default();
        if found != self.subdir {
            return Err(RepodataError::Subdir {
                file_name: file_name.to_owned(),
                found: found.to_owned(),
                expected: self.subdir.clone(),
            });
        }
        match self.packages.insert(file_name.to_owned(), sorted(record)) {
            Some(before) if before != sorted(record) => {
                let twice = RepodataError::Twice(file_name.to_owned());
                self.packages.insert(file_name.to_owned(), before);
                Err(twice)
            }
            _ => Ok(()),
        }
    }

    /// The bytes of `repodata.json`.
    pub fn to_bytes(&self) -> Vec<u8> {
        let index = json!({
            "info": {"subdir": self.subdir},
            "packages": {},
            "packages.conda": self.packages,
            "removed": [],
            "repodata_version": 1,
        });
        let mut text = sorted(&index).to_string();
        text.push('\n');
        text.into_bytes()
    }

    /// The bytes of `repodata.json.zst`.
    ///
    /// # Errors
    /// When the compressor fails.
    pub fn to_zst(&self) -> Result<Vec<u8>, RepodataError> {
        Ok(zstd::stream::encode_all(self.to_bytes().as_slice(), 19)?)
    }
}
