//! Simulated time: it moves only when nothing is left to do.
//!
//! Everything runs in one thread and nothing waits for a socket or a disk. So when the runtime is about to park, each task
//! waits for time, and the next time at which one of them is due is the next moment of the simulation.

use forgeyard_forges::twin::ManualClock;
use forgeyard_model::Timestamp;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::sync::oneshot;

/// Waits end at whole steps of this many microseconds, so that what happens at nearly the same time costs one step.
const STEP: i64 = 100_000;

/// A clock with those who wait for it.
pub struct Time {
    clock: ManualClock,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    number: u64,
    due: BTreeMap<(Timestamp, u64), oneshot::Sender<()>>,
}

impl Time {
    pub fn new(start: Timestamp) -> Arc<Self> {
        Arc::new(Self { clock: ManualClock::new(start), waiting: Mutex::default() })
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Waits for so long.
    pub fn sleep(&self, pause: Duration) -> impl Future<Output = ()> + Send + use<> {
        let receiver = (!pause.is_zero()).then(|| {
            let at = self.now().plus(pause).as_micros();
            let at = Timestamp::from_micros(at.div_euclid(STEP).saturating_add(1).saturating_mul(STEP));
            let (sender, receiver) = oneshot::channel();
            let mut waiting = self.waiting.lock().unwrap();
            waiting.number += 1;
            let number = waiting.number;
            waiting.due.insert((at, number), sender);
            receiver
        });
        async move {
            match receiver {
                Some(receiver) => drop(receiver.await),
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// When somebody is woken next.
    pub fn next(&self) -> Option<Timestamp> {
        let mut waiting = self.waiting.lock().unwrap();
        // Who gave up waiting moves no time.
        while let Some(entry) = waiting.due.first_entry() {
            if !entry.get().is_closed() {
                return Some(entry.key().0);
            }
            entry.remove();
        }
        None
    }

    /// Moves to a time and wakes those who waited for it.
    pub fn advance_to(&self, at: Timestamp) {
        self.clock.advance_to(at);
        let mut waiting = self.waiting.lock().unwrap();
        while let Some(entry) = waiting.due.first_entry().filter(|entry| entry.key().0 <= at) {
            let _ = entry.remove().send(());
        }
    }
}

/// Tells when every task waits.
#[derive(Default)]
pub struct Idle {
    reached: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Idle {
    /// Called by the runtime when it is about to park.
    pub fn parking(&self) {
        if let Some(waker) = self.waker.lock().unwrap().take() {
            self.reached.store(true, Ordering::Relaxed);
            waker.wake();
        }
    }

    /// Waits until every other task waits.
    pub async fn reached(&self) {
        self.reached.store(false, Ordering::Relaxed);
        poll_fn(|context| {
            if self.reached.swap(false, Ordering::Relaxed) {
                return Poll::Ready(());
            }
            *self.waker.lock().unwrap() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
