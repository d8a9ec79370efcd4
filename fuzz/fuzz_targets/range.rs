//! `Range` headers: what is answered lies inside the bytes.
#![no_main]

use forgeyard_formats::range;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (u64, &str)| {
    let (size, text) = data;
    if let Ok(Some(range)) = range::parse(text, size) {
        assert!(range.start < range.end && range.end <= size, "{range:?} of {size}");
    }
});
