//! Contents by the batch, and trees of directories.

use super::missing::{Asked, Missing};
use super::upload::{Upload, settle};
use super::wire::{self, IDENTITY, ZSTD};
use super::{Answers, Caller, Calling, LARGEST_BATCH, resource, shown, valid};
use crate::exchange::add;
use crate::name::Kind;
use crate::promise::{bring, content_or_frames, promised, walk};
use bytes::Bytes;
use forgeyard_model::Digest;
use tonic::{Code, Request, Response, Status};

/// Most bytes of directories that one tree has here.
const LARGEST_TREE: usize = 64 << 20;
/// Bytes of directories in one answer.
const PAGE: usize = 1 << 20;

/// Which contents this caller cannot read. Those that it can are leased. What is elsewhere is missing: whether another scope
/// has a content is nobody's business, and its bytes have to be shown before it has a name here.
pub(super) async fn find_missing(
    calling: Calling,
    request: Request<Asked>,
) -> Result<Response<Missing>, Status> {
    let (headers, _, asked) = request.into_parts();
    let caller = calling.caller(&headers, &asked.instance);
    caller.function(asked.function)?;
    Ok(Response::new(missing(&caller, asked)))
}

fn missing(caller: &Caller, asked: Asked) -> Missing {
    let (core, access) = (&*caller.core, &*caller.access);
    let Asked { mut plain, mut others, .. } = asked;
    let before = plain.len() + others.len();
    plain.retain(|digest| !promised(core, access, digest.hash()));
    // one that is malformed is missing, and the others are answered (bazel#15279)
    others.retain(|digest| !valid(digest).is_some_and(|hash| promised(core, access, hash)));
    let missing = plain.len() + others.len();
    add(&access.counters.hits, (before - missing) as u64);
    add(&access.counters.misses, missing as u64);
    Missing { plain, others }
}

fn status(status: Status) -> wire::Status {
    wire::Status { code: status.code() as i32, message: status.message().to_owned() }
}

/// Stores small contents; each has a status of its own.
pub(super) async fn batch_update(
    calling: Calling,
    request: Request<wire::BatchUpdateBlobsRequest>,
) -> Result<Response<wire::BatchUpdateBlobsResponse>, Status> {
    let (headers, _, message) = request.into_parts();
    let caller = calling.caller(&headers, &message.instance_name);
    caller.function(message.digest_function)?;
    let sent: usize = message.requests.iter().map(|blob| blob.data.len()).sum();
    if sent as u64 > LARGEST_BATCH {
        return Err(caller.refuse(
            Code::InvalidArgument,
            "the batch",
            format!("more than {LARGEST_BATCH} bytes"),
        ));
    }
    let done = |digest: Option<wire::Digest>, result: Result<(), Status>| wire::UpdatedBlob {
        digest,
        status: Some(result.map_or_else(status, |()| wire::Status::default())),
    };
    if caller.access.grant.writes.is_none() {
        let responses = message.requests.into_iter().map(|blob| done(blob.digest, Ok(()))).collect();
        return Ok(caller.discard(wire::BatchUpdateBlobsResponse { responses }));
    }
    let (mut responses, mut last) = (Vec::new(), 0);
    for blob in message.requests {
        let stored = update(&caller, &blob).await.map(|ticket| last = last.max(ticket));
        responses.push(done(blob.digest, stored));
    }
    settle(&caller, "the batch", last).await?;
    Ok(Response::new(wire::BatchUpdateBlobsResponse { responses }))
}

async fn update(caller: &Caller, blob: &wire::UpdateBlob) -> Result<u64, Status> {
    let about = shown(blob.digest.as_ref());
    let refuse = |reason| Err(caller.refuse(Code::InvalidArgument, &about, reason));
    let Some((digest, hash)) =
        blob.digest.as_ref().and_then(|digest| Some((digest, resource::hash(valid(digest)?)?)))
    else {
        return refuse("the digest is not a SHA-256 and a size");
    };
    let compressed = match blob.compressor {
        IDENTITY => false,
        ZSTD => true,
        _ => return refuse("the only compressor is zstd"),
    };
    let size = digest.size_bytes.unsigned_abs();
    // contents are in memory here, all of a batch at once
    if size > LARGEST_BATCH {
        return refuse("a content of this size is not for a batch");
    }
    if promised(&caller.core, &caller.access, &digest.hash) {
        add(&caller.access.counters.repeats, 1);
        return Ok(0);
    }
    let upload = Upload::new(&caller.core, hash, size, compressed).and_then(|mut upload| {
        upload.write(&blob.data)?;
        Ok(upload)
    });
    match upload {
        Ok(upload) => upload.store(caller).await.map_err(|refused| refused.status(caller, &about)),
        Err(refused) => Err(refused.status(caller, &about)),
    }
}

