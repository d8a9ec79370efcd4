//! The relay of the build cache before a cache of the test's own: who may use it, what goes through, and what it does alone.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use forgeyard_agent::cache::{Relay, Upstream};
use forgeyard_api::client::HttpOptions;
use forgeyard_model::Secret;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn relay() -> (Relay, SocketAddr) {
    let relay = Relay::new(Secret::new(SECRET), &HttpOptions::default());
    let address = relay.listen(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    (relay, address)
}

fn upstream(address: SocketAddr) -> Upstream {
    Upstream { address: format!("http://{address}"), token: Some(Secret::new("the-token")), ca: None }
}

/// Reads one request with its body.
fn request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        match stream.read(&mut buffer) {
            Ok(read) if read > 0 => bytes.extend_from_slice(&buffer[..read]),
            _ => return None,
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |text| text.parse().unwrap());
    let mut body = bytes.split_off(end);
    while body.len() < length {
        let read = stream.read(&mut buffer).unwrap();
        body.extend_from_slice(&buffer[..read]);
    }
    Some((head, body))
}

/// A cache that answers everything with this, and passes on what it heard.
fn cache(answer: &'static str) -> (SocketAddr, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (say, heard) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let say = say.clone();
            std::thread::spawn(move || {
                while let Some(one) = request(&mut stream) {
                    let _ = say.send(one);
                    if answer.is_empty() {
                        std::thread::park();
                    }
                    stream.write_all(answer.as_bytes()).unwrap();
                }
            });
        }
    });
    (address, heard)
}

/// Status and body of one request.
async fn ask(
    relay: SocketAddr,
    method: &'static str,
    path: &'static str,
    authorization: Option<String>,
    body: Vec<u8>,
) -> (u16, String) {
    let answer = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(relay).unwrap();
        let authorization =
            authorization.map_or_else(String::new, |text| format!("Authorization: {text}\r\n"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: relay.example\r\n{authorization}Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.into_bytes(), body].concat()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    });
    let answer = answer.await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

fn bearer() -> Option<String> {
    Some(format!("Bearer {SECRET}"))
}

#[tokio::test]
async fn secret_opens_it_in_every_form_and_the_token_goes_to_the_cache_alone() {
    let (relay, at) = relay();
    let (address, heard) = cache("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nentry");
    relay.connect(upstream(address)).unwrap();
    let basic = "Basic am9iOjAxMjM0NTY3ODlhYmNkZWYwMTIzNDU2Nzg5YWJjZGVm".to_owned();
    let s3 = format!(
        "AWS4-HMAC-SHA256 Credential={SECRET}/20260101/auto/s3/aws4_request, SignedHeaders=host, Signature=0"
    );
    for sent in [format!("Bearer {SECRET}"), format!("Bearer eyJh.eyJz.{SECRET}"), basic, s3] {
        assert_eq!(
            ask(at, "GET", "/-/ccache/ab?x=y", Some(sent), Vec::new()).await,
            (200, "entry".to_owned())
        );
        let (head, _) = heard.recv().unwrap();
        assert!(head.starts_with("get /-/ccache/ab?x=y http/1.1"), "{head}");
        assert!(head.contains("authorization: bearer the-token\r\n") && !head.contains(SECRET), "{head}");
        assert!(
            head.contains("host: relay.example\r\n"),
            "addresses that the cache signs lead back here: {head}"
        );
    }
    assert_eq!(relay.counts().hits, 4);
}

#[tokio::test]
async fn secret_of_another_job_opens_nothing() {
    let (relay, at) = relay();
    let (address, heard) = cache("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    relay.connect(upstream(address)).unwrap();
    let other = "f".repeat(32);
    for sent in [
        None,
        Some(format!("Bearer {other}")),
        Some("Bearer the-token".to_owned()),
        Some("Bearer ".to_owned()),
    ] {
        assert_eq!(ask(at, "GET", "/-/dav/x", sent.clone(), Vec::new()).await.0, 403, "{sent:?}");
    }
    assert!(heard.try_recv().is_err(), "nothing of it went to the cache");
}

#[tokio::test]
async fn address_that_the_cache_signed_goes_through_without_any_token() {
    let (relay, at) = relay();
    let (address, heard) = cache("HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
    relay.connect(upstream(address)).unwrap();
    assert_eq!(ask(at, "PUT", "/-/github/upload?sig=abc", None, vec![7; 300_000]).await.0, 201);
    let (head, body) = heard.recv().unwrap();
    assert!(!head.contains("authorization") && head.contains("sig=abc"), "{head}");
    assert_eq!(body, vec![7; 300_000], "bytes go through as they are");
}

#[tokio::test]
async fn before_it_is_known_what_the_job_may_do_the_cache_is_empty() {
    let (relay, at) = relay();
    assert_eq!(ask(at, "GET", "/-/bazel/ac/x", bearer(), Vec::new()).await.0, 404);
    assert_eq!(ask(at, "PUT", "/-/bazel/cas/x", bearer(), vec![0; 100_000]).await.0, 200);
    assert_eq!(relay.counts().alone, 2);
}

#[tokio::test]
async fn cache_that_is_silent_is_waited_for_once() {
    let (relay, at) = relay();
    let (address, heard) = cache("");
    relay.connect(upstream(address)).unwrap();
    for _ in 0..20 {
        assert_eq!(ask(at, "GET", "/-/ccache/ab", bearer(), Vec::new()).await.0, 404);
    }
    assert_eq!(heard.try_iter().filter(|(head, _)| head.contains("/-/ccache/")).count(), 1);
    assert_eq!((relay.counts().alone, relay.counts().breaks), (20, 1));
    let cold = relay.cold().await.unwrap();
    assert_eq!(cold.cause, "away");
    // and not by the time that an answer has
    assert!(cold.text.contains("no sign of life") && cold.text.contains("20 requests"), "{}", cold.text);
}

/// An entry that comes from far away, from a cache that answers what is small at once.
#[tokio::test]
async fn cache_that_is_slow_but_lives_is_waited_for() {
    let (relay, at) = relay();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    relay.connect(upstream(listener.local_addr().unwrap())).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                while let Some((head, _)) = request(&mut stream) {
                    if !head.contains("nix-cache-info") {
                        // more than a cache may be silent and be asked
                        std::thread::sleep(Duration::from_millis(1500));
                    }
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
                }
            });
        }
    });
    let all = (0..4).map(|_| ask(at, "GET", "/-/kv/x", bearer(), Vec::new()));
    for (status, _) in futures::future::join_all(all).await {
        assert_eq!(status, 200);
    }
    assert_eq!(relay.counts().breaks, 0);
}

