use super::*;
use proptest::prelude::*;

const BOUNDS: Bounds = Bounds { entries: 100, bytes: 1 << 20 };

/// An entry with any name, which the archive writer itself would refuse.
fn entry(out: &mut Vec<u8>, name: &str, kind: EntryType, link: &str, body: &[u8]) {
    let mut header = tar::Header::new_ustar();
    let old = header.as_old_mut();
    old.name[..name.len()].copy_from_slice(name.as_bytes());
    old.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o4777);
    header.set_size(body.len() as u64);
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(body);
    out.resize(out.len().next_multiple_of(512), 0);
}

fn run(entries: &[(&str, EntryType, &str)]) -> (tempfile::TempDir, Result<(), Error>) {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("in");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(dir.path().join("outside"), "before").unwrap();
    let mut archive = Vec::new();
    for (name, kind, link) in entries {
        let body: &[u8] = if *kind == EntryType::Regular { b"body" } else { b"" };
        entry(&mut archive, name, *kind, link, body);
    }
    archive.resize(archive.len() + 1024, 0);
    let result = unpack(archive.as_slice(), &folder, BOUNDS);
    assert_eq!(std::fs::read_to_string(dir.path().join("outside")).unwrap(), "before");
    (dir, result)
}

const FILE: EntryType = EntryType::Regular;
const LINK: EntryType = EntryType::Symlink;
const HARD: EntryType = EntryType::Link;
const DIR: EntryType = EntryType::Directory;

#[test]
fn a_plain_archive_is_unpacked_without_set_id_bits() {
    let (dir, result) = run(&[
        ("./", DIR, ""),
        ("./a/", DIR, ""),
        ("a/f", FILE, ""),
        ("b/c/g", FILE, ""),
        ("a/l", LINK, "../b/c/g"),
        ("h", HARD, "a/f"),
    ]);
    result.unwrap();
    let folder = dir.path().join("in");
    assert_eq!(std::fs::read_to_string(folder.join("a/l")).unwrap(), "body");
    assert_eq!(std::fs::read_to_string(folder.join("h")).unwrap(), "body");
    assert_eq!(std::fs::metadata(folder.join("a/f")).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn archives_that_lead_out_are_refused() {
    let cases: &[&[(&str, EntryType, &str)]] = &[
        &[("../outside", FILE, "")],
        &[("a/../../outside", FILE, "")],
        &[("/tmp/forgeyard-outside", FILE, "")],
        &[("l", LINK, "..")],
        &[("l", LINK, "/etc")],
        &[("l", LINK, "a/../..")],
        &[("l", LINK, "")],
        // A link that stays inside, and a file below it: refused all the same.
        &[("d/", DIR, ""), ("l", LINK, "d"), ("l/f", FILE, "")],
        &[("h", HARD, "../outside")],
        &[("h", HARD, "missing")],
        &[("l", LINK, "x"), ("h", HARD, "l")],
        &[("f", FILE, ""), ("f", FILE, "")],
        &[("f", FILE, ""), ("f/g", FILE, "")],
        &[("dev", EntryType::Block, "")],
        &[("pipe", EntryType::Fifo, "")],
    ];
    for case in cases {
        let (_dir, result) = run(case);
        assert!(matches!(result, Err(Error::Input { .. })), "{case:?}: {result:?}");
    }
}

#[test]
fn an_archive_that_is_too_large_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut archive = Vec::new();
    entry(&mut archive, "f", FILE, "", &[7; 2000]);
    archive.resize(archive.len() + 1024, 0);
    assert!(unpack(archive.as_slice(), dir.path(), Bounds { entries: 9, bytes: 1999 }).is_err());
}

proptest! {
    #[test]
    fn any_bytes_end_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        let dir = tempfile::tempdir().unwrap();
        let _ = unpack(bytes.as_slice(), dir.path(), BOUNDS);
    }

    #[test]
    fn nothing_is_ever_written_outside(names in prop::collection::vec(("[a-c./]{1,8}", 0usize..4, "[a-c./]{0,8}"), 1..8)) {
        let kinds = [FILE, LINK, HARD, DIR];
        let entries: Vec<(&str, EntryType, &str)> =
            names.iter().map(|(name, kind, link)| (name.as_str(), kinds[*kind], link.as_str())).collect();
        let (dir, _) = run(&entries);
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        prop_assert_eq!(names.len(), 2);
    }
}
