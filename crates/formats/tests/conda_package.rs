//! Reading packages: a real one, built by the conda build engine (`fixtures/conda/make.py`), and hostile ones that
//! are made here.

#![allow(clippy::unwrap_used, reason = "helpers of tests are no test functions")]

use forgeyard_formats::conda::{Limits, Package, PackageError, Repodata, read_package, record};
use forgeyard_model::Digest;
use proptest::prelude::*;
use std::io::{Cursor, Write};

const NAME: &str = "fy-tiny-1.0.2-h150845f_4.conda";
const REAL: &[u8] = include_bytes!("fixtures/conda/fy-tiny-1.0.2-h150845f_4.conda");

fn read(name: &str, bytes: &[u8]) -> Result<Package, PackageError> {
    read_package(name, Cursor::new(bytes), &Limits::default())
}

/// An entry of a made tar archive.
enum Item<'a> {
    File(&'a str, &'a [u8]),
    Symlink(&'a str, &'a str),
    Hardlink(&'a str, &'a str),
    Device(&'a str),
    Raw(Box<tar::Header>, Vec<u8>),
}

fn tar(items: &[Item<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for item in items {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        let (path, bytes, target): (&str, &[u8], &str) = match item {
            Item::File(path, bytes) => (path, bytes, ""),
            Item::Symlink(path, target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                (path, b"", target)
            }
            Item::Hardlink(path, target) => {
                header.set_entry_type(tar::EntryType::Link);
                (path, b"", target)
            }
            Item::Device(path) => {
                header.set_entry_type(tar::EntryType::Block);
                (path, b"", "")
            }
            Item::Raw(header, bytes) => {
                builder.append(header, bytes.as_slice()).unwrap();
                continue;
            }
        };
        header.set_size(bytes.len() as u64);
        // Written by hand: the library itself refuses to write hostile names.
        let old = header.as_old_mut();
        old.name[..path.len()].copy_from_slice(path.as_bytes());
        old.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        builder.append(&header, bytes).unwrap();
    }
    builder.into_inner().unwrap()
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

const INDEX: &[u8] = br#"{"name":"p","version":"1","build":"0","build_number":0,"subdir":"noarch"}"#;
const FORMAT: &[u8] = br#"{"conda_pkg_format_version":2}"#;

fn zst(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

/// A package `p-1-0` with this payload.
fn package(paths: &str, payload: &[Item<'_>]) -> Vec<u8> {
    let info =
        zst(&tar(&[Item::File("info/index.json", INDEX), Item::File("info/paths.json", paths.as_bytes())]));
    zip(&[
        ("metadata.json", FORMAT),
        ("info-p-1-0.tar.zst", &info),
        ("pkg-p-1-0.tar.zst", &zst(&tar(payload))),
    ])
}

const NO_PATHS: &str = r#"{"paths":[],"paths_version":1}"#;

fn refused(payload: &[Item<'_>]) -> String {
    read("p-1-0.conda", &package(NO_PATHS, payload)).unwrap_err().to_string()
}

#[test]
fn real_package_gives_its_facts() {
    let package = read(NAME, REAL).unwrap();
    let facts = &package.facts;
    assert_eq!(facts.stem(), "fy-tiny-1.0.2-h150845f_4");
    assert_eq!((facts.build_number, facts.subdir.as_str()), (4, "linux-64"));
    assert_eq!(facts.depends, ["__cuda >=12"]);
    assert_eq!(facts.license.as_deref(), Some("Apache-2.0"));
    assert_eq!(facts.variant["cuda_compiler_version"], "12.9");
    assert_eq!(facts.needed_libraries, ["libOpenCL.so.1", "libcuda.so.1"]);
    assert_eq!(package.unread_elf, Vec::<String>::new());
    // The recipe has four tests; the engine ran `package_contents` at build time and dropped it.
    let kinds: Vec<_> = facts.tests.iter().map(|test| (test.index, test.kind.as_str())).collect();
    assert_eq!(kinds, [(0, "commands"), (1, "python"), (2, "downstream")]);
    assert!(facts.tests[0].text.contains("clinfo --list"), "{}", facts.tests[0].text);
    assert!(facts.tests_digest.is_some());
}

#[test]
fn record_and_index_of_the_real_package_are_canonical() {
    let package = read(NAME, REAL).unwrap();
    let digest = Digest::of(REAL);
    let record = record(&package, &digest, REAL.len() as u64);
    for (key, value) in [
        ("name", "fy-tiny"),
        ("version", "1.0.2"),
        ("build", "h150845f_4"),
        ("subdir", "linux-64"),
        ("license", "Apache-2.0"),
        ("sha256", &digest.hex()),
    ] {
        assert_eq!(record[key], value, "{key}");
    }
    assert_eq!(record["size"], REAL.len());
    assert_eq!(record["constrains"][0], "fy-other <2");
    assert!(record["timestamp"].as_u64().is_some());

    let mut index = Repodata::new("linux-64");
    index.add(NAME, &record).unwrap();
    index.add(NAME, &record).unwrap();
    let bytes = index.to_bytes();
    assert_eq!(zstd::decode_all(index.to_zst().unwrap().as_slice()).unwrap(), bytes);
    let text = String::from_utf8(bytes).unwrap();
    assert!(
        text.starts_with(r#"{"info":{"subdir":"linux-64"},"packages":{},"packages.conda":{"fy-tiny-"#),
        "{text}"
    );
    assert!(text.ends_with("\"removed\":[],\"repodata_version\":1}\n"), "{text}");

    let mut other = record.clone();
    other["sha256"] = Digest::of(b"another").hex().into();
    assert!(index.add(NAME, &other).unwrap_err().to_string().contains("stands twice"));
    assert_eq!(String::from_utf8(index.to_bytes()).unwrap(), text, "the first record stays");
    assert!(Repodata::new("noarch").add(NAME, &record).is_err());
}

#[test]
fn file_named_differently_than_its_metadata_is_refused() {
    let error = read("fy-tiny-1.0.3-h150845f_4.conda", REAL).unwrap_err().to_string();
    assert!(error.contains("unexpected member"), "{error}");
    // Members named to fit, metadata of another version.
    let info = zst(&tar(&[
        Item::File("info/index.json", INDEX),
        Item::File("info/paths.json", NO_PATHS.as_bytes()),
    ]));
    let bytes = zip(&[
        ("metadata.json", FORMAT),
        ("info-p-2-0.tar.zst", &info),
        ("pkg-p-2-0.tar.zst", &zst(&tar(&[Item::File("a", b"")]))),
    ]);
    let error = read("p-2-0.conda", &bytes).unwrap_err().to_string();
    assert!(error.contains("describes `p-1-0`, the file is named `p-2-0`"), "{error}");
}

#[test]
fn harmless_payload_is_read() {
    let bytes = package(
        r#"{"paths":[{"_path":"lib/a","size_in_bytes":1},{"_path":"lib/b"}],"paths_version":1}"#,
        &[
            Item::File("lib/a", b"x"),
            Item::Symlink("lib/b", "a"),
            Item::Symlink("lib64", "lib"),
            Item::Hardlink("lib/c", "lib/a"),
        ],
    );
    read("p-1-0.conda", &bytes).unwrap();
}

#[test]
fn what_reaches_outside_is_refused() {
    let long = |kind: tar::EntryType, size: u64| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        Box::new(header)
    };
    let cases: Vec<(&str, Vec<Item<'_>>)> = vec![
        ("leads upwards", vec![Item::File("../x", b"")]),
        ("leads upwards", vec![Item::File("a/../../x", b"")]),
        ("is absolute", vec![Item::File("/etc/x", b"")]),
        ("out of the package", vec![Item::Symlink("a", "../x")]),
        ("absolute path", vec![Item::Symlink("a", "/etc/passwd")]),
        ("out of the package", vec![Item::Symlink("x/y/b", "../.."), Item::Symlink("a", "x/y/b/../../../o")]),
        ("out of the package", vec![Item::Hardlink("a", "../x")]),
        ("no file before it", vec![Item::Hardlink("a", "b"), Item::File("b", b"")]),
        ("below the link", vec![Item::Symlink("a", "b"), Item::File("a/x", b"")]),
        ("below the link", vec![Item::File("a/x", b""), Item::Symlink("a", "b")]),
        ("below a file", vec![Item::File("a", b""), Item::File("a/x", b"")]),
        ("stands twice", vec![Item::File("a", b"1"), Item::File("a", b"2")]),
        ("stands twice", vec![Item::File("a", b"1"), Item::File("./a", b"2")]),
        ("are not allowed", vec![Item::Device("a")]),
        ("stands in the payload", vec![Item::File("info/x", b"{}")]),
        (
            "leads upwards",
            vec![Item::Raw(long(tar::EntryType::GNULongName, 4), b"../x".to_vec()), Item::File("a", b"")],
        ),
        (
            "extension header has",
            vec![Item::Raw(long(tar::EntryType::GNULongName, 1 << 20), vec![b'a'; 1 << 20])],
        ),
        ("global extension", vec![Item::Raw(long(tar::EntryType::XGlobalHeader, 0), vec![])]),
        ("its size stands", vec![Item::Raw(long(tar::EntryType::XHeader, 12), b"12 size=999\n".to_vec())]),
    ];
    for (expected, payload) in cases {
        let error = refused(&payload);
        assert!(error.contains(expected), "expected `{expected}`, got `{error}`");
    }
}

#[test]
fn path_list_that_leads_outside_is_refused() {
    // rattler#2143: `paths.json` with `..` let a package write outside of its prefix.
    for (paths, expected) in [
        (r#"{"paths":[{"_path":"../x"}]}"#, "leads upwards"),
        (r#"{"paths":[{"_path":"/x"}]}"#, "is absolute"),
        (r#"{"paths":[{"_path":"b"}]}"#, "is not in the payload"),
        (r#"{"paths":[{"_path":"a"},{"_path":"./a"}]}"#, "stands twice"),
        (r#"{"paths":[{"_path":"a","size_in_bytes":9}]}"#, "9 are stated"),
        (r#"{}"#, "has no list"),
    ] {
        let error = read("p-1-0.conda", &package(paths, &[Item::File("a", b"x")])).unwrap_err().to_string();
        assert!(error.contains(expected), "expected `{expected}`, got `{error}`");
    }
}

#[test]
fn archive_of_another_layout_is_refused() {
    let info = zst(&tar(&[
        Item::File("info/index.json", INDEX),
        Item::File("info/paths.json", NO_PATHS.as_bytes()),
    ]));
    let pkg = zst(&tar(&[Item::File("a", b"x")]));
    let base =
        [("metadata.json", FORMAT), ("info-p-1-0.tar.zst", &info[..]), ("pkg-p-1-0.tar.zst", &pkg[..])];
    let error = |members: &[(&str, &[u8])]| read("p-1-0.conda", &zip(members)).unwrap_err().to_string();
    assert!(error(&base[..2]).contains("`pkg-p-1-0.tar.zst` is missing"));
    assert!(error(&[base[0], base[1], base[2], ("x", b"")]).contains("unexpected member `x`"));
    assert!(
        error(&[("metadata.json", br#"{"conda_pkg_format_version":1}"#), base[1], base[2]])
            .contains("is not 2")
    );

    // Two members of one name: readers disagree on which one counts.
    let mut bytes = zip(&[base[0], base[1], base[2], ("info-p-1-1.tar.zst", &pkg)]);
    for at in 0..bytes.len() - 18 {
        if bytes[at..].starts_with(b"info-p-1-1.tar.zst") {
            bytes[at + 9] = b'0';
        }
    }
    let twice = read("p-1-0.conda", &bytes).unwrap_err().to_string();
    assert!(twice.contains("two members of one name"), "{twice}");

    let mut old = base;
    old[1].0 = "info-p-1-0.tar.bz2";
    assert!(error(&old).contains("unexpected member"));
    assert!(read("p-1-0.tar.bz2", b"").unwrap_err().to_string().contains("convert it to `.conda`"));
}

#[test]
fn changed_payload_fails_its_checksum() {
    let mut bytes = package(NO_PATHS, &[Item::File("a", b"some text that is stored in a zstd frame")]);
    let start = bytes.windows(4).rposition(|part| part == b"\x28\xb5\x2f\xfd").unwrap();
    bytes[start + 40] ^= 1;
    assert!(read("p-1-0.conda", &bytes).is_err());
}

#[test]
fn bombs_end_at_a_limit() {
    let zeros = vec![0u8; 96 << 20];
    let bytes = package(NO_PATHS, &[Item::File("zeros", &zeros)]);
    assert!(bytes.len() < 32 << 10, "{} bytes packed", bytes.len());
    let error = read_package("p-1-0.conda", Cursor::new(&bytes), &Limits { ratio: 100, ..Limits::default() });
    assert!(error.unwrap_err().to_string().contains("read too much"));
    let small = Limits { payload_bytes: 1 << 20, ..Limits::default() };
    assert!(read_package("p-1-0.conda", Cursor::new(&bytes), &small).is_err());
    let narrow = Limits { window_log: 10, ..Limits::default() };
    assert!(read_package("p-1-0.conda", Cursor::new(&bytes), &narrow).is_err());
    let few = Limits { entries: 2, ..Limits::default() };
    let error = read_package("p-1-0.conda", Cursor::new(&bytes), &few).unwrap_err().to_string();
    assert!(error.contains("too many entries"), "{error}");
}

#[test]
fn huge_directory_of_a_zip_archive_is_not_read() {
    let names: Vec<String> = (0..20_000).map(|number| format!("member-{number}")).collect();
    let members: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    let error = read("p-1-0.conda", &zip(&members)).unwrap_err().to_string();
    assert!(error.contains("read too much") || error.contains("cannot read the zip archive"), "{error}");
}

#[test]
fn test_list_with_alias_bomb_is_refused() {
    let mut yaml = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for level in 1..12 {
        let before = format!("*a{}", level - 1);
        yaml += &format!("a{level}: &a{level} [{}]\n", vec![before; 9].join(","));
    }
    let list = format!("- script:\n{}", yaml.lines().map(|line| format!("    {line}\n")).collect::<String>());
    let info = zst(&tar(&[
        Item::File("info/index.json", INDEX),
        Item::File("info/paths.json", NO_PATHS.as_bytes()),
        Item::File("info/tests/tests.yaml", list.as_bytes()),
    ]));
    let bytes = zip(&[
        ("metadata.json", FORMAT),
        ("info-p-1-0.tar.zst", &info),
        ("pkg-p-1-0.tar.zst", &zst(&tar(&[]))),
    ]);
    let error = read("p-1-0.conda", &bytes).unwrap_err().to_string();
    assert!(error.contains("tests.yaml"), "{error}");
}

#[test]
fn tests_of_older_engines_are_read_as_one() {
    let info = zst(&tar(&[
        Item::File("info/index.json", INDEX),
        Item::File("info/paths.json", NO_PATHS.as_bytes()),
        Item::File("info/test/run_test.sh", b"nvidia-smi\n"),
        Item::File("info/test/run_test.py", b"import p\n"),
    ]));
    let bytes = zip(&[
        ("metadata.json", FORMAT),
        ("info-p-1-0.tar.zst", &info),
        ("pkg-p-1-0.tar.zst", &zst(&tar(&[]))),
    ]);
    let facts = read("p-1-0.conda", &bytes).unwrap().facts;
    assert_eq!(facts.tests.len(), 1);
    assert_eq!((facts.tests[0].kind.as_str(), facts.tests[0].index), ("legacy", 0));
    assert!(facts.tests[0].text.contains("nvidia-smi") && facts.tests_digest.is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn changed_packages_never_panic(changes in prop::collection::vec((0usize..REAL.len(), any::<u8>()), 1..6)) {
        let mut bytes = REAL.to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        let _ = read(NAME, &bytes);
    }

    #[test]
    fn cut_packages_are_refused(length in 0usize..REAL.len()) {
        prop_assert!(read(NAME, &REAL[..length]).is_err());
    }

    #[test]
    fn changed_tar_archives_never_panic(changes in prop::collection::vec((0usize..1536, any::<u8>()), 1..6)) {
        let mut payload = tar(&[Item::Symlink("a/b", "c"), Item::File("a/c", b"x")]);
        for (at, byte) in changes {
            let at = at % payload.len();
            payload[at] = byte;
        }
        let info = zst(&tar(&[Item::File("info/index.json", INDEX), Item::File("info/paths.json", NO_PATHS.as_bytes())]));
        let bytes = zip(&[("metadata.json", FORMAT), ("info-p-1-0.tar.zst", &info), ("pkg-p-1-0.tar.zst", &zst(&payload))]);
        let _ = read("p-1-0.conda", &bytes);
    }
}
