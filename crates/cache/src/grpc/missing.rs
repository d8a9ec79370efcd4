//! The two messages of FindMissingBlobs, read and written without memory for each digest: a request has fourteen thousand.
//!
//! On the wire they are [`FindMissingBlobsRequest`](super::wire::FindMissingBlobsRequest) and
//! [`FindMissingBlobsResponse`](super::wire::FindMissingBlobsResponse). A digest is *plain* when it is written as every client writes
//! it: the hash of 64 digits in lower case, then the size unless that is 0, and nothing else. Any other is taken apart as ProtoBuf says.

use super::wire::{Digest, FindMissingBlobsResponse};
use crate::action::EMPTY;
use bytes::{Buf, BufMut};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

/// Field 1 of a digest, its length, and field 2.
const HASH: u8 = 0x0a;
const HASH_BYTES: usize = 64;
const SIZE: u8 = 0x10;
/// Field 2 of both messages.
const DIGEST: u8 = 0x12;

/// A digest that can be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plain {
    hash: [u8; HASH_BYTES],
    size: u64,
}

impl Plain {
    /// From the bytes of the message, when it is written so.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (&[HASH, length, ref hash @ ..], rest) = bytes.split_first_chunk::<{ 2 + HASH_BYTES }>()? else {
            return None;
        };
        // all of them and not until the first that is none: that is a comparison of many at once
        let hex = hash.iter().fold(true, |hex, b| hex & (b.is_ascii_digit() | (b'a'..=b'f').contains(b)));
        let size = match rest {
            [] => 0,
            [SIZE, number @ ..] => {
                let mut size = 0u64;
                for (place, byte) in number.iter().enumerate() {
                    // as far as a size goes that is not negative, and written as short as it can be
                    let last = place + 1 == number.len();
                    if place >= 9 || (byte & 0x80 == 0) != last || (last && *byte == 0) {
                        return None;
                    }
                    size |= u64::from(byte & 0x7f) << (7 * place);
                }
                size
            }
            _ => return None,
        };
        let something = size > 0 && hash != EMPTY.as_bytes();
        (hex && usize::from(length) == HASH_BYTES && something).then_some(Self { hash: *hash, size })
    }

    /// Its digits.
    pub fn hash(&self) -> &str {
        std::str::from_utf8(&self.hash).unwrap_or_default()
    }

    fn len(&self) -> usize {
        2 + HASH_BYTES + 1 + encoding::encoded_len_varint(self.size)
    }
}

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Asked {
    /// The instance.
    pub instance: String,
    /// Digests as every client writes them; none is that of nothing.
    pub plain: Vec<Plain>,
    /// All others.
    pub others: Vec<Digest>,
    /// The digest function.
    pub function: i32,
}

