//! The Remote Execution API over gRPC. *Protocol tests*: a client of tonic says on the wire what Bazel, Buck2, Siso and recc
//! say. What Bazel 4.2.3 itself does is in `bazel_grpc.rs`.

#![cfg(feature = "grpc")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

#[path = "support/grpc.rs"]
mod grpc;
mod support;

use forgeyard_cache::grpc::wire::{self, Digest};
use forgeyard_cache::service::Running;
use forgeyard_cache::token::Access;
use grpc::{ActionResult, Directory, OutputDirectory, OutputFile, Remote, Tree, digest, result};
use prost::Message as _;
use std::io::Write as _;
use support::{Client, service, token, write_authority};
use tonic::Code;

const EMPTY: &[u8] = b"";

fn start() -> (tempfile::TempDir, Running) {
    let folder = tempfile::tempdir().unwrap();
    // it makes runtimes of its own, which it could not on the thread of one
    let running = std::thread::scope(|threads| threads.spawn(|| service(folder.path())).join().unwrap());
    (folder, running)
}

async fn remote(running: &Running, scope: &str, access: Access) -> Remote {
    Remote::new(running.address, Some(token(scope, access)), "p/main").await
}

/// Bytes that do not compress.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// As many frames as there are pieces.
fn frames(bytes: &[u8], piece: usize) -> Vec<u8> {
    bytes.chunks(piece).flat_map(|some| zstd::bulk::compress(some, 3).unwrap()).collect()
}

fn metric(running: &Running, line: &str) -> u64 {
    let metrics = Client::new(running.address).ask("GET", "/metrics", None, None).body;
    let metrics = String::from_utf8(metrics).unwrap();
    let found = metrics.lines().find_map(|one| one.strip_prefix(line)).map(str::trim);
    found.map_or(0, |number| number.parse().unwrap())
}

#[tokio::test]
async fn fork_reads_main_over_grpc_and_writes_only_to_itself() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    let fork = remote(&running, "p/pr/7", Access::Write).await;
    let other = remote(&running, "p/pr/8", Access::Write).await;
    let stranger = Remote::new(running.address, None, "p/main").await;
    assert_eq!(main.put(&[b"object"]).await, [0]);
    main.update(b"compile", &result(&[b"object"])).await.unwrap();
    for reader in [&main, &fork, &other, &stranger] {
        assert!(reader.has(b"object").await);
        assert_eq!(reader.action(b"compile").await.unwrap(), result(&[b"object"]));
        assert_eq!(reader.read(&digest(b"object"), false, 0, 0).await.unwrap(), b"object");
    }
    assert_eq!(fork.put(&[b"poison"]).await, [0]);
    fork.update(b"compile", &result(&[b"poison"])).await.unwrap();
    assert_eq!(fork.action(b"compile").await.unwrap(), result(&[b"poison"]), "its own");
    for reader in [&main, &other, &stranger] {
        assert_eq!(reader.action(b"compile").await.unwrap(), result(&[b"object"]));
        assert!(!reader.has(b"poison").await);
    }
    // entries are those of Bazel over HTTP
    let mut http = Client::new(running.address);
    let path = format!("/p/main/-/bazel/cas/{}", digest(b"object").hash);
    assert_eq!(http.ask("GET", &path, None, None).body, b"object");
    // another instance: the scope of the token, a scope that is not allowed, and no scope at all
    for (instance, has) in [("", true), ("p/pr/8", false), ("secret", false), ("../main", false)] {
        let mut asked = fork.clone();
        asked.instance = instance.to_owned();
        assert_eq!(asked.has(b"poison").await, has, "{instance}");
    }
    running.stop().unwrap();
}

#[tokio::test]
async fn first_result_of_a_trusted_scope_stays_and_the_second_is_an_alarm() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    main.put(&[b"one", b"two"]).await;
    main.update(b"a", &result(&[b"one"])).await.unwrap();
    main.update(b"a", &result(&[b"two"])).await.unwrap();
    assert_eq!(main.action(b"a").await.unwrap(), result(&[b"one"]));
    assert_eq!(metric(&running, "forgeyard_cache_mismatches_total{scope=\"p/main\",surface=\"reapi\"}"), 1);
}

