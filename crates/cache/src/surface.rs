//! What a request means, protocol by protocol. Pure: method and path in, a plan out.
//!
//! ```text
//! /<scope>/-/dav/<path>        WebDAV, for sccache
//! /<scope>/-/s3/<bucket>/<path>  S3, for sccache; any word is a bucket
//! /<scope>/-/ccache/<path>     ccache: layouts subdirs, flat, bazel
//! /<scope>/-/bazel/ac|cas/<sha256>   Bazel
//! /<scope>/-/nix/<path>        Nix: a binary cache
//! /<scope>/-/turbo/v8/artifacts/<hash>   Turborepo
//! /<scope>/-/gradle/<key>      Gradle
//! /<scope>/-/kv/<key>          any key
//! /<scope>/-/warm/<path>       what the cache fetched beforehand, to read only
//! /-/<surface>/…               the scope of the token
//! ```
//!
//! `-` is no word of a scope, so the two halves cannot be confused.

use crate::http::Method;
use crate::name::{Kind, LONGEST_KEY};
use crate::scope::ScopePath;
use crate::store::Policy;

/// A protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Surface {
    /// sccache over WebDAV.
    Dav,
    /// sccache over S3.
    S3,
    /// ccache over HTTP.
    Ccache,
    /// Bazel over HTTP.
    Bazel,
    /// A binary cache of Nix.
    Nix,
    /// Turborepo, which [`crate::turbo`] explains.
    Turbo,
    /// Gradle's HTTP build cache: GET and PUT by key.
    Gradle,
    /// Any client, by key.
    Keyed,
    /// Bazel and others over gRPC, see `grpc`. It has no paths.
    Remote,
    /// GitHub's cache and artifact services, which [`crate::github`] answers.
    Github,
    /// What was fetched beforehand, to read only, see [`crate::warm`].
    Warm,
}

impl Surface {
    /// Those whose paths are taken apart here.
    pub const ALL: [Surface; 9] = [
        Surface::Dav,
        Surface::S3,
        Surface::Ccache,
        Surface::Bazel,
        Surface::Nix,
        Surface::Turbo,
        Surface::Gradle,
        Surface::Keyed,
        Surface::Warm,
    ];

    /// The word in paths and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Surface::Dav => "dav",
            Surface::S3 => "s3",
            Surface::Ccache => "ccache",
            Surface::Bazel => "bazel",
            Surface::Nix => "nix",
            Surface::Turbo => "turbo",
            Surface::Gradle => "gradle",
            Surface::Keyed => "kv",
            Surface::Remote => "reapi",
            Surface::Github => "github",
            Surface::Warm => "warm",
        }
    }
}

/// What a caller who may not write is told, so that its client stays green.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// 403, at once. sccache goes on without writing; ccache says nothing.
    Forbidden,
    /// The body is read and thrown away, and the answer is the usual one. Bazel would warn for every action, and Gradle would read
    /// nothing more for the rest of its build.
    Discarded,
}

/// What an entry must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Anything.
    Any,
    /// A ZIP whose checksums hold.
    Sccache,
    /// A file of ccache whose checksum holds.
    Ccache,
    /// An action result, or a file of ccache.
    Action,
    /// Bytes with the digest that is their key.
    Content,
    /// What Nix says of a store path, whose file is here.
    NarInfo,
    /// A file of Nix, with the digest that is in its key.
    NarFile,
    /// An archive of Turborepo, behind what was said of it.
    Turbo,
    /// An archive of Gradle.
    Gradle,
}

/// What a request means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Read an entry.
    Read {
        /// Its kind.
        kind: Kind,
        /// Its key.
        key: String,
        /// Without its bytes.
        facts: bool,
    },
    /// Store an entry.
    Write {
        /// Its kind.
        kind: Kind,
        /// Its key.
        key: String,
        /// What it must be.
        shape: Shape,
        /// Whoever may not write.
        denied: Denied,
        /// When the key is taken, in a trusted scope.
        policy: Policy,
    },
    /// Take an entry away.
    Remove {
        /// Its kind.
        kind: Kind,
        /// Its key.
        key: String,
    },
    /// The start-up check of sccache: never an entry, and never an error that would stop a build.
    Check {
        /// Whether it writes.
        writes: bool,
    },
    /// Properties of a path that may be an entry or a folder.
    Properties {
        /// Kind of the entry.
        kind: Kind,
        /// Its key.
        key: String,
    },
    /// A call of Turborepo.
    Turbo(crate::turbo::Call),
    /// The same for everybody.
    Constant(&'static str),
    /// A folder is made. There are no folders, so all of them exist.
    Folder,
    /// Nothing of this protocol.
    Refuse {
        /// Status.
        status: u16,
        /// Why.
        reason: &'static str,
    },
}

