//! The authority in force: what was read last of its files, and what notices that they changed.
//!
//! Three kinds of files make it up: the authority, the keys for Nix that its scopes name, and the list of [live
//! tokens](super::live). They are looked at five times a second, and read when their [`Stamp`] is another one. A change that
//! leaves no trace in the stamp is found as well: a file that changed lately is read again at each look until its stamp has
//! been the same for [`SETTLES`], since two changes may fall into one tick of the file system's clock; and every file is read
//! again every [`SLOWLY`], for file systems that show old stamps.
//!
//! Whoever writes an id into the list may hand out its token at once: a token that is not listed is refused only after the
//! files were looked at. The list is looked at before the authority and written after it, so the scope of a listed token is
//! known too.
//!
//! A file that cannot be read leaves the last good one in force, and says so.

use super::live::{LiveTokens, path_beside};
use super::{Authority, Caller};
use crate::service::ServiceError;
use crate::token::TokenError;
use forgeyard_model::{Digest, Timestamp};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long a file is read at each look after its stamp changed.
const SETTLES: Duration = Duration::from_secs(2);
/// How often every file is read again, whatever its stamp says.
const SLOWLY: Duration = Duration::from_secs(30);

/// What tells one state of a file from the next without reading it: device, inode, size, and both times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    place: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let facts = std::fs::metadata(path).ok()?;
        Some(Self {
            place: (facts.dev(), facts.ino()),
            size: facts.size(),
            modified: (facts.mtime(), facts.mtime_nsec()),
            changed: (facts.ctime(), facts.ctime_nsec()),
        })
    }
}

/// A file that is looked at often and read seldom.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    stamp: Option<Stamp>,
    /// Since when the stamp is this one.
    since: Instant,
    /// When it was to be read last.
    read: Instant,
    /// Why it could not be read then.
    failed: Option<String>,
}

/// How closely files are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// At their stamps alone: by a request that waits.
    Glance,
    /// Also at what no stamp shows.
    Closely,
}

impl Watched {
    fn new(path: PathBuf) -> Self {
        let now = Instant::now();
        Self { stamp: Stamp::of(&path), path, since: now, read: now, failed: None }
    }

    /// Whether it is to be read now. The stamp is taken before, so what is written meanwhile is found by the next look.
    fn due(&mut self, now: Instant, look: Look) -> bool {
        let stamp = Stamp::of(&self.path);
        let changed = stamp != self.stamp;
        if changed {
            (self.stamp, self.since) = (stamp, now);
        }
        let unsure = self.failed.is_some()
            || now.duration_since(self.since) < SETTLES
            || now.duration_since(self.read) >= SLOWLY;
        let due = changed || (look == Look::Closely && unsure);
        if due {
            self.read = now;
        }
        due
    }

    /// It could not be read. The same reason is told once: a file that stays away is looked for several times a second.
    fn fails(&mut self, error: &ServiceError, kept: &str) {
        let reason = error.to_string();
        if self.failed.as_ref() != Some(&reason) {
            tracing::warn!("{kept}: {reason}");
            self.failed = Some(reason);
        }
    }
}

/// What was seen of the files.
#[derive(Debug)]
struct Seen {
    authority: Watched,
    /// Keys for Nix.
    keys: Vec<Watched>,
    live: Watched,
    /// Of the authority and its keys.
    digest: Digest,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct InForce {
    authority: RwLock<Arc<Authority>>,
    generation: AtomicU64,
    live: RwLock<Arc<LiveTokens>>,
    live_generation: AtomicU64,
    seen: Mutex<Seen>,
}

/// Whether a token was listed that holds only while it is, remembered with what was decided about it.
#[derive(Debug)]
pub(crate) struct Listing {
    id: String,
    listed: bool,
    /// The list for which this is known.
    generation: AtomicU64,
}

impl Listing {
    /// Whether it is still so.
    pub(crate) fn holds(&self, in_force: &InForce) -> bool {
        let now = in_force.live_generation.load(Ordering::Acquire);
        if self.generation.load(Ordering::Relaxed) == now {
            return true;
        }
        let same = in_force.lists(&self.id) == self.listed;
        if same {
            self.generation.store(now, Ordering::Relaxed);
        }
        same
    }
}

impl InForce {
    /// Reads the files. A list that is not there or cannot be read lists nobody.
    pub(crate) fn open(path: &Path) -> Result<Self, ServiceError> {
        let mut seen = Seen {
            authority: Watched::new(path.to_owned()),
            keys: Vec::new(),
            live: Watched::new(path_beside(path)),
            digest: Digest::of(b""),
        };
        let live = match seen.live.stamp {
            None => LiveTokens::default(),
            Some(_) => read_live(&seen.live.path).unwrap_or_else(|error| {
                tracing::warn!("no token of an attempt holds: {error}");
                LiveTokens::default()
            }),
        };
        let (authority, keys, digest) = read_authority(path)?;
        (seen.keys, seen.digest) = (keys, digest);
        Ok(Self {
            authority: RwLock::new(Arc::new(authority)),
            generation: AtomicU64::new(1),
            live: RwLock::new(Arc::new(live)),
            live_generation: AtomicU64::new(1),
            seen: Mutex::new(seen),
        })
    }

