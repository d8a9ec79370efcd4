//! Blocks, their lists, and addresses that are signed.

use super::*;

/// actions/cache#757, #472: restoring an archive that was cut off succeeded.
#[test]
fn actions_cache_757_upload_that_is_cut_off_or_of_another_size_becomes_no_entry() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, _) = main_and_fork();
    // a zstd frame with one raw block of eight bytes, whole and cut
    let whole = [&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58, 8 << 3 | 1, 0, 0][..], b"contents"].concat();
    for (uploaded, promised) in
        [(&whole[..], whole.len() + 1), (&whole[..], 0), (&whole[..whole.len() - 1], whole.len() - 1)]
    {
        let url = cache.reserved(&main, "k");
        assert_eq!(cache.put(&url, uploaded).status, 201);
        let (status, body) = cache.finalize(&main, "k", promised);
        assert!(status == 400 && body["code"] == "invalid_argument", "{body}");
        assert_eq!(cache.look(&main, "k", &[])["ok"], false);
    }
    let url = cache.reserved(&main, "k");
    assert_eq!(cache.finalize(&main, "k", 0).0, 412, "not committed");
    assert_eq!(cache.put(&url, &whole).status, 201);
    assert_eq!(cache.finalize(&main, "k", whole.len()).0, 200);
    assert_eq!(
        cache.finalize(&main, "k", whole.len()).0,
        200,
        "the answer was lost, and the client asks again"
    );
    let found = cache.look(&main, "k", &[]);
    let url = path_of(&found["signed_download_url"]);
    let answer = cache.client.ask("GET", &url, None, None);
    assert!(answer.body == whole && answer.head.contains(&Digest::of(&whole).hex()), "the digest is the tag");
}

/// An entry of sccache is a ZIP, and is looked into.
#[test]
fn object_of_sccache_whose_checksum_does_not_hold_becomes_no_entry() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, _) = main_and_fork();
    let key = format!("sccache/a/b/c/abc{}", "0".repeat(61));
    let url = cache.reserved(&main, &key);
    assert_eq!(cache.put(&url, b"PK\x03\x04 and no end").status, 201);
    let (status, body) = cache.finalize(&main, &key, 15);
    assert!(status == 400 && body["msg"].as_str().unwrap().contains("ZIP"), "{body}");
    cache.save(&main, "sccache/.sccache_check", b"Hello, World!");
}

/// falcondev#65, #235: caches were cut off because parts were merged later, and by the shape of their ids.
#[rstest::rstest]
fn falcondev_65_blocks_are_put_together_by_their_list_alone_and_at_once(
    #[values(Durability::PageCache, Durability::Group)] durability: Durability,
) {
    let mut cache = Cache::start(durability);
    let (main, _) = main_and_fork();
    let url = cache.reserved(&main, "k");
    let blocks: Vec<(String, Vec<u8>)> = [(2_u8, 3_000_000_usize), (0, 10), (1, 1_500_000), (9, 77)]
        .into_iter()
        .map(|(number, length)| (format!("{number}{}", "A".repeat(63)), vec![number; length]))
        .collect();
    for (id, bytes) in &blocks {
        assert_eq!(cache.put(&format!("{url}&comp=block&blockid={id}"), bytes).status, 201);
    }
    // the same id again replaces the block
    let again = format!("{url}&comp=block&blockid={}", blocks[1].0);
    assert_eq!(cache.put(&again, b"0123456789ab").status, 201);
    let list = |ids: &[&str]| {
        let inner: String = ids.iter().map(|id| format!("<Latest>{id}</Latest>")).collect();
        format!("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>{inner}</BlockList>")
    };
    let commit = format!("{url}&comp=blocklist");
    for (wrong, status) in [
        (list(&["unknown"]), 400),
        (list(&[&blocks[0].0, &blocks[0].0]), 400),
        ("<BlockList>&a;</BlockList>".to_owned(), 400),
    ] {
        assert_eq!(cache.put(&commit, wrong.as_bytes()).status, status, "{wrong}");
    }
    let right = list(&[&blocks[1].0, &blocks[2].0, &blocks[0].0]);
    let answer = cache.put(&commit, right.as_bytes());
    assert!(
        answer.status == 201
            && answer.head.contains("x-ms-request-id")
            && answer.head.contains("Last-Modified")
    );
    assert_eq!(cache.put(&commit, right.as_bytes()).status, 201, "the answer was lost");
    assert_eq!(cache.put(&commit, list(&[&blocks[0].0]).as_bytes()).status, 409, "another list");
    let expected = [&b"0123456789ab"[..], &blocks[2].1, &blocks[0].1].concat();
    let (status, body) = cache.finalize(&main, "k", expected.len());
    assert_eq!(status, 200, "{body}");
    let found = cache.look(&main, "k", &[]);
    assert!(cache.content(&found) == expected);
    cache.restart();
    let url = path_of(&found["signed_download_url"]);
    let ask = format!("GET {url} HTTP/1.1\r\nHost: x\r\nRange: bytes=10-1500011\r\n\r\n");
    cache.client.send(ask.as_bytes());
    let part = cache.client.answer(false);
    assert!(
        part.status == 206 && part.body == expected[10..1_500_012],
        "URLs outlive a restart, and have ranges"
    );
    assert_eq!(cache.client.ask("HEAD", &url, None, None).status, 200);
}

