//! What is compressed at rest: read plain, compressed as it lies there, in part and by the batch.

use super::*;
use crate::support::options;
use forgeyard_cache::store::log::Durability;

/// Bytes that shrink, and that are unlike at every place.
fn code(length: usize) -> Vec<u8> {
    (0u32..).flat_map(|at| format!("{at} mov %rax,%rbx; call _ZN;").into_bytes()).take(length).collect()
}

/// Sizes of content of the frames of a stream.
fn frame_sizes(mut wire: &[u8]) -> Vec<u64> {
    let mut sizes = Vec::new();
    while !wire.is_empty() {
        let length = zstd::zstd_safe::find_frame_compressed_size(wire).unwrap();
        sizes.push(zstd::zstd_safe::get_frame_content_size(&wire[..length]).unwrap().unwrap());
        wire = &wire[length..];
    }
    sizes
}

#[tokio::test]
async fn zstd_read_is_answered_with_the_frames_that_are_stored() {
    const FRAME: usize = 256 << 10;
    let folder = tempfile::tempdir().unwrap();
    // it writes back nothing, however often it is read
    let mut options = options(folder.path(), Durability::PageCache);
    options.store.compression.after_minutes = 0;
    let start = || forgeyard_cache::service::start(options).unwrap();
    let running = std::thread::scope(|threads| threads.spawn(start).join().unwrap());
    let main = remote(&running, "p/main", Access::Write).await;
    let small = code(700_000);
    let large = code((2 << 20) + 5);
    for bytes in [&small, &large] {
        main.write(&digest(bytes), false, bytes.chunks(100_000).map(<[u8]>::to_vec).collect()).await.unwrap();
    }
    running.seal().unwrap();
    running.shrink().unwrap();
    assert_eq!(metric(&running, "forgeyard_cache_shrink_bodies_total"), 2);
    assert!(metric(&running, "forgeyard_cache_saved_bytes") > 1 << 20);
    let hash = digest(&large).hash;
    let file = fs_err::read(folder.path().join("store/large").join(&hash[..2]).join(&hash)).unwrap();
    for bytes in [&small, &large] {
        let of = digest(bytes);
        let wire = main.read(&of, true, 0, 0).await.unwrap();
        assert!(zstd::decode_all(&wire[..]).unwrap() == *bytes);
        let sizes = frame_sizes(&wire);
        assert!(sizes[..sizes.len() - 1].iter().all(|size| *size == FRAME as u64), "{sizes:?}");
        if bytes.len() > 1 << 20 {
            assert!(file.starts_with(&wire), "byte by byte what is in the file");
        }
        // over and beside the borders of frames, plain and compressed
        for from in [1, FRAME - 1, FRAME, FRAME + 1, 2 * FRAME + 7, bytes.len() - 1, bytes.len()] {
            let wire = main.read(&of, true, from as i64, 0).await.unwrap();
            assert!(zstd::decode_all(&wire[..]).unwrap() == bytes[from..], "{from}");
            for limit in [0, 1, 2, FRAME, FRAME + 2] {
                let until = if limit == 0 { bytes.len() } else { bytes.len().min(from + limit) };
                let part = main.read(&of, false, from as i64, limit as i64).await.unwrap();
                assert!(part == bytes[from..until], "{from} {limit}");
            }
        }
        // frames behind the one that it begins in are as they are stored
        let whole = main.read(&of, true, 0, 0).await.unwrap();
        let wire = main.read(&of, true, FRAME as i64, 0).await.unwrap();
        assert!(whole.ends_with(&wire));
    }
    let read = main.get_all(&[digest(&small), digest(&large)], true).await.unwrap();
    for (one, bytes) in read.iter().zip([&small, &large]) {
        assert_eq!(one.compressor, wire::ZSTD);
        assert!(zstd::decode_all(&one.data[..]).unwrap() == *bytes);
    }
    let read = main.get_all(&[digest(&small)], false).await.unwrap();
    assert!(read[0].data == small && read[0].compressor == 0);
    // leases and looks know both forms
    assert!(main.has(&small).await && main.has(&large).await);
    let mut http = Client::new(running.address);
    let path = format!("/p/main/-/bazel/cas/{}", digest(&large).hash);
    assert!(http.ask("GET", &path, None, None).body == large);
    std::thread::scope(|threads| threads.spawn(|| running.stop().unwrap()).join().unwrap());
}
