//! Shared libraries that an ELF file asks for (`DT_NEEDED`), read from a stream in one pass.
//!
//! Only the first 128 MiB of a file are held (program headers and, as linkers lay it out, the string table),
//! then the stream is skipped to the dynamic section and, where the string table stands behind it (files that were
//! changed after linking), on to that. A file laid out in another way gives [`Found::Unread`], never a wrong answer.

use std::io::{self, Read};

/// Bytes held from the beginning of a file. The string table of a library with many long C++ names has tens of MiB.
const HEAD: u64 = 128 << 20;
/// Largest dynamic section, and largest part of a string table, that are read beyond the held part.
const WINDOW: u64 = 16 << 20;
/// Longest name of a library, with its closing zero.
const NAME: u64 = 256;

/// What a file gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// Not an ELF file, or one without a dynamic section.
    None,
    /// The libraries that it asks for.
    Needed(Vec<String>),
    /// An ELF file whose layout could not be followed.
    Unread,
}

/// Reads one file.
///
/// # Errors
/// Only errors of the stream; what makes no sense gives [`Found::Unread`].
pub(super) fn needed(stream: &mut dyn Read) -> io::Result<Found> {
    needed_holding(stream, HEAD)
}

fn needed_holding(stream: &mut dyn Read, most: u64) -> io::Result<Found> {
    let mut head = Vec::new();
    Read::take(&mut *stream, 64).read_to_end(&mut head)?;
    if head.get(..4) != Some(b"\x7fELF") {
        return Ok(Found::None);
    }
    Read::take(&mut *stream, most.saturating_sub(head.len() as u64)).read_to_end(&mut head)?;
    let mut source = Source { at: head.len() as u64, head, stream, most };
    Ok(match read(&mut source)? {
        Some(None) => Found::None,
        Some(Some(names)) => Found::Needed(names),
        None => Found::Unread,
    })
}

/// A stream whose beginning is held and that otherwise only moves on.
struct Source<'a> {
    head: Vec<u8>,
    stream: &'a mut dyn Read,
    /// Position of the stream.
    at: u64,
    /// How much of it is held at most.
    most: u64,
}

impl Source<'_> {
    /// Bytes from `offset`, at most `length`; `None` when they have passed or are not there.
    fn window(&mut self, offset: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        let length = length.min(WINDOW);
        let Some(end) = offset.checked_add(length) else { return Ok(None) };
        if end <= self.head.len() as u64 {
            return Ok(self.head.get(offset as usize..end as usize).map(<[u8]>::to_vec));
        }
        let mut bytes = Vec::new();
        let held = self.head.len() as u64;
        if offset < held {
            if self.at != held {
                return Ok(None);
            }
            bytes.extend_from_slice(&self.head[offset as usize..]);
        } else if offset < self.at {
            return Ok(None);
        } else {
            io::copy(&mut Read::take(&mut *self.stream, offset - self.at), &mut io::sink())?;
        }
        let rest = length - bytes.len() as u64;
        self.at = offset.max(held);
        self.at += Read::take(&mut *self.stream, rest).read_to_end(&mut bytes)? as u64;
        Ok(Some(bytes))
    }
}

/// Width and byte order of the numbers of a file.
#[derive(Clone, Copy)]
struct Shape {
    wide: bool,
    big: bool,
}

impl Shape {
    fn number(self, bytes: &[u8], at: usize, size: usize) -> Option<u64> {
        let part = bytes.get(at..at.checked_add(size)?)?;
        let step = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(if self.big { part.iter().fold(0, step) } else { part.iter().rev().fold(0, step) })
    }

    /// An address-sized number.
    fn word(self, bytes: &[u8], at: usize) -> Option<u64> {
        self.number(bytes, at, if self.wide { 8 } else { 4 })
    }
}

/// `None` = cannot be followed; `Some(None)` = no dynamic section.
fn read(source: &mut Source<'_>) -> io::Result<Option<Option<Vec<String>>>> {
    let Some((shape, loads, dynamic)) = program_headers(&source.head) else { return Ok(None) };
    let Some((offset, size)) = dynamic else { return Ok(Some(None)) };
    let Some(table) = source.window(offset, size)? else { return Ok(None) };
    let width = if shape.wide { 8 } else { 4 };
    let (mut names, mut strings) = (Vec::new(), None);
    for entry in table.chunks_exact(width * 2) {
        let (Some(tag), Some(value)) = (shape.word(entry, 0), shape.word(entry, width)) else { break };
        match tag {
            0 => break,
            1 => names.push(value),
            5 => strings = Some(value),
            _ => {}
        }
    }
    let (Some(first), Some(last)) = (names.iter().min().copied(), names.iter().max().copied()) else {
        return Ok(Some(Some(Vec::new())));
    };
    let place = strings.and_then(|address: u64| {
        let inside = |load: &&Load| address >= load.address && address - load.address < load.size;
        loads.iter().find(inside).and_then(|load| load.offset.checked_add(address - load.address))
    });
    let Some(place) = place.and_then(|place| place.checked_add(first)) else { return Ok(None) };
    if names.len() > 4096 {
        return Ok(None);
    }
    let spread = (last - first).saturating_add(NAME);
    let held = source.head.len() as u64;
    // Either the file ends inside the held part, or the names do.
    let whole = source.at == held && held < source.most;
    if place.checked_add(spread).is_some_and(|end| end <= held) || whole {
        let rest = usize::try_from(place).ok().and_then(|place| source.head.get(place..));
        return Ok(rest.and_then(|strings| texts(&names, first, strings)).map(Some));
    }
    if spread > WINDOW {
        return Ok(None);
    }
    let Some(bytes) = source.window(place, spread)? else { return Ok(None) };
    Ok(texts(&names, first, &bytes).map(Some))
}

