//! ByteStream: contents of any size, piece by piece, plain or as Zstandard.
//!
//! What is compressed at rest is sent to those who ask for Zstandard frame by frame as it lies there.
//!
//! Offsets of a compressed write count the bytes of the wire; those of a read count the content before compression.
//! A write that breaks off goes on where [`query`] says that it stands, over the same resource name and with the same token
//! (see `parked`); one that begins at 0 begins anew.

use super::compress::{Compressor, LEVEL};
use super::upload::{Upload, settle};
use super::wire::{self, ReadResponse};
use super::{Answers, Caller, Calling, resource};
use crate::action::EMPTY;
use crate::exchange::add;
use crate::name::{Kind, Name};
use crate::parked::Ticket;
use crate::promise::{bring, look, promised};
use crate::service::Core;
use crate::store::cold::drop_behind;
use crate::store::frames::{FRAME, Frames};
use crate::store::large::Large;
use crate::store::port::Stored;
use crate::store::{Place, Store as _, StoreError};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tonic::{Code, Request, Response, Status, Streaming};

/// Bytes of one answer.
const PART: usize = 128 << 10;

/// Reads a content.
pub(super) async fn read(
    calling: Calling,
    request: Request<wire::ReadRequest>,
) -> Result<Response<Answers<ReadResponse>>, Status> {
    let message = request.get_ref();
    let named = resource::read(&message.resource_name);
    let instance = named.as_ref().map_or("", |resource| resource.instance.as_str());
    let caller = calling.caller(request.metadata(), instance);
    let resource = match &named {
        Ok(resource) => resource,
        Err(wrong) => return Err(caller.refuse(Code::InvalidArgument, "a resource to read", wrong)),
    };
    let about = format!("{}/{}", resource.digest.hex(), resource.size);
    let (from, limit) = (u64::try_from(message.read_offset), u64::try_from(message.read_limit));
    let (Ok(from), Ok(limit)) = (from, limit) else {
        return Err(caller.refuse(Code::OutOfRange, &about, "the offset or the limit is negative"));
    };
    if resource.compressed && limit > 0 {
        return Err(caller.refuse(
            Code::InvalidArgument,
            &about,
            "a compressed content is read without a limit",
        ));
    }
    if from > resource.size {
        return Err(caller.refuse(Code::OutOfRange, &about, "the offset is behind the end"));
    }
    let until = if limit == 0 { resource.size } else { resource.size.min(from.saturating_add(limit)) };
    let mut opened = open(&caller, resource);
    if opened.is_none() && bring(&caller.core, &caller.access, Kind::Content, &resource.digest.hex()).await {
        opened = open(&caller, resource);
    }
    let Some((depth, source)) = opened else {
        add(&caller.access.counters.misses, 1);
        return Err(Status::not_found(format!("{about}: no such content")));
    };
    let counters = &caller.access.counters;
    add(if depth == 0 { &counters.hits } else { &counters.parent_hits }, 1);
    let (mut encoder, mut frames) = (None, None);
    if resource.compressed && source.frames().is_some() && from < until {
        frames = Some(Raw { next: from / FRAME, waiting: Bytes::new() });
    } else if resource.compressed {
        let failed = |error| caller.refuse(Code::Internal, &about, error);
        encoder = Some(Compressor::new().map_err(failed)?);
    }
    let access = Arc::clone(&caller.access);
    let parts = Parts { source, left: from..until, encoder, frames, access, done: false };
    Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
}

/// Where bytes come from.
enum Source {
    Memory(Bytes),
    Framed { frames: Frames, body: Bytes, piece: Option<(u64, Bytes)> },
    Large { core: Arc<Core>, name: Name, large: Large, cold: bool, piece: Option<(u64, Bytes)> },
}

