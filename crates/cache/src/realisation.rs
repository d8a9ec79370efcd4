//! Realisations of Nix (`ca-derivations`): which path an output of a derivation came out as.
//!
//! ```text
//! PUT, GET    realisations/sha256:DIGITS!OUTPUT.doi
//! {"dependentRealisations":{"sha256:DIGITS!OUTPUT":"HASH-NAME"},"id":"sha256:DIGITS!OUTPUT","outPath":"HASH-NAME","signatures":[…]}
//! fingerprint    the same without `signatures`, names sorted, no spaces
//! ```
//!
//! A path by content needs no signature, but Nix believes no realisation without one, so it is signed when it is served, like a
//! `narinfo` ([`crate::signature`]). Seen on the wire of Nix 2.26; newer ones write `build-trace-v2/`, which is stored as it is
//! and not signed.

use crate::nix;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Whether a key of [`Kind::Nix`](crate::name::Kind::Nix) is that of a realisation.
pub(crate) fn is_realisation(key: &str) -> bool {
    id_of(key).is_some()
}

fn id_of(key: &str) -> Option<&str> {
    key.strip_prefix("realisations/")?.strip_suffix(".doi")
}

/// What a realisation says, in the form that every reader understands in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Realisation {
    #[serde(default)]
    dependent_realisations: BTreeMap<String, String>,
    id: String,
    out_path: String,
    #[serde(default)]
    signatures: Vec<String>,
}

/// `sha256:` with hexadecimal digits, and the name of an output.
fn is_id(text: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"+-._?=".contains(&b);
    matches!(text.strip_prefix("sha256:").and_then(|rest| rest.split_once('!')), Some((digits, output))
        if forgeyard_model::Digest::from_hex(digits).is_ok() && !output.is_empty() && output.bytes().all(good))
}

impl Realisation {
    /// Reads one; nothing unless it is the one that its key says and has only words that no reader has to unescape.
    pub(crate) fn read(key: &str, bytes: &[u8]) -> Option<Self> {
        let id = id_of(key).filter(|id| is_id(id) && bytes.len() <= nix::LONGEST)?;
        let read: Self = serde_json::from_slice(bytes).ok()?;
        let plain = |text: &String| text.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\');
        let good = read.id == id
            && nix::is_base_name(&read.out_path)
            && read.dependent_realisations.iter().all(|(id, path)| is_id(id) && nix::is_base_name(path))
            && read.signatures.iter().all(plain);
        good.then_some(read)
    }

    fn begin(&self) -> String {
        let mut text = String::from("{\"dependentRealisations\":{");
        for (number, (id, path)) in self.dependent_realisations.iter().enumerate() {
            let _ = write!(text, "{}\"{id}\":\"{path}\"", if number == 0 { "" } else { "," });
        }
        let _ = write!(text, "}},\"id\":\"{}\",\"outPath\":\"{}\"", self.id, self.out_path);
        text
    }

    /// What Nix signs.
    pub(crate) fn fingerprint(&self) -> String {
        self.begin() + "}"
    }

    /// Whether both say the same of the output. Who signed it may differ.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        (&self.id, &self.out_path) == (&other.id, &other.out_path)
    }

    /// With one more signature; nothing when it has that already.
    pub(crate) fn signed(&self, signature: &str) -> Option<String> {
        if self.signatures.iter().any(|one| one == signature) {
            return None;
        }
        let mut text = self.begin() + ",\"signatures\":[";
        for one in &self.signatures {
            let _ = write!(text, "\"{one}\",");
        }
        let _ = write!(text, "\"{signature}\"]}}");
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "sha256:963ccdba92f774a43635f3ee462e6461217acbfacf1542685254de137e8b68e8!out";
    const OUT: &str = "5km9v1c9y5z55yizwnc2nd3l92ljpnbp-caone";

    fn key() -> String {
        format!("realisations/{ID}.doi")
    }

    /// As Nix 2.26 wrote it.
    #[test]
    fn realisation_is_read_and_signed_as_nix_writes_it() {
        let text = format!(
            "{{\"dependentRealisations\":{{}},\"id\":\"{ID}\",\"outPath\":\"{OUT}\",\"signatures\":[]}}"
        );
        let read = Realisation::read(&key(), text.as_bytes()).unwrap();
        assert_eq!(read.fingerprint(), text.replace(",\"signatures\":[]", ""));
        let signed = read.signed("main-1:abc=").unwrap();
        assert_eq!(signed, text.replace("[]", "[\"main-1:abc=\"]"));
        let again = Realisation::read(&key(), signed.as_bytes()).unwrap();
        assert!(again.agrees(&read) && again.signed("main-1:abc=").is_none());
        assert_eq!(again.fingerprint(), read.fingerprint());
    }

    #[test]
    fn realisation_that_two_readers_could_take_differently_is_not_signed() {
        let good = format!("{{\"id\":\"{ID}\",\"outPath\":\"{OUT}\"}}");
        assert!(Realisation::read(&key(), good.as_bytes()).is_some());
        for wrong in [
            good.replace("963c", "963d"),
            good.replace(OUT, "/nix/store/x"),
            good.replace("caone", "ca\\\"one"),
            good.replace('}', ",\"more\":1}"),
            good.replace('}', &format!(",\"id\":\"{ID}\"}}")),
            good.replace('}', ",\"dependentRealisations\":{\"x\":\"y\"}}"),
            good.replace('}', ",\"signatures\":[\"a\\\"b\"]}"),
        ] {
            assert!(Realisation::read(&key(), wrong.as_bytes()).is_none(), "{wrong}");
        }
        assert!(Realisation::read("realisations/x!out.doi", good.as_bytes()).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_realisation_or_none(bytes: Vec<u8>, text in "\\PC{0,80}") {
            let _ = Realisation::read(&key(), &bytes);
            let _ = Realisation::read(&format!("realisations/{text}.doi"), text.as_bytes());
        }
    }
}
