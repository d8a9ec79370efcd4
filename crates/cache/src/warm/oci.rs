//! A container from a registry: its manifest, its configuration and its layers, each held against the digest that names it.
//!
//! OCI distribution and image specifications, 1.1. The list of platforms (index) is kept as it is, so digests stay what they are at
//! the source; of what it names only one platform is fetched. Registries that want a token hand it to anybody for public images
//! (the scheme of the Docker registry); others are refused.

use super::Container;
use super::fetch::{self, Got, Trouble, is_here, keep};
use crate::scope::ScopePath;
use crate::service::Core;
use forgeyard_model::Digest;
use reqwest::header::{ACCEPT, WWW_AUTHENTICATE};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Largest manifest.
const MANIFEST: u64 = 1 << 20;
/// What a registry may answer with.
const KINDS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
                     application/vnd.docker.distribution.manifest.list.v2+json, \
                     application/vnd.docker.distribution.manifest.v2+json";

/// A name of a container, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The registry: `docker.io`, `registry.example.org:5000`.
    host: String,
    /// The repository in it.
    repository: String,
    /// Tag, or `sha256:` and digits.
    what: String,
}

fn is_repository(text: &str) -> bool {
    let word = |word: &str| {
        let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
        !word.is_empty() && word.bytes().all(good) && word.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    text.len() <= 255 && text.split('/').all(word)
}

/// Whether a text is a tag, or a digest.
pub(crate) fn is_reference(text: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    match text.strip_prefix("sha256:") {
        Some(digits) => Digest::from_hex(digits).is_ok(),
        None => {
            !text.is_empty() && text.len() <= 128 && text.bytes().all(good) && !text.starts_with(['.', '-'])
        }
    }
}

impl Reference {
    /// Takes a name apart; without a registry it is one of Docker Hub.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (name, what) = match text.split_once('@') {
            Some((name, digest)) if digest.starts_with("sha256:") => (name, digest),
            Some(_) => return None,
            None => match text.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) {
                Some((name, tag)) => (name, tag),
                None => (text, "latest"),
            },
        };
        // a tag beside a digest says nothing
        let name = match name
            .rsplit_once(':')
            .filter(|(_, tag)| what.starts_with("sha256:") && !tag.contains('/'))
        {
            Some((name, _)) => name,
            None => name,
        };
        let (host, repository) = match name.split_once('/') {
            Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (host, rest.to_owned()),
            Some(_) => ("docker.io", name.to_owned()),
            None => ("docker.io", format!("library/{name}")),
        };
        let repository = if host == "docker.io" && !repository.contains('/') {
            format!("library/{repository}")
        } else {
            repository
        };
        let good = |b: u8| b.is_ascii_alphanumeric() || b".:-".contains(&b);
        let fine = host.starts_with(|c: char| c.is_ascii_alphanumeric())
            && host.bytes().all(good)
            && is_repository(&repository)
            && is_reference(what);
        fine.then(|| Self { host: host.to_owned(), repository, what: what.to_owned() })
    }

    /// What it is called here. A port is no part of a name, so its colon is a dash.
    pub(crate) fn served(&self) -> String {
        let (name, end) = (self.name(), if self.what.contains(':') { '@' } else { ':' });
        format!("{name}{end}{}", self.what)
    }

    fn name(&self) -> String {
        format!("{}/{}", self.host.replace(':', "-").to_ascii_lowercase(), self.repository)
    }

    /// Where it is asked for.
    fn url(&self, plain: bool, rest: &str) -> String {
        let host = if self.host == "docker.io" { "registry-1.docker.io" } else { &self.host };
        format!("{}://{host}/v2/{}/{rest}", if plain { "http" } else { "https" }, self.repository)
    }
}

/// Key of a manifest.
pub(crate) fn manifest_key(name: &str, reference: &str) -> String {
    format!("oci/{name}/manifests/{reference}")
}

/// Key of a layer or a configuration.
pub(crate) fn blob_key(digest: &str) -> String {
    format!("blobs/{digest}")
}

/// What of a manifest, or of a list of them, matters.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Manifest {
    manifests: Vec<Descriptor>,
    config: Option<Descriptor>,
    layers: Vec<Descriptor>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Descriptor {
    digest: String,
    size: u64,
    platform: BTreeMap<String, serde_json::Value>,
}

