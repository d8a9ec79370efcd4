//! A tier behind the disk, in S3-compatible storage: what the disk has no room for stays readable, and other farms can read it.
//!
//! ```text
//! PREFIX/WRITER/manifest.json          who writes here (an epoch), and which segments there are; see `manifest`
//! PREFIX/WRITER/STORE/seg/00000007.fyl a segment of the log, whole, as it lies on disk
//! PREFIX/WRITER/STORE/idx/00000007.fyx what is in it, for those who do not have it; see `manifest`
//! PREFIX/large/ab/abcd…                contents above 1 MiB by their SHA-256, as they lie on disk, shared by all writers
//! ```
//!
//! - **Sending** happens in the background, on a thread of its own: segments that grow no more, with their large contents
//!   first, then the index, then the manifest. So the manifest never names what is not there, and what a crash leaves behind is
//!   sent again under the same names.
//! - **One writer for each name.** Whoever starts writes the manifest with an epoch that is one higher, on the condition that
//!   it is still the one that was read (`If-Match`; `If-None-Match: *` for the first). Another process with the same name is
//!   refused at its next write (412) and sends nothing more. A server that does not honour these conditions is noticed at
//!   the start, and then nothing is sent: two writers would overwrite each other's manifest.
//! - **Reading** begins when this disk has nothing and the index of what lies beyond has a place: a ranged GET of one record,
//!   held against name, checksum and SHA-256, and stored here again under its own name. Each is fetched once, however many
//!   ask. What a person removed does not come back: see [`beyond`](crate::store::beyond).
//! - **Trouble stays there.** Nothing that is written or read on this disk waits for the tier. A reader of what lies beyond waits
//!   for [`WAIT`] at most, and then has a miss; the fetching goes on for the next one. Three failures in a row open the
//!   breaker: nobody waits at all until a look in the background succeeds. Eviction does not wait either: what was not sent
//!   yet when its segment goes is gone, and counted.
//!
//! A farm that reads what another writes trusts it: names of scopes mean the same in both. Objects go by a lifecycle rule of
//! the bucket; what is not there any more is a miss.

mod breaker;
mod fetch;
mod manifest;
mod s3;
mod send;
mod settings;

pub use manifest::{Manifest, Sent};
pub use settings::{Config, Settings, SettingsError};

use crate::name::{Kind, Name, NameHash};
use crate::scope::ScopePath;
use crate::store::StoreError;
use crate::store::handle::Handle;
use fetch::Foreign;
use ring::rand::SecureRandom as _;
use s3::Remote;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a reader waits for what lies beyond.
pub const WAIT: Duration = Duration::from_secs(3);
/// Fetches at once; who asks for more has a miss.
const FLIGHTS: usize = 64;

/// Figures of the tier.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TierStat {
    /// `writing`, `waiting` (not claimed yet), `lost` (another process writes under this name) or `unguarded` (the server
    /// honours no conditions, so nothing is sent).
    pub state: String,
    /// Nobody waits for it: it failed a few times in a row.
    pub broken: bool,
    /// Segments that were sent since the start.
    pub sent_segments: u64,
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// Segments that wait to be sent.
    pub waiting_segments: u64,
    /// Segments that had to go before they were sent.
    pub unsent_segments: u64,
    /// Names that lie beyond this disk, of this store.
    pub names: u64,
    /// Names that others wrote.
    pub foreign_names: u64,
    /// Entries that were brought back.
    pub brought: u64,
    /// Entries that were not there any more, or not what they should be.
    pub absent: u64,
    /// Requests that failed or took too long.
    pub failures: u64,
    /// Reads that did not wait: the tier was broken, slow or busy.
    pub skipped: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Figures {
    sent_segments: AtomicU64,
    sent_bytes: AtomicU64,
    waiting: AtomicU64,
    brought: AtomicU64,
    absent: AtomicU64,
    failures: AtomicU64,
    skipped: AtomicU64,
}

/// Where this process stands as a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Standing {
    Waiting,
    Writing,
    Lost,
    Unguarded,
}

struct Inner {
    config: Config,
    store: Handle,
    remote: Remote,
    figures: Figures,
    standing: Mutex<Standing>,
    foreign: RwLock<Vec<Foreign>>,
    flights: Mutex<HashMap<u128, watch::Receiver<Option<bool>>>>,
    /// Of this store: numbers of segments begin at 1 in each.
    id: String,
}

/// The tier of a service that runs.
pub(crate) struct Tier {
    inner: Arc<Inner>,
    runtime: tokio::runtime::Handle,
    stop: CancellationToken,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// The id of the store in this folder; made when there is none.
fn store_id(folder: &Path) -> Result<String, StoreError> {
    let path = folder.join("id");
    if let Ok(text) = fs_err::read_to_string(&path)
        && text.len() == 32
        && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        return Ok(text);
    }
    let mut bytes = [0; 16];
    let random = ring::rand::SystemRandom::new().fill(&mut bytes);
    random.map_err(|_| StoreError::io("making", &path)(std::io::Error::other("no randomness")))?;
    let id = format!("{:032x}", u128::from_be_bytes(bytes));
    fs_err::write(&path, &id).map_err(StoreError::io("writing", &path))?;
    Ok(id)
}

