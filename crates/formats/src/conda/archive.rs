//! The outer layers of a package: zip, zstd and tar, each bounded.

use super::PackageError;
use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;
use zip::{CompressionMethod, ZipArchive};

/// Bounds of what one package may make a reader do.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Unpacked bytes of the metadata member.
    pub info_bytes: u64,
    /// Unpacked bytes of the payload member.
    pub payload_bytes: u64,
    /// Unpacked bytes per packed byte, beyond the first 64 MiB.
    pub ratio: u64,
    /// Base-2 logarithm of the largest zstd window; the memory of the decoder.
    pub window_log: u32,
    /// Entries of both members together.
    pub entries: usize,
    /// Bytes of one metadata file.
    pub file_bytes: u64,
}

impl Default for Limits {
    /// Fits packages of conda-forge's largest kind; `window_log` 27 is the most that level 22 of zstd asks for.
    fn default() -> Self {
        Self {
            info_bytes: 1 << 30,
            payload_bytes: 64 << 30,
            ratio: 1000,
            window_log: 27,
            entries: 1 << 20,
            file_bytes: 128 << 20,
        }
    }
}

/// Unpacked bytes that any member may have, whatever its packed size.
const RATIO_FLOOR: u64 = 64 << 20;
/// Bytes that opening the zip archive may read: its end record, its directory and three local headers.
const OPEN_BYTES: u64 = 256 << 10;
/// Longest path of an entry.
const PATH_BYTES: u64 = 4096;

/// A reader that fails after a number of bytes.
pub(super) struct Budget<R> {
    inner: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Budget<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(io::Error::other("it makes the reader read too much"));
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(to.len());
        let read = self.inner.read(&mut to[..most])?;
        self.left.set(left - read as u64);
        Ok(read)
    }
}

impl<R: Seek> Seek for Budget<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

/// An opened package whose zip layer has been checked.
pub(super) struct Opened<R> {
    zip: ZipArchive<Budget<R>>,
    stem: String,
    package: String,
}

impl<R: Read + Seek> Opened<R> {
    /// Opens a package and checks that it has exactly the three members of its name, all stored.
    pub(super) fn open(file_name: &str, reader: R) -> Result<Self, PackageError> {
        let stem = stem(file_name)?.to_owned();
        let package = file_name.to_owned();
        let wrong = |what: String| PackageError::Layout { package: file_name.to_owned(), what };
        let left = Rc::new(Cell::new(OPEN_BYTES));
        let budget = Budget { inner: reader, left: Rc::clone(&left) };
        let zip_error = |error: zip::result::ZipError| wrong(format!("cannot read the zip archive: {error}"));
        let mut zip = ZipArchive::new(budget).map_err(zip_error)?;
        if zip.has_duplicate_names() {
            return Err(wrong("the zip archive has two members of one name".into()));
        }
        let mut expected =
            vec!["metadata.json".to_owned(), format!("info-{stem}.tar.zst"), format!("pkg-{stem}.tar.zst")];
        for index in 0..zip.len() {
            let member = zip.by_index_raw(index).map_err(zip_error)?;
            let name = String::from_utf8_lossy(member.name_raw()).into_owned();
            let Some(known) = expected.iter().position(|other| *other == name) else {
                return Err(wrong(format!("unexpected member `{}`", cut(&name))));
            };
            expected.swap_remove(known);
            if member.compression() != CompressionMethod::Stored || member.encrypted() {
                return Err(wrong(format!("member `{name}` is not stored plainly")));
            }
            if member.compressed_size() != member.size() {
                return Err(wrong(format!("member `{name}` has two sizes")));
            }
        }
        if let Some(missing) = expected.first() {
            return Err(wrong(format!("member `{missing}` is missing")));
        }
        if zip.has_overlapping_entries().map_err(zip_error)? {
            return Err(wrong("members of the zip archive overlap".into()));
        }
        zip.validate_header_consistency().map_err(zip_error)?;
        left.set(u64::MAX);
        Ok(Self { zip, stem, package })
    }

