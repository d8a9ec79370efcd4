//! Names of entries: scope, kind and key. What one kind of client wrote, another kind never reads by accident.

use crate::scope::ScopePath;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Longest key, in bytes.
pub const LONGEST_KEY: usize = 1024;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Kind {
    /// Any bytes by any key.
    Keyed = 1,
    /// A compilation of sccache.
    Sccache = 2,
    /// A result or manifest of ccache.
    Ccache = 3,
    /// An action result of the Remote Execution API, or what ccache keeps in that place.
    Action = 4,
    /// Bytes by their SHA-256.
    Content = 5,
    /// A file of a Nix binary cache.
    Nix = 6,
    /// Which file of Nix unpacks to the archive with this hash, see [`crate::foreign`].
    Nar = 7,
    /// What a task of Turborepo made, see [`crate::turbo`].
    Turbo = 8,
    /// What a task of Gradle made.
    Gradle = 9,
    /// An entry of GitHub's cache service.
    Github = 16,
    /// An artifact of a run.
    Artifact = 17,
    /// What the cache fetched before somebody asked, see [`crate::warm`].
    Warm = 18,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 12] = [
        Kind::Keyed,
        Kind::Sccache,
        Kind::Ccache,
        Kind::Action,
        Kind::Content,
        Kind::Nix,
        Kind::Nar,
        Kind::Turbo,
        Kind::Gradle,
        Kind::Github,
        Kind::Artifact,
        Kind::Warm,
    ];

    /// The kind with this number on disk.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// The word for metrics and people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Keyed => "keyed",
            Kind::Sccache => "sccache",
            Kind::Ccache => "ccache",
            Kind::Action => "action",
            Kind::Content => "content",
            Kind::Nix => "nix",
            Kind::Nar => "nar",
            Kind::Turbo => "turbo",
            Kind::Gradle => "gradle",
            Kind::Github => "github",
            Kind::Artifact => "artifact",
            Kind::Warm => "warm",
        }
    }
}

/// Name of an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Where.
    pub scope: ScopePath,
    /// What.
    pub kind: Kind,
    /// Which.
    pub key: String,
}

impl Name {
    /// What the index knows it by.
    pub fn hash(&self) -> NameHash {
        NameHash::of(self.scope.as_str(), self.kind, &self.key)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/-/{}/{}", self.scope, self.kind.as_str(), self.key)
    }
}

/// Half of the SHA-256 of a name. Two names with the same one take 2^64 tries to find, so the index does not compare names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameHash(pub u128);

impl NameHash {
    /// Of these parts.
    pub fn of(scope: &str, kind: Kind, key: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update([kind as u8]);
        hash.update((scope.len() as u64).to_le_bytes());
        hash.update(scope);
        hash.update(key);
        Self(half(&hash.finalize().into()))
    }
}

/// The first half of a digest, as the index keeps it.
pub fn half(digest: &[u8; 32]) -> u128 {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    u128::from_le_bytes(bytes)
}
