//! Ids: one registry, each a newtype that prints with its prefix and sorts by time of creation.
//!
//! Layout of the 128 bits, most significant first: 48 bits of Unix milliseconds, 80 bits of entropy or of a hash.
//! Text form: `prefix_` and 26 characters of Crockford base 32 in lower case. A child id is derived from its
//! parent and a key, so that doing the same step twice names the same thing.

use crate::time::Timestamp;
use sha2::{Digest as _, Sha256};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// An id that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text does not start with the prefix of the wanted kind.
    #[error("expected an id that starts with `{expected}_`, found `{found}`")]
    Prefix {
        /// The prefix of the wanted kind.
        expected: &'static str,
        /// What was given, cut to 40 characters.
        found: String,
    },
    /// The part after the prefix is not 26 characters of Crockford base 32 below 2^128.
    #[error("`{0}` is not a well-formed id: 26 characters of lower-case base 32 must follow the prefix")]
    Body(String),
}

/// Longest text form: a prefix of at most six letters, the underscore, 26 characters.
const TEXT: usize = 6 + 1 + 26;

/// Writes an id with its prefix. Ids are written for every row and event, so this asks for no memory.
fn write(prefix: &str, value: u128, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    let mut text = [b'_'; TEXT];
    let body = prefix.len() + 1;
    let (Some(start), Some(_)) = (text.get_mut(..prefix.len()), TEXT.checked_sub(body + 26)) else {
        return Err(std::fmt::Error);
    };
    start.copy_from_slice(prefix.as_bytes());
    let mut rest = value;
    for letter in text.iter_mut().skip(body).take(26).rev() {
        *letter = ALPHABET[(rest & 31) as usize];
        rest >>= 5;
    }
    let written = text.get(..body + 26).unwrap_or_default();
    f.write_str(std::str::from_utf8(written).map_err(|_| std::fmt::Error)?)
}

fn decode(text: &str) -> Option<u128> {
    if text.len() != 26 {
        return None;
    }
    let mut value: u128 = 0;
    for (place, byte) in text.bytes().enumerate() {
        let digit = ALPHABET.iter().position(|letter| *letter == byte)? as u128;
        if place == 0 && digit > 7 {
            return None;
        }
        value = (value << 5) | digit;
    }
    Some(value)
}

/// What all ids share: making, deriving, age.
pub trait Id: Sized + Copy {
    /// The text before the underscore.
    const PREFIX: &'static str;
    /// The id with these bits.
    fn from_bits(bits: u128) -> Self;
    /// The bits of this id.
    fn bits(self) -> u128;

    /// A new id of the given time; `entropy` comes from the caller's context, never from here.
    fn new(at: Timestamp, entropy: u128) -> Self {
        let millis = (at.as_micros().max(0) as u128 / 1000) & 0xffff_ffff_ffff;
        Self::from_bits((millis << 80) | (entropy & ((1 << 80) - 1)))
    }

    /// The child of `parent` under `key`: same time part, hashed remainder. Equal inputs give equal ids.
    fn derive<P: Id>(parent: P, key: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(P::PREFIX.as_bytes());
        hash.update(parent.bits().to_be_bytes());
        hash.update(Self::PREFIX.as_bytes());
        hash.update(key.as_bytes());
        let sum = hash.finalize();
        let mut low = [0u8; 16];
        low[6..].copy_from_slice(&sum[..10]);
        let time = parent.bits() >> 80 << 80;
        Self::from_bits(time | u128::from_be_bytes(low))
    }
}

macro_rules! registry {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl Id for $name {
            const PREFIX: &'static str = $prefix;
            fn from_bits(bits: u128) -> Self { Self(bits) }
            fn bits(self) -> u128 { self.0 }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write($prefix, self.0, f)
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
        impl std::str::FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let body = text.strip_prefix(concat!($prefix, "_")).ok_or_else(|| IdError::Prefix {
                    expected: $prefix,
                    found: text.chars().take(40).collect(),
                })?;
                decode(body)
                    .map(Self)
                    .ok_or_else(|| IdError::Body(text.chars().take(60).collect()))
            }
        }
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
        #[cfg(feature = "openapi")]
        crate::openapi::text_schema!(
            $name,
            "An id: the prefix and 26 characters of Crockford base 32; ids sort by time",
            concat!("^", $prefix, "_[0-7][0-9a-hjkmnp-tv-z]{25}$")
        );
    )*};
}

// Alphabetical and append-only: a prefix is never given a second meaning.
registry! {
    /// A stored artifact record.
    ArtifactId = "art";
    /// One try at a job.
    AttemptId = "att";
    /// One foreign CI job that wants a runner.
    DemandId = "dem";
    /// One GPU, or a slice of one.
    DeviceId = "dev";
    /// A local effect in the outbox.
    EffectId = "eff";
    /// A locked set of packages.
    EnvironmentId = "env";
    /// Something that happened; the audit trail is made of these.
    EventId = "evt";
    /// One unit of native work.
    JobId = "job";
    /// The claim of an attempt on devices.
    LeaseId = "lease";
    /// Jobs and artifacts that came from one event and one plan.
    PipelineId = "pipe";
    /// Somebody or something that acts.
    PrincipalId = "prn";
    /// One ephemeral machine.
    RunnerId = "rnr";
    /// One place with hosts.
    SiteId = "site";
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_form_reads_back(bits: u128) {
            let id = JobId::from_bits(bits);
            prop_assert_eq!(id.to_string().parse::<JobId>(), Ok(id));
        }

        #[test]
        fn any_text_is_refused_or_reads_back_the_same(text in "(job_)?[0-9a-z]{0,30}") {
            if let Ok(id) = text.parse::<JobId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }

        #[test]
        fn order_of_text_is_order_of_time(a in 0i64..4_000_000_000_000_000, b in 0i64..4_000_000_000_000_000, e: u128) {
            let (x, y) = (JobId::new(Timestamp::from_micros(a), e), JobId::new(Timestamp::from_micros(b), e));
            if a / 1000 < b / 1000 {
                prop_assert!(x.to_string() < y.to_string());
            }
        }
    }

    #[test]
    fn wrong_prefix_is_refused_by_name() {
        let id = RunnerId::new(Timestamp::from_micros(1), 7).to_string();
        assert!(matches!(id.parse::<JobId>(), Err(IdError::Prefix { expected: "job", .. })));
    }

    #[test]
    fn derived_id_is_stable_and_keeps_time() {
        let pipe = PipelineId::new(Timestamp::from_micros(1_700_000_000_000_000), 9);
        let a = JobId::derive(pipe, "build/x");
        assert_eq!(a, JobId::derive(pipe, "build/x"));
        assert_ne!(a, JobId::derive(pipe, "build/y"));
        assert_eq!(a.bits() >> 80, pipe.bits() >> 80);
    }
}
