//! The storage helper of ccache: by *protocol tests*, and by the real ccache where one is installed that speaks to helpers
//! (`scripts/install-clients.sh`). That ccache starts the helper by itself is shown in `crates/forgeyard/tests/cli`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::Stat;
use forgeyard_cache::helper::protocol::GREETING;
use forgeyard_cache::helper::settings::Settings;
use forgeyard_cache::helper::{HelperError, run};
use forgeyard_cache::token::Access;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use support::{Client, service, token};
use twox_hash::xxhash3_128::Hasher as Xxh3;

type Ended = JoinHandle<Result<(), HelperError>>;

fn settings(folder: &Path, address: SocketAddr, idle: Option<Duration>) -> Settings {
    let token_file = folder.join("token");
    Settings {
        endpoint: folder.join("socket"),
        address: format!("http://{address}/p/main/-/ccache/"),
        token: None,
        token_file: Some(token_file),
        ca_file: None,
        idle,
        unknown: vec!["colour".to_owned()],
    }
}

fn helper(settings: Settings) -> Ended {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(settings))
    })
}

/// One process of ccache.
struct Ccache(UnixStream);

impl Ccache {
    fn new(socket: &Path) -> Self {
        let deadline = Instant::now() + Duration::from_secs(30);
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut ccache = Self(stream);
        assert_eq!(ccache.read(5), GREETING);
        ccache
    }

    fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn message(&mut self) -> String {
        let length = usize::from(self.read(1)[0]);
        String::from_utf8(self.read(length)).unwrap()
    }

    fn keyed(&mut self, request: u8, key: &[u8]) -> u8 {
        self.0.write_all(&[&[request, key.len() as u8], key].concat()).unwrap();
        self.read(1)[0]
    }

    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        match self.keyed(0, key) {
            0 => {
                let length = u64::from_ne_bytes(self.read(8).try_into().unwrap());
                Some(self.read(length as usize))
            }
            1 => None,
            _ => panic!("{}", self.message()),
        }
    }

    fn put(&mut self, key: &[u8], overwrite: bool, value: &[u8]) -> u8 {
        let length = (value.len() as u64).to_ne_bytes();
        let bytes = [&[1, key.len() as u8], key, &[u8::from(overwrite)], &length, value].concat();
        // in pieces, as a socket may carry them
        for piece in bytes.chunks(100_000) {
            self.0.write_all(piece).unwrap();
        }
        self.read(1)[0]
    }

    fn info(&mut self) -> (String, Vec<String>) {
        self.0.write_all(&[4]).unwrap();
        let identity = self.message();
        let count = self.read(1)[0];
        (identity, (0..count).map(|_| self.message()).collect())
    }

    fn stop(&mut self) {
        self.0.write_all(&[3]).unwrap();
        assert_eq!(self.read(1), [0]);
    }
}

/// Bytes that are a file of ccache as far as the cache looks: what it begins with, and a checksum at its end.
fn entry(size: usize) -> Vec<u8> {
    let mut bytes = vec![0xcc, 0xac, 1, 0, 0, 0];
    bytes.resize(size, 7);
    let mut sum = Xxh3::new();
    sum.write(&bytes);
    bytes.extend_from_slice(&sum.finish_128().to_be_bytes());
    bytes
}

const KEY: &[u8] = &[0xab, 0, 0xff, 3, 4];

/// ccache#1282: what is refused is not silent: the helper says it when it is asked who it is.
#[test]
fn ccache_1282_helper_reads_writes_and_says_when_writes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let settings = settings(folder.path(), running.address, None);
    let (socket, token_file) = (settings.endpoint.clone(), folder.path().join("token"));
    fs_err::write(&token_file, token("p/main", Access::Write) + "\n").unwrap();
    let ended = helper(settings.clone());
    let mut ccache = Ccache::new(&socket);
    assert_eq!(fs_err::metadata(&socket).unwrap().permissions().mode() & 0o077, 0, "for its owner only");
    assert_eq!((ccache.get(KEY), ccache.keyed(5, KEY)), (None, 1));
    let (small, large) = (entry(500), entry(3 << 20));
    assert_eq!(ccache.put(KEY, false, &small), 0);
    assert_eq!(ccache.get(KEY).as_ref(), Some(&small));
    assert_eq!((ccache.put(KEY, false, &large), ccache.keyed(5, KEY)), (1, 0), "it is there already");
    assert_eq!(ccache.put(KEY, true, &large), 0);
    assert_eq!(Ccache::new(&socket).get(KEY).as_ref(), Some(&large), "another compiler");
    assert_eq!((ccache.keyed(2, KEY), ccache.keyed(2, KEY), ccache.get(KEY)), (0, 1, None));
    assert_eq!(ccache.put(KEY, true, &small), 0);
    assert_eq!(ccache.put(KEY, true, b"no file of ccache"), 2, "what is torn is refused");
    assert!(ccache.message().contains("422"));

    // a new token, of somebody who may only read, without another start
    fs_err::write(&token_file, token("p/main", Access::Read)).unwrap();
    let (identity, said) = ccache.info();
    assert!(identity.starts_with("forgeyard "));
    assert_eq!(said, ["the attribute `colour` means nothing here"]);
    assert_eq!(ccache.put(KEY, true, &large), 1);
    assert_eq!(ccache.get(KEY).as_ref(), Some(&small));
    assert!(ccache.info().1[0].contains("writes are refused"));

    let second = helper(settings).join().unwrap();
    assert!(matches!(second, Err(HelperError::Listen { .. })), "one helper for a socket");
    ccache.stop();
    ended.join().unwrap().unwrap();
    assert!(!socket.exists());
    running.stop().unwrap();
}

