//! Conda packages: raw bytes, and bytes that stand as the metadata member of a package that is well formed around them.
#![no_main]

use forgeyard_formats::conda::{Limits, read_package};
use libfuzzer_sys::fuzz_target;
use std::io::{Cursor, Write as _};

fn limits() -> Limits {
    Limits { info_bytes: 1 << 20, payload_bytes: 1 << 20, ..Limits::default() }
}

fn wrapped(info: &[u8]) -> Option<Vec<u8>> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let empty = tar::Builder::new(Vec::new()).into_inner().ok()?;
    let members = [
        ("metadata.json", br#"{"conda_pkg_format_version": 2}"#.to_vec()),
        ("pkg-a-1-0.tar.zst", zstd::encode_all(&empty[..], 1).ok()?),
        ("info-a-1-0.tar.zst", zstd::encode_all(info, 1).ok()?),
    ];
    for (name, bytes) in members {
        zip.start_file(name, stored).ok()?;
        zip.write_all(&bytes).ok()?;
    }
    Some(zip.finish().ok()?.into_inner())
}

fuzz_target!(|data: &[u8]| {
    let _ = read_package("a-1-0.conda", Cursor::new(data), &limits());
    if let Some(package) = wrapped(data) {
        let _ = read_package("a-1-0.conda", Cursor::new(package), &limits());
    }
});
