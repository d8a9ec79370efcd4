//! What the agent of a runner of a forge asks beside the rest.

use super::agent::{AgentClient, Session};
use super::http::{self, ClientError};
use crate::runner::{self, FetchConfig, FetchedConfig, Took};
use forgeyard_model::Secret;
use forgeyard_model::registration::{TakenAnswer, TakenJob};
use reqwest::Method;

impl AgentClient {
    /// The configuration of the runner; `None` when there is none yet.
    pub async fn runner_config(&self, session: &Session) -> Result<Option<Secret>, ClientError> {
        let (call, builder) = self.call(session, Method::POST, runner::CONFIG);
        let fetch = FetchConfig { fence: session.fence };
        let fetched: FetchedConfig = http::json(call, builder.json(&fetch)).await?;
        Ok(fetched.config)
    }

    /// Says what the runner took, and learns whether that may run.
    pub async fn runner_took(&self, session: &Session, job: &TakenJob) -> Result<TakenAnswer, ClientError> {
        let (call, builder) = self.call(session, Method::POST, runner::TOOK);
        http::json(call, builder.json(&Took { fence: session.fence, job: job.clone() })).await
    }
}
