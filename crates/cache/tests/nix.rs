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
use forgeyard_model::{Digest, Timestamp};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use support::narinfo::{base32, file_of};
use support::{Client, options, service, token, write_authority};

const BASE: &str = "00000000000000000000000000000abc-hand";
const INFO: &str = "/p/main/-/nix/00000000000000000000000000000abc.narinfo";

/// Of a file that unpacks to `plain`; with Zstandard unless it is that itself.
fn narinfo(file: &[u8], plain: &[u8], more: &str) -> String {
    format!(
        "StorePath: /nix/store/{BASE}\nURL: {}\nCompression: {}\nFileHash: sha256:{}\nFileSize: {}\n\
         NarHash: sha256:{}\nNarSize: {}\nReferences: \n{more}",
        file_of(file),
        if file == plain { "none" } else { "zstd" },
        base32(file),
        file.len(),
        base32(plain),
        plain.len(),
    )
}

fn put_file(client: &mut Client, scope: &str, file: &[u8]) {
    let token = token(scope, Access::Write);
    let put = client.ask("PUT", &format!("/{scope}/-/nix/{}", file_of(file)), Some(&token), Some(file));
    assert!(matches!(put.status, 200 | 201), "{}", put.head);
}

fn put_info(client: &mut Client, scope: &str, info: &str) -> (u16, String) {
    let token = token(scope, Access::Write);
    let put = client.ask("PUT", &INFO.replace("p/main", scope), Some(&token), Some(info.as_bytes()));
    (put.status, String::from_utf8(put.body).unwrap())
}

fn push(client: &mut Client, scope: &str, file: &[u8], plain: &[u8], more: &str) -> (u16, String) {
    put_file(client, scope, file);
    put_info(client, scope, &narinfo(file, plain, more))
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
    assert_eq!(push(&mut client, "p/main", b"one", b"one", pushed).0, 201);
    let stored = narinfo(b"one", b"one", pushed);
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
    assert_eq!(push(&mut client, "p/pr/7", b"two", b"two", "").0, 201);
    let own = client.ask("GET", INFO, Some(&fork), None);
    assert_eq!(String::from_utf8(own.body).unwrap(), narinfo(b"two", b"two", ""), "the fork's own, unsigned");
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
    assert_eq!(push(&mut client, "p/main", b"one", b"one", "").0, 201);
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
    assert_eq!(push(&mut client, "p/main", b"one", b"one", "").0, 201);
    // nix#7882: the same again, and the same path compressed or signed in another way
    assert_eq!(push(&mut client, "p/main", b"one", b"one", "").0, 200);
    let packed = zstd::bulk::compress(b"one", 1).unwrap();
    assert_eq!(push(&mut client, "p/main", &packed, b"one", "Sig: a:b\n").0, 200);
    let (status, text) = push(&mut client, "p/main", b"two", b"two", "");
    assert_eq!(status, 409);
    assert!(text.contains("another NarHash") && text.contains("forgeyard cache rm"), "{text}");
    let first = client.ask("GET", INFO, None, None).body;
    assert_eq!(String::from_utf8(first).unwrap(), narinfo(b"one", b"one", ""), "the first stays");
    let metrics = String::from_utf8(client.ask("GET", "/metrics", None, None).body).unwrap();
    assert!(
        metrics.contains("forgeyard_cache_mismatches_total{scope=\"p/main\",surface=\"nix\"} 1"),
        "{metrics}"
    );
    // in its own scope a pull request may try again
    assert_eq!(push(&mut client, "p/pr/7", b"one", b"one", "").0, 201);
    assert_eq!(push(&mut client, "p/pr/7", b"two", b"two", "").0, 201);
    running.stop().unwrap();
}

/// nix#1340, nix#3002: a `narinfo` whose file is gone makes every client that asks fail or loop.
#[test]
fn nix_1340_narinfo_without_its_file_is_a_miss_and_can_be_pushed_again() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let token = token("p/main", Access::Write);
    assert_eq!(push(&mut client, "p/main", b"one", b"one", "").0, 201);
    let file = format!("/p/main/-/nix/{}", file_of(b"one"));
    assert_eq!(client.ask("DELETE", &file, Some(&token), None).status, 204);
    assert_eq!(client.ask("HEAD", INFO, None, None).status, 404);
    assert_eq!(client.ask("GET", INFO, None, None).status, 404);
    assert_eq!(client.ask("GET", &file, None, None).status, 404);
    assert_eq!(push(&mut client, "p/main", b"two", b"two", "").0, 201, "the path is free again");
    running.stop().unwrap();
}