const fn refuse(status: u16, reason: &'static str) -> Plan {
    Plan::Refuse { status, reason }
}

/// A path taken apart: scope, surface, rest. `None` when it is none of an entry.
pub fn split(path: &str) -> Option<(Option<ScopePath>, Surface, &str)> {
    let (scope, surface, rest) = parts(path)?;
    Some((scope.map(str::parse).transpose().ok()?, surface, rest))
}

/// The same, but nobody looked yet whether the scope can be one.
pub fn parts(path: &str) -> Option<(Option<&str>, Surface, &str)> {
    let (scope, rest) = match path.strip_prefix("/-/") {
        Some(rest) => (None, rest),
        None => {
            let path = path.strip_prefix('/')?;
            // by hand: looking for a text is made for long ones
            let at = path.as_bytes().windows(3).position(|three| three == b"/-/")?;
            (Some(path.get(..at)?), path.get(at + 3..)?)
        }
    };
    let (word, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let surface = Surface::ALL.into_iter().find(|surface| surface.as_str() == word)?;
    Some((scope, surface, rest))
}

/// What a request to a surface means.
pub fn plan(surface: Surface, method: Method, rest: &str) -> Plan {
    let key = rest.trim_end_matches('/');
    // entries are the same over WebDAV and S3
    let key = if surface == Surface::S3 { key.split_once('/').map_or("", |(_, key)| key) } else { key };
    if key.len() > LONGEST_KEY {
        return refuse(400, "the key is too long");
    }
    let (kind, key, shape, denied, policy) = match surface {
        Surface::Dav | Surface::S3 => {
            match method {
                _ if surface == Surface::S3 => {}
                Method::Propfind => return Plan::Properties { kind: Kind::Sccache, key: key.to_owned() },
                Method::Mkcol => return Plan::Folder,
                _ => {}
            }
            if key.rsplit('/').next() == Some(".sccache_check") {
                return match method {
                    Method::Get | Method::Head => Plan::Check { writes: false },
                    Method::Put | Method::Delete => Plan::Check { writes: true },
                    _ => refuse(405, "the check is read or written"),
                };
            }
            (Kind::Sccache, key.to_owned(), Shape::Sccache, Denied::Forbidden, Policy::Keep)
        }
        // Manifests of ccache are rewritten as they grow, so the last one counts.
        Surface::Ccache => match key.strip_prefix("ac/") {
            Some(digits) if is_digest(digits) => {
                (Kind::Ccache, key.to_owned(), Shape::Ccache, Denied::Forbidden, Policy::Replace)
            }
            _ => (Kind::Ccache, key.replace('/', ""), Shape::Ccache, Denied::Forbidden, Policy::Replace),
        },
        Surface::Bazel => match key.split_once('/') {
            Some(("ac", digits)) if is_digest(digits) => {
                (Kind::Action, digits.to_owned(), Shape::Action, Denied::Discarded, Policy::Keep)
            }
            Some(("cas", digits)) if is_digest(digits) => {
                (Kind::Content, digits.to_owned(), Shape::Content, Denied::Discarded, Policy::Keep)
            }
            _ => return refuse(404, "Bazel's paths are ac/ and cas/ with a SHA-256"),
        },
        Surface::Nix if key == "nix-cache-info" => {
            return match method {
                Method::Get | Method::Head => Plan::Constant(crate::nix::CACHE_INFO),
                _ => refuse(405, "this file is the same in every scope"),
            };
        }
        Surface::Nix => {
            let shape = match key {
                _ if is_narinfo(key) => Shape::NarInfo,
                _ if key.starts_with("nar/") => Shape::NarFile,
                _ => Shape::Any,
            };
            // Logs and listings of a path made twice, or by two versions of Nix, differ, and nobody builds from them.
            let told = key.starts_with("log/") || key.ends_with(".ls");
            let policy = if told { Policy::Replace } else { Policy::Keep };
            (Kind::Nix, key.to_owned(), shape, Denied::Forbidden, policy)
        }
        Surface::Turbo => {
            return match crate::turbo::call(method, key) {
                Some(call) => Plan::Turbo(call),
                None => refuse(
                    404,
                    "Turborepo's paths are v8/artifacts/HASH, v8/artifacts/status and v8/artifacts/events",
                ),
            };
        }
        Surface::Gradle => (Kind::Gradle, key.to_owned(), Shape::Gradle, Denied::Discarded, Policy::Keep),
        Surface::Remote => return refuse(404, "this is spoken over gRPC"),
        Surface::Github => return refuse(404, "this is no call of GitHub's services"),
        Surface::Warm if !matches!(method, Method::Get | Method::Head) => {
            return refuse(405, "what is fetched beforehand is written by the cache alone");
        }
        Surface::Warm => (Kind::Warm, key.to_owned(), Shape::Any, Denied::Forbidden, Policy::Keep),
        Surface::Keyed => (Kind::Keyed, key.to_owned(), Shape::Any, Denied::Forbidden, Policy::Keep),
    };
    if key.is_empty() {
        return refuse(404, "the path names no entry");
    }
    match method {
        Method::Get => Plan::Read { kind, key, facts: false },
        Method::Head => Plan::Read { kind, key, facts: true },
        Method::Put => Plan::Write { kind, key, shape, denied, policy },
        Method::Delete => Plan::Remove { kind, key },
        _ => refuse(405, "entries are read, written and removed"),
    }
}

/// Whether a key of [`Kind::Nix`] is that of a `narinfo`.
pub fn is_narinfo(key: &str) -> bool {
    key.ends_with(".narinfo") && !key.contains('/')
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The answer to PROPFIND. `getlastmodified` is there for folders too: the client of sccache fails without it.
pub fn properties(path: &str, entry: Option<(u64, &str)>) -> String {
    let mut href = String::new();
    for byte in path.bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => href.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => href.push(char::from(byte)),
            byte => href.push_str(&format!("%{byte:02X}")),
        }
    }
    let (properties, modified) = match entry {
        Some((size, modified)) => {
            (format!("<D:resourcetype/><D:getcontentlength>{size}</D:getcontentlength>"), modified)
        }
        None => {
            if !href.ends_with('/') {
                href.push('/');
            }
            ("<D:resourcetype><D:collection/></D:resourcetype>".to_owned(), "Thu, 01 Jan 1970 00:00:00 GMT")
        }
    };
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>{href}</D:href>\
         <D:propstat><D:prop>{properties}<D:getlastmodified>{modified}</D:getlastmodified></D:prop>\
         <D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response></D:multistatus>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn scope_and_surface_are_told_apart() {
        let (scope, surface, rest) = split("/iree/main/-/dav/p/a/b").unwrap();
        assert_eq!((scope.unwrap().as_str(), surface, rest), ("iree/main", Surface::Dav, "p/a/b"));
        assert_eq!(split("/-/kv/x").unwrap(), (None, Surface::Keyed, "x"));
        for wrong in ["/", "/iree", "/-/", "/-/ftp/x", "/iree/-/-/dav/x", "//-/dav"] {
            assert!(split(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn layouts_of_ccache_share_their_entries_where_the_key_is_the_same() {
        let subdirs = plan(Surface::Ccache, Method::Get, "ab/cdef");
        assert_eq!(subdirs, plan(Surface::Ccache, Method::Get, "abcdef"));
    }

    #[test]
    fn check_of_sccache_is_never_an_entry() {
        assert_eq!(plan(Surface::Dav, Method::Get, "p/.sccache_check"), Plan::Check { writes: false });
        assert_eq!(plan(Surface::Dav, Method::Put, ".sccache_check"), Plan::Check { writes: true });
    }

    proptest! {
        #[test]
        fn any_path_gets_a_plan(path in "(/[a-z-]{0,4}){0,3}/-/(dav|s3|ccache|bazel|nix|turbo|gradle|kv)/\\PC{0,40}") {
            prop_assert_eq!(split(&path).is_some(), parts(&path).is_some_and(|(scope, ..)| scope.is_none_or(|s| s.parse::<ScopePath>().is_ok())));
            if let Some((_, surface, rest)) = split(&path) {
                for method in [Method::Get, Method::Put, Method::Propfind, Method::Mkcol, Method::Other] {
                    let _ = plan(surface, method, rest);
                }
                let xml = properties(rest, None);
                let plain = properties("a", None).matches('<').count();
                prop_assert_eq!(xml.matches('<').count(), plain, "nothing of the path is markup: {}", xml);
            }
        }
    }
}