/// What one scope has shows in no answer to another: not in a batch, not in the status of an upload, not in how an upload
/// ends. Whoever wants a name for it has to show all of its bytes.
#[tokio::test]
async fn existence_in_another_scope_shows_in_no_answer() {
    let (_folder, running) = start();
    let secret = Remote::new(running.address, Some(token("secret", Access::Write)), "secret").await;
    let fork = remote(&running, "p/pr/7", Access::Write).await;
    let bytes = noise(200_000, 1);
    let of = digest(&bytes);
    assert_eq!(secret.put(&[&bytes]).await, [0]);
    let never = digest(&noise(200_000, 2));
    assert_eq!(fork.missing(&[of.clone(), never.clone()]).await, [of.clone(), never.clone()]);
    assert!(!fork.query(&of).await.complete);
    for digest in [&of, &never] {
        assert_eq!(fork.read(digest, false, 0, 0).await.unwrap_err().code(), Code::NotFound);
        // other bytes, and only the first of them
        let wrong = fork.write(digest, false, vec![noise(200_000, 3)]).await.unwrap_err();
        assert_eq!(wrong.code(), Code::InvalidArgument);
        let cut = fork.write(digest, false, vec![bytes[..1000].to_vec()]).await.unwrap_err();
        assert_eq!(cut.code(), Code::InvalidArgument);
        assert!(!fork.missing(std::slice::from_ref(digest)).await.is_empty());
    }
    assert_eq!(fork.write(&of, false, vec![bytes.clone()]).await.unwrap(), 200_000);
    assert!(fork.has(&bytes).await);
}

#[tokio::test]
async fn bazel_15279_malformed_digest_fails_alone() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    assert_eq!(main.put(&[b"good"]).await, [0]);
    let bad = |hash: &str, size_bytes| Digest { hash: hash.to_owned(), size_bytes };
    let upper = bad(&digest(b"good").hash.to_uppercase(), 4);
    let wrong =
        [bad("", 103), bad(&digest(EMPTY).hash, 103), bad("zz", 1), upper, bad(&digest(b"good").hash, -1)];
    let mut asked = wrong.to_vec();
    asked.insert(2, digest(b"good"));
    assert_eq!(main.missing(&asked).await, wrong, "all but the good one");
    let mut asked = wrong[1..3].to_vec();
    asked.push(digest(b"good"));
    let read = main.get_all(&asked, false).await.unwrap();
    let codes: Vec<i32> = read.iter().map(|one| one.status.as_ref().unwrap().code).collect();
    assert_eq!(codes, [Code::InvalidArgument as i32, Code::InvalidArgument as i32, 0]);
    assert_eq!(read[2].data, &b"good"[..]);
    let blob = |digest: Digest, data: &[u8]| wire::UpdateBlob {
        digest: Some(digest),
        data: data.to_vec().into(),
        compressor: 0,
    };
    let put = vec![
        blob(wrong[0].clone(), b"x"),
        blob(digest(b"new"), b"new"),
        blob(digest(b"old"), b"other bytes"),
    ];
    let answer = main.put_all(put).await.unwrap().into_inner().responses;
    let codes: Vec<i32> = answer.iter().map(|one| one.status.as_ref().unwrap().code).collect();
    assert_eq!(codes, [Code::InvalidArgument as i32, 0, Code::InvalidArgument as i32]);
    assert!(main.has(b"new").await && !main.has(b"old").await);
}

#[tokio::test]
async fn bazel_11063_empty_content_is_always_there_over_grpc() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    assert!(main.has(EMPTY).await);
    assert_eq!(main.read(&digest(EMPTY), false, 0, 0).await.unwrap(), EMPTY);
    let compressed = main.read(&digest(EMPTY), true, 0, 0).await.unwrap();
    assert_eq!(zstd::decode_all(&compressed[..]).unwrap(), EMPTY);
    assert_eq!(main.get_all(&[digest(EMPTY)], false).await.unwrap()[0].status.as_ref().unwrap().code, 0);
    assert_eq!(main.write(&digest(EMPTY), false, vec![Vec::new()]).await.unwrap(), 0);
    // bazel-remote#233: a result may refer to it although nobody sent it
    main.update(b"touch", &result(&[EMPTY])).await.unwrap();
    assert!(main.action(b"touch").await.is_ok());
}

