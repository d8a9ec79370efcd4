//! `cargo xtask bench cache-clients`: real clients of the build cache on real trees, beside the same build without a cache.
//!
//! - **Trees.** C: the sources of zstd. Rust: reqwest and all that it needs. Both as this workspace's own lock file pins them, by
//!   checksum, so nothing is fetched for the bench.
//! - **Clients.** ccache and sccache on the C tree, sccache on the Rust tree, each by way of `forgeyard cache relay`, as in a
//!   job of a farm. The server is the program of this checkout in its development profile.
//! - **Situations.** none, cold, warm, fork (its own scope is empty, main is warm), stranger (no token, main is public), dead
//!   (nobody listens), hung (it takes connections and says nothing), 5xx, dies (killed with half of a cold build done).
//!
//! `FORGEYARD_BENCH_ONLY=ccache` takes the clients with this in their name, `FORGEYARD_BENCH_SMALL=1` a part of each tree (regex in
//! the place of reqwest).
//!
//! One build at a time, two processes each. Time of the wall says little on a busy machine, so what is judged is CPU time:
//! user and system, of the build, the server of sccache and the relay, but not of the cache.

use crate::bench::Figure;
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What is built with what.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Client {
    Ccache,
    SccacheC,
    SccacheRust,
}

impl Client {
    const ALL: [Client; 3] = [Client::Ccache, Client::SccacheC, Client::SccacheRust];

    const fn name(self) -> &'static str {
        match self {
            Client::Ccache => "ccache, zstd",
            Client::SccacheC => "sccache, zstd",
            Client::SccacheRust => "sccache, Rust",
        }
    }
}

/// How it went.
struct Went {
    wall: Duration,
    cpu: f64,
    /// What the relay said.
    said: String,
}

/// A folder that goes when the bench is over.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child that ends with the bench.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Bench<'b> {
    root: &'b Path,
    program: PathBuf,
    sccache: Option<PathBuf>,
    folder: PathBuf,
}

