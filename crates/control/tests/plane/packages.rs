//! Packages and renderings: a real one of each from the fixtures of `forgeyard-formats`, and hostile ones made here.

use std::io::{Cursor, Write as _};

/// File name of the real package.
pub const TINY: &str = "fy-tiny-1.0.2-h150845f_4.conda";
/// A real package, built by the conda build engine.
pub const TINY_BYTES: &[u8] =
    include_bytes!("../../../formats/tests/fixtures/conda/fy-tiny-1.0.2-h150845f_4.conda");
const RENDERED: &str = include_str!("../../../formats/tests/fixtures/plan/single.plan.json");

/// A real rendering of the engine; only the name of its output is replaced, by that of the real package.
pub fn plan() -> String {
    RENDERED.replace("fy-gemm", "fy-tiny")
}

/// A rendering in which each output asks for others, in the engine's format.
pub fn plan_of(outputs: &[(&str, &[&str])]) -> String {
    let outputs: Vec<_> = outputs
        .iter()
        .map(|(name, needs)| {
            serde_json::json!({
                "recipe": {
                    "package": { "name": name, "version": "1" },
                    "build": { "string": "0" },
                    "requirements": { "host": needs },
                },
                "variant": { "target_platform": "linux-64" },
                "hash": "0",
            })
        })
        .collect();
    serde_json::json!({ "format": 1, "engine": { "name": "e", "version": "1" }, "outputs": outputs })
        .to_string()
}

fn tar(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        // Written by hand: the library itself refuses to write hostile names.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        builder.append(&header, *bytes).unwrap();
    }
    zstd::encode_all(builder.into_inner().unwrap().as_slice(), 3).unwrap()
}

fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in members {
        writer.start_file(*name, options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// A package `p-1-0.conda` whose payload has these entries.
pub fn package(payload: &[(&str, &[u8])]) -> Vec<u8> {
    package_as("p", "1", "noarch", payload)
}

/// A package `NAME-VERSION-0.conda` of a platform whose payload has these entries.
pub fn package_as(name: &str, version: &str, subdir: &str, payload: &[(&str, &[u8])]) -> Vec<u8> {
    let index = serde_json::json!({
        "name": name, "version": version, "build": "0", "build_number": 0, "subdir": subdir, "depends": [],
    });
    let paths = br#"{"paths":[],"paths_version":1}"#;
    let tests = b"- script:\n    content: [\"true\"]\n";
    let info = tar(&[
        ("info/index.json", index.to_string().as_bytes()),
        ("info/paths.json", paths),
        ("info/tests/tests.yaml", tests),
    ]);
    zip(&[
        ("metadata.json", br#"{"conda_pkg_format_version":2}"#),
        (&format!("info-{name}-{version}-0.tar.zst"), &info),
        (&format!("pkg-{name}-{version}-0.tar.zst"), &tar(payload)),
    ])
}