#[tokio::test]
async fn bazel_18696_result_without_its_contents_is_refused_and_later_a_miss() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    assert_eq!(main.action(b"a").await.unwrap_err().code(), Code::NotFound);
    let refused = main.update(b"a", &result(&[b"x"])).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    main.put(&[b"x", b"in a tree"]).await;
    // files in a tree, and below a directory that has no tree
    let file = |bytes: &[u8]| OutputFile { path: "f".to_owned(), digest: Some(digest(bytes)) };
    let below = Directory { files: vec![file(b"deep")], directories: Vec::new() }.encode_to_vec();
    let root = Directory { files: vec![file(b"x")], directories: vec![file(&below)] }.encode_to_vec();
    let tree = Tree { root: Some(Directory::decode(&root[..]).unwrap()) }.encode_to_vec();
    let directory = |tree: Option<&[u8]>, root: Option<&[u8]>| ActionResult {
        output_directories: vec![OutputDirectory {
            path: "d".to_owned(),
            tree_digest: tree.map(digest),
            root_directory_digest: root.map(digest),
        }],
        ..ActionResult::default()
    };
    for whole in [directory(Some(&tree), None), directory(None, Some(&root))] {
        assert_eq!(main.update(b"dir", &whole).await.unwrap_err().code(), Code::FailedPrecondition);
    }
    main.put(&[&tree, &root, &below]).await;
    assert!(main.update(b"dir", &directory(Some(&tree), None)).await.is_ok());
    assert_eq!(
        main.update(b"root", &directory(None, Some(&root))).await.unwrap_err().code(),
        Code::FailedPrecondition
    );
    main.put(&[b"deep"]).await;
    let with_fields = ActionResult { of_tomorrow: "kept".to_owned(), ..directory(None, Some(&root)) };
    main.update(b"root", &with_fields).await.unwrap();
    assert_eq!(
        main.action(b"root").await.unwrap(),
        with_fields,
        "fields that the server does not know are kept"
    );
    // the contents go, as when somebody purged them
    let admin = token("admin", Access::Admin);
    let mut http = Client::new(running.address);
    let gone = format!("/-/admin/entries?scope=p%2Fmain&prefix={}", digest(b"deep").hash);
    assert_eq!(http.ask("DELETE", &gone, Some(&admin), None).body, b"{\"removed\":1}\n");
    assert_eq!(main.action(b"root").await.unwrap_err().code(), Code::NotFound);
    main.put(&[b"deep"]).await;
    assert_eq!(main.action(b"root").await.unwrap_err().code(), Code::NotFound, "it was dropped");
    // and can be stored again, also where the first one would stay
    main.update(b"root", &with_fields).await.unwrap();
    assert!(main.action(b"root").await.is_ok());
}

#[tokio::test]
async fn result_that_lost_its_contents_gives_way_in_a_trusted_scope() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    main.put(&[b"one", b"two"]).await;
    main.update(b"a", &result(&[b"one"])).await.unwrap();
    let admin = token("admin", Access::Admin);
    let gone = format!("/-/admin/entries?scope=p%2Fmain&prefix={}", digest(b"one").hash);
    Client::new(running.address).ask("DELETE", &gone, Some(&admin), None);
    // Bazel does not ask first with --noremote_accept_cached
    main.update(b"a", &result(&[b"two"])).await.unwrap();
    assert_eq!(main.action(b"a").await.unwrap(), result(&[b"two"]));
}

/// bazel#8250, #19348: whoever was told of a result can fetch its files for as long as a build takes, whatever else is stored.
#[tokio::test]
async fn bazel_8250_files_of_an_action_hit_outlive_the_quota() {
    let (folder, running) = start();
    write_authority(&folder.path().join("authority.json"), |authority| {
        authority.scopes.iter_mut().for_each(|scope| scope.quota_mib = Some(1));
    });
    let main = remote(&running, "p/main", Access::Write).await;
    let object = noise(300_000, 1);
    let linked = noise(300_000, 2);
    main.put(&[&object, &linked]).await;
    main.update(b"compile", &result(&[&object])).await.unwrap();
    main.action(b"compile").await.unwrap();
    assert!(main.has(&linked).await, "told that it is here");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut round = 10;
    // until the new authority is in force and something had to go
    loop {
        let more = noise(300_000, round);
        let stored = main.put(&[&more]).await;
        running.maintain().unwrap();
        let gone = Client::new(running.address)
            .ask("GET", &format!("/p/main/-/bazel/cas/{}", digest(&more).hash), None, None)
            .status;
        if gone == 404 {
            assert!(stored == [0] || stored == [Code::ResourceExhausted as i32]);
            break;
        }
        assert!(std::time::Instant::now() < end, "nothing was evicted");
        round += 1;
    }
    assert_eq!(main.read(&digest(&object), false, 0, 0).await.unwrap(), object);
    assert_eq!(main.read(&digest(&linked), false, 0, 0).await.unwrap(), linked);
    assert!(main.action(b"compile").await.is_ok());
}

