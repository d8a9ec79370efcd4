//! The tier, against a real S3-compatible server (SeaweedFS). Its faults are *simulated* by a proxy in front of it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

#[path = "../support/s3.rs"]
mod s3;
#[path = "../support/mod.rs"]
mod support;

mod faults;
mod reading;

use forgeyard_cache::service::{Options, Running, start};
use forgeyard_cache::store::log::{Config, Durability};
use forgeyard_cache::tier::{self, TierStat};
use forgeyard_cache::token::{self, Access, Claims};
use forgeyard_model::{Digest, Secret, Timestamp};
use s3::{BUCKET, Fault, KEY, Proxy, S3, SECRET};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use support::{Client, NOW, options};

fn tier_at(address: SocketAddr, writer: &str, reads: &[&str]) -> tier::Config {
    tier::Config {
        endpoint: format!("http://{address}"),
        bucket: BUCKET.to_owned(),
        region: "us-east-1".to_owned(),
        prefix: "cache".to_owned(),
        writer: writer.to_owned(),
        reads: reads.iter().map(|name| (*name).to_owned()).collect(),
        key: Secret::new(KEY.to_owned()),
        secret: Secret::new(SECRET.to_owned()),
        seal_minutes: 60,
    }
}

/// A token that outlives the clocks of these tests.
fn token(scope: &str, access: Access) -> String {
    let claims = Claims { expires_at: Timestamp::from_micros(i64::MAX), ..support::claims(scope, access) };
    token::mint(&claims, &support::key()).unwrap().expose().to_owned()
}

/// A service with room for 8 MiB on disk.
struct Farm {
    running: Option<Running>,
    client: Client,
    folder: tempfile::TempDir,
    now: Arc<AtomicI64>,
    tier: tier::Config,
}

impl Farm {
    fn new(tier: tier::Config) -> Self {
        let (folder, now) = (tempfile::tempdir().unwrap(), Arc::new(AtomicI64::new(NOW)));
        let running = Self::run(folder.path(), &now, &tier);
        let client = Client::new(running.address);
        Self { running: Some(running), client, folder, now, tier }
    }

    fn run(folder: &Path, now: &Arc<AtomicI64>, tier: &tier::Config) -> Running {
        let clock = Arc::clone(now);
        let clock: forgeyard_cache::store::Clock =
            Arc::new(move || Timestamp::from_micros(clock.load(Ordering::SeqCst)));
        let options = options(folder, Durability::PageCache);
        let store = Config {
            capacity: 8 << 20,
            segment: 1 << 20,
            tier: Some(tier.clone()),
            ..Config::new(folder.join("store"))
        };
        start(Options { store, clock, largest: 4 << 20, ..options }).unwrap()
    }

    fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    fn stat(&self) -> TierStat {
        self.running().tier().unwrap()
    }

    /// With a snapshot at its end, or without one and its log behind.
    fn restart(&mut self, change: impl FnOnce(&Path)) {
        self.running.take().unwrap().stop().unwrap();
        change(self.folder.path());
        let running = Self::run(self.folder.path(), &self.now, &self.tier);
        self.client = Client::new(running.address);
        self.running = Some(running);
    }

    fn put(&mut self, path: &str, scope: &str, bytes: &[u8]) {
        let token = token(scope, Access::Write);
        let answer = self.client.ask("PUT", path, Some(&token), Some(bytes));
        assert!(
            matches!(answer.status, 200 | 201),
            "PUT {path}: {} {}",
            answer.head,
            String::from_utf8_lossy(&answer.body)
        );
    }

    fn get(&mut self, path: &str, scope: &str) -> Option<Vec<u8>> {
        let token = token(scope, Access::Write);
        let answer = self.client.ask("GET", path, Some(&token), None);
        match answer.status {
            200 => Some(answer.body),
            404 => None,
            status => panic!("GET {path} is answered with {status}"),
        }
    }

    /// Waits until everything that was written is in the tier.
    fn sent(&self) {
        self.running().seal().unwrap();
        let begin = Instant::now();
        loop {
            let stat = self.stat();
            // a look after the seal
            if stat.state == "writing"
                && stat.waiting_segments == 0
                && begin.elapsed() > Duration::from_millis(2500)
            {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(120), "{stat:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Writes other entries until the disk holds nothing of what was there before.
    fn push_out(&mut self, round: u32) {
        for batch in 0..6u32 {
            // past what a lease promises
            self.now.fetch_add(3600 * 1_000_000, Ordering::SeqCst);
            for number in 0..9u32 {
                let bytes = noise(200_000, round * 1000 + batch * 100 + number);
                self.put(&format!("/-/kv/filler-{round}-{batch}-{number}"), "secret", &bytes);
            }
            self.running().maintain().unwrap();
        }
        self.sent();
    }
}

fn noise(length: usize, seed: u32) -> Vec<u8> {
    let mut state = u64::from(seed) << 1 | 1;
    let mut all = Vec::with_capacity(length + 8);
    while all.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        all.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    all.truncate(length);
    all
}

/// What the tier relies on. A server that does not pass this is refused at the start (the conditions) or gives misses.
#[test]
fn server_honours_what_the_tier_relies_on() {
    let Some(s3) = S3::start() else { return };
    let all = ("If-None-Match", "*");
    assert_eq!(s3.put_if("a/b", b"one", all), 200);
    assert_eq!(s3.put_if("a/b", b"two", all), 412);
    assert_eq!(s3.get("a/b"), b"one");
    assert_eq!(s3.put_if("a/b", b"two", ("If-Match", "\"00000000000000000000000000000000\"")), 412);
    let md5_of_one = "\"f97c5d29941bfb1b2fdab0874906ab82\"";
    assert_eq!(s3.put_if("a/b", b"two", ("If-Match", md5_of_one)), 200);
    assert_eq!(s3.part("a/b", "bytes=1-1"), (206, b"w".to_vec()));
    assert_eq!(s3.part("a/b", "bytes=1-99"), (206, b"wo".to_vec()), "a part that reaches too far is cut");
    s3.delete("a/b");
    assert_eq!(s3.part("a/b", "bytes=1-1").0, 404);
    // eight at once: one of them
    let won: usize = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8)
            .map(|number| {
                let s3 = &s3;
                scope.spawn(move || s3.put_if("race", &[number], all))
            })
            .collect();
        all.into_iter().filter(|_| true).map(|one| usize::from(one.join().unwrap() == 200)).sum()
    });
    assert_eq!(won, 1);
}
