//! A cache that is sick on purpose: a thread of the test. *Simulated*, as its troubles are.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sick {
    /// Nobody listens.
    Dead,
    /// It takes connections and says nothing.
    Hung,
    /// It answers 500 to everything.
    Fails,
    /// It answers a few requests, and then never again.
    Dies,
    /// It breaks off in the middle of each answer.
    Tears,
}

pub(crate) const ALL: [Sick; 5] = [Sick::Dead, Sick::Hung, Sick::Fails, Sick::Dies, Sick::Tears];

/// Requests that a dying cache answers.
pub(crate) const LAST: usize = 3;

/// A cache of this kind; how many requests it heard.
pub(crate) fn cache(sick: Sick) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, heard) = (format!("http://{}", listener.local_addr().unwrap()), Arc::new(AtomicUsize::new(0)));
    if sick == Sick::Dead {
        return (url, heard);
    }
    let count = Arc::clone(&heard);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let count = Arc::clone(&count);
            std::thread::spawn(move || serve(stream, sick, &count));
        }
    });
    (url, heard)
}

fn serve(mut stream: TcpStream, sick: Sick, count: &AtomicUsize) {
    let mut buffer = vec![0; 64 << 10];
    while stream.read(&mut buffer).is_ok_and(|read| read > 0) {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let answer = match sick {
            Sick::Fails => "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
            Sick::Tears => "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nPK\x03\x04 begins",
            Sick::Dies if number < LAST => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            _ => {
                std::thread::park();
                continue;
            }
        };
        if stream.write_all(answer.as_bytes()).is_err() || sick == Sick::Tears {
            return;
        }
    }
}
