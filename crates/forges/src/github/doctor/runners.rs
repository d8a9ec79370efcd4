//! Runners: one is really registered and deleted; the group that they join; scale sets; what is left of the limits.

use super::{Chart, SECOND_APP, SetQuestion};
use crate::github::answer;
use crate::github::client::Call;
use crate::github::endpoint::{RepositoryPath, Target};
use crate::github::error::GithubError;
use crate::github::runners::{Deleted, Jit, JitRequest};
use serde::Deserialize;

/// Label of the trial runner: no job asks for it, and the runner never connects.
const LABEL: &str = "forgeyard-doctor";
/// What must be left of a limit, in hundredths.
const LEAST: u64 = 10;

#[derive(Deserialize)]
struct GroupView {
    name: String,
    #[serde(default, deserialize_with = "answer::or_default")]
    visibility: String,
    #[serde(default)]
    allows_public_repositories: bool,
    #[serde(default)]
    restricted_to_workflows: bool,
}

#[derive(Deserialize)]
struct RepositoryView {
    #[serde(default)]
    private: bool,
}

#[derive(Deserialize)]
struct Limits {
    resources: Resources,
}

#[derive(Deserialize)]
struct Resources {
    core: Limit,
}

#[derive(Deserialize)]
struct Limit {
    limit: u64,
    remaining: u64,
}

