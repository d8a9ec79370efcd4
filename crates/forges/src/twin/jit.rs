//! JIT configurations: what is in one, and the one time that it connects.
//!
//! Form: base64 over a JSON object of file names and base64 texts, as the runner program takes it. What opens the
//! connection is `clientId` in `.credentials`; everything in it is made up from the seed.

use super::runners::RunnerSpec;
use super::state::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Why a JIT configuration did not connect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// It is not one.
    #[error("the JIT configuration cannot be read")]
    Unreadable,
    /// It was used before.
    #[error("TaskAgentSessionConflictException: the JIT configuration of this runner was used before")]
    UsedBefore,
    /// Its runner was removed, or it came too late.
    #[error("the registration of this runner has been deleted from the server")]
    Gone,
}

impl State {
    /// Base64 over a JSON object of file names and base64 texts, as the runner program takes it.
    pub(super) fn encode_jit(&self, id: u64, spec: &RunnerSpec, secret: &str) -> String {
        let runner = json!({
            "AgentId": id.to_string(),
            "AgentName": spec.name,
            "DisableUpdate": "True",
            "Ephemeral": "True",
            "PoolId": "1",
            "PoolName": self.group_name(spec.group),
            "ServerUrl": self.urls.actions,
            "WorkFolder": spec.work_folder,
            "Simulated": "True",
        });
        let credentials = json!({
            "scheme": "OAuth",
            "data": { "clientId": secret, "authorizationUrl": format!("{}/_apis/oauth2/token", self.urls.actions) },
        });
        let files = json!({
            ".runner": STANDARD.encode(runner.to_string()),
            ".credentials": STANDARD.encode(credentials.to_string()),
            ".credentials_rsaparams": STANDARD.encode(json!({ "simulated": true }).to_string()),
        });
        STANDARD.encode(files.to_string())
    }

    /// A runner program connects with its JIT configuration; a job may be handed to it at once.
    pub fn connect(&mut self, encoded: &str) -> Result<u64, ConnectError> {
        let id = self.connect_quietly(encoded)?;
        self.settle();
        Ok(id)
    }

    /// The same, but nothing is handed out yet.
    pub(super) fn connect_quietly(&mut self, encoded: &str) -> Result<u64, ConnectError> {
        let secret = jit_secret(encoded).ok_or(ConnectError::Unreadable)?;
        if self.jit_used.contains(&secret) {
            return Err(ConnectError::UsedBefore);
        }
        let id = self.jit.remove(&secret).ok_or(ConnectError::Gone)?;
        let now = self.now;
        let validity = self.setup.jit_validity;
        let row = self.runners.get_mut(&id).ok_or(ConnectError::Gone)?;
        if now.since(row.created_at) > validity {
            return Err(ConnectError::Gone);
        }
        row.online = true;
        row.connected = true;
        self.jit_used.insert(secret);
        self.listen(id);
        Ok(id)
    }
}

/// The secret inside an encoded JIT configuration.
fn jit_secret(encoded: &str) -> Option<String> {
    let files: Value = serde_json::from_slice(&STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let credentials = STANDARD.decode(files.get(".credentials")?.as_str()?).ok()?;
    let credentials: Value = serde_json::from_slice(&credentials).ok()?;
    Some(credentials.get("data")?.get("clientId")?.as_str()?.to_owned())
}
