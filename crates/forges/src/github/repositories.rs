//! Repositories: which ones an installation sees, and what a person may do in one.

use super::answer;
use super::client::{Call, Github};
use super::endpoint::{Login, RepositoryPath, Target};
use super::error::GithubError;
use super::jobs::RepositoryRef;
use super::link;
use forgeyard_model::forge::Person;
use serde::Deserialize;

/// What a person may do in a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Nothing.
    None,
    /// Read.
    Read,
    /// Sort issues and pull requests.
    Triage,
    /// Push.
    Write,
    /// Manage without access to what destroys.
    Maintain,
    /// Everything.
    Admin,
}

impl Role {
    /// GitHub's name of it; none for nothing.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Read => Some("read"),
            Self::Triage => Some("triage"),
            Self::Write => Some("write"),
            Self::Maintain => Some("maintain"),
            Self::Admin => Some("admin"),
        }
    }

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "none" => Self::None,
            "read" => Self::Read,
            "triage" => Self::Triage,
            "write" => Self::Write,
            "maintain" => Self::Maintain,
            "admin" => Self::Admin,
            _ => return None,
        })
    }
}

#[derive(Deserialize)]
struct Permission {
    /// Knows only `none`, `read`, `write` and `admin`.
    permission: String,
    /// The role, which may be one that the organisation made up.
    #[serde(default, deserialize_with = "answer::optional_text")]
    role_name: Option<String>,
    user: Option<Person>,
}

impl Permission {
    /// The role, if it is that of this very person. A made-up role counts as the plain permission that it is built
    /// on.
    fn of(&self, person: u64) -> Role {
        if self.user.as_ref().is_none_or(|user| user.id != person) {
            return Role::None;
        }
        let named = self.role_name.as_deref().and_then(Role::named);
        named.or_else(|| Role::named(&self.permission)).unwrap_or(Role::None)
    }
}

#[derive(Deserialize)]
struct RepositoryPage {
    repositories: Vec<RepositoryRef>,
}

/// Pages of 100: an installation with 25,000 repositories is read whole.
const MOST_PAGES: u32 = 500;

impl Github {
    /// What a person may do in a repository. The call goes by login, and logins change hands: if the account that
    /// answers to it now has another id, it is another person, who may do nothing.
    pub async fn role(&self, repository: &RepositoryPath, person: &Person) -> Result<Role, GithubError> {
        // Bots have logins such as `x[bot]`, which are no collaborators.
        let Ok(login) = Login::parse(&person.login) else { return Ok(Role::None) };
        let call = Call::get("role", format!("/repos/{repository}/collaborators/{login}/permission"));
        let answer = self.installed(&repository.clone().into(), call).await?;
        if answer.status == 404 {
            return Ok(Role::None);
        }
        Ok(answer.json::<Permission>()?.of(person.id))
    }

    /// A repository by name, with its numeric id; none if it is not there or not seen.
    pub async fn repository(&self, path: &RepositoryPath) -> Result<Option<RepositoryRef>, GithubError> {
        let call = Call::get("repository", format!("/repos/{path}"));
        let answer = self.installed(&path.clone().into(), call).await?;
        if answer.status == 404 { Ok(None) } else { answer.json().map(Some) }
    }

    /// All repositories that the installation at an account sees.
    pub async fn installed_repositories(&self, target: &Target) -> Result<Vec<RepositoryRef>, GithubError> {
        let mut all = Vec::new();
        for page in 1..=MOST_PAGES {
            let call = Call::get("installed-repositories", "/installation/repositories".to_owned())
                .query("per_page", 100)
                .query("page", page)
                .background();
            let answer = self.installed(target, call).await?;
            let more = answer.header("link").is_some_and(|header| link::next(header, "page").is_some());
            all.extend(answer.json::<RepositoryPage>()?.repositories);
            if !more {
                break;
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_that_of_the_person_and_not_of_the_login() {
        let read = |text: &str| answer::read::<Permission>("GET /x", text.as_bytes()).unwrap();
        let user = r#""user":{"id":5,"login":"p","type":"User"}"#;
        let maintain = read(&format!(r#"{{"permission":"write","role_name":"maintain",{user}}}"#));
        assert_eq!((maintain.of(5), maintain.of(6)), (Role::Maintain, Role::None));
        let made_up = read(&format!(r#"{{"permission":"write","role_name":"release crew",{user}}}"#));
        assert_eq!(made_up.of(5), Role::Write);
        assert_eq!(read(&format!(r#"{{"permission":"read",{user}}}"#)).of(5), Role::Read);
        assert_eq!(read(r#"{"permission":"admin","user":null}"#).of(5), Role::None);
        assert!(Role::Admin > Role::Maintain && Role::Triage > Role::Read);
    }
}