/// bazel#16808, buildfarm#1200: Bazel makes a frame of each piece, and the pieces of the wire are cut elsewhere.
#[tokio::test]
async fn bazel_16808_frames_are_put_together_wherever_they_are_cut() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    let text: Vec<u8> = (0..400_000u32).flat_map(|at| (at / 7).to_le_bytes()).collect();
    for (number, size) in [1usize, 70_000, 1 << 20, text.len()].into_iter().enumerate() {
        for (frame, cut) in [(64 << 10, 64 << 10), (1000, 777), (size, 13_001)] {
            let bytes: Vec<u8> = [&[number as u8, (frame % 251) as u8], &text[..size]].concat();
            let wire = frames(&bytes, frame);
            let pieces = wire.chunks(cut).map(<[u8]>::to_vec).collect();
            let committed = main.write(&digest(&bytes), true, pieces).await.unwrap();
            assert_eq!(committed, wire.len() as i64, "what Bazel counts");
            assert!(main.read(&digest(&bytes), false, 0, 0).await.unwrap() == bytes);
            let back = main.read(&digest(&bytes), true, 0, 0).await.unwrap();
            assert!(zstd::decode_all(&back[..]).unwrap() == bytes);
            // after a failure Bazel goes on from an offset of the content
            let from = bytes.len() / 3;
            let back = main.read(&digest(&bytes), true, from as i64, 0).await.unwrap();
            assert!(zstd::decode_all(&back[..]).unwrap() == bytes[from..]);
        }
    }
}

#[tokio::test]
async fn compressed_bomb_ends_at_the_declared_size() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    let zeros = vec![0; 60 << 20];
    let bomb = zstd::bulk::compress(&zeros, 19).unwrap();
    assert!(bomb.len() < 20_000);
    for size_bytes in [1, 100_000, 2 << 20] {
        let declared = Digest { hash: digest(&zeros).hash, size_bytes };
        let refused = main.write(&declared, true, vec![bomb.clone()]).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("longer than its digest says"), "{refused}");
        let blob =
            wire::UpdateBlob { digest: Some(declared), data: bomb.clone().into(), compressor: wire::ZSTD };
        let answer = main.put_all(vec![blob]).await.unwrap().into_inner();
        assert_eq!(answer.responses[0].status.as_ref().unwrap().code, Code::InvalidArgument as i32);
    }
    let too_large = Digest { hash: digest(b"x").hash, size_bytes: 1 << 40 };
    assert_eq!(main.write(&too_large, true, vec![bomb]).await.unwrap_err().code(), Code::InvalidArgument);
    let good = noise(50_000, 1);
    let wire = frames(&good, 9000);
    for broken in [wire[..wire.len() - 1].to_vec(), good.clone(), [&wire[..], b"more"].concat(), Vec::new()] {
        let refused = main.write(&digest(&good), true, vec![broken]).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    assert!(!main.has(&good).await);
    // a window of 128 MiB in the head of a frame of a few bytes
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    encoder.write_all(b"few").unwrap();
    let wide = encoder.finish().unwrap();
    assert_eq!(
        main.write(&digest(b"few"), true, vec![wide]).await.unwrap_err().code(),
        Code::InvalidArgument
    );
}

