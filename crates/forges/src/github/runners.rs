//! Runners of an organisation or repository: configurations for one job, reading, deleting, registration tokens.
//!
//! How a machine ends (runners.md §3.2): read the runner again with [`Github::runner`], since lists lag; delete its
//! registration; only then end the machine. If the registration cannot be deleted, keep the machine and try again.

use super::answer;
use super::budget::Bucket;
use super::cause::Cause;
use super::client::{Call, Github};
use super::endpoint::Target;
use super::error::GithubError;
use super::link;
use forgeyard_model::{Secret, Timestamp};
use serde::{Deserialize, Deserializer};
use serde_json::json;

/// A registered runner.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Runner {
    /// Numeric id at the organisation or repository.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Whether it is connected.
    #[serde(rename = "status", deserialize_with = "is_online")]
    pub online: bool,
    /// Whether a job runs on it. In lists this lags.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub busy: bool,
    /// Its labels.
    #[serde(default, deserialize_with = "label_names")]
    pub labels: Vec<String>,
    /// Its group, where GitHub gives it.
    #[serde(default, deserialize_with = "answer::optional_id")]
    pub runner_group_id: Option<u64>,
}

fn is_online<'de, D: Deserializer<'de>>(reader: D) -> Result<bool, D::Error> {
    Ok(String::deserialize(reader)? == "online")
}

fn label_names<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    struct Label {
        name: String,
    }
    let labels: Option<Vec<Label>> = Option::deserialize(reader)?;
    Ok(labels.unwrap_or_default().into_iter().map(|label| label.name).collect())
}

/// What a configuration is to be minted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JitRequest {
    /// Name of the runner, unique per attempt.
    pub name: String,
    /// Runner group; 1 is the default group, 2 is GitHub's own and refused.
    pub runner_group_id: u64,
    /// 1 to 100 labels.
    pub labels: Vec<String>,
    /// Folder for the work, relative or absolute; `_work` if none.
    pub work_folder: Option<String>,
}

/// What came of minting.
#[derive(Debug, Clone)]
pub enum Jit {
    /// A configuration. It registers one runner, once, and is good for a few minutes.
    Minted {
        /// The runner as registered. Minting by a scale set gives only id and name.
        runner: MintedRunner,
        /// What the runner program gets with `--jitconfig`.
        config: Secret,
    },
    /// A runner of this name is registered (409). If our machine of that name has not started: delete it and mint
    /// again; if it is another's: take another name.
    NameTaken,
}

/// The runner that a configuration is for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MintedRunner {
    /// Numeric id.
    pub id: u64,
    /// Name.
    pub name: String,
}

#[derive(Deserialize)]
struct Minted {
    runner: MintedRunner,
    encoded_jit_config: Secret,
}

/// What came of deleting a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// It was there and is gone.
    Gone,
    /// It was not there: an ephemeral runner removes itself after its job.
    WasGone,
    /// A job runs on it. Keep the machine, and ask again.
    Busy,
}

/// A token that registers runners, good for an hour and not single-use: it never goes into a machine.
#[derive(Debug, Clone, Deserialize)]
pub struct RegistrationToken {
    /// The token.
    pub token: Secret,
    /// When it ends.
    #[serde(deserialize_with = "answer::time")]
    pub expires_at: Timestamp,
}

#[derive(Deserialize)]
struct RunnerPage {
    runners: Vec<Runner>,
}

/// Pages of 100 that a list is read to: a group holds at most 10,000 runners.
const MOST_PAGES: u32 = 100;

impl Github {
    /// Mints the configuration of one runner for one job. To be called when the machine is up.
    ///
    /// When the answer is lost ([`GithubError::outcome_unknown`]), the name may be registered: the next try is told
    /// [`Jit::NameTaken`].
    pub async fn mint_jit(&self, target: &Target, request: &JitRequest) -> Result<Jit, GithubError> {
        let body = json!({
            "name": request.name,
            "runner_group_id": request.runner_group_id,
            "labels": request.labels,
            "work_folder": request.work_folder.as_deref().unwrap_or("_work"),
        });
        let call = Call::post("jit", format!("{}/actions/runners/generate-jitconfig", target.path()))
            .bucket(Bucket::RunnerRegistration)
            .body(body);
        let answer = self.installed(target, call).await?;
        if answer.status == 409 {
            return match answer.cause() {
                Cause::NameTaken => Ok(Jit::NameTaken),
                _ => Err(answer.refusal()),
            };
        }
        let minted: Minted = answer.json()?;
        Ok(Jit::Minted { runner: minted.runner, config: minted.encoded_jit_config })
    }

