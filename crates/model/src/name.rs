//! Names that people choose: pools, flavors, images, sites, channels, providers.
//!
//! One rule for all: 1 to 63 characters, lower-case letters, digits, `-`, `_` and `.`, beginning with a letter or
//! digit. That fits a DNS label, a file name and a URL segment without quoting.

/// A name that breaks the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a {kind} name: use 1 to 63 lower-case letters, digits, `-`, `_` or `.`, beginning with a letter or digit"
)]
pub struct NameError {
    kind: &'static str,
    text: String,
}

fn well_formed(text: &str) -> bool {
    let body = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    let first = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=63).contains(&text.len()) && text.bytes().all(body) && text.bytes().next().is_some_and(first)
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident: $kind:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        // Names stand in most rows and keys, and are copied with each of them: copies share the text.
        pub struct $name(std::sync::Arc<str>);

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.0)
            }
        }

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str { &self.0 }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(&self.0) }
        }
        impl std::str::FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                if well_formed(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(NameError { kind: $kind, text: text.chars().take(80).collect() })
                }
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
            concat!("Name of a ", $kind),
            "^[a-z0-9][a-z0-9._-]{0,62}$"
        );
    )*};
}

names! {
    /// A channel of packages.
    ChannelName: "channel";
    /// A shape of machine.
    FlavorName: "flavor";
    /// A code host.
    ForgeName: "forge";
    /// What a runner boots.
    ImageName: "image";
    /// A pool of runners that are alike.
    PoolName: "pool";
    /// What makes machines.
    ProviderName: "provider";
    /// One place with hosts.
    SiteName: "site";
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_that_parses_is_safe_in_paths_and_urls(text in ".{0,70}") {
            if let Ok(name) = text.parse::<PoolName>() {
                prop_assert_eq!(name.as_str(), text.as_str());
                prop_assert!(!text.contains('/') && !text.starts_with('.') && text.is_ascii());
            }
        }
    }

    #[test]
    fn refusal_names_the_kind() {
        let error = "GPU Pool".parse::<PoolName>().unwrap_err().to_string();
        assert!(error.contains("`GPU Pool` is not a pool name"), "{error}");
    }
}
