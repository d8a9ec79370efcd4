//! Names and digests as Nix writes them.

use forgeyard_model::Digest;

/// A digest as Nix writes it.
pub fn base32(content: &[u8]) -> String {
    let bytes = *Digest::of(content).as_bytes();
    let digit = |number: usize| {
        let (byte, shift) = (number * 5 / 8, number * 5 % 8);
        let next = bytes.get(byte + 1).copied().unwrap_or_default();
        let value = (u16::from(bytes[byte]) | u16::from(next) << 8) >> shift & 31;
        char::from(b"0123456789abcdfghijklmnpqrsvwxyz"[usize::from(value)])
    };
    (0..52).rev().map(digit).collect()
}

/// The name of a file as Nix gives it.
pub fn file_of(content: &[u8]) -> String {
    format!("nar/{}.nar", base32(content))
}
