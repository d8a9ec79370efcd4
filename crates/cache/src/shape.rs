//! Whether an entry is what its protocol says it is. This stops torn uploads and mixed-up keys. It is no defence against
//! somebody who means harm: that is what scopes are for.

use crate::surface::Shape;
use forgeyard_model::Digest;
use twox_hash::xxhash3_128::Hasher as Xxh3;

/// Why an entry is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Not a ZIP, or one that is cut off.
    #[error("the entry is not a whole ZIP archive")]
    Zip,
    /// A member of the ZIP is damaged.
    #[error("the checksum of a member of the ZIP archive does not hold")]
    ZipMember,
    /// Not a file of ccache.
    #[error("the entry is not a file of ccache")]
    Ccache,
    /// A damaged file of ccache.
    #[error("the checksum of the file of ccache does not hold")]
    CcacheChecksum,
    /// Not an action result.
    #[error("the entry is not an action result")]
    Action,
    /// Not what Nix says of a store path.
    #[error("the entry is not a narinfo")]
    NarInfo,
    /// It refers to a file that is not here.
    #[error("the file that the narinfo names is not here, or has another size")]
    NoFile,
    /// Its file has another digest.
    #[error("the file that the narinfo names has another digest than its FileHash")]
    FileHash,
    /// Its file unpacks to something else (cachix#251).
    #[error("the file that the narinfo names does not unpack to its NarHash and NarSize")]
    Nar,
    /// Not what Turborepo makes.
    #[error("the entry is not an archive of Turborepo")]
    Turbo,
    /// Not what Gradle makes.
    #[error("the entry is not an archive of Gradle")]
    Gradle,
    /// Other bytes than the key says.
    #[error("the bytes do not have the digest that their key says")]
    Digest,
    /// Larger than such an entry can be.
    #[error("the entry is larger than such an entry can be")]
    Size,
}

/// How an archive of Gradle begins, a tar in gzip. An entry that it cannot unpack fails its build from 6.0 on (gradle#9033).
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];

/// Checks an entry whose bytes are in memory. Entries too large for that are checked by digest only.
pub fn check(shape: Shape, key: &str, bytes: &[u8]) -> Result<(), ShapeError> {
    match shape {
        Shape::Any => Ok(()),
        Shape::Sccache => zip(bytes),
        Shape::Ccache => ccache(bytes),
        Shape::Action if is_ccache(bytes) => ccache(bytes),
        Shape::Action => crate::action::references(bytes).map(|_| ()).ok_or(ShapeError::Action),
        Shape::Content => digest(key, Digest::of(bytes)),
        Shape::NarInfo => crate::nix::narinfo(bytes).map(|_| ()).ok_or(ShapeError::NarInfo),
        Shape::NarFile => nar_file(key, Digest::of(bytes)),
        Shape::Turbo => crate::turbo::check(bytes),
        Shape::Gradle if bytes.starts_with(&GZIP) => Ok(()),
        Shape::Gradle => Err(ShapeError::Gradle),
    }
}

/// Checks an entry that went to a file.
pub fn check_large(shape: Shape, key: &str, found: Digest) -> Result<(), ShapeError> {
    match shape {
        Shape::Content => digest(key, found),
        // an action result of more than a megabyte is one of thousands of outputs; it is not read into memory here
        Shape::Action | Shape::NarInfo => Err(ShapeError::Size),
        Shape::NarFile => nar_file(key, found),
        Shape::Any | Shape::Sccache | Shape::Ccache | Shape::Turbo | Shape::Gradle => Ok(()),
    }
}

fn digest(key: &str, found: Digest) -> Result<(), ShapeError> {
    if Digest::from_hex(key) == Ok(found) { Ok(()) } else { Err(ShapeError::Digest) }
}

fn nar_file(key: &str, found: Digest) -> Result<(), ShapeError> {
    if crate::nix::file_digest(key) == Some(found) { Ok(()) } else { Err(ShapeError::Digest) }
}

fn short(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..at.checked_add(2)?).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])))
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// A ZIP as sccache writes it: stored members, an end record, checksums in the central directory.
fn zip(bytes: &[u8]) -> Result<(), ShapeError> {
    let from = bytes.len().saturating_sub(22 + 65_535);
    let tail = bytes.get(from..).unwrap_or_default();
    let end = tail.windows(4).rposition(|window| window == b"PK\x05\x06").ok_or(ShapeError::Zip)? + from;
    let count = short(bytes, end + 10).ok_or(ShapeError::Zip)?;
    let mut at = long(bytes, end + 16).ok_or(ShapeError::Zip)? as usize;
    for _ in 0..count {
        at = member(bytes, at, end)?;
    }
    if at == end { Ok(()) } else { Err(ShapeError::Zip) }
}

