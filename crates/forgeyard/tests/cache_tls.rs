//! The build cache by TLS, as the program runs it: what it prints, commands, the relay before a client that speaks no TLS itself, the
//! real ccache that starts the program as its storage helper, and what is said of files that are of no use. What is not installed
//! is skipped, visibly (`scripts/install-clients.sh`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forgeyard");

/// A configured cache with a certificate for `localhost`, signed by an authority that no system trusts.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new(listen: &str, more: &str) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let names = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = names.signed_by(&key, &issuer).unwrap().pem();
        for (name, text) in
            [("ca.pem", authority), ("chain.pem", certificate), ("key.pem", key.serialize_pem())]
        {
            fs_err::write(place.path(name), text).unwrap();
        }
        let scope = "[[cache.scopes]]\npath = \"iree/main\"\ntrusted = true\nread = \"public\"\n";
        let text =
            format!("[cache]\nlisten = \"{listen}\"\n{}\n{scope}", more.replace("HERE", &place.path("")));
        fs_err::write(place.path("forgeyard.toml"), text).unwrap();
        place
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// A command with the folder and the configuration of the farm.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("cache").args(arguments);
        command.args(["--data", &self.path("data"), "--config", &self.path("forgeyard.toml")]);
        for name in ["FORGEYARD_CACHE_URL", "FORGEYARD_CACHE_TOKEN", "SSL_CERT_FILE"] {
            command.env_remove(name);
        }
        command
    }

    /// Writes a token for main into the file `token`.
    fn token(&self) -> String {
        let made = good(self.command(&["token", "iree/main"]).output().unwrap());
        fs_err::write(self.path("token"), made).unwrap();
        self.path("token")
    }
}

