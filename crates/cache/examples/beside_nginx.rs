//! GET and PUT of entries beside nginx (static files, and its DAV module), in one run on one machine.
//!
//! `cargo xtask bench cache` runs it. What is compared is requests for each second of CPU time *of the server*, read from
//! /proc, since the load comes from the same cores. Entries are unique, bodies are looked at, the connections are kept.
//! Our side checks a token, a checksum and (on PUT) a digest; nginx checks nothing. Neither side syncs before it answers.
//! Prints lines of JSON; says `SKIPPED` where nginx is missing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a measuring program stops at the first surprise"
)]

use ed25519_dalek::SigningKey;
use forgeyard_cache::authority::{Snapshot, public_text};
use forgeyard_cache::scope::ScopeRule;
use forgeyard_cache::service::{Options, start};
use forgeyard_cache::store::log::Config;
use forgeyard_cache::token::{self, Access, Claims};
use forgeyard_model::Timestamp;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

const CONNECTIONS: usize = 8;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("--serve") {
        return serve();
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(nginx) = nginx(folder.path()) else {
        println!("SKIPPED: nginx is not installed (scripts/install-clients.sh)");
        return;
    };
    let ours = ours(folder.path());
    for (size, count) in [(1usize << 10, 6000usize), (16 << 10, 4000), (128 << 10, 800), (8 << 20, 16)] {
        let name =
            if size >= 1 << 20 { format!("{} MiB", size >> 20) } else { format!("{} KiB", size >> 10) };
        let put: Vec<f64> = [&ours, &nginx].map(|server| load(server, "PUT", size, count, 1)).to_vec();
        let get: Vec<f64> = [&ours, &nginx].map(|server| load(server, "GET", size, count, 6)).to_vec();
        let aims = |put: f64, get: f64| if size <= 16 << 10 { (Some(put), Some(get)) } else { (None, None) };
        let (put_aim, get_aim) = aims(4.0 * put[1], 1.3 * get[1]);
        figure(&format!("cache PUT {name} per CPU second"), put[0], put[1], put_aim);
        figure(&format!("cache GET {name} per CPU second"), get[0], get[1], get_aim);
    }
    for mut server in [ours, nginx] {
        let _ = server.child.kill();
        let _ = server.child.wait();
    }
}

fn figure(text: &str, value: f64, peer: f64, aim: Option<f64>) {
    let figure = serde_json::json!({
        "figure": text, "value": value, "unit": "/s", "peer": "nginx", "peer_value": peer,
        "aim": aim.map(|_| "at least"), "aim_value": aim,
    });
    println!("{figure}");
}

struct Server {
    child: Child,
    address: SocketAddr,
    path: &'static str,
    token: String,
}

impl Server {
    /// CPU time of the process and its children, in seconds.
    fn cpu(&self) -> f64 {
        let mut all = vec![self.child.id()];
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        // nanoseconds on a CPU, of each thread; ticks would be too coarse
        let spent = |id: &u32| -> u64 {
            let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
            let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
            stats.filter_map(|stat| stat.split_whitespace().next()?.parse::<u64>().ok()).sum()
        };
        all.iter().map(spent).sum::<u64>() as f64 / 1e9
    }
}

fn key() -> SigningKey {
    SigningKey::from_bytes(&[5; 32])
}

/// The service, in a process of its own.
fn serve() {
    let folder = std::path::PathBuf::from(std::env::args().nth(2).unwrap());
    let snapshot = Snapshot {
        keys: [("k".to_owned(), public_text(&key().verifying_key()))].into(),
        scopes: vec![ScopeRule::new("bench".parse().unwrap())],
        ..Snapshot::default()
    };
    let authority = folder.join("authority.json");
    std::fs::write(&authority, serde_json::to_vec(&snapshot).unwrap()).unwrap();
    let running = start(Options {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        store: Config::new(folder.join("store")),
        authority,
        largest: 1 << 30,
        threads: 2,
        scrub_bytes: 0,
        clock: Arc::new(|| Timestamp::from_micros(1_800_000_000_000_000)),
    })
    .unwrap();
    println!("{}", running.address);
    loop {
        std::thread::park();
    }
}

fn ours(folder: &Path) -> Server {
    let folder = folder.join("ours");
    std::fs::create_dir_all(&folder).unwrap();
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    let mut child = command.arg("--serve").arg(folder).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let claims = Claims {
        id: "t".to_owned(),
        key: "k".to_owned(),
        principal: "bench".to_owned(),
        scope: "bench".parse().unwrap(),
        access: Access::Write,
        expires_at: Timestamp::from_micros(1_900_000_000_000_000),
        epoch: 0,
        cold: false,
        run: None,
    };
    let token = token::mint(&claims, &key()).unwrap().expose().to_owned();
    Server { child, address: line.trim().parse().unwrap(), path: "/bench/-/kv", token }
}

