//! Pipeline files of repositories.
#![no_main]

use forgeyard_formats::pipeline_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = pipeline_file::read(data);
});
