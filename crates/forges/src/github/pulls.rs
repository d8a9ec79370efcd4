//! Pull requests: who opened the one that a run belongs to. A run does not say it, and for forks not even the number.

use super::answer;
use super::client::{Call, Github};
use super::endpoint::RepositoryPath;
use super::error::GithubError;
use forgeyard_model::forge::Person;
use serde::Deserialize;

/// A pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pull {
    /// Its number.
    pub number: u64,
    /// Who opened it; none when the account is gone.
    pub author: Option<Person>,
    /// Its head commit.
    pub head_sha: String,
    /// Numeric id of the repository that it comes from; none when that is gone.
    pub head_repository: Option<u64>,
}

#[derive(Deserialize)]
struct Row {
    number: u64,
    #[serde(default)]
    user: Option<Person>,
    head: Head,
}

#[derive(Deserialize)]
struct Head {
    sha: String,
    #[serde(default)]
    repo: Option<Repo>,
}

#[derive(Deserialize)]
struct Repo {
    #[serde(default, deserialize_with = "answer::optional_id")]
    id: Option<u64>,
}

impl Github {
    /// The newest pull requests, open or closed, whose head is this branch of this account. Whose repository that is, is
    /// for the caller to compare by id.
    pub async fn pulls_of(
        &self,
        repository: &RepositoryPath,
        owner: &str,
        branch: &str,
    ) -> Result<Vec<Pull>, GithubError> {
        let call = Call::get("pulls", format!("/repos/{repository}/pulls"))
            .query("state", "all")
            .query("head", format!("{owner}:{branch}"))
            .query("per_page", 30);
        let answer = self.installed(&repository.clone().into(), call).await?;
        let rows: Vec<Row> = answer.json()?;
        Ok(rows
            .into_iter()
            .map(|row| Pull {
                number: row.number,
                author: row.user,
                head_sha: row.head.sha,
                head_repository: row.head.repo.and_then(|repo| repo.id),
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_request_whose_head_or_author_is_gone_is_read() {
        let text = br#"{"number":7,"user":null,"head":{"sha":"a","ref":"x","repo":null},"state":"open"}"#;
        let row: Row = answer::read("GET /x", text).unwrap();
        assert!(row.user.is_none() && row.head.repo.is_none());
    }
}
