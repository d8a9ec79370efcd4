//! What a caller can read, and what is promised by saying so.
//!
//! A client that is told of an action result, or that a content is here, counts on it for as long as its build takes. So
//! whatever is told of is leased, and nothing is told of whose parts are not all here.

use crate::exchange::{Access, add};
use crate::name::{Kind, NameHash};
use crate::scope::ScopePath;
use crate::service::Core;
use crate::store::port::Stored;
use crate::store::{LEASE_MINUTES, NAR_MINUTES, Place, Store as _, StoreError};
use crate::{action, nix, shape};
use forgeyard_model::Digest;
use std::collections::{BTreeSet, VecDeque};

/// Looks in the scopes of a caller, nearest first. A failure of the store is a miss.
pub(crate) fn look<T>(
    access: &Access,
    kind: Kind,
    key: &str,
    mut ask: impl FnMut(&ScopePath, NameHash) -> Result<Option<T>, StoreError>,
) -> Option<(usize, T)> {
    for (number, scope) in access.grant.reads.iter().enumerate() {
        match ask(scope, NameHash::of(scope.as_str(), kind, key)) {
            Ok(Some(found)) => return Some((number, found)),
            Ok(None) => {}
            Err(error) => {
                add(&access.counters.failures, 1);
                tracing::error!(%scope, kind = kind.as_str(), "reading an entry: {error}");
            }
        }
    }
    None
}

/// Whether everything that an action result or a `narinfo` refers to can be read by this caller. Asking leases it, so that
/// it outlives the build that was just promised it (bazel#8250).
pub(crate) fn complete(core: &Core, access: &Access, kind: Kind, result: &[u8]) -> bool {
    if kind == Kind::Nix {
        let Some(info) = nix::narinfo(result) else { return false };
        // whoever is told of it, or tells of it, believes it for 30 days (nix#1885)
        let file = look(access, Kind::Nix, &info.url, |_, name| {
            let facts = core.store.facts(name)?;
            if facts.is_some() {
                core.store.keep(name, NAR_MINUTES)?;
            }
            Ok(facts)
        });
        return file.is_some_and(|(_, facts)| info.file_size.is_none_or(|size| size == facts.size));
    }
    if shape::is_ccache(result) {
        return true;
    }
    let Some(references) = action::references(result) else { return false };
    let there = |digest: &Digest| promised(core, access, &digest.hex());
    references.contents.iter().all(there)
        && references.trees.iter().all(|tree| {
            let files = content(core, access, tree, LARGEST_TREE).and_then(|tree| action::tree_files(&tree));
            files.is_some_and(|files| files.iter().all(there))
        })
        && references.roots.iter().all(|root| {
            let mut whole = true;
            let walked = walk(core, access, *root, |directory| match directory {
                Some((_, directory)) => whole &= directory.files.iter().all(there),
                None => whole = false,
            });
            whole && walked
        })
}

/// Largest message that a result refers to and that is read into memory.
const LARGEST_TREE: u64 = 64 << 20;
/// Most directories below one.
const MOST_DIRECTORIES: usize = 100_000;

/// Whether this caller can read a content; if so, it is leased.
pub(crate) fn promised(core: &Core, access: &Access, key: &str) -> bool {
    let lease = |_: &ScopePath, name| Ok(core.store.lease(name, LEASE_MINUTES)?.then_some(()));
    key == action::EMPTY || look(access, Kind::Content, key, lease).is_some()
}

/// A content as a whole, leased; nothing when it is not here or larger than this.
pub(crate) fn content(core: &Core, access: &Access, digest: &Digest, most: u64) -> Option<Vec<u8>> {
    content_or_frames(core, access, digest, most, false).map(|(bytes, _)| bytes)
}

/// The same; where frames are welcome, and it is stored so, the frames instead, and whether they are.
pub(crate) fn content_or_frames(
    core: &Core,
    access: &Access,
    digest: &Digest,
    most: u64,
    welcome: bool,
) -> Option<(Vec<u8>, bool)> {
    let key = digest.hex();
    if key == action::EMPTY {
        return Some((Vec::new(), false));
    }
    let mut buffer = Vec::new();
    let (_, (found, stored)) = look(access, Kind::Content, &key, |_, name| {
        let found = match welcome {
            true => core.store.get_either(name, &mut buffer)?,
            false => core.store.get(name, &mut buffer)?.map(|found| (found, Stored::File)),
        };
        core.store.lease(name, LEASE_MINUTES)?;
        Ok(found)
    })?;
    if found.facts.size > most {
        return None;
    }
    match found.place {
        Place::Buffer(range) => {
            let body = buffer.get(range)?;
            Some(match stored {
                Stored::Framed(frames) => (body.get(..frames.stored() as usize)?.to_vec(), true),
                _ => (body.to_vec(), false),
            })
        }
        Place::Large(large) => {
            let (mut whole, framed) = (Vec::new(), welcome && large.frames().is_some());
            for number in 0..large.pieces() {
                match framed {
                    true => large.stored_frame(number, &mut buffer).ok()?,
                    false => large.piece(number, &mut buffer).ok()?,
                }
                whole.extend_from_slice(&buffer);
            }
            Some((whole, framed))
        }
    }
}

