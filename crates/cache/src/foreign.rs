//! Addresses of another server's files of Nix. Whoever changes the server behind an address meets them for a month: Nix keeps a
//! `narinfo` for 30 days, with the `URL` of the server that it came from, and asks the new server for that (harmonia#248, ncps#806).
//!
//! ```text
//! nar/FILEHASH.nar.xz                 nix copy, and so this cache: an entry with that key, see `exchange`
//! nar/NARHASH.nar?hash=STOREHASH      harmonia; the query says nothing more
//! nar/NARHASH.nar[.xz|.zst]           servers that name a file by what it unpacks to
//! nar/STOREHASH-NARHASH.nar           nix-serve
//! nar/STOREHASH.nar                   old nix-serve, attic: a miss, see below
//! ```
//!
//! So when a `narinfo` is stored and its file was unpacked and measured ([`crate::nar`]), the hash of the NAR gets an entry of
//! its own in the same scope, [`Kind::Nar`](crate::name::Kind::Nar), which no client can write or read by itself:
//!
//! ```text
//! key       NarHash, in hexadecimal digits
//! content   CODING SIZE URL\n        how the file is compressed, NarSize, key of the file
//! ```
//!
//! Who reads at a foreign address sees what the `narinfo` of the scope would show him, no more.
//!
//! What a client does with the bytes is said by the `narinfo` that it kept, so a redirection is of no use: a file that is stored
//! as it is asked for is sent as it is; a plain NAR of a compressed file is unpacked while it is sent ([`crate::exchange`]);
//! anything else is a miss, `.xz` asked for and `.zst` stored too: Nix 2.8 looks what it got and would unpack it, 2.26 goes by what
//! it was told before and fails. A miss is harmless, Nix goes on as if nobody had ever had the path.
//! Bytes of *another* NAR are not: a hash mismatch fails the build. That is why an address that does not say the hash of the
//! NAR is a miss. It is also why HEAD, by which `nix copy --to` asks whether it has to send a file, knows no foreign addresses.

use crate::nar::Coding;
use crate::nix::{base32, is_base32};
use forgeyard_model::Digest;

/// NARs that are unpacked at once while they are sent, for all callers.
pub(crate) const AT_ONCE: usize = 4;

/// What is asked for at an address of another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Hash of the NAR.
    pub nar: Digest,
    /// What the client expects to unpack.
    pub coding: Coding,
}

/// Reads the key of a file that is not here under that name.
pub fn asked(key: &str) -> Option<Asked> {
    let (name, ending) = key.strip_prefix("nar/")?.split_once(".nar")?;
    let coding = Coding::by_ending(ending)?;
    let digits = match name.split_once('-') {
        Some((store, digits)) if store.len() == 32 && is_base32(store) => digits,
        Some(_) => return None,
        None => name,
    };
    let nar = base32(digits).or_else(|| Digest::from_hex(digits).ok())?;
    Some(Asked { nar, coding })
}

/// Which file unpacks to a NAR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whereabouts {
    /// How the file is compressed.
    pub coding: Coding,
    /// Size of the NAR.
    pub size: u64,
    /// Key of the file.
    pub url: String,
}

impl Whereabouts {
    /// As it is stored.
    pub fn text(&self) -> String {
        format!("{} {} {}\n", self.coding.as_str(), self.size, self.url)
    }

    /// What is stored, read again.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?.splitn(3, ' ');
        let coding = Coding::named(words.next()?)?;
        let size = words.next()?.parse().ok()?;
        let url = words.next().filter(|url| url.starts_with("nar/"))?.to_owned();
        Some(Self { coding, size, url })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EMPTY: &str = "0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73";

    #[test]
    fn addresses_of_other_servers_are_read_where_they_say_the_hash_of_the_nar() {
        let of = |key: &str| asked(key).map(|asked| (asked.nar == Digest::of(b""), asked.coding));
        assert_eq!(of(&format!("nar/{EMPTY}.nar")), Some((true, Coding::None)), "harmonia");
        assert_eq!(of(&format!("nar/{EMPTY}.nar.xz")), Some((true, Coding::Xz)));
        assert_eq!(of(&format!("nar/{EMPTY}.nar.zst")), Some((true, Coding::Zstd)));
        assert_eq!(of(&format!("nar/{}.nar", Digest::of(b"").hex())), Some((true, Coding::None)));
        let store = "00000000000000000000000000000abc";
        assert_eq!(of(&format!("nar/{store}-{EMPTY}.nar")), Some((true, Coding::None)), "nix-serve");
        for wrong in [
            format!("nar/{store}.nar"),
            format!("nar/{store}.nar.zst"),
            format!("nar/{EMPTY}.nar.br"),
            format!("nar/{EMPTY}.ls"),
            format!("nar/{EMPTY}-{EMPTY}.nar"),
            format!("nar/a/{EMPTY}.nar"),
            format!("{EMPTY}.nar"),
        ] {
            assert_eq!(of(&wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_key_is_an_address_or_none(key in "(nar/)?[0-9a-z]{0,33}-?[0-9a-z]{50,65}\\.nar(\\.[a-z]{0,4})?") {
            let _ = asked(&key);
        }

        #[test]
        fn what_is_stored_is_read_again_and_any_bytes_are_read_or_refused(bytes: Vec<u8>, size: u64, name in "[a-z0-9. ]{0,60}") {
            let _ = Whereabouts::read(&bytes);
            for coding in [Coding::None, Coding::Xz, Coding::Zstd] {
                let one = Whereabouts { coding, size, url: format!("nar/{name}") };
                prop_assert_eq!(Whereabouts::read(one.text().as_bytes()), Some(one));
            }
        }
    }
}
