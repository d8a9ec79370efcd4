//! Sources, refs and commits, checked before git sees them.

use std::str::FromStr;

/// A source, ref or commit that is not well formed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not a commit.
    #[error("`{0}` is not a commit: expected 40 or 64 lower-case hexadecimal digits")]
    Commit(String),
    /// Not a ref.
    #[error(
        "`{0}` is not a ref that work can come from: expected `refs/heads/NAME` or `refs/pull/NUMBER/head`"
    )]
    Ref(String),
    /// Not a source.
    #[error("`{text}` is not a source: {why}")]
    Source {
        /// The source, without user and password.
        text: String,
        /// What is wrong.
        why: &'static str,
    },
}

/// A commit by its full id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Commit(String);

impl Commit {
    /// The hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Commit {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if matches!(text.len(), 40 | 64) && text.bytes().all(digit) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError::Commit(cut(text)))
        }
    }
}

impl std::fmt::Display for Commit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A branch or the head of a pull request, by its full name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GitRef(String);

impl GitRef {
    /// The full name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where forges keep the head of a pull request.
    pub fn pull_request(number: u64) -> Self {
        Self(format!("refs/pull/{number}/head"))
    }
}

impl FromStr for GitRef {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let wrong = || NameError::Ref(cut(text));
        let known = match text.strip_prefix("refs/heads/") {
            Some(branch) => well_formed_branch(branch),
            None => text
                .strip_prefix("refs/pull/")
                .and_then(|rest| rest.strip_suffix("/head"))
                .is_some_and(|number| number.parse::<u64>().is_ok_and(|parsed| parsed.to_string() == number)),
        };
        if known { Ok(Self(text.to_owned())) } else { Err(wrong()) }
    }
}

/// The rules of `git check-ref-format`, and no component that begins with a dash.
fn well_formed_branch(branch: &str) -> bool {
    let component = |part: &str| {
        !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with(".lock") && !part.ends_with('.')
    };
    branch.len() <= 500
        && !branch.contains("..")
        && !branch.contains("@{")
        && branch != "@"
        && !branch.contains(|letter: char| letter.is_control() || " ~^:?*[\\".contains(letter))
        && branch.split('/').all(component)
}

impl std::fmt::Display for GitRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where git fetches from. Printing leaves out user and password.
#[derive(Clone, PartialEq, Eq)]
pub struct Source {
    text: String,
    protocol: &'static str,
}

impl Source {
    /// The one protocol that it may be fetched over, as git names it.
    pub const fn protocol(&self) -> &'static str {
        self.protocol
    }

    /// The text for git. It may hold a password: never print it.
    pub(super) fn argument(&self) -> &str {
        &self.text
    }
}

impl FromStr for Source {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let wrong = |why| Err(NameError::Source { text: cut(&without_user(text)), why });
        if text.is_empty() || text.contains(|letter: char| letter.is_control() || letter == ' ') {
            return wrong("it is empty or holds blanks or control characters");
        }
        let protocol = if text.starts_with('/') {
            "file"
        } else if let Some((scheme, rest)) = text.split_once("://") {
            match scheme {
                "file" if rest.starts_with('/') => "file",
                "ssh" | "https" if !host(rest).is_empty() && !host(rest).starts_with('-') => {
                    scheme_name(scheme)
                }
                "file" | "ssh" | "https" => return wrong("it names no host or folder"),
                _ => return wrong("only https, ssh and file are allowed"),
            }
        } else {
            // `user@host:path`, as ssh is often written; `name::` would start a helper program.
            match text.split_once(':') {
                Some((host, path))
                    if !path.starts_with(':')
                        && !host.contains('/')
                        && !host.is_empty()
                        && !host.starts_with('-') =>
                {
                    "ssh"
                }
                _ => {
                    return wrong("expected an absolute folder, file://, ssh://, https:// or user@host:path");
                }
            }
        };
        Ok(Self { text: text.to_owned(), protocol })
    }
}

fn scheme_name(scheme: &str) -> &'static str {
    if scheme == "ssh" { "ssh" } else { "https" }
}

/// The host of what follows `://`, without user.
fn host(rest: &str) -> &str {
    let authority = rest.split('/').next().unwrap_or(rest);
    authority.rsplit('@').next().unwrap_or(authority)
}

fn without_user(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (authority, path) =
        rest.split_once('/').map_or((rest, None), |(authority, path)| (authority, Some(path)));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    match path {
        Some(path) => format!("{scheme}://{host}/{path}"),
        None => format!("{scheme}://{host}"),
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&without_user(&self.text))
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Source({self})")
    }
}

fn cut(text: &str) -> String {
    text.chars().take(120).map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refs_that_git_could_misread_are_refused() {
        for text in [
            "main",
            "refs/tags/v1",
            "refs/heads/",
            "refs/heads/-x",
            "refs/heads/a/-x",
            "refs/heads/a..b",
            "refs/heads/a b",
            "refs/heads/a:b",
            "refs/heads/a*",
            "refs/heads/a.lock",
            "refs/heads/.a",
            "refs/heads/a/",
            "refs/heads/@",
            "refs/heads/a@{1}",
            "refs/heads/a\\b",
            "refs/heads/a\nb",
            "refs/pull/x/head",
            "refs/pull/1/merge",
            "refs/pull/01/head",
            "refs/pull/+1/head",
            "--upload-pack=x",
            "+refs/heads/a",
        ] {
            assert!(text.parse::<GitRef>().is_err(), "{text}");
        }
        for text in ["refs/heads/main", "refs/heads/a/b-c_d.e", "refs/heads/ünï", "refs/pull/12/head"] {
            assert_eq!(text.parse::<GitRef>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn sources_other_than_file_ssh_and_https_are_refused() {
        for text in [
            "",
            "ext::sh -c evil",
            "ext::evil",
            "http://x/y",
            "git://x/y",
            "-x",
            "--upload-pack=evil",
            "folder/repo",
            "ssh://-oProxyCommand=evil/x",
            "-oProxyCommand=evil:x",
            "https://",
            "file://host/x",
            "/a b",
            "ftp://x/y",
        ] {
            assert!(text.parse::<Source>().is_err(), "{text}");
        }
        let protocol = |text: &str| text.parse::<Source>().unwrap().protocol();
        assert_eq!(protocol("/srv/x.git"), "file");
        assert_eq!(protocol("file:///srv/x.git"), "file");
        assert_eq!(protocol("https://example.invalid/x.git"), "https");
        assert_eq!(protocol("ssh://git@example.invalid/x.git"), "ssh");
        assert_eq!(protocol("git@example.invalid:x/y.git"), "ssh");
    }

    #[test]
    fn printing_a_source_shows_no_password() {
        let source: Source = "https://user:hunter2@example.invalid/x.git".parse().unwrap();
        assert_eq!(source.to_string(), "https://example.invalid/x.git");
        assert!(!format!("{source:?}").contains("hunter2"));
        let error = "http://user:hunter2@example.invalid/x".parse::<Source>().unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }

    proptest! {
        #[test]
        fn names_that_parse_are_never_options(text in "[-a-z0-9/:@.~^]{0,50}") {
            prop_assert!(!text.parse::<Source>().is_ok_and(|source| source.argument().starts_with('-')));
            prop_assert!(!text.parse::<GitRef>().is_ok_and(|git_ref| !git_ref.as_str().starts_with("refs/")));
            prop_assert!(!text.parse::<Commit>().is_ok_and(|commit| commit.as_str().starts_with('-')));
        }
    }
}
