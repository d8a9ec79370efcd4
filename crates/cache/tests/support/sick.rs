//! *Simulated* troubles of a cache: nobody listens, it fails, it says nothing.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};

/// An address at which nobody listens.
pub fn gone() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A server that answers every request with this, or with nothing.
pub fn sick(answer: Option<&'static str>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let Some(answer) = answer else {
                kept.push(stream);
                continue;
            };
            std::thread::spawn(move || {
                let mut buffer = [0; 8 << 10];
                while stream.read(&mut buffer).is_ok_and(|read| read > 0)
                    && stream.write_all(answer.as_bytes()).is_ok()
                {}
            });
        }
    });
    address
}
