//! Nix 2.26 builds real derivations in its sandbox, pushes what it built, and takes it from the cache where the signature of the
//! scope holds. Skipped, visibly, where it is not installed (`scripts/install-clients.sh`) or its sandbox does not run.
//!
//! What a derivation here makes is new each time (`uuid`), so who has the same bytes took them from somebody.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::Stat;
use forgeyard_cache::service::{Running, start};
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::token::Access;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use support::nix::{Nix, Place, derivation, good, path_of, text};
use support::sick::{gone, sick};
use support::{Client, options, token, write_authority};

/// A script that makes something new.
const NEW: &str = "read id < /proc/sys/kernel/random/uuid; echo $id > $out";

struct Set {
    nix: Nix,
    folder: tempfile::TempDir,
    running: Running,
    public: String,
}

impl Set {
    /// A cache whose `p/main` has a key.
    fn new() -> Option<Self> {
        let nix = Nix::find("-2.26")?;
        let folder = tempfile::tempdir().unwrap();
        if !nix.builds(folder.path()) {
            return None;
        }
        let (key, public) = nix.key(folder.path(), "main-1");
        let options = options(folder.path(), Durability::PageCache);
        write_authority(&options.authority, |snapshot| {
            let main = snapshot.scopes.iter_mut().find(|rule| rule.path.as_str() == "p/main");
            main.unwrap().sign_key_file = Some(key);
        });
        Some(Self { nix, folder, running: start(options).unwrap(), public })
    }

    fn place(&self, name: &str, token: Option<&str>) -> Place {
        self.nix.place(self.folder.path(), name, token)
    }

    fn file(&self, name: &str, script: &str, more: &str) -> PathBuf {
        let file = self.folder.path().join(format!("{name}.nix"));
        fs_err::write(&file, derivation(name, script, more)).unwrap();
        file
    }

    fn cache(&self) -> String {
        format!("http://{}/p/main/-/nix", self.running.address)
    }

    /// Options of a user that takes from this cache what the key of main signed.
    fn takes<'o>(&'o self, cache: &'o str) -> [&'o str; 6] {
        ["--option", "substituters", cache, "--option", "trusted-public-keys", &self.public]
    }

    fn stat(&self) -> Stat {
        let admin = token("admin", Access::Admin);
        let mut client = Client::new(self.running.address);
        serde_json::from_slice(&client.ask("GET", "/-/admin/stat", Some(&admin), None).body).unwrap()
    }
}