fn open(caller: &Caller, resource: &resource::Resource) -> Option<(usize, Source)> {
    let key = resource.digest.hex();
    if key == EMPTY {
        return (resource.size == 0).then_some((0, Source::Memory(Bytes::new())));
    }
    let mut buffer = Vec::new();
    let (depth, (scope, found)) = look(&caller.access, Kind::Content, &key, |scope, name| {
        let found = match resource.compressed {
            true => caller.core.store.get_either(name, &mut buffer)?,
            false => caller.core.store.get_stored(name, &mut buffer)?,
        };
        Ok(found.map(|found| (scope.clone(), found)))
    })?;
    let (found, stored) = found;
    if found.facts.size != resource.size {
        return None;
    }
    let source = match found.place {
        Place::Buffer(range) if let Stored::Framed(frames) = stored => {
            Source::Framed { frames, body: Bytes::from(buffer).slice(range), piece: None }
        }
        Place::Buffer(range) => Source::Memory(Bytes::from(buffer).slice(range)),
        Place::Large(large) => {
            let name = Name { scope, kind: Kind::Content, key };
            let cold = caller.core.store.cold(&large);
            Source::Large { core: Arc::clone(&caller.core), name, large, cold, piece: None }
        }
    };
    Some((depth, source))
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Source::Large { large, cold: true, .. } = self {
            drop_behind(large.file(), &large.lies(&(0..large.size)));
        }
    }
}

/// What is left of a piece from the beginning of a range, of at most [`PART`] bytes.
fn cut(piece: &Bytes, begins: u64, range: &Range<u64>) -> Bytes {
    let from = (range.start - begins) as usize;
    let until = piece.len().min(from + PART).min((range.end - begins) as usize);
    piece.slice(from..until)
}

impl Source {
    /// Where its frames lie, when it is compressed.
    fn frames(&self) -> Option<&Frames> {
        match self {
            Source::Memory(_) => None,
            Source::Framed { frames, .. } => Some(frames),
            Source::Large { large, .. } => large.frames(),
        }
    }

    /// A frame as it is stored.
    fn stored(&mut self, number: u64) -> Result<Bytes, Status> {
        match self {
            Source::Memory(_) => Ok(Bytes::new()),
            Source::Framed { frames, body, .. } => {
                let place = frames.place(number);
                Ok(body.slice(place.start as usize..place.end as usize))
            }
            Source::Large { core, name, large, .. } => {
                let mut buffer = Vec::new();
                match large.stored_frame(number, &mut buffer) {
                    Ok(()) => Ok(buffer.into()),
                    Err(error) => Err(damaged(core, name, &error)),
                }
            }
        }
    }

    /// Some bytes of a range that is not empty, from its beginning.
    fn part(&mut self, range: Range<u64>) -> Result<Bytes, Status> {
        match self {
            Source::Memory(all) => {
                let until = range.end.min(range.start + PART as u64);
                Ok(all.slice(range.start as usize..until as usize))
            }
            Source::Framed { frames, body, piece } => {
                let number = range.start / FRAME;
                if piece.as_ref().is_none_or(|(at, _)| *at != number) {
                    let (place, mut buffer) = (frames.place(number), Vec::new());
                    let frame = body.get(place.start as usize..place.end as usize).unwrap_or_default();
                    let decoded = frames.decode(number, frame, &mut buffer);
                    decoded.ok_or_else(|| Status::data_loss("a frame does not decode"))?;
                    *piece = Some((number, buffer.into()));
                }
                Ok(piece.as_ref().map(|(_, bytes)| cut(bytes, number * FRAME, &range)).unwrap_or_default())
            }
            Source::Large { core, name, large, piece, .. } => {
                let number = range.start / large.step();
                if piece.as_ref().is_none_or(|(at, _)| *at != number) {
                    let mut buffer = Vec::new();
                    if let Err(error) = large.piece(number, &mut buffer) {
                        return Err(damaged(core, name, &error));
                    }
                    *piece = Some((number, buffer.into()));
                }
                let begins = number * large.step();
                Ok(piece.as_ref().map(|(_, bytes)| cut(bytes, begins, &range)).unwrap_or_default())
            }
        }
    }
}

