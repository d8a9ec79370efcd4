//! What the build cache reads from disk and from clients: records, tails of large files, compressed bodies, heads, chunks,
//! entries, names and headers of the Remote Execution API.
#![no_main]

use forgeyard_cache::grpc::{client::ClientTool, resource};
use forgeyard_cache::http::{Chunks, parse, path_of, range_of};
use forgeyard_cache::store::frames::{self, Frames};
use forgeyard_cache::store::{large::read_tail, record::Record, tail::read_framed_tail};
use forgeyard_cache::surface::{Shape, plan, split};
use forgeyard_cache::{action, nix, shape};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((record, head)) = Record::read(bytes) {
        // a record that was read is written as it was
        let mut again = Vec::new();
        record.write(&mut again);
        let content = frames::content(&record).map_or(0, |content| content.len() as u64);
        assert!(content <= record.size.max(record.payload.len() as u64));
        let texts = head.texts_end() + head.payload;
        assert_eq!(&again[96..texts], &bytes[96..texts]);
    }
    let _ = read_tail(bytes, bytes.len() as u64);
    let _ = read_framed_tail(bytes, bytes.len() as u64);
    // compressed bodies: the first two bytes are the size that a head would say
    if let Some((size, body)) = bytes.split_first_chunk::<2>() {
        let size = u64::from(u16::from_le_bytes(*size)) * 17;
        if let Some(frames) = Frames::of(body, size) {
            let mut content = Vec::new();
            if frames.decode_all(body, &mut content).is_some() {
                assert_eq!(content.len() as u64, size);
            }
        }
    }
    for kind in [Shape::Sccache, Shape::Ccache, Shape::Action, Shape::NarInfo] {
        let _ = shape::check(kind, "k", bytes);
    }
    let _ = (action::tree_files(bytes), action::directory(bytes), nix::narinfo(bytes));
    let _ = ClientTool::read(bytes).committed_early(1);
    let _ = Chunks::default().feed(bytes, |_| {});
    if let Ok(Some((head, length))) = parse(bytes) {
        assert!(length <= bytes.len() && head.path.starts_with('/'));
        if let Some((_, surface, rest)) = split(&head.path) {
            let _ = plan(surface, head.method, rest);
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = (range_of(text, 1000), nix::file_digest(text));
        let _ = (resource::read(text), resource::write(text));
        if let Ok((path, _)) = path_of(text) {
            assert!(!path.split('/').any(|word| word == ".."));
        }
    }
});