/// Main pushes; a stranger, a fork and a reader take it with the key of main, and with another key build it themselves. What
/// the fork built is in its own scope, without the signature of main.
#[test]
fn nix_2_26_takes_what_main_built_as_a_fork_a_reader_and_a_stranger_and_believes_no_other_key() {
    let Some(set) = Set::new() else { return };
    let cache = set.cache();
    let file = set.file("hello", NEW, "");
    let main = set.place("main", Some(&token("p/main", Access::Write)));
    let path = path_of(&main.build(&file, &[]));
    good(&main.nix(&["copy", "--to", &cache, &path]));
    let made = main.read(&path);

    let (fork, reader) = (token("p/pr/7", Access::Write), token("p/main", Access::Read));
    for (name, token) in [
        ("stranger", None),
        ("fork", Some(fork.as_str())),
        ("reader", Some(&reader)),
        ("broken", Some("fyc_no.token")),
    ] {
        let place = set.place(name, token);
        let taken = place.build(&file, &set.takes(&cache));
        assert_eq!(path_of(&taken), path, "{name}");
        assert_eq!(place.read(&path), made, "{name} took it: {}", text(&taken));
    }
    let doubter = set.place("doubter", None);
    let other = "main-1:6q/UIM1wtn0/YcjlTUhdFEl8X//kXGy/iwb0u9cqbCQ=";
    let options = ["--option", "substituters", &cache, "--option", "trusted-public-keys", other];
    let built = doubter.build(&file, &options);
    assert_eq!(path_of(&built), path);
    assert_ne!(doubter.read(&path), made, "it believed a key that it does not trust: {}", text(&built));
    assert!(text(&built).contains("not signed by any of the keys"), "{}", text(&built));

    // the fork pushes to the same address
    let second = set.file("second", NEW, "");
    let place = set.place("fork", Some(&fork));
    let second_path = path_of(&place.build(&second, &set.takes(&cache)));
    good(&place.nix(&["copy", "--to", &cache, &second_path]));
    let made = place.read(&second_path);
    for (name, token) in [("stranger", None), ("reader", Some(reader.as_str()))] {
        let place = set.place(name, token);
        let built = place.build(&second, &set.takes(&cache));
        assert_ne!(place.read(&path_of(&built)), made, "{name} got what a fork wrote");
    }
    let same = set.place("same fork", Some(&fork));
    let built = same.build(&second, &set.takes(&cache));
    assert_ne!(same.read(&path_of(&built)), made, "what a fork wrote bears the signature of main");
    assert!(text(&built).contains("not signed by any of the keys"), "{}", text(&built));

    // who may not write is told so, and nothing is stored
    for (name, token) in [("stranger", None), ("reader", Some(reader.as_str()))] {
        let place = set.place(name, token);
        let refused = place.nix(&["copy", "--to", &cache, &second_path]);
        assert!(!refused.status.success() && text(&refused).contains("403"), "{name}: {}", text(&refused));
    }
    let stat = set.stat();
    let counted =
        |scope: &str| stat.traffic.iter().find(|one| one.scope == scope && one.surface == "nix").unwrap();
    assert_eq!(counted("p/main").writes, 2, "a file and its narinfo");
    assert_eq!(counted("p/pr/7").writes, 2);
    assert!(counted("p/main").denied >= 2);
    set.running.stop().unwrap();
}

/// A build goes on without a cache that is gone, answers 5xx, says nothing, or dies after it promised a path.
#[test]
fn nix_2_26_builds_by_itself_when_the_cache_is_gone_fails_or_hangs() {
    let Some(set) = Set::new() else { return };
    let down = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
    for (name, address) in [("gone", gone()), ("failing", sick(Some(down))), ("hanging", sick(None))] {
        let file = set.file(name, NEW, "");
        let place = set.place(name, None);
        let cache = format!("http://{address}/p/main/-/nix");
        let patience = ["--option", "connect-timeout", "2", "--option", "stalled-download-timeout", "2"];
        let attempts = ["--option", "download-attempts", "2"];
        let built = place.build(&file, &[&set.takes(&cache)[..], &patience, &attempts].concat());
        good(&built);
    }
    // the narinfo is remembered, the file does not come any more
    let file = set.file("dies", NEW, "");
    let main = set.place("main", Some(&token("p/main", Access::Write)));
    let path = path_of(&main.build(&file, &[]));
    let cache = set.cache();
    good(&main.nix(&["copy", "--to", &cache, &path]));
    let place = set.place("dies", None);
    let known = place.bare(&["path-info", "--store", &cache, &path]);
    good(&known);
    let trusted = set.public.clone();
    let options = ["--option", "substituters", &cache, "--option", "trusted-public-keys", &trusted];
    let options = [&options[..], &["--option", "download-attempts", "2"]].concat();
    set.running.stop().unwrap();
    let failed = place.build(&file, &options);
    assert!(!failed.status.success(), "`fallback` is not needed any more: {}", text(&failed));
    good(&place.build(&file, &[&options[..], &["--option", "fallback", "true"]].concat()));
    assert_ne!(place.read(&path), main.read(&path));
}

