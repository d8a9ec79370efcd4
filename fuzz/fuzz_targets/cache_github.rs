//! What GitHub's services and the exchange of tokens read from outside: messages, block lists, signed URLs, archives, lines of
//! the catalog, foreign tokens and sets of keys.
#![no_main]

use forgeyard_cache::github::signed::Signer;
use forgeyard_cache::github::twirp::Coding;
use forgeyard_cache::github::{archive, block_list, catalog, messages};
use forgeyard_cache::http::Method;
use forgeyard_cache::identity::jwt;
use forgeyard_cache::token;
use forgeyard_model::Timestamp;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for coding in [Coding::Json, Coding::Protobuf] {
        if let Ok(read) = coding.read::<messages::GetCacheEntryDownloadUrlRequest>(bytes) {
            // what was read is written so that it reads the same
            assert_eq!(coding.read::<messages::GetCacheEntryDownloadUrlRequest>(&coding.write(&read)), Ok(read));
        }
        let _ = coding.read::<messages::CreateCacheEntryRequest>(bytes);
        let _ = coding.read::<messages::FinalizeCacheEntryUploadRequest>(bytes);
        let _ = coding.read::<messages::CreateArtifactRequest>(bytes);
        let _ = coding.read::<messages::FinalizeArtifactRequest>(bytes);
        let _ = coding.read::<messages::ListArtifactsRequest>(bytes);
        let _ = coding.read::<messages::ArtifactRequest>(bytes);
    }
    if let Ok(ids) = block_list::read(bytes) {
        assert!(ids.iter().all(|id| block_list::is_id(id)));
    }
    let mut frames = archive::Frames::default();
    bytes.chunks(7).for_each(|some| frames.feed(some));
    let mut whole = archive::Frames::default();
    whole.feed(bytes);
    assert_eq!(frames.whole(), whole.whole());
    let _ = archive::zip_ends(bytes, bytes.len() as u64);
    let _ = jwt::key_set(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = catalog::read_line(text);
        let _ = jwt::Unverified::read(text);
        assert!(token::read(text, |_| None).is_err());
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        // nobody has this key
        let signer = Signer::new(&[7; 32]);
        assert!(signer.check(Method::Put, path, query, Timestamp::from_micros(0)).is_err());
    }
});
