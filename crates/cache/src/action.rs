//! Action results of the Remote Execution API (`build.bazel.remote.execution.v2`): which contents one refers to.
//!
//! Only what that takes is decoded: `ActionResult` {2 output file, 3 output directory, 6 stdout digest, 8 stderr digest},
//! `OutputFile` {2 digest}, `OutputDirectory` {3 tree digest, 5 root directory digest}, `Digest` {1 hash, 2 size}, `Tree`
//! {1 root, 2 children} and `Directory` {1 files, 2 directories}, `FileNode` and `DirectoryNode` {2 digest}. Unknown fields are read over, as the encoding demands.

use forgeyard_model::Digest;

/// Most references that are followed. A result with more is refused.
const MOST: usize = 100_000;
/// The digest of no bytes: it is always there, whether anybody stored it or not.
pub const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// What an action result refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct References {
    /// Files, standard output and error.
    pub contents: Vec<Digest>,
    /// Trees, whose files are found in their content.
    pub trees: Vec<Digest>,
    /// Directories of which there is no tree; those below are contents of their own.
    pub roots: Vec<Digest>,
}

/// What a directory refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Directory {
    /// Files.
    pub files: Vec<Digest>,
    /// Directories right below.
    pub directories: Vec<Digest>,
}

/// One field of a message.
enum Field<'a> {
    Bytes(u64, &'a [u8]),
    Other,
}

struct Message<'a>(&'a [u8]);

impl<'a> Message<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in 0..10 {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift * 7)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn skip(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next field; `None` for damage, so the end is asked for first.
    fn field(&mut self) -> Option<Field<'a>> {
        let tag = self.varint()?;
        if tag >> 3 == 0 {
            return None;
        }
        match tag & 7 {
            0 => self.varint().map(|_| Field::Other),
            1 => self.skip(8).map(|_| Field::Other),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Some(Field::Bytes(tag >> 3, self.skip(length)?))
            }
            5 => self.skip(4).map(|_| Field::Other),
            _ => None,
        }
    }

    /// Shows every field that has bytes.
    fn each(bytes: &'a [u8], mut see: impl FnMut(u64, &'a [u8]) -> Option<()>) -> Option<()> {
        let mut message = Message(bytes);
        while !message.0.is_empty() {
            if let Field::Bytes(number, bytes) = message.field()? {
                see(number, bytes)?;
            }
        }
        Some(())
    }

    /// The only or last field with this number, as a digest.
    fn digest(bytes: &'a [u8], number: u64) -> Option<Option<Digest>> {
        let mut found = None;
        Self::each(bytes, |at, bytes| {
            if at == number {
                found = read_digest(bytes)?;
            }
            Some(())
        })?;
        Some(found)
    }
}

/// A digest; `Some(None)` for one that is empty.
fn read_digest(bytes: &[u8]) -> Option<Option<Digest>> {
    let mut hash = None;
    Message::each(bytes, |number, bytes| {
        if number == 1 {
            hash = Some(Digest::from_hex(std::str::from_utf8(bytes).ok()?).ok()?);
        }
        Some(())
    })?;
    Some(hash)
}

/// What an action result refers to; nothing for bytes that are none.
pub fn references(bytes: &[u8]) -> Option<References> {
    let mut found = References::default();
    Message::each(bytes, |number, bytes| {
        match number {
            2 => found.contents.extend(Message::digest(bytes, 2)?),
            3 => match Message::digest(bytes, 3)? {
                Some(tree) => found.trees.push(tree),
                None => found.roots.extend(Message::digest(bytes, 5)?),
            },
            6 | 8 => found.contents.extend(read_digest(bytes)?),
            _ => {}
        }
        (found.contents.len() + found.trees.len() + found.roots.len() <= MOST).then_some(())
    })?;
    Some(found)
}

/// What a directory refers to; nothing for bytes that are none.
pub fn directory(bytes: &[u8]) -> Option<Directory> {
    let mut found = Directory::default();
    Message::each(bytes, |number, node| {
        match number {
            1 => found.files.extend(Message::digest(node, 2)?),
            2 => found.directories.extend(Message::digest(node, 2)?),
            _ => {}
        }
        (found.files.len() + found.directories.len() <= MOST).then_some(())
    })?;
    Some(found)
}

/// The files of a tree; nothing for bytes that are none.
pub fn tree_files(bytes: &[u8]) -> Option<Vec<Digest>> {
    let mut found = Vec::new();
    Message::each(bytes, |number, directory| {
        if matches!(number, 1 | 2) {
            Message::each(directory, |number, file| {
                if number == 1 {
                    found.extend(Message::digest(file, 2)?);
                }
                (found.len() <= MOST).then_some(())
            })?;
        }
        Some(())
    })?;
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        assert!(bytes.len() < 128);
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    fn digest(of: &[u8]) -> Vec<u8> {
        [field(1, Digest::of(of).hex().as_bytes()), vec![2 << 3, of.len() as u8]].concat()
    }

    #[test]
    fn references_of_a_result_are_found() {
        let file = [field(1, b"out/a.o"), field(2, &digest(b"a")), vec![4 << 3, 1]].concat();
        let result = [field(2, &file), vec![4 << 3, 0], field(6, &digest(b"log"))].concat();
        let found = references(&result).unwrap();
        assert_eq!(found.contents, [Digest::of(b"a"), Digest::of(b"log")]);
        let directory = field(1, &field(2, &digest(b"x")));
        assert_eq!(tree_files(&field(1, &directory)).unwrap(), [Digest::of(b"x")]);
    }

    #[test]
    fn text_is_no_action_result() {
        assert_eq!(references(b"Hello, World!"), None);
        assert_eq!(references(b""), Some(References::default()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = (references(&bytes), tree_files(&bytes), directory(&bytes));
        }
    }
}