/// A proxy that cuts the first answer for a file of Nix in the middle; it tells which ranges were asked for.
fn cutting(to: SocketAddr, after: usize) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let ranges = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&ranges);
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let asked = Arc::clone(&asked);
            std::thread::spawn(move || {
                let mut server = TcpStream::connect(to).unwrap();
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") {
                    if client.read(&mut byte).unwrap_or(0) == 0 {
                        return;
                    }
                    head.push(byte[0]);
                }
                let text = String::from_utf8(head).unwrap();
                let mut first = false;
                if text.contains("/nar/") {
                    let range = text.lines().find_map(|line| line.strip_prefix("Range: "));
                    let mut asked = asked.lock().unwrap();
                    first = asked.is_empty();
                    asked.push(range.unwrap_or_default().to_owned());
                }
                // one request for each connection, so that nothing has to be framed here
                let text = text.replacen("\r\n", "\r\nConnection: close\r\n", 1);
                server.write_all(text.as_bytes()).unwrap();
                let mut left = if first { after } else { usize::MAX };
                let mut buffer = [0; 16 << 10];
                while left > 0 {
                    let read = server.read(&mut buffer).unwrap_or(0);
                    if read == 0 || client.write_all(&buffer[..read.min(left)]).is_err() {
                        break;
                    }
                    left -= read.min(left);
                }
            });
        }
    });
    (address, ranges)
}

/// nix#4832: a file that broke off is fetched from where it stands. Its bytes are those of main all the same.
#[test]
fn nix_4832_nix_2_26_goes_on_with_a_file_that_broke_off() {
    let Some(set) = Set::new() else { return };
    let noise = set.folder.path().join("noise");
    let mut state = 7u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(3 << 20)
    .collect();
    fs_err::write(&noise, &bytes).unwrap();
    let cache = set.cache();
    let main = set.place("main", Some(&token("p/main", Access::Write)));
    let path = path_of(&main.nix(&["store", "add-file", &noise.display().to_string()]));
    good(&main.nix(&["copy", "--to", &format!("{cache}?compression=none"), &path]));
    let (address, ranges) = cutting(set.running.address, 1 << 20);
    let place = set.place("reader", None);
    let through = format!("http://{address}/p/main/-/nix");
    good(&place.nix(&["--option", "trusted-public-keys", &set.public, "copy", "--from", &through, &path]));
    let ranges = ranges.lock().unwrap().clone();
    assert!(ranges.len() == 2 && ranges[0].is_empty() && ranges[1].starts_with("bytes="), "{ranges:?}");
    let from: usize = ranges[1].trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap();
    assert!(from > 0 && from <= 1 << 20, "{ranges:?}");
    let taken = fs_err::read(place.folder.join("root").join(&path[1..])).unwrap();
    assert!(taken == bytes, "bytes of the two answers do not fit together");
    set.running.stop().unwrap();
}

