//! `cargo xtask bench cache-clients`: real clients of the build cache on real trees, beside the same build without a cache.
//!
//! - **Trees.** C: the sources of zstd. Rust: tokio, hyper, clap, regex and serde_json with all that they need, about a minute on two
//!   quiet cores. Both as this workspace's own lock file pins them, by checksum, so nothing is fetched for the bench.
//! - **Clients.** ccache, sccache, Bazel (a `genrule` for each object) and Nix 2.26 (a derivation for each object) on the C tree,
//!   sccache on the Rust tree, each by way of `forgeyard cache relay`, as in a job of a farm. Server and relay are built as a release is, which takes long
//!   the first time; `FORGEYARD_PROGRAM` names another one.
//! - **Situations.** cold, warm, fork (its own scope is empty, main is warm), stranger (no token, main is public); then, in turn and
//!   three times (very short ones more often), since a machine is not the same for a quarter of an hour: none (no cache and no client), alone (ccache and sccache with
//!   nothing but an empty folder on this disk: what they cost themselves), dead (nobody listens), and with half of a cold build done: dies
//!   (killed), hangs (stopped by a signal, so the kernel takes connections and nobody answers), 5xx (what stands before it closes
//!   all connections and answers 500 from then on; that front is *simulated*, by a thread of the bench).
//!
//! `FORGEYARD_BENCH_ONLY=ccache` takes the clients with this in their name, `FORGEYARD_BENCH_SMALL=1` a part of each tree (regex
//! alone).
//!
//! Each row of the table is printed when it was measured, so a run that is interrupted shows what it got to.
//!
//! One build at a time, two processes each. CPU time is user and system, of the build, the server of sccache and the relay, but not of
//! the cache. Time of the wall says little on a busy machine; it is judged where a sick cache makes a build wait.

use crate::bench::Figure;
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often each situation is measured that is judged.
const ROUNDS: usize = 3;
/// The same for warm builds that take less than [`QUICK`].
const QUICK_ROUNDS: usize = 15;
/// Seconds in which chance weighs more than a few percent.
const QUICK: f64 = 0.8;

/// What is built with what.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Client {
    Ccache,
    SccacheC,
    Bazel,
    Nix,
    SccacheRust,
}

impl Client {
    const ALL: [Client; 5] =
        [Client::Ccache, Client::SccacheC, Client::Bazel, Client::Nix, Client::SccacheRust];

    const fn name(self) -> &'static str {
        match self {
            Client::Ccache => "ccache, zstd",
            Client::SccacheC => "sccache, zstd",
            Client::Bazel => "Bazel, zstd",
            Client::Nix => "Nix, zstd",
            Client::SccacheRust => "sccache, Rust",
        }
    }

    /// The program that it is.
    const fn program(self) -> &'static str {
        match self {
            Client::Ccache => "ccache",
            Client::Bazel => "bazel",
            Client::Nix => "nix-2.26",
            Client::SccacheC | Client::SccacheRust => "sccache",
        }
    }
}

/// In the order of the table.
const SITUATIONS: [&str; 10] =
    ["none", "alone", "cold", "warm", "fork", "stranger", "dead", "dies", "hangs", "5xx"];

/// What a build has.
#[derive(Clone, Copy)]
enum With<'a> {
    /// The compilers.
    Nothing,
    /// Its client, which keeps what it makes in a folder.
    Itself,
    /// Its client, with a relay that is started with these arguments.
    Relay(&'a [&'a str]),
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

fn find(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let clients = std::env::var("FORGEYARD_CLIENTS").unwrap_or_else(|_| "/opt/forgeyard/clients".to_owned());
    let places = std::env::split_paths(&folders).chain([Path::new(&clients).join("bin")]);
    places.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// The program, built as a release is but for the names in it.
fn released(root: &Path) -> Result<PathBuf> {
    let arguments = ["build", "--quiet", "--profile", "measure", "--package", "forgeyard"];
    if !crate::cargo::command(root, &arguments).status().context("cannot start cargo")?.success() {
        bail!("the program does not build");
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder));
    Ok(target.join("measure/forgeyard"))
}

