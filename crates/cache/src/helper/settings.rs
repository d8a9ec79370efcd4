//! What ccache tells a helper that it starts: variables of the environment. Pure.

use forgeyard_model::Secret;
use std::path::PathBuf;
use std::time::Duration;

/// Most attributes that are looked at.
const MOST: usize = 100;

/// What a helper is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Socket to listen on.
    pub endpoint: PathBuf,
    /// Address of the entries; ends with `/`.
    pub address: String,
    /// The token, when it stands in the configuration.
    pub token: Option<Secret>,
    /// File with the token; read for each request, so that a new one is used at once.
    pub token_file: Option<PathBuf>,
    /// File with a further certificate authority to trust, PEM.
    pub ca_file: Option<PathBuf>,
    /// The helper ends after so long without a request; never when nothing.
    pub idle: Option<Duration>,
    /// Attributes that mean nothing here; ccache logs that.
    pub unknown: Vec<String>,
}

/// What is wrong with the variables.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// One that is missing.
    #[error("{0} is not set; ccache starts this program by itself")]
    Missing(&'static str),
    /// One that is wrong.
    #[error("{0} is not {1}")]
    Wrong(String, &'static str),
}

impl Settings {
    /// Reads the variables.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let needed =
            |name| variable(name).filter(|text| !text.is_empty()).ok_or(SettingsError::Missing(name));
        let number = |name: &str| match variable(name).as_deref() {
            None | Some("") => Ok(0),
            Some(text) => text.parse::<u64>().map_err(|_| SettingsError::Wrong(name.to_owned(), "a number")),
        };
        let endpoint = PathBuf::from(needed("CRSH_IPC_ENDPOINT")?);
        let url = needed("CRSH_URL")?;
        let seconds = number("CRSH_IDLE_TIMEOUT")?;
        let (mut token, mut token_file, mut ca_file, mut tls) = (None, None, None, false);
        let mut unknown = Vec::new();
        for at in 0..number("CRSH_NUM_ATTR")?.min(MOST as u64) {
            let Some(name) = variable(&format!("CRSH_ATTR_KEY_{at}")) else { continue };
            let value = variable(&format!("CRSH_ATTR_VALUE_{at}")).unwrap_or_default();
            match name.trim_start_matches('@') {
                "bearer-token" => token = Some(Secret::new(value)),
                "bearer-token-file" => token_file = Some(PathBuf::from(value)),
                "ca-file" => ca_file = Some(PathBuf::from(value)),
                "tls" => tls = value == "true",
                _ => unknown.push(name),
            }
        }
        let Some(address) = address(&url, tls) else {
            return Err(SettingsError::Wrong(
                "CRSH_URL".to_owned(),
                "forgeyard://HOST[:PORT]/SCOPE, or the http(s) address of a scope's /-/ccache",
            ));
        };
        let idle = (seconds > 0).then(|| Duration::from_secs(seconds));
        Ok(Self { endpoint, address, token, token_file, ca_file, idle, unknown })
    }
}

/// `forgeyard://cache:8420/iree/main` is `http://cache:8420/iree/main/-/ccache/`; an address with http stays as it is.
fn address(url: &str, tls: bool) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let rest = rest.trim_end_matches('/');
    let host = rest.split('/').next().filter(|host| !host.is_empty())?;
    match scheme {
        "forgeyard" => {
            let scheme = if tls { "https" } else { "http" };
            // without a scope it is that of the token
            let scope = rest.get(host.len()..).unwrap_or_default();
            Some(format!("{scheme}://{host}{scope}/-/ccache/"))
        }
        "http" | "https" => Some(format!("{scheme}://{rest}/")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::read(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned()))
    }

    #[test]
    fn variables_of_ccache_are_understood() {
        let settings = read(&[
            ("CRSH_IPC_ENDPOINT", "/run/s"),
            ("CRSH_URL", "forgeyard://cache:8420/iree/main"),
            ("CRSH_IDLE_TIMEOUT", "30"),
            ("CRSH_NUM_ATTR", "4"),
            ("CRSH_ATTR_KEY_0", "bearer-token"),
            ("CRSH_ATTR_VALUE_0", "fyc_secret"),
            ("CRSH_ATTR_KEY_1", "@tls"),
            ("CRSH_ATTR_VALUE_1", "true"),
            ("CRSH_ATTR_KEY_2", "colour"),
            ("CRSH_ATTR_KEY_3", "@ca-file"),
            ("CRSH_ATTR_VALUE_3", "/etc/ca.pem"),
        ])
        .unwrap();
        assert_eq!(settings.address, "https://cache:8420/iree/main/-/ccache/");
        assert_eq!(
            (settings.idle, &settings.unknown[..]),
            (Some(Duration::from_secs(30)), &["colour".to_owned()][..])
        );
        assert_eq!(settings.ca_file, Some(PathBuf::from("/etc/ca.pem")));
        assert!(!format!("{settings:?}").contains("fyc_secret"));
        assert_eq!(address("forgeyard://cache", false).unwrap(), "http://cache/-/ccache/");
        assert_eq!(address("http://cache/p/-/ccache/", false).unwrap(), "http://cache/p/-/ccache/");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        assert_eq!(read(&[]), Err(SettingsError::Missing("CRSH_IPC_ENDPOINT")));
        assert_eq!(read(&[("CRSH_IPC_ENDPOINT", "s")]), Err(SettingsError::Missing("CRSH_URL")));
        for wrong in
            [("CRSH_URL", "redis://x"), ("CRSH_URL", "forgeyard:///x"), ("CRSH_IDLE_TIMEOUT", "soon")]
        {
            let error = read(&[("CRSH_IPC_ENDPOINT", "s"), wrong, ("CRSH_URL", "http://x")]).unwrap_err();
            assert!(error.to_string().starts_with(wrong.0), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_variables_are_read_or_refused(text: String) {
            let _ = Settings::read(|_| Some(text.clone()));
        }
    }
}
