//! The version of what is stored: a number that only grows, and those who wait for it to grow.
//!
//! The same as a watch channel of the runtime, but those who wait are woken in the order in which they began to wait. There the
//! order is drawn, from a seed that nobody can set, and a simulation would go another way each time that it is played.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct Shared {
    number: AtomicU64,
    ended: AtomicBool,
    news: Notify,
}

/// Whoever stores. When it is dropped, nothing will change any more.
#[derive(Debug)]
pub(crate) struct Published(Arc<Shared>);

/// Whoever looks. A copy has seen what its original has seen.
#[derive(Debug, Clone)]
pub struct Version {
    shared: Arc<Shared>,
    seen: u64,
}

/// Nothing will change any more: the core ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the core of the farm ended")]
pub struct Ended;

/// Both ends.
pub(crate) fn channel() -> (Published, Version) {
    let shared = Arc::<Shared>::default();
    (Published(Arc::clone(&shared)), Version { shared, seen: 0 })
}

impl Published {
    /// Something was stored.
    pub(crate) fn grow(&self) {
        self.0.number.fetch_add(1, Ordering::AcqRel);
        self.0.news.notify_waiters();
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        self.0.news.notify_waiters();
    }
}

impl Version {
    /// Counts what is stored now as seen.
    pub fn catch_up(&mut self) {
        self.seen = self.shared.number.load(Ordering::Acquire);
    }

    /// Whether anything was stored that was not seen.
    pub fn has_changed(&self) -> Result<bool, Ended> {
        let ended = self.shared.ended.load(Ordering::Acquire);
        let changed = self.shared.number.load(Ordering::Acquire) != self.seen;
        if ended && !changed { Err(Ended) } else { Ok(changed) }
    }

    /// Waits until something is stored that was not seen, and counts it as seen. Can be dropped at any time with nothing lost.
    pub async fn changed(&mut self) -> Result<(), Ended> {
        loop {
            // Before the look, so that what comes between both is heard.
            let mut news = std::pin::pin!(self.shared.news.notified());
            news.as_mut().enable();
            if self.has_changed()? {
                break;
            }
            news.await;
        }
        self.catch_up();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[tokio::test]
    async fn who_waits_first_is_woken_first() {
        let (published, version) = channel();
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiters: Vec<_> = (0..40)
            .map(|number| {
                let (mut version, order) = (version.clone(), Arc::clone(&order));
                tokio::spawn(async move {
                    version.changed().await.unwrap();
                    order.lock().unwrap().push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        published.grow();
        for waiter in waiters {
            waiter.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..40).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn what_was_stored_before_the_wait_ends_it_at_once_and_the_end_is_told_after_it() {
        let (published, mut version) = channel();
        assert_eq!(version.has_changed(), Ok(false));
        published.grow();
        published.grow();
        drop(published);
        assert_eq!(version.has_changed(), Ok(true), "what was stored last is seen before the end");
        assert_eq!(version.changed().await, Ok(()));
        assert_eq!(version.changed().await, Err(Ended));
        assert_eq!(version.has_changed(), Err(Ended));
    }
}
