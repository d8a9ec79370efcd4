//! Files of Nix at the addresses of another server, as requests: who sees them, ranges, bounds. The real client is in
//! `nix_foreign.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::token::Access;
use forgeyard_model::Digest;
use std::time::{Duration, Instant};
use support::narinfo::{base32, file_of};
use support::{Answer, Client, service, token};

const STORE: &str = "00000000000000000000000000000abc";

/// Pushes what a file unpacks to, as `nix copy` does; `zstd` unless it is that itself.
fn push(client: &mut Client, scope: &str, file: &[u8], plain: &[u8]) {
    let compression = if file == plain { "none" } else { "zstd" };
    assert_eq!(push_as(client, scope, file, plain, compression, STORE), 201);
}

fn push_as(
    client: &mut Client,
    scope: &str,
    file: &[u8],
    plain: &[u8],
    compression: &str,
    store: &str,
) -> u16 {
    let (token, address) = (token(scope, Access::Write), format!("/{scope}/-/nix"));
    let put = client.ask("PUT", &format!("{address}/{}", file_of(file)), Some(&token), Some(file));
    assert!(matches!(put.status, 200 | 201), "{}", put.head);
    let info = format!(
        "StorePath: /nix/store/{store}-hand\nURL: {}\nCompression: {compression}\nFileSize: {}\n\
         NarHash: sha256:{}\nNarSize: {}\nReferences: \n",
        file_of(file),
        file.len(),
        base32(plain),
        plain.len(),
    );
    client.ask("PUT", &format!("{address}/{store}.narinfo"), Some(&token), Some(info.as_bytes())).status
}

fn packed(plain: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(plain, 1).unwrap()
}

/// As harmonia calls it.
fn harmonia(plain: &[u8]) -> String {
    format!("/p/main/-/nix/nar/{}.nar?hash={STORE}", base32(plain))
}

/// What was unpacked is whole, has its length and its digest, and is served in parts; the parts are those of the whole.
#[test]
fn harmonia_248_packed_file_is_unpacked_while_it_is_sent_as_a_whole_and_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    // a small one lies in the log, a large one in a file of its own
    for size in [50_000, 5 << 20] {
        let mut state = 7u64;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 60) as u8
        };
        let plain: Vec<u8> = std::iter::repeat_with(next).take(size).collect();
        let file = packed(&plain);
        let store = format!("{:032}", size);
        assert_eq!(push_as(&mut client, "p/main", &file, &plain, "zstd", &store), 201);
        let address = harmonia(&plain);
        let got = client.ask("GET", &address, None, None);
        assert!(got.status == 200 && got.body == plain, "{}", got.head);
        assert!(got.head.contains(&Digest::of(&plain).hex()), "{}", got.head);
        let by_nix_serve = format!("/p/main/-/nix/nar/{STORE}-{}.nar", base32(&plain));
        assert!(client.ask("GET", &by_nix_serve, None, None).body == plain);
        // the same, compressed as it is here
        let same = client.ask("GET", &format!("/p/main/-/nix/nar/{}.nar.zst", base32(&plain)), None, None);
        assert!(same.body == file, "{}", same.head);
        for (first, last) in [(0, 0), (1, 40_000), (size - 1, size - 1), (size / 2, size - 1)] {
            client.send(
                format!("GET {address} HTTP/1.1\r\nHost: c\r\nRange: bytes={first}-{last}\r\n\r\n")
                    .as_bytes(),
            );
            let part = client.answer(false);
            assert!(part.status == 206 && part.body == plain[first..=last], "{}", part.head);
        }
        client.send(format!("GET {address} HTTP/1.1\r\nHost: c\r\nRange: bytes={size}-\r\n\r\n").as_bytes());
        assert_eq!(client.answer(false).status, 416);
    }
    running.stop().unwrap();
}

