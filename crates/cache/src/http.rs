//! HTTP/1.1 as build tools speak it: heads, framing of bodies, answers. Bytes in, values out; the connection itself is in
//! [`crate::service`].
//!
//! Read strictly where two readers could disagree, since that is how requests are smuggled: one `Content-Length` or
//! `Transfer-Encoding: chunked`, never both, no other coding, no folded header, no control byte in a path. Paths are decoded
//! once; a path that has `.` or `..` as a word is refused rather than resolved. Double slashes count as one (sccache writes
//! them).

use forgeyard_model::Digest;
use std::fmt::Write as _;

/// Longest head.
pub const LONGEST_HEAD: usize = 16 << 10;

/// Methods that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "their names are those of HTTP and WebDAV")]
pub enum Method {
    #[default]
    Get,
    Head,
    Put,
    Delete,
    Post,
    Options,
    Propfind,
    Mkcol,
    Other,
}

/// How a body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// So many bytes; none for no body.
    Length(u64),
    /// Chunks.
    Chunked,
}

impl Default for Framing {
    fn default() -> Self {
        Self::Length(0)
    }
}

/// Headers of Turborepo, as sent: `x-artifact-duration` and `x-artifact-tag`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Artifact {
    /// Milliseconds that its task took.
    pub duration: String,
    /// Signature of the archive.
    pub tag: String,
}

/// A request without its body.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Head {
    /// Method.
    pub method: Method,
    /// Decoded path.
    pub path: String,
    /// What follows the question mark, as sent.
    pub query: String,
    /// Body.
    pub framing: Framing,
    /// The client waits for `100 Continue`.
    pub expects: bool,
    /// The connection goes on afterwards.
    pub keep_alive: bool,
    /// `Authorization`, as sent.
    pub authorization: Vec<u8>,
    /// `User-Agent`, shortened.
    pub agent: String,
    /// `Range`, as sent.
    pub range: Option<String>,
    /// `Content-Range`, as sent.
    pub content_range: Option<String>,
    /// `Content-Encoding` other than identity.
    pub encoded: bool,
    /// `Content-Type`, as sent.
    pub content_type: String,
    /// `Host`; empty when it is no host and port.
    pub host: String,
    /// What Turborepo says of what it sends.
    pub artifact: Artifact,
    /// The client speaks TLS, or a proxy in front says that it did with it.
    pub secure: bool,
}

/// A request that is not answered with anything but this status and the end of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {reason}")]
pub struct Wrong {
    /// Status.
    pub status: u16,
    /// Why.
    pub reason: &'static str,
}

const fn wrong(status: u16, reason: &'static str) -> Wrong {
    Wrong { status, reason }
}

/// Reads a head from the beginning of these bytes; nothing when it is not whole yet. Answers with its length.
pub fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, Wrong> {
    let mut head = Head::default();
    Ok(parse_into(bytes, &mut head)?.map(|length| (head, length)))
}

