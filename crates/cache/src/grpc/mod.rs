//! Bazel's Remote Execution API v2 as a cache, over gRPC. For Bazel, Buck2, Siso, recc and others that speak it.
//!
//! - [`wire`]: messages. [`resource`]: names of ByteStream. [`client`]: what differs from client to client.
//! - [`missing`]: the messages of FindMissingBlobs once more, for speed.
//! - `actions`: capabilities and action results. `contents`: contents by the batch and trees. `stream`: ByteStream.
//!   `upload`: bytes on their way in.
//!
//! It is served on the port of HTTP: a connection that begins with the preface of HTTP/2 comes here. The instance name is
//! the scope (`--remote_instance_name=iree/main`), none is the scope of the token. The token comes as `authorization`, or as the
//! password before the host (`--remote_cache=grpc://any:fyc_…@host:8420`), which Bazel puts into `:authority`.
//!
//! Entries are those of Bazel over HTTP: whoever writes over one protocol is read over the other.
//!
//! What holds for every call, beside what holds for the whole cache: whoever may not read finds nothing, and is not told
//! apart from whoever asks for what is not here; whoever may not write is thanked, what came is thrown away, and the answer
//! has the header `forgeyard-discarded`; a malformed digest fails alone; each refusal has a number that is in the log too.

mod actions;
pub mod client;
mod compress;
mod contents;
pub mod missing;
pub mod resource;
mod stream;
pub(crate) mod upload;
pub mod wire;

use crate::action::EMPTY;
use crate::exchange::{Access, add, refusal};
use crate::scope::ScopePath;
use crate::service::Core;
use crate::socket::Whole;
use crate::store::{Provenance, StoreError};
use crate::surface::Surface;
use client::ClientTool;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use prost::Message;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_stream::{Stream, StreamExt as _};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

/// Most bytes of contents in one batch. A message of four megabytes is what clients take, and the rest of it has to fit as well.
pub const LARGEST_BATCH: u64 = 3 << 20;
/// Largest message that is read.
const LARGEST_MESSAGE: usize = 5 << 20;
/// Calls of one connection at once. Each may hold a megabyte and a decoder.
const MOST_CALLS: u32 = 128;
/// Callers that a connection remembers: one, in practice.
const MET: usize = 64;
/// The header that says what a client is.
const METADATA: &str = "build.bazel.remote.execution.v2.requestmetadata-bin";
/// The header of an answer to a write that was thrown away.
const DISCARDED: &str = "forgeyard-discarded";

/// What the calls of a connection share.
pub(crate) struct Shared {
    pub(crate) core: Arc<Core>,
    peer: SocketAddr,
    met: Mutex<HashMap<Vec<u8>, Arc<Access>>>,
}

/// One call: its connection, and the password in its authority.
#[derive(Clone)]
pub(crate) struct Calling {
    shared: Arc<Shared>,
    password: Option<Arc<str>>,
}

/// Who makes a call, on which scope.
pub(crate) struct Caller {
    pub(crate) core: Arc<Core>,
    pub(crate) access: Arc<Access>,
    pub(crate) tool: ClientTool,
    peer: SocketAddr,
}

impl Calling {
    /// Who calls, with the headers of the call, on an instance.
    pub(crate) fn caller(&self, headers: &MetadataMap, instance: &str) -> Caller {
        let tool = headers.get_bin(METADATA).and_then(|header| header.to_bytes().ok());
        let tool = tool.map(|bytes| ClientTool::read(&bytes)).unwrap_or_default();
        let header = headers.get("authorization").map(|value| value.as_bytes().to_vec());
        let password = || self.password.as_ref().map(|password| format!("Bearer {password}").into_bytes());
        let authorization = header.or_else(password).unwrap_or_default();
        let Shared { core, peer, met } = &*self.shared;
        let access = {
            let key = [&authorization[..], b"\0", instance.as_bytes()].concat();
            let mut met = met.lock().unwrap_or_else(PoisonError::into_inner);
            match met.get(&key).filter(|access| access.holds(core)) {
                Some(access) => Arc::clone(access),
                None => {
                    let access = Arc::new(decide(core, &authorization, &tool, instance));
                    if met.len() >= MET {
                        met.clear();
                    }
                    met.insert(key, Arc::clone(&access));
                    access
                }
            }
        };
        Caller { core: Arc::clone(core), access, tool, peer: *peer }
    }
}

