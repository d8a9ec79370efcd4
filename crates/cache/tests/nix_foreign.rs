//! harmonia#248, ncps#806: a server is changed behind its address. The real Nix, in two versions, keeps what the old server said
//! of a path for 30 days and asks the new one, which is ours, for the files of the old one. The old server is *simulated*: it
//! hands out `narinfo`s in the forms of harmonia, nix-serve and attic. Skipped, visibly, where Nix is not installed
//! (`scripts/install-clients.sh`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::Stat;
use forgeyard_cache::figures::Counted;
use forgeyard_cache::service::{Options, Running, start};
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::token::Access;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use support::nix::{Nix, Place, derivation, good, path_of, text};
use support::{Client, options, token, write_authority};

/// A script that makes something new, of some size.
const NEW: &str = "read id < /proc/sys/kernel/random/uuid; i=0; while [ $i -lt 2000 ]; do echo $id $i; i=$((i+1)); done > $out";

struct Set {
    nix: Nix,
    folder: tempfile::TempDir,
    options: Options,
    public: String,
}

impl Set {
    /// A cache whose `p/main` has a key, at an address that stays.
    fn new(version: &str) -> Option<Self> {
        let nix = Nix::find(version)?;
        let folder = tempfile::tempdir().unwrap();
        let (key, public) = nix.key(folder.path(), "main-1");
        let mut options = options(folder.path(), Durability::PageCache);
        write_authority(&options.authority, |snapshot| {
            let main = snapshot.scopes.iter_mut().find(|rule| rule.path.as_str() == "p/main");
            main.unwrap().sign_key_file = Some(key);
        });
        options.listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Some(Self { nix, folder, options, public })
    }

    fn place(&self, name: &str, token: Option<&str>) -> Place {
        self.nix.place(self.folder.path(), name, token)
    }

    fn cache(&self) -> String {
        format!("http://{}/p/main/-/nix", self.options.listen)
    }

    fn start(&self) -> Running {
        start(self.options.clone()).unwrap()
    }

    /// Ours has this path, compressed so. What it says of it, as an old server would: with another address of the file.
    fn push(&self, main: &Place, path: &str, compression: &str, old: &Old) -> String {
        let running = self.start();
        good(&main.nix(&["copy", "--to", &format!("{}?compression={compression}", self.cache()), path]));
        let hash = &path["/nix/store/".len()..][..32];
        let mut client = Client::new(running.address);
        let info = client.ask("GET", &format!("/p/main/-/nix/{hash}.narinfo"), None, None).body;
        running.stop().unwrap();
        let info = String::from_utf8(info).unwrap();
        let nar = info.lines().find_map(|line| line.strip_prefix("NarHash: sha256:")).unwrap();
        let file = old.file.replace("NARHASH", nar).replace("STOREHASH", hash);
        let own = ["URL: ", "Compression: ", "FileHash: ", "FileSize: "];
        let kept = info.lines().filter(|line| !own.iter().any(|field| line.starts_with(field)));
        let kept: String = kept.map(|line| format!("{line}\n")).collect();
        format!("{kept}URL: {file}\nCompression: {}\n", old.compression)
    }

    /// The old server answers this user about a path, and is gone then.
    fn ask_the_old_one(&self, user: &Place, path: &str, info: &str) {
        let asked = self.simulated_old_server(info.to_owned());
        good(&user.bare(&["path-info", "--store", &self.cache(), path]));
        let asked = asked.end();
        assert!(asked.iter().any(|line| line.contains(".narinfo")), "{asked:?}");
    }

    /// *Simulated*: says what a cache is, says this of every path, and has no files.
    fn simulated_old_server(&self, info: String) -> OldServer {
        let listener = TcpListener::bind(self.options.listen).unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut head, mut buffer) = (stream.unwrap(), Vec::new(), [0; 4096]);
                while !head.windows(4).any(|four| four == b"\r\n\r\n") {
                    let read = stream.read(&mut buffer).unwrap_or(0);
                    if read == 0 {
                        break;
                    }
                    head.extend_from_slice(&buffer[..read]);
                }
                let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
                let answer = match &line {
                    line if line.starts_with("END") => return,
                    line if line.contains("nix-cache-info") => {
                        "StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 30\n"
                    }
                    line if line.contains(".narinfo") => &info,
                    _ => "",
                };
                kept.lock().unwrap().push(line);
                let status = if answer.is_empty() { "404 Not Found" } else { "200 OK" };
                let length = answer.len();
                let _ = stream.write_all(
                    format!(
                        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{answer}"
                    )
                    .as_bytes(),
                );
            }
        });
        OldServer { address: self.options.listen, lines, thread }
    }
}

struct OldServer {
    address: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
    thread: std::thread::JoinHandle<()>,
}