/// bazel#14654, bazel#30000: what each client takes for a content that is here already.
#[rstest::rstest]
#[case("bazel", "4.2.3", None)]
#[case("bazel", "5.0.0", None)]
#[case("bazel", "5.1.0", Some(-1))]
#[case("bazel", "8.3.1", Some(-1))]
#[case("buck2", "2026-01-01", Some(-1))]
#[case("siso", "1.4", Some(90_000))]
#[case("recc", "1.3", None)]
#[tokio::test]
async fn bazel_14654_bazel_30000_each_client_gets_the_committed_size_that_it_takes(
    #[case] tool: &str,
    #[case] version: &str,
    #[case] early: Option<i64>,
) {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await.tool(tool, version);
    let bytes = vec![7; 90_000];
    let wire = frames(&bytes, 1000);
    let pieces: Vec<Vec<u8>> = wire.chunks(100).map(<[u8]>::to_vec).collect();
    let first = main.write(&digest(&bytes), true, pieces.clone()).await.unwrap();
    assert_eq!(first, if tool == "siso" { 90_000 } else { wire.len() as i64 });
    let again = main.write(&digest(&bytes), true, pieces).await.unwrap();
    assert_eq!(again, early.unwrap_or(wire.len() as i64));
    assert_eq!(
        main.write(&digest(&bytes), false, vec![bytes.clone()]).await.unwrap(),
        90_000,
        "remote-apis#212"
    );
}

/// bazel-remote#473: an upload of what is here already ends early, and what its client would still send is not waited for.
#[tokio::test]
async fn bazel_remote_473_repeated_upload_ends_without_its_body() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    let bytes = noise(3 << 20, 1);
    main.write(&digest(&bytes), false, bytes.chunks(100_000).map(<[u8]>::to_vec).collect()).await.unwrap();
    for _ in 0..300 {
        let first = wire::WriteRequest {
            resource_name: main.upload_name(false, &digest(&bytes)),
            data: bytes[..1000].to_vec().into(),
            ..wire::WriteRequest::default()
        };
        // a client that never comes to its end
        let messages = tokio_stream::StreamExt::chain(tokio_stream::once(first), tokio_stream::pending());
        let answer = tokio::time::timeout(std::time::Duration::from_secs(60), main.write_raw(messages)).await;
        assert_eq!(answer.expect("it does not wait").unwrap().into_inner().committed_size, 3 << 20);
    }
    assert!(main.has(&bytes).await, "more calls than a connection may have at once");
}

#[tokio::test]
async fn writes_that_break_the_rules_of_bytestream_are_refused() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    let bytes = noise(5000, 1);
    let name = main.upload_name(false, &digest(&bytes));
    let message =
        |resource_name: &str, write_offset: i64, data: &[u8], finish_write: bool| wire::WriteRequest {
            resource_name: resource_name.to_owned(),
            write_offset,
            finish_write,
            data: data.to_vec().into(),
        };
    let wrong = [
        vec![message(&name, 5, &bytes, true)],
        vec![message(&name, 0, &bytes[..10], false), message("", 11, &bytes[11..], true)],
        vec![
            message(&name, 0, &bytes[..10], false),
            message("p/main/uploads/x/blobs/y/1", 10, &bytes[10..], true),
        ],
        vec![message(&name, 0, &bytes, false)],
        vec![message(&name, 0, &bytes[..10], true)],
        vec![message(&name, 0, &[&bytes[..], b"x"].concat(), true)],
        vec![message("p/main/blobs/x/1", 0, &bytes, true)],
        vec![message(&name, -1, &bytes, true)],
        Vec::new(),
    ];
    for messages in wrong {
        let refused = main.write_raw(tokio_stream::iter(messages)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    assert!(!main.has(&bytes).await);
    let query = main.query(&digest(&bytes)).await;
    assert_eq!((query.committed_size, query.complete), (0, false));
    main.write(&digest(&bytes), false, bytes.chunks(7).map(<[u8]>::to_vec).collect()).await.unwrap();
    let query = main.query(&digest(&bytes)).await;
    assert_eq!((query.committed_size, query.complete), (5000, true));
}

#[tokio::test]
async fn contents_are_read_from_any_offset_up_to_any_limit() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    for size in [5000usize, (3 << 20) + 17] {
        let bytes = noise(size, 1);
        main.write(&digest(&bytes), false, bytes.chunks(200_000).map(<[u8]>::to_vec).collect())
            .await
            .unwrap();
        for (from, limit) in
            [(0, 0), (1, 0), (size / 2, 100), (size - 1, 10), (size, 0), (0, 1 << 20), (1 << 12, 1 << 21)]
        {
            let until = if limit == 0 { size } else { size.min(from + limit) };
            let read = main.read(&digest(&bytes), false, from as i64, limit as i64).await.unwrap();
            assert!(read == bytes[from..until], "{size} {from} {limit}");
        }
        for (compressed, offset, limit, code) in [
            (false, size as i64 + 1, 0, Code::OutOfRange),
            (false, -1, 0, Code::OutOfRange),
            (false, 0, -1, Code::OutOfRange),
            (true, 0, 5, Code::InvalidArgument),
        ] {
            assert_eq!(main.read(&digest(&bytes), compressed, offset, limit).await.unwrap_err().code(), code);
        }
        let other_size = Digest { size_bytes: size as i64 - 1, ..digest(&bytes) };
        assert_eq!(main.read(&other_size, false, 0, 0).await.unwrap_err().code(), Code::NotFound);
    }
}

