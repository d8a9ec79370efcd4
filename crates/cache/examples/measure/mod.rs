//! What the measuring programs of this crate share: figures as lines of JSON, a service in a process of its own, and the CPU
//! time that it took.

#![allow(dead_code, reason = "each program uses its part")]

use ed25519_dalek::SigningKey;
use forgeyard_cache::authority::{Snapshot, public_text};
use forgeyard_cache::scope::{Reading, ScopeRule};
use forgeyard_cache::service::{Options, start};
use forgeyard_cache::store::Clock;
use forgeyard_cache::store::log::Config;
use forgeyard_cache::store::shrink::Compression;
use forgeyard_cache::tls::TlsOptions;
use forgeyard_cache::token::{self, Access, Claims};
use forgeyard_model::{Secret, Timestamp};
use std::io::BufRead as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// One figure, as `cargo xtask bench` reads it.
pub(crate) struct Figure<'a> {
    pub(crate) text: &'a str,
    pub(crate) value: f64,
    pub(crate) unit: &'a str,
    /// Who was measured beside it, and what it reached.
    pub(crate) peer: Option<(&'a str, f64)>,
    /// `at least` or `at most`, and how much.
    pub(crate) aim: Option<(&'a str, f64)>,
}

impl Figure<'_> {
    pub(crate) fn print(&self) {
        let figure = serde_json::json!({
            "figure": self.text, "value": self.value, "unit": self.unit,
            "peer": self.peer.map(|(name, _)| name), "peer_value": self.peer.map(|(_, value)| value),
            "aim": self.aim.map(|(kind, _)| kind), "aim_value": self.aim.map(|(_, value)| value),
        });
        println!("{figure}");
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The time stands still.
pub(crate) fn clock() -> Clock {
    Arc::new(|| Timestamp::from_micros(1_800_000_000_000_000))
}

fn key() -> SigningKey {
    SigningKey::from_bytes(&[5; 32])
}

/// A token that writes to the scope `bench`.
pub(crate) fn token() -> Secret {
    let claims = Claims {
        id: "t".to_owned(),
        key: "k".to_owned(),
        principal: "bench".to_owned(),
        scope: "bench".parse().unwrap(),
        access: Access::Write,
        expires_at: Timestamp::from_micros(1_900_000_000_000_000),
        epoch: 0,
        cold: false,
        listed: false,
        run: None,
    };
    token::mint(&claims, &key()).unwrap()
}

/// When this process was started by [`server`]: serves the scope `bench` for ever. Everybody may read it if so asked.
pub(crate) fn serve_if_asked(public: bool) {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some("--serve") {
        return;
    }
    let folder = std::path::PathBuf::from(arguments.next().unwrap());
    let mut scope = ScopeRule::new("bench".parse().unwrap());
    if public {
        (scope.trusted, scope.read) = (true, Reading::Public);
    }
    let snapshot = Snapshot {
        keys: [("k".to_owned(), public_text(&key().verifying_key()))].into(),
        scopes: vec![scope],
        ..Snapshot::default()
    };
    let store = Config::new(folder.join("store"));
    // a folder that says so is left as it is
    let compress = !folder.join("plain").exists();
    let authority = folder.join("authority.json");
    std::fs::write(&authority, serde_json::to_vec(&snapshot).unwrap()).unwrap();
    // and one that has a certificate speaks TLS
    let [chain, key] = ["chain.pem", "key.pem"].map(|name| folder.join(name));
    let running = start(Options {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        tls: chain.exists().then(|| TlsOptions::new(chain, key)),
        store: Config { compression: Compression { on: compress, ..Compression::default() }, ..store },
        authority,
        largest: 1 << 30,
        threads: 2,
        scrub_bytes: 0,
        clock: clock(),
    })
    .unwrap();
    println!("{}", running.address);
    loop {
        std::thread::park();
    }
}

/// The service over this folder, in a process of its own.
pub(crate) fn server(folder: &Path) -> (Child, SocketAddr) {
    started("--serve", folder)
}

/// This program in a process of its own, which serves over this folder and says where.
pub(crate) fn started(how: &str, folder: &Path) -> (Child, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.arg(how).arg(folder).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

/// CPU time of a process and its children, in seconds.
pub(crate) fn cpu(process: u32) -> f64 {
    let mut all = vec![process];
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    all.extend(children.unwrap_or_default().split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
    // nanoseconds on a CPU, of each thread; ticks would be too coarse
    let spent = |id: &u32| -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
        let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
        stats.filter_map(|stat| stat.split_whitespace().next()?.parse::<u64>().ok()).sum()
    };
    all.iter().map(spent).sum::<u64>() as f64 / 1e9
}
