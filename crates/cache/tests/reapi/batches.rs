//! Batches and trees.

use super::*;

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
