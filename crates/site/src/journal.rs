//! The lease journal: the file behind the [`Ledger`].
//!
//! Invariants:
//! - an entry is on the disk before [`Journal::append`] answers `Ok`, and only then counts in the ledger;
//! - after a failed write the file is cut back to its last whole line; if even that fails, nothing more is written;
//! - a compaction replaces the file as a whole, so a crash leaves the old file or the new one.

use crate::error::Error;
use crate::folder::{self, Folder};
use crate::ledger::{self, Entry, Ledger};
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const NAME: &str = "leases.journal";

/// The file is rewritten when it holds this many entries and four times as many as it needs.
const COMPACT_AT: usize = 1024;

/// The journal. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folder: Arc<Folder>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    length: u64,
    entries: usize,
    compact_at: usize,
    ledger: Ledger,
    broken: bool,
}

impl Journal {
    /// Opens the journal of the folder, or begins one. A line cut short by a crash is dropped.
    pub fn open(folder: Arc<Folder>) -> Result<Self, Error> {
        Self::open_compacting_at(folder, COMPACT_AT)
    }

    fn open_compacting_at(folder: Arc<Folder>, compact_at: usize) -> Result<Self, Error> {
        let bytes = folder.read(NAME)?.unwrap_or_default();
        let read = ledger::read(&bytes).map_err(|damaged| Error::Journal {
            file: folder.file(NAME),
            reason: damaged.to_string(),
        })?;
        if read.whole < bytes.len() {
            let cut = bytes.len() - read.whole;
            tracing::warn!(bytes = cut, "dropped the end of the lease journal: its last line was cut short by a crash");
        }
        let open = || -> io::Result<File> {
            let mut file = folder::private().create(true).truncate(false).open(folder.file(NAME))?;
            file.set_len(read.whole as u64)?;
            file.seek(SeekFrom::End(0))?;
            file.sync_all()?;
            Ok(file)
        };
        let file = open().map_err(|error| folder.failed(format!("open {NAME}"), error))?;
        let state = State {
            file,
            length: read.whole as u64,
            entries: read.entries,
            compact_at,
            ledger: read.ledger,
            broken: false,
        };
        Ok(Self { inner: Arc::new(Inner { folder, state: Mutex::new(state) }) })
    }

    /// What the journal says now.
    pub fn ledger(&self) -> Ledger {
        self.state().ledger.clone()
    }

    /// Puts entries on the disk, all of them in their order, and then into the ledger.
    pub async fn append(&self, entries: Vec<Entry>) -> Result<(), Error> {
        let journal = self.clone();
        // The closure holds the folder's lock: a site that is dropped while this writes keeps its successor out.
        tokio::task::spawn_blocking(move || journal.append_now(entries))
            .await
            .map_err(|error| Error::Broken(format!("writing the lease journal: {error}")))?
    }

    fn append_now(&self, entries: Vec<Entry>) -> Result<(), Error> {
        let mut state = self.state();
        let failed = |error| self.inner.folder.failed(format!("write {NAME}"), error);
        for entry in entries {
            let line = ledger::line(&entry).map_err(|error| failed(error.into()))?;
            state.write(&line).map_err(failed)?;
            state.ledger.apply(entry);
        }
        if state.entries >= state.compact_at {
            let live = state.ledger.entries();
            if live.len() * 4 < state.entries {
                self.compact(&mut state, &live).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn compact(&self, state: &mut State, live: &[Entry]) -> io::Result<()> {
        let lines: Result<Vec<Vec<u8>>, _> = live.iter().map(ledger::line).collect();
        let bytes = lines?.concat();
        let file = self.inner.folder.file(NAME);
        let folder = file.parent().ok_or_else(|| io::Error::other("the journal has no folder"))?;
        folder::replace(folder, NAME, &bytes)?;
        // From here on the old handle points to a file without a name.
        state.broken = true;
        state.file = folder::private().open(&file)?;
        state.length = state.file.seek(SeekFrom::End(0))?;
        state.entries = live.len();
        state.broken = false;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave the state half changed: entries count only after they are written.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("an earlier failed write could not be undone; restart the site"));
        }
        match self.file.write_all(line).and_then(|()| self.file.sync_data()) {
            Ok(()) => {
                self.length += line.len() as u64;
                self.entries += 1;
                Ok(())
            }
            Err(error) => {
                let undo = self.file.set_len(self.length).and_then(|()| self.file.seek(SeekFrom::End(0)));
                self.broken = undo.is_err();
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forgeyard_model::{Id as _, RunnerId};

    async fn open(path: &std::path::Path) -> Journal {
        Journal::open_compacting_at(Arc::new(Folder::open(path).await.unwrap()), 8).unwrap()
    }

    #[tokio::test]
    async fn what_was_appended_is_there_after_reopening_and_compaction_shortens_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path()).await;
        for epoch in 1..50 {
            journal.append(vec![Entry::Epoch { epoch }]).await.unwrap();
        }
        let ledger = journal.ledger();
        drop(journal);
        assert_eq!(open(folder.path()).await.ledger(), ledger);
        let lines = std::fs::read(folder.path().join(NAME)).unwrap();
        assert!(lines.iter().filter(|byte| **byte == b'\n').count() < 10);
    }

    #[tokio::test]
    async fn a_torn_last_line_is_dropped_and_the_next_entry_follows_the_last_whole_one() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path()).await;
        journal.append(vec![Entry::Epoch { epoch: 3 }]).await.unwrap();
        drop(journal);
        let mut bytes = std::fs::read(folder.path().join(NAME)).unwrap();
        bytes.extend_from_slice(b"01234567 {\"entry\":\"ep");
        std::fs::write(folder.path().join(NAME), bytes).unwrap();
        let journal = open(folder.path()).await;
        journal.append(vec![Entry::Gone { runner: RunnerId::from_bits(1) }]).await.unwrap();
        drop(journal);
        assert_eq!(open(folder.path()).await.ledger().epoch, 3);
    }

    #[tokio::test]
    async fn damage_in_the_middle_stops_the_site_and_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path()).await;
        journal.append(vec![Entry::Epoch { epoch: 1 }, Entry::Epoch { epoch: 2 }]).await.unwrap();
        drop(journal);
        let mut bytes = std::fs::read(folder.path().join(NAME)).unwrap();
        bytes[12] ^= 1;
        std::fs::write(folder.path().join(NAME), bytes).unwrap();
        let error = Journal::open(Arc::new(Folder::open(folder.path()).await.unwrap())).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("leases.journal") && text.contains("line 1") && text.contains("move the file away"), "{text}");
    }

    #[tokio::test]
    async fn a_full_disk_is_an_error_that_names_the_folder_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path()).await;
        // The kernel's own full device stands in for a full disk.
        journal.state().file = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = journal.append(vec![Entry::Epoch { epoch: 1 }]).await.unwrap_err().to_string();
        assert!(error.contains(&folder.path().display().to_string()) && error.contains("free space"), "{error}");
        assert_eq!(journal.ledger().epoch, 0, "an entry that is not on the disk does not count");
    }
}