/// Reads small contents; each has a status of its own.
pub(super) async fn batch_read(
    calling: Calling,
    request: Request<wire::BatchReadBlobsRequest>,
) -> Result<Response<wire::BatchReadBlobsResponse>, Status> {
    let (headers, _, message) = request.into_parts();
    let caller = calling.caller(&headers, &message.instance_name);
    caller.function(message.digest_function)?;
    let asked: u64 = message
        .digests
        .iter()
        .map(|digest| digest.size_bytes.max(0).unsigned_abs())
        .fold(0, u64::saturating_add);
    if asked > LARGEST_BATCH {
        return Err(caller.refuse(
            Code::InvalidArgument,
            "the batch",
            format!("more than {LARGEST_BATCH} bytes"),
        ));
    }
    let compress = message.acceptable_compressors.contains(&ZSTD);
    for hash in message.digests.iter().filter_map(valid) {
        if caller.core.tier.is_some() && !promised(&caller.core, &caller.access, hash) {
            bring(&caller.core, &caller.access, Kind::Content, hash).await;
        }
    }
    let responses = message.digests.into_iter().map(|digest| read(&caller, digest, compress)).collect();
    Ok(Response::new(wire::BatchReadBlobsResponse { responses }))
}

fn read(caller: &Caller, digest: wire::Digest, compress: bool) -> wire::ReadBlob {
    let counters = &caller.access.counters;
    let size = digest.size_bytes.max(0).unsigned_abs();
    let hash = valid(&digest).and_then(resource::hash);
    let found = hash.and_then(|hash| content_or_frames(&caller.core, &caller.access, &hash, size, compress));
    let found = found.filter(|(bytes, framed)| *framed || bytes.len() as u64 == size);
    let Some((bytes, framed)) = found else {
        add(&counters.misses, 1);
        let (code, message) = match hash {
            Some(_) => (Code::NotFound, "no such content"),
            None => (Code::InvalidArgument, "the digest is not a SHA-256 and a size"),
        };
        let status =
            Some(wire::Status { code: code as i32, message: format!("{}: {message}", shown(Some(&digest))) });
        return wire::ReadBlob { digest: Some(digest), data: Bytes::new(), status, compressor: IDENTITY };
    };
    add(&counters.hits, 1);
    if framed {
        // as it is stored
        add(&counters.bytes_out, bytes.len() as u64);
        let status = Some(wire::Status::default());
        return wire::ReadBlob { digest: Some(digest), data: bytes.into(), status, compressor: ZSTD };
    }
    let smaller = compress
        .then(|| zstd::bulk::compress(&bytes, 1).ok())
        .flatten()
        .filter(|few| few.len() < bytes.len());
    let (data, compressor) = smaller.map_or((bytes, IDENTITY), |few| (few, ZSTD));
    add(&counters.bytes_out, data.len() as u64);
    let status = Some(wire::Status::default());
    wire::ReadBlob { digest: Some(digest), data: data.into(), status, compressor }
}

/// The directories below one, that one first. What is not here is left out, as the protocol says.
pub(super) async fn get_tree(
    calling: Calling,
    request: Request<wire::GetTreeRequest>,
) -> Result<Response<Answers<wire::GetTreeResponse>>, Status> {
    let message = request.get_ref();
    let caller = calling.caller(request.metadata(), &message.instance_name);
    caller.function(message.digest_function)?;
    let about = shown(message.root_digest.as_ref());
    let root: Option<Digest> = message.root_digest.as_ref().and_then(valid).and_then(resource::hash);
    let Some(root) = root else {
        return Err(caller.refuse(Code::InvalidArgument, &about, "the digest is not a SHA-256 and a size"));
    };
    if !message.page_token.is_empty() {
        // the whole tree comes as one stream, so no answer carries one
        return Err(caller.refuse(Code::InvalidArgument, &about, "this server gives no page tokens"));
    }
    let most = usize::try_from(message.page_size).ok().filter(|size| *size > 0).unwrap_or(usize::MAX);
    let (mut pages, mut page, mut bytes, mut all, mut first) = (Vec::new(), Vec::new(), 0, 0, true);
    let few = walk(&caller.core, &caller.access, root, |directory| {
        if let Some((directory, _)) = directory
            && all < LARGEST_TREE
        {
            if page.len() >= most || bytes > PAGE {
                pages.push(std::mem::take(&mut page));
                bytes = 0;
            }
            bytes += directory.len();
            all += directory.len();
            page.push(Bytes::copy_from_slice(directory));
        } else if first {
            all = usize::MAX;
        }
        first = false;
    });
    if page.is_empty() {
        return Err(Status::not_found(format!("{about}: no such directory")));
    }
    if !few || all >= LARGEST_TREE {
        return Err(caller.refuse(Code::ResourceExhausted, &about, "the tree is too large"));
    }
    pages.push(page);
    let answers = pages
        .into_iter()
        .map(|directories| Ok(wire::GetTreeResponse { directories, next_page_token: String::new() }));
    Ok(Response::new(Box::pin(tokio_stream::iter(answers.collect::<Vec<_>>()))))
}
