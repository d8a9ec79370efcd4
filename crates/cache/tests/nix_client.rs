//! The real Nix, with a key that the cache holds: paths are pushed without a signature and read by stores that ask for one.
//! Skipped, visibly, where it is not installed (`scripts/install-clients.sh`).
//!
//! The paths are not content-addressed: Nix believes those without any signature, and they would show nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::service::start;
use forgeyard_cache::signature::Signer;
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::token::Access;
use forgeyard_model::Secret;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::{options, token, write_authority};

const ONE: &str = "/nix/store/00000000000000000000000000000abc-one";
const TWO: &str = "/nix/store/00000000000000000000000000000abd-two";

/// A store, with a home and the token of its user.
struct Place(PathBuf);

impl Place {
    fn new(folder: &Path, name: &str, token: Option<&str>) -> Self {
        let place = folder.join(name);
        fs_err::create_dir_all(&place).unwrap();
        let netrc =
            token.map_or_else(String::new, |token| format!("machine 127.0.0.1 login any password {token}\n"));
        fs_err::write(place.join("netrc"), netrc).unwrap();
        Self(place)
    }

    fn command(&self, program: &str) -> Command {
        let config = "experimental-features = nix-command\nbuild-users-group =\nsubstituters =\nsandbox = false\nnetrc-file = ";
        let mut command = Command::new(program);
        command.env("NIX_CONFIG", format!("{config}{}", self.0.join("netrc").display()));
        command.env("HOME", &self.0).env("XDG_CACHE_HOME", self.0.join("cache"));
        command
    }

    fn nix(&self, arguments: &[&str]) -> Output {
        let mut command = self.command("nix");
        command.arg("--store").arg(self.0.join("root")).args(arguments).output().unwrap()
    }

    /// Brings a path into the store that nobody signed, as an import by root does.
    fn import(&self, path: &str, content: &str, references: &[&str]) {
        let mut bytes = 1u64.to_le_bytes().to_vec();
        for part in ["nix-archive-1", "(", "type", "regular", "contents", content, ")"] {
            word(&mut bytes, part);
        }
        bytes.extend_from_slice(&0x4558_494eu64.to_le_bytes());
        word(&mut bytes, path);
        bytes.extend_from_slice(&(references.len() as u64).to_le_bytes());
        for reference in references {
            word(&mut bytes, reference);
        }
        word(&mut bytes, "");
        bytes.extend_from_slice(&[0; 16]);
        let mut command = self.command("nix-store");
        command.arg("--store").arg(self.0.join("root")).arg("--import").stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

/// A text in an archive of Nix: its length, itself, zeros up to eight bytes.
fn word(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

fn good(output: &Output) {
    assert!(output.status.success(), "{}", text(output));
}

/// nix#16175 (a pusher and its own path), nix#1885 (a second content), nix#781 (a path that was just pushed).
#[test]
fn nix_16175_path_pushed_without_a_key_is_read_by_stores_that_ask_for_the_key_of_the_scope() {
    let folder = tempfile::tempdir().unwrap();
    let pusher = Place::new(folder.path(), "pusher", Some(&token("p/main", Access::Write)));
    let Ok(made) = pusher.command("nix").args(["key", "generate-secret", "--key-name", "main-1"]).output()
    else {
        println!("SKIPPED: nix is not installed (scripts/install-clients.sh)");
        return;
    };
    good(&made);
    let key = folder.path().join("main.key");
    fs_err::write(&key, &made.stdout).unwrap();
    let public = Signer::read(&Secret::new(String::from_utf8(made.stdout).unwrap())).unwrap().public();
    let options = options(folder.path(), Durability::PageCache);
    write_authority(&options.authority, |snapshot| {
        snapshot.scopes.iter_mut().find(|rule| rule.path.as_str() == "p/main").unwrap().sign_key_file =
            Some(key);
    });
    let running = start(options).unwrap();
    let cache = format!("http://{}/p/main/-/nix", running.address);
    let reads = |place: &Place, key: &str, path: &str, more: &[&str]| {
        let arguments = ["--option", "trusted-public-keys", key, "copy", "--from", &cache, path];
        place.nix(&[&arguments[..], more].concat())
    };

    // somebody asks too early; Nix remembers that for an hour
    let early = Place::new(folder.path(), "early", None);
    assert!(!reads(&early, &public, TWO, &[]).status.success());
    pusher.import(ONE, "one", &[]);
    pusher.import(TWO, &format!("needs {ONE}"), &[ONE]);
    good(&pusher.nix(&["copy", "--to", &cache, TWO]));
    let remembered = reads(&early, &public, TWO, &[]);
    assert!(!remembered.status.success(), "Nix has forgotten: the hint is not needed any more");
    good(&reads(&early, &public, TWO, &["--option", "narinfo-cache-negative-ttl", "0"]));

    let fork = token("p/pr/7", Access::Write);
    for (name, token) in [("stranger", None), ("fork", Some(fork.as_str()))] {
        let place = Place::new(folder.path(), name, token);
        let other = "main-1:6q/UIM1wtn0/YcjlTUhdFEl8X//kXGy/iwb0u9cqbCQ=";
        let refused = reads(&place, other, TWO, &[]);
        assert!(text(&refused).contains("lacks a valid signature"), "{name}: {}", text(&refused));
        good(&reads(&place, &public, TWO, &[]));
        assert!(place.nix(&["path-info", ONE, TWO]).status.success(), "{name}");
    }

    // the pusher remembers what it sent, without our signature, until it is told to ask again
    let signed = |more: &[&str]| {
        let arguments = ["path-info", "--sigs", "--store", &cache, TWO];
        let output = pusher.command("nix").args(arguments).args(more).output().unwrap();
        good(&output);
        text(&output).contains("main-1:")
    };
    assert!(!signed(&[]), "Nix asks again by itself: the hint is not needed any more");
    assert!(signed(&["--refresh"]));

    let second = Place::new(folder.path(), "second", Some(&token("p/main", Access::Write)));
    second.import(ONE, "one, built again", &[]);
    // Nix looks first, and leaves a path that is there as it is
    good(&second.nix(&["copy", "--to", &cache, ONE]));
    let reader = Place::new(folder.path(), "reader", None);
    good(&reads(&reader, &public, ONE, &[]));
    assert_eq!(fs_err::read_to_string(reader.0.join("root").join(&ONE[1..])).unwrap(), "one");
    running.stop().unwrap();
}
