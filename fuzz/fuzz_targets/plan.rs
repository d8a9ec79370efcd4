//! Rendered recipes, as a job hands them out.
#![no_main]

use forgeyard_formats::plan;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = plan::read_plan(data);
});