    /// The text between `info-` and `.tar.zst`.
    pub(super) fn stem(&self) -> &str {
        &self.stem
    }

    /// Reads `metadata.json` and checks the version of the package format.
    pub(super) fn check_format(&mut self) -> Result<(), PackageError> {
        let what = |what: String| PackageError::Metadata { file: "metadata.json".into(), what };
        let mut text = Vec::new();
        let member = self.zip.by_name("metadata.json").map_err(|error| what(error.to_string()))?;
        member.take(64 << 10).read_to_end(&mut text).map_err(|error| what(error.to_string()))?;
        let json: serde_json::Value =
            serde_json::from_slice(&text).map_err(|error| what(error.to_string()))?;
        match json.get("conda_pkg_format_version").and_then(serde_json::Value::as_u64) {
            Some(2) => Ok(()),
            _ => Err(what("`conda_pkg_format_version` is not 2".into())),
        }
    }

    /// Calls `visit` for each entry of the member `info-…` or `pkg-…`, with its content.
    pub(super) fn entries(
        &mut self,
        prefix: &str,
        most_bytes: u64,
        limits: &Limits,
        visit: &mut dyn FnMut(Entry, &mut dyn Read) -> Result<(), PackageError>,
    ) -> Result<(), PackageError> {
        let name = format!("{prefix}-{}.tar.zst", self.stem);
        let member_error = |what: String| PackageError::Member { member: name.clone(), what };
        let package = self.package.clone();
        let member = self
            .zip
            .by_name(&name)
            .map_err(|error| PackageError::Layout { package, what: format!("member `{name}`: {error}") })?;
        let most = most_bytes.min(RATIO_FLOOR.saturating_add(member.size().saturating_mul(limits.ratio)));
        let broken = |error: io::Error| member_error(format!("cannot unpack: {error}"));
        let mut zstd = zstd::stream::read::Decoder::new(member).map_err(broken)?;
        zstd.window_log_max(limits.window_log).map_err(broken)?;
        let bounded = Budget { inner: zstd, left: Rc::new(Cell::new(most)) };
        let mut tar = tar::Archive::new(bounded);
        walk(&name, &mut tar, visit)?;
        // Reading to the end makes zip compare its checksum.
        io::copy(&mut tar.into_inner(), &mut io::sink()).map_err(broken)?;
        Ok(())
    }
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    File(u64),
    Folder,
    Symlink(String),
    Hardlink(String),
}

/// One entry of a tar archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: String,
    pub(super) kind: Kind,
}