/// The whole bench.
pub(crate) fn figures(root: &Path) -> Result<Vec<Figure>> {
    let folder = Folder(std::env::temp_dir().join(format!("forgeyard-cache-clients-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0)?;
    let program = match std::env::var_os("FORGEYARD_PROGRAM") {
        Some(program) => PathBuf::from(program),
        None => released(root)?,
    };
    let bench = Bench { root, program, sccache: find("sccache"), folder: folder.0.clone() };
    crate::cache_trees::c_tree(root, &bench.folder)?;
    let (mut figures, mut failed) = (Vec::new(), None);
    let only = std::env::var("FORGEYARD_BENCH_ONLY").unwrap_or_default();
    let chosen: Vec<Client> =
        Client::ALL.into_iter().filter(|client| client.name().contains(&only)).collect();
    println!(
        "{:<17} {:<9} {:>7} {:>7} {:>20}",
        "client, tree", "situation", "wall s", "CPU s", "reads that hit"
    );
    for (number, client) in chosen.iter().enumerate() {
        if find(client.program()).is_none() {
            println!("SKIPPED: {} (scripts/install-clients.sh)", client.name());
            continue;
        }
        eprintln!("client {} of {}: {}", number + 1, chosen.len(), client.name());
        // What was measured before counts all the same.
        if let Err(error) = bench.client(*client, &mut figures) {
            println!("{:<17} FAILED: {error:#}", client.name());
            failed = failed.or(Some(error));
        }
    }
    failed.map_or(Ok(figures), Err)
}

impl Bench<'_> {
    /// The script of one build.
    fn script(&self, client: Client, with: With<'_>) -> Result<PathBuf> {
        let cached = !matches!(with, With::Nothing);
        let here = self.folder.display();
        let sccache = self.sccache.as_deref().unwrap_or(Path::new("sccache")).display();
        let mut text = format!(
            "set -e\nrm -rf {here}/out {here}/target\nmkdir -p {here}/out\nexport CCACHE_DIR={here}/out/ccache\n"
        );
        if matches!(with, With::Itself) {
            // as the relay does it: a socket of its own
            let _ =
                writeln!(text, "export SCCACHE_DIR={here}/out/sccache SCCACHE_SERVER_UDS={here}/out/socket");
        }
        let server = cached && matches!(client, Client::SccacheC | Client::SccacheRust);
        if server {
            // In the foreground and waited for, so that its time is counted.
            let _ = write!(
                text,
                "SCCACHE_START_SERVER=1 SCCACHE_NO_DAEMON=1 {sccache} 2>{here}/sccache.log &\n\
                 for i in $(seq 200); do [ -S \"$SCCACHE_SERVER_UDS\" ] && break; sleep 0.05; done\n"
            );
        }
        let make = |compiler: &str| format!("make -s -j2 -f {here}/zstd.mk OUT={here}/out 'CC={compiler}'\n");
        let packages = if crate::cache_trees::small() {
            "-p regex"
        } else {
            "-p tokio -p hyper -p clap -p regex -p serde_json"
        };
        text += &match client {
            Client::Ccache => make(if cached { "ccache gcc" } else { "gcc" }),
            Client::SccacheC if cached => make(&format!("{sccache} gcc")),
            Client::SccacheC => make("gcc"),
            // In one process, so that its time is counted; what it unpacks of itself stays for the next build.
            Client::Bazel => format!(
                "chmod -R u+w {here}/bazel-out 2>/dev/null || true\nrm -rf {here}/bazel-out\ncd {here}/workspace\n\
                 bazel --batch --output_user_root={here}/bazel-root --output_base={here}/bazel-out{} \
                 build --jobs=2 --spawn_strategy=local --color=no --curses=no --noshow_progress //:all\n",
                if cached { " --bazelrc=\"$FORGEYARD_BAZELRC\"" } else { "" }
            ),
            Client::Nix => self.nix_script(cached),
            Client::SccacheRust => {
                let wrapper = if cached {
                    format!("RUSTC_WRAPPER={sccache} ")
                } else {
                    "unset RUSTC_WRAPPER; ".to_owned()
                };
                format!(
                    "cd {}\n{wrapper}CARGO_INCREMENTAL=0 cargo build --quiet --offline --locked -j2 {packages} --target-dir {here}/target\n",
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

    /// A build of Nix in a store that is empty before, and what it made pushed. A cache that does not answer takes nothing, which
    /// its relay says.
    fn nix_script(&self, cached: bool) -> String {
        let here = self.folder.display();
        let nix = find("nix-2.26").unwrap_or_else(|| PathBuf::from("nix-2.26"));
        let nix = format!("{} --store {here}/out/store", nix.display());
        let settings = "experimental-features = nix-command\nbuild-hook =\nbuild-users-group =\nsandbox = true\nsubstituters =\n\
                        sandbox-paths = /bin/sh=/bin/busybox /usr /lib /lib64\nmax-jobs = 2\nrequire-sigs = false\n";
        let push = format!(
            "{nix} copy --quiet --to \"${{FORGEYARD_CACHE_URL}}$(cat {here}/place)/nix?compression=zstd\" $(cat {here}/out/paths) 2>/dev/null || true\n"
        );
        format!(
            "export HOME={here}/out XDG_CACHE_HOME={here}/out/cache\nNIX_CONFIG=\"{settings}$NIX_CONFIG\"\nexport NIX_CONFIG\n\
             {nix} build --quiet -f {here}/zstd.nix --no-link --print-out-paths > {here}/out/paths\n\
             [ $(wc -l < {here}/out/paths) -ge 10 ]\n{}chmod -R u+w {here}/out/store\n",
            if cached { push.as_str() } else { "" }
        )
    }

    /// One build.
    fn build(&self, client: Client, with: With<'_>) -> Result<Went> {
        let script = self.script(client, with)?;
        let mut command = match with {
            With::Nothing | With::Itself => Command::new("sh"),
            With::Relay(arguments) => {
                let mut command = Command::new(&self.program);
                command.args(["cache", "relay"]).args(arguments).args(["--", "sh"]);
                command
            }
        };
        // where the relay has the scope that is addressed, for who pushes
        let relay = if let With::Relay(arguments) = with { arguments } else { &[] };
        let scope = Some(relay).and_then(|all| all.iter().skip_while(|word| **word != "--scope").nth(1));
        std::fs::write(
            self.folder.join("place"),
            scope.map_or("-".to_owned(), |scope| format!("{scope}/-")),
        )?;
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

    /// A cache of its own in this folder, and its address.
    fn serve(&self, data: &str) -> Result<(Running, String)> {
        let config = self.folder.join("forgeyard.toml");
        let text = "[cache]\nlisten = \"127.0.0.1:0\"\ncapacity-gib = 4\n\
                    [[cache.scopes]]\npath = \"p/main\"\ntrusted = true\nread = \"public\"\n\
                    [[cache.scopes]]\npath = \"p/pr\"\nfamily = true\nparents = [\"p/main\"]\n\
                    [[cache.scopes]]\npath = \"p/other\"\n";
        std::fs::write(&config, text)?;
        let _ = std::fs::remove_dir_all(data);
        let mut server = Command::new(&self.program);
        server.args(["cache", "run", "--data", data, "--config"]).arg(&config).env("FORGEYARD_LOG", "warn");
        let mut server = Running(server.stdout(Stdio::piped()).spawn()?);
        let out = server.0.stdout.take().context("no output")?;
        let mut heard = BufReader::new(out).lines().map_while(Result::ok);
        let url = heard
            .find_map(|line| Some(format!("http://{}", line.split_once("http://")?.1.trim_end_matches('/'))));
        Ok((server, url.context("the cache does not start")?))
    }

    fn client(&self, client: Client, figures: &mut Vec<Figure>) -> Result<()> {
        let data = self.folder.join("data").display().to_string();
        let (server, url) = self.serve(&data)?;
        let mut all: Vec<(&'static str, Went)> = Vec::new();
        let run =
            |all: &mut Vec<(&'static str, Went)>, situation: &'static str, with: With<'_>| -> Result<()> {
                eprintln!("  {situation} …");
                let went = self.build(client, with)?;
                println!(
                    "{:<17} {situation:<9} {:>7.1} {:>7.1} {:>20}",
                    client.name(),
                    went.wall.as_secs_f64(),
                    went.cpu,
                    went.said.split(" reads hit").next().unwrap_or_default(),
                );
                let _ = std::io::stdout().flush();
                all.push((situation, went));
                Ok(())
            };
        let (main, fork) = (self.token(&data, "p/main")?, self.token(&data, "p/pr/7")?);
        let with = |url: &str, token: &str| ["--cache", url, "--token-file", token].map(str::to_owned);
        let of = |all: &mut Vec<_>, situation, arguments: &[String]| {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            run(all, situation, With::Relay(&arguments))
        };
        of(&mut all, "cold", &with(&url, &main))?;
        let before = self.entries(&url, &data, "p/main")?;
        for round in 0..QUICK_ROUNDS {
            of(&mut all, "warm", &with(&url, &main))?;
            of(&mut all, "fork", &with(&url, &fork))?;
            if round + 1 >= ROUNDS && middle(&all, "warm", |went| went.wall.as_secs_f64()) > QUICK {
                break;
            }
        }
        run(&mut all, "stranger", With::Relay(&["--cache", &url, "--scope", "p/main"]))?;
        if self.entries(&url, &data, "p/main")? != before {
            bail!("{}: a fork or a stranger wrote to main", client.name());
        }
        drop(server);

        let gone = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        for _ in 0..ROUNDS {
            run(&mut all, "none", With::Nothing)?;
            // the others are what builds without a cache as well
            if matches!(client, Client::Ccache | Client::SccacheC | Client::SccacheRust) {
                run(&mut all, "alone", With::Itself)?;
            }
            of(&mut all, "dead", &with(&format!("http://{gone}"), &main))?;
            let half = Duration::from_secs_f64(middle(&all, "none", |went| went.wall.as_secs_f64()) / 2.0);
            for (situation, signal) in [("dies", Some("-KILL")), ("hangs", Some("-STOP")), ("5xx", None)] {
                let (server, url) = self.serve(&data)?;
                let other = self.token(&data, "p/other")?;
                let turns = Instant::now() + half;
                let url = if signal.is_some() { url } else { format!("http://{}", front(&url, turns)?) };
                let id = server.0.id().to_string();
                let trouble = signal.map(|signal| {
                    std::thread::spawn(move || {
                        std::thread::sleep(half);
                        Command::new("kill").args([signal, &id]).status()
                    })
                });
                let went = of(&mut all, situation, &with(&url, &other));
                let _ = trouble.map(std::thread::JoinHandle::join);
                went?;
            }
        }
        run(&mut all, "none", With::Nothing)?;
        judge(client, &all, figures);
        Ok(())
    }
}

/// Prints each situation beside no cache, and takes the figures that are judged: those in the middle of several.
fn judge(client: Client, all: &[(&'static str, Went)], figures: &mut Vec<Figure>) {
    let cpu = |situation: &str| middle(all, situation, |went| went.cpu);
    let wall = |situation: &str| middle(all, situation, |went| went.wall.as_secs_f64());
    let mut seen: Vec<&str> = all.iter().map(|(situation, _)| *situation).collect();
    seen.sort_unstable();
    seen.dedup();
    for situation in SITUATIONS.into_iter().filter(|one| seen.contains(one)) {
        println!(
            "{:<17} {situation:<9} {:>7.2} {:>7.2} of none",
            client.name(),
            wall(situation) / wall("none"),
            cpu(situation) / cpu("none"),
        );
    }
    let mut figure = |text: String, (value, unit): (f64, &str), peer: (&str, f64), aim: Option<f64>| {
        figures.push(Figure {
            text: format!("{}: {text}", client.name()),
            value,
            unit: unit.to_owned(),
            peer: Some((peer.0.to_owned(), peer.1)),
            aim: aim.map(|aim| ("at most".to_owned(), aim * peer.1)),
        });
    };
    let none = ("none", cpu("none"));
    if seen.contains(&"alone") {
        figure("what it costs itself, beside none".to_owned(), (cpu("alone"), "s CPU"), none, None);
    }
    figure("warm beside none (9 of 30 minutes)".to_owned(), (cpu("warm"), "s CPU"), none, Some(0.3));
    figure("fork beside warm".to_owned(), (cpu("fork"), "s CPU"), ("warm", cpu("warm")), Some(1.05));
    for name in ["dead", "dies", "hangs", "5xx"] {
        figure(format!("cache {name}, beside none"), (cpu(name), "s CPU"), none, Some(1.1));
        figure(
            format!("cache {name}, beside none"),
            (wall(name), "s wall"),
            ("none", wall("none")),
            Some(1.1),
        );
    }
}

/// The one in the middle of all that were measured in a situation; of two, the mean.
fn middle(all: &[(&'static str, Went)], situation: &str, of: impl Fn(&Went) -> f64) -> f64 {
    let mut found: Vec<f64> =
        all.iter().filter(|(one, _)| *one == situation).map(|(_, went)| of(went)).collect();
    found.sort_unstable_by(f64::total_cmp);
    let at = |index: usize| found.get(index).copied().unwrap_or(f64::NAN);
    f64::midpoint(at(found.len().saturating_sub(1) / 2), at(found.len() / 2))
}

/// What stands before a cache: it passes bytes on until this moment, then closes all connections and says 500 to everything.
fn front(cache: &str, turns: Instant) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let cache = cache.trim_start_matches("http://").to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let cache = cache.clone();
            std::thread::spawn(move || {
                if Instant::now() < turns {
                    let _ = pass_on(&stream, &cache, turns);
                } else {
                    let _ = refuse(stream);
                }
            });
        }
    });
    Ok(address)
}

fn pass_on(stream: &TcpStream, cache: &str, turns: Instant) -> std::io::Result<()> {
    let behind = TcpStream::connect(cache)?;
    for (from, to) in [(stream, &behind), (&behind, stream)] {
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    std::thread::sleep(turns.saturating_duration_since(Instant::now()));
    stream.shutdown(Shutdown::Both)?;
    behind.shutdown(Shutdown::Both)
}

fn refuse(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = [0; 64 << 10];
    while stream.read(&mut buffer)? > 0 {
        stream.write_all(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")?;
    }
    Ok(())
}