/// Shows a directory and those below it, each once; `None` for one that is not here or is none. Whether there were few enough.
pub(crate) fn walk(
    core: &Core,
    access: &Access,
    root: Digest,
    mut see: impl FnMut(Option<(&[u8], &action::Directory)>),
) -> bool {
    let (mut met, mut next) = (BTreeSet::from([root]), VecDeque::from([root]));
    while let Some(digest) = next.pop_front() {
        let bytes = content(core, access, &digest, LARGEST_TREE);
        let directory = bytes.as_deref().and_then(action::directory);
        see(bytes.as_deref().zip(directory.as_ref()));
        for below in directory.into_iter().flat_map(|directory| directory.directories) {
            if met.insert(below) {
                next.push_back(below);
            }
        }
        if met.len() > MOST_DIRECTORIES {
            return false;
        }
    }
    true
}

/// Whether something of what a result or a `narinfo` refers to lies beyond this disk: then it is no reason to drop the result.
pub(crate) fn beyond(core: &Core, access: &Access, kind: Kind, result: &[u8]) -> bool {
    let Some(tier) = &core.tier else { return false };
    let has = |(kind, key): (Kind, String)| {
        access.grant.reads.iter().any(|scope| tier.has(NameHash::of(scope.as_str(), kind, &key)))
    };
    parts(core, access, kind, result).into_iter().any(has)
}

/// What a result or a `narinfo` refers to, as far as it can be read here.
fn parts(core: &Core, access: &Access, kind: Kind, result: &[u8]) -> Vec<(Kind, String)> {
    if kind == Kind::Nix {
        return nix::narinfo(result).map(|info| (Kind::Nix, info.url)).into_iter().collect();
    }
    let Some(references) = action::references(result).filter(|_| !shape::is_ccache(result)) else {
        return Vec::new();
    };
    let mut all: Vec<Digest> = [&references.contents[..], &references.trees, &references.roots].concat();
    for tree in &references.trees {
        let files = content(core, access, tree, LARGEST_TREE).and_then(|tree| action::tree_files(&tree));
        all.extend(files.unwrap_or_default());
    }
    for root in &references.roots {
        walk(core, access, *root, |directory| {
            if let Some((_, directory)) = directory {
                all.extend(directory.files.iter().chain(&directory.directories));
            }
        });
    }
    all.into_iter().map(|digest| (Kind::Content, digest.hex())).collect()
}

/// How many parts of a result are brought back at once.
const AT_ONCE: usize = 16;
/// Directories below directories are found as they come.
const ROUNDS: usize = 8;

/// Brings back from the tier what this caller could read if it were here, with what it refers to. Whether something came.
pub(crate) async fn bring(core: &Core, access: &Access, kind: Kind, key: &str) -> bool {
    let Some(tier) = &core.tier else { return false };
    let one = async |kind: Kind, key: &str| {
        for scope in &access.grant.reads {
            if tier.bring(scope, kind, key).await {
                return true;
            }
        }
        false
    };
    let (mut came, began) = (one(kind, key).await, std::time::Instant::now());
    let refers = kind == Kind::Action || (kind == Kind::Nix && crate::surface::is_narinfo(key));
    for _ in 0..if refers { ROUNDS } else { 0 } {
        let mut buffer = Vec::new();
        let found = look(access, kind, key, |_, name| core.store.get(name, &mut buffer));
        let Some(Place::Buffer(range)) = found.map(|(_, found)| found.place) else { break };
        let result = buffer.get(range).unwrap_or_default();
        let mut missing = parts(core, access, kind, result);
        missing.retain(|(kind, key)| look(access, *kind, key, |_, name| core.store.facts(name)).is_none());
        missing.sort_by(|one, other| one.1.cmp(&other.1));
        missing.dedup();
        let mut any = false;
        for some in missing.chunks(AT_ONCE) {
            if began.elapsed() > 2 * crate::tier::WAIT {
                // the rest comes in with the next try
                return came | any;
            }
            let all = some.iter().map(|(kind, key)| one(*kind, key));
            any |= futures::future::join_all(all).await.contains(&true);
        }
        came |= any;
        if !any {
            break;
        }
    }
    came
}
