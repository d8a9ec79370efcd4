//! ByteStream: plain and compressed, whole and in parts.

use super::*;

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

/// attic#24, attic#287: a write whose connection broke goes on from where the server says that it stands, plain or compressed.
#[rstest::rstest]
#[tokio::test]
async fn attic_24_write_that_broke_off_goes_on_where_it_stood(#[values(false, true)] compressed: bool) {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    let bytes = noise(3 << 20, 9);
    let of = digest(&bytes);
    let wire_bytes = if compressed { frames(&bytes, 200_000) } else { bytes.clone() };
    let name = main.upload_name(compressed, &of);
    let message = |offset: usize, data: &[u8], finish_write: bool| wire::WriteRequest {
        resource_name: name.clone(),
        write_offset: offset as i64,
        finish_write,
        data: data.to_vec().into(),
    };
    let half = wire_bytes.len() / 2;
    let pieces: Vec<_> = wire_bytes[..half]
        .chunks(70_000)
        .enumerate()
        .map(|(at, piece)| message(at * 70_000, piece, false))
        .collect();
    // the client is gone in the middle: what it sends never ends
    let messages = tokio_stream::StreamExt::chain(tokio_stream::iter(pieces), tokio_stream::pending());
    let gone = tokio::time::timeout(std::time::Duration::from_millis(300), main.write_raw(messages)).await;
    assert!(gone.is_err());
    let ask = async |remote: &Remote| {
        let request = wire::QueryWriteStatusRequest { resource_name: name.clone() };
        let path = "google.bytestream.ByteStream/QueryWriteStatus";
        let answer: wire::QueryWriteStatusResponse = remote.unary(path, request).await.unwrap().into_inner();
        answer
    };
    let mut status = ask(&main).await;
    for _ in 0..500 {
        if status.committed_size > 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        status = ask(&main).await;
    }
    assert!(!status.complete && status.committed_size > 0, "{status:?}");
    let fork = remote(&running, "p/pr/7", Access::Write).await;
    let other = wire::QueryWriteStatusRequest { resource_name: name.replace("p/main", "p/pr/7") };
    let seen: wire::QueryWriteStatusResponse =
        fork.unary("google.bytestream.ByteStream/QueryWriteStatus", other).await.unwrap().into_inner();
    assert_eq!(seen.committed_size, 0, "what another began is nobody's business");
    let at = status.committed_size as usize;
    let wrong =
        main.write_raw(tokio_stream::iter([message(at + 1, &wire_bytes[at + 1..], true)])).await.unwrap_err();
    assert!(wrong.message().contains(&format!("at offset {at}")), "{}", wrong.message());
    let rest: Vec<_> =
        [message(at, &wire_bytes[at..at + 1000], false), message(at + 1000, &wire_bytes[at + 1000..], true)]
            .into();
    main.write_raw(tokio_stream::iter(rest)).await.unwrap();
    assert!(main.read(&of, false, 0, 0).await.unwrap() == bytes);
    assert!(ask(&main).await.complete);
}
