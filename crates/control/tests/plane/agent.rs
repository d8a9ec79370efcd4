//! A *simulated* agent: it speaks `/agent/v1` with the real client, runs nothing, and says what a test lets it say.

use bytes::Bytes;
use forgeyard_api::agent::{Redeem, Redeemed, VERSION};
use forgeyard_api::client::agent::{AgentClient, Session};
use forgeyard_api::client::{ClientError, HttpOptions};
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::resources::DeviceKind;
use forgeyard_model::site::DesiredRunner;
use forgeyard_model::verdict::{DeviceUse, ExitFacts, StepFacts};
use forgeyard_model::{Digest, Secret, Timestamp};

/// An agent that has its job.
pub struct Agent {
    pub client: AgentClient,
    pub session: Session,
    pub job: Redeemed,
}

pub fn client(url: &str) -> AgentClient {
    AgentClient::new(url, &HttpOptions::default()).unwrap()
}

pub fn redeem(token: &str, nonce: &str) -> Redeem {
    Redeem { version: VERSION, token: token.to_owned(), nonce: nonce.to_owned() }
}

impl Agent {
    /// Redeems the token of a machine and begins the first step.
    pub async fn begin(url: &str, machine: &DesiredRunner) -> Self {
        let agent = Self::redeem(url, machine, "a nonce of tests").await;
        agent.client.heartbeat(&agent.session, None).await.unwrap();
        agent.client.heartbeat(&agent.session, Some(agent.step())).await.unwrap();
        agent
    }

    /// Redeems the token of a machine.
    pub async fn redeem(url: &str, machine: &DesiredRunner, nonce: &str) -> Self {
        let client = client(url);
        let job = client.redeem(&redeem(&machine.token, nonce)).await.unwrap();
        let token = Secret::new(job.session.clone());
        let session = Session { attempt: job.attempt, fence: job.fence, token };
        Self { client, session, job }
    }

    /// Name of the job's step: `plan`, `build` or `test`.
    pub fn step(&self) -> &str {
        &self.job.spec.steps[0].name
    }

    /// Uploads under the true digest.
    pub async fn upload(
        &self,
        kind: ArtifactKind,
        name: &str,
        bytes: &[u8],
    ) -> Result<Artifact, ClientError> {
        self.upload_as(kind, name, Digest::of(bytes), bytes).await
    }

    /// Uploads under any digest.
    pub async fn upload_as(
        &self,
        kind: ArtifactKind,
        name: &str,
        digest: Digest,
        bytes: &[u8],
    ) -> Result<Artifact, ClientError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let body = tokio::fs::File::open(file.path()).await.unwrap();
        self.client.artifact(&self.session, kind, name, digest, body, bytes.len() as u64).await
    }

    pub async fn log(&self, offset: u64, text: &str) -> Result<u64, ClientError> {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        self.client.log(&self.session, offset, bytes).await.map(|answer| answer.durable)
    }

    /// What a supervisor says of a job whose step ended so.
    pub fn facts(&self, exit_code: i32) -> ExitFacts {
        let at = Timestamp::from_micros(1_700_000_000_000_000);
        let step = StepFacts {
            name: self.step().to_owned(),
            started_at: at,
            ended_at: at,
            exit_code: Some(exit_code),
            signal: None,
        };
        let device = (!self.job.devices.is_empty()).then(|| DeviceUse {
            kind: DeviceKind::OpenclCpu,
            touched: true,
            evidence: vec!["simulated".to_owned()],
        });
        let installed = self.job.spec.subject.iter();
        let installed = installed.map(|subject| (subject.file_name.clone(), subject.digest.to_string()));
        ExitFacts { steps: vec![step], device, installed: installed.collect(), ..ExitFacts::default() }
    }

    /// Ends the attempt with this exit code of its step.
    pub async fn finish(&self, exit_code: i32) -> Result<(), ClientError> {
        self.client.finish(&self.session, &self.facts(exit_code)).await
    }
}