/// nix#10275: a proxy or server that compresses once more ends in "input compression not recognized".
#[test]
fn nix_10275_files_of_nix_are_never_coded_anew() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let file = vec![b'a'; 50_000];
    assert_eq!(push(&mut client, "p/main", &file, &file, "").0, 201);
    for path in [INFO.to_owned(), format!("/p/main/-/nix/{}", file_of(&file))] {
        client.send(
            format!("GET {path} HTTP/1.1\r\nHost: cache\r\nAccept-Encoding: gzip, br, zstd\r\n\r\n")
                .as_bytes(),
        );
        let got = client.answer(false);
        assert!(got.status == 200 && !got.head.to_lowercase().contains("content-encoding"), "{}", got.head);
        assert!(got.body == file || got.body == narinfo(&file, &file, "").into_bytes());
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

/// cachix#251: a file that lost its beginning on its way was announced and served for months.
#[test]
fn cachix_251_narinfo_whose_file_unpacks_to_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let plain: Vec<u8> =
        (0..500_000u32).flat_map(|number| number.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    let packed = zstd::bulk::compress(&plain, 1).unwrap();
    assert!(packed.len() > 1 << 20, "it lies in a file of its own");
    put_file(&mut client, "p/main", &packed);
    let good = narinfo(&packed, &plain, "");
    let line = |name: &str| good.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    for (name, wrong, words) in [
        ("NarHash", format!("NarHash: sha256:{}", base32(b"another")), "NarHash"),
        ("NarSize", format!("NarSize: {}", plain.len() + 1), "NarSize"),
        ("NarSize", format!("NarSize: {}", plain.len() - 1), "NarSize"),
        ("FileHash", format!("FileHash: sha256:{}", base32(b"another")), "FileHash"),
        ("Compression", "Compression: xz".to_owned(), "NarHash"),
    ] {
        let (status, text) = put_info(&mut client, "p/main", &good.replace(&line(name), &wrong));
        assert!(status == 422 && text.contains(words), "{wrong}: {status} {text}");
    }
    assert_eq!(client.ask("GET", INFO, None, None).status, 404);
    assert_eq!(put_info(&mut client, "p/main", &good).0, 201);
    // what cannot be unpacked here is taken: Nix measures it when it reads
    let strange = good.replace("Compression: zstd", "Compression: br");
    assert_eq!(put_info(&mut client, "p/pr/7", &strange).0, 201);
    // a cut file under the digest that it has
    let cut = &packed[..packed.len() - 40_000];
    put_file(&mut client, "p/pr/8", cut);
    assert_eq!(put_info(&mut client, "p/pr/8", &narinfo(cut, &plain, "")).0, 422);
    running.stop().unwrap();
}

/// nix#1885: whoever got a `narinfo` believes it for 30 days, so its file is there for so long, whatever becomes of the scope.
#[test]
fn nix_1885_file_of_a_narinfo_that_was_served_outlives_quota_and_scope() {
    let folder = tempfile::tempdir().unwrap();
    let now = Arc::new(AtomicI64::new(support::NOW));
    let clock = Arc::clone(&now);
    let options = options(folder.path(), Durability::PageCache);
    write_authority(&options.authority, |snapshot| {
        snapshot.scopes.iter_mut().find(|rule| rule.path.as_str() == "p/pr").unwrap().quota_mib = Some(1);
    });
    let clock: forgeyard_cache::store::Clock =
        Arc::new(move || Timestamp::from_micros(clock.load(Ordering::SeqCst)));
    let running = start(Options { clock, ..options }).unwrap();
    let mut client = Client::new(running.address);
    let file = vec![7; 700_000];
    assert_eq!(push(&mut client, "p/pr/7", &file, &file, "").0, 201);
    let pass = |days: i64| now.fetch_add(days * 86_400_000_000, Ordering::SeqCst);
    let long = |scope: &str| {
        let claims = forgeyard_cache::token::Claims {
            expires_at: Timestamp::from_micros(i64::MAX),
            ..support::claims(scope, Access::Write)
        };
        forgeyard_cache::token::mint(&claims, &support::key()).unwrap().expose().to_owned()
    };
    let fork = long("p/pr/7");
    pass(20);
    assert_eq!(client.ask("GET", &INFO.replace("p/main", "p/pr/7"), Some(&fork), None).status, 200);
    pass(1);
    // another 900 kB: over the quota
    assert_eq!(client.ask("PUT", "/-/kv/more", Some(&fork), Some(&vec![8; 900_000])).status, 201);
    running.maintain().unwrap();
    assert_eq!(client.ask("GET", "/-/kv/more", Some(&fork), None).status, 404, "the quota took it");
    let admin = forgeyard_cache::token::Claims {
        expires_at: Timestamp::from_micros(i64::MAX),
        ..support::claims("p/main", Access::Admin)
    };
    let admin = forgeyard_cache::token::mint(&admin, &support::key()).unwrap().expose().to_owned();
    let dropped = client.ask("DELETE", "/-/admin/entries?scope=p/pr/7", Some(&admin), None);
    assert_eq!(dropped.status, 200);
    assert_eq!(client.ask("GET", &INFO.replace("p/main", "p/pr/7"), Some(&fork), None).status, 404);
    pass(28);
    running.maintain().unwrap();
    let path = format!("/p/pr/7/-/nix/{}", file_of(&file));
    assert_eq!(client.ask("GET", &path, Some(&fork), None).body, file, "29 days after the narinfo");
    // poison goes all the same
    let purged = client.ask("DELETE", "/-/admin/entries?writer=job%20of%20p%2Fpr%2F7", Some(&admin), None);
    assert_eq!(purged.status, 200);
    assert_eq!(client.ask("GET", &path, Some(&fork), None).status, 404);
    running.stop().unwrap();
}

/// attic#24: a push that broke off goes on with what is missing. A client of Nix asks for each file before it sends it.
#[test]
fn attic_24_push_of_nix_that_broke_off_goes_on_with_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let token = token("p/main", Access::Write);
    let file = vec![9; 3_000_000];
    put_file(&mut client, "p/main", &file);
    drop(client);
    let mut client = Client::new(running.address);
    assert_eq!(client.ask("HEAD", INFO, Some(&token), None).status, 404);
    let path = format!("/p/main/-/nix/{}", file_of(&file));
    assert_eq!(client.ask("HEAD", &path, Some(&token), None).status, 200, "it is not sent again");
    assert_eq!(put_info(&mut client, "p/main", &narinfo(&file, &file, "")).0, 201);
    running.stop().unwrap();
}
