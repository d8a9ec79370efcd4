//! GitHub's official clients by TLS: against the cache's own listener, and by the way of `docs/cache-github.md` that needs no setting of a
//! runner: the name of GitHub's service leads to a real nginx with the configuration of that page, by `/etc/hosts` of a namespace.
//! Behind it are the cache and a *simulated* GitHub; tokens are made by a *simulated issuer*. What is not installed or not allowed is
//! skipped, visibly (`scripts/install-clients.sh`; namespaces need root).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::Stat;
use forgeyard_cache::identity::policy::IssuerKind;
use forgeyard_cache::service::{Options, start};
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::token::Access;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::issuer::{Simulated, issuer};
use support::node::{Node, result};
use support::programs::look;
use support::tls::Authority;
use support::{Client, options, runtime_token, token, write_authority};

/// The name of GitHub's service, as the page has it.
const NAME: &str = "results-receiver.actions.githubusercontent.com";

/// Runs a script, as an action would, and answers with its result.
fn run(node: &Node, workspace: &Path, url: &str, token: &str, ca: &str, arguments: &[&str]) -> Value {
    let mut command = node.action(workspace, url, token, arguments);
    result(&command.env("NODE_EXTRA_CA_CERTS", ca).output().unwrap()).0
}

/// Saves a file of three megabytes, and restores it elsewhere.
fn saves_and_restores(node: &Node, url: &str, token: &str, ca: &str) {
    let made = tempfile::tempdir().unwrap();
    fs_err::create_dir_all(made.path().join("out")).unwrap();
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs_err::write(made.path().join("out/file"), &content).unwrap();
    let id = run(node, made.path(), url, token, ca, &["cache.mjs", "save", "k", "out"]);
    assert!(id.as_i64().is_some_and(|id| id > 0), "{id}");
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(run(node, empty.path(), url, token, ca, &["cache.mjs", "restore", "k", "out"]), "k");
    assert!(fs_err::read(empty.path().join("out/file")).unwrap() == content);
}

fn writes(address: SocketAddr, scope: &str) -> u64 {
    let admin = token("admin", Access::Admin);
    let stat = Client::new(address).ask("GET", "/-/admin/stat", Some(&admin), None).body;
    let stat: Stat = serde_json::from_slice(&stat).unwrap();
    stat.traffic
        .iter()
        .filter(|one| one.scope == scope && one.surface == "github")
        .map(|one| one.writes)
        .sum()
}

#[test]
fn official_cache_client_saves_and_restores_by_tls() {
    let Some(node) = Node::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(&folder.path().join("tls"));
    let running = authority.service(folder.path());
    let url = format!("https://localhost:{}/", running.address.port());
    saves_and_restores(&node, &url, &runtime_token("p/main", Access::Write), &authority.ca());
    assert_eq!(writes(running.local.unwrap(), "p/main"), 1);
    running.stop().unwrap();
}