impl OldServer {
    /// It stops; answers with what it was asked.
    fn end(self) -> Vec<String> {
        let mut stream = std::net::TcpStream::connect(self.address).unwrap();
        stream.write_all(b"END\r\n\r\n").unwrap();
        self.thread.join().unwrap();
        self.lines.lock().unwrap().clone()
    }
}

/// How an old server calls a file, and says that it is compressed.
struct Old {
    file: &'static str,
    compression: &'static str,
}

const HARMONIA: Old = Old { file: "nar/NARHASH.nar?hash=STOREHASH", compression: "none" };
const NIX_SERVE: Old = Old { file: "nar/STOREHASH-NARHASH.nar", compression: "none" };
const BY_NAR_XZ: Old = Old { file: "nar/NARHASH.nar.xz", compression: "xz" };
const BY_NAR_ZSTD: Old = Old { file: "nar/NARHASH.nar.zst", compression: "zstd" };
const OLD_NIX_SERVE: Old = Old { file: "nar/STOREHASH.nar", compression: "none" };
const ATTIC: Old = Old { file: "nar/STOREHASH.nar", compression: "zstd" };

fn counted(running: &Running) -> Counted {
    let admin = token("admin", Access::Admin);
    let mut client = Client::new(running.address);
    let stat: Stat =
        serde_json::from_slice(&client.ask("GET", "/-/admin/stat", Some(&admin), None).body).unwrap();
    stat.traffic.into_iter().find(|one| one.scope == "p/main" && one.surface == "nix").unwrap_or_default()
}

/// Nix takes a path from ours by the address that the old server gave it, and never asks ours what it knows of the path.
#[rstest::rstest]
fn harmonia_248_nix_reads_files_by_the_addresses_of_the_server_that_was_there_before(
    #[values("", "-2.26")] version: &str,
    #[values((HARMONIA, "xz"), (HARMONIA, "zstd"), (HARMONIA, "none"), (NIX_SERVE, "xz"), (BY_NAR_XZ, "xz"), (BY_NAR_ZSTD, "zstd"))]
    case: (Old, &str),
) {
    let Some(set) = Set::new(version) else { return };
    let (old, stored) = case;
    let path = "/nix/store/00000000000000000000000000000abc-one";
    let content = "one line of many\n".repeat(50_000);
    let main = set.place("main", Some(&token("p/main", Access::Write)));
    main.import(path, &content, &[]);
    let info = set.push(&main, path, stored, &old);
    let fork = token("p/pr/7", Access::Write);
    let users =
        [("stranger", None), ("fork", Some(fork.as_str()))].map(|(name, token)| set.place(name, token));
    for user in &users {
        set.ask_the_old_one(user, path, &info);
    }
    let running = set.start();
    for user in &users {
        let options = ["--option", "trusted-public-keys", &set.public];
        good(&user.nix(&[&options[..], &["copy", "--from", &set.cache(), path]].concat()));
        assert_eq!(user.read(path), content);
    }
    let counted = counted(&running);
    assert_eq!((counted.hits, counted.misses), (1, 0), "the stranger asked for the file alone: {counted:?}");
    running.stop().unwrap();
}

/// The same in a build: the path that an old server promised comes from ours. Where ours cannot know which bytes are meant, or has
/// them compressed in another way, it is a miss, and Nix builds the path: no build fails for it.
#[rstest::rstest]
#[case::harmonia(HARMONIA, "xz", true)]
#[case::nix_serve(NIX_SERVE, "zstd", true)]
#[case::other_compression(BY_NAR_XZ, "zstd", false)]
#[case::old_nix_serve(OLD_NIX_SERVE, "xz", false)]
#[case::attic(ATTIC, "zstd", false)]
fn harmonia_248_build_after_a_change_of_servers_takes_what_ours_has_and_builds_the_rest(
    #[case] old: Old,
    #[case] stored: &str,
    #[case] taken: bool,
) {
    let Some(set) = Set::new("-2.26") else { return };
    if !set.nix.builds(set.folder.path()) {
        return;
    }
    let file = set.folder.path().join("new.nix");
    fs_err::write(&file, derivation("new", NEW, "")).unwrap();
    let main = set.place("main", Some(&token("p/main", Access::Write)));
    let path = path_of(&main.build(&file, &[]));
    let info = set.push(&main, &path, stored, &old);
    let user = set.place("user", None);
    set.ask_the_old_one(&user, &path, &info);
    let running = set.start();
    let cache = set.cache();
    let options = ["--option", "substituters", &cache, "--option", "trusted-public-keys", &set.public];
    let built = user.build(&file, &options);
    assert_eq!(path_of(&built), path, "{}", text(&built));
    assert_eq!(user.read(&path) == main.read(&path), taken, "{}", text(&built));
    running.stop().unwrap();
}