/// Checks one member of the central directory; answers with where the next one begins.
fn member(bytes: &[u8], at: usize, end: usize) -> Result<usize, ShapeError> {
    let entry = || -> Option<(u32, &[u8], usize)> {
        if bytes.get(at..at.checked_add(4)?)? != b"PK\x01\x02" || short(bytes, at + 10)? != 0 {
            return None;
        }
        let (crc, length) = (long(bytes, at + 16)?, long(bytes, at + 20)? as usize);
        let next = at + 46 + short(bytes, at + 28)? + short(bytes, at + 30)? + short(bytes, at + 32)?;
        let local = long(bytes, at + 42)? as usize;
        if bytes.get(local..local.checked_add(4)?)? != b"PK\x03\x04" || next > end {
            return None;
        }
        let data = local.checked_add(30 + short(bytes, local + 26)? + short(bytes, local + 28)?)?;
        Some((crc, bytes.get(data..data.checked_add(length)?)?, next))
    };
    let (crc, data, next) = entry().ok_or(ShapeError::Zip)?;
    if crc32fast::hash(data) == crc { Ok(next) } else { Err(ShapeError::ZipMember) }
}

/// Whether bytes begin like a file of ccache.
pub fn is_ccache(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xcc, 0xac])
}

/// A file of ccache 4: a big-endian head that begins with 0xccac, and at the end the XXH3-128 of all before.
fn ccache(bytes: &[u8]) -> Result<(), ShapeError> {
    let (body, sum) =
        bytes.len().checked_sub(16).and_then(|at| bytes.split_at_checked(at)).ok_or(ShapeError::Ccache)?;
    if !is_ccache(bytes) || body.len() < 16 {
        return Err(ShapeError::Ccache);
    }
    if Xxh3::oneshot(body).to_be_bytes() == sum { Ok(()) } else { Err(ShapeError::CcacheChecksum) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A ZIP of one stored member, as the format's description says.
    fn small_zip(content: &[u8]) -> Vec<u8> {
        let crc = crc32fast::hash(content).to_le_bytes();
        let length = (content.len() as u32).to_le_bytes();
        let common = [&[20, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &crc, &length, &length, &[3, 0, 0, 0]].concat();
        let local = [b"PK\x03\x04", &common[..], b"obj", content].concat();
        let central = [b"PK\x01\x02\x14\x00", &common[..], &[0; 10], &[0; 4], b"obj"].concat();
        let end = [
            b"PK\x05\x06",
            &[0, 0, 0, 0, 1, 0, 1, 0][..],
            &(central.len() as u32).to_le_bytes(),
            &(local.len() as u32).to_le_bytes(),
            &[0, 0],
        ];
        [local, central, end.concat()].concat()
    }

    #[test]
    fn zip_with_a_changed_member_or_without_its_end_is_refused() {
        let good = small_zip(b"an object file");
        assert_eq!(zip(&good), Ok(()));
        let mut changed = good.clone();
        changed[35] ^= 1;
        assert_eq!(zip(&changed), Err(ShapeError::ZipMember));
        assert_eq!(zip(&good[..good.len() - 10]), Err(ShapeError::Zip));
        assert_eq!(zip(b"Hello, World!"), Err(ShapeError::Zip));
    }

    /// gradle#9033, gradle#14693: what is no archive of Gradle must not come to one.
    #[test]
    fn gradle_9033_entry_that_is_no_archive_is_refused() {
        assert_eq!(check(Shape::Gradle, "k", &[0x1f, 0x8b, 8, 0, 0]), Ok(()));
        for wrong in [&b""[..], b"<html>", &[0x1f, 0x8b]] {
            assert_eq!(check(Shape::Gradle, "k", wrong), Err(ShapeError::Gradle));
        }
    }

    #[test]
    fn file_of_ccache_with_a_changed_byte_is_refused() {
        let mut good = [&[0xcc, 0xac][..], &[7; 100]].concat();
        let sum = Xxh3::oneshot(&good);
        good.extend_from_slice(&sum.to_be_bytes());
        assert_eq!(check(Shape::Ccache, "k", &good), Ok(()));
        assert_eq!(check(Shape::Action, "k", &good), Ok(()), "ccache's layout bazel");
        good[50] ^= 1;
        assert_eq!(check(Shape::Ccache, "k", &good), Err(ShapeError::CcacheChecksum));
    }

    proptest! {
        #[test]
        fn any_bytes_are_checked_without_a_panic(bytes: Vec<u8>, cut: prop::sample::Index, content: Vec<u8>) {
            for shape in [Shape::Sccache, Shape::Ccache, Shape::Action, Shape::Content] {
                let _ = check(shape, "k", &bytes);
            }
            let mut archive = small_zip(&content);
            let at = cut.index(archive.len());
            archive[at] = archive[at].wrapping_add(1);
            let _ = zip(&archive);
        }
    }
}