impl Tier {
    /// Starts sending and looking. Nothing is asked of the network here.
    pub(crate) fn start(config: Config, store: Handle) -> Result<Self, StoreError> {
        let failed = || StoreError::io("starting", "the tier");
        let remote = Remote::new(&config).map_err(std::io::Error::other).map_err(failed())?;
        let id = match store.beyond() {
            Some(beyond) => store_id(beyond.folder())?,
            None => return Err(failed()(std::io::Error::other("the store was opened without it"))),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("cache-tier")
            .enable_all()
            .build()
            .map_err(failed())?;
        let inner = Arc::new(Inner {
            config,
            store,
            remote,
            figures: Figures::default(),
            standing: Mutex::new(Standing::Waiting),
            foreign: RwLock::default(),
            flights: Mutex::default(),
            id,
        });
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let (sending, stopped) = (Arc::clone(&inner), stop.clone());
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = stopped.cancelled() => {}
                    () = send::run(&sending) => {}
                }
            });
            // what is under way is given up: it is sent again, or a miss
            runtime.shutdown_timeout(Duration::from_secs(1));
        });
        Ok(Self { inner, runtime: handle, stop, thread: Mutex::new(Some(thread)) })
    }

    /// Ends it. Blocks for a moment.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }

    /// Whether something may lie beyond under this name. Looks in memory only.
    pub(crate) fn has(&self, name: NameHash) -> bool {
        let own = self.inner.store.beyond().is_some_and(|beyond| beyond.name(name).is_some());
        let foreign = || self.inner.foreign.read().unwrap_or_else(PoisonError::into_inner);
        own || foreign().iter().any(|foreign| foreign.name(name).is_some())
    }

    /// Brings an entry back, if it lies beyond and comes soon enough. Whether it is here now.
    pub(crate) async fn bring(&self, scope: &ScopePath, kind: Kind, key: &str) -> bool {
        let name = Name { scope: scope.clone(), kind, key: key.to_owned() };
        let hash = name.hash();
        if !self.has(hash) {
            return false;
        }
        let figures = &self.inner.figures;
        if !self.inner.remote.closed() {
            figures.skipped.fetch_add(1, Relaxed);
            return false;
        }
        let mut flight = {
            let mut flights = self.inner.flights.lock().unwrap_or_else(PoisonError::into_inner);
            match flights.get(&hash.0) {
                Some(flight) => flight.clone(),
                None if flights.len() >= FLIGHTS => {
                    figures.skipped.fetch_add(1, Relaxed);
                    return false;
                }
                None => {
                    let (landed, flight) = watch::channel(None);
                    flights.insert(hash.0, flight.clone());
                    let inner = Arc::clone(&self.inner);
                    self.runtime.spawn(async move {
                        let here = fetch::fetch(&inner, &name).await;
                        inner.flights.lock().unwrap_or_else(PoisonError::into_inner).remove(&hash.0);
                        landed.send_replace(Some(here));
                    });
                    flight
                }
            }
        };
        let landed = tokio::time::timeout(WAIT, flight.wait_for(Option::is_some)).await;
        match landed {
            Ok(Ok(here)) => here.unwrap_or(false),
            _ => {
                figures.skipped.fetch_add(1, Relaxed);
                false
            }
        }
    }

    /// Figures.
    pub(crate) fn stat(&self) -> TierStat {
        let (inner, figures) = (&self.inner, &self.inner.figures);
        let state = match *inner.standing.lock().unwrap_or_else(PoisonError::into_inner) {
            Standing::Waiting => "waiting",
            Standing::Writing => "writing",
            Standing::Lost => "lost",
            Standing::Unguarded => "unguarded",
        };
        let foreign = inner.foreign.read().unwrap_or_else(PoisonError::into_inner);
        TierStat {
            state: state.to_owned(),
            broken: !inner.remote.closed(),
            sent_segments: figures.sent_segments.load(Relaxed),
            sent_bytes: figures.sent_bytes.load(Relaxed),
            waiting_segments: figures.waiting.load(Relaxed),
            unsent_segments: inner.store.beyond().map_or(0, |beyond| beyond.unsent()),
            names: inner.store.beyond().map_or(0, |beyond| beyond.len() as u64),
            foreign_names: foreign.iter().map(|foreign| foreign.len() as u64).sum(),
            brought: figures.brought.load(Relaxed),
            absent: figures.absent.load(Relaxed),
            failures: figures.failures.load(Relaxed),
            skipped: figures.skipped.load(Relaxed),
        }
    }
}

impl TierStat {
    /// The text that Prometheus reads.
    pub fn prometheus(&self) -> String {
        let families: [(&str, &str, &str, u64); 11] = [
            (
                "writing",
                "gauge",
                "Whether this process writes to the tier",
                u64::from(self.state == "writing"),
            ),
            ("broken", "gauge", "Whether nobody waits for the tier", u64::from(self.broken)),
            ("sent_segments_total", "counter", "Segments sent", self.sent_segments),
            ("sent_bytes_total", "counter", "Bytes sent", self.sent_bytes),
            ("waiting_segments", "gauge", "Segments that wait to be sent", self.waiting_segments),
            (
                "unsent_segments_total",
                "counter",
                "Segments dropped before they were sent",
                self.unsent_segments,
            ),
            (
                "names",
                "gauge",
                "Names beyond this disk, those of others included",
                self.names + self.foreign_names,
            ),
            ("brought_total", "counter", "Entries brought back", self.brought),
            ("absent_total", "counter", "Entries that were not there any more", self.absent),
            ("failures_total", "counter", "Requests that failed or took too long", self.failures),
            ("skipped_total", "counter", "Reads that did not wait", self.skipped),
        ];
        let line = |(name, kind, help, value): (&str, &str, &str, u64)| {
            let name = format!("forgeyard_cache_tier_{name}");
            format!("# HELP {name} {help}.\n# TYPE {name} {kind}\n{name} {value}\n")
        };
        families.into_iter().map(line).collect()
    }
}