/// As Buck2, Siso and recc do; Bazel 4.2.3 has no batches.
#[tokio::test]
async fn batches_are_stored_and_read_plain_and_compressed() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await.tool("buck2", "2026-01-01");
    let (text, some) = (vec![b'a'; 100_000], noise(1000, 1));
    let compressed = wire::UpdateBlob {
        digest: Some(digest(&text)),
        data: frames(&text, 30_000).into(),
        compressor: wire::ZSTD,
    };
    let plain = wire::UpdateBlob { digest: Some(digest(&some)), data: some.clone().into(), compressor: 0 };
    let odd = wire::UpdateBlob { digest: Some(digest(b"x")), data: b"x".to_vec().into(), compressor: 3 };
    let answer = main.put_all(vec![compressed, plain, odd]).await.unwrap().into_inner();
    let codes: Vec<i32> = answer.responses.iter().map(|one| one.status.as_ref().unwrap().code).collect();
    assert_eq!(codes, [0, 0, Code::InvalidArgument as i32]);
    let asked = [digest(&text), digest(&some), digest(b"not here")];
    for zstd in [false, true] {
        let read = main.get_all(&asked, zstd).await.unwrap();
        assert_eq!(read[0].compressor, i32::from(zstd));
        let whole = if zstd { zstd::decode_all(&read[0].data[..]).unwrap() } else { read[0].data.to_vec() };
        assert!(whole == text);
        assert_eq!((read[1].compressor, &read[1].data[..]), (0, &some[..]), "noise is sent as it is");
        assert_eq!(read[2].status.as_ref().unwrap().code, Code::NotFound as i32);
    }
    let large = Digest { size_bytes: 3 << 20, ..digest(&text) };
    let refused = main.get_all(&[large.clone(), large], false).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let many = noise(2 << 20, 4);
    let blob = |bytes: &[u8]| wire::UpdateBlob {
        digest: Some(digest(bytes)),
        data: bytes.to_vec().into(),
        compressor: 0,
    };
    let refused = main.put_all(vec![blob(&many), blob(&many[1..])]).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(main.capabilities().await.max_batch_total_size_bytes, 3 << 20);
}

#[tokio::test]
async fn tree_comes_in_pages_and_without_what_is_missing() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    let entry = |bytes: &[u8]| OutputFile { path: "d".to_owned(), digest: Some(digest(bytes)) };
    let leaf = Directory { files: vec![entry(b"f")], directories: Vec::new() }.encode_to_vec();
    let gone = Directory { files: vec![entry(b"gone")], directories: Vec::new() }.encode_to_vec();
    // the leaf twice: it comes once
    let middle =
        Directory { files: Vec::new(), directories: vec![entry(&leaf), entry(&gone)] }.encode_to_vec();
    let root =
        Directory { files: Vec::new(), directories: vec![entry(&middle), entry(&leaf)] }.encode_to_vec();
    assert_eq!(main.tree(&root, 0).await.unwrap_err().code(), Code::NotFound);
    main.put(&[&root, &middle, &leaf]).await;
    let pages = main.tree(&root, 2).await.unwrap();
    let all: Vec<Vec<u8>> =
        pages.iter().flat_map(|page| &page.directories).map(|bytes| bytes.to_vec()).collect();
    assert_eq!(all, [root.clone(), middle, leaf]);
    assert_eq!(pages.iter().map(|page| page.directories.len()).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(main.tree(&root, 0).await.unwrap().len(), 1);
}

