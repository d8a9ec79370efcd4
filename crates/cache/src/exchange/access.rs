//! Who asks, and what that caller may do: decided once for each token, scope and surface, and remembered by the thread.

use super::add;
use crate::authority::in_force::Listing;
use crate::authority::{Caller, token_in};
use crate::connection::Thread;
use crate::figures::Counters;
use crate::http::Head;
use crate::making::is_made;
use crate::name::{Kind, Name, NameHash};
use crate::readers::Reader;
use crate::scope::{Grant, ScopePath};
use crate::service::Core;
use crate::signature::Signer;
use crate::store::Provenance;
use crate::surface::Surface;
use forgeyard_model::Timestamp;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Callers that a thread remembers at most.
const MET: usize = 4096;

/// A caller on a surface, decided once and remembered by the thread.
pub(crate) struct Access {
    generation: u64,
    expires_at: Option<Timestamp>,
    /// How its token stands in the list, where that counts.
    listing: Option<Listing>,
    pub(crate) grant: Grant,
    pub(crate) provenance: Provenance,
    /// Who reads, for the journal.
    pub(crate) reader: Reader,
    /// The number that the journal gave it.
    known_reader: AtomicU64,
    pub(crate) counters: Arc<Counters>,
    /// Keys of the scopes that are read, in their order; empty for all but Nix.
    pub(super) signers: Vec<Option<Arc<Signer>>>,
}

impl Access {
    /// What this caller may do, decided under the authority of this generation.
    pub(crate) fn of(
        core: &Core,
        caller: &Caller,
        generation: u64,
        scope: Option<&ScopePath>,
        surface: Surface,
    ) -> Self {
        let authority = core.authority();
        let grant = authority.grant(caller, scope);
        let signed = grant.reads.iter().filter(|_| surface == Surface::Nix);
        let signers = signed.map(|scope| authority.signer(scope)).collect();
        let counted = grant.writes.as_ref().or(grant.reads.first());
        let counters = core.figures.of(counted.map_or("(none)", ScopePath::as_str), surface);
        let claims = caller.claims.as_ref();
        Access {
            generation,
            expires_at: claims.map(|claims| claims.expires_at),
            listing: None,
            grant,
            provenance: Provenance {
                principal: claims.map_or_else(String::new, |claims| claims.principal.clone()),
                run: claims.and_then(|claims| claims.run.clone()),
                ..Provenance::default()
            },
            reader: Reader {
                principal: claims.map_or_else(String::new, |claims| claims.principal.clone()),
                run: claims.and_then(|claims| claims.run.clone()),
            },
            known_reader: AtomicU64::new(0),
            counters,
            signers,
        }
    }

    /// An entry of a scope that the caller reads, this far up, was found.
    pub(crate) fn found(&self, core: &Core, depth: usize, kind: Kind, key: &str) {
        let scope = self.grant.reads.get(depth);
        self.found_as(core, depth, kind, scope.map(|scope| NameHash::of(scope.as_str(), kind, key)));
    }

    /// The same for whoever knows the hash of the name.
    pub(super) fn found_as(&self, core: &Core, depth: usize, kind: Kind, name: Option<NameHash>) {
        add(if depth == 0 { &self.counters.hits } else { &self.counters.parent_hits }, 1);
        if is_made(kind) {
            add(&self.counters.spared, 1);
        }
        if let Some(name) = name.filter(|_| kind != Kind::Content) {
            core.readers.read(&self.reader, &self.known_reader, name, (core.clock)());
        }
    }

    /// Nothing was found.
    pub(crate) fn missed(&self, core: &Core, kind: Kind, key: &str) {
        add(&self.counters.misses, 1);
        if let Some(scope) = self.grant.writes.as_ref().filter(|_| is_made(kind)) {
            core.making.missed(NameHash::of(scope.as_str(), kind, key), (core.clock)());
        }
    }

    /// An entry that was not there was stored.
    pub(crate) fn stored(&self, core: &Core, name: &Name, size: u64) {
        add(&self.counters.writes, 1);
        add(&self.counters.bytes_in, size);
        if is_made(name.kind)
            && let Some(millis) = core.making.wrote(name.hash(), (core.clock)())
        {
            add(&self.counters.made, 1);
            add(&self.counters.made_millis, millis);
        }
    }

    /// Decides anew.
    pub(crate) fn decide(
        core: &Core,
        authorization: &[u8],
        agent: &str,
        scope: Option<&ScopePath>,
        surface: Surface,
    ) -> Self {
        let (now, generation) = ((core.clock)(), core.generation());
        let (caller, listing) = caller_of(core, authorization, agent, now);
        Self { listing, ..Self::of(core, &caller, generation, scope, surface) }
    }

    /// Whether what was decided holds still.
    pub(crate) fn holds(&self, core: &Core) -> bool {
        self.generation == core.generation()
            && self.expires_at.is_none_or(|end| end > (core.clock)())
            && self.listing.as_ref().is_none_or(|listing| listing.holds(&core.in_force))
    }
}

/// Who holds the token of a request; anonymous when there is none that holds.
pub(crate) fn caller(core: &Core, head: &Head, now: Timestamp) -> Caller {
    caller_of(core, &head.authorization, &head.agent, now).0
}

fn caller_of(core: &Core, authorization: &[u8], agent: &str, now: Timestamp) -> (Caller, Option<Listing>) {
    if authorization.is_empty() {
        return (Caller::ANONYMOUS, None);
    }
    let Some(token) = token_in(authorization) else { return (Caller::ANONYMOUS, None) };
    let (caller, listing) = core.in_force.identify(&token, now);
    let caller = caller.unwrap_or_else(|error| {
        tracing::info!(client = agent, "a token is not believed: {error}");
        Caller::ANONYMOUS
    });
    (caller, listing)
}

/// A caller that a thread met, with the text of the scope that it asked for.
pub(crate) struct Met {
    authorization: Vec<u8>,
    surface: Surface,
    scope: Option<String>,
    access: Rc<Access>,
}

/// What a caller may do on the scope with this text; nothing when that can be none.
pub(crate) fn access_to(
    thread: &Thread,
    head: &Head,
    scope: Option<&str>,
    surface: Surface,
) -> Option<Rc<Access>> {
    if let Some(met) = &*thread.last.borrow()
        && met.surface == surface
        && met.scope.as_deref() == scope
        && met.authorization == head.authorization
        && met.access.holds(&thread.core)
    {
        return Some(Rc::clone(&met.access));
    }
    let parsed: Option<ScopePath> = scope.map(str::parse).transpose().ok()?;
    let access = access(thread, head, parsed.as_ref(), surface);
    let (authorization, scope) = (head.authorization.clone(), scope.map(str::to_owned));
    *thread.last.borrow_mut() = Some(Met { authorization, surface, scope, access: Rc::clone(&access) });
    Some(access)
}

pub(crate) fn access(
    thread: &Thread,
    head: &Head,
    scope: Option<&ScopePath>,
    surface: Surface,
) -> Rc<Access> {
    let core = &thread.core;
    let mut key = head.authorization.clone();
    key.push(0);
    key.push(surface as u8);
    key.extend_from_slice(scope.map(ScopePath::as_str).unwrap_or_default().as_bytes());
    if let Some(access) = thread.met.borrow().get(&key)
        && access.holds(core)
    {
        return Rc::clone(access);
    }
    let access = Rc::new(Access::decide(core, &head.authorization, &head.agent, scope, surface));
    let mut met = thread.met.borrow_mut();
    if met.len() >= MET {
        met.clear();
    }
    met.insert(key, Rc::clone(&access));
    access
}