impl Descriptor {
    fn digest(&self) -> Result<Digest, Trouble> {
        let digits = self.digest.strip_prefix("sha256:").and_then(|digits| Digest::from_hex(digits).ok());
        digits.ok_or_else(|| {
            Trouble::new(
                format!("it names `{}`", shorten(&self.digest)),
                "only what has a SHA-256 is fetched",
            )
        })
    }

    fn is(&self, platform: &str) -> bool {
        let word = |name: &str| self.platform.get(name).and_then(|it| it.as_str()).unwrap_or_default();
        let mut parts = platform.split('/');
        parts.next() == Some(word("os"))
            && parts.next() == Some(word("architecture"))
            && parts.next().is_none_or(|variant| variant == word("variant"))
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}

/// The parts of a challenge: `Bearer realm="…",service="…",scope="…"`.
fn challenge(text: &str) -> Option<(String, Vec<(String, String)>)> {
    let rest = text.trim().strip_prefix("Bearer ").or_else(|| text.trim().strip_prefix("bearer "))?;
    let mut parts = Vec::new();
    let mut left = rest;
    while let Some((name, more)) = left.split_once("=\"") {
        let (value, more) = more.split_once('"')?;
        parts.push((name.trim_start_matches([',', ' ']).to_ascii_lowercase(), value.to_owned()));
        left = more;
    }
    let at = parts.iter().position(|(name, _)| name == "realm")?;
    let (_, realm) = parts.remove(at);
    Some((realm, parts))
}

#[derive(Deserialize)]
struct Token {
    #[serde(alias = "access_token")]
    token: String,
}

/// A registry, asked for one container.
struct Source<'s> {
    client: &'s reqwest::Client,
    reference: &'s Reference,
    plain: bool,
    token: Option<String>,
}

impl Source<'_> {
    fn request(&self, rest: &str) -> reqwest::RequestBuilder {
        let request = self.client.get(self.reference.url(self.plain, rest)).header(ACCEPT, KINDS);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn ask(&mut self, rest: &str) -> Result<reqwest::Response, Trouble> {
        if self.token.is_none() {
            let first = self.request(rest).send().await.map_err(fetch::network)?;
            if first.status().as_u16() != 401 {
                return fetch::answer(self.request(rest)).await;
            }
            let asks = first.headers().get(WWW_AUTHENTICATE).and_then(|text| text.to_str().ok());
            let Some((realm, parts)) = asks.and_then(challenge) else {
                return Err(Trouble::new(
                    "its registry asks for a password",
                    "only public containers are fetched",
                ));
            };
            let url = reqwest::Url::parse_with_params(&realm, &parts).map_err(|_| {
                Trouble::new("its registry names no address for tokens", "it is tried again by itself")
            })?;
            let answer = fetch::answer(self.client.get(url)).await?;
            let token: Token = answer.json().await.map_err(fetch::network)?;
            self.token = Some(token.token);
        }
        fetch::answer(self.request(rest)).await
    }
}

/// What it is fetched for.
pub(super) struct Task<'t> {
    pub(super) core: &'t Core,
    pub(super) client: &'t reqwest::Client,
    pub(super) scope: &'t ScopePath,
    pub(super) list: &'t str,
    pub(super) most: u64,
}

async fn manifest(
    source: &mut Source<'_>,
    task: &Task<'_>,
    what: &str,
) -> Result<(Vec<u8>, Digest), Trouble> {
    let answer = source.ask(&format!("manifests/{what}")).await?;
    let got = fetch::body(task.core, answer, MANIFEST, |_| {}).await?;
    if let Some(digits) = what.strip_prefix("sha256:") {
        fetch::verify(&got, Digest::from_hex(digits).unwrap_or_else(|_| Digest::of(b"")))?;
    }
    match got {
        Got::Small(bytes, digest) => Ok((bytes, digest)),
        Got::Large(_) => Err(Trouble::new("its manifest is larger than 1 MiB", "choose another container")),
    }
}

fn read(bytes: &[u8]) -> Result<Manifest, Trouble> {
    serde_json::from_slice(bytes).map_err(|error| {
        Trouble::new(format!("its manifest cannot be read: {error}"), "choose another container")
    })
}

