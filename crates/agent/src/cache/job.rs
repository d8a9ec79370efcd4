//! The relay of one job: opened before its first step, shown in the network of each, connected once the farm says what the job
//! may do.
//!
//! A machine with the network of its host reaches the relay on loopback there, at a port that was free. A machine without
//! network has a loopback of its own; the relay then also listens inside it, at a port that is always the same ([`INSIDE`]), and
//! that is all there is: the job reaches the cache and nothing else.

use super::environment::Surroundings;
use super::relay::{Relay, RelayError, Upstream};
use forgeyard_api::client::HttpOptions;
use forgeyard_api::client::agent::{AgentClient, Session};
use forgeyard_api::error::ErrorKind;
use forgeyard_model::Secret;
use forgeyard_model::verdict::CacheFacts;
use nix::sched::{CloneFlags, setns};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Port inside a machine that has no network.
const INSIDE: u16 = 8420;
/// How long the farm may take to say what the job may do, before the job goes on.
const SAYS: Duration = Duration::from_secs(5);
/// How often it is asked again, beside the running job.
const AGAIN: u32 = 20;

/// What must be the same after the agent was started again: the environment of the job names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CacheRecord {
    port: u16,
    secret: String,
}

impl CacheRecord {
    /// What the job holds.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }
}

/// The build cache of one job.
pub(crate) struct JobCache {
    relay: Arc<Relay>,
    client: AgentClient,
    session: Session,
    record: CacheRecord,
    own_network: bool,
    /// What the farm said.
    given: Arc<Mutex<Option<CacheFacts>>>,
    /// Public keys that are known when the environment is made.
    nix_keys: Vec<String>,
}

impl JobCache {
    /// Starts the relay, at the place of an earlier life of the agent if there was one.
    pub(crate) fn open(
        client: &AgentClient,
        session: &Session,
        options: &HttpOptions,
        own_network: bool,
        known: Option<CacheRecord>,
    ) -> Result<Self, RelayError> {
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let wished = at(known.as_ref().filter(|_| !own_network).map_or(0, |known| known.port));
        let failed = |source| RelayError::Listen { address: wished, source };
        let secret = match known {
            Some(known) => known.secret,
            None => fresh_secret().map_err(failed)?,
        };
        let relay = Relay::new(Secret::new(secret.clone()), options);
        let port = if own_network {
            INSIDE
        } else {
            relay.listen(TcpListener::bind(wished).map_err(failed)?).map_err(failed)?.port()
        };
        Ok(Self {
            relay: Arc::new(relay),
            client: client.clone(),
            session: session.clone(),
            record: CacheRecord { port, secret },
            own_network,
            given: Arc::default(),
            nix_keys: Vec::new(),
        })
    }

    /// What is to be kept.
    pub(crate) fn record(&self) -> &CacheRecord {
        &self.record
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.record.port))
    }

    /// What the job is given.
    pub(crate) fn environment(&self, forge_runner: bool) -> BTreeMap<String, String> {
        self.surroundings().environment(forge_runner)
    }

    fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            relay: self.address(),
            secret: &self.record.secret,
            scope: None,
            nix_keys: &self.nix_keys,
            home: Path::new("/work/home"),
        }
    }

    /// Writes the files of the home folder. Only before the first step: later a job could have put a link there.
    pub(crate) fn write_home(&self, home: &Path) -> std::io::Result<()> {
        for (name, text) in self.surroundings().files() {
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o644);
            match options.open(home.join(name)) {
                Ok(mut file) => file.write_all(text.as_bytes())?,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Asks the farm what the job may do, and says it in a line. What is not said in time is asked for again meanwhile.
    pub(crate) async fn connect(&mut self) -> String {
        match tokio::time::timeout(SAYS, ask(&self.client, &self.session, &self.relay, &self.given)).await {
            Ok(Said::Given(line, keys)) => {
                self.nix_keys = keys;
                line
            }
            Ok(Said::None(line)) => line,
            Ok(Said::Again) | Err(_) => {
                let (client, session) = (self.client.clone(), self.session.clone());
                let (relay, given) = (Arc::downgrade(&self.relay), Arc::clone(&self.given));
                tokio::spawn(async move {
                    for _ in 0..AGAIN {
                        tokio::time::sleep(SAYS).await;
                        let Some(relay) = relay.upgrade() else { return };
                        if !matches!(ask(&client, &session, &relay, &given).await, Said::Again) {
                            return;
                        }
                    }
                });
                "[forgeyard] cache: the farm does not say yet what this job may do; it is empty until then"
                    .to_owned()
            }
        }
    }

    /// Listens in the network of a step's container as well, when that is its own.
    pub(crate) async fn enter(&self, pid: u32) -> std::io::Result<()> {
        if !self.own_network {
            return Ok(());
        }
        let address = self.address();
        // A thread of its own, which ends afterwards: it does not come back from that network.
        let made = tokio::task::spawn_blocking(move || {
            std::thread::spawn(move || {
                let network = std::fs::File::open(format!("/proc/{pid}/ns/net"))?;
                setns(network, CloneFlags::CLONE_NEWNET).map_err(std::io::Error::from)?;
                TcpListener::bind(address)
            })
            .join()
        });
        let made = made.await.map_err(std::io::Error::other)?;
        let listener = made.map_err(|_| std::io::Error::other("the thread that listens ended badly"))??;
        self.relay.listen(listener).map(drop)
    }

    /// What went through, once it is known what the job may do.
    pub(crate) async fn facts(&self) -> Option<CacheFacts> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let counts = self.relay.counts();
        Some(CacheFacts {
            hits: counts.hits,
            misses: counts.misses,
            stored: counts.writes,
            denied: counts.denied,
            alone: counts.alone,
            clients: self.relay.clients(),
            cold: self.relay.cold().await,
            ..given
        })
    }
}

enum Said {
    Given(String, Vec<String>),
    None(String),
    Again,
}

async fn ask(
    client: &AgentClient,
    session: &Session,
    relay: &Relay,
    given: &Mutex<Option<CacheFacts>>,
) -> Said {
    match client.cache(session).await {
        Ok(access) => {
            let (address, token) = (access.address, Some(Secret::new(access.token)));
            if let Err(error) = relay.connect(Upstream { address, token, ca: access.ca }) {
                return Said::None(format!("[forgeyard] cache: none for this job: {error}"));
            }
            let (scope, reason) = (access.scope, access.reason);
            let facts = CacheFacts { scope: scope.clone(), writes: access.writes, ..CacheFacts::default() };
            *given.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts);
            let does = if access.writes { "reads and writes" } else { "reads" };
            Said::Given(format!("[forgeyard] cache: {does} {scope}: {reason}"), access.nix_keys)
        }
        Err(error) if error.refusal() == Some(ErrorKind::NotFound) => {
            Said::None(format!("[forgeyard] cache: none for this job: {error}"))
        }
        Err(_) => Said::Again,
    }
}

fn fresh_secret() -> std::io::Result<String> {
    use std::io::Read as _;
    let mut random = [0u8; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(hex::encode(random))
}