const TLS: &str = "[cache.tls]\ncertificate = \"HEREchain.pem\"\nkey = \"HEREkey.pem\"\n";

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// What a command that went well wrote to standard output.
fn good(output: Output) -> String {
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// A cache that runs, and where: by TLS, and without it.
struct Cache {
    child: Child,
    address: String,
    local: String,
}

impl Cache {
    fn start(place: &Place) -> Self {
        let mut child = place.command(&["run"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut after = |begin: &str| {
            let line = lines.next().expect("it says where it listens");
            let rest = line.split_once(begin).unwrap_or_else(|| panic!("{line}")).1;
            rest.split('/').next().unwrap().to_owned()
        };
        let port = after("https://127.0.0.1:");
        let local = after("http://");
        Self { child, address: format!("https://localhost:{port}"), local: format!("http://{local}") }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn commands_find_the_cache_on_its_host_by_the_configuration_and_elsewhere_by_its_authority() {
    let local = free();
    let place = Place::new("127.0.0.1:0", &format!("local-listen = \"127.0.0.1:{local}\"\n{TLS}"));
    let cache = Cache::start(&place);
    assert_eq!(cache.local, format!("http://127.0.0.1:{local}"));
    assert!(good(place.command(&["stat"]).output().unwrap()).contains("nothing was asked"));
    let elsewhere = ["stat", "--cache", &cache.address, "--ca-file", &place.path("ca.pem")];
    assert!(good(place.command(&elsewhere).output().unwrap()).contains("nothing was asked"));
    let said = place.command(&elsewhere[..3]).output().unwrap();
    assert!(!said.status.success() && text(&said).contains("certificate"), "{}", text(&said));
    let said = place.command(&["stat", "--cache", &cache.address.replace("https", "http")]).output().unwrap();
    assert!(!said.status.success() && text(&said).contains("this port speaks TLS"), "{}", text(&said));
}

/// ccache 4.7 speaks HTTP alone; the relay speaks TLS for it.
#[test]
fn client_without_tls_builds_by_the_relay_with_a_private_authority() {
    if Command::new("ccache").arg("--version").output().is_err() {
        println!("SKIPPED: ccache is not installed (scripts/install-clients.sh)");
        return;
    }
    let place = Place::new("127.0.0.1:0", TLS);
    let cache = Cache::start(&place);
    let token = place.token();
    fs_err::write(place.path("part.c"), "int part(void) { return 1; }\n").unwrap();
    let build = |name: &str, arguments: &[&str], trusted: Option<&str>| {
        let mut command = Command::new(PROGRAM);
        command.args(["cache", "relay", "--cache", &cache.address, "--token-file", &token]).args(arguments);
        command.args(["--", "ccache", "gcc", "-c", &place.path("part.c"), "-o", &place.path("part.o")]);
        command.env("CCACHE_DIR", place.path(name)).env_remove("SSL_CERT_FILE");
        if let Some(trusted) = trusted {
            command.env("SSL_CERT_FILE", trusted);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    let ca = place.path("ca.pem");
    let cold = build("cold", &["--ca-file", &ca], None);
    assert!(cold.contains("0 of 2 reads hit, 2 entries stored"), "{cold}");
    let warm = build("warm", &["--ca-file", &ca], None);
    assert!(warm.contains("2 of 2 reads hit"), "{warm}");
    // as the system's own authorities are, which is what the agent of a machine goes by
    let warm = build("system", &[], Some(&ca));
    assert!(warm.contains("2 of 2 reads hit"), "{warm}");
    // a cache that is not trusted is a cache that is not there
    let alone = build("alone", &[], None);
    assert!(alone.contains("0 entries stored") && alone.contains("requests without the cache"), "{alone}");
}

#[test]
fn ccache_reaches_the_cache_by_its_storage_helper_and_tls() {
    let clients =
        std::env::var_os("FORGEYARD_CLIENTS").map_or_else(|| "/opt/forgeyard/clients".into(), PathBuf::from);
    let found = [clients.join("ccache/bin/ccache"), PathBuf::from("ccache")].into_iter().find(|program| {
        let version = Command::new(program).arg("--version").output();
        version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("crsh-storage"))
    });
    let Some(ccache) = found else {
        println!("SKIPPED: no ccache with storage helpers is installed (scripts/install-clients.sh)");
        return;
    };
    let place = Place::new("127.0.0.1:0", TLS);
    let cache = Cache::start(&place);
    let token = place.token();
    fs_err::write(place.path("part.c"), "int part(void) { return 1; }\n").unwrap();
    for folder in ["bin", "run"] {
        fs_err::create_dir(place.path(folder)).unwrap();
    }
    std::os::unix::fs::symlink(PROGRAM, place.path("bin/ccache-storage-forgeyard")).unwrap();
    let search = format!("{}:{}", place.path("bin"), std::env::var("PATH").unwrap());
    let host = cache.address.replace("https://", "");
    let storage = format!(
        "forgeyard://{host}/iree/main @tls=true @ca-file={} @bearer-token-file={token} idle-timeout=1s",
        place.path("ca.pem")
    );
    for local in ["first", "second"] {
        let mut command = Command::new(&ccache);
        command.env("PATH", &search).env("CCACHE_DIR", place.path(local)).env("CCACHE_REMOTE_ONLY", "true");
        command.env("XDG_RUNTIME_DIR", place.path("run")).env("CCACHE_TEMPDIR", place.path("run"));
        command.env("CCACHE_REMOTE_STORAGE", &storage);
        command.args(["gcc", "-c", &place.path("part.c"), "-o", &place.path("part.o")]);
        good(command.output().unwrap());
    }
    let said = good(place.command(&["stat", "--json", "--cache", &cache.local]).output().unwrap());
    let stat: serde_json::Value = serde_json::from_str(&said).unwrap();
    let traffic = &stat["traffic"][0];
    assert_eq!((traffic["hits"].as_u64(), traffic["writes"].as_u64()), (Some(2), Some(2)), "{stat}");
}

/// The commands of the page, as they stand there.
#[test]
fn authority_of_your_own_is_made_by_the_commands_of_the_page() {
    let page = include_str!("../../../docs/cache.md");
    let after = page.split_once("From an authority of your own").unwrap().1;
    let block = after.split_once("```sh\n").unwrap().1.split_once("```").unwrap().0;
    assert!(block.contains("openssl x509"), "{block}");
    let place = Place::new("127.0.0.1:0", TLS);
    let script = block
        .replace("/etc/forgeyard/tls", &place.path(""))
        .replace("DNS:cache.example.org", "DNS:localhost");
    good(Command::new("sh").args(["-euc", &script]).output().unwrap());
    let cache = Cache::start(&place);
    let elsewhere = ["stat", "--cache", &cache.address, "--ca-file", &place.path("ca.pem")];
    assert!(good(place.command(&elsewhere).output().unwrap()).contains("nothing was asked"));
}

#[test]
fn files_that_are_of_no_use_are_refused_at_the_start_with_what_to_do() {
    let place = Place::new("127.0.0.1:0", TLS);
    let start = || {
        let said = place.command(&["run"]).output().unwrap();
        assert_eq!(said.status.code(), Some(2), "{}", text(&said));
        text(&said)
    };
    fs_err::write(place.path("key.pem"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let said = start();
    assert!(
        said.contains("key.pem does not belong") && said.contains("fix:") && said.contains("[cache.tls]"),
        "{said}"
    );
    fs_err::remove_file(place.path("chain.pem")).unwrap();
    let said = start();
    assert!(said.contains("chain.pem") && said.contains("may read"), "{said}");
}

#[test]
fn cache_that_others_reach_without_tls_is_warned_of() {
    let place = Place::new("0.0.0.0:0", "");
    let mut child = place.command(&["run"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let said = lines.find(|line| line.starts_with("warning: "));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said.is_some_and(|said| said.contains("0.0.0.0:0 without TLS")));
}
