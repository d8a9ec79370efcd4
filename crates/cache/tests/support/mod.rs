//! A service that tests speak to, and a small HTTP client that sends exactly what it is told.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod issuer;
pub mod narinfo;
pub mod nix;
pub mod node;
pub mod programs;
pub mod sick;
pub mod tls;

use ed25519_dalek::SigningKey;
use forgeyard_cache::authority::{Snapshot, public_text};
use forgeyard_cache::scope::{Reading, ScopeRule};
use forgeyard_cache::service::{Options, Running, start};
use forgeyard_cache::store::log::{Config, Durability};
use forgeyard_cache::token::{self, Access, Claims};
use forgeyard_model::Timestamp;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub const NOW: i64 = 1_800_000_000_000_000;

pub fn key() -> SigningKey {
    SigningKey::from_bytes(&[3; 32])
}

pub fn scopes() -> Vec<ScopeRule> {
    let rule = |path: &str| ScopeRule::new(path.parse().unwrap());
    let main = "p/main".parse().unwrap();
    vec![
        ScopeRule { trusted: true, read: Reading::Public, ..rule("p/main") },
        ScopeRule { family: true, parents: vec![main], ..rule("p/pr") },
        rule("secret"),
        ScopeRule { trusted: true, read: Reading::Public, redistributable: false, ..rule("cuda") },
    ]
}

pub fn write_authority(path: &Path, change: impl FnOnce(&mut Snapshot)) {
    let keys = [("k".to_owned(), public_text(&key().verifying_key()))].into();
    let mut snapshot = Snapshot { keys, scopes: scopes(), ..Snapshot::default() };
    change(&mut snapshot);
    let beside = path.with_extension("new");
    fs_err::write(&beside, serde_json::to_vec(&snapshot).unwrap()).unwrap();
    fs_err::rename(&beside, path).unwrap();
}

pub fn token(scope: &str, access: Access) -> String {
    token::mint(&claims(scope, access), &key()).unwrap().expose().to_owned()
}

/// The form of the token that GitHub's clients want.
pub fn runtime_token(scope: &str, access: Access) -> String {
    token::mint_jwt(&claims(scope, access), &key()).unwrap().expose().to_owned()
}

pub fn claims(scope: &str, access: Access) -> Claims {
    Claims {
        id: format!("id of {scope}"),
        key: "k".to_owned(),
        principal: format!("job of {scope}"),
        scope: scope.parse().unwrap(),
        access,
        expires_at: Timestamp::from_micros(NOW + 3_600_000_000),
        epoch: 0,
        cold: false,
        listed: false,
        run: Some(format!("run of {scope}")),
    }
}

pub fn service(folder: &Path) -> Running {
    service_with(folder, Durability::PageCache)
}

pub fn service_with(folder: &Path, durability: Durability) -> Running {
    start(options(folder, durability)).unwrap()
}

/// A service that takes larger entries than usual here.
pub fn service_up_to(folder: &Path, largest: u64) -> Running {
    start(Options { largest, ..options(folder, Durability::PageCache) }).unwrap()
}

pub fn options(folder: &Path, durability: Durability) -> Options {
    let authority = folder.join("authority.json");
    write_authority(&authority, |_| {});
    Options {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        tls: None,
        store: Config { durability, ..Config::new(folder.join("store")) },
        authority,
        largest: 64 << 20,
        threads: 2,
        scrub_bytes: 0,
        clock: Arc::new(|| Timestamp::from_micros(NOW)),
    }
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

/// A connection that is kept.
pub struct Client {
    pub stream: TcpStream,
    tls: Option<rustls::ClientConnection>,
    rest: Vec<u8>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, tls: None, rest: Vec::new() }
    }

    /// The same by TLS.
    pub fn by(address: SocketAddr, tls: rustls::ClientConnection) -> Self {
        Self { tls: Some(tls), ..Self::new(address) }
    }

    /// How its handshake of TLS went.
    pub fn handshake(&self) -> Option<rustls::HandshakeKind> {
        self.tls.as_ref().and_then(|tls| tls.handshake_kind())
    }

    fn read(&mut self, buffer: &mut [u8]) -> usize {
        match &mut self.tls {
            None => self.stream.read(buffer).unwrap(),
            Some(tls) => rustls::Stream::new(tls, &mut self.stream).read(buffer).unwrap(),
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        match &mut self.tls {
            None => self.stream.write_all(bytes).unwrap(),
            Some(tls) => rustls::Stream::new(tls, &mut self.stream).write_all(bytes).unwrap(),
        }
    }

    pub fn ask(&mut self, method: &str, path: &str, token: Option<&str>, body: Option<&[u8]>) -> Answer {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: cache\r\n");
        if let Some(token) = token {
            head.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if let Some(body) = body {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        self.send(&[head.as_bytes(), body.unwrap_or_default()].concat());
        self.answer(method == "HEAD")
    }

    pub fn answer(&mut self, bare: bool) -> Answer {
        let mut buffer = vec![0; 64 << 10];
        let end = loop {
            if let Some(end) = self.rest.windows(4).position(|w| w == b"\r\n\r\n") {
                break end + 4;
            }
            let read = self.read(&mut buffer);
            assert!(read > 0, "the connection ended: {}", String::from_utf8_lossy(&self.rest));
            self.rest.extend_from_slice(&buffer[..read]);
        };
        let head = String::from_utf8(self.rest.drain(..end).collect()).unwrap();
        let status: u16 = head[9..12].parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let length = if bare { 0 } else { length.map_or(0, |text| text.parse().unwrap()) };
        while self.rest.len() < length {
            let read = self.read(&mut buffer);
            assert!(read > 0, "the body ended early");
            self.rest.extend_from_slice(&buffer[..read]);
        }
        let body = self.rest.drain(..length).collect();
        Answer { status, head, body }
    }
}
