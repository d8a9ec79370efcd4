//! The log of the attempt: banners and the output of all steps, masked and capped, in `agent/log`.
//!
//! `agent/log.json` says how many bytes of it count, how far the spool of the present step has been read, and what is
//! held back. It is replaced after each append; whatever of `agent/log` is longer is cut off at start. Only bytes that
//! count are shown to the shipper, so what the farm has acknowledged never changes.
//!
//! The cap: the beginning is kept, then bytes are counted and the last ones kept aside; at the end a marker line and
//! those last bytes are added. The whole never exceeds the cap.

use crate::error::Error;
use crate::mask::{Held, Masker};
use crate::spool;
use crate::state::{read_json, write_json};
use nix::fcntl::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use tokio::sync::watch;

/// Bytes of the end that are kept when the beginning fills the cap.
const TAIL: u64 = 32 << 10;
/// Room for the marker lines.
const MARKERS: u64 = 320;
/// Bytes read from the spool at once.
const PIECE: usize = 256 << 10;
/// The spool's blocks are given back in steps of this size, so that a flood of output does not fill the host's disk.
const HOLE: u64 = 4 << 20;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Place {
    /// Bytes of the log that count.
    length: u64,
    /// The step whose spool is being read.
    step: Option<usize>,
    /// How far.
    position: u64,
    held: Held,
    /// Whether the last byte of the log ends a line.
    mid_line: bool,
    /// Bytes that did not fit, those kept aside included.
    over: u64,
    /// The last of them.
    tail: Vec<u8>,
    closed: bool,
}

/// The log, open for writing.
pub(crate) struct Log {
    file: File,
    path: PathBuf,
    place_path: PathBuf,
    place: Place,
    masker: Masker,
    cap: u64,
    length: watch::Sender<u64>,
}

impl Log {
    /// Opens the log in the agent's folder and cuts off what was not counted.
    pub(crate) fn open(agent: &Path, masker: Masker, cap: u64) -> Result<Self, Error> {
        let (path, place_path) = (agent.join("log"), agent.join("log.json"));
        let place: Place = read_json(&place_path)?.unwrap_or_default();
        let open = || {
            let mut file = File::options().create(true).truncate(false).write(true).open(&path)?;
            file.set_len(place.length)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        let file = open().map_err(|source| Error::file("open", &path, source))?;
        let length = watch::Sender::new(place.length);
        Ok(Self { file, path, place_path, place, masker, cap, length })
    }

    /// Follows the number of bytes that may be sent; ends when the log is dropped.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.length.subscribe()
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Begins the spool of a step with a banner; does nothing if it was begun before.
    pub(crate) fn begin(&mut self, step: usize, banner: &str) -> Result<(), Error> {
        if self.place.step == Some(step) {
            return Ok(());
        }
        let mut out = self.rest();
        self.line(&mut out, banner);
        self.append(&out)?;
        (self.place.step, self.place.position) = (Some(step), 0);
        self.save()
    }

    /// Adds a line of the agent's own.
    pub(crate) fn say(&mut self, text: &str) -> Result<(), Error> {
        let mut out = self.rest();
        self.line(&mut out, text);
        self.append(&out)?;
        self.save()
    }

    /// Masks further texts from now on.
    pub(crate) fn mask(&mut self, texts: impl IntoIterator<Item = impl AsRef<str>>) {
        self.masker.add(texts);
    }

    /// Whether a line of the agent's own would break no line of the job, and give out nothing that is held back.
    pub(crate) fn between_lines(&self) -> bool {
        !self.place.mid_line && self.place.held.is_empty()
    }

    /// Takes what the monitor has written since; returns whether there was something.
    pub(crate) fn take(&mut self, spool: &Path) -> Result<bool, Error> {
        let mut file = match File::options().read(true).write(true).open(spool) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(source) => return Err(Error::file("open", spool, source)),
        };
        let mut piece = Vec::new();
        file.seek(SeekFrom::Start(self.place.position))
            .and_then(|_| (&mut file).take(PIECE as u64).read_to_end(&mut piece))
            .map_err(|source| Error::file("read", spool, source))?;
        let mut text = Vec::new();
        let taken = spool::decode(&piece, &mut text);
        if taken == 0 {
            return Ok(false);
        }
        let mut out = Vec::new();
        self.masker.push(&mut self.place.held, &text, &mut out);
        self.append(&out)?;
        let before = self.place.position;
        self.place.position += taken as u64;
        self.save()?;
        if before / HOLE != self.place.position / HOLE {
            let end = self.place.position / HOLE * HOLE;
            let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            // A file system without holes only loses the saving.
            let _ = fallocate(&file, flags, 0, i64::try_from(end).unwrap_or(i64::MAX));
        }
        Ok(true)
    }

    /// Ends the log: gives out what is held, then marker and last bytes if the cap was reached.
    pub(crate) fn close(&mut self) -> Result<(), Error> {
        if self.place.closed {
            return Ok(());
        }
        let out = self.rest();
        self.append(&out)?;
        let tail = std::mem::take(&mut self.place.tail);
        let dropped = self.place.over - tail.len() as u64;
        if dropped > 0 {
            let begin = if self.place.mid_line { "\n" } else { "" };
            let marker = format!(
                "{begin}[forgeyard] {dropped} bytes are missing here: the log is limited to {} bytes; its end follows\n",
                self.cap
            );
            self.write(marker.as_bytes())?;
        }
        self.write(&tail)?;
        self.place.over = dropped;
        self.place.closed = true;
        self.save()
    }

    /// Bytes that are in the log no more; final after [`Log::close`].
    pub(crate) fn dropped(&self) -> u64 {
        self.place.over - self.place.tail.len() as u64
    }

    fn rest(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.masker.finish(&mut self.place.held, &mut out);
        out
    }

    fn line(&self, out: &mut Vec<u8>, text: &str) {
        let open = match out.last() {
            Some(byte) => *byte != b'\n',
            None => self.place.mid_line,
        };
        if open {
            out.push(b'\n');
        }
        let (mut held, mut masked) = (Held::default(), Vec::new());
        self.masker.push(&mut held, text.as_bytes(), &mut masked);
        self.masker.finish(&mut held, &mut masked);
        out.extend_from_slice(&masked);
        out.push(b'\n');
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let tail = TAIL.min(self.cap / 4);
        let head = self.cap.saturating_sub(tail + MARKERS);
        // Once something went over, nothing may follow at the head.
        let room = if self.place.over > 0 { 0 } else { head.saturating_sub(self.place.length) };
        let (fits, over) = bytes.split_at(usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len()));
        self.write(fits)?;
        self.place.over += over.len() as u64;
        self.place.tail.extend_from_slice(over);
        let surplus = self.place.tail.len().saturating_sub(usize::try_from(tail).unwrap_or(usize::MAX));
        self.place.tail.drain(..surplus);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(last) = bytes.last() else { return Ok(()) };
        self.file.write_all(bytes).map_err(|source| Error::file("write", &self.path, source))?;
        self.place.mid_line = *last != b'\n';
        self.place.length += bytes.len() as u64;
        Ok(())
    }

    fn save(&mut self) -> Result<(), Error> {
        write_json(&self.place_path, &self.place)?;
        self.length.send_replace(self.place.length);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
