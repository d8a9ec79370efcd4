//! The real Nix, with a key that the cache holds: paths are pushed without a signature and read by stores that ask for one.
//! Skipped, visibly, where it is not installed (`scripts/install-clients.sh`).
//!
//! The paths are not content-addressed: Nix believes those without any signature, and they would show nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::service::start;
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::token::Access;
use support::nix::{Nix, Place, good, text};
use support::{options, token, write_authority};

const ONE: &str = "/nix/store/00000000000000000000000000000abc-one";
const TWO: &str = "/nix/store/00000000000000000000000000000abd-two";

/// nix#16175 (a pusher and its own path), nix#1885 (a second content), nix#781 (a path that was just pushed).
#[rstest::rstest]
#[case::of_bookworm("")]
#[case::of_trixie("-2.26")]
fn nix_16175_path_pushed_without_a_key_is_read_by_stores_that_ask_for_the_key_of_the_scope(
    #[case] version: &str,
) {
    let Some(nix) = Nix::find(version) else { return };
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str, token: Option<&str>| nix.place(folder.path(), name, token);
    let pusher = place("pusher", Some(&token("p/main", Access::Write)));
    let (key, public) = nix.key(folder.path(), "main-1");
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
    let early = place("early", None);
    assert!(!reads(&early, &public, TWO, &[]).status.success());
    pusher.import(ONE, "one", &[]);
    pusher.import(TWO, &format!("needs {ONE}"), &[ONE]);
    good(&pusher.nix(&["copy", "--to", &cache, TWO]));
    let remembered = reads(&early, &public, TWO, &[]);
    assert!(!remembered.status.success(), "Nix has forgotten: the hint is not needed any more");
    good(&reads(&early, &public, TWO, &["--option", "narinfo-cache-negative-ttl", "0"]));

    let fork = token("p/pr/7", Access::Write);
    for (name, token) in [("stranger", None), ("fork", Some(fork.as_str()))] {
        let place = place(name, token);
        let other = "main-1:6q/UIM1wtn0/YcjlTUhdFEl8X//kXGy/iwb0u9cqbCQ=";
        let refused = reads(&place, other, TWO, &[]);
        assert!(text(&refused).contains("lacks a "), "{name}: {}", text(&refused));
        good(&reads(&place, &public, TWO, &[]));
        assert!(place.nix(&["path-info", ONE, TWO]).status.success(), "{name}");
    }

    // the pusher remembers what it sent, without our signature, until it is told to ask again
    let signed = |more: &[&str]| {
        let arguments = ["path-info", "--sigs", "--store", &cache, TWO];
        let output = pusher.bare(&[&arguments[..], more].concat());
        good(&output);
        text(&output).contains("main-1:")
    };
    assert!(!signed(&[]), "Nix asks again by itself: the hint is not needed any more");
    assert!(signed(&["--refresh"]));

    let second = place("second", Some(&token("p/main", Access::Write)));
    second.import(ONE, "one, built again", &[]);
    // Nix looks first, and leaves a path that is there as it is
    good(&second.nix(&["copy", "--to", &cache, ONE]));
    let reader = place("reader", None);
    good(&reads(&reader, &public, ONE, &[]));
    assert_eq!(reader.read(ONE), "one");
    running.stop().unwrap();
}

/// nix#15023: what is tried again is sent without its body, so 2.8 waits for five minutes, four times, after an answer that asks for that.
#[rstest::rstest]
#[case::of_bookworm("")]
#[case::of_trixie("-2.26")]
fn nix_15023_push_to_a_cache_without_room_fails_and_is_not_tried_again(#[case] version: &str) {
    let Some(nix) = Nix::find(version) else { return };
    let folder = tempfile::tempdir().unwrap();
    let pusher = nix.place(folder.path(), "pusher", Some(&token("p/main", Access::Write)));
    let mut options = options(folder.path(), Durability::PageCache);
    options.store.capacity = 1 << 20;
    options.store.segment = 64 << 10;
    let running = start(options).unwrap();
    pusher.import(ONE, &"more than there is room for".repeat(80_000), &[]);
    let cache = format!("http://{}/p/main/-/nix?compression=none", running.address);
    let pushed = pusher.nix(&["copy", "--to", &cache, ONE]);
    let said = text(&pushed);
    assert!(!pushed.status.success() && said.contains("413") && !said.contains("retrying"), "{said}");
    running.stop().unwrap();
}
