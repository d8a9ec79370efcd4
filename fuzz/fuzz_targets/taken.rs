//! What the job-started hook writes about the job that was taken: it comes from inside the machine. What is read says the
//! same when it is written again.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "its tests are left out here")]
#[path = "../../crates/agent/src/runner/taken.rs"]
mod taken;

fuzz_target!(|bytes: &[u8]| {
    let Ok(forge) = "github".parse() else { return };
    let Ok(read) = taken::parse(&forge, bytes) else { return };
    assert!(read.repository.id != 0 && read.run != 0 && read.run_attempt != 0);
    assert!(!read.key.is_empty() && !read.repository.name.is_empty());
    let text = String::from_utf8_lossy(bytes);
    for value in [&read.key, &read.repository.name] {
        assert!(text.contains(&format!("={value}\n")), "{value:?} is not in the report");
    }
});
