//! The real Turborepo by way of the relay that every job of a farm has: before a cache that is well, and before one that is sick on
//! purpose. Skipped, visibly, where it is not installed (`scripts/install-clients.sh`). Turborepo by itself is in
//! `crates/cache/tests/turbo_client.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forgeyard");

fn turbo() -> Option<PathBuf> {
    let clients = std::env::var("FORGEYARD_CLIENTS").unwrap_or_else(|_| "/opt/forgeyard/clients".to_owned());
    let program = Path::new(&clients).join("node/node_modules/.bin/turbo");
    if !program.is_file() {
        println!("SKIPPED: turbo is not installed (scripts/install-clients.sh)");
    }
    program.is_file().then_some(program)
}

/// A tree of one package, whose task makes something new each time.
fn tree(folder: &Path) {
    let write = |path: &str, text: &str| {
        let path = folder.join(path);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, text).unwrap();
    };
    write(
        "package.json",
        r#"{"name":"tree","private":true,"packageManager":"npm@10.0.0","workspaces":["packages/*"]}"#,
    );
    write(
        "package-lock.json",
        r#"{"name":"tree","lockfileVersion":3,"requires":true,"packages":{"":{"name":"tree","workspaces":["packages/*"]},"node_modules/@t/a":{"resolved":"packages/a","link":true},"packages/a":{"name":"@t/a","version":"1.0.0"}}}"#,
    );
    write("turbo.json", r#"{"tasks":{"build":{"outputs":["dist/**"]}}}"#);
    write(
        "packages/a/package.json",
        r#"{"name":"@t/a","version":"1.0.0","scripts":{"build":"mkdir -p dist && cat /proc/sys/kernel/random/uuid > dist/out.txt"}}"#,
    );
}

/// Builds a new tree with the relay, by the line of the docs. What was made, and what was said.
fn build(turbo: &Path, cache: &str, token: &Path) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let script = format!(
        "TURBO_API=\"${{FORGEYARD_CACHE_URL}}-/turbo\" TURBO_TOKEN=\"$FORGEYARD_CACHE_TOKEN\" TURBO_TEAM=any \
         '{}' run build --cache=remote:rw --no-daemon",
        turbo.display()
    );
    let mut command = Command::new(PROGRAM);
    command.args(["cache", "relay", "--cache", cache, "--token-file"]).arg(token);
    command.args(["--", "bash", "-ec", &script]).current_dir(folder.path()).env("HOME", folder.path());
    command.env("TURBO_TELEMETRY_DISABLED", "1").env("DO_NOT_TRACK", "1");
    command.env_remove("FORGEYARD_CACHE_URL").env_remove("FORGEYARD_CACHE_TOKEN");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    (fs_err::read_to_string(folder.path().join("packages/a/dist/out.txt")).unwrap(), said)
}

struct Cache {
    child: Child,
    address: String,
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn turborepo_finds_the_cache_by_the_relay_of_a_job() {
    let Some(turbo) = turbo() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let scopes = "[cache]\nlisten = \"127.0.0.1:0\"\n\n[[cache.scopes]]\npath = \"p/main\"\ntrusted = true\n\n\
                  [[cache.scopes]]\npath = \"p/pr\"\nfamily = true\nparents = [\"p/main\"]\n";
    fs_err::write(path("forgeyard.toml"), scopes).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["cache", "run", "--data"]).arg(path("data")).arg("--config").arg(path("forgeyard.toml"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("http://")?.1.trim_end_matches('/').to_owned()));
    let cache = Cache { child, address: address.expect("it says where it listens") };
    let url = format!("http://{}", cache.address);
    for (name, scope) in [("main", "p/main"), ("fork", "p/pr/7")] {
        let made = Command::new(PROGRAM)
            .args(["cache", "token", scope, "--data"])
            .arg(path("data"))
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        fs_err::write(path(name), made.stdout).unwrap();
    }
    let (cold, said) = build(&turbo, &url, &path("main"));
    assert!(said.contains("0 cached, 1 total"), "{said}");
    for name in ["main", "fork"] {
        let (warm, said) = build(&turbo, &url, &path(name));
        assert_eq!(warm, cold, "{name}: {said}");
        assert!(said.contains("1 of 1 reads hit"), "{name}: {said}");
    }
}

/// *Simulated* troubles: nobody listens, silence, 500, a cache that dies after its first answers. The relay answers as an empty
/// cache does, and says nothing of it to the client.
#[test]
fn turborepo_builds_with_a_sick_cache_by_the_relay() {
    let Some(turbo) = turbo() else { return };
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs_err::write(&token, "any").unwrap();
    for sick in ["dead", "hung", "fails", "dies"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        if sick == "dead" {
            drop(listener);
        } else {
            std::thread::spawn(move || {
                let mut answered = 0;
                for mut stream in listener.incoming().flatten() {
                    let mut buffer = [0; 64 << 10];
                    while stream.read(&mut buffer).is_ok_and(|read| read > 0) {
                        answered += 1;
                        let answer = match sick {
                            "fails" => "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
                            "dies" if answered < 3 => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
                            _ => continue,
                        };
                        if stream.write_all(answer.as_bytes()).is_err() {
                            break;
                        }
                    }
                }
            });
        }
        let (_, said) = build(&turbo, &format!("http://{address}"), &token);
        assert!(
            said.contains("0 cached, 1 total") && !said.contains("temporarily unavailable"),
            "{sick}: {said}"
        );
    }
}
