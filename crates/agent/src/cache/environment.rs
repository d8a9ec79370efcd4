//! What makes each client use the relay, by itself.
//!
//! What a job sets itself counts more. Bazel knows no variable for its flags, so it gets a file in the home folder, as does Nix
//! for its password.

use forgeyard_model::machine::INSIDE_HOOK;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A token that has the form which GitHub's clients want and ends with the secret.
fn in_form(secret: &str) -> String {
    use base64::Engine as _;
    let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    let head = encode("{\"alg\":\"none\",\"typ\":\"JWT\"}");
    format!("{head}.{}.{secret}", encode("{\"scp\":\"Actions.Results:job:job\"}"))
}

/// The variables. The runner program of a forge sets those of GitHub's services itself.
pub(crate) fn environment(
    relay: SocketAddr,
    secret: &str,
    nix_keys: &[String],
    forge_runner: bool,
) -> BTreeMap<String, String> {
    let at = format!("http://{relay}");
    let with = format!("http://job:{secret}@{relay}");
    let mut nix = format!("extra-substituters = {at}/-/nix\nnetrc-file = /work/home/.netrc\nfallback = true");
    if !nix_keys.is_empty() {
        nix.push_str(&format!("\nextra-trusted-public-keys = {}", nix_keys.join(" ")));
    }
    let mut all = vec![
        ("FORGEYARD_CACHE_URL", format!("{at}/")),
        ("FORGEYARD_CACHE_TOKEN", in_form(secret)),
        ("SCCACHE_WEBDAV_ENDPOINT", format!("{at}/-/dav/")),
        ("SCCACHE_WEBDAV_TOKEN", secret.to_owned()),
        ("SCCACHE_IGNORE_SERVER_IO_ERROR", "1".to_owned()),
        ("CCACHE_REMOTE_STORAGE", format!("{with}/-/ccache")),
        ("CCACHE_REMOTE_ONLY", "true".to_owned()),
        ("NIX_CONFIG", nix),
    ];
    if forge_runner {
        // Its program writes the variables of the cache anew for every action, and hands down this one, which Node reads.
        all.push(("NODE_OPTIONS", format!("--require={INSIDE_HOOK}/forgeyard-cache.cjs")));
    } else {
        all.extend([
            ("ACTIONS_CACHE_SERVICE_V2", "true".to_owned()),
            ("ACTIONS_RESULTS_URL", format!("{at}/")),
            ("ACTIONS_RUNTIME_TOKEN", in_form(secret)),
        ]);
    }
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Files of the home folder, by name.
pub(crate) fn home_files(relay: SocketAddr, secret: &str) -> [(&'static str, String); 2] {
    [
        (".bazelrc", format!("build --remote_cache=http://job:{secret}@{relay}/-/bazel\n")),
        (".netrc", format!("machine {} login job password {secret}\n", relay.ip())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_is_led_to_the_relay_and_holds_its_secret_only() {
        let relay: SocketAddr = "127.0.0.1:4242".parse().unwrap();
        let all = environment(relay, "s3cret", &["main-1:abc".to_owned()], false);
        assert_eq!(all["SCCACHE_WEBDAV_ENDPOINT"], "http://127.0.0.1:4242/-/dav/");
        assert_eq!(all["CCACHE_REMOTE_STORAGE"], "http://job:s3cret@127.0.0.1:4242/-/ccache");
        assert!(all["ACTIONS_RUNTIME_TOKEN"].ends_with(".s3cret"));
        assert!(all["NIX_CONFIG"].contains("extra-trusted-public-keys = main-1:abc"));
        assert!(!environment(relay, "s3cret", &[], true).contains_key("ACTIONS_RUNTIME_TOKEN"));
    }
}
