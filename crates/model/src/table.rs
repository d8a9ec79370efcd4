//! A table of large rows by key.
//!
//! An ordered map whose rows lie beside it. The standard map keeps rows inside its nodes, eleven in each: with rows of a kilobyte every
//! step of a search lands on another page of memory, and a new row moves its neighbours. Here a node is a few hundred bytes, so the
//! way to a row stays in the cache of the processor, whatever the rows are. The order is that of the keys.

use std::borrow::Borrow;
use std::collections::{BTreeMap, btree_map};
use std::ops::{Index, RangeBounds};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table<K, V>(BTreeMap<K, Box<V>>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V> Table<K, V> {
    /// The row with this key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key).map(|row| &**row)
    }

    /// The same, to change it.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.0.get_mut(key).map(|row| &mut **row)
    }

    /// Whether there is such a row.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.contains_key(key)
    }

    /// Puts a row and answers what was there before.
    pub fn insert(&mut self, key: K, row: V) -> Option<V> {
        self.0.insert(key, Box::new(row)).map(|row| *row)
    }

    /// Takes a row out.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.0.remove(key).map(|row| *row)
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All keys, in order.
    pub fn keys(&self) -> btree_map::Keys<'_, K, Box<V>> {
        self.0.keys()
    }

    /// All rows, in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator + Clone {
        self.0.values().map(|row| &**row)
    }

    /// The same, to change them.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> + ExactSizeIterator {
        self.0.values_mut().map(|row| &mut **row)
    }

    /// All keys with their rows, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + ExactSizeIterator + Clone {
        self.0.iter().map(|(key, row)| (key, &**row))
    }

    /// Those with keys of this range.
    pub fn range(&self, keys: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.0.range(keys).map(|(key, row)| (key, &**row))
    }

    /// The row with the smallest key.
    pub fn first_key_value(&self) -> Option<(&K, &V)> {
        self.0.first_key_value().map(|(key, row)| (key, &**row))
    }

    /// The row with the largest key.
    pub fn last_key_value(&self) -> Option<(&K, &V)> {
        self.0.last_key_value().map(|(key, row)| (key, &**row))
    }

    /// Keeps the rows of which this is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain(|key, row| keep(key, row));
    }
}

impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for Table<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        &self.0[key]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn table_does_what_a_map_does(steps in prop::collection::vec((0u8..40, any::<Option<u32>>()), 0..200)) {
            let (mut table, mut map) = (Table::default(), BTreeMap::new());
            for (key, row) in steps {
                match row {
                    Some(row) => prop_assert_eq!(table.insert(key, row), map.insert(key, row)),
                    None => prop_assert_eq!(table.remove(&key), map.remove(&key)),
                }
                prop_assert_eq!(table.get(&key), map.get(&key));
                prop_assert_eq!(table.contains_key(&key), map.contains_key(&key));
                prop_assert_eq!(table.last_key_value(), map.last_key_value());
                prop_assert_eq!(table.first_key_value(), map.first_key_value());
                prop_assert!(table.range(..key).rev().eq(map.range(..key).rev()));
            }
            prop_assert!(table.iter().eq(&map) && table.values().eq(map.values()) && table.keys().eq(map.keys()));
            table.retain(|key, row| { *row = 0; key % 2 == 0 });
            map.retain(|key, row| { *row = 0; key % 2 == 0 });
            prop_assert!(table.iter().eq(&map) && table.len() == map.len() && table.is_empty() == map.is_empty());
        }
    }
}