/// User and system time of all children that were waited for, in seconds.
fn spent() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    // Fields 16 and 17 of the file; the third is the first after the name. A tick is a hundredth of a second on Linux.
    fields.skip(13).take(2).filter_map(|text| text.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Whether only a part of each tree is built, for a look in a few minutes.
fn small() -> bool {
    std::env::var_os("FORGEYARD_BENCH_SMALL").is_some()
}

fn find(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let clients = std::env::var("FORGEYARD_CLIENTS").unwrap_or_else(|_| "/opt/forgeyard/clients".to_owned());
    let places = std::env::split_paths(&folders).chain([Path::new(&clients).join("bin")]);
    places.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Where cargo keeps the sources of a package of the lock file.
fn sources(root: &Path, package: &str) -> Result<PathBuf> {
    let arguments = ["metadata", "--format-version", "1", "--offline"];
    let output = crate::cargo::command(root, &arguments).stderr(Stdio::inherit()).output()?;
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let found = all["packages"].as_array().into_iter().flatten().find(|one| one["name"] == package);
    let manifest = found.and_then(|one| one["manifest_path"].as_str());
    let manifest = manifest.with_context(|| format!("{package} is not in the lock file"))?;
    Ok(Path::new(manifest).parent().unwrap_or(root).to_owned())
}

/// The whole bench.
pub(crate) fn figures(root: &Path) -> Result<Vec<Figure>> {
    let folder = Folder(std::env::temp_dir().join(format!("forgeyard-cache-clients-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0)?;
    let program = match std::env::var_os("FORGEYARD_PROGRAM") {
        Some(program) => PathBuf::from(program),
        None => crate::idle::built(root)?,
    };
    let bench = Bench { root, program, sccache: find("sccache"), folder: folder.0.clone() };
    bench.c_tree()?;
    let (mut lines, mut figures, mut failed) = (Vec::new(), Vec::new(), None);
    let only = std::env::var("FORGEYARD_BENCH_ONLY").unwrap_or_default();
    for client in Client::ALL {
        let there = match client {
            Client::Ccache => find("ccache").is_some(),
            _ => bench.sccache.is_some(),
        };
        if !there {
            println!("SKIPPED: {} (scripts/install-clients.sh)", client.name());
            continue;
        }
        if client.name().contains(&only) {
            // What was measured before is printed all the same.
            failed = failed.or(bench.client(client, &mut lines, &mut figures).err());
        }
    }
    println!(
        "{:<17} {:<9} {:>7} {:>7} {:>6} {:>6}  reads that hit",
        "client, tree", "situation", "wall s", "CPU s", "wall", "CPU"
    );
    for line in lines {
        println!("{line}");
    }
    println!("the columns `wall` and `CPU` are ratios to the same build without a cache");
    failed.map_or(Ok(figures), Err)
}

impl Bench<'_> {
    /// Copies the sources of zstd, and writes a file for make: every object as it is, and with -fPIC, as for a library.
    fn c_tree(&self) -> Result<()> {
        let zstd = sources(self.root, "zstd-sys")?.join("zstd/lib");
        let (mut objects, mut rules) = (Vec::new(), String::new());
        let parts = ["common", "decompress", "dictBuilder", "deprecated", "compress", "legacy"];
        for part in if small() { &parts[..4] } else { &parts[..] } {
            let Ok(entries) = std::fs::read_dir(zstd.join(part)) else { continue };
            for path in entries.flatten().map(|entry| entry.path()) {
                let (Some(name), true) = (path.file_stem(), path.extension().is_some_and(|end| end == "c"))
                else {
                    continue;
                };
                for (kind, flag) in
                    [("static", ""), ("shared", "-fPIC")].into_iter().take(if small() { 1 } else { 2 })
                {
                    let object = format!("$(OUT)/{part}-{}.{kind}.o", name.to_string_lossy());
                    let _ = writeln!(
                        rules,
                        "{object}:\n\t$(CC) -O3 {flag} -DZSTD_LEGACY_SUPPORT=1 -DZSTD_MULTITHREAD -DZSTD_DISABLE_ASM \
                         -I{0} -I{0}/common -c {1} -o $@",
                        zstd.display(),
                        path.display()
                    );
                    objects.push(object);
                }
            }
        }
        if objects.len() < 10 {
            bail!("{} holds no sources of zstd", zstd.display());
        }
        let text = format!("all: {}\n{rules}", objects.join(" "));
        Ok(std::fs::write(self.folder.join("zstd.mk"), text)?)
    }

    /// The script of one build.
    fn script(&self, client: Client, cached: bool) -> Result<PathBuf> {
        let here = self.folder.display();
        let sccache = self.sccache.as_deref().unwrap_or(Path::new("sccache")).display();
        let mut text = format!(
            "set -e\nrm -rf {here}/out {here}/target\nmkdir -p {here}/out\nexport CCACHE_DIR={here}/out/ccache\n"
        );
        let server = cached && client != Client::Ccache;
        if server {
            // In the foreground and waited for, so that its time is counted.
            let _ = write!(
                text,
                "SCCACHE_START_SERVER=1 SCCACHE_NO_DAEMON=1 {sccache} 2>{here}/sccache.log &\n\
                 for i in $(seq 200); do [ -S \"$SCCACHE_SERVER_UDS\" ] && break; sleep 0.05; done\n"
            );
        }
        let make = |compiler: &str| format!("make -s -j2 -f {here}/zstd.mk OUT={here}/out 'CC={compiler}'\n");
        let package = if small() { "regex" } else { "reqwest" };
        text += &match client {
            Client::Ccache => make(if cached { "ccache gcc" } else { "gcc" }),
            Client::SccacheC if cached => make(&format!("{sccache} gcc")),
            Client::SccacheC => make("gcc"),
            Client::SccacheRust => {
                let wrapper = if cached {
                    format!("RUSTC_WRAPPER={sccache} ")
                } else {
                    "unset RUSTC_WRAPPER; ".to_owned()
                };
                format!(
                    "cd {}\n{wrapper}CARGO_INCREMENTAL=0 cargo build --quiet --offline --locked -j2 -p {package} --target-dir {here}/target\n",
                    self.root.display()
                )
            }
        };
        if server {
            let _ = write!(text, "{sccache} --stop-server >/dev/null\nwait\n");
        }
        let path = self.folder.join("build.sh");
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// One build; `relay` are the arguments of the relay, when it has a cache.
    fn build(&self, client: Client, relay: Option<&[&str]>) -> Result<Went> {
        let script = self.script(client, relay.is_some())?;
        let mut command = match relay {
            None => Command::new("sh"),
            Some(arguments) => {
                let mut command = Command::new(&self.program);
                command.args(["cache", "relay"]).args(arguments).args(["--", "sh"]);
                command
            }
        };
        let (begin, before) = (Instant::now(), spent());
        let output =
            command.arg(&script).env_remove("FORGEYARD_CACHE_TOKEN").env_remove("MAKEFLAGS").output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            let log = std::fs::read_to_string(self.folder.join("sccache.log")).unwrap_or_default();
            bail!("a build was not green: {}\n{said}\n{log}", client.name());
        }
        let said = said.lines().rev().find_map(|line| line.strip_prefix("cache: ")).unwrap_or("-").to_owned();
        Ok(Went { wall: begin.elapsed(), cpu: spent() - before, said })
    }

    fn token(&self, data: &str, scope: &str) -> Result<String> {
        let output = Command::new(&self.program).args(["cache", "token", scope, "--data", data]).output()?;
        let file = self.folder.join(scope.replace('/', "-"));
        std::fs::write(&file, output.stdout)?;
        Ok(file.display().to_string())
    }

    /// Entries of a scope.
    fn entries(&self, url: &str, data: &str, scope: &str) -> Result<usize> {
        let arguments = ["cache", "ls", scope, "--json", "--cache", url, "--data", data];
        let output = Command::new(&self.program).args(arguments).output()?;
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).context("cache ls")?;
        Ok(all.as_array().map_or(0, Vec::len))
    }

    fn client(&self, client: Client, lines: &mut Vec<String>, figures: &mut Vec<Figure>) -> Result<()> {
        let config = self.folder.join("forgeyard.toml");
        let text = "[cache]\nlisten = \"127.0.0.1:0\"\ncapacity-gib = 4\n\
                    [[cache.scopes]]\npath = \"p/main\"\ntrusted = true\nread = \"public\"\n\
                    [[cache.scopes]]\npath = \"p/pr\"\nfamily = true\nparents = [\"p/main\"]\n\
                    [[cache.scopes]]\npath = \"p/other\"\n";
        std::fs::write(&config, text)?;
        let data = self.folder.join("data");
        let _ = std::fs::remove_dir_all(&data);
        let data = data.display().to_string();
        let mut server = Command::new(&self.program);
        server.args(["cache", "run", "--data", &data, "--config"]).arg(&config).env("FORGEYARD_LOG", "warn");
        let mut server = Running(server.stdout(Stdio::piped()).spawn()?);
        let out = server.0.stdout.take().context("no output")?;
        let mut heard = BufReader::new(out).lines().map_while(Result::ok);
        let url = heard
            .find_map(|line| Some(format!("http://{}", line.split_once("http://")?.1.trim_end_matches('/'))));
        let url = url.context("the cache does not start")?;

        let none = self.build(client, None)?;
        let mut add = |situation: &str, went: &Went| {
            eprintln!(
                "{}: {situation}: {:.1} s, CPU {:.1} s, {}",
                client.name(),
                went.wall.as_secs_f64(),
                went.cpu,
                went.said
            );
            lines.push(format!(
                "{:<17} {situation:<9} {:>7.1} {:>7.1} {:>6.2} {:>6.2}  {}",
                client.name(),
                went.wall.as_secs_f64(),
                went.cpu,
                went.wall.as_secs_f64() / none.wall.as_secs_f64(),
                went.cpu / none.cpu,
                went.said.split(" reads hit").next().unwrap_or_default(),
            ));
        };
        let mut judge = |text: &str, value: f64, peer: (&str, f64), aim: f64| {
            figures.push(Figure {
                text: format!("{}: {text}", client.name()),
                value,
                unit: "s CPU".to_owned(),
                peer: Some((peer.0.to_owned(), peer.1)),
                aim: Some(("at most".to_owned(), aim * peer.1)),
            });
        };
        add("none", &none);
        let (main, fork) = (self.token(&data, "p/main")?, self.token(&data, "p/pr/7")?);
        let with = |file: &str| ["--cache", &url, "--token-file", file].map(str::to_owned);
        let of = |arguments: &[String]| -> Result<Went> {
            self.build(client, Some(&arguments.iter().map(String::as_str).collect::<Vec<_>>()))
        };
        add("cold", &of(&with(&main))?);
        let warm = of(&with(&main))?;
        add("warm", &warm);
        judge("warm beside none (9 of 30 minutes)", warm.cpu, ("none", none.cpu), 0.3);
        let before = self.entries(&url, &data, "p/main")?;
        let forked = of(&with(&fork))?;
        add("fork", &forked);
        judge("fork beside warm", forked.cpu, ("warm", warm.cpu), 1.05);
        let stranger = ["--cache", &url, "--scope", "p/main"].map(str::to_owned);
        add("stranger", &of(&stranger)?);
        if self.entries(&url, &data, "p/main")? != before {
            bail!("{}: a fork or a stranger wrote to main", client.name());
        }

        let elsewhere = |address: SocketAddr| {
            ["--cache".to_owned(), format!("http://{address}"), "--token-file".to_owned(), main.clone()]
        };
        let free = TcpListener::bind("127.0.0.1:0")?;
        let address = free.local_addr()?;
        drop(free);
        let mut trouble = vec![("dead", of(&elsewhere(address))?)];
        for (name, answers) in [("hung", false), ("5xx", true)] {
            trouble.push((name, of(&elsewhere(sick(answers)?))?));
        }
        let other = self.token(&data, "p/other")?;
        let half = none.wall / 2;
        let id = server.0.id().to_string();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(half);
            Command::new("kill").args(["-9", &id]).status()
        });
        trouble.push(("dies", of(&with(&other))?));
        let _ = killer.join();
        for (name, went) in trouble {
            add(name, &went);
            judge(&format!("cache {name}, beside none"), went.cpu, ("none", none.cpu), 1.1);
        }
        Ok(())
    }
}

/// A server that takes connections and says nothing, or that says 500 to everything.
fn sick(answers: bool) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut stream in listener.incoming().flatten() {
            if !answers {
                kept.push(stream);
                continue;
            }
            std::thread::spawn(move || {
                let mut buffer = [0; 64 << 10];
                while stream.read(&mut buffer).is_ok_and(|read| read > 0) {
                    let answer = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(address)
}
