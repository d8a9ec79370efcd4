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

mod measure;

use measure::Figure;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Instant;

const CONNECTIONS: usize = 8;

fn main() {
    measure::serve_if_asked(false);
    let folder = tempfile::tempdir().unwrap();
    let Some(nginx) = nginx(folder.path()) else {
        println!("SKIPPED: nginx is not installed (scripts/install-clients.sh)");
        return;
    };
    let ours = ours(folder.path());
    for (size, count) in [(1usize << 10, 6000usize), (16 << 10, 4000), (128 << 10, 800), (8 << 20, 16)] {
        let name =
            if size >= 1 << 20 { format!("{} MiB", size >> 20) } else { format!("{} KiB", size >> 10) };
        let put = [&ours, &nginx].map(|server| load(server, "PUT", size, count, 1));
        let get = [&ours, &nginx].map(|server| load(server, "GET", size, count, 6));
        for (what, [ours, nginx], aim) in [("PUT", put, 4.0), ("GET", get, 1.3)] {
            Figure {
                text: &format!("cache {what} {name} per CPU second"),
                value: ours,
                unit: "/s",
                peer: Some(("nginx", nginx)),
                aim: (size <= 16 << 10).then_some(("at least", aim * nginx)),
            }
            .print();
        }
    }
    for mut server in [ours, nginx] {
        let _ = server.child.kill();
        let _ = server.child.wait();
    }
}

struct Server {
    child: Child,
    address: SocketAddr,
    path: &'static str,
    token: String,
}

fn ours(folder: &Path) -> Server {
    let folder = folder.join("ours");
    std::fs::create_dir_all(&folder).unwrap();
    let (child, address) = measure::server(&folder);
    Server { child, address, path: "/bench/-/kv", token: measure::token().expose().to_owned() }
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
    let (before, begin) = (measure::cpu(server.child.id()), Instant::now());
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
    let cpu = (measure::cpu(server.child.id()) - before).max(1e-6);
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
