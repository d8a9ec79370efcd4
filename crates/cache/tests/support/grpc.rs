//! A client of the Remote Execution API, for *protocol tests*: it says what the clients named in them say on the wire.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use forgeyard_cache::grpc::wire::{self, Digest};
use prost::Message;
use std::net::SocketAddr;
use tokio_stream::StreamExt as _;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// Messages that the server only passes on.
#[derive(Clone, PartialEq, Message)]
pub struct ActionResult {
    #[prost(message, repeated, tag = "2")]
    pub output_files: Vec<OutputFile>,
    #[prost(message, repeated, tag = "3")]
    pub output_directories: Vec<OutputDirectory>,
    #[prost(int32, tag = "4")]
    pub exit_code: i32,
    #[prost(message, optional, tag = "6")]
    pub stdout_digest: Option<Digest>,
    /// No field of the protocol: what a client of tomorrow sends is kept too.
    #[prost(string, tag = "99")]
    pub of_tomorrow: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct OutputFile {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(message, optional, tag = "2")]
    pub digest: Option<Digest>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OutputDirectory {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(message, optional, tag = "3")]
    pub tree_digest: Option<Digest>,
    #[prost(message, optional, tag = "5")]
    pub root_directory_digest: Option<Digest>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Directory {
    #[prost(message, repeated, tag = "1")]
    pub files: Vec<OutputFile>,
    #[prost(message, repeated, tag = "2")]
    pub directories: Vec<OutputFile>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Tree {
    #[prost(message, optional, tag = "1")]
    pub root: Option<Directory>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetAction {
    #[prost(string, tag = "1")]
    pub instance_name: String,
    #[prost(message, optional, tag = "2")]
    pub action_digest: Option<Digest>,
}

pub fn digest(bytes: &[u8]) -> Digest {
    Digest { hash: forgeyard_model::Digest::of(bytes).hex(), size_bytes: bytes.len() as i64 }
}

/// A result with these files.
pub fn result(files: &[&[u8]]) -> ActionResult {
    let file = |bytes: &&[u8]| OutputFile { path: "out".to_owned(), digest: Some(digest(bytes)) };
    ActionResult { output_files: files.iter().map(file).collect(), ..ActionResult::default() }
}

/// One client: where it is, who it is, what it calls itself.
#[derive(Clone)]
pub struct Remote {
    channel: Channel,
    token: Option<String>,
    tool: (String, String),
    pub instance: String,
}

const RE: &str = "build.bazel.remote.execution.v2";

impl Remote {
    pub async fn new(address: SocketAddr, token: Option<String>, instance: &str) -> Self {
        Self::over(Endpoint::from_shared(format!("http://{address}")).unwrap(), token, instance).await
    }

    /// With a connection that is made so.
    pub async fn over(endpoint: Endpoint, token: Option<String>, instance: &str) -> Self {
        let channel = endpoint.connect().await.unwrap();
        Self { channel, token, tool: ("bazel".to_owned(), "7.4.0".to_owned()), instance: instance.to_owned() }
    }

    pub fn tool(mut self, name: &str, version: &str) -> Self {
        self.tool = (name.to_owned(), version.to_owned());
        self
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let details = wire::ToolDetails { tool_name: self.tool.0.clone(), tool_version: self.tool.1.clone() };
        let metadata = wire::RequestMetadata { tool_details: Some(details) }.encode_to_vec();
        let value = tonic::metadata::MetadataValue::from_bytes(&metadata);
        request.metadata_mut().insert_bin("build.bazel.remote.execution.v2.requestmetadata-bin", value);
        request
    }

    pub async fn unary<M, R>(&self, path: &str, message: M) -> Result<Response<R>, Status>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let path = format!("/{path}").parse().unwrap();
        grpc.unary(self.request(message), path, ProstCodec::<M, R>::default()).await
    }

    pub async fn streaming<M, R>(&self, path: &str, message: M) -> Result<Vec<R>, Status>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let path = format!("/{path}").parse().unwrap();
        let answer =
            grpc.server_streaming(self.request(message), path, ProstCodec::<M, R>::default()).await?;
        answer.into_inner().collect::<Result<Vec<R>, Status>>().await
    }

    pub async fn capabilities(&self) -> wire::CacheCapabilities {
        let message = wire::GetCapabilitiesRequest { instance_name: self.instance.clone() };
        let answer: Response<wire::ServerCapabilities> =
            self.unary(&format!("{RE}.Capabilities/GetCapabilities"), message).await.unwrap();
        answer.into_inner().cache_capabilities.unwrap()
    }

    pub async fn missing(&self, digests: &[Digest]) -> Vec<Digest> {
        let message = wire::FindMissingBlobsRequest {
            instance_name: self.instance.clone(),
            blob_digests: digests.to_vec(),
            digest_function: 0,
        };
        let path = format!("{RE}.ContentAddressableStorage/FindMissingBlobs");
        let answer: Response<wire::FindMissingBlobsResponse> = self.unary(&path, message).await.unwrap();
        answer.into_inner().missing_blob_digests
    }

    pub async fn has(&self, bytes: &[u8]) -> bool {
        self.missing(&[digest(bytes)]).await.is_empty()
    }

    pub async fn put_all(
        &self,
        requests: Vec<wire::UpdateBlob>,
    ) -> Result<Response<wire::BatchUpdateBlobsResponse>, Status> {
        let message = wire::BatchUpdateBlobsRequest {
            instance_name: self.instance.clone(),
            requests,
            digest_function: 1,
        };
        self.unary(&format!("{RE}.ContentAddressableStorage/BatchUpdateBlobs"), message).await
    }

    /// Code of each.
    pub async fn put(&self, blobs: &[&[u8]]) -> Vec<i32> {
        let blob = |bytes: &&[u8]| wire::UpdateBlob {
            digest: Some(digest(bytes)),
            data: bytes.to_vec().into(),
            compressor: 0,
        };
        let answer = self.put_all(blobs.iter().map(blob).collect()).await.unwrap();
        answer.into_inner().responses.into_iter().map(|one| one.status.unwrap().code).collect()
    }

    pub async fn get_all(&self, digests: &[Digest], zstd: bool) -> Result<Vec<wire::ReadBlob>, Status> {
        let message = wire::BatchReadBlobsRequest {
            instance_name: self.instance.clone(),
            digests: digests.to_vec(),
            acceptable_compressors: if zstd { vec![wire::ZSTD] } else { Vec::new() },
            digest_function: 1,
        };
        let answer: Response<wire::BatchReadBlobsResponse> =
            self.unary(&format!("{RE}.ContentAddressableStorage/BatchReadBlobs"), message).await?;
        Ok(answer.into_inner().responses)
    }

    pub async fn action(&self, action: &[u8]) -> Result<ActionResult, Status> {
        let message = GetAction { instance_name: self.instance.clone(), action_digest: Some(digest(action)) };
        self.unary(&format!("{RE}.ActionCache/GetActionResult"), message).await.map(Response::into_inner)
    }

    pub async fn update(
        &self,
        action: &[u8],
        result: &ActionResult,
    ) -> Result<Response<ActionResult>, Status> {
        let message = wire::UpdateActionResultRequest {
            instance_name: self.instance.clone(),
            action_digest: Some(digest(action)),
            action_result: result.encode_to_vec().into(),
            digest_function: 0,
        };
        self.unary(&format!("{RE}.ActionCache/UpdateActionResult"), message).await
    }

    pub async fn tree(&self, root: &[u8], page_size: i32) -> Result<Vec<wire::GetTreeResponse>, Status> {
        let message = wire::GetTreeRequest {
            instance_name: self.instance.clone(),
            root_digest: Some(digest(root)),
            page_size,
            ..wire::GetTreeRequest::default()
        };
        self.streaming(&format!("{RE}.ContentAddressableStorage/GetTree"), message).await
    }

    fn of(&self, compressed: bool, digest: &Digest) -> String {
        let form = if compressed { "compressed-blobs/zstd" } else { "blobs" };
        let name = format!("{form}/{}/{}", digest.hash, digest.size_bytes);
        if self.instance.is_empty() { name } else { format!("{}/{name}", self.instance) }
    }

    pub fn upload_name(&self, compressed: bool, digest: &Digest) -> String {
        let name = self.of(compressed, digest);
        match name.find(if compressed { "compressed-blobs/" } else { "blobs/" }) {
            Some(at) => {
                format!("{}uploads/00000000-0000-4000-8000-000000000001/{}", &name[..at], &name[at..])
            }
            None => name,
        }
    }

    /// Reads a content, or a part.
    pub async fn read(
        &self,
        digest: &Digest,
        compressed: bool,
        offset: i64,
        limit: i64,
    ) -> Result<Vec<u8>, Status> {
        let message = wire::ReadRequest {
            resource_name: self.of(compressed, digest),
            read_offset: offset,
            read_limit: limit,
        };
        let parts: Vec<wire::ReadResponse> =
            self.streaming("google.bytestream.ByteStream/Read", message).await?;
        Ok(parts.into_iter().flat_map(|part| part.data.to_vec()).collect())
    }

    /// Begins to read a content; what is not taken waits.
    pub async fn begin_read(
        &self,
        digest: &Digest,
        compressed: bool,
    ) -> Result<tonic::Streaming<wire::ReadResponse>, Status> {
        let message =
            wire::ReadRequest { resource_name: self.of(compressed, digest), ..wire::ReadRequest::default() };
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let path = "/google.bytestream.ByteStream/Read".parse().unwrap();
        let codec = ProstCodec::<wire::ReadRequest, wire::ReadResponse>::default();
        grpc.server_streaming(self.request(message), path, codec).await.map(Response::into_inner)
    }

    /// Reads a content and keeps none of it; answers with its size.
    pub async fn read_through(&self, digest: &Digest, compressed: bool) -> Result<u64, Status> {
        let mut parts = self.begin_read(digest, compressed).await?;
        let mut read = 0;
        while let Some(part) = parts.message().await? {
            read += part.data.len() as u64;
        }
        Ok(read)
    }

    /// Writes these messages as they are.
    pub async fn write_raw(
        &self,
        messages: impl tokio_stream::Stream<Item = wire::WriteRequest> + Send + 'static,
    ) -> Result<Response<wire::WriteResponse>, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let path = "/google.bytestream.ByteStream/Write".parse().unwrap();
        let codec = ProstCodec::<wire::WriteRequest, wire::WriteResponse>::default();
        grpc.client_streaming(self.request(messages), path, codec).await
    }

    /// Writes pieces; answers with the committed size.
    pub async fn write(
        &self,
        digest: &Digest,
        compressed: bool,
        pieces: Vec<Vec<u8>>,
    ) -> Result<i64, Status> {
        let name = self.upload_name(compressed, digest);
        let (mut offset, last) = (0, pieces.len().saturating_sub(1));
        let messages: Vec<wire::WriteRequest> = pieces
            .into_iter()
            .enumerate()
            .map(|(at, data)| {
                let message = wire::WriteRequest {
                    resource_name: if at == 0 { name.clone() } else { String::new() },
                    write_offset: offset,
                    finish_write: at == last,
                    data: data.into(),
                };
                offset += message.data.len() as i64;
                message
            })
            .collect();
        self.write_raw(tokio_stream::iter(messages)).await.map(|answer| answer.into_inner().committed_size)
    }

    pub async fn query(&self, digest: &Digest) -> wire::QueryWriteStatusResponse {
        let message = wire::QueryWriteStatusRequest { resource_name: self.upload_name(false, digest) };
        self.unary("google.bytestream.ByteStream/QueryWriteStatus", message).await.unwrap().into_inner()
    }
}