/// The texts at these places, counted from `first`, the place of the first of `strings`.
fn texts(names: &[u64], first: u64, strings: &[u8]) -> Option<Vec<String>> {
    let text = |name: &u64| {
        let rest = strings.get(usize::try_from(name - first).ok()?..)?;
        let end = rest.iter().take(NAME as usize).position(|byte| *byte == 0)?;
        let text = std::str::from_utf8(&rest[..end]).ok()?;
        (!text.is_empty() && text.chars().all(|c| !c.is_control())).then(|| text.to_owned())
    };
    names.iter().map(text).collect()
}

/// A part of the file that is mapped at an address.
struct Load {
    offset: u64,
    address: u64,
    size: u64,
}

/// Shape of the numbers, mapped parts, place and size of the dynamic section.
type Headers = (Shape, Vec<Load>, Option<(u64, u64)>);

fn program_headers(head: &[u8]) -> Option<Headers> {
    let wide = match head.get(4)? {
        1 => false,
        2 => true,
        _ => return None,
    };
    let big = match head.get(5)? {
        1 => false,
        2 => true,
        _ => return None,
    };
    let shape = Shape { wide, big };
    let start = usize::try_from(shape.word(head, if wide { 32 } else { 28 })?).ok()?;
    let size = shape.number(head, if wide { 54 } else { 42 }, 2)? as usize;
    let count = shape.number(head, if wide { 56 } else { 44 }, 2)? as usize;
    if count > 0 && size < if wide { 56 } else { 32 } {
        return None;
    }
    let (mut loads, mut dynamic) = (Vec::new(), None);
    for index in 0..count {
        let at = start.checked_add(index.checked_mul(size)?)?;
        let header = head.get(at..at.checked_add(size)?)?;
        let kind = shape.number(header, 0, 4)?;
        let (offset, address, length) = if wide { (8, 16, 32) } else { (4, 8, 16) };
        let (offset, address) = (shape.word(header, offset)?, shape.word(header, address)?);
        let length = shape.word(header, length)?;
        match kind {
            1 => loads.push(Load { offset, address, size: length }),
            2 => dynamic = Some((offset, length)),
            _ => {}
        }
    }
    Some((shape, loads, dynamic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A minimal 64-bit file: one mapped part, dynamic section at `dynamic`, strings at `strings`.
    fn file(dynamic: u64, strings: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut put =
            |at: u64, part: &[u8]| bytes[at as usize..at as usize + part.len()].copy_from_slice(part);
        put(0, b"\x7fELF\x02\x01\x01");
        put(32, &64u64.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &2u16.to_le_bytes());
        for (at, kind, offset, size) in [(64, 1u32, 0, length as u64), (120, 2, dynamic, 64)] {
            put(at, &kind.to_le_bytes());
            put(at + 8, &u64::to_le_bytes(offset));
            put(at + 16, &u64::to_le_bytes(offset + 0x1000));
            put(at + 32, &size.to_le_bytes());
        }
        let table = [1, 1, 1, 15, 5, strings + 0x1000, 0, 0u64];
        put(dynamic, &table.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
        put(strings, b"\0libOpenCL.so.1\0libc.so.6\0");
        // The second name begins behind the first.
        put(dynamic + 24, &16u64.to_le_bytes());
        bytes
    }

    /// Held in these tests, so that files stay small.
    const HELD: u64 = 1 << 20;

    fn names(bytes: &[u8]) -> Found {
        needed_holding(&mut &bytes[..], HELD).unwrap()
    }

    fn both() -> Found {
        Found::Needed(vec!["libOpenCL.so.1".into(), "libc.so.6".into()])
    }

    #[test]
    fn needed_libraries_are_read_wherever_the_tables_stand() {
        let big = (HELD + (2 << 20)) as usize;
        assert_eq!(names(&file(256, 512, 1024)), both());
        assert_eq!(names(&file(HELD + 4096, 512, big)), both(), "dynamic section behind the held part");
        assert_eq!(
            names(&file(HELD + 4096, HELD + 65536, big)),
            both(),
            "strings behind the dynamic section"
        );
        assert_eq!(
            names(&file(HELD - 32, 512, big)),
            both(),
            "dynamic section across the end of the held part"
        );
        assert_eq!(names(&file(HELD + 65536, HELD + 4096, big)), Found::Unread, "strings have passed");
    }

    #[test]
    fn other_files_ask_for_nothing() {
        assert_eq!(names(b"#!/bin/sh\n"), Found::None);
        assert_eq!(names(b""), Found::None);
        assert_eq!(names(b"\x7fELF"), Found::Unread);
    }

    proptest! {
        #[test]
        fn changed_files_never_panic(changes in prop::collection::vec((0usize..1024, any::<u8>()), 1..20)) {
            let mut bytes = file(256, 512, 1024);
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            bytes[..4].copy_from_slice(b"\x7fELF");
            let _ = names(&bytes);
        }
    }
}