/// What 2.26 writes besides files and `narinfo`: another compression, a listing, a log, its own signature; and what it says of
/// the cache.
#[test]
fn nix_2_26_writes_listings_logs_its_own_signature_and_other_compressions() {
    let Some(set) = Set::new() else { return };
    let cache = set.cache();
    let main = set.place("main", Some(&token("p/main", Access::Write)));
    let file = set.file("told", "echo told; read id < /proc/sys/kernel/random/uuid; echo $id > $out", "");
    let path = path_of(&main.build(&file, &[]));
    let (own, own_public) = set.nix.key(set.folder.path(), "own-1");
    let to = format!("{cache}?compression=zstd&write-nar-listing=1&secret-key={}", own.display());
    good(&main.nix(&["copy", "--to", &to, &path]));
    let derivation = path_of(&main.nix(&["path-info", "--derivation", "-f", &file.display().to_string()]));
    good(&main.nix(&["store", "copy-log", "--to", &cache, &derivation]));

    let mut client = Client::new(set.running.address);
    let hash = &path["/nix/store/".len()..][..32];
    let info = client.ask("GET", &format!("/p/main/-/nix/{hash}.narinfo"), None, None).body;
    let info = String::from_utf8(info).unwrap();
    assert!(info.contains("Compression: zstd\n") && info.contains("Sig: own-1:"), "{info}");
    assert!(info.contains("Sig: main-1:"), "ours stands beside it: {info}");
    // each of the two is enough
    for (name, key) in [("of the pusher", &own_public), ("of the cache", &set.public)] {
        let place = set.place(name, None);
        let options = ["--option", "trusted-public-keys", key, "copy", "--from", &cache, &path];
        good(&place.nix(&options));
        assert_eq!(place.read(&path), main.read(&path));
    }
    let reader = set.place("reader", None);
    let listed = reader.bare(&["store", "ls", "--store", &cache, "--json", &path]);
    assert!(text(&listed).contains("regular"), "{}", text(&listed));
    let log = reader.bare(&["log", "--store", &cache, &derivation]);
    assert!(text(&log).contains("told"), "{}", text(&log));
    let known = reader.bare(&["store", "ping", "--store", &cache]);
    good(&known);
    // a path that is made anew has another log: no alarm
    let second = set.place("second", Some(&token("p/main", Access::Write)));
    good(&second.build(&file, &[]));
    good(&second.nix(&["store", "copy-log", "--to", &cache, &derivation]));
    let stat = set.stat();
    assert!(stat.traffic.iter().all(|one| one.mismatches == 0 && one.malformed == 0), "{:?}", stat.traffic);
    set.running.stop().unwrap();
}

/// A derivation whose path is known by its content (`ca-derivations`): which path it came out as is copied with a signature only.
#[test]
fn nix_2_26_copies_a_realisation_that_the_cache_signed_and_no_other() {
    let Some(set) = Set::new() else { return };
    let cache = set.cache();
    let by_content =
        "__contentAddressed = true; outputHashMode = \"recursive\"; outputHashAlgo = \"sha256\";";
    let file = set.file("content", NEW, by_content);
    let named = file.display().to_string();
    let main = set.place("main", Some(&token("p/main", Access::Write)));
    let path = path_of(&main.build(&file, &[]));
    good(&main.nix(&["copy", "--to", &cache, "-f", &named]));
    let taker = set.place("taker", None);
    let taken = taker.build(&file, &set.takes(&cache));
    assert_eq!(path_of(&taken), path, "built anew: {}", text(&taken));
    assert_eq!(taker.read(&path), main.read(&path));
    // a copy, which finds the output by the derivation, asks for a signature; a build does not, so a build by content believes whoever may write what it reads
    good(&main.nix(&["copy", "--to", &cache, "--derivation", "-f", &named]));
    let output = path_of(&main.nix(&["path-info", "--derivation", "-f", &named])) + "^out";
    let other = "main-1:6q/UIM1wtn0/YcjlTUhdFEl8X//kXGy/iwb0u9cqbCQ=";
    for (name, key, believed) in [("believer", set.public.as_str(), true), ("doubter", other, false)] {
        let place = set.place(name, None);
        let from = ["copy", "--from", &cache, &output];
        let copied = place.nix(&[&["--option", "trusted-public-keys", key][..], &from].concat());
        assert_eq!(copied.status.success(), believed, "{name}: {}", text(&copied));
    }
    // who took it pushes it again, now with our signature in it: nothing is wrong
    let again = set.place("taker", Some(&token("p/main", Access::Write)));
    good(&again.nix(&["copy", "--to", &cache, "-f", &named]));
    // and another one for the same derivation is an alarm
    let second = set.place("second", Some(&token("p/main", Access::Write)));
    assert_ne!(path_of(&second.build(&file, &[])), path);
    let _ = second.nix(&["copy", "--to", &cache, "-f", &named]);
    let stat = set.stat();
    let counted = stat.traffic.iter().find(|one| one.scope == "p/main" && one.surface == "nix").unwrap();
    assert_eq!(counted.mismatches, 1, "{counted:?}");
    set.running.stop().unwrap();
}
