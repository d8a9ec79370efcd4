//! The service: its threads, its authority, its upkeep.
//!
//! One thread for each core with a runtime of its own; all listen on one address (`SO_REUSEPORT`) and share the store and
//! nothing else that is locked for long. One more thread keeps the store within its limits, takes the authority over when
//! its files change, and writes the snapshot of the index. Another one compresses what is at rest.

use crate::authority::in_force::InForce;
use crate::authority::{Authority, AuthorityError};
use crate::budget::History;
use crate::connection::{self, Door};
use crate::day::Day;
use crate::figures::Figures;
use crate::identity::Minter;
use crate::making::Making;
use crate::readers::Readers;
use crate::scope::ScopePath;
use crate::store::log::{Config, LogStore};
use crate::store::{Clock, Limits, Store, StoreError, Which};
use crate::tier::Tier;
use crate::tls::{self, Tls, TlsError, TlsOptions};
use crate::watch;
use forgeyard_model::Timestamp;
use forgeyard_model::rules::Money;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How often the index is written to disk.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(300);
/// How often some entries are read again.
const SCRUB_EVERY: Duration = Duration::from_secs(10);
/// Bytes that are read again each second: 50 GiB take less than a day.
pub const SCRUB_BYTES: u64 = 1 << 20;
/// How often the store is brought within its limits; at once when it is over its capacity.
const MAINTAIN_EVERY: Duration = Duration::from_secs(5);
/// After a failure, compressing waits for so long.
const SHRINK_AGAIN: Duration = Duration::from_secs(60);

/// How often the figures are noted for the budgets; not more are kept than a window needs.
const NOTE_EVERY: Duration = Duration::from_secs(10);

/// What a service is started with.
#[derive(Clone)]
pub struct Options {
    /// Where to listen.
    pub listen: SocketAddr,
    /// How it speaks TLS there, when it does.
    pub tls: Option<TlsOptions>,
    /// The store.
    pub store: Config,
    /// File of the authority.
    pub authority: PathBuf,
    /// Largest entry, in bytes.
    pub largest: u64,
    /// Threads; one for each core when 0.
    pub threads: usize,
    /// Bytes of entries that are read again each second, in the background; [`SCRUB_BYTES`] is usual, 0 is never.
    pub scrub_bytes: u64,
    /// The time.
    pub clock: Clock,
}

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The store.
    #[error("the store of the cache: {0}")]
    Store(#[from] StoreError),
    /// The journal of who read what.
    #[error("the folder of who read what: {0}")]
    Readers(#[source] std::io::Error),
    /// The authority's file.
    #[error("reading the authority {}: {source}", path.display())]
    AuthorityFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The authority.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// What is to be fetched beforehand.
    #[error(transparent)]
    Warm(#[from] crate::warm::ListError),
    /// The address.
    #[error("the cache cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: std::io::Error,
    },
}

/// What all threads share.
pub(crate) struct Core {
    pub(crate) store: LogStore,
    pub(crate) figures: Figures,
    pub(crate) clock: Clock,
    pub(crate) largest: u64,
    pub(crate) capacity: u64,
    pub(crate) history: Mutex<History>,
    pub(crate) day: Mutex<Day>,
    pub(crate) making: Making,
    pub(crate) readers: Readers,
    pub(crate) github: crate::github::State,
    pub(crate) exchange: crate::identity::Exchange,
    /// Storage behind the disk.
    pub(crate) tier: Option<Tier>,
    pub(crate) measured: crate::nar::Measured,
    /// Turns of readers whose file of Nix is unpacked while it is sent.
    pub(crate) unpacking: Arc<tokio::sync::Semaphore>,
    /// What a CPU costs for an hour.
    pub(crate) price: std::sync::OnceLock<Money>,
    /// What is fetched beforehand.
    pub(crate) warm: std::sync::OnceLock<crate::warm::Warm>,
    /// Parts of entries that came over HTTP.
    pub(crate) parked: crate::parked::Parked<connection::Incoming>,
    /// Contents that came over gRPC.
    #[cfg(feature = "grpc")]
    pub(crate) parked_contents: crate::parked::Parked<crate::grpc::upload::Upload>,
    pub(crate) in_force: InForce,
}

impl Core {
    pub(crate) fn authority(&self) -> Arc<Authority> {
        self.in_force.authority()
    }

    /// Changes with the authority; what was decided under an older one is decided anew.
    pub(crate) fn generation(&self) -> u64 {
        self.in_force.generation()
    }

    /// Limits of a scope, by the authority. A scope that is declared no more keeps nothing longer than a week unused.
    fn limits(&self, scope: &str) -> Limits {
        let authority = self.authority();
        let path = scope.parse::<ScopePath>().ok();
        match path.as_ref().and_then(|path| authority.tree().of(path)) {
            Some(rule) => Limits {
                bytes: rule.quota_mib.map(|mib| mib << 20),
                idle_minutes: rule.ttl_days.map(|days| days.saturating_mul(24 * 60)),
            },
            None => Limits { bytes: None, idle_minutes: Some(7 * 24 * 60) },
        }
    }
}

/// A service that runs.
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    /// Where programs of this host reach it without TLS, when it listens there too.
    pub local: Option<SocketAddr>,
    core: Arc<Core>,
    stop: CancellationToken,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Stops it and writes the index to disk. Blocks.
    pub fn stop(self) -> Result<(), ServiceError> {
        self.stop.cancel();
        for thread in self.threads {
            let _ = thread.join();
        }
        if let Some(tier) = &self.core.tier {
            tier.stop();
        }
        self.core.readers.flush();
        Ok(self.core.store.snapshot()?)
    }

    /// What a CPU costs for an hour, so that what hits save is told as money too. Once.
    pub fn price(&self, of_a_cpu_hour: Money) {
        let _ = self.core.price.set(of_a_cpu_hour);
    }

    /// From now on fetches what these lists name, and keeps mirrors of repositories in this folder. Once.
    pub fn warm(&mut self, lists: Vec<crate::warm::List>, folder: PathBuf) -> Result<(), ServiceError> {
        let warm = crate::warm::Warm::new(lists, folder)?;
        if self.core.warm.set(warm).is_ok() {
            let (core, stop) = (Arc::clone(&self.core), self.stop.clone());
            self.threads.push(std::thread::spawn(move || crate::warm::fetch(&core, &stop)));
        }
        Ok(())
    }

    /// Figures of the storage behind the disk, where there is one.
    pub fn tier(&self) -> Option<crate::tier::TierStat> {
        self.core.tier.as_ref().map(Tier::stat)
    }

    /// Ends the segment that grows, so that it can be sent to the storage behind the disk.
    pub fn seal(&self) -> Result<(), ServiceError> {
        Ok(self.core.store.seal()?)
    }

    /// Compresses what there is to compress, now and without pauses.
    pub fn shrink(&self) -> Result<(), ServiceError> {
        Ok(self.core.store.shrink_all()?)
    }

    /// Brings the store within its limits now, and takes note of the figures for the budgets.
    pub fn maintain(&self) -> Result<(), ServiceError> {
        watch::note(&self.core);
        Ok(self.core.store.maintain(&|scope| self.core.limits(scope))?)
    }
}

