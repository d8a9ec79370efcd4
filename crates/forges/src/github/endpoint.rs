//! Where a GitHub is, and what on it is spoken of: accounts and repositories by name.
//!
//! Invariants: an address that exists is `https`, or `http` to this very machine (tokens travel in headers); a name
//! that exists can stand in a path as it is.

use super::error::GithubError;
use reqwest::Url;

/// The addresses of one GitHub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    web: String,
    api: String,
    metered: bool,
}

impl Endpoint {
    /// github.com.
    pub fn github_com() -> Self {
        Self { web: "https://github.com".to_owned(), api: "https://api.github.com".to_owned(), metered: true }
    }

    /// A GitHub of one's own, by the address that people use. Its interface is under `/api/v3`, and it has no rate
    /// limits unless its operator turned them on (runners.md §3.5). A tenant of `ghe.com` is run by GitHub and has
    /// its interface at `api.`.
    pub fn enterprise(web: &str) -> Result<Self, GithubError> {
        let web = address(web)?;
        let host =
            Url::parse(&web).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
        if host == "github.com" {
            return Ok(Self::github_com());
        }
        if host.ends_with(".ghe.com") {
            return Ok(Self { api: format!("https://api.{host}"), web, metered: true });
        }
        Ok(Self { api: format!("{web}/api/v3"), web, metered: false })
    }

    /// Both addresses as given, with the limits of github.com: for tests against a simulated GitHub, and for odd
    /// proxies.
    pub fn at(web: &str, api: &str) -> Result<Self, GithubError> {
        Ok(Self { web: address(web)?, api: address(api)?, metered: true })
    }

    /// Base of the pages that people see, without a slash at the end.
    pub fn web(&self) -> &str {
        &self.web
    }

    /// Base of the REST interface, without a slash at the end.
    pub fn api(&self) -> &str {
        &self.api
    }

    /// Whether GitHub's published limits hold here, so that they are kept before the first refusal.
    pub fn metered(&self) -> bool {
        self.metered
    }
}

/// Checks an address and cuts the slash at its end.
pub(crate) fn address(text: &str) -> Result<String, GithubError> {
    let wrong =
        |reason: &str| GithubError::Setup { what: format!("address `{text}`"), reason: reason.to_owned() };
    let trimmed = text.trim_end_matches('/');
    let url = Url::parse(trimmed).map_err(|error| wrong(&error.to_string()))?;
    if !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some()
    {
        return Err(wrong("it holds more than a host and a path"));
    }
    if may_carry_tokens(&url) { Ok(trimmed.to_owned()) } else { Err(wrong("only https carries tokens")) }
}

/// Whether a token may be sent there: over TLS, or to this machine.
pub(crate) fn may_carry_tokens(url: &Url) -> bool {
    match (url.scheme(), url.host_str()) {
        ("https", Some(_)) => true,
        ("http", Some("localhost")) => true,
        ("http", Some(host)) => host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback()),
        _ => false,
    }
}

/// A name that is no name of an account or a repository.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct NameRefused {
    text: String,
    expected: &'static str,
}

/// Login of a person or an organisation. Names are for addresses only; who is who is decided by numeric ids.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Login(String);

impl Login {
    /// Letters, digits, `-` and `_`, at most 100 of them.
    pub fn parse(text: &str) -> Result<Self, NameRefused> {
        let fine = (1..=100).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        if fine {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameRefused { text: text.chars().take(120).collect(), expected: "a login" })
        }
    }

    /// The name as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A repository by name, `owner/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepositoryPath {
    owner: Login,
    name: String,
}

impl RepositoryPath {
    /// Reads `owner/name`.
    pub fn parse(text: &str) -> Result<Self, NameRefused> {
        let refused = || NameRefused {
            text: text.chars().take(120).collect(),
            expected: "a repository (`owner/name`)",
        };
        let (owner, name) = text.split_once('/').ok_or_else(refused)?;
        let owner = Login::parse(owner).map_err(|_| refused())?;
        let fine = (1..=100).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
            && !matches!(name, "." | "..");
        if fine { Ok(Self { owner, name: name.to_owned() }) } else { Err(refused()) }
    }

    /// Who owns it.
    pub fn owner(&self) -> &Login {
        &self.owner
    }
}

impl std::fmt::Display for RepositoryPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

/// Where runners are registered: at an organisation or at one repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// For all repositories of an organisation that the runner group admits.
    Organisation(Login),
    /// For one repository.
    Repository(RepositoryPath),
}

impl Target {
    /// Reads `org` or `owner/name`.
    pub fn parse(text: &str) -> Result<Self, NameRefused> {
        if text.contains('/') {
            RepositoryPath::parse(text).map(Self::Repository)
        } else {
            Login::parse(text).map(Self::Organisation)
        }
    }

    /// The account whose installation of the App is used.
    pub fn owner(&self) -> &Login {
        match self {
            Self::Organisation(login) => login,
            Self::Repository(path) => path.owner(),
        }
    }

    /// Beginning of REST paths, `/orgs/x` or `/repos/x/y`.
    pub(crate) fn path(&self) -> String {
        match self {
            Self::Organisation(login) => format!("/orgs/{login}"),
            Self::Repository(path) => format!("/repos/{path}"),
        }
    }
}

impl From<RepositoryPath> for Target {
    fn from(path: RepositoryPath) -> Self {
        Self::Repository(path)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Organisation(login) => login.fmt(f),
            Self::Repository(path) => path.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_enterprise_server_has_its_interface_under_its_own_address() {
        let server = Endpoint::enterprise("https://git.example.org/").unwrap();
        assert_eq!((server.api(), server.metered()), ("https://git.example.org/api/v3", false));
        let tenant = Endpoint::enterprise("https://lab.ghe.com").unwrap();
        assert_eq!((tenant.api(), tenant.metered()), ("https://api.lab.ghe.com", true));
        assert_eq!(Endpoint::enterprise("https://github.com").unwrap(), Endpoint::github_com());
    }

    #[test]
    fn tokens_are_not_sent_in_the_clear_except_to_this_machine() {
        for fine in
            ["https://git.example.org", "http://127.0.0.1:8080", "http://[::1]:8080", "http://localhost:1"]
        {
            assert!(address(fine).is_ok(), "{fine}");
        }
        for bad in [
            "http://git.example.org",
            "http://127.0.0.1.example.org",
            "ftp://localhost",
            "git.example.org",
            "https://user:word@git.example.org",
            "https://git.example.org/?a=b",
            "",
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_that_could_change_a_path_are_refused() {
        for fine in ["conda-forge", "octo-org/octo.repo", "a/..b", "emu_user/x"] {
            assert_eq!(Target::parse(fine).unwrap().to_string(), fine);
        }
        for bad in ["", "a/", "/a", "a/b/c", "a/..", "a/.", "a b", "a/b?x", "a%2f", "ä/b", "a/b#"] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_name_that_is_taken_is_one_segment_or_two(text in ".{0,40}") {
            if let Ok(target) = Target::parse(&text) {
                prop_assert_eq!(target.to_string(), text.clone());
                let path = target.path();
                let url = Url::parse(&format!("https://api.example{path}")).unwrap();
                prop_assert_eq!(url.path(), path);
            }
        }
    }
}
