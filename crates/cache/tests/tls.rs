//! The listener by TLS, with real clients: curl, sccache over WebDAV, Nix, and Bazel over gRPC. Each is skipped, visibly, where it is
//! not installed (`scripts/install-clients.sh`). The certificate is made here, by an authority of the test's own that no system
//! trusts. Some of `http.rs` goes by TLS too; the relay and the storage helper of ccache are in
//! `crates/forgeyard/tests/cache/tls.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::Stat;
use forgeyard_cache::figures::Counted;
use forgeyard_cache::service::{Running, start};
use forgeyard_cache::token::Access;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::nix::{Nix, good, text};
use support::programs::{find, look};
use support::tls::{Authority, config, connect, connection};
use support::{Client, token};

/// A service that speaks TLS, and its authority.
fn secure(folder: &Path) -> (Authority, Running) {
    let authority = Authority::new(&folder.join("tls"));
    let running = authority.service(folder);
    (authority, running)
}

/// curl, which trusts this authority.
fn curl(authority: &Authority, arguments: &[&str]) -> Output {
    let mut command = Command::new("curl");
    command.args(["-sS", "--fail-with-body", "--max-time", "60", "--cacert", &authority.ca()]);
    command.args(arguments).output().unwrap()
}

/// What was counted, asked for without TLS.
fn counted(running: &Running, scope: &str, surface: &str) -> Counted {
    let admin = token("admin", Access::Admin);
    let body = Client::new(running.local.unwrap()).ask("GET", "/-/admin/stat", Some(&admin), None).body;
    let stat: Stat = serde_json::from_slice(&body).unwrap();
    let found = stat.traffic.into_iter().find(|one| one.scope == scope && one.surface == surface);
    found.unwrap_or_else(|| panic!("nothing was counted for {scope} on {surface}"))
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
    let folder = tempfile::tempdir().unwrap();
    let (authority, running) = secure(folder.path());
    let content = noise(8 << 20);
    let file = authority.file("content");
    fs_err::write(&file, &content).unwrap();
    let url = format!("https://localhost:{}/p/main/-/kv/large", running.address.port());
    let bearer = format!("Authorization: Bearer {}", token("p/main", Access::Write));
    good(&curl(&authority, &["-H", &bearer, "-T", &file.display().to_string(), &url]));
    // twice: the second time pieces are sent as they lie in the file
    for _ in 0..2 {
        assert!(curl(&authority, &[&url]).stdout == content);
    }
    let range = ["-r", "1000000-7000000", "-w", "%{stderr}%{http_version} %{http_code}", &url];
    let out = curl(&authority, &range);
    assert!(out.stdout == content[1_000_000..=7_000_000]);
    // curl offers HTTP/2 first; that is for clients of the Remote Execution API
    assert_eq!(String::from_utf8_lossy(&out.stderr), "1.1 206");
    // a small one, and one connection for several requests
    let small = format!("https://127.0.0.1:{}/p/main/-/kv/small", running.address.port());
    good(&curl(&authority, &["-H", &bearer, "-X", "PUT", "--data-binary", "small", &small]));
    let out = curl(&authority, &["-w", "%{stderr}%{num_connects} ", &small, &small, &small]);
    assert_eq!(text(&out), "smallsmallsmall1 0 0 ");
    // whoever does not know the authority does not go on
    let out = Command::new("curl").args(["-sS", &small]).output().unwrap();
    assert!(!out.status.success() && text(&out).contains("certificate"), "{}", text(&out));
    // the same entries without TLS, for programs of this host
    let mut local = Client::new(running.local.unwrap());
    assert_eq!(local.ask("GET", "/p/main/-/kv/small", None, None).body, b"small");
    running.stop().unwrap();
}

/// GitHub's services make addresses, which have to be https for whoever came by it.
#[test]
fn addresses_that_are_made_for_a_client_of_tls_are_https() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, running) = secure(folder.path());
    let made = |client: &mut Client, key: &str| {
        let body = format!("{{\"key\":\"{key}\",\"version\":\"{}\"}}", "a".repeat(64));
        let token = support::runtime_token("p/main", Access::Write);
        let head = format!(
            "POST /twirp/github.actions.results.api.v1.CacheService/CreateCacheEntry HTTP/1.1\r\nHost: cache\r\n\
             Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        client.send(head.as_bytes());
        String::from_utf8(client.answer(false).body).unwrap()
    };
    let tls = connection(&authority.file("ca.pem"), &[b"http/1.1"]);
    let said = made(&mut Client::by(running.address, tls), "one");
    assert!(said.contains("\"https://cache/"), "{said}");
    let said = made(&mut Client::new(running.local.unwrap()), "two");
    assert!(said.contains("\"http://cache/"), "{said}");
    running.stop().unwrap();
}

#[test]
fn client_without_tls_is_told_to_speak_it() {
    let folder = tempfile::tempdir().unwrap();
    let (_authority, running) = secure(folder.path());
    let mut client = Client::new(running.address);
    let answer = client.ask("GET", "/p/main/-/kv/x", None, None);
    assert_eq!(answer.status, 400);
    assert!(String::from_utf8_lossy(&answer.body).contains("this port speaks TLS"));
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0, "and the connection ends");
    running.stop().unwrap();
}