/// falcondev#259: URLs could be guessed.
#[test]
fn falcondev_259_url_that_is_forged_widened_or_late_is_refused() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, fork) = main_and_fork();
    cache.save(&main, "k", b"content");
    let found = cache.look(&main, "k", &[]);
    let download = path_of(&found["signed_download_url"]);
    let upload = cache.reserved(&fork, "other");
    let status = |cache: &mut Cache, method: &str, url: &str| {
        let mut client = Client::new(cache.running.as_ref().unwrap().address);
        client.ask(method, url, None, Some(b"")).status
    };
    for (method, url) in [
        ("PUT", download.clone()),
        ("GET", upload.clone()),
        ("POST", upload.clone()),
        ("DELETE", download.clone()),
        ("GET", download.replace("sp=d", "sp=u")),
        ("PUT", download.replace("sp=d", "sp=u")),
        ("PUT", upload.replace("sl=", "sl=9")),
        ("PUT", upload.replace("sc=p%2Fpr%2F7", "sc=p%2Fmain")),
        ("GET", download.split('?').next().unwrap().to_owned()),
        ("GET", "/-/github/1".to_owned()),
    ] {
        assert_eq!(status(&mut cache, method, &url), 403, "{method} {url}");
    }
    assert_eq!(status(&mut cache, "GET", &download), 200);
    // the URL is for this content: removed, or replaced, it is a miss
    cache.pass(3601);
    assert_eq!(status(&mut cache, "GET", &download), 403, "an hour later");
    assert_eq!(status(&mut cache, "PUT", &upload), 403);
}

#[test]
fn upload_is_bounded_by_its_url() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, _) = main_and_fork();
    let url = cache.reserved(&main, "k");
    // the service here takes 64 MiB; the body of a promise that is too long is never read
    let mut client = Client::new(cache.running.as_ref().unwrap().address);
    client.send(
        format!("PUT {url} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", (64 << 20) + 1).as_bytes(),
    );
    assert_eq!(client.answer(false).status, 413);
    let block = vec![7; 30 << 20];
    for id in ["YQ", "Yg"] {
        assert_eq!(cache.put(&format!("{url}&comp=block&blockid={id}"), &block).status, 201, "{id}");
    }
    let mut client = Client::new(cache.running.as_ref().unwrap().address);
    let third = format!(
        "PUT {url}&comp=block&blockid=Yw HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        block.len()
    );
    client.send(third.as_bytes());
    assert_eq!(client.answer(false).status, 413);
}