/// Starts a service; it runs until [`Running::stop`]. Blocks while the index is read. It gives out no tokens.
pub fn start(options: Options) -> Result<Running, ServiceError> {
    start_with(options, None)
}

/// Starts a service that exchanges tokens of forges for its own, when it has a key to sign them with.
pub fn start_with(options: Options, minter: Option<Minter>) -> Result<Running, ServiceError> {
    let tls = options.tls.as_ref().map(Tls::open).transpose()?.map(Arc::new);
    // an entry that takes half of the space would drive out everything else, so it is refused before it is read
    let largest = options.largest.min(options.store.capacity / 2);
    let (folder, capacity) = (options.store.folder.clone(), options.store.capacity);
    let tier = options.store.tier.clone();
    let store = LogStore::open(options.store, Arc::clone(&options.clock))?;
    let tier = match tier {
        Some(config) => Some(Tier::start(config, store.handle())?),
        None => None,
    };
    let sync = store.durability() == crate::store::log::Durability::Group;
    let github = crate::github::State::open(&folder, capacity, sync)?;
    let in_force = InForce::open(&options.authority)?;
    let core = Arc::new(Core {
        store,
        figures: Figures::default(),
        clock: options.clock,
        largest,
        capacity,
        history: Mutex::default(),
        day: Mutex::default(),
        making: Making::default(),
        readers: Readers::open(&folder).map_err(ServiceError::Readers)?,
        github,
        exchange: crate::identity::Exchange::open(&folder, minter)?,
        tier,
        measured: crate::nar::Measured::default(),
        unpacking: Arc::new(tokio::sync::Semaphore::new(crate::foreign::AT_ONCE)),
        price: std::sync::OnceLock::new(),
        warm: std::sync::OnceLock::new(),
        parked: crate::parked::Parked::new(capacity / 8),
        #[cfg(feature = "grpc")]
        parked_contents: crate::parked::Parked::new(capacity / 8),
        in_force,
    });
    watch::note(&core);
    let stop = CancellationToken::new();
    let count = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    };
    let local =
        options.tls.as_ref().and_then(|tls| tls.local).map(|local| Place { address: local, tls: None });
    let mut places = vec![Place { address: options.listen, tls: tls.clone() }];
    places.extend(local);
    let mut threads = Vec::new();
    for _ in 0..count {
        let (core, stop, (told, heard)) = (Arc::clone(&core), stop.clone(), std::sync::mpsc::channel());
        threads.push(std::thread::spawn(move || serve(core, places, stop, &told)));
        let ended = |_| Err((options.listen, std::io::Error::other("its thread ended")));
        places = heard
            .recv()
            .unwrap_or_else(ended)
            .map_err(|(address, source)| ServiceError::Listen { address, source })?;
    }
    let address = places.first().map_or(options.listen, |place| place.address);
    let local = places.get(1).map(|place| place.address);
    let (kept, stopped) = (Arc::clone(&core), stop.clone());
    threads.push(std::thread::spawn(move || {
        let mut emptied: BTreeMap<ScopePath, Timestamp> = BTreeMap::new();
        let mut maintained = Instant::now();
        let mut noted = maintained;
        let (mut written, mut scrubbed) = (maintained, maintained);
        let mut looked = maintained;
        while !stopped.is_cancelled() {
            std::thread::sleep(Duration::from_millis(200));
            kept.readers.flush();
            kept.in_force.refresh();
            empty(&kept, &mut emptied);
            if let Some(tls) = tls.as_ref().filter(|_| looked.elapsed() > tls::LOOK) {
                looked = Instant::now();
                tls.refresh();
            }
            if noted.elapsed() > NOTE_EVERY {
                noted = Instant::now();
                watch::note(&kept);
            }
            if kept.store.over() || maintained.elapsed() > MAINTAIN_EVERY {
                maintained = Instant::now();
                kept.github.uploads.expire((kept.clock)());
                kept.parked.expire((kept.clock)());
                #[cfg(feature = "grpc")]
                kept.parked_contents.expire((kept.clock)());
                if let Err(error) = kept.store.maintain(&|scope| kept.limits(scope)) {
                    tracing::error!("keeping the store within its limits: {error}");
                }
            }
            if scrubbed.elapsed() > SCRUB_EVERY {
                let bytes = options.scrub_bytes * scrubbed.elapsed().as_secs();
                scrubbed = Instant::now();
                if bytes > 0
                    && let Err(error) = kept.store.scrub_some(bytes)
                {
                    tracing::error!("reading entries again: {error}");
                }
            }
            if written.elapsed() > SNAPSHOT_EVERY || kept.store.wants_snapshot() {
                written = Instant::now();
                if let Err(error) = kept.store.snapshot() {
                    tracing::error!("writing the index: {error}");
                }
            }
        }
    }));
    let (shrinking, stopped) = (Arc::clone(&core), stop.clone());
    threads.push(std::thread::spawn(move || {
        while !stopped.is_cancelled() {
            std::thread::sleep(Duration::from_millis(200));
            if let Err(error) = shrinking.store.shrink(&|| stopped.is_cancelled()) {
                tracing::warn!("compressing what is at rest: {error}");
                let again = Instant::now() + SHRINK_AGAIN;
                while !stopped.is_cancelled() && Instant::now() < again {
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
        }
    }));
    tracing::info!(%address, "the cache listens");
    Ok(Running { address, local, core, stop, threads })
}

/// Removes what scopes held that were closed since it was looked last. At a start that is done again: what was closed is not
/// written any more, or is no longer marked.
fn empty(core: &Core, done: &mut BTreeMap<ScopePath, Timestamp>) {
    let authority = core.authority();
    done.retain(|scope, _| authority.closed().contains_key(scope));
    for (scope, at) in authority.closed() {
        if done.get(scope) == Some(at) || !authority.tree().of(scope).is_some_and(|rule| rule.family) {
            continue;
        }
        let which = Which::Scope { scope: scope.to_string(), prefix: String::new() };
        match core.store.remove_all(&which) {
            Ok(removed) => {
                tracing::info!(%scope, removed, "a scope was closed");
                done.insert(scope.clone(), *at);
            }
            Err(error) => tracing::error!(%scope, "removing what a closed scope held: {error}"),
        }
    }
}

/// Where to listen, by TLS or without it.
#[derive(Clone)]
struct Place {
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
}

/// Where a thread listens; or where it cannot, and why.
type Listens = Result<Vec<Place>, (SocketAddr, std::io::Error)>;

/// One thread that serves; says where it listens. Its runtime polls the connections itself; with a `LocalSet` each wake of one would
/// wake the set, which polls the accepting of connections before it comes to the one that has something to do.
fn serve(
    core: Arc<Core>,
    mut places: Vec<Place>,
    stop: CancellationToken,
    told: &std::sync::mpsc::Sender<Listens>,
) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = match builder.enable_all().build_local(tokio::runtime::LocalOptions::default()) {
        Ok(runtime) => runtime,
        Err(error) => {
            if let Some(first) = places.first() {
                let _ = told.send(Err((first.address, error)));
            }
            return;
        }
    };
    runtime.block_on(async {
        let mut doors = Vec::new();
        for Place { address, tls } in &mut places {
            let listener = match listen(*address).and_then(|listener| Ok((listener.local_addr()?, listener)))
            {
                Ok((bound, listener)) => {
                    *address = bound;
                    listener
                }
                Err(error) => {
                    let _ = told.send(Err((*address, error)));
                    return;
                }
            };
            doors.push(Door { listener, tls: tls.clone() });
        }
        let _ = told.send(Ok(places));
        connection::accept(core, doors, stop).await;
    });
}

fn listen(address: SocketAddr) -> std::io::Result<tokio::net::TcpListener> {
    let socket =
        if address.is_ipv4() { tokio::net::TcpSocket::new_v4()? } else { tokio::net::TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}
