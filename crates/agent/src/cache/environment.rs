//! What makes each client use the relay, by itself.
//!
//! What a job sets itself counts more. Bazel knows no variable for its flags, so it gets a file in the home folder, as does Nix
//! for its password.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forgeyard_model::machine::INSIDE_HOOK;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

/// Where clients find a relay.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'s> {
    /// The relay.
    pub relay: SocketAddr,
    /// Its secret.
    pub secret: &'s str,
    /// The scope that is addressed; that of the token when absent.
    pub scope: Option<&'s str>,
    /// Public keys of what Nix reads from there.
    pub nix_keys: &'s [String],
    /// The folder with [`Surroundings::files`], as the clients see it.
    pub home: &'s Path,
}

impl Surroundings<'_> {
    /// What stands between the address and the word of a protocol.
    fn scope(&self) -> String {
        self.scope.map_or_else(|| "-".to_owned(), |scope| format!("{scope}/-"))
    }

    /// A token that has the form which GitHub's clients want and ends with the secret.
    fn in_form(&self) -> String {
        let head = URL_SAFE_NO_PAD.encode("{\"alg\":\"none\",\"typ\":\"JWT\"}");
        let payload = URL_SAFE_NO_PAD.encode("{\"scp\":\"Actions.Results:job:job\"}");
        format!("{head}.{payload}.{}", self.secret)
    }

    /// The variables. The runner program of a forge sets those of GitHub's services itself.
    pub fn environment(&self, forge_runner: bool) -> BTreeMap<String, String> {
        let (at, scope) = (format!("http://{}", self.relay), self.scope());
        let with = format!("http://job:{}@{}", self.secret, self.relay);
        let netrc = self.home.join(".netrc");
        let mut nix = format!(
            "extra-substituters = {at}/{scope}/nix\nnetrc-file = {}\nfallback = true",
            netrc.display()
        );
        if !self.nix_keys.is_empty() {
            nix.push_str(&format!("\nextra-trusted-public-keys = {}", self.nix_keys.join(" ")));
        }
        let mut all = vec![
            ("FORGEYARD_CACHE_URL", format!("{at}/")),
            ("FORGEYARD_CACHE_TOKEN", self.in_form()),
            ("SCCACHE_WEBDAV_ENDPOINT", format!("{at}/{scope}/dav/")),
            ("SCCACHE_WEBDAV_TOKEN", self.secret.to_owned()),
            // Its server listens on a port otherwise, where jobs that share a network would find one of another job.
            ("SCCACHE_SERVER_UDS", "/tmp/sccache.socket".to_owned()),
            ("SCCACHE_IGNORE_SERVER_IO_ERROR", "1".to_owned()),
            ("CCACHE_REMOTE_STORAGE", format!("{with}/{scope}/ccache")),
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
                ("ACTIONS_RUNTIME_TOKEN", self.in_form()),
            ]);
        }
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Files of the home folder, by name.
    pub fn files(&self) -> [(&'static str, String); 2] {
        let Self { relay, secret, .. } = self;
        let scope = self.scope();
        [
            (".bazelrc", format!("build --remote_cache=http://job:{secret}@{relay}/{scope}/bazel\n")),
            (".netrc", format!("machine {} login job password {secret}\n", relay.ip())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_is_led_to_the_relay_and_holds_its_secret_only() {
        let keys = ["main-1:abc".to_owned()];
        let of = Surroundings {
            relay: "127.0.0.1:4242".parse().unwrap(),
            secret: "s3cret",
            scope: None,
            nix_keys: &keys,
            home: Path::new("/work/home"),
        };
        let all = of.environment(false);
        assert_eq!(all["SCCACHE_WEBDAV_ENDPOINT"], "http://127.0.0.1:4242/-/dav/");
        assert_eq!(all["CCACHE_REMOTE_STORAGE"], "http://job:s3cret@127.0.0.1:4242/-/ccache");
        assert!(all["ACTIONS_RUNTIME_TOKEN"].ends_with(".s3cret"));
        assert!(all["NIX_CONFIG"].contains("extra-trusted-public-keys = main-1:abc"));
        assert!(!of.environment(true).contains_key("ACTIONS_RUNTIME_TOKEN"));
        let named = Surroundings { scope: Some("iree/main"), ..of };
        assert_eq!(
            named.environment(false)["SCCACHE_WEBDAV_ENDPOINT"],
            "http://127.0.0.1:4242/iree/main/-/dav/"
        );
        assert!(named.files()[0].1.contains("@127.0.0.1:4242/iree/main/-/bazel"));
    }
}
