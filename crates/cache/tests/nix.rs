//! What Nix relies on, as requests: signatures on serve, one content for each path, files that are gone, no content coding.
//! The real client is in `nix_client.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, SigningKey, Verifier as _};
use forgeyard_cache::service::{Options, start};
use forgeyard_cache::signature::fingerprint;
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::token::Access;
use forgeyard_model::Digest;
use std::path::Path;
use support::{Client, options, service, token, write_authority};

const BASE: &str = "00000000000000000000000000000abc-hand";
const INFO: &str = "/p/main/-/nix/00000000000000000000000000000abc.narinfo";
const HASH: &str = "1fihihk56ncdjmcv5aw0znx2g458vj4bck61fjzcpx97q8yfj46g";
const OTHER_HASH: &str = "1ciz1qg6z1psanscp2x5j2bbxm07gh192paz1g6g3wk3i97q22fj";

/// The name of a file as Nix gives it.
fn file_of(content: &[u8]) -> String {
    let bytes = *Digest::of(content).as_bytes();
    let digit = |number: usize| {
        let (byte, shift) = (number * 5 / 8, number * 5 % 8);
        let next = bytes.get(byte + 1).copied().unwrap_or_default();
        let value = (u16::from(bytes[byte]) | u16::from(next) << 8) >> shift & 31;
        char::from(b"0123456789abcdfghijklmnpqrsvwxyz"[usize::from(value)])
    };
    format!("nar/{}.nar", (0..52).rev().map(digit).collect::<String>())
}

fn narinfo(file: &[u8], hash: &str, more: &str) -> String {
    format!(
        "StorePath: /nix/store/{BASE}\nURL: {}\nCompression: none\nFileSize: {}\nNarHash: sha256:{hash}\nNarSize: 9\n\
         References: \n{more}",
        file_of(file),
        file.len()
    )
}

fn push(client: &mut Client, scope: &str, file: &[u8], hash: &str, more: &str) -> (u16, String) {
    let token = token(scope, Access::Write);
    let put = client.ask("PUT", &format!("/{scope}/-/nix/{}", file_of(file)), Some(&token), Some(file));
    assert!(matches!(put.status, 200 | 201), "{}", put.head);
    let info = narinfo(file, hash, more);
    let put = client.ask("PUT", &INFO.replace("p/main", scope), Some(&token), Some(info.as_bytes()));
    (put.status, String::from_utf8(put.body).unwrap())
}

fn write_key(path: &Path, seed: u8) {
    let key = SigningKey::from_bytes(&[seed; 32]);
    fs_err::write(path, format!("main-1:{}\n", STANDARD.encode(key.to_keypair_bytes()))).unwrap();
}

fn with_key(folder: &Path) -> Options {
    let options = options(folder, Durability::PageCache);
    let file = folder.join("main.key");
    write_key(&file, 9);
    write_authority(&options.authority, |snapshot| {
        snapshot.scopes.iter_mut().find(|rule| rule.path.as_str() == "p/main").unwrap().sign_key_file =
            Some(file);
    });
    options
}

/// A scope's key signs what is read from it, also through a child; what a fork wrote bears no signature of main.
#[test]
fn narinfo_is_signed_with_the_key_of_the_scope_that_it_was_found_in() {
    let folder = tempfile::tempdir().unwrap();
    let running = start(with_key(folder.path())).unwrap();
    let mut client = Client::new(running.address);
    let pushed = "Sig: pusher-1:abcd\n";
    assert_eq!(push(&mut client, "p/main", b"one", HASH, pushed).0, 201);
    let stored = narinfo(b"one", HASH, pushed);
    let fork = token("p/pr/7", Access::Write);
    for token in [None, Some(fork.as_str())] {
        let got = client.ask("GET", INFO, token, None);
        let text = String::from_utf8(got.body).unwrap();
        let line = text.strip_prefix(&stored).expect("what was pushed stays as it was").trim_end();
        let signature = STANDARD.decode(line.strip_prefix("Sig: main-1:").unwrap()).unwrap();
        let print = fingerprint(INFO.rsplit('/').next().unwrap(), text.as_bytes()).unwrap();
        let public = SigningKey::from_bytes(&[9; 32]).verifying_key();
        public.verify(print.as_bytes(), &Signature::from_slice(&signature).unwrap()).unwrap();
        assert!(got.head.contains(&Digest::of(text.as_bytes()).hex()), "the ETag is that of what is sent");
        let head = client.ask("HEAD", INFO, token, None);
        assert!(head.head.contains(&format!("Content-Length: {}\r\n", text.len())), "{}", head.head);
    }
    assert_eq!(push(&mut client, "p/pr/7", b"two", OTHER_HASH, "").0, 201);
    let own = client.ask("GET", INFO, Some(&fork), None);
    assert_eq!(
        String::from_utf8(own.body).unwrap(),
        narinfo(b"two", OTHER_HASH, ""),
        "the fork's own, unsigned"
    );
    running.stop().unwrap();
}

