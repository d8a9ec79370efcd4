//! What is in the cache before jobs come: mirrors of git repositories, containers, and inputs by address and digest.
//!
//! ```text
//! /<scope>/-/warm/git/<name>.git/…             a bare mirror, for `git clone` (the plain HTTP protocol of git: files)
//! /<scope>/-/warm/sha256/<digits>              an input
//! /v2/<scope>/warm/<image>/manifests|blobs/…   a container, as a registry serves it
//! ```
//!
//! The service fetches everything itself ([`run`]) and is the only one that can write these names, so no job and no token can put
//! anything in their place. Nothing is served that was not held against a digest: of an input that of the configuration, of a
//! container that of its manifest, of a repository what git computes of every object. The order of writes is: what is referred to
//! before what refers to it.
//!
//! Bounded: each list takes so many bytes at most, and a source that fails is asked again after 1, 2, 4 … minutes, up to an hour.

mod fetch;
mod git;
mod oci;
pub(crate) mod registry;
mod run;

use crate::scope::ScopePath;
use crate::service::Core;
use forgeyard_model::{Digest, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::sync::CancellationToken;

/// Things that are to be in a scope.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct List {
    /// Its name, for people.
    pub name: String,
    /// Where its things are; jobs whose scope has this one as a parent read them.
    pub scope: ScopePath,
    /// The pools whose machines want it.
    #[serde(default)]
    pub pools: Vec<String>,
    /// How often mirrors and tags are looked at.
    #[serde(default = "hourly")]
    pub every_minutes: u32,
    /// Most that all of it may take.
    #[serde(default = "twenty_gib")]
    pub most_mib: u64,
    /// Repositories.
    #[serde(default)]
    pub git: Vec<Mirror>,
    /// Containers.
    #[serde(default)]
    pub containers: Vec<Container>,
    /// Files.
    #[serde(default)]
    pub inputs: Vec<Input>,
}

const fn hourly() -> u32 {
    60
}

const fn twenty_gib() -> u64 {
    20 << 10
}

/// A repository to be mirrored: branches and tags.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Mirror {
    /// What it is called here: `iree` is found as `git/iree.git`.
    pub name: String,
    /// Where it is fetched from, as git takes it.
    pub url: String,
}

/// A container to be fetched with all of its layers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Container {
    /// Its name: `docker.io/library/ubuntu:24.04`, or with `@sha256:…`.
    pub image: String,
    /// For which machines.
    #[serde(default = "linux")]
    pub platform: String,
    /// Speak HTTP to the registry, and not HTTPS.
    #[serde(default)]
    pub plain_http: bool,
}

fn linux() -> String {
    "linux/amd64".to_owned()
}

/// A file to be fetched once.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Input {
    /// Where it is.
    pub url: String,
    /// What it must be: digits, as `sha256sum` prints them.
    #[serde(deserialize_with = "digits")]
    pub sha256: Digest,
}

fn digits<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
    let text = String::deserialize(from)?;
    let digits = text.strip_prefix("sha256:").unwrap_or(&text);
    Digest::from_hex(&digits.to_ascii_lowercase()).map_err(serde::de::Error::custom)
}

/// How a thing stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Standing {
    /// Not looked at since the start.
    Waiting,
    /// Being fetched: bytes so far.
    Fetching {
        /// So many.
        done: u64,
    },
    /// Here, and found to be as its source has it at this time.
    Fresh {
        /// The time.
        at: Timestamp,
    },
    /// Its source fails. What was here before is served still.
    Failing {
        /// What, where, and what to do.
        error: String,
        /// How often in a row.
        tries: u32,
        /// When it is tried again.
        next: Timestamp,
        /// When it was last found to be as its source has it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_good: Option<Timestamp>,
    },
}

