//! A real S3-compatible server (SeaweedFS), and a proxy in front of it whose *faults are simulated*.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use crate::support::programs;
use rusty_s3::{Bucket, Credentials, S3Action as _, UrlStyle};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const KEY: &str = "test-key";
pub const SECRET: &str = "test-secret";
pub const BUCKET: &str = "farm";

/// The server. Stopped when it goes.
pub struct S3 {
    child: Child,
    pub address: SocketAddr,
    folder: tempfile::TempDir,
}

/// The program, where `scripts/install-clients.sh` puts it.
fn program() -> Option<PathBuf> {
    let installed = programs::clients().join("s3/bin/weed");
    if installed.exists() { Some(installed) } else { programs::look("weed") }
}

/// Ports that nobody has; its gRPC ports are ten thousand higher.
fn ports() -> Vec<u16> {
    let mut ports = Vec::new();
    while ports.len() < 4 {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let higher = port.checked_add(10_000);
        let port = if higher.is_some() { port } else { port - 20_000 };
        let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if !ports.contains(&port) && free(port) && free(port + 10_000) {
            ports.push(port);
        }
    }
    ports
}

impl S3 {
    /// Starts it with an empty bucket; nothing where it is not installed.
    pub fn start() -> Option<Self> {
        let Some(program) = program() else {
            println!("SKIPPED: no S3-compatible server is installed (scripts/install-clients.sh)");
            return None;
        };
        for _ in 0..3 {
            if let Some(server) = Self::try_start(&program) {
                return Some(server);
            }
        }
        panic!("the S3-compatible server does not start");
    }