/// Walks over the raw headers, so that extension headers are bounded here and not read whole by the library.
fn walk<R: Read>(
    member: &str,
    tar: &mut tar::Archive<R>,
    visit: &mut dyn FnMut(Entry, &mut dyn Read) -> Result<(), PackageError>,
) -> Result<(), PackageError> {
    let broken = |error: io::Error| PackageError::Member {
        member: member.to_owned(),
        what: format!("cannot read the tar archive: {error}"),
    };
    let mut long_path: Option<String> = None;
    let mut long_link: Option<String> = None;
    for entry in tar.entries().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        let shown = String::from_utf8_lossy(&entry.header().path_bytes()).into_owned();
        let refuse =
            |what: String| PackageError::Entry { member: member.to_owned(), entry: cut(&shown), what };
        let kind = entry.header().entry_type();
        let size = entry.header().entry_size().map_err(broken)?;
        if kind.is_gnu_longname() || kind.is_gnu_longlink() || kind.is_pax_local_extensions() {
            if size > PATH_BYTES * 4 {
                return Err(refuse(format!("its extension header has {size} bytes")));
            }
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).map_err(broken)?;
            if kind.is_pax_local_extensions() {
                for (key, value) in
                    pax(&bytes).ok_or_else(|| refuse("its extension header is broken".into()))?
                {
                    match key.as_str() {
                        "path" => long_path = Some(value),
                        "linkpath" => long_link = Some(value),
                        "size" => return Err(refuse("its size stands in an extension header".into())),
                        key if key.starts_with("GNU.sparse") => return Err(refuse("it is sparse".into())),
                        _ => {}
                    }
                }
            } else {
                while bytes.last() == Some(&0) {
                    bytes.pop();
                }
                let text =
                    String::from_utf8(bytes).map_err(|_| refuse("its long name is not UTF-8".into()))?;
                if kind.is_gnu_longname() {
                    long_path = Some(text);
                } else {
                    long_link = Some(text);
                }
            }
            continue;
        }
        if kind.is_pax_global_extensions() {
            return Err(refuse("global extension headers are not read".into()));
        }
        let utf8 = |bytes: &[u8]| {
            String::from_utf8(bytes.to_vec()).map_err(|_| refuse("its name is not UTF-8".into()))
        };
        let path = match long_path.take() {
            Some(path) => path,
            None => utf8(&entry.header().path_bytes())?,
        };
        let target = match long_link.take() {
            Some(target) => Some(target),
            None => entry.header().link_name_bytes().map(|bytes| utf8(&bytes)).transpose()?,
        };
        let needs_target = || target.clone().ok_or_else(|| refuse("the link has no target".into()));
        let kind = match kind {
            tar::EntryType::Regular | tar::EntryType::Continuous => Kind::File(size),
            tar::EntryType::Directory => Kind::Folder,
            tar::EntryType::Symlink => Kind::Symlink(needs_target()?),
            tar::EntryType::Link => Kind::Hardlink(needs_target()?),
            other => return Err(refuse(format!("entries of type {other:?} are not allowed"))),
        };
        visit(Entry { path, kind }, &mut entry)?;
    }
    Ok(())
}

/// Records of a PAX extension header: `LENGTH KEY=VALUE\n`. Values that are not UTF-8 make it unreadable.
fn pax(mut bytes: &[u8]) -> Option<Vec<(String, String)>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(bytes.get(..space)?).ok()?.parse().ok()?;
        let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
        let (key, value) = std::str::from_utf8(record).ok()?.split_once('=')?;
        records.push((key.to_owned(), value.to_owned()));
        bytes = bytes.get(length..)?;
    }
    Some(records)
}

/// The stem of a package file name.
fn stem(file_name: &str) -> Result<&str, PackageError> {
    let wrong = |why| PackageError::FileName { name: cut(file_name), why };
    if file_name.ends_with(".tar.bz2") {
        return Err(wrong("the format `.tar.bz2` is not supported; convert it to `.conda`"));
    }
    let stem = file_name.strip_suffix(".conda").ok_or_else(|| wrong("its name does not end in `.conda`"))?;
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '+' | '!' | '=');
    if stem.is_empty() || stem.len() > 240 || stem.starts_with('.') || !stem.chars().all(fine) {
        return Err(wrong("it is not the name of a package file"));
    }
    Ok(stem)
}

/// A text that came from outside, cut for a message.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(120).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pax_records_are_read_and_nonsense_is_refused() {
        let records = pax(b"16 path=a/b/c/d\n13 mtime=1.5\n").unwrap();
        assert_eq!(records, [("path".into(), "a/b/c/d".into()), ("mtime".into(), "1.5".into())]);
        for bad in
            [&b"99 path=x\n"[..], b"path=x\n", b"0 path=x\n", b"8 path=x", b"18446744073709551616 a=b\n"]
        {
            assert_eq!(pax(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn old_format_and_odd_names_are_refused_by_name() {
        let old = stem("fy-1-0.tar.bz2").unwrap_err().to_string();
        assert!(old.contains("`.tar.bz2` is not supported"), "{old}");
        for bad in ["x.zip", ".conda", "../x-1-0.conda", "a/b-1-0.conda", "x y-1-0.conda"] {
            assert!(stem(bad).is_err(), "{bad}");
        }
    }
}