/// What a caller may do on an instance. One that is no scope is nobody's.
fn decide(core: &Core, authorization: &[u8], tool: &ClientTool, instance: &str) -> Access {
    let asked = match instance {
        "" => Ok(None),
        path => path.parse::<ScopePath>().map(Some),
    };
    match asked {
        Ok(asked) => Access::decide(core, authorization, &tool.shown, asked.as_ref(), Surface::Remote),
        Err(_) => Access::decide(core, b"", "", None, Surface::Remote),
    }
}

impl Caller {
    /// A refusal that names what it is about, the reason and its number (bazel#16454).
    pub(crate) fn refuse(&self, code: Code, about: &str, reason: impl std::fmt::Display) -> Status {
        let number = refusal();
        tracing::warn!(
            number, client = %self.tool.shown, peer = %self.peer, principal = %self.access.provenance.principal,
            "refused {about}: {reason}"
        );
        Status::new(code, format!("{about}: {reason} (refusal {number})"))
    }

    /// What a store that failed means for a client: later, or never.
    pub(crate) fn failed(&self, about: &str, error: &StoreError) -> Status {
        add(&self.access.counters.failures, 1);
        match error {
            StoreError::Full(_) => self.refuse(Code::ResourceExhausted, about, error),
            StoreError::TooLong(_) => self.refuse(Code::InvalidArgument, about, error),
            _ => self.refuse(Code::Unavailable, about, error),
        }
    }

    /// Only SHA-256 is spoken.
    pub(crate) fn function(&self, function: i32) -> Result<(), Status> {
        match function {
            0 | wire::SHA256 => Ok(()),
            other => {
                Err(self.refuse(Code::InvalidArgument, &format!("digest function {other}"), "only SHA256"))
            }
        }
    }

    /// Who writes, for provenance.
    pub(crate) fn provenance(&self) -> Provenance {
        Provenance {
            client: self.tool.shown.clone(),
            address: self.peer.ip().to_string(),
            ..self.access.provenance.clone()
        }
    }

    /// Thanks for something that is thrown away.
    pub(crate) fn discard<T>(&self, answer: T) -> Response<T> {
        add(&self.access.counters.denied, 1);
        let mut response = Response::new(answer);
        let reason = MetadataValue::from_static("this caller may not write here");
        response.metadata_mut().insert(DISCARDED, reason);
        response
    }
}

/// The hash of a digest that can be one: SHA-256 in lower-case hex, with a size that goes with it.
pub(crate) fn valid(digest: &wire::Digest) -> Option<&str> {
    let hash = digest.hash.as_str();
    let hex = hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let sized = digest.size_bytes >= 0 && (digest.size_bytes == 0) == (hash == EMPTY);
    (hex && sized).then_some(hash)
}

/// A digest as people read it.
pub(crate) fn shown(digest: Option<&wire::Digest>) -> String {
    digest.map_or_else(
        || "no digest".to_owned(),
        |digest| {
            let hash: String = digest.hash.chars().filter(char::is_ascii_graphic).take(64).collect();
            format!("{hash}/{}", digest.size_bytes)
        },
    )
}

/// Spawns on this thread, which is where the connection lives.
#[derive(Clone)]
struct Here;

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for Here {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

/// Serves a connection.
pub(crate) async fn serve(core: Arc<Core>, stream: Whole, peer: SocketAddr) {
    let shared = Arc::new(Shared { core, peer, met: Mutex::default() });
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(call(shared, request).await) }
    });
    let served = hyper::server::conn::http2::Builder::new(Here)
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(60))
        .keep_alive_timeout(Duration::from_secs(20))
        .max_concurrent_streams(MOST_CALLS)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(8 << 20)
        .max_frame_size(64 << 10)
        .max_send_buf_size(1 << 20)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        // a client that goes away is no fault of the server
        tracing::debug!(%peer, "a connection ended: {error}");
    }
}

type Answer = hyper::Response<tonic::body::Body>;