/// A key that is missing stops the start; one that is changed later is taken over.
#[test]
fn signing_key_is_read_at_the_start_and_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let options = with_key(folder.path());
    let file = folder.path().join("main.key");
    fs_err::remove_file(&file).unwrap();
    let error = start(options.clone()).err().expect("it must not start without its key").to_string();
    assert!(error.contains("main.key") && error.contains("p/main"), "{error}");
    write_key(&file, 9);
    let running = start(options).unwrap();
    let mut client = Client::new(running.address);
    assert_eq!(push(&mut client, "p/main", b"one", HASH, "").0, 201);
    let first = client.ask("GET", INFO, None, None).body;
    write_key(&file, 10);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while client.ask("GET", INFO, None, None).body == first {
        assert!(std::time::Instant::now() < deadline, "the new key is not used");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    running.stop().unwrap();
}

/// nix#1885: a path that was built twice, differently, is a hash mismatch months later for whoever read the first one.
#[test]
fn nix_1885_second_content_of_a_path_is_refused_in_a_trusted_scope() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    assert_eq!(push(&mut client, "p/main", b"one", HASH, "").0, 201);
    // nix#7882: the same again, and the same path compressed or signed in another way
    assert_eq!(push(&mut client, "p/main", b"one", HASH, "").0, 200);
    assert_eq!(push(&mut client, "p/main", b"one, in another compression", HASH, "Sig: a:b\n").0, 200);
    let (status, text) = push(&mut client, "p/main", b"two", OTHER_HASH, "");
    assert_eq!(status, 409);
    assert!(text.contains("another NarHash") && text.contains("forgeyard cache rm"), "{text}");
    let first = client.ask("GET", INFO, None, None).body;
    assert_eq!(String::from_utf8(first).unwrap(), narinfo(b"one", HASH, ""), "the first stays");
    let metrics = String::from_utf8(client.ask("GET", "/metrics", None, None).body).unwrap();
    assert!(
        metrics.contains("forgeyard_cache_mismatches_total{scope=\"p/main\",surface=\"nix\"} 1"),
        "{metrics}"
    );
    // in its own scope a pull request may try again
    assert_eq!(push(&mut client, "p/pr/7", b"one", HASH, "").0, 201);
    assert_eq!(push(&mut client, "p/pr/7", b"two", OTHER_HASH, "").0, 201);
    running.stop().unwrap();
}

/// nix#1340, nix#3002: a `narinfo` whose file is gone makes every client that asks fail or loop.
#[test]
fn nix_1340_narinfo_without_its_file_is_a_miss_and_can_be_pushed_again() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let token = token("p/main", Access::Write);
    assert_eq!(push(&mut client, "p/main", b"one", HASH, "").0, 201);
    let file = format!("/p/main/-/nix/{}", file_of(b"one"));
    assert_eq!(client.ask("DELETE", &file, Some(&token), None).status, 204);
    assert_eq!(client.ask("HEAD", INFO, None, None).status, 404);
    assert_eq!(client.ask("GET", INFO, None, None).status, 404);
    assert_eq!(client.ask("GET", &file, None, None).status, 404);
    assert_eq!(push(&mut client, "p/main", b"two", OTHER_HASH, "").0, 201, "the path is free again");
    running.stop().unwrap();
}

/// nix#10275: a proxy or server that compresses once more ends in "input compression not recognized".
#[test]
fn nix_10275_files_of_nix_are_never_coded_anew() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let file = vec![b'a'; 50_000];
    assert_eq!(push(&mut client, "p/main", &file, HASH, "").0, 201);
    for path in [INFO.to_owned(), format!("/p/main/-/nix/{}", file_of(&file))] {
        client.send(
            format!("GET {path} HTTP/1.1\r\nHost: cache\r\nAccept-Encoding: gzip, br, zstd\r\n\r\n")
                .as_bytes(),
        );
        let got = client.answer(false);
        assert!(got.status == 200 && !got.head.to_lowercase().contains("content-encoding"), "{}", got.head);
        assert!(got.body == file || got.body == narinfo(&file, HASH, "").into_bytes());
    }
    let token = token("p/main", Access::Write);
    client.send(
        format!(
            "PUT {INFO} HTTP/1.1\r\nHost: cache\r\nAuthorization: Bearer {token}\r\nContent-Encoding: gzip\r\n\
             Content-Length: 3\r\n\r\nabc"
        )
        .as_bytes(),
    );
    assert_eq!(client.answer(false).status, 415, "what is coded on its way is not stored as if it were not");
    running.stop().unwrap();
}