    pub(crate) fn authority(&self) -> Arc<Authority> {
        Arc::clone(&self.authority.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes with the authority; what was decided under an older one is decided anew.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn lists(&self, id: &str) -> bool {
        self.live.read().unwrap_or_else(PoisonError::into_inner).tokens.contains(id)
    }

    fn lists_nobody(&self) -> bool {
        self.live.read().unwrap_or_else(PoisonError::into_inner).tokens.is_empty()
    }

    /// Who holds this token, if it is valid now; and how it stands in the list, where that counts.
    pub(crate) fn identify(
        &self,
        token: &str,
        now: Timestamp,
    ) -> (Result<Caller, TokenError>, Option<Listing>) {
        let caller = match self.authority().identify(token, now) {
            Ok(caller) => caller,
            Err(error) => return (Err(error), None),
        };
        let Some(claims) = caller.claims.as_ref().filter(|claims| claims.listed) else {
            return (Ok(caller), None);
        };
        let id = claims.id.clone();
        let mut generation = self.live_generation.load(Ordering::Acquire);
        let mut listed = self.lists(&id);
        if !listed {
            self.look(Look::Glance);
            generation = self.live_generation.load(Ordering::Acquire);
            listed = self.lists(&id);
        }
        let listing = Listing { id, listed, generation: AtomicU64::new(generation) };
        (if listed { Ok(caller) } else { Err(TokenError::Revoked) }, Some(listing))
    }

    /// Looks whether something changed, and takes it over.
    pub(crate) fn refresh(&self) {
        self.look(Look::Closely);
    }

    fn look(&self, look: Look) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // First the list, see the module.
        if seen.live.due(now, look) {
            let read = read_live(&seen.live.path);
            match read {
                Ok(live) => {
                    seen.live.failed = None;
                    self.take_live(live);
                }
                // A cache that stands alone has no list, and nothing is kept in its place.
                Err(_) if seen.live.stamp.is_none() && self.lists_nobody() => {}
                Err(error) => seen.live.fails(&error, "keeping the last good list of live tokens"),
            }
        }
        let Seen { authority, keys, digest, .. } = &mut *seen;
        // All of them, so that one change is one reading.
        let due = keys.iter_mut().fold(authority.due(now, look), |due, key| key.due(now, look) | due);
        if !due {
            return;
        }
        let read = read_authority(&authority.path);
        if let Err(error) = &read {
            authority.fails(error, "keeping the last good authority");
        } else {
            authority.failed = None;
        }
        match read {
            Ok((read, files, new)) if new != *digest => {
                (*keys, *digest) = (files, new);
                *self.authority.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(read);
                self.generation.fetch_add(1, Ordering::AcqRel);
                tracing::info!("took over a new authority");
            }
            Ok(_) | Err(_) => {}
        }
    }

    fn take_live(&self, live: LiveTokens) {
        let mut known = self.live.write().unwrap_or_else(PoisonError::into_inner);
        if **known != live {
            *known = Arc::new(live);
            self.live_generation.fetch_add(1, Ordering::AcqRel);
        }
    }
}

fn read_live(path: &Path) -> Result<LiveTokens, ServiceError> {
    let failed = |source| ServiceError::AuthorityFile { path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))
}

/// The authority, the files of its keys, and the digest of all that was read.
fn read_authority(path: &Path) -> Result<(Authority, Vec<Watched>, Digest), ServiceError> {
    let failed = |source| ServiceError::AuthorityFile { path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(failed)?;
    let all = std::cell::RefCell::new((bytes.clone(), Vec::new()));
    let authority = crate::signature::with_keys(Authority::read(&bytes)?, |path| {
        let watched = Watched::new(path.to_owned());
        let key = fs_err::read(path)?;
        let mut all = all.borrow_mut();
        all.0.extend_from_slice(&key);
        all.1.push(watched);
        Ok(key)
    })?;
    let (read, keys) = all.into_inner();
    Ok((authority, keys, Digest::of(&read)))
}

#[cfg(test)]
#[path = "in_force_tests.rs"]
mod tests;