/// A thing of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Line {
    /// Its list.
    pub list: String,
    /// The pools of the list.
    #[serde(default)]
    pub pools: Vec<String>,
    /// Where it is.
    pub scope: String,
    /// `git`, `container` or `input`.
    pub kind: String,
    /// Its path on the cache.
    pub path: String,
    /// Where it comes from, without credentials.
    pub source: String,
    /// Bytes that it takes, when that is known.
    pub bytes: u64,
    /// How it stands.
    #[serde(flatten)]
    pub standing: Standing,
}

/// What is wrong with lists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// Two of one name.
    #[error("two lists of [[cache.warm]] are called `{0}`")]
    Twice(String),
    /// A thing that cannot be fetched.
    #[error("[[cache.warm]] `{list}` names `{what}`, which is {wrong}")]
    Thing {
        /// The list.
        list: String,
        /// The thing.
        what: String,
        /// What is wrong with it.
        wrong: &'static str,
    },
}

/// What a list names, one by one.
#[derive(Debug, Clone)]
pub(crate) enum Thing {
    Git(Mirror),
    Container(Container, oci::Reference),
    Input(Input),
}

#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) list: usize,
    pub(crate) scope: ScopePath,
    pub(crate) thing: Thing,
    pub(crate) line: Line,
    /// When it is to be looked at.
    pub(crate) due: Timestamp,
    /// Failures in a row.
    pub(crate) tries: u32,
    /// When it was last found to be as its source has it.
    pub(crate) last_good: Option<Timestamp>,
}

/// All things and how they stand.
pub(crate) struct Warm {
    pub(crate) lists: Vec<List>,
    pub(crate) items: Mutex<Vec<Item>>,
    /// Where mirrors are kept.
    pub(crate) folder: PathBuf,
}

/// An address without user and password.
fn shown(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            format!("{scheme}://{}{path}", host.rsplit('@').next().unwrap_or(host))
        }
        None => url.to_owned(),
    }
}

fn is_word(text: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    !text.is_empty() && text.len() <= 100 && !text.starts_with(['.', '-']) && text.bytes().all(good)
}

impl List {
    fn things(&self) -> Result<Vec<(Thing, Line)>, ListError> {
        let wrong =
            |what: &str, wrong| ListError::Thing { list: self.name.clone(), what: shown(what), wrong };
        let line = |kind: &str, path: String, source: &str| Line {
            list: self.name.clone(),
            pools: self.pools.clone(),
            scope: self.scope.to_string(),
            kind: kind.to_owned(),
            path,
            source: shown(source),
            bytes: 0,
            standing: Standing::Waiting,
        };
        let mut things = Vec::new();
        for mirror in &self.git {
            if !is_word(&mirror.name) {
                return Err(wrong(&mirror.name, "no name of letters, digits, `.`, `_` and `-`"));
            }
            if !["https://", "http://", "ssh://", "file://"].iter().any(|it| mirror.url.starts_with(it)) {
                return Err(wrong(&mirror.url, "no address with https, http, ssh or file"));
            }
            let path = format!("/{}/-/warm/git/{}.git", self.scope, mirror.name);
            things.push((Thing::Git(mirror.clone()), line("git", path, &mirror.url)));
        }
        for container in &self.containers {
            let Some(reference) = oci::Reference::read(&container.image) else {
                return Err(wrong(&container.image, "no name of a container"));
            };
            let path = format!("/v2/{}/warm/{}", self.scope, reference.served());
            things.push((
                Thing::Container(container.clone(), reference),
                line("container", path, &container.image),
            ));
        }
        for input in &self.inputs {
            if !["https://", "http://"].iter().any(|it| input.url.starts_with(it)) {
                return Err(wrong(&input.url, "no address with https or http"));
            }
            let path = format!("/{}/-/warm/sha256/{}", self.scope, input.sha256.hex());
            things.push((Thing::Input(input.clone()), line("input", path, &input.url)));
        }
        Ok(things)
    }
}

/// Whether these lists can be fetched, as far as that shows in them.
pub fn check(lists: &[List]) -> Result<(), ListError> {
    Warm::new(lists.to_vec(), PathBuf::new()).map(|_| ())
}

