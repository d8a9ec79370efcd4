//! The canonical lock: what an environment holds, in a form that has one spelling.
//!
//! Canonical text, one line each, lines end with a line feed:
//!
//! ```text
//! forgeyard-lock 1
//! platform linux-64
//! link-policy 1
//! linux-64 fy-greet-1.0-hb0f4dca_0.conda b5c79ed0…
//! noarch fy-words-1.0-h4616a5c_0.conda 4f1f…
//! ```
//!
//! Packages are sorted by platform folder and file name. Where a package was fetched from is no part of it: the digest
//! says what it is. The name of the prefix is the first 160 bits of the SHA-256 of this text, in base 32.

use forgeyard_model::environment::LockedPackage;
use forgeyard_model::{Digest, Explanation};

/// Version of the rules by which packages become files. Raised when the same lock would give other files, so that the
/// new files get a prefix of their own.
pub const LINK_POLICY: u32 = 1;

/// Characters in the name of a prefix.
pub const NAME_LENGTH: usize = 32;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// A canonical lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    platform: String,
    packages: Vec<LockedPackage>,
}

impl Lock {
    /// Sorts the packages and checks that each can be written on a line and stands there once.
    pub fn new(platform: &str, mut packages: Vec<LockedPackage>) -> Result<Self, Explanation> {
        let refuse = |what: &str, text: &str| {
            let message = format!("the channel lists a package whose {what} cannot be locked: {text:?}");
            Explanation::new("environment.package_unverifiable", message)
                .fix("repair the index of the channel")
        };
        let plain = |text: &str| {
            let safe = |b: u8| b.is_ascii_graphic() && b != b'/' && b != b'\\';
            !text.is_empty() && !text.starts_with('.') && text.bytes().all(safe)
        };
        if !plain(platform) {
            let message = format!("{platform:?} is not a platform");
            return Err(Explanation::new("environment.request_invalid", message)
                .fix("use a platform such as `linux-64`"));
        }
        packages.sort();
        for package in &packages {
            if !plain(&package.subdir) {
                return Err(refuse("platform folder", &package.subdir));
            }
            if !plain(&package.file_name) {
                return Err(refuse("file name", &package.file_name));
            }
        }
        let place = |package: &LockedPackage| (package.subdir.clone(), package.file_name.clone());
        if let Some(twice) = packages.windows(2).find(|pair| place(&pair[0]) == place(&pair[1])) {
            return Err(refuse("place is taken twice", &twice[0].file_name));
        }
        Ok(Self { platform: platform.to_owned(), packages })
    }

    /// The packages, sorted.
    pub fn packages(&self) -> &[LockedPackage] {
        &self.packages
    }

    /// The packages, sorted.
    pub fn into_packages(self) -> Vec<LockedPackage> {
        self.packages
    }

    /// The canonical text.
    pub fn canonical(&self) -> String {
        let mut text = format!("forgeyard-lock 1\nplatform {}\nlink-policy {LINK_POLICY}\n", self.platform);
        for package in &self.packages {
            text.push_str(&format!("{} {} {}\n", package.subdir, package.file_name, package.digest.hex()));
        }
        text
    }

    /// Digest of the canonical text.
    pub fn digest(&self) -> Digest {
        Digest::of(self.canonical().as_bytes())
    }

    /// Name of the prefix: 32 characters of base 32.
    pub fn prefix_name(&self) -> String {
        let digest = self.digest();
        let mut name = String::with_capacity(NAME_LENGTH);
        // Five bytes are eight characters.
        for group in digest.as_bytes()[..20].chunks(5) {
            let bits = group.iter().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
            name.extend((0..8).rev().map(|place| char::from(ALPHABET[(bits >> (place * 5) & 31) as usize])));
        }
        name
    }
}

/// Whether a file name is that of a prefix.
pub fn is_prefix_name(name: &str) -> bool {
    name.len() == NAME_LENGTH && name.bytes().all(|byte| ALPHABET.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn package(subdir: &str, file_name: &str, seed: u8) -> LockedPackage {
        let url = format!("http://channel.example/{subdir}/{file_name}");
        LockedPackage { subdir: subdir.into(), file_name: file_name.into(), digest: Digest::of(&[seed]), url }
    }

    #[test]
    fn canonical_text_and_prefix_name_are_pinned() {
        let lock = Lock::new(
            "linux-64",
            vec![package("noarch", "b-1-0.conda", 2), package("linux-64", "a-1-0.conda", 1)],
        );
        let lock = lock.unwrap();
        let lines: Vec<_> = lock.canonical().lines().map(str::to_owned).collect();
        assert_eq!(lines[..3], ["forgeyard-lock 1", "platform linux-64", "link-policy 1"]);
        assert_eq!(lines[3], format!("linux-64 a-1-0.conda {}", Digest::of(&[1]).hex()));
        assert_eq!(lines[4], format!("noarch b-1-0.conda {}", Digest::of(&[2]).hex()));
        assert!(is_prefix_name(&lock.prefix_name()));
        assert_eq!(lock.prefix_name(), PINNED, "environments that exist would lose their prefix");
    }

    const PINNED: &str = "bmwysd7rmt347pan0jzcm13mkct80jjf";

    #[test]
    fn where_a_package_came_from_does_not_change_the_prefix() {
        let here = package("noarch", "b-1-0.conda", 2);
        let there = LockedPackage { url: "https://mirror.example/b".into(), ..here.clone() };
        let name = |package| Lock::new("linux-64", vec![package]).unwrap().prefix_name();
        assert_eq!(name(here), name(there));
    }

    #[test]
    fn a_name_that_would_break_the_text_or_leave_the_folder_is_refused() {
        for (subdir, file) in
            [("noarch", "../x"), ("no arch", "x"), ("noarch", "a\nb"), ("", "x"), ("..", "x")]
        {
            let error = Lock::new("linux-64", vec![package(subdir, file, 1)]).unwrap_err();
            assert_eq!(error.code, "environment.package_unverifiable");
        }
        Lock::new("linux 64", vec![]).unwrap_err();
    }

    proptest! {
        #[test]
        fn order_does_not_matter_and_content_does(
            seeds in proptest::collection::vec(any::<u8>(), 1..8),
            flip in any::<prop::sample::Index>(),
        ) {
            let all: Vec<_> = seeds.iter().enumerate().map(|(i, s)| package("noarch", &format!("p{i}-1-0.conda"), *s)).collect();
            let reversed: Vec<_> = all.iter().rev().cloned().collect();
            let lock = Lock::new("linux-64", all.clone()).unwrap();
            prop_assert_eq!(&lock, &Lock::new("linux-64", reversed).unwrap());
            let mut other = all.clone();
            let changed = flip.index(other.len());
            other[changed].digest = Digest::of(b"another");
            prop_assert_ne!(lock.prefix_name(), Lock::new("linux-64", other).unwrap().prefix_name());
            prop_assert_ne!(lock.prefix_name(), Lock::new("linux-aarch64", all).unwrap().prefix_name());
        }
    }
}
