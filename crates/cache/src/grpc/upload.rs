//! Bytes on their way in, plain or compressed: to memory while they are few, to a file otherwise.
//!
//! Compressed bytes may be any number of frames, cut anywhere: Bazel makes one of each piece (bazel#16808). What comes out of
//! the decoder is held against the size that was declared while it comes, so a bomb ends there; its window is bounded too.

use super::Caller;
use crate::exchange::add;
use crate::name::{Kind, Name};
use crate::service::Core;
use crate::store::large::Spool;
use crate::store::log::Durability;
use crate::store::{Body, INLINE, Outcome, Policy, Store as _, StoreError};
use forgeyard_model::Digest;
use std::io::Write;
use tonic::{Code, Status};

/// Largest window of a frame, as a power of two: 32 MiB, which is what level 20 needs.
const LARGEST_WINDOW: u32 = 25;

/// Why an upload is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("it is larger than this cache takes")]
    Large,
    #[error("it is longer than its digest says")]
    Longer,
    #[error("it is shorter than its digest says")]
    Shorter,
    #[error("it is not Zstandard, or cut off")]
    Zstd,
    #[error("the bytes do not have the digest that they are sent with")]
    Digest,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Refused {
    /// As a client is told.
    pub(crate) fn status(self, caller: &Caller, about: &str) -> Status {
        match self {
            Refused::Store(error) => caller.failed(about, &error),
            wrong => {
                add(&caller.access.counters.malformed, 1);
                caller.refuse(Code::InvalidArgument, about, wrong)
            }
        }
    }
}

enum Kept {
    Memory(Vec<u8>),
    File(Spool),
}

/// Where plain bytes end up.
struct Sink {
    kept: Kept,
    declared: u64,
    got: u64,
    refused: Option<Refused>,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.got += bytes.len() as u64;
        let taken = match &mut self.kept {
            _ if self.got > self.declared => Err(Refused::Longer),
            Kept::Memory(all) => {
                all.extend_from_slice(bytes);
                Ok(())
            }
            Kept::File(spool) => spool.write(bytes).map_err(Refused::from),
        };
        taken.map(|()| bytes.len()).map_err(|refused| {
            self.refused = Some(refused);
            std::io::ErrorKind::Other.into()
        })
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

enum Way {
    Plain(Box<Sink>),
    Zstd(Box<zstd::stream::write::Decoder<'static, Sink>>),
}

/// An upload.
pub(crate) struct Upload {
    way: Way,
    digest: Digest,
    received: u64,
}

impl Upload {
    /// Begins one of a content with this digest and size.
    pub(crate) fn new(core: &Core, digest: Digest, size: u64, compressed: bool) -> Result<Self, Refused> {
        if size > core.largest {
            return Err(Refused::Large);
        }
        let kept = match size <= INLINE {
            true => Kept::Memory(Vec::with_capacity(size as usize)),
            false => Kept::File(core.store.spool()?),
        };
        let sink = Sink { kept, declared: size, got: 0, refused: None };
        let way = match compressed {
            false => Way::Plain(Box::new(sink)),
            true => {
                let mut decoder = zstd::stream::write::Decoder::new(sink).map_err(|_| Refused::Zstd)?;
                decoder.window_log_max(LARGEST_WINDOW).map_err(|_| Refused::Zstd)?;
                Way::Zstd(Box::new(decoder))
            }
        };
        Ok(Self { way, digest, received: 0 })
    }

    /// Bytes so far, as they came over the wire.
    pub(crate) const fn received(&self) -> u64 {
        self.received
    }

    /// Takes bytes as they come over the wire.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        self.received += bytes.len() as u64;
        let (written, sink) = match &mut self.way {
            Way::Plain(sink) => (sink.write_all(bytes), &mut **sink),
            Way::Zstd(decoder) => (decoder.write_all(bytes), decoder.get_mut()),
        };
        written.map_err(|_| sink.refused.take().unwrap_or(Refused::Zstd))
    }

    /// Ends the upload and stores it in the caller's own scope. Answers with the ticket to wait for.
    pub(crate) async fn store(self, caller: &Caller) -> Result<u64, Refused> {
        let (core, digest) = (&caller.core, self.digest);
        let Some(scope) = caller.access.grant.writes.clone() else { return Ok(0) };
        let sink = match self.way {
            Way::Plain(sink) => *sink,
            Way::Zstd(mut decoder) => {
                decoder.do_finish().map_err(|_| decoder.get_mut().refused.take().unwrap_or(Refused::Zstd))?;
                decoder.into_inner()
            }
        };
        if sink.got != sink.declared {
            return Err(Refused::Shorter);
        }
        let name = Name { scope, kind: Kind::Content, key: digest.hex() };
        let by = caller.provenance();
        let put = match sink.kept {
            Kept::Memory(bytes) if Digest::of(&bytes) != digest => return Err(Refused::Digest),
            Kept::Memory(bytes) => core.store.put(&name, Body::Inline(&bytes), Policy::Keep, &by)?,
            Kept::File(spool) => {
                // a sync may take long, and others share this thread
                let sync = core.store.durability() == Durability::Group;
                let finished = tokio::task::spawn_blocking(move || spool.finish(sync)).await;
                let large = finished.unwrap_or(Err(StoreError::Broken))?;
                if large.digest != digest {
                    return Err(Refused::Digest);
                }
                core.store.put(&name, Body::Large(large), Policy::Keep, &by)?
            }
        };
        let counters = &caller.access.counters;
        match put.outcome {
            Outcome::New | Outcome::Replaced => {
                add(&counters.writes, 1);
                add(&counters.bytes_in, sink.got);
            }
            Outcome::Same | Outcome::Kept => add(&counters.repeats, 1),
        }
        Ok(put.ticket)
    }
}

/// Waits until what was stored is as safe as the store promises.
pub(crate) async fn settle(caller: &Caller, about: &str, ticket: u64) -> Result<(), Status> {
    caller.core.store.settled(ticket).await.map_err(|error| caller.failed(about, &error))
}
