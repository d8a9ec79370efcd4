//! Bodies of webhooks, read as each kind of event.
#![no_main]

use forgeyard_formats::webhook;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let Ok(forge) = "github".parse() else { return };
    for event in ["push", "pull_request", "workflow_job", "ping", "unheard of"] {
        let _ = webhook::read(&forge, event, body);
    }
});