/// bb-deployments#51, bazel#16724, buildbuddy#2916: an old Bazel stops when it is told that it may not update.
#[tokio::test]
async fn bb_deployments_51_reader_with_an_old_bazel_may_update_and_nothing_is_kept() {
    let (_folder, running) = start();
    let told = async |tool: &str, version: &str, access| {
        let caller = remote(&running, "p/main", access).await.tool(tool, version);
        caller.capabilities().await.action_cache_update_capabilities.unwrap().update_enabled
    };
    assert!(told("bazel", "4.2.3", Access::Read).await);
    assert!(!told("bazel", "6.0.0", Access::Read).await);
    assert!(!told("buck2", "1", Access::Read).await);
    assert!(told("bazel", "6.0.0", Access::Write).await);
    let stranger = Remote::new(running.address, None, "p/main").await.tool("bazel", "4.2.3");
    assert!(stranger.capabilities().await.action_cache_update_capabilities.unwrap().update_enabled);
}

/// buildbuddy#2249: thrown away, told in a header, counted.
#[tokio::test]
async fn buildbuddy_2249_write_of_a_reader_is_thanked_told_and_counted() {
    let (_folder, running) = start();
    let reader = remote(&running, "p/main", Access::Read).await.tool("bazel", "4.2.3");
    assert_eq!(reader.put(&[b"x"]).await, [0]);
    let bytes = noise(90_000, 1);
    assert_eq!(reader.write(&digest(&bytes), false, vec![bytes.clone()]).await.unwrap(), 90_000);
    let wire = frames(&bytes, 1000);
    let committed = reader.write(&digest(&bytes), true, vec![wire.clone()]).await.unwrap();
    assert_eq!(committed, wire.len() as i64);
    let answer = reader.update(b"a", &result(&[b"x"])).await.unwrap();
    assert_eq!(answer.metadata().get("forgeyard-discarded").unwrap(), "this caller may not write here");
    assert_eq!(answer.into_inner(), result(&[b"x"]));
    assert!(!reader.has(b"x").await && !reader.has(&bytes).await);
    assert_eq!(reader.action(b"a").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(metric(&running, "forgeyard_cache_denied_total{scope=\"p/main\",surface=\"reapi\"}"), 4);
}

/// bazel#16454: what a client shows is enough to find the line in the log.
#[tokio::test]
async fn bazel_16454_refusal_names_digest_reason_and_number() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    let refused = main.write(&digest(b"x"), false, vec![b"y".to_vec()]).await.unwrap_err();
    let text = refused.message();
    assert!(text.contains(&digest(b"x").hash) && text.contains("do not have the digest"), "{text}");
    assert!(text.contains("(refusal "), "{text}");
    let mut http = Client::new(running.address);
    let path = format!("/p/main/-/bazel/cas/{}", digest(b"x").hash);
    let refused = http.ask("PUT", &path, Some(&token("p/main", Access::Write)), Some(b"y"));
    let text = String::from_utf8(refused.body).unwrap();
    assert_eq!(refused.status, 422);
    assert!(text.contains(&digest(b"x").hash) && text.contains("(refusal "), "{text}");
    let refused = http.ask("PUT", "/p/main/-/kv/some/key", None, Some(b"y"));
    let text = String::from_utf8(refused.body).unwrap();
    assert_eq!(refused.status, 403);
    assert!(
        text.contains("some/key") && text.contains("may not write") && text.contains("(refusal "),
        "{text}"
    );
}

#[tokio::test]
async fn health_is_served_and_what_is_not_here_is_unimplemented() {
    let (_folder, running) = start();
    let anybody = Remote::new(running.address, None, "").await;
    let ask = |service: &str| wire::HealthCheckRequest { service: service.to_owned() };
    let path = "grpc.health.v1.Health/Check";
    let answer = anybody.unary::<_, wire::HealthCheckResponse>(path, ask("")).await.unwrap();
    assert_eq!(answer.into_inner().status, 1);
    let unknown = anybody.unary::<_, wire::HealthCheckResponse>(path, ask("x.Y")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    for path in ["build.bazel.remote.execution.v2.Execution/Execute", "grpc.health.v1.Health/x"] {
        let refused = anybody.unary::<_, wire::HealthCheckResponse>(path, ask("")).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented);
    }
    let function =
        wire::FindMissingBlobsRequest { digest_function: 9, ..wire::FindMissingBlobsRequest::default() };
    let path = "build.bazel.remote.execution.v2.ContentAddressableStorage/FindMissingBlobs";
    let refused = anybody.unary::<_, wire::FindMissingBlobsResponse>(path, function).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "BLAKE3 is not spoken: {refused}");
}