/// The same into a head that was used before, whose memory is used again. What is in it when nothing came of it is not said.
pub fn parse_into(bytes: &[u8], head: &mut Head) -> Result<Option<usize>, Wrong> {
    let mut headers = [const { std::mem::MaybeUninit::uninit() }; 64];
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() > LONGEST_HEAD => {
            return Err(wrong(431, "the head is too long"));
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(wrong(431, "too many headers")),
        Err(_) => return Err(wrong(400, "this is not HTTP/1.1")),
    };
    let modern = request.version == Some(1);
    head.clear();
    head.keep_alive = modern;
    head.method = match request.method.unwrap_or_default() {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        "POST" => Method::Post,
        "OPTIONS" => Method::Options,
        "PROPFIND" => Method::Propfind,
        "MKCOL" => Method::Mkcol,
        _ => Method::Other,
    };
    path_into(request.path.unwrap_or_default(), &mut head.path, &mut head.query)?;
    let (mut sized, mut coded) = (None, false);
    for header in request.headers.iter() {
        let (name, value) = (header.name, header.value);
        let text = || std::str::from_utf8(value).map(str::trim).unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            let digits = text();
            let number = Some(digits).filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
            let number: u64 = number
                .and_then(|text| text.parse().ok())
                .ok_or(wrong(400, "the content length is no number"))?;
            if sized.replace(number).is_some_and(|before| before != number) {
                return Err(wrong(400, "two content lengths"));
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if coded || !modern || !text().eq_ignore_ascii_case("chunked") {
                return Err(wrong(400, "the only transfer coding is chunked, once"));
            }
            coded = true;
        } else if name.eq_ignore_ascii_case("authorization") {
            head.authorization.clear();
            head.authorization.extend_from_slice(value);
        } else if name.eq_ignore_ascii_case("user-agent") {
            head.agent.clear();
            match text() {
                plain if plain.bytes().all(|b| b.is_ascii_graphic() || b == b' ') => {
                    head.agent.push_str(plain.get(..64).unwrap_or(plain));
                }
                other => {
                    let clean = other.chars().filter(|c| c.is_ascii_graphic() || *c == ' ');
                    head.agent.extend(clean.take(64));
                }
            }
        } else if name.eq_ignore_ascii_case("expect") {
            head.expects = text().eq_ignore_ascii_case("100-continue");
        } else if name.eq_ignore_ascii_case("connection") {
            let has = |word: &str| text().split(',').any(|part| part.trim().eq_ignore_ascii_case(word));
            head.keep_alive = if modern { !has("close") } else { has("keep-alive") };
        } else if name.eq_ignore_ascii_case("content-type") {
            head.content_type.clear();
            head.content_type.push_str(text());
            head.content_type.make_ascii_lowercase();
        } else if name.eq_ignore_ascii_case("host") {
            let plain =
                |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']' | b'_');
            head.host.clear();
            head.host.push_str(Some(text()).filter(|host| host.bytes().all(plain)).unwrap_or_default());
        } else if name.eq_ignore_ascii_case("x-forwarded-proto") {
            head.secure = text().eq_ignore_ascii_case("https");
        } else if name.eq_ignore_ascii_case("x-artifact-duration") {
            head.artifact.duration = text().to_owned();
        } else if name.eq_ignore_ascii_case("x-artifact-tag") {
            head.artifact.tag = text().to_owned();
        } else if name.eq_ignore_ascii_case("range") {
            head.range = Some(text().to_owned());
        } else if name.eq_ignore_ascii_case("content-range") {
            head.content_range = Some(text().to_owned());
        } else if name.eq_ignore_ascii_case("content-encoding") {
            head.encoded = !text().is_empty() && !text().eq_ignore_ascii_case("identity");
        }
    }
    head.framing = match (sized, coded) {
        (Some(_), true) => return Err(wrong(400, "content length and transfer coding at once")),
        (None, true) => Framing::Chunked,
        (Some(length), false) => Framing::Length(length),
        (None, false) => Framing::Length(0),
    };
    Ok(Some(length))
}

impl Head {
    /// As new, but the memory of its texts stays.
    fn clear(&mut self) {
        let Self { mut path, mut query, mut authorization, mut agent, mut content_type, mut host, .. } =
            std::mem::take(self);
        for text in [&mut path, &mut query, &mut agent, &mut content_type, &mut host] {
            text.clear();
        }
        authorization.clear();
        *self = Self { path, query, authorization, agent, content_type, host, ..Self::default() };
    }
}

/// Path, decoded once, and query of a request target.
pub fn path_of(target: &str) -> Result<(String, String), Wrong> {
    let (mut path, mut query) = (String::new(), String::new());
    path_into(target, &mut path, &mut query)?;
    Ok((path, query))
}

fn path_into(target: &str, path: &mut String, query: &mut String) -> Result<(), Wrong> {
    // a proxy's form, with the authority in front
    let target = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    let (sent, asked) = target.split_once('?').unwrap_or((target, ""));
    path.clear();
    query.clear();
    query.push_str(asked);
    let mut bytes = std::mem::take(path).into_bytes();
    bytes.reserve(sent.len());
    let mut rest = sent.bytes();
    while let Some(byte) = rest.next() {
        let byte = if byte == b'%' {
            let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
            match (digit(), digit()) {
                (Some(high), Some(low)) => (high * 16 + low) as u8,
                _ => return Err(wrong(400, "the path has a broken escape")),
            }
        } else {
            byte
        };
        if byte < b' ' || byte == 0x7f {
            return Err(wrong(400, "the path has a control byte"));
        }
        if byte != b'/' || bytes.last() != Some(&b'/') {
            bytes.push(byte);
        }
    }
    *path = String::from_utf8(bytes).map_err(|_| wrong(400, "the path is not UTF-8"))?;
    if !path.starts_with('/') || path.split('/').any(|word| matches!(word, "." | "..")) {
        return Err(wrong(400, "the path is not a plain absolute one"));
    }
    Ok(())
}

/// Takes chunks apart. Extensions and trailers are read over.
#[derive(Debug, Default)]
pub struct Chunks {
    state: State,
    line: Vec<u8>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    Data(u64),
    DataEnd,
    Trailer,
    Done,
}

