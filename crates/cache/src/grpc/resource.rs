//! Resource names of ByteStream. Pure.
//!
//! ```text
//! read   [INSTANCE/]blobs/HASH/SIZE                              [INSTANCE/]compressed-blobs/zstd/HASH/SIZE
//! write  [INSTANCE/]uploads/UUID/blobs/HASH/SIZE[/ANYTHING]      [INSTANCE/]uploads/UUID/compressed-blobs/zstd/HASH/SIZE[/…]
//! ```
//!
//! SIZE is that of the content before compression. An instance may have slashes; words that the protocol reserves end it, so it
//! has none of them. HASH is a SHA-256; a name with another digest function before it is refused.

use forgeyard_model::Digest;

/// Words that no instance has.
const RESERVED: [&str; 7] =
    ["blobs", "uploads", "actions", "actionResults", "operations", "capabilities", "compressed-blobs"];

/// What a resource name names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// The instance, empty for none.
    pub instance: String,
    /// Digest of the content.
    pub digest: Digest,
    /// Its size.
    pub size: u64,
    /// Whether it goes over the wire as Zstandard.
    pub compressed: bool,
}

/// Why a name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    /// Another form.
    #[error(
        "the resource name is not of the form [INSTANCE/][uploads/UUID/](blobs|compressed-blobs/zstd)/SHA256/SIZE"
    )]
    Form,
    /// Another compressor.
    #[error("the only compressor is zstd")]
    Compressor,
    /// Not a SHA-256 in lower-case hex.
    #[error("the hash of the resource name is not a SHA-256 in lower-case hex")]
    Hash,
    /// Not a size.
    #[error("the size of the resource name is not a number of bytes")]
    Size,
}

/// A hash as the protocol writes it: 64 lower-case hex digits.
pub fn hash(text: &str) -> Option<Digest> {
    let digits = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if digits { Digest::from_hex(text).ok() } else { None }
}

/// Reads the name of a content to be read.
pub fn read(name: &str) -> Result<Resource, ResourceError> {
    let (instance, first, rest) = split(name)?;
    let (found, left) = content(instance, first, rest)?;
    if left { Err(ResourceError::Form) } else { Ok(found) }
}

/// Reads the name of a content to be written.
pub fn write(name: &str) -> Result<Resource, ResourceError> {
    let (instance, first, rest) = split(name)?;
    if first != "uploads" {
        return Err(ResourceError::Form);
    }
    let (uuid, rest) = rest.split_once('/').ok_or(ResourceError::Form)?;
    let (first, rest) = rest.split_once('/').ok_or(ResourceError::Form)?;
    if uuid.is_empty() || uuid.len() > 200 {
        return Err(ResourceError::Form);
    }
    content(instance, first, rest).map(|(found, _)| found)
}

/// Instance, the first reserved word, and what follows.
fn split(name: &str) -> Result<(&str, &str, &str), ResourceError> {
    let name = name.strip_prefix('/').unwrap_or(name);
    let mut from = 0;
    for word in name.split('/') {
        if RESERVED.contains(&word) {
            let rest = name.get(from + word.len()..).unwrap_or_default();
            let rest = rest.strip_prefix('/').ok_or(ResourceError::Form)?;
            let instance = name.get(..from).unwrap_or_default();
            return Ok((instance.strip_suffix('/').unwrap_or(instance), word, rest));
        }
        from += word.len() + 1;
    }
    Err(ResourceError::Form)
}

/// The content, and whether something follows its size.
fn content(instance: &str, first: &str, rest: &str) -> Result<(Resource, bool), ResourceError> {
    let (compressed, rest) = match first {
        "blobs" => (false, rest),
        "compressed-blobs" => match rest.split_once('/') {
            Some(("zstd", rest)) => (true, rest),
            _ => return Err(ResourceError::Compressor),
        },
        _ => return Err(ResourceError::Form),
    };
    let mut words = rest.splitn(3, '/');
    let digest = words.next().and_then(hash).ok_or(ResourceError::Hash)?;
    let size = words.next().ok_or(ResourceError::Form)?;
    let digits = !size.is_empty() && size.bytes().all(|b| b.is_ascii_digit());
    let size: i64 =
        Some(size).filter(|_| digits).and_then(|size| size.parse().ok()).ok_or(ResourceError::Size)?;
    let resource = Resource { instance: instance.to_owned(), digest, size: size.unsigned_abs(), compressed };
    Ok((resource, words.next().is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_read_as_clients_write_them() {
        let hash = Digest::of(b"x").hex();
        let found = read(&format!("iree/main/blobs/{hash}/1")).unwrap();
        assert_eq!((found.instance.as_str(), found.size, found.compressed), ("iree/main", 1, false));
        assert_eq!(found.digest, Digest::of(b"x"));
        assert_eq!(read(&format!("blobs/{hash}/1")).unwrap().instance, "");
        assert!(read(&format!("a/compressed-blobs/zstd/{hash}/1")).unwrap().compressed);
        let upload = write(&format!("a/b/uploads/0-1/compressed-blobs/zstd/{hash}/7/path/of.o")).unwrap();
        assert_eq!((upload.instance.as_str(), upload.size, upload.compressed), ("a/b", 7, true));
        assert!(write(&format!("uploads/0-1/blobs/{hash}/0")).is_ok());
        for wrong in [
            "".to_owned(),
            "blobs".to_owned(),
            format!("a/blobs/{hash}"),
            format!("a/blobs/{hash}/-1"),
            format!("a/blobs/{hash}/+1"),
            format!("a/blobs/{hash}/1/more"),
            format!("a/blobs/blake3/{hash}/1"),
            format!("a/blobs/{}/1", hash.to_uppercase()),
            format!("a/compressed-blobs/deflate/{hash}/1"),
            format!("a/uploads/0-1/blobs/{hash}/1"),
            format!("a/operations/blobs/{hash}/1"),
        ] {
            assert!(read(&wrong).is_err(), "{wrong}");
        }
        assert!(write(&format!("a/blobs/{hash}/1")).is_err());
        assert!(write(&format!("a/uploads//blobs/{hash}/1")).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_a_name_or_refused(text in "\\PC{0,80}", words in prop::collection::vec("(blobs|uploads|zstd|compressed-blobs|[a-f0-9]{64}|[0-9]{0,25}|\\PC{0,3})", 0..9)) {
            let _ = (read(&text), write(&text));
            let name = words.join("/");
            for found in [read(&name), write(&name)].into_iter().flatten() {
                prop_assert!(!found.instance.split('/').any(|word| RESERVED.contains(&word)));
                prop_assert!(found.size <= i64::MAX as u64);
            }
        }

        #[test]
        fn name_reads_back(instance in "([a-z]{1,5}/){0,3}[a-z]{1,4}", bytes: Vec<u8>, size in 0..=i64::MAX) {
            let digest = Digest::of(&bytes);
            let plain = read(&format!("{instance}/blobs/{}/{size}", digest.hex()));
            prop_assume!(!instance.split('/').any(|word| RESERVED.contains(&word)));
            let whole = Resource { instance, digest, size: size as u64, compressed: false };
            prop_assert_eq!(plain, Ok(whole));
        }
    }
}
