//! Uploads that broke off, or come in parts over several requests: kept for a while, so that a client goes on where it stood.
//!
//! attic#287, attic#281: large pushes through proxies that cut bodies off never ended, since each try began again. What is
//! here is in memory up to a MiB and in a file beyond; a restart of the service forgets it, and the client begins again.
//! Bounded by number, by bytes, and by [`LIFE`] without a sign of life; beyond that the one that was quiet for longest goes.

use forgeyard_model::{Digest, Timestamp};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long an upload is kept without a sign of life.
pub(crate) const LIFE: Duration = Duration::from_secs(3600);
/// Uploads that are kept.
const MOST: usize = 256;

/// Whose upload of what: nobody goes on with what somebody else began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ticket(Digest);

impl Ticket {
    pub(crate) fn of(parts: &[&str]) -> Self {
        Self(Digest::of(parts.join("\0").as_bytes()))
    }
}

struct One<T> {
    upload: T,
    bytes: u64,
    touched: Timestamp,
}

/// Uploads that wait to go on.
pub(crate) struct Parked<T> {
    all: Mutex<HashMap<Ticket, One<T>>>,
    most: u64,
}

impl<T> Parked<T> {
    /// Keeps so many bytes at most.
    pub(crate) fn new(most: u64) -> Self {
        Self { all: Mutex::default(), most }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Ticket, One<T>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an upload out, to go on with it.
    pub(crate) fn take(&self, ticket: Ticket) -> Option<T> {
        self.all().remove(&ticket).map(|one| one.upload)
    }

    /// How far an upload got.
    pub(crate) fn bytes(&self, ticket: Ticket) -> Option<u64> {
        self.all().get(&ticket).map(|one| one.bytes)
    }

    /// Keeps an upload that got so far.
    pub(crate) fn park(&self, ticket: Ticket, upload: T, bytes: u64, now: Timestamp) {
        let mut all = self.all();
        all.insert(ticket, One { upload, bytes, touched: now });
        while all.len() > MOST || all.values().map(|one| one.bytes).sum::<u64>() > self.most {
            let Some(quiet) = all.iter().min_by_key(|(_, one)| one.touched).map(|(ticket, _)| *ticket) else {
                return;
            };
            all.remove(&quiet);
        }
    }

    /// Lets those go that nobody goes on with.
    pub(crate) fn expire(&self, now: Timestamp) {
        self.all().retain(|_, one| now.since(one.touched) < LIFE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_are_bounded_by_bytes_and_by_time_and_belong_to_whoever_began() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let (one, two) = (Ticket::of(&["a", "b"]), Ticket::of(&["a", "c"]));
        let parked = Parked::new(10);
        parked.park(one, "one", 6, at(0));
        assert_eq!((parked.bytes(one), parked.bytes(two)), (Some(6), None));
        parked.park(two, "two", 6, at(1));
        assert_eq!((parked.take(one), parked.bytes(two)), (None, Some(6)), "the quiet one went");
        parked.expire(at(3602));
        assert_eq!(parked.take(two), None);
    }
}
