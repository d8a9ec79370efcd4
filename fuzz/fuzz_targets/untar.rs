//! Archives that an agent unpacks: whatever they hold, nothing is made outside of the folder.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;

/// The errors that unpacking can give; the agent's own type also speaks of its clients.
mod error {
    use std::path::Path;

    #[derive(Debug)]
    #[allow(dead_code, reason = "they are made and dropped")]
    pub enum Error {
        File { action: &'static str, object: String, source: std::io::Error },
        Input { object: String, reason: String },
    }

    impl Error {
        pub(crate) fn file(action: &'static str, path: &Path, source: std::io::Error) -> Self {
            Self::File { action, object: path.display().to_string(), source }
        }
    }
}

#[allow(dead_code, reason = "its tests are left out here")]
#[path = "../../crates/agent/src/untar.rs"]
mod untar;

/// An archive whose headers are well formed, with whatever names, kinds and links.
fn archive(entries: &[(u8, &str, &str, &[u8])]) -> Option<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, link, bytes) in entries.iter().take(16) {
        let mut header = tar::Header::new_ustar();
        // Written as they are: the writer's own checks are not what is tested.
        let raw = header.as_old_mut();
        for (place, byte) in raw.name.iter_mut().zip(name.bytes()) {
            *place = byte;
        }
        for (place, byte) in raw.linkname.iter_mut().zip(link.bytes()) {
            *place = byte;
        }
        header.set_entry_type(tar::EntryType::new(b"0123456gxLK"[usize::from(*kind % 11)]));
        header.set_mode(0o7777);
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        builder.append(&header, *bytes).ok()?;
    }
    builder.into_inner().ok()
}

/// Everything below a folder, links not followed.
fn names(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        found.push(entry.path().display().to_string());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names(&entry.path(), found);
        }
    }
}

fn check(data: &[u8]) {
    let outer = tempfile::tempdir().expect("a folder");
    let inside = outer.path().join("inside");
    std::fs::create_dir(&inside).expect("a folder");
    std::fs::write(outer.path().join("other"), "mine").expect("a file");
    let _ = untar::unpack(data, &inside, untar::Bounds { entries: 64, bytes: 1 << 20 });
    let mut found = Vec::new();
    names(outer.path(), &mut found);
    let strange = found.iter().find(|path| !Path::new(path).starts_with(&inside) && !path.ends_with("/other"));
    assert_eq!(strange, None, "made outside");
    assert_eq!(std::fs::read(outer.path().join("other")).ok().as_deref(), Some(&b"mine"[..]));
}

fuzz_target!(|data: (&[u8], Vec<(u8, &str, &str, &[u8])>)| {
    let (raw, entries) = data;
    check(raw);
    if let Some(bytes) = archive(&entries) {
        check(&bytes);
    }
});
