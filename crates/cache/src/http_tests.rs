use super::*;
use proptest::prelude::*;

fn read(text: &str) -> Result<Head, Wrong> {
    parse(text.as_bytes()).map(|head| head.unwrap().0)
}

#[test]
fn request_that_two_readers_could_frame_differently_is_refused() {
    for headers in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Content-Length: 3\r\nContent-Length: 4",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Content-Length: +3",
        "Content-Length: 3, 3",
        "Content-Length: 0x3",
        "Content-Length : 3",
        "X: a\r\n b",
    ] {
        assert!(read(&format!("PUT /a HTTP/1.1\r\n{headers}\r\n\r\n")).is_err(), "{headers}");
    }
    assert!(read("PUT /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
}

#[test]
fn path_is_decoded_once_and_never_climbs() {
    assert_eq!(path_of("//p//.sccache_check?x=%2e").unwrap(), ("/p/.sccache_check".into(), "x=%2e".into()));
    assert_eq!(path_of("/a%252e").unwrap().0, "/a%2e");
    for wrong in
        ["/a/../b", "/a/%2e%2e/b", "/a/%2E./b", "/.", "a", "*", "/a%00", "/a%0d%0a", "/%", "/%f", "/%ff"]
    {
        assert!(path_of(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn ranges_are_read_as_the_standard_says() {
    assert_eq!(range_of("bytes=0-0", 10), Some(Ok((0, 0))));
    assert_eq!(range_of("bytes=5-", 10), Some(Ok((5, 9))));
    assert_eq!(range_of("bytes=-3", 10), Some(Ok((7, 9))));
    assert_eq!(range_of("bytes=5-99", 10), Some(Ok((5, 9))));
    assert!(matches!(range_of("bytes=10-", 10), Some(Err(Wrong { status: 416, .. }))));
    assert_eq!(range_of("bytes=0-1,3-4", 10), None);
    assert_eq!(range_of("lines=1-2", 10), None);
}

proptest! {
    #[test]
    fn any_bytes_are_a_head_or_refused(bytes: Vec<u8>) {
        let _ = parse(&bytes);
        let _ = parse(&[b"GET ", &bytes[..], b" HTTP/1.1\r\n\r\n"].concat());
    }

    #[test]
    fn chunks_split_anywhere_give_the_same_body(
        parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..5), cut in 1usize..9,
    ) {
        let mut wire = Vec::new();
        for part in &parts {
            wire.extend_from_slice(format!("{:x};a=b\r\n", part.len()).as_bytes());
            wire.extend_from_slice(part);
            wire.extend_from_slice(b"\r\n");
        }
        wire.extend_from_slice(b"0\r\nT: v\r\n\r\nNEXT");
        let (mut chunks, mut body, mut taken) = (Chunks::default(), Vec::new(), 0);
        for some in wire.chunks(cut) {
            taken += chunks.feed(some, |bytes| body.extend_from_slice(bytes)).unwrap();
        }
        prop_assert!(chunks.done());
        prop_assert_eq!(body, parts.concat());
        prop_assert_eq!(taken, wire.len() - 4);
    }

    #[test]
    fn any_bytes_are_chunks_or_refused(bytes: Vec<u8>, range in "(bytes=)?[0-9,-]{0,40}", size: u64) {
        let _ = Chunks::default().feed(&bytes, |_| {});
        let _ = range_of(&range, size);
    }
}
