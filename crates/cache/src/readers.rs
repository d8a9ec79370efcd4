//! Who read what: so that, when a writer turns out to have been hostile, the builds that took something of it are known.
//!
//! ```text
//! readers/NUMBER.reads   records of 24 bytes: name 16, reader 4, minute since 1970 4; numbers little-endian
//! readers/NUMBER.names   a line of JSON for each reader, {"principal": P, "run": R}; its number is that of the line, from 0
//! ```
//!
//! Every hit is a record, whose name is what the index knows the entry by. Parts of action results (contents by digest) and
//! their existence are not written down: what they are follows from the result that was read.
//!
//! Invariants:
//! - a reader's line is in its file before a record refers to it, so a record always has its reader;
//! - files are rotated at [`LARGEST`] and the oldest go beyond [`KEPT`], with their readers;
//! - what was read in the last second before a crash of the host or a kill may be missing, and nothing else;
//! - nobody who reads waits for the disk: records are taken out under the lock and written outside of it, by one at a time;
//! - that this cannot be written fails no read. It is logged, and what could not be written is lost.

use crate::name::NameHash;
use forgeyard_model::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a record.
const RECORD: usize = 24;
/// Bytes of a file before the next one begins: 2.8 million reads.
const LARGEST: u64 = 64 << 20;
/// Files that are kept: 45 million reads, 1 GiB.
const KEPT: u64 = 16;
/// What is not yet written, in bytes, before a reader has it written.
const PENDING: usize = 1 << 20;
/// What is not yet written at most, where the disk does not keep up; more is lost.
const MOST_PENDING: usize = 64 << 20;
/// Longest line of a reader that is believed, in bytes.
const LINE: u64 = 64 << 10;

/// Who reads.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Reader {
    /// Whose token; empty for those who had none.
    pub principal: String,
    /// The run that the token was for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

/// What one reader read of what was asked about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Reading {
    /// Who.
    #[serde(flatten)]
    pub reader: Reader,
    /// Different entries.
    pub entries: u64,
    /// Reads.
    pub reads: u64,
    /// The first of them, to the minute.
    pub first: Timestamp,
    /// The last of them, to the minute.
    pub last: Timestamp,
}

struct Current {
    number: u64,
    size: u64,
    /// Numbers of the readers in the current file.
    known: HashMap<Reader, u32>,
    reads: Vec<u8>,
    names: Vec<u8>,
    /// Records that found no room here since the last writing.
    lost: u64,
}

impl Current {
    /// The number of a reader; its line is written before a record refers to it.
    fn number_of(&mut self, reader: &Reader) -> Option<u32> {
        if let Some(known) = self.known.get(reader) {
            return Some(*known);
        }
        let line = serde_json::to_vec(reader).ok()?;
        let number = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
        self.names.extend(line);
        self.names.push(b'\n');
        self.known.insert(reader.clone(), number);
        Some(number)
    }

    /// The next file. Its readers are numbered anew.
    fn next_file(&mut self) {
        self.number += 1;
        self.size = 0;
        self.known.clear();
    }
}

/// The journal.
pub(crate) struct Readers {
    folder: PathBuf,
    current: Mutex<Current>,
    /// Held by whoever writes.
    writing: Mutex<()>,
}

fn path(folder: &Path, number: u64, kind: &str) -> PathBuf {
    folder.join(format!("{number:08}.{kind}"))
}

fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs_err::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".reads")?.parse::<u64>().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The readers of a file. Ends at the first line that is none: what a crash cut off.
fn readers(folder: &Path, number: u64) -> io::Result<Vec<Reader>> {
    let Ok(file) = fs_err::File::open(path(folder, number, "names")) else { return Ok(Vec::new()) };
    let (mut lines, mut readers, mut line) = (BufReader::new(file), Vec::new(), Vec::new());
    loop {
        line.clear();
        let read = (&mut lines).take(LINE).read_until(b'\n', &mut line)?;
        let whole = line.strip_suffix(b"\n").and_then(|line| serde_json::from_slice(line).ok());
        match whole {
            Some(reader) if read > 0 => readers.push(reader),
            _ => return Ok(readers),
        }
    }
}

fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(bytes)
}