impl Message for Asked {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        if !self.instance.is_empty() {
            encoding::string::encode(1, &self.instance, buf);
        }
        encode(&self.plain, &self.others, buf);
        if self.function != 0 {
            encoding::int32::encode(3, &self.function, buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => encoding::string::merge(wire_type, &mut self.instance, buf, ctx),
            2 => {
                let here = buf.chunk();
                // the length of one that is plain is one byte
                let plain =
                    here.split_first().and_then(|(length, rest)| rest.get(..usize::from(*length & 0x7f)));
                let plain = plain.filter(|_| wire_type == WireType::LengthDelimited);
                if let Some((plain, length)) =
                    plain.and_then(|bytes| Some((Plain::read(bytes)?, bytes.len())))
                    && here.first().is_some_and(|first| *first & 0x80 == 0)
                {
                    self.plain.push(plain);
                    buf.advance(1 + length);
                    return Ok(());
                }
                let mut other = Digest::default();
                encoding::message::merge(wire_type, &mut other, buf, ctx)?;
                self.others.push(other);
                Ok(())
            }
            3 => encoding::int32::merge(wire_type, &mut self.function, buf, ctx),
            _ => encoding::skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let instance =
            if self.instance.is_empty() { 0 } else { encoding::string::encoded_len(1, &self.instance) };
        let function = if self.function == 0 { 0 } else { encoding::int32::encoded_len(3, &self.function) };
        instance + encoded_len(&self.plain, &self.others) + function
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// What is missing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Missing {
    /// As they were asked for.
    pub plain: Vec<Plain>,
    /// As they were asked for.
    pub others: Vec<Digest>,
}

impl Message for Missing {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        encode(&self.plain, &self.others, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let mut read = FindMissingBlobsResponse::default();
        read.merge_field(tag, wire_type, buf, ctx)?;
        self.others.append(&mut read.missing_blob_digests);
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        encoded_len(&self.plain, &self.others)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

fn encode(plain: &[Plain], others: &[Digest], buf: &mut impl BufMut) {
    for one in plain {
        buf.put_slice(&[DIGEST, one.len() as u8, HASH, HASH_BYTES as u8]);
        buf.put_slice(&one.hash);
        buf.put_u8(SIZE);
        encoding::encode_varint(one.size, buf);
    }
    encoding::message::encode_repeated(2, others, buf);
}

fn encoded_len(plain: &[Plain], others: &[Digest]) -> usize {
    plain.iter().map(|one| 2 + one.len()).sum::<usize>() + encoding::message::encoded_len_repeated(2, others)
}

#[cfg(test)]
mod tests {
    use super::super::wire::FindMissingBlobsRequest;
    use super::*;
    use proptest::prelude::*;

    fn digests() -> impl Strategy<Value = Vec<Digest>> {
        let hash = prop_oneof![3 => "[0-9a-f]{64}", 1 => "[0-9A-Fa-f]{0,70}", 1 => "\\PC{0,70}"];
        let size = prop_oneof![0i64..300, any::<i64>()];
        prop::collection::vec((hash, size).prop_map(|(hash, size_bytes)| Digest { hash, size_bytes }), 0..20)
    }

    fn sorted(mut digests: Vec<Digest>) -> Vec<Digest> {
        digests.sort_by(|one, other| (&one.hash, one.size_bytes).cmp(&(&other.hash, other.size_bytes)));
        digests
    }

    proptest! {
        #[test]
        fn what_is_asked_is_what_the_protocol_says(instance_name in "[a-z/]{0,9}", blob_digests in digests(), digest_function in 0..3) {
            let request = FindMissingBlobsRequest { instance_name, blob_digests, digest_function };
            let bytes = request.encode_to_vec();
            let asked = Asked::decode(&bytes[..]).unwrap();
            prop_assert_eq!((&asked.instance, asked.function), (&request.instance_name, digest_function));
            let plain = |one: &Digest| one.size_bytes > 0 && super::super::valid(one).is_some();
            prop_assert_eq!(asked.plain.len(), request.blob_digests.iter().filter(|one| plain(one)).count());
            let again = FindMissingBlobsRequest::decode(&asked.encode_to_vec()[..]).unwrap();
            prop_assert_eq!(sorted(again.blob_digests), sorted(request.blob_digests.clone()));
            // all of them missing
            let missing = Missing { plain: asked.plain, others: asked.others };
            let bytes = missing.encode_to_vec();
            prop_assert_eq!(bytes.len(), missing.encoded_len());
            let answer = FindMissingBlobsResponse::decode(&bytes[..]).unwrap();
            prop_assert_eq!(sorted(answer.missing_blob_digests), sorted(request.blob_digests));
        }

        #[test]
        fn any_bytes_are_taken_as_the_protocol_takes_them(mut bytes: Vec<u8>, tail: Vec<u8>, like: bool) {
            if like {
                bytes.splice(0..0, [&[DIGEST, 68, HASH, 64][..], &[b'a'; 64], &[SIZE]].concat());
            }
            bytes.extend(tail);
            let (asked, said) = (Asked::decode(&bytes[..]), FindMissingBlobsRequest::decode(&bytes[..]));
            prop_assert_eq!(asked.is_ok(), said.is_ok());
            if let (Ok(asked), Ok(said)) = (asked, said) {
                prop_assert_eq!(asked.plain.len() + asked.others.len(), said.blob_digests.len());
            }
        }
    }

    /// A message may come in pieces of memory that end anywhere.
    #[test]
    fn digest_that_is_cut_between_two_pieces_is_read() {
        let digest = Digest { hash: "ab".repeat(32), size_bytes: 300 };
        let request =
            FindMissingBlobsRequest { blob_digests: vec![digest; 3], ..FindMissingBlobsRequest::default() };
        let bytes = request.encode_to_vec();
        for cut in 0..bytes.len() {
            let asked = Asked::decode(bytes[..cut].chain(&bytes[cut..])).unwrap();
            assert_eq!(asked.plain.len() + asked.others.len(), 3, "cut at {cut}");
        }
    }
}
