//! What the tier is started with: `[cache.tier]` of the configuration, and its key.

use forgeyard_model::Secret;
use serde::Deserialize;
use std::path::PathBuf;

/// As it is written in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    /// Address of the server.
    pub endpoint: String,
    /// The bucket, which has to exist.
    pub bucket: String,
    /// Its region; any word for most servers that are not Amazon's.
    pub region: Option<String>,
    /// Beginning of all names in it.
    pub prefix: Option<String>,
    /// Name of this farm in it: one process writes under a name.
    pub writer: String,
    /// Names of other farms whose entries are read too, in this order.
    #[serde(default)]
    pub reads: Vec<String>,
    /// File with the access key in its first line and the secret in its second.
    pub key_file: PathBuf,
    /// A segment to which nothing was written for so long is sent though it is not full.
    pub seal_minutes: Option<u32>,
}

/// What the tier is started with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the server.
    pub endpoint: String,
    /// The bucket.
    pub bucket: String,
    /// Its region.
    pub region: String,
    /// Beginning of all names in it; empty for none.
    pub prefix: String,
    /// Name of this farm in it.
    pub writer: String,
    /// Names of others that are read.
    pub reads: Vec<String>,
    /// Access key.
    pub key: Secret,
    /// Secret key.
    pub secret: Secret,
    /// A segment to which nothing was written for so many minutes is sent though it is not full.
    pub seal_minutes: u32,
}

/// Why the tier is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A name that is none.
    #[error("`{0}` is no name for a farm in the tier: letters, digits, - and _")]
    Name(String),
    /// The prefix.
    #[error("`{0}` is no prefix for the tier: letters, digits, -, _ and single slashes between them")]
    Prefix(String),
    /// The key.
    #[error("the key of the tier, {}: {reason}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

fn word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

impl Settings {
    /// Checks the names and reads the key.
    pub fn config(&self) -> Result<Config, SettingsError> {
        // `large` lies beside the writers
        let name = |text: &String| word(text) && text != "large";
        if let Some(wrong) = std::iter::once(&self.writer).chain(&self.reads).find(|text| !name(text)) {
            return Err(SettingsError::Name(wrong.clone()));
        }
        let prefix = self.prefix.clone().unwrap_or_else(|| "cache".to_owned());
        if !prefix.split('/').all(word) {
            return Err(SettingsError::Prefix(prefix));
        }
        let wrong = |reason: String| SettingsError::Key { path: self.key_file.clone(), reason };
        let text = fs_err::read_to_string(&self.key_file).map_err(|error| wrong(error.to_string()))?;
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let (Some(key), Some(secret), None) = (lines.next(), lines.next(), lines.next()) else {
            return Err(wrong("it should have two lines, the access key and the secret".to_owned()));
        };
        Ok(Config {
            endpoint: self.endpoint.clone(),
            bucket: self.bucket.clone(),
            region: self.region.clone().unwrap_or_else(|| "us-east-1".to_owned()),
            prefix,
            writer: self.writer.clone(),
            reads: self.reads.iter().filter(|name| **name != self.writer).cloned().collect(),
            key: Secret::new(key.to_owned()),
            secret: Secret::new(secret.to_owned()),
            seal_minutes: self.seal_minutes.unwrap_or(10),
        })
    }
}