impl Warm {
    pub(crate) fn new(lists: Vec<List>, folder: PathBuf) -> Result<Self, ListError> {
        let mut items = Vec::new();
        for (number, list) in lists.iter().enumerate() {
            if lists.iter().take(number).any(|other| other.name == list.name) {
                return Err(ListError::Twice(list.name.clone()));
            }
            for (thing, line) in list.things()? {
                let (scope, due) = (list.scope.clone(), Timestamp::from_micros(i64::MIN));
                items.push(Item { list: number, scope, thing, line, due, tries: 0, last_good: None });
            }
        }
        Ok(Self { lists, items: Mutex::new(items), folder })
    }

    /// How everything stands.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        items.iter().map(|item| item.line.clone()).collect()
    }

    /// Has everything of a list, or of all, looked at as soon as possible, also what fails. Answers with how many things that are.
    pub(crate) fn hurry(&self, list: Option<&str>) -> usize {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let named = items.iter_mut().filter(|item| list.is_none_or(|name| item.line.list == name));
        let hurried = named.map(|item| {
            item.due = Timestamp::from_micros(i64::MIN);
            if !matches!(item.line.standing, Standing::Fetching { .. }) {
                item.line.standing = Standing::Waiting;
            }
        });
        hurried.count()
    }

    /// For Prometheus.
    pub(crate) fn prometheus(&self, now: Timestamp) -> String {
        let mut text = String::from(
            "# HELP forgeyard_cache_warm_age_seconds Seconds since a prepared thing was last found to be as its source has it.\n\
             # TYPE forgeyard_cache_warm_age_seconds gauge\n",
        );
        let lines = self.lines();
        let quoted = |text: &str| text.replace(['"', '\\', '\n'], "_");
        for line in &lines {
            if let Some(at) = line.last_good() {
                let (list, path, age) = (quoted(&line.list), quoted(&line.path), now.since(at).as_secs());
                let _ = writeln!(
                    text,
                    "forgeyard_cache_warm_age_seconds{{list=\"{list}\",path=\"{path}\"}} {age}"
                );
            }
        }
        let failing = lines.iter().filter(|line| matches!(line.standing, Standing::Failing { .. })).count();
        let _ = writeln!(
            text,
            "# HELP forgeyard_cache_warm_failing Prepared things whose source fails.\n\
             # TYPE forgeyard_cache_warm_failing gauge\nforgeyard_cache_warm_failing {failing}"
        );
        text
    }
}

impl Line {
    /// When it was last found to be as its source has it.
    pub fn last_good(&self) -> Option<Timestamp> {
        match &self.standing {
            Standing::Fresh { at } => Some(*at),
            Standing::Failing { last_good, .. } => *last_good,
            Standing::Waiting | Standing::Fetching { .. } => None,
        }
    }
}

/// Fetches until it is stopped.
pub(crate) fn fetch(core: &Arc<Core>, stop: &CancellationToken) {
    run::run(core, stop);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(name: &str) -> List {
        let text = format!("{{\"name\":\"{name}\",\"scope\":\"warm/demo\"}}");
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn list_that_cannot_be_fetched_is_refused_with_what_is_wrong() {
        assert!(check(&[list("a"), list("b")]).is_ok());
        assert_eq!(check(&[list("a"), list("a")]), Err(ListError::Twice("a".to_owned())));
        for (name, url) in
            [("../x", "https://a/b"), ("x", "ext::sh -c true"), ("x", "--upload-pack=x"), ("", "https://a")]
        {
            let git = vec![Mirror { name: name.to_owned(), url: url.to_owned() }];
            assert!(check(&[List { git, ..list("a") }]).is_err(), "{name} {url}");
        }
        let containers = vec![Container { image: "a b".to_owned(), platform: linux(), plain_http: false }];
        assert!(check(&[List { containers, ..list("a") }]).is_err());
    }

    #[test]
    fn credentials_of_an_address_are_not_shown() {
        assert_eq!(shown("https://user:secret@host/path@x"), "https://host/path@x");
        assert_eq!(shown("https://host"), "https://host");
    }
}
