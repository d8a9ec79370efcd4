//! A private PostgreSQL for tests: made in a temporary folder, reachable by a socket in that folder only, gone with the
//! process. It syncs to disk like any other.
//!
//! `FORGEYARD_TEST_POSTGRES` names a server to use instead (each test gets a schema of its own there);
//! `FORGEYARD_POSTGRES_BIN` names the folder of the programs. Where there is neither, a test prints `SKIPPED`, and
//! fails when `FORGEYARD_REQUIRE_POSTGRES` is set.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

const SUPERVISE: &str = include_str!("supervise.sh");

/// A private server.
#[derive(Debug)]
pub struct Cluster {
    folder: PathBuf,
    // Declared before the child: closing the input is what ends it.
    pipe: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    child: Child,
}

impl Cluster {
    /// Makes and starts one.
    pub fn start() -> io::Result<Cluster> {
        let programs = programs().ok_or_else(|| {
            io::Error::other(
                "no PostgreSQL programs found: install postgresql, or set FORGEYARD_POSTGRES_BIN",
            )
        })?;
        // The supervisor removes it.
        let folder = tempfile::Builder::new().prefix("fy-pg-").tempdir()?.keep();
        let mut child = Command::new("sh")
            .args(["-c", SUPERVISE, "forgeyard-test-postgres"])
            .args([&programs, &folder])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the supervisor of PostgreSQL has no pipes"));
        };
        let cluster = Cluster { folder, pipe: Mutex::new((input, BufReader::new(output))), child };
        cluster.tell("init")?;
        cluster.tell("start")?;
        Ok(cluster)
    }

    /// URL of its database.
    pub fn url(&self) -> String {
        format!("postgres:///postgres?user=postgres&host={}", self.folder.display())
    }

    /// Stops the server; connections are ended in order.
    pub fn stop(&self) -> io::Result<()> {
        self.tell("stop")
    }

    /// Kills the server as a crash would.
    pub fn kill(&self) -> io::Result<()> {
        self.tell("kill")
    }

    /// Starts the stopped server again.
    pub fn resume(&self) -> io::Result<()> {
        self.tell("start")
    }

    fn tell(&self, word: &str) -> io::Result<()> {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(pipe.0, "{word}")?;
        pipe.0.flush()?;
        let mut answer = String::new();
        pipe.1.read_line(&mut answer)?;
        if answer.trim() == "ok" {
            return Ok(());
        }
        let log = fs_err::read_to_string(self.folder.join("control.log")).unwrap_or_default();
        Err(io::Error::other(format!("PostgreSQL did not {word}: {log}")))
    }

    /// Ends the server and waits until its folder is gone.
    pub fn end(self) -> io::Result<()> {
        let Cluster { pipe, mut child, .. } = self;
        drop(pipe);
        child.wait().map(|_| ())
    }
}

/// Folder of the server's programs.
fn programs() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("FORGEYARD_POSTGRES_BIN") {
        return Some(folder.into());
    }
    let mut folders: Vec<PathBuf> = fs_err::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(Result::ok)
        .map(|entry| entry.path().join("bin"))
        .filter(|folder| folder.join("initdb").exists())
        .collect();
    folders.sort();
    folders.pop()
}

/// A schema of its own on a server, for one test.
#[derive(Debug)]
pub struct Schema {
    /// URL to open.
    pub url: String,
    name: String,
    server: String,
    leave_nothing: bool,
}

impl Schema {
    /// Makes one on the server at this URL.
    pub async fn create(server: &str, leave_nothing: bool) -> Result<Schema, sqlx::Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("forgeyard_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        run(server, format!("drop schema if exists {name} cascade; create schema {name}")).await?;
        let mark = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{mark}options[search_path]={name}");
        Ok(Schema { url, name, server: server.to_owned(), leave_nothing })
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        if !self.leave_nothing {
            return;
        }
        let (server, sql) = (self.server.clone(), format!("drop schema if exists {} cascade", self.name));
        // In a thread, because this may run inside a runtime. A schema that stays behind is only untidy.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map(|runtime| runtime.block_on(run(&server, sql)))
        });
        let _ = dropping.join();
    }
}

async fn run(server: &str, sql: String) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(server).await?;
    connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
    connection.close().await
}

/// A fresh, empty PostgreSQL schema, from a server that all tests of the process share. Without a server the reason is
/// printed and there is none.
pub async fn schema() -> Option<Schema> {
    static SHARED: OnceLock<Result<Cluster, String>> = OnceLock::new();
    if let Ok(server) = std::env::var("FORGEYARD_TEST_POSTGRES") {
        return answer(Schema::create(&server, true).await.map_err(|error| error.to_string()));
    }
    match SHARED.get_or_init(|| Cluster::start().map_err(|error| error.to_string())) {
        Ok(cluster) => answer(Schema::create(&cluster.url(), false).await.map_err(|error| error.to_string())),
        Err(reason) => answer(Err(reason.clone())),
    }
}

/// A private server that a test may stop and start. Without one the reason is printed and there is none.
pub fn cluster() -> Option<Cluster> {
    answer(Cluster::start().map_err(|error| error.to_string()))
}

fn answer<T>(found: Result<T, String>) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(reason) => {
            let required = std::env::var_os("FORGEYARD_REQUIRE_POSTGRES").is_some();
            assert!(!required, "PostgreSQL is required and not there: {reason}");
            // Past the test harness, which hides what a passing test prints.
            let _ = writeln!(io::stderr(), "SKIPPED: no PostgreSQL: {reason}");
            None
        }
    }
}
