//! Turborepo's remote cache (`/v8/artifacts` of Vercel's API, as `turbo` 2.11 speaks it): which call a request is, and how an archive
//! is kept with what was said of it.
//!
//! ```text
//! GET  v8/artifacts/status        asked first: {"status":"enabled"}
//! GET, HEAD, PUT v8/artifacts/HASH   an archive, tar in Zstandard; ?slug= or ?teamId= says nothing here, the scope does
//! POST v8/artifacts/events        hits and misses of a run; the cache counts them itself
//! OPTIONS any                     asked before each call with `--preflight`
//!
//! stored: FYTURBO 1 DURATION TAG\n, then the archive
//! ```
//!
//! `x-artifact-duration` (milliseconds that the task took) and `x-artifact-tag` (an HMAC of the archive, for who sets
//! `remoteCache.signature`) come with an archive and go out with it. They stand in front of it in the same entry, `-` for what was
//! not said, so that nobody sees the one of one run and the other of another.

use crate::http::{Artifact, Method};
use crate::shape::ShapeError;
use std::ops::Range;

/// Longest line in front of an archive.
const LONGEST: usize = 1024;
const BEGIN: &str = "FYTURBO 1 ";

/// A call of `turbo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Whether caching is on.
    Status,
    /// What a run met.
    Events,
    /// Whether a call is allowed.
    Preflight,
    /// An archive, by its hash.
    Read(String),
    /// The same, to store it.
    Write(String),
    /// The same, to take it away.
    Remove(String),
}

/// Which call a request is.
pub fn call(method: Method, path: &str) -> Option<Call> {
    let rest = path.strip_prefix("v8/artifacts")?.strip_prefix('/')?;
    match (method, rest) {
        (Method::Options, _) => return Some(Call::Preflight),
        (Method::Get | Method::Head, "status") => return Some(Call::Status),
        (Method::Post, "events") => return Some(Call::Events),
        _ => {}
    }
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    let hash = Some(rest).filter(|hash| (1..=128).contains(&hash.len()) && hash.bytes().all(good))?;
    match method {
        Method::Get | Method::Head => Some(Call::Read(hash.to_owned())),
        Method::Put => Some(Call::Write(hash.to_owned())),
        Method::Delete => Some(Call::Remove(hash.to_owned())),
        _ => None,
    }
}

/// What is kept in front of an archive; nothing when it cannot be kept.
pub fn front(said: &Artifact) -> Option<Vec<u8>> {
    let word = |text: &str| {
        let good = text.len() < LONGEST / 4 && text.bytes().all(|b| b.is_ascii_graphic());
        good.then(|| if text.is_empty() { "-".to_owned() } else { text.to_owned() })
    };
    Some(format!("{BEGIN}{} {}\n", word(&said.duration)?, word(&said.tag)?).into_bytes())
}

/// What was said of an archive, and where it begins.
pub fn read(bytes: &[u8]) -> Option<(Artifact, usize)> {
    let end = bytes.get(..LONGEST.min(bytes.len()))?.iter().position(|b| *b == b'\n')?;
    let line = std::str::from_utf8(bytes.get(..end)?).ok()?.strip_prefix(BEGIN)?;
    let (duration, tag) = line.split_once(' ')?;
    let word = |text: &str| if text == "-" { String::new() } else { text.to_owned() };
    Some((Artifact { duration: word(duration), tag: word(tag) }, end + 1))
}

/// The part of an entry that a part of its archive is.
pub fn behind(front: usize, part: &Range<u64>) -> Range<u64> {
    part.start + front as u64..part.end + front as u64
}

/// Whether an entry has an archive: Zstandard, or gzip as older versions sent it.
pub fn check(bytes: &[u8]) -> Result<(), ShapeError> {
    let archive = read(bytes).and_then(|(_, front)| bytes.get(front..)).unwrap_or_default();
    let known = archive.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || archive.starts_with(&[0x1f, 0x8b]);
    if known { Ok(()) } else { Err(ShapeError::Turbo) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn calls_are_told_apart() {
        let get = |path: &str| call(Method::Get, path);
        assert_eq!(get("v8/artifacts/status"), Some(Call::Status));
        assert_eq!(get("v8/artifacts/fba523f8923f2faf"), Some(Call::Read("fba523f8923f2faf".to_owned())));
        assert_eq!(call(Method::Post, "v8/artifacts/events"), Some(Call::Events));
        assert_eq!(call(Method::Put, "v8/artifacts/ab"), Some(Call::Write("ab".to_owned())));
        for wrong in [
            "v8/artifacts",
            "v8/artifacts/",
            "v8/artifacts/a/b",
            "v8/artifactsab",
            "v2/user",
            "v8/artifacts/a b",
        ] {
            assert_eq!(get(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn entry_without_an_archive_is_refused() {
        let front = front(&Artifact::default()).unwrap();
        assert_eq!(check(&[&front[..], &[0x28, 0xb5, 0x2f, 0xfd, 0]].concat()), Ok(()));
        for wrong in [&front[..], &[], &[&front[..], b"plain"].concat(), &[0x28, 0xb5, 0x2f, 0xfd]] {
            assert_eq!(check(wrong), Err(ShapeError::Turbo));
        }
    }

    proptest! {
        #[test]
        fn what_is_said_is_read_again_and_any_bytes_are_read_or_refused(
            bytes: Vec<u8>, duration in "\\PC{0,12}", tag in "[!-~]{0,60}", path in "(v8/artifacts)?/?[a-z/%]{0,9}",
        ) {
            let _ = (read(&bytes), check(&bytes), call(Method::Get, &path), call(Method::Put, &path));
            let said = Artifact { duration, tag };
            match front(&said) {
                Some(front) if said.duration != "-" && said.tag != "-" => {
                    let length = front.len();
                    prop_assert_eq!(read(&[&front[..], &bytes].concat()), Some((said, length)));
                }
                Some(_) => {}
                None => prop_assert!(!said.duration.bytes().all(|b| b.is_ascii_graphic())),
            }
        }
    }
}
