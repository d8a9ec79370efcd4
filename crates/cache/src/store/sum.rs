//! Which digest names a content on disk.
//!
//! A content that is *known* by its SHA-256, to clients or to a protocol, has that one: contents of Bazel, files of Nix, entries and
//! artifacts of GitHub, and everything that is large enough for a file of its own. The others have a key that says nothing of their
//! bytes, so their digest is ours to choose: BLAKE3, which takes a fifth of the time from 16 KiB on. It has to be one that nobody can
//! find two contents for: the first content of a key stays in a trusted scope, another one is an alarm, and equal digests are stored
//! once for all scopes, so a checksum that is only quick would let a scope answer with the bytes of another. A digest with a
//! secret of the server would do as well, but goes out in `ETag` and to the tier, where others have to compare it.
//!
//! So the same bytes under a key and as a content of Bazel are stored twice. Within either kind they are stored once, as before.

use crate::name::Kind;
use forgeyard_model::Digest;

/// A digest function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Sum {
    /// SHA-256, and what records of earlier versions have.
    #[default]
    Sha256 = 0,
    /// BLAKE3, 256 bits.
    Blake3 = 1,
}

impl Sum {
    /// That of a small content of this kind.
    pub const fn for_kind(kind: Kind) -> Self {
        match kind {
            Kind::Keyed
            | Kind::Sccache
            | Kind::Ccache
            | Kind::Action
            | Kind::Nar
            | Kind::Turbo
            | Kind::Gradle => Self::Blake3,
            Kind::Content | Kind::Nix | Kind::Github | Kind::Artifact | Kind::Warm => Self::Sha256,
        }
    }

    /// The function with this number on disk.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Sha256),
            1 => Some(Self::Blake3),
            _ => None,
        }
    }

    /// The digest of these bytes.
    pub fn of(self, bytes: &[u8]) -> Digest {
        match self {
            Self::Sha256 => Digest::of(bytes),
            Self::Blake3 => Digest::from_bytes(*blake3::hash(bytes).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors of the functions, of nothing.
    #[test]
    fn functions_are_those_that_they_are_called() {
        assert!(Sum::Sha256.of(b"").hex().starts_with("e3b0c44298fc1c149afbf4c8996fb924"));
        assert!(Sum::Blake3.of(b"").hex().starts_with("af1349b9f5f9a1a6a0404dea36dcc949"));
        for sum in [Sum::Sha256, Sum::Blake3] {
            assert_eq!(Sum::from_byte(sum as u8), Some(sum));
        }
    }
}
