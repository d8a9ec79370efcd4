//! Access files: our own in TOML, which must read back the same after writing, and foreign ones that are imported.
#![no_main]

use forgeyard_formats::access::{self, CirunFiles, ImportOptions};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(read) = access::read("access.toml", text)
        && let Ok(written) = access::export(&read)
    {
        assert_eq!(access::read("access.toml", &written).ok(), Some(read), "{written}");
    }
    // Access file, runners and one file of users, parted by lines of three dashes.
    let mut parts = text.split("\n---\n");
    let access = parts.next().unwrap_or_default();
    let runners = parts.next();
    let users = BTreeMap::from([("users".to_owned(), parts.next().unwrap_or("{}"))]);
    let files = CirunFiles { access, runners, users };
    let options = ImportOptions { owner: Some("octo".to_owned()), ..Default::default() };
    let _ = access::import_cirun(&files, &options);
});
