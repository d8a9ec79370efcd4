//! Masks secrets in a stream of bytes, wherever the stream is cut.
//!
//! Every byte that belongs to an occurrence of a secret is hidden, overlapping ones included; a run of hidden bytes
//! becomes `***`. Bytes that may still turn out to begin a secret are held back, at most one less than the longest
//! secret. What is held is part of the agent's state on disk, so a restart masks the same.

use serde::{Deserialize, Serialize};

/// Shorter texts are not masked: they would hide half of the log and protect nothing.
const SHORTEST: usize = 4;
const MASK: &[u8] = b"***";

/// What the masker has seen and not yet given out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Held {
    bytes: Vec<u8>,
    /// How many of the bytes belong to a secret that has begun already.
    covered: usize,
    /// Whether the mask of the present run has been written.
    open: bool,
}

impl Held {
    /// Whether nothing is held back.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// The secrets.
#[derive(Clone)]
pub(crate) struct Masker {
    /// Longest first.
    secrets: Vec<Vec<u8>>,
    /// Places in `secrets` by first byte: few are compared at each place of the stream.
    begins: Vec<Vec<usize>>,
}

impl Masker {
    /// A masker for these texts. Each line of a text with several lines is masked as well, since streams interleave.
    pub(crate) fn new(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut masker = Self { secrets: Vec::new(), begins: Vec::new() };
        masker.add(texts);
        masker
    }

    /// Masks further texts from now on.
    pub(crate) fn add(&mut self, texts: impl IntoIterator<Item = impl AsRef<str>>) {
        for text in texts {
            let text = text.as_ref().trim();
            self.secrets.push(text.as_bytes().to_vec());
            if text.contains('\n') {
                self.secrets.extend(text.lines().map(|line| line.trim().as_bytes().to_vec()));
            }
        }
        self.secrets.retain(|secret| secret.len() >= SHORTEST);
        self.secrets.sort_by(|one, other| (other.len(), one).cmp(&(one.len(), other)));
        self.secrets.dedup();
        self.begins = vec![Vec::new(); 256];
        for (place, secret) in self.secrets.iter().enumerate() {
            self.begins[usize::from(secret[0])].push(place);
        }
    }

    /// Takes further bytes and gives out what is certain.
    pub(crate) fn push(&self, held: &mut Held, bytes: &[u8], out: &mut Vec<u8>) {
        held.bytes.extend_from_slice(bytes);
        self.give(held, out, false);
    }

    /// Gives out the rest: the stream is over.
    pub(crate) fn finish(&self, held: &mut Held, out: &mut Vec<u8>) {
        self.give(held, out, true);
        *held = Held::default();
    }

    fn give(&self, held: &mut Held, out: &mut Vec<u8>, last: bool) {
        let mut at = 0;
        while at < held.bytes.len() {
            let rest = &held.bytes[at..];
            let mut candidates = self.begins[usize::from(rest[0])].iter().map(|place| &self.secrets[*place]);
            let may_grow = |secret: &Vec<u8>| secret.len() > rest.len() && secret.starts_with(rest);
            if !last && candidates.clone().any(may_grow) {
                break;
            }
            // Longest first.
            if let Some(secret) = candidates.find(|secret| rest.starts_with(secret)) {
                held.covered = held.covered.max(secret.len());
            }
            if held.covered > 0 {
                if !held.open {
                    out.extend_from_slice(MASK);
                    held.open = true;
                }
                held.covered -= 1;
            } else {
                held.open = false;
                out.push(rest[0]);
            }
            at += 1;
        }
        held.bytes.drain(..at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn masked(masker: &Masker, chunks: &[&[u8]]) -> Vec<u8> {
        let (mut held, mut out) = (Held::default(), Vec::new());
        for chunk in chunks {
            masker.push(&mut held, chunk, &mut out);
            assert!(held.bytes.len() < masker.secrets.iter().map(Vec::len).max().unwrap_or(1));
            // What is on disk is enough to go on.
            held = serde_json::from_slice(&serde_json::to_vec(&held).unwrap()).unwrap();
        }
        masker.finish(&mut held, &mut out);
        out
    }

    #[test]
    fn secret_split_over_chunks_is_masked() {
        let masker = Masker::new(["hunter2!"]);
        assert_eq!(masked(&masker, &[b"a hun", b"ter", b"2! b"]), b"a *** b");
        assert_eq!(masked(&masker, &[b"a hun", b"t"]), b"a hunt");
    }

    #[test]
    fn overlapping_secrets_leave_no_rest() {
        let masker = Masker::new(["abca", "cabc"]);
        assert_eq!(masked(&masker, &[b"xabcabcy"]), b"x***y");
    }

    #[test]
    fn an_endless_run_is_not_held_back() {
        let masker = Masker::new(["aaaa"]);
        assert_eq!(masked(&masker, &[&[b'a'; 1000], b"b"]), b"***b");
    }

    #[test]
    fn each_line_of_a_key_is_masked() {
        let masker = Masker::new(["-----BEGIN-----\nMIIE1234\n"]);
        assert_eq!(masked(&masker, &[b"x MIIE1234 y"]), b"x *** y");
    }

    proptest! {
        #[test]
        fn cutting_changes_nothing_and_no_secret_shows(
            secrets in prop::collection::vec("[abc]{4,7}", 0..4),
            text in "[abcd]{0,80}",
            cuts in prop::collection::vec(0usize..80, 0..10),
        ) {
            let masker = Masker::new(&secrets);
            let bytes = text.as_bytes();
            let whole = masked(&masker, &[bytes]);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut chunks = Vec::new();
            let mut from = 0;
            for cut in cuts {
                chunks.push(&bytes[from..cut]);
                from = cut;
            }
            chunks.push(&bytes[from..]);
            prop_assert_eq!(&masked(&masker, &chunks), &whole);
            let shown = String::from_utf8(whole).unwrap();
            for secret in &secrets {
                prop_assert!(!shown.contains(secret.as_str()));
            }
            if !secrets.iter().any(|secret| text.contains(secret.as_str())) {
                prop_assert_eq!(shown, text);
            }
        }
    }
}
