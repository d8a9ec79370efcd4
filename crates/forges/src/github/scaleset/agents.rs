//! Runners of a scale set, which the actions service calls agents: minting, finding, deleting.

use super::super::answer;
use super::super::cause::Cause;
use super::super::error::GithubError;
use super::super::runners::{Deleted, Jit, MintedRunner};
use super::connection::Service;
use super::{Listed, SETS, ScaleSets, only};
use forgeyard_model::Secret;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

/// A registered runner, as the actions service has it. Its id is not the id of the REST interface.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Agent {
    /// Numeric id there.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Its scale set; none for a runner that was registered otherwise.
    #[serde(default, rename = "runnerScaleSetId", deserialize_with = "answer::optional_id")]
    pub scale_set: Option<u64>,
}

#[derive(Deserialize)]
struct Minted {
    runner: MintedRunner,
    #[serde(rename = "encodedJITConfig")]
    config: Secret,
}

const AGENTS: &str = "/_apis/distributedtask/pools/0/agents";

impl ScaleSets {
    /// Mints the configuration of one runner of a scale set, for one job. To be called when the machine is up.
    pub async fn mint_jit(&self, set: u64, name: &str, work_folder: &str) -> Result<Jit, GithubError> {
        let call = Service::new(Method::POST, format!("{SETS}/{set}/generatejitconfig"))
            .of_set(set)
            .body(json!({ "name": name, "workFolder": work_folder }));
        let answer = self.admin_call(call).await?;
        if !answer.succeeded() && matches!(answer.cause(), Cause::NameTaken) {
            return Ok(Jit::NameTaken);
        }
        let minted: Minted = answer.json()?;
        Ok(Jit::Minted { runner: minted.runner, config: minted.config })
    }

    /// The runner of a name. If it belongs to another scale set, another name is to be used.
    pub async fn agent_by_name(&self, name: &str) -> Result<Option<Agent>, GithubError> {
        let call = Service::new(Method::GET, AGENTS).query("agentName", name);
        let found: Listed<Agent> = self.admin_call(call).await?.json()?;
        Ok(only(found.value.into_iter().filter(|agent| agent.name == name).collect()))
    }

    /// A runner by id; none if it is not registered any more.
    pub async fn agent(&self, id: u64) -> Result<Option<Agent>, GithubError> {
        let answer = self.admin_call(Service::new(Method::GET, format!("{AGENTS}/{id}"))).await?;
        let missing = !answer.succeeded() && matches!(answer.cause(), Cause::NotFound | Cause::AgentUnknown);
        if missing { Ok(None) } else { answer.json().map(Some) }
    }

    /// Deletes a registration. The service also says "done" when it knows no such runner (ARC ADR 2022-12-27), so
    /// [`Deleted::Gone`] does not prove that it was there.
    pub async fn delete_agent(&self, id: u64) -> Result<Deleted, GithubError> {
        let answer = self.admin_call(Service::new(Method::DELETE, format!("{AGENTS}/{id}"))).await?;
        if answer.succeeded() {
            return Ok(Deleted::Gone);
        }
        match answer.cause() {
            Cause::RunnerBusy => Ok(Deleted::Busy),
            Cause::NotFound | Cause::AgentUnknown => Ok(Deleted::WasGone),
            _ => Err(answer.refusal()),
        }
    }
}