#[test]
fn silent_and_slow_clients_in_the_handshake_are_ended_and_hold_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(&folder.path().join("tls"));
    let mut options = authority.options(folder.path());
    options.threads = 1;
    options.tls.as_mut().unwrap().handshake = Duration::from_secs(2);
    let running = start(options).unwrap();
    let mut silent = TcpStream::connect(running.address).unwrap();
    let mut slow = TcpStream::connect(running.address).unwrap();
    slow.write_all(&[22, 3, 1]).unwrap();
    for stream in [&mut silent, &mut slow] {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    let tls = connection(&authority.file("ca.pem"), &[]);
    assert_eq!(Client::by(running.address, tls).ask("GET", "/-/kv/x", None, None).status, 404);
    running.stop().unwrap();
}

/// What certbot and others do: new files, and nobody is told.
#[test]
fn renewed_certificate_is_used_for_new_connections_and_open_ones_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, running) = secure(folder.path());
    let ca = authority.file("ca.pem");
    let mut open = Client::by(running.address, connection(&ca, &[]));
    assert_eq!(open.ask("GET", "/-/kv/x", None, None).status, 404);
    // the certificate that a new connection is shown
    let shown = || {
        let mut tls = connection(&ca, &[]);
        let mut stream = TcpStream::connect(running.address).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).unwrap();
        }
        tls.peer_certificates().unwrap()[0].to_vec()
    };
    let renewed = authority.sign(&["localhost", "127.0.0.1"], "chain.pem", "key.pem");
    let end = Instant::now() + Duration::from_secs(60);
    while shown() != renewed {
        assert!(Instant::now() < end, "the old one is still used");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(open.ask("GET", "/-/kv/x", None, None).status, 404);
    running.stop().unwrap();
}

#[test]
fn http_2_is_for_clients_that_offer_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, running) = secure(folder.path());
    let chosen = |protocols: &[&[u8]]| {
        let mut tls = connection(&authority.file("ca.pem"), protocols);
        let mut stream = TcpStream::connect(running.address).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).unwrap();
        }
        tls.alpn_protocol().map(<[u8]>::to_vec)
    };
    assert_eq!(chosen(&[b"h2", b"http/1.1"]).as_deref(), Some(&b"http/1.1"[..]));
    assert_eq!(chosen(&[b"h2"]).as_deref(), Some(&b"h2"[..]));
    assert_eq!(chosen(&[]), None);
    running.stop().unwrap();
}

/// Each compiler of a build may be a client of its own.
#[test]
fn client_that_comes_again_resumes_its_session() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, running) = secure(folder.path());
    let config = config(&authority.file("ca.pem"), &[]);
    for kind in [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed] {
        let mut client = Client::by(running.address, connect(&config));
        assert_eq!(client.ask("GET", "/-/kv/x", None, None).status, 404);
        assert_eq!(client.handshake(), Some(kind));
    }
    running.stop().unwrap();
}

#[test]
fn sccache_builds_over_webdav_by_tls_cold_and_warm() {
    let Some(sccache) = find("sccache") else { return };
    let (folder, tree) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (authority, running) = secure(folder.path());
    fs_err::write(tree.path().join("part.c"), "#include <stdio.h>\nint part(void) { return puts(\"x\"); }\n")
        .unwrap();
    fs_err::write(tree.path().join("part.rs"), "pub fn part() -> usize { std::env::args().count() }\n")
        .unwrap();
    let endpoint = format!("https://localhost:{}/p/main/-/dav/", running.address.port());
    let build = || {
        let run = tempfile::tempdir().unwrap();
        let command = || {
            let mut command = Command::new(&sccache);
            command.current_dir(tree.path()).env("SCCACHE_SERVER_UDS", run.path().join("socket"));
            command.env("SCCACHE_DIR", run.path()).env("SSL_CERT_FILE", authority.ca());
            command.env("SCCACHE_WEBDAV_ENDPOINT", &endpoint);
            command.env("SCCACHE_WEBDAV_TOKEN", token("p/main", Access::Write));
            command
        };
        let out = run.path().join("part.o");
        good(&command().args(["gcc", "-O1", "-c", "part.c", "-o"]).arg(&out).output().unwrap());
        let mut rustc = command();
        rustc.args(["rustc", "--edition=2021", "--crate-type=lib", "--emit=link,dep-info", "part.rs"]);
        good(&rustc.args(["--crate-name", "part", "--out-dir"]).arg(run.path()).output().unwrap());
        good(&command().arg("--stop-server").output().unwrap());
    };
    build();
    let cold = counted(&running, "p/main", "dav");
    assert_eq!((cold.hits, cold.writes), (0, 2), "{cold:?}");
    build();
    let warm = counted(&running, "p/main", "dav");
    assert_eq!((warm.hits, warm.writes), (2, 2), "{warm:?}");
    running.stop().unwrap();
}