/// A *simulated* GitHub: by TLS, it knows no artifact, and remembers what it was asked, with the host.
struct Github {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Github {
    fn start(authority: &Authority) -> Self {
        let chain = vec![CertificateDer::from_pem_file(authority.file("github.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(authority.file("github.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = Arc::new(builder.with_single_cert(chain, key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, asked) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let said = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let tls = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut stream = rustls::StreamOwned::new(tls, stream);
                let mut request = Vec::new();
                let mut buffer = [0; 16 << 10];
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    match stream.read(&mut buffer) {
                        Ok(read) if read > 0 => request.extend_from_slice(&buffer[..read]),
                        _ => break,
                    }
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let line = request.lines().next().unwrap_or_default();
                let host = request.lines().find(|line| line.starts_with("Host: ")).unwrap_or_default();
                said.lock().unwrap().push(format!("{line} {host}"));
                let body = "{\"artifacts\":[]}";
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all((head + body).as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        Self { address, asked }
    }
}

/// The configuration of nginx that stands on the page.
fn of_the_page() -> String {
    let page = include_str!("../../../docs/cache-github.md");
    page.split_once("```nginx\n").unwrap().1.split_once("```").unwrap().0.to_owned()
}

/// nginx with this configuration of its server; it ends with the test.
struct Nginx(Child);

impl Nginx {
    fn start(program: &Path, folder: &Path, server: &str) -> Self {
        let place = folder.display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("{kind}_temp_path {place}/{kind};\n"))
            .collect();
        let text = format!(
            "daemon off;\nuser root;\npid {place}/nginx.pid;\nerror_log stderr warn;\nevents {{}}\n\
             http {{\naccess_log off;\n{temporary}{server}\n}}\n"
        );
        fs_err::write(folder.join("nginx.conf"), text).unwrap();
        let mut command = Command::new(program);
        command.arg("-p").arg(folder).arg("-c").arg(folder.join("nginx.conf")).args(["-e", "stderr"]);
        let nginx = Self(command.spawn().unwrap());
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect("127.0.0.1:443").is_err() {
            assert!(Instant::now() < deadline, "nginx does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // its workers end with it when it is asked, and not when it is killed
        let _ = Command::new("kill").args(["-QUIT", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

/// A network and an `/etc/hosts` of this thread's own, and of what it starts. Why not, where that is not allowed.
fn apart(hosts: &Path) -> Result<(), String> {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("namespaces: {error}"))?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).map_err(|error| error.to_string())?;
    mount(Some(hosts), "/etc/hosts", none, MsFlags::MS_BIND, none).map_err(|error| error.to_string())?;
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    up.is_ok_and(|status| status.success()).then_some(()).ok_or_else(|| "`ip link` does not work".to_owned())
}

/// In a thread of its own: it does not come back from its namespaces, and all threads and programs that it starts are in them.
#[test]
fn githubs_name_leads_to_the_cache_by_a_resolver_and_an_authority_of_the_image() {
    let (Some(node), Some(nginx)) = (Node::find(), look("nginx").or_else(look_for_nginx)) else {
        println!("SKIPPED: nginx or node is not installed (scripts/install-clients.sh)");
        return;
    };
    let done = std::thread::spawn(move || by_name(&node, &nginx)).join();
    if let Err(panic) = done {
        std::panic::resume_unwind(panic);
    }
}

/// Debian's is not in everybody's PATH.
fn look_for_nginx() -> Option<PathBuf> {
    Some(PathBuf::from("/usr/sbin/nginx")).filter(|path| path.is_file())
}

fn by_name(node: &Node, nginx: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    fs_err::write(&hosts, format!("127.0.0.1 localhost\n127.0.0.1 {NAME}\n")).unwrap();
    if let Err(reason) = apart(&hosts) {
        println!("SKIPPED: a network of its own is not allowed here, which needs root ({reason})");
        return;
    }
    let authority = Authority::new(&folder.path().join("tls"));
    authority.sign(&[NAME], "proxy.pem", "proxy.key");
    authority.sign(&[NAME], "github.pem", "github.key");
    let (simulated, github) = (Simulated::start(), Github::start(&authority));
    let listen = SocketAddr::from(([127, 0, 0, 1], 8421));
    let options = options(folder.path(), Durability::PageCache);
    write_authority(&options.authority, |snapshot| {
        snapshot.issuers = vec![issuer(IssuerKind::GithubRuntime, &simulated)];
    });
    let running = start(Options { listen, ..options }).unwrap();

    // the page, with other files and another GitHub
    let mut server = of_the_page();
    for (from, to) in [
        ("/etc/forgeyard/results/chain.pem".to_owned(), authority.file("proxy.pem").display().to_string()),
        ("/etc/forgeyard/results/key.pem".to_owned(), authority.file("proxy.key").display().to_string()),
        ("/etc/ssl/certs/ca-certificates.crt".to_owned(), authority.ca()),
        (format!("server {NAME}:443;"), format!("server {};", github.address)),
    ] {
        assert!(server.contains(&from), "the page has no {from}");
        server = server.replace(&from, &to);
    }
    let nginx = Nginx::start(nginx, folder.path(), &server);

    let claims = serde_json::json!({
        "iss": simulated.url, "exp": support::NOW / 1_000_000 + 3600, "repository_id": "100",
        "ac": "[{\"Scope\":\"refs/pull/9/merge\",\"Permission\":3},{\"Scope\":\"refs/heads/main\",\"Permission\":1}]",
        "scp": "Actions.Results:ce7f54c7-61c7-4aae-887f-30da475f5f1a:ca395085-040a-526b-2ce8-bdc85f692774",
    });
    let token = simulated.sign("first", "first", &claims);
    let (url, ca) = (format!("https://{NAME}/"), authority.ca());
    saves_and_restores(node, &url, &token, &ca);
    assert_eq!(writes(listen, "p/pr/9"), 1, "the scope of the pull request");
    assert_eq!(*github.asked.lock().unwrap(), Vec::<String>::new(), "nothing of it came to GitHub");

    let listed = run(node, folder.path(), &url, &token, &ca, &["artifact.mjs", "list"]);
    assert_eq!(listed, serde_json::json!({"artifacts": []}));
    let asked = github.asked.lock().unwrap().join("\n");
    assert!(
        asked.contains("ArtifactService/ListArtifacts") && asked.contains(&format!("Host: {NAME}")),
        "artifacts stay at GitHub: {asked}"
    );
    drop(nginx);
    running.stop().unwrap();
}