    /// One runner, read afresh; none if it is not registered.
    pub async fn runner(&self, target: &Target, id: u64) -> Result<Option<Runner>, GithubError> {
        let call = Call::get("runner", format!("{}/actions/runners/{id}", target.path()));
        let answer = self.installed(target, call).await?;
        if answer.status == 404 { Ok(None) } else { answer.json().map(Some) }
    }

    /// The runner of a name.
    pub async fn runner_by_name(&self, target: &Target, name: &str) -> Result<Option<Runner>, GithubError> {
        let found = self.runner_pages(target, Some(name), 1).await?;
        // The filter of the server may be a prefix, or be ignored by an old server.
        Ok(found.into_iter().find(|runner| runner.name == name))
    }

    /// All runners. `busy` lags here: read a single one before ending its machine.
    pub async fn runners(&self, target: &Target) -> Result<Vec<Runner>, GithubError> {
        self.runner_pages(target, None, MOST_PAGES).await
    }

    async fn runner_pages(
        &self,
        target: &Target,
        name: Option<&str>,
        most: u32,
    ) -> Result<Vec<Runner>, GithubError> {
        let mut all = Vec::new();
        for page in 1..=most {
            let mut call =
                Call::get("runners", format!("{}/actions/runners", target.path())).query("per_page", 100);
            if let Some(name) = name {
                call = call.query("name", name);
            } else {
                call = call.query("page", page).background();
            }
            let answer = self.installed(target, call).await?;
            let more = answer.header("link").is_some_and(|header| link::next(header, "page").is_some());
            let found: RunnerPage = answer.json()?;
            all.extend(found.runners);
            if !more {
                break;
            }
        }
        Ok(all)
    }

    /// Deletes a registration; refused by GitHub while a job runs.
    pub async fn delete_runner(&self, target: &Target, id: u64) -> Result<Deleted, GithubError> {
        let call = Call::delete("runner", format!("{}/actions/runners/{id}", target.path()));
        let answer = self.installed(target, call).await?;
        match answer.status {
            404 => Ok(Deleted::WasGone),
            _ if answer.succeeded() => Ok(Deleted::Gone),
            _ if matches!(answer.cause(), Cause::RunnerBusy) => Ok(Deleted::Busy),
            _ => Err(answer.refusal()),
        }
    }

    /// A token for the actions service.
    pub async fn registration_token(&self, target: &Target) -> Result<RegistrationToken, GithubError> {
        let call =
            Call::post("registration-token", format!("{}/actions/runners/registration-token", target.path()))
                .bucket(Bucket::RunnerRegistration);
        self.installed(target, call).await?.json()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_is_read_with_fields_that_are_new_or_null() {
        let text = br#"{"id":94396871545,"name":"gpu-1","os":"linux","status":"online","busy":true,"new":{},
            "labels":[{"id":5,"name":"self-hosted","type":"read-only"},{"name":"gpu"}],"runner_group_id":0}"#;
        let runner: Runner = answer::read("GET /x", text).unwrap();
        assert_eq!(runner.id, 94_396_871_545);
        assert!(runner.online && runner.busy);
        assert_eq!(
            (runner.labels, runner.runner_group_id),
            (vec!["self-hosted".to_owned(), "gpu".to_owned()], None)
        );
        let bare: Runner =
            answer::read("GET /x", br#"{"id":1,"name":"a","status":"offline","labels":null}"#).unwrap();
        assert!(!bare.online && !bare.busy && bare.labels.is_empty());
    }

    #[test]
    fn a_configuration_is_never_printed() {
        let minted: Minted = answer::read(
            "POST /x",
            br#"{"runner":{"id":23,"name":"a","labels":[]},"encoded_jit_config":"hunter2"}"#,
        )
        .unwrap();
        let jit = Jit::Minted { runner: minted.runner, config: minted.encoded_jit_config };
        assert!(!format!("{jit:?}").contains("hunter2"));
    }
}
