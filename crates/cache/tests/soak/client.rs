//! What a client does, what it remembers of it, and what of an answer is wrong.

use super::*;

pub(super) fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Content of a write: says which it is, so that anybody can tell a wrong byte.
pub(super) fn content(write: u64) -> Vec<u8> {
    let mut state = write.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let size = match random(&mut state) % 100 {
        0 => 1_500_000 + random(&mut state) % 1_500_000,
        1..=20 => random(&mut state) % 150_000,
        _ => random(&mut state) % 5_000,
    };
    let mut bytes = write.to_le_bytes().to_vec();
    while bytes.len() < size as usize {
        bytes.extend_from_slice(&random(&mut state).to_le_bytes());
    }
    bytes
}

/// What a client knows of one key: the write that was acknowledged last, and those after it that may have happened.
#[derive(Default)]
pub(super) struct Known {
    pub(super) acknowledged: Option<u64>,
    pub(super) perhaps: Vec<u64>,
}

/// What is wrong with an answer.
#[derive(Debug, PartialEq)]
pub(super) enum Wrong {
    Lost,
    Bytes,
    Older,
}

impl Known {
    pub(super) fn judge(&self, room: Room, status: u16, body: &[u8]) -> Result<(), Wrong> {
        if status != 200 {
            let lost = status == 404 && room == Room::Enough && self.acknowledged.is_some();
            return if lost { Err(Wrong::Lost) } else { Ok(()) };
        }
        let write = body.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let Some(write) = write.filter(|write| content(*write) == body) else { return Err(Wrong::Bytes) };
        // what was evicted may leave an earlier write of this key behind only by mistake
        let known = self.acknowledged == Some(write) || self.perhaps.contains(&write);
        if known { Ok(()) } else { Err(Wrong::Older) }
    }
}

/// An action result that names these contents, as the Remote Execution API writes it.
pub(super) fn action(files: &[(String, usize)]) -> Vec<u8> {
    pub(super) fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut all = vec![number << 3 | 2];
        let mut length = bytes.len();
        while length >= 128 {
            all.push(length as u8 | 128);
            length >>= 7;
        }
        all.push(length as u8);
        all.extend_from_slice(bytes);
        all
    }
    let file = |(hash, size): &(String, usize)| {
        let mut digest = field(1, hash.as_bytes());
        digest.push(2 << 3);
        let mut size = *size;
        while size >= 128 {
            digest.push(size as u8 | 128);
            size >>= 7;
        }
        digest.push(size as u8);
        field(2, &[field(1, &hash.as_bytes()[..8]), field(2, &digest)].concat())
    };
    files.iter().flat_map(file).collect()
}

/// What all clients count together.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) stop: AtomicBool,
    pub(super) acknowledged: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) hits: AtomicU64,
    pub(super) results: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// Contents by their digest.
pub(super) type Files = Vec<(String, Vec<u8>)>;

pub(super) struct Soaker {
    pub(super) number: u64,
    pub(super) room: Room,
    pub(super) token: String,
    pub(super) next: u64,
    pub(super) keys: BTreeMap<u64, Known>,
    pub(super) results: Vec<(String, Files)>,
}

impl Soaker {
    pub(super) fn new(number: u64, room: Room) -> Self {
        let token = token(&format!("p/pr/{number}"), Access::Write);
        let next = number << 40;
        Self { number, room, token, next, keys: BTreeMap::new(), results: Vec::new() }
    }

