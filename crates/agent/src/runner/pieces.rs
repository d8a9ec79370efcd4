//! Which texts are masked of a configuration: the whole, the lines that programs break it into, and what it holds.
//!
//! A configuration of GitHub is base64 of a JSON object of files, each base64 again: `.runner` (settings, no secret),
//! `.credentials` and `.credentials_rsaparams` (a private key as JSON). One of another shape is masked as text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Columns at which programs break base64: `base64` of coreutils, and PEM.
const COLUMNS: [usize; 2] = [76, 64];
/// Shorter pieces and values are not masked: they are words of any log.
const SHORTEST: usize = 16;
/// Values that are masked, at most; a private key has eight.
const VALUES: usize = 64;

/// Everything that is masked of a configuration.
pub(crate) fn pieces(config: &str) -> Vec<String> {
    let mut found = vec![config.to_owned()];
    broken(config, &mut found);
    let files = STANDARD.decode(config).ok();
    let files: Option<Value> = files.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    for (name, file) in files.as_ref().and_then(Value::as_object).into_iter().flatten() {
        let Some(file) = file.as_str().filter(|_| name.contains("credentials")) else { continue };
        found.push(file.to_owned());
        broken(file, &mut found);
        let value = STANDARD.decode(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut values = Vec::new();
        leaves(&value.unwrap_or(Value::Null), &mut values);
        found.extend(values);
    }
    found.retain(|piece| piece.len() >= SHORTEST || piece == config);
    found
}

fn broken(text: &str, found: &mut Vec<String>) {
    for columns in COLUMNS {
        for line in text.as_bytes().chunks(columns) {
            found.extend(std::str::from_utf8(line).ok().map(str::to_owned));
        }
    }
}

/// Texts in a JSON value that may be secrets: no addresses.
fn leaves(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) if !text.contains("://") && found.len() < VALUES => found.push(text.clone()),
        Value::Array(values) => values.iter().for_each(|value| leaves(value, found)),
        Value::Object(values) => values.values().for_each(|value| leaves(value, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn config() -> String {
        let encode = |value: Value| STANDARD.encode(value.to_string());
        encode(json!({
            ".runner": encode(json!({"agentName": "forgeyard-1-of-many", "serverUrl": "https://forge.example/x"})),
            ".credentials": encode(json!({
                "scheme": "OAuth",
                "data": {"clientId": "0f0f0f0f-aaaa-bbbb-cccc-121212121212", "authorizationUrl": "https://forge.example/t"},
            })),
            ".credentials_rsaparams": encode(json!({"d": "private-exponent-of-the-key", "exponent": "AQAB"})),
        }))
    }

    #[test]
    fn what_the_configuration_holds_is_masked_and_what_is_no_secret_is_not() {
        let masked = pieces(&config());
        let has = |text: &str| masked.iter().any(|piece| piece == text);
        assert!(has("private-exponent-of-the-key") && has("0f0f0f0f-aaaa-bbbb-cccc-121212121212"));
        assert!(
            !has("forgeyard-1-of-many") && !has("https://forge.example/t") && !has("AQAB") && !has("OAuth")
        );
    }

    #[test]
    fn a_configuration_in_lines_does_not_show() {
        let config = config();
        for columns in COLUMNS {
            let lines: Vec<&str> =
                config.as_bytes().chunks(columns).map(|line| std::str::from_utf8(line).unwrap()).collect();
            let masker = crate::mask::Masker::new(pieces(&config));
            let (mut held, mut out) = (crate::mask::Held::default(), Vec::new());
            masker.push(&mut held, lines.join("\n").as_bytes(), &mut out);
            masker.finish(&mut held, &mut out);
            let shown = String::from_utf8(out).unwrap();
            for line in &lines[..lines.len() - 1] {
                assert!(!shown.contains(line), "{shown}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_taken_without_panic_and_masked_whole(text in "[!-~]{1,200}") {
            prop_assert!(pieces(&text).contains(&text));
            prop_assert!(pieces(&STANDARD.encode(&text)).contains(&STANDARD.encode(&text)));
        }
    }
}
