//! What ccache and a storage helper say to each other, as bytes. Pure.
//!
//! Version 1 of the protocol (`doc/remote_storage_helper_spec.md` of ccache). Integers are in the order of the host.
//!
//! ```text
//! greeting   01 COUNT CAPABILITY…        0 get, put, remove; 1 info; 2 exists
//! requests   00 KEY                      get      → ok VALUE | noop | err
//!            01 KEY FLAGS VALUE          put      → ok | noop | err     flag 1: overwrite
//!            02 KEY                      remove   → ok | noop | err
//!            03                          stop     → ok
//!            04                          info     → MESSAGE COUNT MESSAGE…
//!            05 KEY                      exists   → ok | noop | err
//! answers    00 ok    01 noop    02 MESSAGE err
//! KEY, MESSAGE  length in 1 byte, bytes    VALUE  length in 8 bytes, bytes
//! ```
//!
//! Bytes that are no request cannot be skipped, so they end the connection.

/// What a helper says first.
pub const GREETING: [u8; 5] = [1, 3, 0, 1, 2];
/// Answer: done.
pub const OK: u8 = 0;
/// Answer: not there, or not stored.
pub const NOOP: u8 = 1;
/// Answer: it went wrong; a message follows.
pub const ERR: u8 = 2;
/// Largest value. A result of ccache is an object file and what the compiler printed.
pub const LARGEST: u64 = 1 << 30;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// The value of a key.
    Get(&'a [u8]),
    /// A value to store.
    Put {
        /// Its key.
        key: &'a [u8],
        /// Whether it takes the place of another one.
        overwrite: bool,
        /// The value.
        value: &'a [u8],
    },
    /// A value to take away.
    Remove(&'a [u8]),
    /// The helper ends.
    Stop,
    /// Who the helper is, and what it has to say.
    Info,
    /// Whether a key is there.
    Exists(&'a [u8]),
}

/// Bytes that are no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A number that no request has.
    #[error("{0} is no request of the protocol")]
    Unknown(u8),
    /// A value beyond [`LARGEST`].
    #[error("a value of {0} bytes is larger than {LARGEST}")]
    Large(u64),
}

/// What a buffer begins with.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A request, which takes so many bytes.
    Whole(Request<'a>, usize),
    /// The beginning of one.
    Part,
}

/// Reads the request that a buffer begins with.
pub fn parse(buffer: &[u8]) -> Result<Parsed<'_>, ProtocolError> {
    let Some((kind, rest)) = buffer.split_first() else { return Ok(Parsed::Part) };
    let key = || {
        let (length, rest) = rest.split_first()?;
        rest.split_at_checked(usize::from(*length))
    };
    Ok(match kind {
        0 => key().map_or(Parsed::Part, |(key, _)| Parsed::Whole(Request::Get(key), 2 + key.len())),
        1 => {
            let Some((key, rest)) = key() else { return Ok(Parsed::Part) };
            let Some((flags, rest)) = rest.split_first() else { return Ok(Parsed::Part) };
            let Some((length, rest)) = rest.split_first_chunk::<8>() else { return Ok(Parsed::Part) };
            let length = u64::from_ne_bytes(*length);
            if length > LARGEST {
                return Err(ProtocolError::Large(length));
            }
            let Some(value) = rest.get(..length as usize) else { return Ok(Parsed::Part) };
            let overwrite = flags & 1 == 1;
            Parsed::Whole(Request::Put { key, overwrite, value }, 2 + key.len() + 1 + 8 + value.len())
        }
        2 => key().map_or(Parsed::Part, |(key, _)| Parsed::Whole(Request::Remove(key), 2 + key.len())),
        3 => Parsed::Whole(Request::Stop, 1),
        4 => Parsed::Whole(Request::Info, 1),
        5 => key().map_or(Parsed::Part, |(key, _)| Parsed::Whole(Request::Exists(key), 2 + key.len())),
        other => return Err(ProtocolError::Unknown(*other)),
    })
}

/// A message: its length in one byte, so at most 255 of them, cut between characters.
pub fn message(text: &str) -> Vec<u8> {
    let end = (0..=text.len().min(255)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    let text = text.get(..end).unwrap_or_default();
    [&[text.len() as u8], text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(request: &Request<'_>) -> Vec<u8> {
        let keyed = |kind: u8, key: &[u8]| [&[kind, key.len() as u8], key].concat();
        match request {
            Request::Get(key) => keyed(0, key),
            Request::Put { key, overwrite, value } => {
                let length = (value.len() as u64).to_ne_bytes();
                [&keyed(1, key)[..], &[u8::from(*overwrite)], &length, value].concat()
            }
            Request::Remove(key) => keyed(2, key),
            Request::Stop => vec![3],
            Request::Info => vec![4],
            Request::Exists(key) => keyed(5, key),
        }
    }

    #[test]
    fn value_beyond_the_limit_and_unknown_requests_are_refused_before_they_are_read() {
        let mut put = vec![1, 1, b'k', 1];
        put.extend_from_slice(&u64::MAX.to_ne_bytes());
        assert_eq!(parse(&put), Err(ProtocolError::Large(u64::MAX)));
        assert_eq!(parse(&[6]), Err(ProtocolError::Unknown(6)));
    }

    proptest! {
        #[test]
        fn request_reads_back_and_every_beginning_is_a_part(
            kind in 0u8..6, key in prop::collection::vec(any::<u8>(), 0..40), value: Vec<u8>, overwrite: bool, more: Vec<u8>,
        ) {
            let request = match kind {
                0 => Request::Get(&key),
                1 => Request::Put { key: &key, overwrite, value: &value },
                2 => Request::Remove(&key),
                3 => Request::Stop,
                4 => Request::Info,
                _ => Request::Exists(&key),
            };
            let mut bytes = written(&request);
            let length = bytes.len();
            for end in 0..length {
                prop_assert_eq!(parse(&bytes[..end]), Ok(Parsed::Part));
            }
            bytes.extend_from_slice(&more);
            prop_assert_eq!(parse(&bytes), Ok(Parsed::Whole(request, length)));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, text: String) {
            if let Ok(Parsed::Whole(_, length)) = parse(&bytes) {
                prop_assert!(length <= bytes.len());
            }
            let message = message(&text);
            prop_assert!(usize::from(message[0]) == message.len() - 1);
            prop_assert!(text.starts_with(std::str::from_utf8(&message[1..]).unwrap()));
        }
    }
}
