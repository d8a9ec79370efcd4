//! The build cache by TLS: what is printed, commands, the relay before a client that speaks no TLS itself, the real ccache that starts
//! the program as its storage helper, and what is said of files that are of no use.

use crate::certificates;
use crate::place::{PROGRAM, Place, good, relay, text};
use crate::programs::{clients, find};
use rcgen::KeyPair;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TLS: &str = "[cache.tls]\ncertificate = \"HEREchain.pem\"\nkey = \"HEREkey.pem\"\n";

/// A configured cache with a certificate for `localhost`, signed by an authority that no system trusts.
fn secured(listen: &str, more: &str) -> Place {
    let place = Place::new(listen, more);
    certificates::write(Path::new(&place.path("")));
    place
}

fn free() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn commands_find_the_cache_on_its_host_by_the_configuration_and_elsewhere_by_its_authority() {
    let local = free();
    let place = secured("127.0.0.1:0", &format!("local-listen = \"127.0.0.1:{local}\"\n{TLS}"));
    let cache = place.start();
    assert_eq!(cache.plain, format!("http://127.0.0.1:{local}"));
    assert!(good(place.command(&["stat"]).output().unwrap()).contains("nothing was asked"));
    let elsewhere = ["stat", "--cache", &cache.secure, "--ca-file", &place.path("ca.pem")];
    assert!(good(place.command(&elsewhere).output().unwrap()).contains("nothing was asked"));
    let said = place.command(&elsewhere[..3]).output().unwrap();
    assert!(!said.status.success() && text(&said).contains("certificate"), "{}", text(&said));
    let said = place.command(&["stat", "--cache", &cache.secure.replace("https", "http")]).output().unwrap();
    assert!(!said.status.success() && text(&said).contains("this port speaks TLS"), "{}", text(&said));
}

/// ccache 4.7 speaks HTTP alone; the relay speaks TLS for it.
#[test]
fn client_without_tls_builds_by_the_relay_with_a_private_authority() {
    if find("ccache").is_none() {
        return;
    }
    let place = secured("127.0.0.1:0", TLS);
    let cache = place.start();
    let token = place.token("p/main");
    fs_err::write(place.path("part.c"), "int part(void) { return 1; }\n").unwrap();
    let build = |name: &str, arguments: &[&str], trusted: Option<&str>| {
        let mut command = relay(&cache.secure, &token);
        command.args(arguments).args([
            "--",
            "ccache",
            "gcc",
            "-c",
            &place.path("part.c"),
            "-o",
            &place.path("part.o"),
        ]);
        command.env("CCACHE_DIR", place.path(name));
        if let Some(trusted) = trusted {
            command.env("SSL_CERT_FILE", trusted);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    let ca = place.path("ca.pem");
    let cold = build("cold", &["--ca-file", &ca], None);
    assert!(cold.contains("0 of 2 reads hit, 2 entries stored"), "{cold}");
    let warm = build("warm", &["--ca-file", &ca], None);
    assert!(warm.contains("2 of 2 reads hit"), "{warm}");
    // as the system's own authorities are, which is what the agent of a machine goes by
    let warm = build("system", &[], Some(&ca));
    assert!(warm.contains("2 of 2 reads hit"), "{warm}");
    // a cache that is not trusted is a cache that is not there
    let alone = build("alone", &[], None);
    assert!(alone.contains("0 entries stored") && alone.contains("requests without the cache"), "{alone}");
}

#[test]
fn ccache_reaches_the_cache_by_its_storage_helper_and_tls() {
    let found = [clients().join("ccache/bin/ccache"), PathBuf::from("ccache")].into_iter().find(|program| {
        let version = Command::new(program).arg("--version").output();
        version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("crsh-storage"))
    });
    let Some(ccache) = found else {
        println!("SKIPPED: no ccache with storage helpers is installed (scripts/install-clients.sh)");
        return;
    };
    let place = secured("127.0.0.1:0", TLS);
    let cache = place.start();
    let token = place.token("p/main");
    fs_err::write(place.path("part.c"), "int part(void) { return 1; }\n").unwrap();
    for folder in ["bin", "run"] {
        fs_err::create_dir(place.path(folder)).unwrap();
    }
    std::os::unix::fs::symlink(PROGRAM, place.path("bin/ccache-storage-forgeyard")).unwrap();
    let search = format!("{}:{}", place.path("bin"), std::env::var("PATH").unwrap());
    let host = cache.secure.replace("https://", "");
    let storage = format!(
        "forgeyard://{host}/p/main @tls=true @ca-file={} @bearer-token-file={token} idle-timeout=1s",
        place.path("ca.pem")
    );
    for local in ["first", "second"] {
        let mut command = Command::new(&ccache);
        command.env("PATH", &search).env("CCACHE_DIR", place.path(local)).env("CCACHE_REMOTE_ONLY", "true");
        command.env("XDG_RUNTIME_DIR", place.path("run")).env("CCACHE_TEMPDIR", place.path("run"));
        command.env("CCACHE_REMOTE_STORAGE", &storage);
        command.args(["gcc", "-c", &place.path("part.c"), "-o", &place.path("part.o")]);
        good(command.output().unwrap());
    }
    let said = good(place.command(&["stat", "--json", "--cache", &cache.plain]).output().unwrap());
    let stat: serde_json::Value = serde_json::from_str(&said).unwrap();
    let traffic = &stat["traffic"][0];
    assert_eq!((traffic["hits"].as_u64(), traffic["writes"].as_u64()), (Some(2), Some(2)), "{stat}");
}

/// The commands of the page, as they stand there.
#[test]
fn authority_of_your_own_is_made_by_the_commands_of_the_page() {
    let page = include_str!("../../../../docs/cache.md");
    let after = page.split_once("From an authority of your own").unwrap().1;
    let block = after.split_once("```sh\n").unwrap().1.split_once("```").unwrap().0;
    assert!(block.contains("openssl x509"), "{block}");
    let place = secured("127.0.0.1:0", TLS);
    let script = block
        .replace("/etc/forgeyard/tls", &place.path(""))
        .replace("DNS:cache.example.org", "DNS:localhost");
    good(Command::new("sh").args(["-euc", &script]).output().unwrap());
    let cache = place.start();
    let elsewhere = ["stat", "--cache", &cache.secure, "--ca-file", &place.path("ca.pem")];
    assert!(good(place.command(&elsewhere).output().unwrap()).contains("nothing was asked"));
}

#[test]
fn files_that_are_of_no_use_are_refused_at_the_start_with_what_to_do() {
    let place = secured("127.0.0.1:0", TLS);
    let start = || {
        let said = place.command(&["run"]).output().unwrap();
        assert_eq!(said.status.code(), Some(2), "{}", text(&said));
        text(&said)
    };
    fs_err::write(place.path("key.pem"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let said = start();
    assert!(
        said.contains("key.pem does not belong") && said.contains("fix:") && said.contains("[cache.tls]"),
        "{said}"
    );
    fs_err::remove_file(place.path("chain.pem")).unwrap();
    let said = start();
    assert!(said.contains("chain.pem") && said.contains("may read"), "{said}");
}

#[test]
fn cache_that_others_reach_without_tls_is_warned_of() {
    let place = Place::new("0.0.0.0:0", "");
    let mut child = place.command(&["run"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let said = lines.find(|line| line.starts_with("warning: "));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said.is_some_and(|said| said.contains("0.0.0.0:0 without TLS")));
}
