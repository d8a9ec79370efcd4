//! The build cache by the program: keys for Nix, and a real ccache that starts the program as its storage helper.

use crate::rig::{Farm, alone, program};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A key that Nix 2.8 made for these tests. It signs nothing else.
const KEY: &str =
    "fixture-1:axe7L6n8p/ARAy/0dmzshX7k+rUi5rfMp+TlKeXK79Tqr9QgzXC2fT9hyOVNSF0USXxf/+RcbL+LBvS71ypsJA==";
const PUBLIC: &str = "fixture-1:6q/UIM1wtn0/YcjlTUhdFEl8X//kXGy/iwb0u9cqbCQ=";

fn configuration(folder: &Path) -> String {
    let (key, file) = (folder.join("main.key"), folder.join("forgeyard.toml"));
    fs_err::write(&key, KEY).unwrap();
    let text = format!(
        "[cache]\nlisten = \"127.0.0.1:0\"\n\n[[cache.scopes]]\npath = \"iree/main\"\ntrusted = true\nread = \"public\"\n\
         sign-key-file = \"{}\"\n\
         budget = {{ hit-percent = 60, of-at-least = 1, within-minutes = 60 }}\n\n[[cache.scopes]]\npath = \"plain\"\n",
        key.display()
    );
    fs_err::write(&file, text).unwrap();
    file.display().to_string()
}

#[test]
fn public_key_of_a_scope_is_printed_for_its_readers_and_the_secret_never() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path());
    let said = alone(&["cache", "key", "iree/main", "--config", &file]).ends(0);
    assert!(
        said.out.starts_with(&format!("{PUBLIC}\n")) && said.out.contains("extra-trusted-public-keys = "),
        "{}",
        said.out
    );
    let secret = KEY.split_at(20).0;
    assert!(!said.out.contains(secret) && !said.err.contains(secret));
    alone(&["cache", "key", "plain", "--config", &file]).ends(2).names(&["plain", "sign-key-file"]);
    fs_err::write(folder.path().join("main.key"), KEY.replace("axe7", "axe8")).unwrap();
    let said =
        alone(&["cache", "key", "iree/main", "--config", &file]).ends(2).names(&["main.key", "nix key"]);
    assert!(!said.err.contains("axe8"));
}

/// A cache that runs by itself and ends with the test.
pub struct Cache {
    child: Child,
    pub address: String,
}

impl Cache {
    pub fn start(data: &str, file: &str) -> Self {
        let mut child = program(&["cache", "run", "--data", data, "--config", file])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("http://")?.1.trim_end_matches('/').to_owned()));
        Self { child, address: address.expect("it says where it listens") }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn check_of_a_cold_scope_ends_with_1_and_names_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path());
    let data = folder.path().join("data").display().to_string();
    let cache = Cache::start(&data, &file);
    let address = format!("http://{}", cache.address);
    let check = |scope: &str| alone(&["cache", "check", scope, "--cache", &address, "--data", &data]);
    let said = check("iree/main").ends(0);
    assert!(said.out.contains("too little was seen"), "{}", said.out);
    let mut stream = std::net::TcpStream::connect(&cache.address).unwrap();
    stream.write_all(b"GET /iree/main/-/kv/x HTTP/1.1\r\nHost: cache\r\nConnection: close\r\n\r\n").unwrap();
    std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    let said = check("iree/main").ends(1);
    assert!(
        said.out.contains("cold (never-written)") && said.out.contains("a token that may write"),
        "{}",
        said.out
    );
    check("plain").ends(2).names(&["plain", "budget"]);
}

