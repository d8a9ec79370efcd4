//! Messages of the Remote Execution API v2, ByteStream, health and the few that they use, as far as a cache needs them.
//!
//! Written by hand from the published definitions, a field each: the numbers are the protocol. There is no generated code and
//! no compiler of definitions in the build. Fields that nobody here reads are left out; ProtoBuf reads over them.
//!
//! Action results and directories are [`Raw`]: they are kept, and given back, byte for byte as a client sent them, fields that
//! this server does not know included.

#![expect(missing_docs, reason = "names and meanings are those of the protocol")]

use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};

/// SHA-256 among the digest functions.
pub const SHA256: i32 = 1;
/// No compression.
pub const IDENTITY: i32 = 0;
/// Zstandard.
pub const ZSTD: i32 = 1;

/// A message that goes out as the bytes that came in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Raw(pub Bytes);

impl Message for Raw {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        prost::encoding::skip_field(wire_type, tag, buf, ctx)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Digest {
    #[prost(string, tag = "1")]
    pub hash: String,
    #[prost(int64, tag = "2")]
    pub size_bytes: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetCapabilitiesRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct SemVer {
    #[prost(int32, tag = "1")]
    pub major: i32,
    #[prost(int32, tag = "2")]
    pub minor: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ActionCacheUpdateCapabilities {
    #[prost(bool, tag = "1")]
    pub update_enabled: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PriorityRange {
    #[prost(int32, tag = "1")]
    pub min_priority: i32,
    #[prost(int32, tag = "2")]
    pub max_priority: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PriorityCapabilities {
    #[prost(message, repeated, tag = "1")]
    pub priorities: Vec<PriorityRange>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CacheCapabilities {
    #[prost(int32, repeated, tag = "1")]
    pub digest_functions: Vec<i32>,
    #[prost(message, optional, tag = "2")]
    pub action_cache_update_capabilities: Option<ActionCacheUpdateCapabilities>,
    #[prost(message, optional, tag = "3")]
    pub cache_priority_capabilities: Option<PriorityCapabilities>,
    #[prost(int64, tag = "4")]
    pub max_batch_total_size_bytes: i64,
    /// 2: symbolic links may be absolute.
    #[prost(int32, tag = "5")]
    pub symlink_absolute_path_strategy: i32,
    #[prost(int32, repeated, tag = "6")]
    pub supported_compressors: Vec<i32>,
    #[prost(int32, repeated, tag = "7")]
    pub supported_batch_update_compressors: Vec<i32>,
    #[prost(int64, tag = "8")]
    pub max_cas_blob_size_bytes: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ServerCapabilities {
    #[prost(message, optional, tag = "1")]
    pub cache_capabilities: Option<CacheCapabilities>,
    #[prost(message, optional, tag = "4")]
    pub low_api_version: Option<SemVer>,
    #[prost(message, optional, tag = "5")]
    pub high_api_version: Option<SemVer>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetActionResultRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
    #[prost(message, optional, tag = "2")]
    pub action_digest: Option<Digest>,
    #[prost(int32, tag = "6")]
    pub digest_function: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct UpdateActionResultRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
    #[prost(message, optional, tag = "2")]
    pub action_digest: Option<Digest>,
    /// The message `ActionResult`, as sent: a message and bytes look alike on the wire.
    #[prost(bytes = "bytes", tag = "3")]
    pub action_result: Bytes,
    #[prost(int32, tag = "5")]
    pub digest_function: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct FindMissingBlobsRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
    #[prost(message, repeated, tag = "2")]
    pub blob_digests: Vec<Digest>,
    #[prost(int32, tag = "3")]
    pub digest_function: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct FindMissingBlobsResponse {
    #[prost(message, repeated, tag = "2")]
    pub missing_blob_digests: Vec<Digest>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct UpdateBlob {
    #[prost(message, optional, tag = "1")]
    pub digest: Option<Digest>,
    #[prost(bytes = "bytes", tag = "2")]
    pub data: Bytes,
    #[prost(int32, tag = "3")]
    pub compressor: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct BatchUpdateBlobsRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
    #[prost(message, repeated, tag = "2")]
    pub requests: Vec<UpdateBlob>,
    #[prost(int32, tag = "5")]
    pub digest_function: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct UpdatedBlob {
    #[prost(message, optional, tag = "1")]
    pub digest: Option<Digest>,
    #[prost(message, optional, tag = "2")]
    pub status: Option<Status>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct BatchUpdateBlobsResponse {
    #[prost(message, repeated, tag = "1")]
    pub responses: Vec<UpdatedBlob>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct BatchReadBlobsRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
    #[prost(message, repeated, tag = "2")]
    pub digests: Vec<Digest>,
    #[prost(int32, repeated, tag = "3")]
    pub acceptable_compressors: Vec<i32>,
    #[prost(int32, tag = "4")]
    pub digest_function: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ReadBlob {
    #[prost(message, optional, tag = "1")]
    pub digest: Option<Digest>,
    #[prost(bytes = "bytes", tag = "2")]
    pub data: Bytes,
    #[prost(message, optional, tag = "3")]
    pub status: Option<Status>,
    #[prost(int32, tag = "4")]
    pub compressor: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct BatchReadBlobsResponse {
    #[prost(message, repeated, tag = "1")]
    pub responses: Vec<ReadBlob>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetTreeRequest {
    #[prost(string, tag = "1")]
    pub instance_name: String,
    #[prost(message, optional, tag = "2")]
    pub root_digest: Option<Digest>,
    #[prost(int32, tag = "3")]
    pub page_size: i32,
    #[prost(string, tag = "4")]
    pub page_token: String,
    #[prost(int32, tag = "5")]
    pub digest_function: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetTreeResponse {
    /// Messages `Directory`, as stored.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub directories: Vec<Bytes>,
    #[prost(string, tag = "2")]
    pub next_page_token: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ReadRequest {
    #[prost(string, tag = "1")]
    pub resource_name: String,
    #[prost(int64, tag = "2")]
    pub read_offset: i64,
    #[prost(int64, tag = "3")]
    pub read_limit: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ReadResponse {
    #[prost(bytes = "bytes", tag = "10")]
    pub data: Bytes,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct WriteRequest {
    #[prost(string, tag = "1")]
    pub resource_name: String,
    #[prost(int64, tag = "2")]
    pub write_offset: i64,
    #[prost(bool, tag = "3")]
    pub finish_write: bool,
    #[prost(bytes = "bytes", tag = "10")]
    pub data: Bytes,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct WriteResponse {
    #[prost(int64, tag = "1")]
    pub committed_size: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct QueryWriteStatusRequest {
    #[prost(string, tag = "1")]
    pub resource_name: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct QueryWriteStatusResponse {
    #[prost(int64, tag = "1")]
    pub committed_size: i64,
    #[prost(bool, tag = "2")]
    pub complete: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub service: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct HealthCheckResponse {
    /// 1: serving.
    #[prost(int32, tag = "1")]
    pub status: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ToolDetails {
    #[prost(string, tag = "1")]
    pub tool_name: String,
    #[prost(string, tag = "2")]
    pub tool_version: String,
}

/// What a client says of itself, in the header `build.bazel.remote.execution.v2.requestmetadata-bin`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RequestMetadata {
    #[prost(message, optional, tag = "1")]
    pub tool_details: Option<ToolDetails>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_messages_or_refused(bytes: Vec<u8>) {
            let _ = FindMissingBlobsRequest::decode(&bytes[..]);
            let _ = BatchUpdateBlobsRequest::decode(&bytes[..]);
            let _ = BatchReadBlobsRequest::decode(&bytes[..]);
            let _ = UpdateActionResultRequest::decode(&bytes[..]);
            let _ = GetTreeRequest::decode(&bytes[..]);
            let _ = WriteRequest::decode(&bytes[..]);
            let _ = ReadRequest::decode(&bytes[..]);
            let _ = RequestMetadata::decode(&bytes[..]);
        }
    }
}
