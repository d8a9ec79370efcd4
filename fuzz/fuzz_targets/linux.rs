//! Text files of the kernel, which a job can influence: names of processes and cgroups.
#![no_main]

use forgeyard_formats::linux;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = linux::memberships(text);
    let _ = linux::hierarchies(&linux::mounts(text));
    let _ = linux::flat_keyed(text);
    let _ = linux::single(text);
    let _ = linux::process_stat(text);
    let _ = linux::kernel_record(text);
    let _ = linux::oom_kill(text);
});
