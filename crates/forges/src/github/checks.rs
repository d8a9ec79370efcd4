//! Check runs: how the farm speaks in a pull request.
//!
//! Always through the first App: GitHub lets only the App that made a check run change it. Making one counts as
//! content, of which there may be 80 a minute and 500 an hour, so callers coalesce: one check run per head commit.

use super::client::{Call, Github};
use super::endpoint::RepositoryPath;
use super::error::GithubError;
use serde::Deserialize;
use serde_json::{Value, json};

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    /// It is fine.
    Success,
    /// It is not.
    Failure,
    /// Neither.
    Neutral,
    /// It was stopped.
    Cancelled,
    /// It was not done.
    Skipped,
    /// It took too long.
    TimedOut,
    /// A person has to do something.
    ActionRequired,
}

impl Conclusion {
    fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Neutral => "neutral",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
            Self::TimedOut => "timed_out",
            Self::ActionRequired => "action_required",
        }
    }
}

/// How far a check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckState {
    /// It waits.
    Queued,
    /// It goes on.
    InProgress,
    /// It ended.
    Completed(Conclusion),
}

/// A button at a check. GitHub shows at most three.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckAction {
    /// Text on it, at most 20 characters.
    pub label: String,
    /// What it does, at most 40 characters.
    pub description: String,
    /// What comes back in the webhook, at most 20 characters.
    pub identifier: String,
}

/// What a check run is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCheck {
    /// Name of the check.
    pub name: String,
    /// Commit.
    pub head_sha: String,
    /// Our id for it, given back in webhooks.
    pub external_id: Option<String>,
    /// Page with more.
    pub details_url: Option<String>,
    /// How far it is.
    pub state: CheckState,
    /// One line.
    pub title: String,
    /// Markdown.
    pub summary: String,
    /// More Markdown.
    pub text: Option<String>,
    /// Buttons.
    pub actions: Vec<CheckAction>,
}

/// A check run as GitHub keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CheckRun {
    /// Numeric id.
    pub id: u64,
    /// Commit.
    pub head_sha: String,
    /// `queued`, `in_progress`, `completed`.
    pub status: String,
    /// How it ended, once it did.
    #[serde(default)]
    pub conclusion: Option<String>,
    /// Its page.
    #[serde(default)]
    pub html_url: Option<String>,
}

/// Longest summary and text, in characters (GitHub: 65,535).
const LONGEST: usize = 65_535;
const CUT: &str = "\n\n… cut";

impl NewCheck {
    fn body(&self) -> Value {
        let (status, conclusion) = match self.state {
            CheckState::Queued => ("queued", None),
            CheckState::InProgress => ("in_progress", None),
            CheckState::Completed(conclusion) => ("completed", Some(conclusion.as_str())),
        };
        let mut output =
            json!({ "title": cut(&self.title, 255, "…"), "summary": cut(&self.summary, LONGEST, CUT) });
        if let Some(text) = &self.text {
            output["text"] = cut(text, LONGEST, CUT).into();
        }
        let actions: Vec<Value> = self
            .actions
            .iter()
            .take(3)
            .map(|action| {
                json!({
                    "label": cut(&action.label, 20, "…"),
                    "description": cut(&action.description, 40, "…"),
                    "identifier": action.identifier,
                })
            })
            .collect();
        let mut body = json!({
            "name": self.name,
            "head_sha": self.head_sha,
            "status": status,
            "output": output,
            "actions": actions,
        });
        let optional = [
            ("conclusion", conclusion),
            ("external_id", self.external_id.as_deref()),
            ("details_url", self.details_url.as_deref()),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                body[name] = value.into();
            }
        }
        body
    }
}

/// Cuts a text to so many characters, and says so in it.
fn cut(text: &str, most: usize, mark: &str) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(mark.chars().count())).collect();
    short.push_str(mark);
    short
}

impl Github {
    /// Makes a check run.
    pub async fn create_check(
        &self,
        repository: &RepositoryPath,
        check: &NewCheck,
    ) -> Result<CheckRun, GithubError> {
        let call = Call::post("check-create", format!("/repos/{repository}/check-runs"))
            .body(check.body())
            .content();
        self.installed(&repository.clone().into(), call).await?.json()
    }

    /// Says something else in a check run. The commit stays as it was.
    pub async fn update_check(
        &self,
        repository: &RepositoryPath,
        id: u64,
        check: &NewCheck,
    ) -> Result<CheckRun, GithubError> {
        let mut body = check.body();
        if let Some(body) = body.as_object_mut() {
            body.remove("head_sha");
        }
        let call =
            Call::patch("check-update", format!("/repos/{repository}/check-runs/{id}")).body(body).by_first();
        self.installed(&repository.clone().into(), call).await?.json()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_says_what_github_takes() {
        let check = NewCheck {
            name: "forgeyard".into(),
            head_sha: "a".repeat(40),
            external_id: None,
            details_url: Some("https://farm.example/why".into()),
            state: CheckState::Completed(Conclusion::ActionRequired),
            title: "t".into(),
            summary: "ä".repeat(70_000),
            text: None,
            actions: (0..5)
                .map(|index| CheckAction {
                    label: "Approve this commit, please".into(),
                    description: "d".repeat(50),
                    identifier: format!("approve{index}"),
                })
                .collect(),
        };
        let body = check.body();
        assert_eq!(
            (body["status"].as_str(), body["conclusion"].as_str()),
            (Some("completed"), Some("action_required"))
        );
        let summary = body["output"]["summary"].as_str().unwrap();
        assert_eq!(summary.chars().count(), LONGEST);
        assert!(summary.ends_with("cut"));
        assert_eq!(body["actions"].as_array().unwrap().len(), 3);
        assert_eq!(body["actions"][0]["label"].as_str().unwrap().chars().count(), 20);
        assert!(body.get("external_id").is_none());
    }
}