/// One call, by its path.
async fn call(shared: Arc<Shared>, request: hyper::Request<Incoming>) -> Answer {
    let user = request.uri().authority().and_then(|authority| authority.as_str().rsplit_once('@'));
    let password = user.map(|(user, _)| user.split_once(':').map_or(user, |(_, password)| password).into());
    let calling = Calling { shared, password };
    let path = request.uri().path().trim_start_matches('/').to_owned();
    match path.as_str() {
        "build.bazel.remote.execution.v2.Capabilities/GetCapabilities" => {
            unary(calling, request, actions::capabilities).await
        }
        "build.bazel.remote.execution.v2.ActionCache/GetActionResult" => {
            unary(calling, request, actions::get).await
        }
        "build.bazel.remote.execution.v2.ActionCache/UpdateActionResult" => {
            unary(calling, request, actions::update).await
        }
        "build.bazel.remote.execution.v2.ContentAddressableStorage/FindMissingBlobs" => {
            unary(calling, request, contents::find_missing).await
        }
        "build.bazel.remote.execution.v2.ContentAddressableStorage/BatchUpdateBlobs" => {
            unary(calling, request, contents::batch_update).await
        }
        "build.bazel.remote.execution.v2.ContentAddressableStorage/BatchReadBlobs" => {
            unary(calling, request, contents::batch_read).await
        }
        "build.bazel.remote.execution.v2.ContentAddressableStorage/GetTree" => {
            streaming(calling, request, contents::get_tree).await
        }
        "google.bytestream.ByteStream/Read" => streaming(calling, request, stream::read).await,
        "google.bytestream.ByteStream/Write" => {
            let handle = move |request| stream::write(calling.clone(), request);
            grpc::<wire::WriteResponse, _>().client_streaming(tower::service_fn(handle), request).await
        }
        "google.bytestream.ByteStream/QueryWriteStatus" => unary(calling, request, stream::query).await,
        "grpc.health.v1.Health/Check" => unary(calling, request, check).await,
        "grpc.health.v1.Health/Watch" => streaming(calling, request, watch).await,
        _ => Status::unimplemented(format!("this cache has no {path}")).into_http(),
    }
}

fn grpc<R: Message + 'static, M: Message + Default + 'static>() -> tonic::server::Grpc<ProstCodec<R, M>> {
    tonic::server::Grpc::new(ProstCodec::default()).max_decoding_message_size(LARGEST_MESSAGE)
}

async fn unary<M, R, F>(
    calling: Calling,
    request: hyper::Request<Incoming>,
    handle: impl Fn(Calling, Request<M>) -> F,
) -> Answer
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Future<Output = Result<Response<R>, Status>>,
{
    grpc().unary(tower::service_fn(move |request| handle(calling.clone(), request)), request).await
}

/// A stream of answers.
pub(crate) type Answers<R> = Pin<Box<dyn Stream<Item = Result<R, Status>> + Send>>;

async fn streaming<M, R, F>(
    calling: Calling,
    request: hyper::Request<Incoming>,
    handle: impl Fn(Calling, Request<M>) -> F,
) -> Answer
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Future<Output = Result<Response<Answers<R>>, Status>>,
{
    grpc().server_streaming(tower::service_fn(move |request| handle(calling.clone(), request)), request).await
}

const SERVING: wire::HealthCheckResponse = wire::HealthCheckResponse { status: 1 };

async fn check(
    _: Calling,
    request: Request<wire::HealthCheckRequest>,
) -> Result<Response<wire::HealthCheckResponse>, Status> {
    match request.get_ref().service.as_str() {
        "" | "build.bazel.remote.execution.v2.ActionCache" | "google.bytestream.ByteStream" => {
            Ok(Response::new(SERVING))
        }
        _ => Err(Status::not_found("there is no such service")),
    }
}

async fn watch(
    calling: Calling,
    request: Request<wire::HealthCheckRequest>,
) -> Result<Response<Answers<wire::HealthCheckResponse>>, Status> {
    let now = check(calling, request).await.map(Response::into_inner);
    // it serves until it is gone, and then so is the stream
    Ok(Response::new(Box::pin(tokio_stream::once(now).chain(tokio_stream::pending()))))
}