/// ccache may say stop and close without reading anything, as the protocol allows.
#[test]
fn helper_that_is_told_to_stop_by_somebody_who_does_not_wait_ends() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..20 {
        let settings = settings(folder.path(), SocketAddr::from(([127, 0, 0, 1], 1)), None);
        let (socket, ended) = (settings.endpoint.clone(), helper(settings));
        drop(Ccache::new(&socket));
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(&[3]).unwrap();
        drop(stream);
        ended.join().unwrap().unwrap();
    }
}

/// A dead cache fails requests at once, and a helper that was killed leaves a socket that the next one takes.
#[test]
fn helper_of_a_dead_cache_answers_and_a_dead_helper_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let settings = settings(folder.path(), running.address, Some(Duration::from_millis(300)));
    running.stop().unwrap();
    drop(std::os::unix::net::UnixListener::bind(&settings.endpoint).unwrap());
    assert!(settings.endpoint.exists());
    let (socket, ended) = (settings.endpoint.clone(), helper(settings));
    let mut ccache = Ccache::new(&socket);
    assert_eq!(ccache.keyed(0, KEY), 2);
    let first = ccache.message();
    assert!(first.contains("no answer") && !first.contains("127.0.0.1"), "{first}");
    assert_eq!(ccache.put(KEY, true, &entry(10)), 2);
    assert_eq!(ccache.message(), "the cache did not answer a moment ago");
    // bytes that are no request end the connection, and nothing else
    ccache.0.write_all(&[9]).unwrap();
    assert_eq!(ccache.0.read(&mut [0]).unwrap(), 0);
    ended.join().unwrap().unwrap();
    assert!(!socket.exists(), "it ended because nobody asked");
}

/// A ccache that speaks to helpers; the system's one may be too old.
fn modern_ccache() -> Option<PathBuf> {
    let found = [support::programs::clients().join("ccache/bin/ccache"), PathBuf::from("ccache")];
    let found = found.into_iter().find(|program| {
        let version = Command::new(program).arg("--version").output();
        version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("crsh-storage"))
    });
    if found.is_none() {
        println!("SKIPPED: no ccache with storage helpers is installed (scripts/install-clients.sh)");
    }
    found
}

const SOURCES: u64 = 3;

/// The real ccache, from 4.13 on: each compiler is a process that speaks to the helper.
#[test]
fn ccache_builds_through_the_helper_cold_warm_as_a_fork_and_without_a_cache() {
    let Some(ccache) = modern_ccache() else { return };
    let (folder, tree) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for number in 0..=SOURCES {
        let text =
            format!("#include <stdio.h>\nint part_{number}(void) {{ return printf(\"%d\", {number}); }}\n");
        fs_err::write(tree.path().join(format!("part{number}.c")), text).unwrap();
    }
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let mut counted = |scope: &str| {
        let admin = token("admin", Access::Admin);
        let stat = client.ask("GET", "/-/admin/stat", Some(&admin), None).body;
        let stat: Stat = serde_json::from_slice(&stat).unwrap();
        stat.traffic.into_iter().find(|one| one.scope == scope && one.surface == "ccache").unwrap()
    };
    let build = |name: &str, token: &str, address: SocketAddr, only: Range<u64>| {
        let place = folder.path().join(name);
        fs_err::create_dir_all(&place).unwrap();
        fs_err::write(place.join("token"), token).unwrap();
        let settings = settings(&place, address, None);
        let socket = settings.endpoint.clone();
        let ended = helper(settings);
        let mut connection = Ccache::new(&socket);
        for number in only {
            let mut command = Command::new(&ccache);
            command.current_dir(tree.path()).env("CCACHE_DIR", place.join("local"));
            command
                .env("CCACHE_REMOTE_ONLY", "true")
                .env("CCACHE_REMOTE_STORAGE", format!("crsh:{}", socket.display()));
            let source = format!("part{number}.c");
            command.args(["gcc", "-O1", "-c", &source, "-o"]).arg(place.join("part.o"));
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            fs_err::remove_file(place.join("part.o")).unwrap();
        }
        let said = connection.info().1;
        connection.stop();
        ended.join().unwrap().unwrap();
        said
    };
    let (main, fork) = (token("p/main", Access::Write), token("p/pr/7", Access::Write));
    build("cold", &main, running.address, 0..SOURCES);
    let cold = counted("p/main");
    assert_eq!((cold.hits, cold.malformed, cold.writes), (0, 0, 2 * SOURCES), "{cold:?}");
    build("warm", &main, running.address, 0..SOURCES);
    let warm = counted("p/main");
    assert_eq!((warm.hits, warm.misses, warm.writes), (2 * SOURCES, cold.misses, cold.writes), "{warm:?}");
    build("fork", &fork, running.address, 0..SOURCES + 1);
    let forked = counted("p/pr/7");
    assert_eq!((forked.parent_hits, forked.writes), (2 * SOURCES, 2), "{forked:?}");
    let reader = token("p/main", Access::Read);
    let said = build("reader", &reader, running.address, SOURCES..SOURCES + 1);
    assert!(said[0].contains("writes are refused"), "{said:?}");
    assert_eq!(counted("p/main").writes, cold.writes, "nobody else wrote to main");
    let address = running.address;
    running.stop().unwrap();
    build("dead", &main, address, 0..SOURCES);
}
