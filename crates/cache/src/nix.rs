//! Binary caches of Nix: what a `narinfo` says, and which file of a cache is which.
//!
//! `nix copy --to` asks for `nix-cache-info`, looks for the `narinfo` of each path, puts `nar/<hash of the file>.nar.xz`
//! and then `<hash>.narinfo`. Clients keep an answer for 30 days, so a `narinfo` whose file is gone must not be served: both
//! are a miss then (nix#1340).

use forgeyard_model::Digest;

/// What every scope answers for `nix-cache-info`. Lower priorities are asked first; the public cache has 40.
pub const CACHE_INFO: &str = "StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 45\n";
/// Largest `narinfo` that is looked at; one with ten thousand references is smaller.
pub const LONGEST: usize = 1 << 20;

const DIGITS: &[u8; 32] = b"0123456789abcdfghijklmnpqrsvwxyz";

/// What of a `narinfo` matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NarInfo {
    /// Key of the file, below the root of the cache.
    pub url: String,
    /// Size of the file, when said.
    pub file_size: Option<u64>,
    /// The store path.
    pub store_path: String,
    /// Digest of what the path contains, as written.
    pub nar_hash: String,
    /// Size of what the path contains.
    pub nar_size: u64,
    /// How the file is compressed, when said.
    pub compression: Option<String>,
    /// Digest of the file, as written, when said.
    pub file_hash: Option<String>,
}

impl NarInfo {
    /// Whether both say the same of what the path contains. How the file is compressed, and who signed it, may differ.
    pub fn agrees(&self, other: &NarInfo) -> bool {
        let (one, two) = (hash(&self.nar_hash), hash(&other.nar_hash));
        if one.is_some() && two.is_some() { one == two } else { self.nar_hash == other.nar_hash }
    }
}

/// A SHA-256 as Nix writes it after `sha256:`: in its base 32, or in hexadecimal digits.
pub fn hash(text: &str) -> Option<Digest> {
    let digits = text.strip_prefix("sha256:")?;
    base32(digits).or_else(|| Digest::from_hex(digits).ok())
}

/// Names and values of the lines of a `narinfo`; nothing when a line is none or the last one does not end.
pub fn fields(bytes: &[u8]) -> Option<Vec<(&str, &str)>> {
    let text =
        std::str::from_utf8(bytes).ok().filter(|text| text.ends_with('\n') && text.len() <= LONGEST)?;
    let field = |line| str::split_once(line, ": ").or_else(|| Some((str::strip_suffix(line, ':')?, "")));
    // not `lines`, which would take a return off the end
    text.strip_suffix('\n')?.split('\n').map(field).collect()
}

/// Whether a text has digits of Nix's base 32 only.
pub fn is_base32(text: &str) -> bool {
    text.bytes().all(|digit| DIGITS.contains(&digit))
}

/// Digits of the hash in a store path, and its name: `00000000000000000000000000000abc-hello`.
pub(crate) fn is_base_name(text: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"+-._?=".contains(&b);
    matches!(text.split_at_checked(32), Some((hash, name)) if is_base32(hash)
        && name.len() > 1 && name.len() <= 212 && name.starts_with('-') && name.bytes().all(good))
}

/// Reads a `narinfo`; nothing when a client would call it corrupt or its file lies outside of `nar/`.
pub fn narinfo(bytes: &[u8]) -> Option<NarInfo> {
    let (mut url, mut file_size, mut path, mut hash, mut size) = (None, None, None, None, None);
    let (mut compression, mut file_hash) = (None, None);
    for (name, value) in fields(bytes)? {
        match name {
            "URL" => url = Some(value.to_owned()),
            "FileSize" => file_size = Some(value.parse().ok()?),
            "FileHash" => file_hash = Some(value.to_owned()),
            "Compression" => compression = Some(value.to_owned()),
            "StorePath" => path = Some(value),
            "NarHash" => hash = Some(value),
            "NarSize" => size = value.parse::<u64>().ok().filter(|size| *size > 0),
            _ => {}
        }
    }
    let store_path = path.filter(|path| path.starts_with("/nix/store/"));
    let url = url.filter(|url| url.starts_with("nar/") && !url.contains(".."));
    let (store_path, nar_hash) = (store_path?.to_owned(), hash?.to_owned());
    Some(NarInfo { url: url?, file_size, store_path, nar_hash, nar_size: size?, compression, file_hash })
}

/// The digest in the name of a file below `nar/`: 52 digits of Nix's base 32, the last bits first.
pub fn file_digest(key: &str) -> Option<Digest> {
    base32(key.strip_prefix("nar/")?.split('.').next()?)
}

/// A SHA-256 in Nix's base 32.
pub(crate) fn base32(digits: &str) -> Option<Digest> {
    if digits.len() != 52 {
        return None;
    }
    let mut bytes = [0u8; 32];
    for (number, digit) in digits.bytes().rev().enumerate() {
        let value = DIGITS.iter().position(|one| *one == digit)? as u16;
        let (byte, shift) = (number * 5 / 8, number * 5 % 8);
        bytes[byte] |= (value << shift) as u8;
        let carry = (value >> (8 - shift)) as u8;
        match bytes.get_mut(byte + 1) {
            Some(next) => *next |= carry,
            None if carry == 0 => {}
            None => return None,
        }
    }
    Some(Digest::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Nix's own form of the digest of no bytes.
    #[test]
    fn digest_in_a_file_name_is_read_as_nix_writes_it() {
        let key = "nar/0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73.nar.xz";
        assert_eq!(file_digest(key), Some(Digest::of(b"")));
        assert_eq!(file_digest("nar/abc.nar"), None);
    }

    #[test]
    fn narinfo_without_its_file_or_hash_is_none() {
        let good = "StorePath: /nix/store/a-b\nURL: nar/x.nar\nFileSize: 3\nNarHash: sha256:x\nNarSize: 5\nReferences: \nSig: a:b\n";
        assert_eq!(
            narinfo(good.as_bytes()),
            Some(NarInfo {
                url: "nar/x.nar".to_owned(),
                file_size: Some(3),
                store_path: "/nix/store/a-b".to_owned(),
                nar_hash: "sha256:x".to_owned(),
                nar_size: 5,
                compression: None,
                file_hash: None,
            })
        );
        for line in ["StorePath", "URL", "NarHash", "NarSize"] {
            let without: String =
                good.lines().filter(|one| !one.starts_with(line)).map(|one| format!("{one}\n")).collect();
            assert_eq!(narinfo(without.as_bytes()), None, "{line}");
        }
        assert_eq!(narinfo(good.replace("nar/x", "nar/../x").as_bytes()), None);
        assert_eq!(narinfo(good.trim_end().as_bytes()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, key in "nar/[0-9a-z]{50,54}(\\.nar)?") {
            let _ = (narinfo(&bytes), file_digest(&key));
        }
    }
}