impl Chart<'_> {
    /// The page with the runners of a target.
    fn runners_page(&self, target: &Target) -> String {
        match target {
            Target::Organisation(org) => {
                format!("{}/organizations/{org}/settings/actions/runners", self.web())
            }
            Target::Repository(path) => format!("{}/{path}/settings/actions/runners", self.web()),
        }
    }

    /// Makes a configuration for a runner that never starts, and deletes it.
    pub(super) async fn trial(&mut self, target: &Target) {
        if !self.questions.mint {
            return;
        }
        let page = self.runners_page(target);
        let request = JitRequest {
            name: format!("forgeyard-doctor-{}", self.questions.mark),
            runner_group_id: self.questions.runner_group,
            labels: vec![LABEL.to_owned()],
            work_folder: None,
        };
        let name = request.name.clone();
        let minted = match self.github.mint_jit(target, &request).await {
            Ok(Jit::Minted { runner, .. }) => {
                self.good("runner.mint", target, format!("`{name}` was registered as {}", runner.id));
                runner.id
            }
            Ok(Jit::NameTaken) => {
                return self.bad(
                    "runner.mint",
                    target,
                    format!("a runner `{name}` is there already"),
                    format!("delete it: {page}"),
                );
            }
            Err(error) => {
                // The answer may be lost and the runner made.
                let left = error.outcome_unknown().then_some(name.as_str());
                self.failed("runner.mint", target, &error, &page);
                if let Some(name) = left {
                    self.swept(target, name, &page).await;
                }
                return;
            }
        };
        let deleted = self.github.delete_runner(target, minted).await;
        let left = match (deleted, self.github.runner(target, minted).await) {
            (Ok(Deleted::Gone | Deleted::WasGone), Ok(None)) => None,
            (Err(error), _) | (_, Err(error)) => Some(error.to_string()),
            _ => Some("GitHub still shows it".to_owned()),
        };
        match left {
            None => self.good("runner.delete", target, format!("`{name}` was deleted again")),
            Some(why) => {
                let text = format!("`{name}` (id {minted}) is left behind: {why}");
                self.bad("runner.delete", target, text, format!("delete it, it never connects: {page}"));
            }
        }
    }

    /// Deletes a trial runner whose making was not answered, if it was made.
    async fn swept(&mut self, target: &Target, name: &str, page: &str) {
        let found = match self.github.runner_by_name(target, name).await {
            Ok(None) => return,
            Ok(Some(runner)) => self.github.delete_runner(target, runner.id).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = found {
            let text = format!("`{name}` may be left behind: {error}");
            self.bad("runner.delete", target, text, format!("delete it if it is there: {page}"));
        }
    }

    /// The group that runners of an organisation join, and who may use it.
    pub(super) async fn group(&mut self, target: &Target) {
        let Target::Organisation(org) = target else { return };
        let id = self.questions.runner_group;
        let page = format!("{}/organizations/{org}/settings/actions/runner-groups/{id}", self.web());
        let call = Call::get("runner-group", format!("{}/actions/runner-groups/{id}", target.path()));
        let read = async || self.github.installed(target, call).await?.json::<GroupView>();
        let group = match read().await {
            Ok(group) => group,
            Err(error) => return self.failed("runner.group", target, &error, &page),
        };
        let mut notes = vec![format!("`{}`", group.name)];
        if group.visibility == "selected" {
            notes.push("only selected repositories may use it".to_owned());
        }
        if group.restricted_to_workflows {
            notes.push("only selected workflows may use it".to_owned());
        }
        if group.allows_public_repositories {
            notes.push("public repositories may use it".to_owned());
        }
        let mut shut_out = Vec::new();
        for path in self.questions.repositories.clone() {
            if path.owner() != org || group.allows_public_repositories {
                continue;
            }
            match self.private(&path).await {
                Ok(true) => {}
                Ok(false) => shut_out.push(path.to_string()),
                Err(error) => self.failed("runner.group", &path, &error, &page),
            }
        }
        if shut_out.is_empty() {
            return self.good("runner.group", target, notes.join("; "));
        }
        let text = format!(
            "{} does not admit public repositories, so jobs of {} would wait for ever",
            notes.join("; "),
            shut_out.join(", ")
        );
        self.bad(
            "runner.group",
            target,
            text,
            format!("allow public repositories, or take another group: {page}"),
        );
    }

    async fn private(&self, path: &RepositoryPath) -> Result<bool, GithubError> {
        let call = Call::get("repository", format!("/repos/{path}"));
        let view = self.github.installed(&path.clone().into(), call).await?.json::<RepositoryView>()?;
        Ok(view.private)
    }

    /// Whether a scale set is there, or can be made.
    pub(super) async fn scale_set(&mut self, set: &SetQuestion) {
        let of = format!("{} ({})", set.name, set.at);
        let page = self.runners_page(&set.at);
        let sets = self.github.scale_sets(set.at.clone());
        let group = match sets.group(&set.group).await {
            Ok(Some(group)) => group,
            Ok(None) => {
                let text = format!("there is no runner group `{}`", set.group);
                return self.bad(
                    "scale_set",
                    of,
                    text,
                    format!("make it, or name another in `group`: {page}"),
                );
            }
            Err(error) => return self.failed("scale_set", of, &error, &page),
        };
        match sets.find(group.id, &set.name).await {
            Ok(Some(found)) => self.good("scale_set", of, format!("it is there, as {}", found.id)),
            Ok(None) => {
                self.unknown("scale_set", of, "it is not there yet; the farm makes it when it starts", "")
            }
            Err(error) => self.failed("scale_set", of, &error, &page),
        }
    }

    /// What is left of the hour's calls.
    pub(super) async fn limits(&mut self, target: &Target) {
        if !self.github.endpoint().metered() {
            return self.good("limits", target, "an Enterprise Server has none unless its operator set some");
        }
        let call = Call::get("limits", "/rate_limit".to_owned());
        let read = async || self.github.installed(target, call).await?.json::<Limits>();
        match read().await {
            Ok(Limits { resources: Resources { core: Limit { limit, remaining } } }) => {
                let text = format!("{remaining} of {limit} calls of this hour are left");
                if remaining.saturating_mul(100) >= limit.saturating_mul(LEAST) {
                    self.good("limits", target, text);
                } else {
                    self.bad("limits", target, text, SECOND_APP);
                }
            }
            Err(error) => self.failed("limits", target, &error, ""),
        }
    }
}