#[tokio::test]
async fn errors_with_good_answers_between_are_none_in_a_row_although_those_have_no_body() {
    let (relay, at) = relay();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    relay.connect(upstream(listener.local_addr().unwrap())).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                while let Some((head, _)) = request(&mut stream) {
                    let status = if head.contains("/-/kv/bad") { "500 Bad" } else { "201 Created" };
                    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                    stream.write_all(answer.as_bytes()).unwrap();
                }
            });
        }
    });
    for _ in 0..4 {
        assert_eq!(ask(at, "PUT", "/-/kv/bad", bearer(), vec![0; 10]).await.0, 503);
        assert_eq!(ask(at, "PUT", "/-/kv/good", bearer(), vec![0; 10]).await.0, 201);
    }
    assert_eq!(relay.counts().breaks, 0);
}

/// An address at which nobody listens.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn cache_that_comes_back_is_used_again() {
    let (relay, at) = relay();
    let address = nobody();
    relay.connect(upstream(address)).unwrap();
    assert_eq!(ask(at, "GET", "/-/kv/x", bearer(), Vec::new()).await.0, 404);
    let back = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        for mut stream in back.incoming().flatten() {
            while request(&mut stream).is_some() {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            }
        }
    });
    let begun = Instant::now();
    while ask(at, "GET", "/-/kv/x", bearer(), Vec::new()).await.0 != 200 {
        assert!(begun.elapsed().as_secs() < 60, "it is never used again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// nix#15023: Nix cannot send a body twice, so the one time has to be the right one.
#[tokio::test]
async fn nix_15023_push_waits_for_a_cache_that_is_started_anew() {
    let (relay, at) = relay();
    let first = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = first.local_addr().unwrap();
    relay.connect(upstream(address)).unwrap();
    let (say, heard) = channel();
    let (ended, told) = channel();
    std::thread::spawn(move || {
        let serve = |listener: TcpListener, requests: usize| {
            let mut left = requests;
            for mut stream in listener.incoming().flatten() {
                while let Some(one) = request(&mut stream) {
                    say.send(one).unwrap();
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
                    left -= 1;
                    if left == 0 {
                        return;
                    }
                }
            }
        };
        serve(first, 1);
        ended.send(()).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        serve(TcpListener::bind(address).unwrap(), usize::MAX);
    });
    assert_eq!(ask(at, "GET", "/-/nix/x.narinfo", bearer(), Vec::new()).await.0, 200);
    told.recv().unwrap();
    // as long as somebody else was answered just now nobody looks whether the cache lives
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(ask(at, "PUT", "/-/nix/nar/x.nar", bearer(), vec![7; 300_000]).await.0, 200);
    assert_eq!(relay.counts().breaks, 1, "it was away");
    assert!(heard.try_iter().any(|(_, body)| body == vec![7; 300_000]));
}

#[tokio::test]
async fn writes_that_somebody_counts_on_are_refused_once_the_cache_is_not_worth_waiting_for() {
    let (relay, at) = relay();
    relay.connect(upstream(nobody())).unwrap();
    assert_eq!(ask(at, "PUT", "/-/nix/nar/x.nar", bearer(), vec![0; 10]).await.0, 424);
    assert_eq!(ask(at, "PUT", "/-/kv/x", bearer(), vec![0; 10]).await.0, 503);
}

/// ccache 4.7 writes a head and then a body, with Nagle's algorithm on. A kernel that waits for an answer that could carry it acknowledges
/// the head after 40 ms or later, never earlier, and only then the body comes.
#[tokio::test(flavor = "multi_thread")]
async fn body_of_a_client_that_waits_for_the_acknowledgement_of_its_head_comes_at_once() {
    let (relay, at) = relay();
    let (address, _heard) = cache("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    for connected in [false, true] {
        if connected {
            relay.connect(upstream(address)).unwrap();
        }
        let fastest = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(at).unwrap();
            let head = |method, length| {
                format!(
                    "{method} /-/ccache/ab HTTP/1.1\r\nHost: relay.example\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: {length}\r\n\r\n"
                )
            };
            let mut answer = [0; 4096];
            let mut round = || {
                stream.write_all(head("GET", 0).as_bytes()).unwrap();
                assert!(stream.read(&mut answer).unwrap() > 0);
                let began = Instant::now();
                stream.write_all(head("PUT", 5).as_bytes()).unwrap();
                stream.write_all(b"entry").unwrap();
                assert!(stream.read(&mut answer).unwrap() > 0);
                began.elapsed()
            };
            // the first ones are quick anyway: a kernel waits once it saw a dialogue
            (0..40).map(|_| round()).skip(20).min()
        });
        let fastest = fastest.await.unwrap().unwrap();
        assert!(fastest < Duration::from_millis(40), "with a cache {connected}: {fastest:?}");
    }
}
