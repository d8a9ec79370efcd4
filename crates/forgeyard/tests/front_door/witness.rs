//! What a step of a job calls, and whose answer it waits for.

use crate::door::PATIENCE;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Hears of every step that runs in any machine.
pub(crate) struct Witness(TcpListener);

/// A step that waits for its answer.
pub(crate) struct Step {
    /// The repository whose job it is of, as the step itself says.
    pub(crate) repository: String,
    stream: BufReader<TcpStream>,
}

impl Witness {
    pub(crate) async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    /// The next step.
    pub(crate) async fn step(&self) -> Step {
        let called = tokio::time::timeout(PATIENCE, self.0.accept()).await;
        let (stream, _) = called.expect("no step runs").unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        Step { repository: line.trim().to_owned(), stream }
    }

    /// Whether a step has called that nobody asked about.
    pub(crate) async fn more(&self) -> bool {
        tokio::time::timeout(Duration::from_millis(1), self.0.accept()).await.is_ok()
    }
}

impl Step {
    /// Lets it go on.
    pub(crate) async fn go_on(mut self) {
        self.stream.write_all(b"go on\n").await.unwrap();
    }
}