#[rstest::rstest]
#[case::of_bookworm("")]
#[case::of_trixie("-2.26")]
fn nix_copies_to_a_scope_by_tls_and_another_store_reads_it(#[case] version: &str) {
    let Some(nix) = Nix::find(version) else { return };
    let (folder, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (authority, running) = secure(folder.path());
    let cache = format!("https://127.0.0.1:{}/p/main/-/nix", running.address.port());
    let trusting = |name: &str, token: Option<&str>| {
        let mut place = nix.place(run.path(), name, token);
        place.ca = Some(authority.file("ca.pem"));
        place
    };
    let first = trusting("first", Some(&token("p/main", Access::Write)));
    let source = run.path().join("some-source");
    fs_err::create_dir_all(&source).unwrap();
    fs_err::write(source.join("file"), noise(2_000_000)).unwrap();
    let added = first.nix(&["store", "add-path", &source.display().to_string()]);
    good(&added);
    let path = String::from_utf8(added.stdout).unwrap().trim().to_owned();
    good(&first.nix(&["copy", "--to", &cache, &path]));
    assert_eq!(counted(&running, "p/main", "nix").writes, 2);
    let stranger = nix.place(run.path(), "stranger", None);
    let refused = stranger.nix(&["copy", "--no-check-sigs", "--from", &cache, &path]);
    assert!(!refused.status.success(), "nobody told it of the authority");
    let reader = trusting("reader", None);
    good(&reader.nix(&["copy", "--no-check-sigs", "--from", &cache, &path]));
    good(&reader.nix(&["path-info", &path]));
    running.stop().unwrap();
}

#[cfg(feature = "grpc")]
#[test]
fn bazel_over_grpcs_builds_cold_and_as_a_fork_and_warm_over_https() {
    let Some(bazel) = look("bazel") else {
        println!("SKIPPED: bazel is not installed (scripts/install-clients.sh --bazel)");
        return;
    };
    // without this library the Bazel of Debian has no TLS that gRPC can use; it wants another name than Debian gives it
    let library = Path::new("/usr/lib/x86_64-linux-gnu/jni/libnetty-tcnative.so");
    if !library.is_file() {
        println!("SKIPPED: libnetty-tcnative-jni is not installed (scripts/install-clients.sh --bazel)");
        return;
    }
    let (folder, libraries) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs_err::copy(library, libraries.path().join("libnetty_tcnative.so")).unwrap();
    let (authority, running) = secure(folder.path());
    let (port, store) = (running.address.port(), authority.file("trusted.p12").display().to_string());
    let mut keytool = Command::new("keytool");
    keytool.args(["-importcert", "-noprompt", "-storepass", "changeit", "-file", &authority.ca()]);
    good(&keytool.args(["-keystore", &store]).output().unwrap());
    let build = |token: &str, remote: &str| {
        let run = tempfile::tempdir().unwrap();
        let workspace = run.path().join("workspace");
        fs_err::create_dir_all(&workspace).unwrap();
        fs_err::write(workspace.join("WORKSPACE"), "").unwrap();
        // larger than a batch, so that it goes by ByteStream
        let rule = "genrule(name = \"r\", outs = [\"r.txt\"], cmd = \"seq 1 900000 > $@\")\n";
        fs_err::write(workspace.join("BUILD"), rule).unwrap();
        let mut command = Command::new(&bazel);
        command.current_dir(&workspace).env("HOME", run.path()).arg("--batch");
        command.arg(format!("--output_user_root={}", run.path().join("root").display()));
        // over HTTP Java's own TLS does, and what it trusts
        let java = match remote.starts_with("grpcs") {
            true => vec![format!("-Djava.library.path={}", libraries.path().display())],
            false => vec![
                format!("-Djavax.net.ssl.trustStore={store}"),
                "-Djavax.net.ssl.trustStorePassword=changeit".to_owned(),
            ],
        };
        command.args(java.iter().map(|option| format!("--host_jvm_args={option}")));
        command.args(["build", "--color=no", "--curses=no", "--remote_timeout=20"]);
        command.arg(format!("--remote_cache={}", remote.replace("TOKEN", token)));
        command.arg("--remote_instance_name=p/main").arg(format!("--tls_certificate={}", authority.ca()));
        let output = command.arg("//:r").stdin(Stdio::null()).output().unwrap();
        let _ = Command::new("chmod").args(["-R", "u+w"]).arg(run.path()).output();
        good(&output);
        text(&output)
    };
    let main = token("p/main", Access::Write);
    let remote = format!("grpcs://anybody:TOKEN@localhost:{port}");
    let said = build(&main, &remote);
    assert!(!said.contains("WARNING"), "{said}");
    let cold = counted(&running, "p/main", "reapi");
    assert!(
        cold.writes >= 4 && cold.malformed == 0,
        "the action and its command, a result and a file: {cold:?}"
    );
    // the same over HTTP
    let http = format!("https://anybody:TOKEN@localhost:{port}/p/main/-/bazel");
    for (token, remote) in [(token("p/pr/7", Access::Write), &remote), (main, &http)] {
        let said = build(&token, remote);
        assert!(said.contains("1 remote cache hit"), "{said}");
    }
    running.stop().unwrap();
}