fn nginx(folder: &Path) -> Option<Server> {
    let program = ["/usr/sbin/nginx", "/usr/bin/nginx"].into_iter().find(|path| Path::new(path).exists())?;
    let folder = folder.join("nginx");
    std::fs::create_dir_all(folder.join("files")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (at, user) = (folder.display(), if nix::unistd::geteuid().is_root() { "user root;" } else { "" });
    let config = format!(
        "{user} daemon off; worker_processes 2; pid {at}/pid; error_log {at}/error.log crit;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log off; client_body_temp_path {at}/body; keepalive_requests 100000000; sendfile on;\n\
         proxy_temp_path {at}/p; fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
         tcp_nopush on; client_max_body_size 0; client_body_buffer_size 256k; open_file_cache max=20000 inactive=300s;\n\
         server {{ listen 127.0.0.1:{port}; location / {{ root {at}/files; dav_methods PUT; }} }} }}\n"
    );
    std::fs::write(folder.join("nginx.conf"), config).unwrap();
    let mut child = Command::new(program).arg("-c").arg(folder.join("nginx.conf")).spawn().ok()?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    for _ in 0..200 {
        if TcpStream::connect(address).is_ok() {
            return Some(Server { child, address, path: "", token: String::new() });
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let _ = child.kill();
    None
}

/// Bytes that no other entry has.
fn body(number: usize, size: usize) -> Vec<u8> {
    let mut state = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = vec![0; size];
    for eight in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        eight.copy_from_slice(&state.to_le_bytes()[..eight.len()]);
    }
    bytes
}

/// Requests for each second of the server's CPU time.
fn load(server: &Server, method: &'static str, size: usize, count: usize, rounds: usize) -> f64 {
    let (before, begin) = (server.cpu(), Instant::now());
    std::thread::scope(|scope| {
        for connection in 0..CONNECTIONS {
            scope.spawn(move || {
                let mut stream = TcpStream::connect(server.address).unwrap();
                stream.set_nodelay(true).unwrap();
                let mut buffer = vec![0; 256 << 10];
                for number in (0..rounds).flat_map(|_| (connection..count).step_by(CONNECTIONS)) {
                    let mut request =
                        format!("{method} {}/{size}-{number} HTTP/1.1\r\nHost: a\r\n", server.path)
                            .into_bytes();
                    if !server.token.is_empty() {
                        request.extend_from_slice(
                            format!("Authorization: Bearer {}\r\n", server.token).as_bytes(),
                        );
                    }
                    let expected = body(number, size);
                    if method == "PUT" {
                        request.extend_from_slice(format!("Content-Length: {size}\r\n\r\n").as_bytes());
                        request.extend_from_slice(&expected);
                    } else {
                        request.extend_from_slice(b"\r\n");
                    }
                    stream.write_all(&request).unwrap();
                    answer(&mut stream, &mut buffer, method, &expected);
                }
            });
        }
    });
    let cpu = (server.cpu() - before).max(1e-6);
    let done = (count * rounds) as f64;
    let wall = done / begin.elapsed().as_secs_f64();
    eprintln!(
        "  {method} {size} {}: {:.0} for each second, {:.1} µs of CPU",
        if server.path.is_empty() { "nginx" } else { "ours" },
        wall,
        cpu / done * 1e6
    );
    done / cpu
}

fn answer(stream: &mut TcpStream, buffer: &mut [u8], method: &str, expected: &[u8]) {
    let mut read = 0;
    let end = loop {
        let some = stream.read(&mut buffer[read..]).unwrap();
        assert!(some > 0, "the server closed the connection");
        read += some;
        if let Some(end) = buffer[..read].windows(4).position(|w| w == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = std::str::from_utf8(&buffer[..end]).unwrap();
    assert!(head.starts_with("HTTP/1.1 2"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let length: usize = length.map_or(0, |text| text.parse().unwrap());
    if method == "GET" {
        assert_eq!(length, expected.len());
        assert!(buffer[end..read] == expected[..read - end], "wrong bytes");
    }
    let mut got = read - end;
    while got < length {
        let some = stream.read(buffer).unwrap();
        assert!(some > 0, "the body ended early");
        assert!(method != "GET" || buffer[..some] == expected[got..got + some], "wrong bytes");
        got += some;
    }
}