/// A file is seen at a foreign address by whoever sees its `narinfo`, and it is seen after a restart; not when it was removed.
#[test]
fn harmonia_248_foreign_address_shows_nobody_what_another_scope_has() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let (of_main, of_fork) = (b"what main built".repeat(50), b"what a fork built".repeat(50));
    push(&mut client, "p/main", &packed(&of_main), &of_main);
    push(&mut client, "p/pr/7", &packed(&of_fork), &of_fork);
    let (fork, other) = (token("p/pr/7", Access::Write), token("p/pr/8", Access::Write));
    let shown = |client: &mut Client, plain: &[u8]| {
        let tokens = [None, Some(other.as_str()), Some(fork.as_str())];
        let answers = tokens.map(|token| client.ask("GET", &harmonia(plain), token, None));
        answers.map(|answer| answer.status == 200 && answer.body == plain)
    };
    assert_eq!(shown(&mut client, &of_main), [true, true, true]);
    assert_eq!(shown(&mut client, &of_fork), [false, false, true]);
    // nobody writes or reads what says where a file is
    let main = token("p/main", Access::Write);
    for path in [Digest::of(&of_fork).hex(), format!("nar/{}", Digest::of(&of_fork).hex())] {
        for surface in ["nix", "kv"] {
            let address = format!("/p/pr/7/-/{surface}/{path}");
            assert_eq!(client.ask("GET", &address, Some(&fork), None).status, 404, "{address}");
        }
    }
    let forged = format!("zstd 5 {}\n", file_of(&packed(&of_main)));
    let address = format!("/p/main/-/nix/{}", Digest::of(b"forged").hex());
    client.ask("PUT", &address, Some(&main), Some(forged.as_bytes()));
    assert_eq!(client.ask("GET", &harmonia(b"forged"), None, None).status, 404);
    running.stop().unwrap();

    let running = service(folder.path());
    let mut client = Client::new(running.address);
    assert_eq!(shown(&mut client, &of_main), [true, true, true]);
    let file = format!("/p/main/-/nix/{}", file_of(&packed(&of_main)));
    assert_eq!(client.ask("DELETE", &file, Some(&main), None).status, 204);
    assert_eq!(shown(&mut client, &of_main), [false, false, false]);
    // and it is there again when somebody pushes it again, compressed in another way too
    push_as(&mut client, "p/main", &of_main, &of_main, "none", STORE);
    assert_eq!(shown(&mut client, &of_main), [true, true, true]);
    running.stop().unwrap();
}

/// `nix copy --to` asks with HEAD whether it has to send a file. What is here compressed in another way is not that file; said to be
/// here, the file would not come, and its `narinfo` would be refused.
#[test]
fn harmonia_248_file_that_is_here_in_another_form_is_still_to_be_sent() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let plain = b"a path".repeat(100);
    push(&mut client, "p/main", &packed(&plain), &plain);
    let address = format!("/p/main/-/nix/{}", file_of(&plain));
    assert_eq!(client.ask("GET", &address, None, None).status, 200);
    assert_eq!(client.ask("HEAD", &address, None, None).status, 404);
    // one that could not be looked into has no foreign address
    let other = b"another path".repeat(100);
    let store = STORE.replace("abc", "abd");
    assert_eq!(push_as(&mut client, "p/main", &packed(&other), &other, "br", &store), 201);
    assert_eq!(client.ask("GET", &harmonia(&other), None, None).status, 404);
    running.stop().unwrap();
}

/// At most four are unpacked at a time, however slowly their readers read; one more is a miss, and the next one after a reader
/// left is not.
#[test]
fn harmonia_248_unpacking_is_bounded_and_whoever_comes_later_gets_a_clean_miss() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let plain = vec![7; 48 << 20];
    push(&mut client, "p/main", &packed(&plain), &plain);
    let ask = |client: &mut Client| client.ask("GET", &harmonia(&plain), None, None);
    let mut slow: Vec<Client> = (0..4).map(|_| Client::new(running.address)).collect();
    for reader in &mut slow {
        reader.send(format!("GET {} HTTP/1.1\r\nHost: c\r\n\r\n", harmonia(&plain)).as_bytes());
        // its turn has begun
        reader.stream.peek(&mut [0]).unwrap();
    }
    let missed = ask(&mut client);
    assert_eq!((missed.status, missed.body.len()), (404, 0));
    slow.pop();
    let deadline = Instant::now() + Duration::from_secs(60);
    let got: Answer = loop {
        let got = ask(&mut client);
        if got.status == 200 {
            break got;
        }
        assert!(Instant::now() < deadline, "no turn came free");
    };
    assert!(got.body == plain);
    running.stop().unwrap();
}
