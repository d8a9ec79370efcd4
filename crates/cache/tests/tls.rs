//! The listener by TLS, with real clients: curl, sccache over WebDAV, Nix, Bazel over gRPC, and the storage helper of ccache. Each
//! is skipped, visibly, where it is not installed (`scripts/install-clients.sh`). The certificate is made here, by an authority of the
//! test's own that no system trusts. The relay is shown in `crates/forgeyard/tests/cache_tls.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::service::{Options, Running, start};
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::tls::TlsOptions;
use forgeyard_cache::token::Access;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;
use support::nix::{good, text};
use support::programs::find;
use support::{Client, options, token};

/// An authority that signs certificates for `localhost` and the loopback address, and a folder for files.
struct Authority {
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let key = KeyPair::generate().unwrap();
        fs_err::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let made = Self { folder, issuer: Issuer::new(params, key) };
        made.renew();
        made
    }

    /// Writes a new certificate and its key, each as a whole.
    fn renew(&self) {
        let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "cache");
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        for (name, text) in [("chain.pem", certificate.pem()), ("key.pem", key.serialize_pem())] {
            fs_err::write(self.file("new"), text).unwrap();
            fs_err::rename(self.file("new"), self.file(name)).unwrap();
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ca(&self) -> PathBuf {
        self.file("ca.pem")
    }

    fn options(&self) -> Options {
        let tls = TlsOptions {
            local: Some("127.0.0.1:0".parse().unwrap()),
            ..TlsOptions::new(self.file("chain.pem"), self.file("key.pem"))
        };
        Options { tls: Some(tls), ..options(self.folder.path(), Durability::PageCache) }
    }

    fn service(&self) -> Running {
        start(self.options()).unwrap()
    }

    /// curl, which trusts this authority.
    fn curl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("curl");
        command.args(["-sS", "--fail-with-body", "--max-time", "60", "--cacert"]).arg(self.ca());
        command.args(arguments).output().unwrap()
    }
}

/// Bytes that do not repeat.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[test]
fn curl_writes_a_large_entry_and_reads_a_range_of_it_over_http_1_1() {
    if find("curl").is_none() {
        return;
    }
    let authority = Authority::new();
    let running = authority.service();
    let content = noise(8 << 20);
    let file = authority.file("content");
    fs_err::write(&file, &content).unwrap();
    let url = format!("https://localhost:{}/p/main/-/kv/large", running.address.port());
    let bearer = format!("Authorization: Bearer {}", token("p/main", Access::Write));
    let file = file.display().to_string();
    good(&authority.curl(&["-H", &bearer, "-T", &file, &url]));
    // twice: the second time pieces are sent as they lie in the file
    for _ in 0..2 {
        assert!(authority.curl(&[&url]).stdout == content);
    }
    let out = authority.curl(&["-r", "1000000-7000000", "-w", "%{stderr}%{http_version} %{http_code}", &url]);
    assert!(out.stdout == content[1_000_000..=7_000_000]);
    // curl offers HTTP/2 first; that is for clients of the Remote Execution API
    assert_eq!(String::from_utf8_lossy(&out.stderr), "1.1 206");
    // a small one, and one connection for several requests
    let small = format!("https://127.0.0.1:{}/p/main/-/kv/small", running.address.port());
    good(&authority.curl(&["-H", &bearer, "-X", "PUT", "--data-binary", "small", &small]));
    let out = authority.curl(&["-w", "%{stderr}%{num_connects} ", &small, &small, &small]);
    assert_eq!(
        (text(&out).as_str(), out.stdout.as_slice()),
        ("smallsmallsmall1 0 0 ", &b"smallsmallsmall"[..])
    );
    // whoever does not know the authority does not go on
    let out = Command::new("curl").args(["-sS", &small]).output().unwrap();
    assert!(!out.status.success() && text(&out).contains("certificate"), "{}", text(&out));
    // the same entries without TLS, for programs of this host
    let mut local = Client::new(running.local.unwrap());
    assert_eq!(local.ask("GET", "/p/main/-/kv/small", None, None).body, b"small");
    running.stop().unwrap();
}

#[test]
fn client_without_tls_is_told_to_speak_it() {
    let authority = Authority::new();
    let running = authority.service();
    let mut client = Client::new(running.address);
    let answer = client.ask("GET", "/p/main/-/kv/x", None, None);
    assert_eq!(answer.status, 400);
    assert!(String::from_utf8_lossy(&answer.body).contains("this port speaks TLS"));
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0, "and the connection ends");
    running.stop().unwrap();
}

#[test]
fn silent_and_slow_clients_in_the_handshake_are_ended_and_hold_nobody_up() {
    let authority = Authority::new();
    let mut options = authority.options();
    options.threads = 1;
    options.tls.as_mut().unwrap().handshake = Duration::from_millis(300);
    let running = start(options).unwrap();
    let mut silent = TcpStream::connect(running.address).unwrap();
    let mut slow = TcpStream::connect(running.address).unwrap();
    slow.write_all(&[22, 3, 1]).unwrap();
    for stream in [&mut silent, &mut slow] {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    let url = format!("https://localhost:{}/-/kv/x", running.address.port());
    let out = authority.curl(&["-w", "%{http_code}", &url]);
    assert!(text(&out).contains("404"), "{}", text(&out));
    running.stop().unwrap();
}
