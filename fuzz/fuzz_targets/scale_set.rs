//! Answers of the message queue of a scale set, and the key of a delivery with its forge.
#![no_main]

use forgeyard_forges::github::scaleset::parse_message;
use forgeyard_model::{ForgeName, delivery};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some(message)) = parse_message("GET /message", bytes) {
        for event in &message.events {
            let _ = event.job();
        }
    }
    // The first line is a forge, the rest a GUID as the receiver of webhooks lets it through.
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some((forge, guid)) = text.split_once('\n') else { return };
    if let Ok(forge) = forge.parse::<ForgeName>()
        && !guid.contains(':')
    {
        assert_eq!(delivery::forge_of(&delivery::key(&forge, guid)), forge.as_str());
    }
});
