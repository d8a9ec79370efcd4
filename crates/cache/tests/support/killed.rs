//! This test program again, as a process that is killed: the ignored test of a name, whose lines are read here.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use forgeyard_cache::name::Name;
use forgeyard_cache::store::log::LogStore;
use forgeyard_cache::store::{Body, Place, Policy, Provenance, Put, Store as _, StoreError};
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// Name of the test that is the process.
pub const PROCESS: &str = "the_process_that_is_killed";

/// A process. It is killed with the test that started it.
pub struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts the ignored test of this name with these variables.
    pub fn start<V: AsRef<OsStr>>(
        test: &str,
        variables: impl IntoIterator<Item = (&'static str, V)>,
    ) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", test, "--nocapture"])
            .envs(variables)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints, also after it was killed; nothing when there is none any more.
    pub fn line(&mut self) -> Option<String> {
        self.lines.next().and_then(Result::ok)
    }

    /// Kills it at once.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// How it ended; it is killed if it runs.
    pub fn end(mut self) -> ExitStatus {
        let _ = self.child.kill();
        self.child.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stores bytes as the service would, in a file of their own when they are many.
pub fn put(store: &LogStore, name: &Name, bytes: &[u8]) -> Result<Put, StoreError> {
    let by = Provenance { principal: "killed".to_owned(), ..Provenance::default() };
    if bytes.len() <= 1 << 20 {
        return store.put(name, Body::Inline(bytes), Policy::Replace, &by);
    }
    let mut spool = store.spool().unwrap();
    spool.write(bytes).unwrap();
    store.put(name, Body::Large(spool.finish(false).unwrap()), Policy::Replace, &by)
}

/// The bytes of an entry that was found, as a client would read them; nothing where a piece is damaged.
pub fn bytes(place: Place, buffer: &[u8]) -> Option<Vec<u8>> {
    match place {
        Place::Buffer(range) => Some(buffer[range].to_vec()),
        Place::Large(large) => {
            let (mut all, mut piece) = (Vec::new(), Vec::new());
            for number in 0..large.pieces() {
                large.piece(number, &mut piece).ok()?;
                all.extend_from_slice(&piece);
            }
            Some(all)
        }
    }
}