fn damaged(core: &Core, name: &Name, error: &StoreError) -> Status {
    tracing::error!(entry = %name, "reading a piece of a content: {error}; it is dropped");
    let _ = core.store.remove(name);
    Status::data_loss(format!("{}: damaged on disk", name.key))
}

/// Frames that are sent as they are stored.
struct Raw {
    next: u64,
    waiting: Bytes,
}

/// The answers to a read, made one by one as they are asked for.
struct Parts {
    source: Source,
    left: Range<u64>,
    encoder: Option<Compressor>,
    frames: Option<Raw>,
    access: Arc<crate::exchange::Access>,
    done: bool,
}

impl Parts {
    /// Some bytes of frames as they are stored. Where the read begins within one, the rest of that one is made anew.
    fn next_stored(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(raw) = &mut self.frames else { return Ok(None) };
        if raw.waiting.is_empty() && !self.left.is_empty() {
            let number = raw.next;
            raw.next += 1;
            let end = (raw.next * FRAME).min(self.left.end);
            if self.left.start == number * FRAME {
                raw.waiting = self.source.stored(number)?;
                self.left.start = end;
            } else {
                let mut rest = Vec::new();
                while self.left.start < end {
                    let part = self.source.part(self.left.start..end)?;
                    self.left.start += part.len() as u64;
                    rest.extend_from_slice(&part);
                }
                let frame = zstd::bulk::compress(&rest, LEVEL);
                raw.waiting = frame.map_err(|error| Status::internal(error.to_string()))?.into();
            }
        }
        let some = raw.waiting.len().min(PART);
        self.done = some == 0;
        Ok((some > 0).then(|| raw.waiting.split_to(some)))
    }

    fn next_part(&mut self) -> Result<Option<Bytes>, Status> {
        if self.frames.is_some() {
            return self.next_stored();
        }
        loop {
            if self.left.is_empty() {
                self.done = true;
                let Some(encoder) = self.encoder.take() else { return Ok(None) };
                let last = encoder.finish().map_err(|error| Status::internal(error.to_string()))?;
                return Ok(Some(last.into()));
            }
            let part = self.source.part(self.left.clone())?;
            self.left.start += part.len() as u64;
            let Some(encoder) = &mut self.encoder else { return Ok(Some(part)) };
            encoder.write(&part).map_err(|error| Status::internal(error.to_string()))?;
            if let Some(ready) = encoder.ready(PART) {
                return Ok(Some(ready.into()));
            }
        }
    }
}

impl Iterator for Parts {
    type Item = Result<ReadResponse, Status>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        match self.next_part() {
            Ok(part) => {
                let data = part?;
                add(&self.access.counters.bytes_out, data.len() as u64);
                Some(Ok(ReadResponse { data }))
            }
            Err(status) => {
                self.done = true;
                Some(Err(status))
            }
        }
    }
}