impl Chunks {
    /// Whether the last chunk and the trailers are in.
    pub fn done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes bytes; hands on what belongs to the body. Answers with how many were taken: all, unless the body ended.
    pub fn feed(&mut self, bytes: &[u8], mut body: impl FnMut(&[u8])) -> Result<usize, Wrong> {
        let mut at = 0;
        while at < bytes.len() && self.state != State::Done {
            if let State::Data(left) = self.state {
                let some = left.min((bytes.len() - at) as u64) as usize;
                body(&bytes[at..at + some]);
                at += some;
                let left = left - some as u64;
                self.state = if left == 0 { State::DataEnd } else { State::Data(left) };
                continue;
            }
            let byte = bytes[at];
            at += 1;
            if byte != b'\n' {
                if self.line.len() >= 1024 {
                    return Err(wrong(400, "a line between chunks is too long"));
                }
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let line = line.strip_suffix(b"\r").ok_or(wrong(400, "a line between chunks ends without CR"))?;
            self.state = match self.state {
                State::Size => {
                    let digits = line.split(|b| *b == b';').next().unwrap_or_default();
                    let digits = std::str::from_utf8(digits).unwrap_or_default();
                    let good = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
                    let size =
                        Some(digits).filter(|_| good).and_then(|text| u64::from_str_radix(text, 16).ok());
                    match size.ok_or(wrong(400, "the size of a chunk is no number"))? {
                        0 => State::Trailer,
                        size => State::Data(size),
                    }
                }
                State::DataEnd if line.is_empty() => State::Size,
                State::Trailer if line.is_empty() => State::Done,
                State::Trailer => State::Trailer,
                _ => return Err(wrong(400, "a chunk is longer than it says")),
            };
        }
        Ok(at)
    }
}

/// First and last byte of a range, for a content of this size. `None`: not a single plain range, send the whole.
pub fn range_of(text: &str, size: u64) -> Option<Result<(u64, u64), Wrong>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let number =
        |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let outside = Some(Err(wrong(416, "the range lies outside")));
    let (first, last) = match (first, last) {
        ("", length) => {
            let length = number(length)?;
            if length == 0 || size == 0 {
                return outside;
            }
            (size.saturating_sub(length), size - 1)
        }
        (first, "") => (number(first)?, size.saturating_sub(1)),
        (first, last) => (number(first)?, number(last)?.min(size.saturating_sub(1))),
    };
    if first >= size || first > last { outside } else { Some(Ok((first, last))) }
}

/// The words of a status.
pub const fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        308 => "Resume Incomplete",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        410 => "Gone",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        422 => "Unprocessable Content",
        424 => "Failed Dependency",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        507 => "Insufficient Storage",
        _ => "Error",
    }
}

/// Writes the head of an answer.
pub fn answer(to: &mut String, status: u16, length: u64, keep_alive: bool, headers: &[(&str, &str)]) {
    begin(to, status);
    for (name, value) in headers {
        for part in [name, ": ", value, "\r\n"] {
            to.push_str(part);
        }
    }
    end(to, status, length, keep_alive);
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Writes the head of an answer with an entry, or with a part of it: first byte, the one behind the last, and size of the whole.
pub fn entry(to: &mut String, length: u64, keep_alive: bool, digest: Digest, part: Option<(u64, u64, u64)>) {
    let status = if part.is_some() { 206 } else { 200 };
    begin(to, status);
    to.push_str("Content-Type: application/octet-stream\r\nETag: \"");
    let mut digits = [0; 64];
    for (two, byte) in digits.chunks_exact_mut(2).zip(digest.as_bytes()) {
        two.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
    to.push_str(std::str::from_utf8(&digits).unwrap_or_default());
    to.push_str("\"\r\nAccept-Ranges: bytes\r\n");
    if let Some((first, behind, size)) = part {
        let _ = write!(to, "Content-Range: bytes {first}-{}/{size}\r\n", behind.saturating_sub(1));
    }
    end(to, status, length, keep_alive);
}

fn begin(to: &mut String, status: u16) {
    to.clear();
    to.push_str("HTTP/1.1 ");
    number(to, u64::from(status));
    to.push(' ');
    to.push_str(reason(status));
    to.push_str("\r\n");
}

fn end(to: &mut String, status: u16, length: u64, keep_alive: bool) {
    if status != 204 {
        to.push_str("Content-Length: ");
        number(to, length);
        to.push_str("\r\n");
    }
    to.push_str(if keep_alive { "\r\n" } else { "Connection: close\r\n\r\n" });
}

/// Digits, without the machinery that writes any kind of number in any way.
fn number(to: &mut String, mut number: u64) {
    let (mut digits, mut from) = ([b'0'; 20], 20);
    loop {
        from -= 1;
        digits[from] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    to.push_str(std::str::from_utf8(&digits[from..]).unwrap_or_default());
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
