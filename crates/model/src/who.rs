//! People and repositories as files and rows name them: a forge and the numeric id there.
//!
//! A number is one person at one forge and somebody else at another, so a number alone means nothing until it is said of
//! which forge. In files a number may stand alone (`7`): it means the *home forge* of the access file
//! ([`Access::home`](crate::access::Access::home)), never any other. `"lab:7"` is number 7 of the forge `lab`, whatever
//! the home forge is.

use crate::ForgeName;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A number of a forge. Without a forge it is of the home forge.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForgeId {
    /// The forge, where it is written.
    pub forge: Option<ForgeName>,
    /// The number.
    pub id: u64,
}

impl ForgeId {
    /// A number of this forge.
    pub fn at(forge: &ForgeName, id: u64) -> Self {
        Self { forge: Some(forge.clone()), id }
    }

    /// The forge that it is of.
    pub fn forge_or<'a>(&'a self, home: &'a str) -> &'a str {
        self.forge.as_ref().map_or(home, ForgeName::as_str)
    }

    /// Whether it is this one.
    pub fn is(&self, home: &str, forge: &str, id: u64) -> bool {
        self.id == id && self.forge_or(home) == forge
    }
}

impl From<u64> for ForgeId {
    fn from(id: u64) -> Self {
        Self { forge: None, id }
    }
}

impl std::fmt::Display for ForgeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.forge {
            Some(forge) => write!(f, "{forge}:{}", self.id),
            None => write!(f, "{}", self.id),
        }
    }
}

/// Text that is no number of a forge.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a numeric id: write the number, or the forge and the number, like \"github:7\"")]
pub struct ForgeIdError(String);

impl std::str::FromStr for ForgeId {
    type Err = ForgeIdError;

    fn from_str(text: &str) -> Result<Self, ForgeIdError> {
        let wrong = || ForgeIdError(text.chars().take(80).collect());
        let (forge, number) = match text.rsplit_once(':') {
            Some((forge, number)) => (Some(forge.parse().map_err(|_| wrong())?), number),
            None => (None, text),
        };
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        Ok(Self { forge, id: number.parse().map_err(|_| wrong())? })
    }
}

impl Serialize for ForgeId {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.forge {
            None => to.serialize_u64(self.id),
            Some(_) => to.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for ForgeId {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl serde::de::Visitor<'_> for Read {
            type Value = ForgeId;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a numeric id, or a forge and its id like \"github:7\"")
            }
            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<ForgeId, E> {
                Ok(id.into())
            }
            fn visit_i64<E: serde::de::Error>(self, id: i64) -> Result<ForgeId, E> {
                u64::try_from(id).map(ForgeId::from).map_err(|_| E::custom(format!("`{id}` is not an id")))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ForgeId, E> {
                text.parse().map_err(E::custom)
            }
        }
        from.deserialize_any(Read)
    }
}

/// A set of people, or of repositories.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ids(BTreeSet<ForgeId>);

impl Ids {
    /// Whether it holds this number of this forge. A number that stands alone is of the home forge and of no other.
    pub fn holds(&self, home: &str, forge: &ForgeName, id: u64) -> bool {
        self.0.contains(&ForgeId::at(forge, id)) || (forge.as_str() == home && self.0.contains(&id.into()))
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many it holds.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &ForgeId> {
        self.0.iter()
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds one.
    pub fn insert(&mut self, id: impl Into<ForgeId>) -> bool {
        self.0.insert(id.into())
    }

    /// Takes one out.
    pub fn remove(&mut self, id: impl Into<ForgeId>) -> bool {
        self.0.remove(&id.into())
    }
}

impl<T: Into<ForgeId>> FromIterator<T> for Ids {
    fn from_iter<I: IntoIterator<Item = T>>(ids: I) -> Self {
        Self(ids.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<ForgeId>, const N: usize> From<[T; N]> for Ids {
    fn from(ids: [T; N]) -> Self {
        ids.into_iter().collect()
    }
}

impl<T: Into<ForgeId>> Extend<T> for Ids {
    fn extend<I: IntoIterator<Item = T>>(&mut self, ids: I) {
        self.0.extend(ids.into_iter().map(Into::into));
    }
}

impl<'a> IntoIterator for &'a Ids {
    type Item = &'a ForgeId;
    type IntoIter = std::collections::btree_set::Iter<'a, ForgeId>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl IntoIterator for Ids {
    type Item = ForgeId;
    type IntoIter = std::collections::btree_set::IntoIter<ForgeId>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// What a table says of this number of this forge. What is written with the forge comes before what is not.
pub fn find<'a, T>(table: &'a BTreeMap<ForgeId, T>, home: &str, forge: &ForgeName, id: u64) -> Option<&'a T> {
    let alone = || if forge.as_str() == home { table.get(&id.into()) } else { None };
    table.get(&ForgeId::at(forge, id)).or_else(alone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn forge(name: &str) -> ForgeName {
        name.parse().unwrap()
    }

    #[test]
    fn number_of_one_forge_is_never_that_of_another() {
        let alone = Ids::from([7]);
        assert!(alone.holds("github", &forge("github"), 7));
        assert!(!alone.holds("github", &forge("lab"), 7));
        let written = Ids::from([ForgeId::at(&forge("lab"), 7)]);
        assert!(written.holds("github", &forge("lab"), 7));
        assert!(!written.holds("github", &forge("github"), 7) && !written.holds("lab", &forge("github"), 7));
        let table: BTreeMap<ForgeId, u32> =
            BTreeMap::from([(7.into(), 1), (ForgeId::at(&forge("lab"), 7), 2)]);
        assert_eq!(find(&table, "github", &forge("github"), 7), Some(&1));
        assert_eq!(find(&table, "github", &forge("lab"), 7), Some(&2));
        assert_eq!(find(&table, "github", &forge("ghes"), 7), None);
    }

    #[test]
    fn files_of_before_are_read_and_written_as_they_were() {
        let ids: Ids = serde_json::from_str("[7, \"lab:7\", \"8\"]").unwrap();
        assert_eq!(serde_json::to_string(&ids).unwrap(), "[7,8,\"lab:7\"]");
        let table: BTreeMap<ForgeId, u32> = serde_json::from_str(r#"{"7":1,"lab:7":2}"#).unwrap();
        assert_eq!(serde_json::to_string(&table).unwrap(), r#"{"7":1,"lab:7":2}"#);
        for wrong in ["\"lab\"", "\"lab:\"", "\"Lab:7\"", "\":7\"", "\"+7\"", "-7", "\"\"", "1.5"] {
            assert!(serde_json::from_str::<ForgeId>(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_as_it_means(text in "\\PC{0,20}") {
            if let Ok(id) = text.parse::<ForgeId>() {
                prop_assert_eq!(id.to_string().parse::<ForgeId>(), Ok(id));
            }
        }
    }
}
