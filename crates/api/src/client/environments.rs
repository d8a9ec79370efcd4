//! What the environment service asks of the farm.

use super::{Client, ClientError};
use crate::people::EnvironmentResult;
use forgeyard_model::EnvironmentId;
use forgeyard_model::environment::Environment;
use std::time::Duration;

impl Client {
    /// The next environment to make; `None` when none was asked for within `wait`.
    pub async fn environment_work(&self, wait: Duration) -> Result<Option<Environment>, ClientError> {
        self.get(&format!("/api/v1/environment-work?wait_seconds={}", wait.as_secs()), wait).await
    }

    /// Posts what came of making an environment.
    pub async fn post_environment_result(
        &self,
        id: EnvironmentId,
        result: &EnvironmentResult,
    ) -> Result<(), ClientError> {
        self.post(&format!("/api/v1/environments/{id}/result"), result).await
    }
}