    /// Until told to stop, over as many connections as it takes.
    pub(super) fn run(&mut self, address: SocketAddr, tally: &Tally) {
        while !tally.stop.load(Ordering::SeqCst) {
            if let Ok(mut wire) = Wire::open(address, &self.token) {
                loop {
                    if tally.stop.load(Ordering::SeqCst) || self.step(&mut wire, tally).is_err() {
                        break;
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn step(&mut self, wire: &mut Wire, tally: &Tally) -> std::io::Result<()> {
        self.next += 1;
        let mut state = self.next.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
        let key = random(&mut state) % KEYS;
        let full = tally.bytes.load(Ordering::Relaxed) > BYTES;
        match random(&mut state) % 10 {
            0..=3 if !full => self.write(wire, key, tally),
            4 if !full => self.build(wire, tally),
            5 => self.warm(wire, random(&mut state) as usize, tally),
            6 => self.odd(wire, &mut state),
            _ => self.read(wire, key, tally),
        }
    }

    pub(super) fn write(&mut self, wire: &mut Wire, key: u64, tally: &Tally) -> std::io::Result<()> {
        let (write, known) = (self.next, self.keys.entry(key).or_default());
        let bytes = content(write);
        known.perhaps.push(write);
        let path = format!("/-/kv/{key}");
        let (status, _) = wire.ask("PUT", &path, Some(&bytes))?;
        match status {
            200 | 201 => {
                *known = Known { acknowledged: Some(write), perhaps: Vec::new() };
                tally.acknowledged.fetch_add(1, Ordering::Relaxed);
                tally.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            507 if self.room != Room::Enough => drop(tally.refused.fetch_add(1, Ordering::Relaxed)),
            status => panic!("client {}: PUT {path} is answered with {status}", self.number),
        }
        Ok(())
    }

    pub(super) fn read(&mut self, wire: &mut Wire, key: u64, tally: &Tally) -> std::io::Result<()> {
        let path = format!("/-/kv/{key}");
        let (status, body) = wire.ask("GET", &path, None)?;
        tally.reads.fetch_add(1, Ordering::Relaxed);
        tally.hits.fetch_add(u64::from(status == 200), Ordering::Relaxed);
        assert!(matches!(status, 200 | 404), "GET {path} is answered with {status}");
        let known = self.keys.entry(key).or_default();
        if let Err(wrong) = known.judge(self.room, status, &body) {
            let came = body.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
            panic!(
                "client {}: {path}: {wrong:?}: {came:?} came; {:?} was acknowledged, and perhaps {:?}",
                self.number, known.acknowledged, known.perhaps
            );
        }
        Ok(())
    }

    /// A build: its files, then the result that names them.
    pub(super) fn build(&mut self, wire: &mut Wire, tally: &Tally) -> std::io::Result<()> {
        let files: Files = (0..3)
            .map(|file| {
                let bytes = content(self.next << 2 | file);
                (Digest::of(&bytes).hex(), bytes)
            })
            .collect();
        for (hash, bytes) in &files {
            let (status, _) = wire.ask("PUT", &format!("/-/bazel/cas/{hash}"), Some(bytes))?;
            if status == 507 {
                return Ok(());
            }
            assert!(matches!(status, 200 | 201), "a content is answered with {status}");
            tally.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        let sizes: Vec<_> = files.iter().map(|(hash, bytes)| (hash.clone(), bytes.len())).collect();
        let key = Digest::of(&self.next.to_le_bytes()).hex();
        let (status, _) = wire.ask("PUT", &format!("/-/bazel/ac/{key}"), Some(&action(&sizes)))?;
        if matches!(status, 200 | 201) {
            self.results.push((key, files));
        }
        Ok(())
    }

    /// A build again: a result that is there has its files, now.
    pub(super) fn warm(&mut self, wire: &mut Wire, which: usize, tally: &Tally) -> std::io::Result<()> {
        if self.results.is_empty() {
            return Ok(());
        }
        let (key, files) = &self.results[which % self.results.len()];
        let (status, _) = wire.ask("GET", &format!("/-/bazel/ac/{key}"), None)?;
        assert!(
            status == 200 || status == 404 && self.room != Room::Enough,
            "a result is answered with {status}"
        );
        if status == 200 {
            for (hash, bytes) in files {
                let (status, body) = wire.ask("GET", &format!("/-/bazel/cas/{hash}"), None)?;
                assert_eq!(
                    status, 200,
                    "client {}: the result {key} names {hash}, which is not there",
                    self.number
                );
                assert!(&body == bytes, "wrong bytes in {hash}");
            }
            tally.results.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What clients do besides: sccache's check, a connection that ends within a body, a part of an entry.
    pub(super) fn odd(&mut self, wire: &mut Wire, state: &mut u64) -> std::io::Result<()> {
        match random(state) % 3 {
            0 => {
                let (status, _) = wire.ask("GET", "/-/dav/.sccache_check", None)?;
                assert_eq!(status, 404);
            }
            1 => {
                let head = format!(
                    "PUT /-/kv/never HTTP/1.1\r\nAuthorization: Bearer {}\r\nContent-Length: 3000000\r\n\r\n",
                    self.token
                );
                wire.stream.write_all(head.as_bytes())?;
                wire.stream.write_all(&vec![7; random(state) as usize % 2_000_000])?;
                wire.stream.shutdown(std::net::Shutdown::Both)?;
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            _ => {
                let (status, _) = wire.ask("GET", "/-/kv/never", None)?;
                assert_eq!(status, 404, "a body that did not come whole is no entry");
            }
        }
        Ok(())
    }
}