/// Fetches what is missing. Answers with the bytes that it takes.
pub(super) async fn refresh(
    task: &Task<'_>,
    container: &Container,
    reference: &Reference,
    mut seen: impl FnMut(u64),
) -> Result<u64, Trouble> {
    let mut source = Source { client: task.client, reference, plain: container.plain_http, token: None };
    let name = reference.name();
    let (top, digest) = manifest(&mut source, task, &reference.what).await?;
    let first = read(&top)?;
    let (bytes, inner) = match first.manifests.is_empty() {
        true => (top.clone(), digest),
        false => {
            let fitting = first.manifests.iter().find(|it| it.is(&container.platform));
            let fitting = fitting.ok_or_else(|| {
                let text = format!("it has nothing for {}", shorten(&container.platform));
                Trouble::new(text, "correct `platform`")
            })?;
            fitting.digest()?;
            manifest(&mut source, task, &fitting.digest).await?
        }
    };
    let whole = read(&bytes)?;
    let Some(config) = whole.config.clone() else {
        return Err(Trouble::new("its manifest names no configuration", "choose another container"));
    };
    let parts: Vec<Descriptor> = std::iter::once(config).chain(whole.layers).collect();
    let total =
        parts.iter().map(|part| part.size).fold(bytes.len() as u64 + top.len() as u64, u64::saturating_add);
    if total > task.most {
        let text = format!("it takes {} MiB", total >> 20);
        return Err(Trouble::new(text, "raise `most-mib` of the list"));
    }
    let mut done = 0;
    for part in &parts {
        let (digest, key) = (part.digest()?, blob_key(&part.digest));
        if is_here(task.core, task.scope, &key)?.is_none() {
            let answer = source.ask(&format!("blobs/{}", part.digest)).await?;
            let got = fetch::body(task.core, answer, part.size, |bytes| seen(done + bytes)).await?;
            fetch::verify(&got, digest)?;
            keep(task.core, task.scope, &key, got, task.list).await?;
        }
        done += part.size;
        seen(done);
    }
    // what is referred to is here: now the manifest, then the list, then the tag
    let by_digest = |digest: &Digest| manifest_key(&name, &format!("sha256:{}", digest.hex()));
    keep(task.core, task.scope, &by_digest(&inner), Got::Small(bytes, inner), task.list).await?;
    if inner != digest {
        keep(task.core, task.scope, &by_digest(&digest), Got::Small(top.clone(), digest), task.list).await?;
    }
    if !reference.what.starts_with("sha256:") {
        let key = manifest_key(&name, &reference.what);
        keep(task.core, task.scope, &key, Got::Small(top, digest), task.list).await?;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_containers_are_read_as_docker_reads_them() {
        let of = |text: &str| {
            Reference::read(text).map(|it| (it.host.clone(), it.repository.clone(), it.what.clone()))
        };
        let found =
            |host: &str, repository: &str, what: &str| Some((host.into(), repository.into(), what.into()));
        assert_eq!(of("ubuntu"), found("docker.io", "library/ubuntu", "latest"));
        assert_eq!(of("docker.io/ubuntu:24.04"), found("docker.io", "library/ubuntu", "24.04"));
        assert_eq!(of("rocm/dev:6"), found("docker.io", "rocm/dev", "6"));
        assert_eq!(of("localhost:5000/a/b:1"), found("localhost:5000", "a/b", "1"));
        let digest = format!("sha256:{}", Digest::of(b"").hex());
        assert_eq!(of(&format!("ghcr.io/a/b:1@{digest}")), found("ghcr.io", "a/b", &digest));
        for wrong in ["", "a b", "A/b", "x@md5:1", "ghcr.io/", "x:", "../x", "ghcr.io/a/../b", "x:-v"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn challenge_of_a_registry_is_read() {
        let text = "Bearer realm=\"https://auth.example/token\",service=\"registry\",scope=\"repository:a/b:pull,push\"";
        let (realm, parts) = challenge(text).unwrap();
        assert_eq!(realm, "https://auth.example/token");
        assert_eq!(parts[1], ("scope".to_owned(), "repository:a/b:pull,push".to_owned()));
        assert!(challenge("Basic realm=\"x\"").is_none());
    }

    proptest! {
        #[test]
        fn any_text_is_a_name_or_none(text in "\\PC{0,60}", bytes: Vec<u8>) {
            let _ = (Reference::read(&text), challenge(&format!("Bearer {text}")), read(&bytes).is_ok());
            if let Some(reference) = Reference::read(&text) {
                prop_assert!(!reference.served().split('/').any(|word| word == ".."));
            }
        }
    }
}