/// Stores a content.
pub(super) async fn write(
    calling: Calling,
    request: Request<Streaming<wire::WriteRequest>>,
) -> Result<Response<wire::WriteResponse>, Status> {
    let (headers, _, mut messages) = request.into_parts();
    let Some(mut message) = messages.message().await? else {
        return Err(Status::invalid_argument("a write has a message"));
    };
    let name = std::mem::take(&mut message.resource_name);
    let named = resource::write(&name);
    let caller = calling.caller(&headers, named.as_ref().map_or("", |resource| resource.instance.as_str()));
    let resource = match named {
        Ok(resource) => resource,
        Err(wrong) => return Err(caller.refuse(Code::InvalidArgument, "a resource to write", wrong)),
    };
    let (key, size) = (resource.digest.hex(), resource.size);
    let about = format!("{key}/{size}");
    let writes = caller.access.grant.writes.is_some();
    if !writes || promised(&caller.core, &caller.access, &key) {
        let early = match resource.compressed {
            false => i64::try_from(size).ok(),
            true => caller.tool.committed_early(size),
        };
        // what is still coming is reset by the connection (bazel-remote#473)
        let committed_size = match early {
            Some(committed) => committed,
            None => {
                let mut received = message.data.len() as u64;
                while !message.finish_write {
                    let Some(next) = messages.message().await? else { break };
                    message = next;
                    received += message.data.len() as u64;
                }
                caller.tool.committed(received, size)
            }
        };
        let answer = wire::WriteResponse { committed_size };
        if !writes {
            return Ok(caller.discard(answer));
        }
        add(&caller.access.counters.repeats, 1);
        return Ok(Response::new(answer));
    }
    let ticket = ticket(&caller, &name);
    let began = caller.core.parked_contents.take(ticket).filter(|_| message.write_offset != 0);
    let mut upload = match began {
        Some(upload) => upload,
        None => Upload::new(&caller.core, resource.digest, size, resource.compressed)
            .map_err(|refused| refused.status(&caller, &about))?,
    };
    loop {
        let another = !message.resource_name.is_empty() && message.resource_name != name;
        if another || u64::try_from(message.write_offset) != Ok(upload.received()) {
            let received = upload.received();
            let reason = format!("a write goes on with the same name, at offset {received}");
            if received > 0 && !another {
                park(&caller, ticket, upload);
            }
            return Err(caller.refuse(Code::InvalidArgument, &about, reason));
        }
        upload.write(&message.data).map_err(|refused| refused.status(&caller, &about))?;
        if message.finish_write {
            break;
        }
        message = match messages.message().await {
            Ok(Some(message)) => message,
            Ok(None) => {
                park(&caller, ticket, upload);
                return Err(caller.refuse(
                    Code::InvalidArgument,
                    &about,
                    "the write ended before it was finished; it can go on",
                ));
            }
            Err(broken) => {
                park(&caller, ticket, upload);
                return Err(broken);
            }
        };
    }
    let committed_size = match resource.compressed {
        true => caller.tool.committed(upload.received(), size),
        false => i64::try_from(size).unwrap_or(i64::MAX),
    };
    let ticket = upload.store(&caller).await.map_err(|refused| refused.status(&caller, &about))?;
    settle(&caller, &about, ticket).await?;
    Ok(Response::new(wire::WriteResponse { committed_size }))
}

/// Which write this is, and whose.
fn ticket(caller: &Caller, name: &str) -> Ticket {
    let scope = caller.access.grant.writes.as_ref().map_or("", |scope| scope.as_str());
    Ticket::of(&["grpc", scope, name, &caller.access.provenance.principal])
}

fn park(caller: &Caller, ticket: Ticket, upload: Upload) {
    let (core, received) = (&caller.core, upload.received());
    core.parked_contents.park(ticket, upload, received, (core.clock)());
}

/// How far a write got; a client goes on from there.
pub(super) async fn query(
    calling: Calling,
    request: Request<wire::QueryWriteStatusRequest>,
) -> Result<Response<wire::QueryWriteStatusResponse>, Status> {
    let named = resource::write(&request.get_ref().resource_name);
    let caller =
        calling.caller(request.metadata(), named.as_ref().map_or("", |resource| resource.instance.as_str()));
    let resource =
        named.map_err(|wrong| caller.refuse(Code::InvalidArgument, "a resource to write", wrong))?;
    let complete = promised(&caller.core, &caller.access, &resource.digest.hex());
    let size = match complete {
        true => resource.size,
        false => {
            let ticket = ticket(&caller, &request.get_ref().resource_name);
            caller.core.parked_contents.bytes(ticket).unwrap_or(0)
        }
    };
    let committed_size = i64::try_from(size).unwrap_or(i64::MAX);
    Ok(Response::new(wire::QueryWriteStatusResponse { committed_size, complete }))
}
