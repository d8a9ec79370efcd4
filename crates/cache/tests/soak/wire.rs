//! A connection that sends what it is told.

use super::*;

/// A connection that says when it broke.
pub(super) struct Wire {
    pub(super) stream: TcpStream,
    pub(super) token: String,
}

impl Wire {
    pub(super) fn open(address: SocketAddr, token: &str) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, token: token.to_owned() })
    }

    pub(super) fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> std::io::Result<(u16, Vec<u8>)> {
        let length = body.map_or(0, <[u8]>::len);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nContent-Length: {length}\r\n\r\n",
            self.token
        );
        self.stream.write_all(&[head.as_bytes(), body.unwrap_or_default()].concat())?;
        let broken = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let (mut all, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        let end = loop {
            if let Some(end) = all.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            match self.stream.read(&mut buffer)? {
                0 => return Err(broken()),
                read => all.extend_from_slice(&buffer[..read]),
            }
        };
        let head = String::from_utf8(all.drain(..end).collect()).unwrap();
        let status = head[9..12].parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let length = length.map_or(0, |text| text.parse::<usize>().unwrap());
        while all.len() < length {
            match self.stream.read(&mut buffer)? {
                0 => return Err(broken()),
                read => all.extend_from_slice(&buffer[..read]),
            }
        }
        if head.contains("Connection: close") {
            self.stream.shutdown(std::net::Shutdown::Both)?;
        }
        Ok((status, all))
    }
}