/// The real ccache finds the program by its name, starts it, and reads in a second place what it wrote in the first.
#[test]
fn ccache_starts_the_program_as_its_storage_helper() {
    let clients = std::env::var("FORGEYARD_CLIENTS").unwrap_or_else(|_| "/opt/forgeyard/clients".to_owned());
    let ccache = PathBuf::from(clients).join("ccache/bin/ccache");
    if !ccache.is_file() {
        println!("SKIPPED: no ccache with storage helpers is installed (scripts/install-clients.sh)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let file = configuration(folder.path());
    let cache = Cache::start(&path("data"), &file);
    let said = alone(&["cache", "token", "iree/main", "--data", &path("data")]).ends(0);
    fs_err::write(path("token"), said.out).unwrap();
    fs_err::write(path("part.c"), "int part(void) { return 1; }\n").unwrap();
    for folder in ["bin", "run"] {
        fs_err::create_dir(path(folder)).unwrap();
    }
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forgeyard"), path("bin/ccache-storage-forgeyard"))
        .unwrap();
    let search = format!("{}:{}", path("bin"), std::env::var("PATH").unwrap());
    for local in ["first", "second"] {
        let mut command = Command::new(&ccache);
        command.env("PATH", &search).env("CCACHE_DIR", path(local)).env("CCACHE_REMOTE_ONLY", "true");
        command.env("XDG_RUNTIME_DIR", path("run")).env("CCACHE_TEMPDIR", path("run"));
        let storage = format!("forgeyard://{}/iree/main @bearer-token-file={}", cache.address, path("token"));
        command.env("CCACHE_REMOTE_STORAGE", storage).args([
            "gcc",
            "-c",
            &path("part.c"),
            "-o",
            &path("part.o"),
        ]);
        assert!(command.status().unwrap().success());
    }
    let address = format!("http://{}", cache.address);
    let said = alone(&["cache", "stat", "--json", "--cache", &address, "--data", &path("data")]).ends(0);
    let stat: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let traffic = &stat["traffic"][0];
    assert_eq!((traffic["hits"].as_u64(), traffic["writes"].as_u64()), (Some(2), Some(2)), "{stat}");
    let stopped = stop_helpers(&folder.path().join("run"));
    assert_eq!(stopped, 1, "one helper for both");
}

/// Asks the helpers whose sockets are below a folder to end.
fn stop_helpers(folder: &Path) -> usize {
    let mut stopped = 0;
    for entry in fs_err::read_dir(folder).unwrap().map_while(Result::ok) {
        if entry.path().is_dir() {
            stopped += stop_helpers(&entry.path());
        } else if let Ok(mut stream) = UnixStream::connect(entry.path()) {
            stream.write_all(&[3]).unwrap();
            // a greeting, the answer, and the end of the helper
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
            stopped += 1;
        }
    }
    stopped
}

/// The farm's page asks the cache that runs beside it, by its own token, and says so when there is none.
#[test]
fn farm_shows_the_cache_beside_it_and_says_when_it_is_away() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let farm = Farm::with(&format!("[cache]\nlisten = \"{address}\"\n\n[[cache.scopes]]\npath = \"main\"\n"));
    let config = farm.folder.path().join("forgeyard.toml").display().to_string();
    let data = farm.folder.path().join("data").display().to_string();
    let look = || {
        let token = fs_err::read_to_string(farm.folder.path().join("data/admin.token")).unwrap();
        let said = Command::new("curl")
            .args([
                "-s",
                "-H",
                &format!("Authorization: Bearer {}", token.trim()),
                &format!("{}/api/v1/cache", farm.url),
            ])
            .output()
            .unwrap();
        serde_json::from_slice::<serde_json::Value>(&said.stdout).unwrap()
    };
    assert_eq!(look()["code"], "cache.no_answer");
    let cache = Cache::start(&data, &config);
    let token = alone(&["cache", "token", "main", "--run", "7", "--data", &data]).ends(0).out;
    let put = Command::new("curl")
        .args([
            "-s",
            "-f",
            "-X",
            "PUT",
            "-d",
            "bytes",
            "-H",
            &format!("Authorization: Bearer {}", token.trim()),
        ])
        .arg(format!("http://{}/main/-/kv/x", cache.address))
        .status();
    assert!(put.unwrap().success());
    let view = look();
    assert_eq!((&view["entries"], &view["scopes"][0]["scope"]), (&1.into(), &"main".into()), "{view}");
    let url = format!("http://{}", cache.address);
    let said = alone(&["cache", "who-read", "--writer", "7", "--cache", &url, "--data", &data]).ends(0);
    assert!(said.out.contains("nobody read them"), "{}", said.out);
}
