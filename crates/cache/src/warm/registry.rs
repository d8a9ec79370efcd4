//! Containers that were fetched beforehand, as a registry serves them: `GET /v2/<scope>/warm/<image>/…`, to read only.
//!
//! `warm` ends the scope, because names of containers have no `-` alone. A scope that is not public answers 401 with a challenge,
//! as `docker login` and `skopeo login` want it: any user, a token as the password.

use super::oci::{blob_key, is_reference, manifest_key};
use crate::scope::ScopePath;
use serde::Deserialize;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Whether this is a registry.
    Ping,
    /// A manifest: the key of its entry.
    Manifest(ScopePath, String),
    /// A layer or a configuration: key and digest.
    Blob(ScopePath, String),
    /// Nothing that is here.
    Other,
}

/// Takes a path apart; nothing when it is none of a registry.
pub(crate) fn asked(path: &str) -> Option<Asked> {
    let rest = path.strip_prefix("/v2")?;
    if rest.trim_matches('/').is_empty() {
        return Some(Asked::Ping);
    }
    let parsed = || {
        let (scope, rest) = rest.strip_prefix('/')?.split_once("/warm/")?;
        let scope: ScopePath = scope.parse().ok()?;
        let (head, what) = rest.rsplit_once('/')?;
        let (name, kind) = head.rsplit_once('/')?;
        if !is_reference(what) {
            return None;
        }
        match kind {
            "manifests" => Some(Asked::Manifest(scope, manifest_key(name, what))),
            "blobs" if what.starts_with("sha256:") => Some(Asked::Blob(scope, blob_key(what))),
            _ => None,
        }
    };
    Some(parsed().unwrap_or(Asked::Other))
}

/// The media type of a manifest: what it says itself, or what it must be by what it has.
pub(crate) fn media_type(manifest: &[u8]) -> String {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Said {
        media_type: Option<String>,
        manifests: Option<serde::de::IgnoredAny>,
    }
    let said: Said = serde_json::from_slice(manifest).unwrap_or_default();
    let plain = |text: &String| {
        text.len() <= 100 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"./+-".contains(&b))
    };
    let guess = match said.manifests {
        Some(_) => "application/vnd.oci.image.index.v1+json",
        None => "application/vnd.oci.image.manifest.v1+json",
    };
    said.media_type.filter(plain).unwrap_or_else(|| guess.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_of_a_registry_are_taken_apart() {
        assert_eq!(asked("/v2/"), Some(Asked::Ping));
        assert_eq!(asked("/v1/"), None);
        let scope_of = |text: &str| text.parse::<ScopePath>().unwrap();
        let key = "oci/docker.io/library/ubuntu/manifests/24.04".to_owned();
        for scope in ["pre/demo", "warm/demo"] {
            assert_eq!(
                asked(&format!("/v2/{scope}/warm/docker.io/library/ubuntu/manifests/24.04")),
                Some(Asked::Manifest(scope_of(scope), key.clone()))
            );
        }
        let digest = format!("sha256:{}", forgeyard_model::Digest::of(b"").hex());
        let blob = asked(&format!("/v2/pre/demo/warm/x/y/blobs/{digest}"));
        assert_eq!(blob, Some(Asked::Blob(scope_of("pre/demo"), format!("blobs/{digest}"))));
        assert_eq!(asked("/v2/pre/warm/x/blobs/uploads"), Some(Asked::Other));
    }

    #[test]
    fn media_type_is_what_the_manifest_says() {
        assert_eq!(media_type(b"{\"mediaType\":\"a/b+json\"}"), "a/b+json");
        assert!(media_type(b"{\"manifests\":[]}").contains("index"));
        assert!(media_type(b"{\"mediaType\":\"a\\r\\nX: y\"}").contains("manifest"));
    }

    proptest! {
        #[test]
        fn any_path_and_any_bytes_are_looked_at(path in "/v2\\PC{0,60}", bytes: Vec<u8>) {
            let _ = (asked(&path), media_type(&bytes));
        }
    }
}
