//! Whether a commit is on a branch. A run names what was pushed, and a tag that is called like a branch looks the same there
//! (`head_branch` of `GET …/actions/runs/ID` has no `refs/heads/`), so whoever may push tags could pass for a branch.
//!
//! One call in the usual case, where the commit is still the head of the branch; two when the branch went on.

use super::client::{Call, Github};
use super::endpoint::RepositoryPath;
use super::error::GithubError;
use serde::Deserialize;

#[derive(Deserialize)]
struct RefRow {
    #[serde(rename = "ref")]
    name: String,
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    sha: String,
}

#[derive(Deserialize)]
struct Comparison {
    status: String,
}

fn is_commit(sha: &str) -> bool {
    matches!(sha.len(), 40 | 64) && sha.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A name as one part of a path.
fn escaped(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~');
    name.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

impl Github {
    /// Whether this commit is the head of the branch, or in its past.
    pub async fn on_branch(
        &self,
        repository: &RepositoryPath,
        branch: &str,
        sha: &str,
    ) -> Result<bool, GithubError> {
        if branch.is_empty() || !is_commit(sha) {
            return Ok(false);
        }
        let name = escaped(&format!("heads/{branch}"));
        let call = Call::get("ref", format!("/repos/{repository}/git/ref/{name}"));
        let answer = self.installed(&repository.clone().into(), call).await?;
        if answer.status == 404 {
            return Ok(false);
        }
        let head: RefRow = answer.json()?;
        if head.name.strip_prefix("refs/heads/") != Some(branch) || !is_commit(&head.object.sha) {
            return Ok(false);
        }
        if head.object.sha == sha {
            return Ok(true);
        }
        // By commits, since a name may be that of a tag here too. The first page would bring files.
        let call = Call::get("compare", format!("/repos/{repository}/compare/{sha}...{}", head.object.sha))
            .query("per_page", 1)
            .query("page", 2);
        let answer = self.installed(&repository.clone().into(), call).await?;
        if answer.status == 404 {
            return Ok(false);
        }
        Ok(matches!(answer.json::<Comparison>()?.status.as_str(), "ahead" | "identical"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_branch_stays_one_part_of_the_path() {
        assert_eq!(escaped("heads/release/1.x"), "heads%2Frelease%2F1.x");
        assert_eq!(escaped("a?b#c%d e/.."), "a%3Fb%23c%25d%20e%2F..");
        assert!(is_commit(&"a".repeat(40)) && !is_commit("main") && !is_commit(&"A".repeat(40)));
    }
}