    fn try_start(program: &PathBuf) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let identities = serde_json::json!({"identities": [{
            "name": "test", "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }]});
        let config = folder.path().join("s3.json");
        fs_err::write(&config, identities.to_string()).unwrap();
        fs_err::create_dir(folder.path().join("data")).unwrap();
        let ports = ports();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let child = Command::new(program)
            .arg("server")
            .arg(format!("-dir={}", folder.path().join("data").display()))
            .args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", "-volume.max=40"])
            .args(["-master.volumeSizeLimitMB=64", "-volume.preStopSeconds=0"])
            .args(["-s3.port.iceberg=0", "-s3.port.lance=0"])
            .arg(format!("-master.port={}", ports[0]))
            .arg(format!("-volume.port={}", ports[1]))
            .arg(format!("-filer.port={}", ports[2]))
            .arg(format!("-s3.port={}", ports[3]))
            .arg(format!("-s3.config={}", config.display()))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = Self { child, address: SocketAddr::from(([127, 0, 0, 1], ports[3])), folder };
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(60) {
            if server.child.try_wait().unwrap().is_some() {
                break;
            }
            let url = server.bucket().create_bucket(&credentials()).sign(Duration::from_secs(600));
            if let Ok(200) = curl("PUT", &url, b"") {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        println!("{}", fs_err::read_to_string(server.folder.path().join("log")).unwrap());
        None
    }

    fn bucket(&self) -> Bucket {
        let url = format!("http://{}", self.address).parse().unwrap();
        Bucket::new(url, UrlStyle::Path, BUCKET, "us-east-1").unwrap()
    }

    /// Writes an object.
    pub fn put(&self, key: &str, bytes: &[u8]) {
        let url = self.bucket().put_object(Some(&credentials()), key).sign(Duration::from_secs(600));
        assert_eq!(curl("PUT", &url, bytes).unwrap(), 200);
    }

    /// Removes an object.
    pub fn delete(&self, key: &str) {
        let url = self.bucket().delete_object(Some(&credentials()), key).sign(Duration::from_secs(600));
        assert_eq!(curl("DELETE", &url, b"").unwrap(), 204);
    }

    /// Reads an object.
    pub fn get(&self, key: &str) -> Vec<u8> {
        let url = self.bucket().get_object(Some(&credentials()), key).sign(Duration::from_secs(600));
        ask("GET", &url, b"", &[]).unwrap().1
    }

    /// Writes an object on a condition; answers with the status.
    pub fn put_if(&self, key: &str, bytes: &[u8], condition: (&str, &str)) -> u16 {
        let url = self.bucket().put_object(Some(&credentials()), key).sign(Duration::from_secs(600));
        ask("PUT", &url, bytes, &[condition]).unwrap().0
    }

    /// A part of an object: status and bytes.
    pub fn part(&self, key: &str, range: &str) -> (u16, Vec<u8>) {
        let url = self.bucket().get_object(Some(&credentials()), key).sign(Duration::from_secs(600));
        ask("GET", &url, b"", &[("Range", range)]).unwrap()
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn credentials() -> Credentials {
    Credentials::new(KEY, SECRET)
}

fn curl(method: &str, url: &reqwest::Url, body: &[u8]) -> std::io::Result<u16> {
    ask(method, url, body, &[]).map(|answer| answer.0)
}

fn ask(
    method: &str,
    url: &reqwest::Url,
    body: &[u8],
    headers: &[(&str, &str)],
) -> std::io::Result<(u16, Vec<u8>)> {
    let host = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap());
    let mut stream = TcpStream::connect(&host)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let target = format!("{}?{}", url.path(), url.query().unwrap_or_default());
    let mut head = format!(
        "{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(&[head.as_bytes(), b"\r\n", body].concat())?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    let end =
        all.windows(4).position(|window| window == b"\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let status = String::from_utf8_lossy(&all[9..12]).parse().map_err(std::io::Error::other)?;
    Ok((status, all.split_off(end + 4)))
}

/// What the proxy does with connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// Passes everything on.
    None,
    /// Closes connections at once.
    Dead,
    /// Takes everything and never answers.
    Hung,
    /// Answers 503 to everything.
    Failing,
    /// Passes a few hundred kilobytes on, then breaks.
    Cut,
    /// Passes everything on, 32 KiB at a time with pauses.
    Slow,
}

/// A proxy.
pub struct Proxy {
    pub address: SocketAddr,
    fault: Arc<AtomicU8>,
    pub connections: Arc<AtomicU64>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (fault, connections) = (Arc::new(AtomicU8::new(0)), Arc::new(AtomicU64::new(0)));
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let this = Self {
            address,
            fault: Arc::clone(&fault),
            connections: Arc::clone(&connections),
            open: Arc::clone(&open),
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                connections.fetch_add(1, Ordering::SeqCst);
                open.lock().unwrap().push(stream.try_clone().unwrap());
                let fault = Arc::clone(&fault);
                std::thread::spawn(move || drop(serve(stream, to, &fault)));
            }
        });
        this
    }

    /// From now on, for connections that are open too.
    pub fn fault(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::SeqCst);
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn serve(mut client: TcpStream, to: SocketAddr, fault: &AtomicU8) -> std::io::Result<()> {
    let is = |one: Fault| fault.load(Ordering::SeqCst) == one as u8;
    if is(Fault::Dead) {
        return Ok(());
    }
    if is(Fault::Hung) {
        let mut buffer = [0; 4096];
        while client.read(&mut buffer)? > 0 {}
        return Ok(());
    }
    if is(Fault::Failing) {
        let mut buffer = vec![0; 64 << 10];
        let _ = client.read(&mut buffer)?;
        client.write_all(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        client.shutdown(std::net::Shutdown::Write)?;
        while client.read(&mut buffer)? > 0 {}
        return Ok(());
    }
    let server = TcpStream::connect(to)?;
    let (cut, slow) = (is(Fault::Cut), is(Fault::Slow));
    let (mut from, mut into) = (server.try_clone()?, client.try_clone()?);
    let back = std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut into);
        let _ = into.shutdown(std::net::Shutdown::Both);
    });
    let (mut server, mut passed, mut buffer) = (server, 0, vec![0; 32 << 10]);
    loop {
        let read = client.read(&mut buffer).unwrap_or(0);
        if read == 0 || cut && passed > 300_000 {
            break;
        }
        if slow {
            std::thread::sleep(Duration::from_millis(30));
        }
        server.write_all(&buffer[..read])?;
        passed += read;
    }
    let _ = (server.shutdown(std::net::Shutdown::Both), client.shutdown(std::net::Shutdown::Both));
    let _ = back.join();
    Ok(())
}