impl Readers {
    /// Opens the journal below this folder. A new file begins, so that what a crash left in the last one stays as it is.
    pub(crate) fn open(store: &Path) -> io::Result<Self> {
        let folder = store.join("readers");
        fs_err::create_dir_all(&folder)?;
        let number = numbers(&folder)?.last().map_or(1, |last| last + 1);
        let (reads, names) = (Vec::new(), Vec::new());
        let current = Current { number, size: 0, known: HashMap::new(), reads, names, lost: 0 };
        Ok(Self { folder, current: Mutex::new(current), writing: Mutex::new(()) })
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody read the entry of this name. The number that the reader has in the current file is noted, 0 where none is.
    pub(crate) fn read(&self, reader: &Reader, noted: &AtomicU64, name: NameHash, now: Timestamp) {
        let mut current = self.current();
        if current.reads.len() >= MOST_PENDING {
            current.lost += 1;
            return;
        }
        // numbers of files begin at 1
        let here = current.number << 32;
        let known = match noted.load(Relaxed) {
            before if before & !u64::from(u32::MAX) == here => before as u32,
            _ => {
                let Some(number) = current.number_of(reader) else { return };
                noted.store(here | u64::from(number), Relaxed);
                number
            }
        };
        let minute = u32::try_from(now.as_micros() / 60_000_000).unwrap_or_default();
        current.reads.extend(name.0.to_le_bytes());
        current.reads.extend(known.to_le_bytes());
        current.reads.extend(minute.to_le_bytes());
        let full = current.reads.len() >= PENDING;
        drop(current);
        // somebody who writes already takes more the next time
        if full && let Ok(alone) = self.writing.try_lock() {
            self.write(&alone);
        }
    }

    /// Writes what was read since the last time.
    pub(crate) fn flush(&self) {
        self.write(&self.writing.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn write(&self, _alone: &MutexGuard<'_, ()>) {
        let mut current = self.current();
        if current.reads.is_empty() {
            return;
        }
        let (reads, names) = (std::mem::take(&mut current.reads), std::mem::take(&mut current.names));
        let (number, lost) = (current.number, std::mem::take(&mut current.lost));
        current.size += reads.len() as u64;
        let full = current.size >= LARGEST;
        if full {
            current.next_file();
        }
        drop(current);
        if lost > 0 {
            tracing::error!("who read {lost} entries is lost: the disk does not keep up");
        }
        let written = append(&path(&self.folder, number, "names"), &names)
            .and_then(|()| append(&path(&self.folder, number, "reads"), &reads));
        if let Err(error) = &written {
            tracing::error!("who read {} entries is lost: {error}", reads.len() / RECORD);
            let mut current = self.current();
            if current.number == number {
                // what came meanwhile refers to readers of which nobody knows whether they are there
                current.reads.clear();
                current.names.clear();
                current.next_file();
            }
        }
        if (full || written.is_err())
            && let Err(error) = self.forget()
        {
            tracing::error!("removing the oldest of who read what: {error}");
        }
    }

    /// Removes the oldest files.
    fn forget(&self) -> io::Result<()> {
        let numbers = numbers(&self.folder)?;
        for number in numbers.iter().take(numbers.len().saturating_sub(KEPT as usize)) {
            fs_err::remove_file(path(&self.folder, *number, "reads"))?;
            let _ = std::fs::remove_file(path(&self.folder, *number, "names"));
        }
        Ok(())
    }

    /// Who read entries of these names, as far back as files are kept; by time of the first read. Reads the whole journal.
    pub(crate) fn of(&self, names: &HashSet<u128>) -> io::Result<Vec<Reading>> {
        self.flush();
        let mut found: BTreeMap<Reader, (HashSet<u128>, u64, u32, u32)> = BTreeMap::new();
        for number in numbers(&self.folder)? {
            let readers = readers(&self.folder, number)?;
            let mut file = BufReader::with_capacity(
                RECORD * 4096,
                fs_err::File::open(path(&self.folder, number, "reads"))?,
            );
            let mut record = [0; RECORD];
            while file.read_exact(&mut record).is_ok() {
                let Some((name, reader, minute)) = fields(&record) else { continue };
                if !names.contains(&name) {
                    continue;
                }
                let Some(reader) = readers.get(reader as usize) else { continue };
                let (entries, reads, first, last) =
                    found.entry(reader.clone()).or_insert_with(|| (HashSet::new(), 0, minute, minute));
                entries.insert(name);
                *reads += 1;
                (*first, *last) = ((*first).min(minute), (*last).max(minute));
            }
        }
        let at = |minute: u32| Timestamp::from_micros(i64::from(minute) * 60_000_000);
        let mut all: Vec<Reading> = found
            .into_iter()
            .map(|(reader, (entries, reads, first, last))| Reading {
                reader,
                entries: entries.len() as u64,
                reads,
                first: at(first),
                last: at(last),
            })
            .collect();
        all.sort_by_key(|reading| (reading.first, reading.last));
        Ok(all)
    }
}

/// Name, reader, minute.
fn fields(record: &[u8; RECORD]) -> Option<(u128, u32, u32)> {
    let (name, rest) = record.split_first_chunk::<16>()?;
    let (reader, rest) = rest.split_first_chunk::<4>()?;
    let (minute, _) = rest.split_first_chunk::<4>()?;
    Some((u128::from_le_bytes(*name), u32::from_le_bytes(*reader), u32::from_le_bytes(*minute)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn who(run: &str) -> Reader {
        Reader { principal: "ci".to_owned(), run: Some(run.to_owned()) }
    }

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_micros(minute * 60_000_000)
    }

    fn of(journal: &Readers, names: &[u128]) -> Vec<(String, u64, u64)> {
        let all = journal.of(&names.iter().copied().collect()).unwrap();
        all.into_iter().map(|it| (it.reader.run.unwrap_or_default(), it.entries, it.reads)).collect()
    }

    #[test]
    fn readers_of_an_entry_are_known_after_a_restart_and_others_are_not_named() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Readers::open(folder.path()).unwrap();
        journal.read(&who("b"), &AtomicU64::new(0), NameHash(2), at(9));
        journal.read(&who("a"), &AtomicU64::new(0), NameHash(1), at(5));
        journal.read(&who("a"), &AtomicU64::new(0), NameHash(1), at(6));
        journal.read(&who("c"), &AtomicU64::new(0), NameHash(3), at(7));
        journal.flush();
        drop(journal);
        let journal = Readers::open(folder.path()).unwrap();
        journal.read(&who("a"), &AtomicU64::new(0), NameHash(2), at(8));
        assert_eq!(of(&journal, &[1, 2]), [("a".to_owned(), 2, 3), ("b".to_owned(), 1, 1)]);
        assert_eq!(of(&journal, &[4]), []);
        let all = journal.of(&HashSet::from([1, 2])).unwrap();
        assert_eq!((all[0].first, all[0].last), (at(5), at(8)));
    }

    #[test]
    fn what_a_crash_cut_off_costs_no_other_read() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Readers::open(folder.path()).unwrap();
        journal.read(&who("a"), &AtomicU64::new(0), NameHash(1), at(5));
        journal.read(&who("b"), &AtomicU64::new(0), NameHash(1), at(5));
        journal.flush();
        let reads = path(&folder.path().join("readers"), 1, "reads");
        let bytes = fs_err::read(&reads).unwrap();
        fs_err::write(&reads, &bytes[..bytes.len() - 5]).unwrap();
        let journal = Readers::open(folder.path()).unwrap();
        journal.read(&who("c"), &AtomicU64::new(0), NameHash(1), at(6));
        assert_eq!(of(&journal, &[1]), [("a".to_owned(), 1, 1), ("c".to_owned(), 1, 1)]);
    }

    #[test]
    fn oldest_files_go_with_their_readers() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Readers::open(folder.path()).unwrap();
        for file in 0..KEPT + 3 {
            journal.read(&who(&file.to_string()), &AtomicU64::new(0), NameHash(1), at(1));
            journal.current.lock().unwrap().size = LARGEST;
            journal.flush();
        }
        let left = fs_err::read_dir(folder.path().join("readers")).unwrap().count() as u64;
        assert_eq!(left, 2 * KEPT);
        assert_eq!(of(&journal, &[1]).len() as u64, KEPT);
    }

    #[test]
    fn many_who_read_at_once_lose_nothing_over_the_ends_of_files() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Readers::open(folder.path()).unwrap();
        std::thread::scope(|scope| {
            for number in 0..4 {
                let journal = &journal;
                scope.spawn(move || {
                    let (noted, reader) = (AtomicU64::new(0), who(&number.to_string()));
                    for read in 0..200 {
                        journal.read(&reader, &noted, NameHash(read % 7), at(1));
                        if read % 100 == 0 {
                            journal.current().size = LARGEST;
                            journal.flush();
                        }
                    }
                });
            }
        });
        let all: Vec<u128> = (0..7).collect();
        let found = of(&journal, &all);
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|(_, entries, reads)| (*entries, *reads) == (7, 200)), "{found:?}");
    }

    #[test]
    fn folder_that_cannot_be_written_costs_records_and_no_read() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Readers::open(folder.path()).unwrap();
        let place = path(&folder.path().join("readers"), 1, "names");
        fs_err::create_dir(&place).unwrap();
        journal.read(&who("lost"), &AtomicU64::new(0), NameHash(1), at(1));
        journal.flush();
        journal.read(&who("kept"), &AtomicU64::new(0), NameHash(1), at(2));
        assert_eq!(of(&journal, &[1]), [("kept".to_owned(), 1, 1)]);
    }

    proptest! {
        #[test]
        fn any_bytes_in_its_files_are_read_without_harm(
            reads in prop::collection::vec(any::<u8>(), 0..200), names in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let folder = tempfile::tempdir().unwrap();
            fs_err::create_dir_all(folder.path().join("readers")).unwrap();
            fs_err::write(path(&folder.path().join("readers"), 4, "reads"), &reads).unwrap();
            fs_err::write(path(&folder.path().join("readers"), 4, "names"), &names).unwrap();
            let journal = Readers::open(folder.path()).unwrap();
            journal.read(&who("a"), &AtomicU64::new(0), NameHash(1), at(5));
            prop_assert!(of(&journal, &[1]).contains(&("a".to_owned(), 1, 1)));
        }
    }
}
