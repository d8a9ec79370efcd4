//! Calls and answers of the REST interface, `/api/v1`.

use super::ForgejoError;
use crate::github::answer;
use crate::github::endpoint::address;
use crate::github::error::GithubError;
use crate::github::wire::{HttpOptions, Proof, Request, Wire as Http};
use forgeyard_model::Secret;
use forgeyard_model::forge::Person;
use reqwest::{Method, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A job that waits for a runner or has one (`ActionRunJob`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WaitingJob {
    /// Its id, the same for all attempts.
    pub id: u64,
    /// Its run; servers before Forgejo 15 do not tell it.
    #[serde(default, deserialize_with = "answer::optional_id")]
    pub run_id: Option<u64>,
    /// Number of the attempt, from 1.
    #[serde(default, deserialize_with = "answer::optional_id")]
    pub attempt: Option<u64>,
    /// Names this attempt of this job; opaque.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub handle: Option<String>,
    /// Its repository.
    pub repo_id: u64,
    /// Its name.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub name: String,
    /// Labels that it asks for.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub runs_on: Vec<String>,
    /// `waiting`, `running`, `blocked`.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub status: String,
}

/// The number of an attempt of a job, as the ledger of demand counts: the id itself for the first attempt.
pub fn job_number(id: u64, attempt: u64) -> u64 {
    let again = attempt.saturating_sub(1).min(0x7fff);
    id | (again << 48)
}

impl WaitingJob {
    /// See [`job_number`].
    pub fn number(&self) -> u64 {
        job_number(self.id, self.attempt.unwrap_or(1))
    }
}

/// A run (`ActionRun`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Run {
    /// Its id.
    pub id: u64,
    /// Who started it.
    #[serde(default)]
    pub trigger_user: Option<Person>,
    /// The repository that it belongs to.
    #[serde(default)]
    pub repository: Option<RepositoryId>,
    /// Name of the ref, as people see it: a branch, or `#12`.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub prettyref: Option<String>,
    /// Commit.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub commit_sha: String,
    /// Whether it runs code of another repository.
    pub is_fork_pull_request: bool,
    /// Event, `push`.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub event: String,
    /// The event's webhook, as text.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub event_payload: String,
    /// `success`, `failure`, `running`, …
    #[serde(default, deserialize_with = "answer::or_default")]
    pub status: String,
}

/// A repository, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct RepositoryId {
    /// Numeric id.
    pub id: u64,
}

#[derive(Deserialize)]
struct Payload {
    #[serde(default, rename = "ref", deserialize_with = "answer::optional_text")]
    git_ref: Option<String>,
    #[serde(default)]
    pull_request: Option<PullRequest>,
}

#[derive(Deserialize)]
struct PullRequest {
    number: u64,
    #[serde(default)]
    user: Option<Person>,
    #[serde(default)]
    head: Option<Head>,
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    repo: Option<RepositoryId>,
}

/// The pull request of a run, as its event tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OfPull {
    /// Its number.
    pub number: Option<u64>,
    /// Who opened it.
    pub author: Option<Person>,
    /// Where its commits come from.
    pub head: Option<u64>,
}

impl Run {
    /// What the event tells of a pull request. A text that cannot be read tells nothing.
    pub fn pull(&self) -> OfPull {
        let read = serde_json::from_str::<Payload>(&self.event_payload)
            .ok()
            .and_then(|payload| payload.pull_request);
        read.map_or_else(OfPull::default, |pull| OfPull {
            number: Some(pull.number),
            author: pull.user,
            head: pull.head.and_then(|head| head.repo).map(|repository| repository.id),
        })
    }

    /// The branch that was pushed, by the event. What people see ([`Run::prettyref`]) does not tell a tag from a branch.
    pub fn branch(&self) -> Option<String> {
        let payload = serde_json::from_str::<Payload>(&self.event_payload).ok()?;
        Some(payload.git_ref?.strip_prefix("refs/heads/")?.to_owned())
    }

    /// The repository that its code comes from. A fork that is gone, or is not named, is none: never the own one.
    pub fn head_repository(&self) -> Option<u64> {
        let own = self.repository.map(|repository| repository.id);
        let head = self.pull().head;
        match (self.is_fork_pull_request, head) {
            (false, None) => own,
            (false, Some(head)) => Some(head),
            // The flag also stands for people who are not trusted; the event says whose code it is.
            (true, head) => head.filter(|head| Some(*head) != own),
        }
    }
}

/// What registering gives.
#[derive(Debug, Clone, Deserialize)]
pub struct Registered {
    /// Numeric id.
    pub id: u64,
    /// Name of the runner's account.
    pub uuid: String,
    /// Its password: 40 hexadecimal digits.
    pub token: Secret,
}

/// What a repository registers runners with, where that is not done by REST.
#[derive(Deserialize)]
pub(super) struct RegistrationToken {
    pub(super) token: Secret,
}

/// What the runner protocol's own registration gives.
#[derive(Deserialize)]
pub(super) struct RegisteredByToken {
    pub(super) runner: RunnerMessage,
}

/// A runner as the runner protocol writes it: in its JSON, numbers of 64 bits are text, and `false` is left out.
#[derive(Deserialize)]
pub(super) struct RunnerMessage {
    #[serde(deserialize_with = "number_as_text")]
    pub(super) id: u64,
    pub(super) uuid: String,
    pub(super) token: Secret,
    #[serde(default)]
    pub(super) ephemeral: bool,
}

fn number_as_text<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        Text(String),
    }
    match Either::deserialize(from)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

/// A runner.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Runner {
    /// Numeric id.
    pub id: u64,
    /// Name.
    pub name: String,
    /// `offline`, `idle`, `active`.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub status: String,
    /// Whether it is of one use.
    #[serde(default)]
    pub ephemeral: bool,
}

impl Runner {
    /// Whether a job runs on it.
    pub fn busy(&self) -> bool {
        self.status == "active"
    }
}

#[derive(Deserialize, Default)]
struct Refusal {
    #[serde(default, deserialize_with = "answer::or_default")]
    message: String,
}

/// One server with one token.
#[derive(Clone)]
pub(super) struct Wire {
    http: Http,
    web: String,
    token: Secret,
}

impl From<GithubError> for ForgejoError {
    fn from(error: GithubError) -> Self {
        match error {
            GithubError::Setup { what, reason } => Self::Setup { what, reason },
            GithubError::Transport { call, source } => Self::Transport { call, source },
            GithubError::Answer { call, field, reason } => Self::Answer { call, field, reason },
            other => Self::Setup { what: "the call".to_owned(), reason: other.to_string() },
        }
    }
}

impl Wire {
    pub(super) fn new(web: &str, token: Secret, options: &HttpOptions) -> Result<Self, ForgejoError> {
        if token.expose().trim().is_empty() {
            let reason = "it is empty, and nothing is asked anonymously".to_owned();
            return Err(ForgejoError::Setup { what: "token".to_owned(), reason });
        }
        Ok(Self { http: Http::new(options)?, web: address(web)?, token })
    }

    pub(super) fn web(&self) -> &str {
        &self.web
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<serde_json::Value>,
    ) -> Result<(String, Vec<u8>), ForgejoError> {
        self.call_at(&format!("/api/v1{path}"), format!("{method} {path}"), method, query, body).await
    }

    async fn call_at(
        &self,
        at: &str,
        call: String,
        method: Method,
        query: &[(&str, String)],
        body: Option<serde_json::Value>,
    ) -> Result<(String, Vec<u8>), ForgejoError> {
        let text = format!("{}{at}", self.web);
        let mut url = Url::parse(&text).map_err(|error| ForgejoError::Setup {
            what: format!("address `{text}`"),
            reason: error.to_string(),
        })?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query.iter().map(|(name, value)| (*name, value.as_str())));
        }
        let headers = vec![("accept", "application/json".to_owned())];
        let proof = Proof::Bearer(self.token.clone());
        let request = Request { call: call.clone(), method, url, proof, headers, body, timeout: None };
        let answer = self.http.exchange(request).await?;
        if answer.succeeded() {
            return Ok((call, answer.body.to_vec()));
        }
        let Refusal { message } = serde_json::from_slice(&answer.body).unwrap_or_default();
        // It ends up in logs and terminals.
        let text =
            message.chars().take(400).map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        Err(ForgejoError::Refused { call, status: answer.status, text })
    }

    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, ForgejoError> {
        let (call, body) = self.call(Method::GET, path, query, None).await?;
        Ok(answer::read(&call, &body)?)
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: serde_json::Value,
    ) -> Result<T, ForgejoError> {
        let (call, body) = self.call(Method::POST, path, &[], Some(body)).await?;
        Ok(answer::read(&call, &body)?)
    }

    /// A call of the runner protocol: unary Connect with JSON. What it is allowed by is in its message.
    pub(super) async fn runner_service<T: DeserializeOwned>(
        &self,
        name: &str,
        body: serde_json::Value,
    ) -> Result<T, ForgejoError> {
        let at = format!("/api/actions/runner.v1.RunnerService/{name}");
        let (call, body) = self.call_at(&at, name.to_owned(), Method::POST, &[], Some(body)).await?;
        Ok(answer::read(&call, &body)?)
    }

    pub(super) async fn delete(&self, path: &str) -> Result<(), ForgejoError> {
        self.call(Method::DELETE, path, &[], None).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(fork: bool, payload: &str) -> Run {
        let text = serde_json::json!({
            "id": 891, "is_fork_pull_request": fork, "event": "pull_request", "event_payload": payload,
            "repository": { "id": 1 }, "trigger_user": { "id": 2, "login": "ada" }, "prettyref": "#7", "commit_sha": "a",
        });
        answer::read("GET /run", text.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn whose_code_a_run_is_comes_from_its_event_and_a_fork_is_never_the_repository_itself() {
        let from = |id: u64| {
            format!(
                "{{\"pull_request\":{{\"number\":7,\"user\":{{\"id\":3,\"login\":\"bob\"}},\"head\":{{\"repo\":{{\"id\":{id}}}}}}}}}"
            )
        };
        assert_eq!(run(false, "").head_repository(), Some(1));
        assert_eq!(run(false, &from(1)).head_repository(), Some(1));
        assert_eq!(run(true, &from(9)).head_repository(), Some(9));
        assert_eq!(run(false, &from(9)).head_repository(), Some(9));
        // A fork that is gone, an event that cannot be read, and one that contradicts the flag.
        let gone = "{\"pull_request\":{\"number\":7,\"head\":{\"repo\":null}}}";
        for payload in [gone, "", "{", &from(1)] {
            assert_eq!(run(true, payload).head_repository(), None, "{payload}");
        }
        let pull = run(true, &from(9)).pull();
        assert_eq!((pull.number, pull.author.map(|author| author.id)), (Some(7), Some(3)));
    }

    /// A tag that is called as a protected branch is no push to that branch.
    #[test]
    fn a_branch_is_told_from_a_tag_of_its_name() {
        assert_eq!(run(false, r#"{"ref":"refs/heads/main"}"#).branch().as_deref(), Some("main"));
        for payload in [r#"{"ref":"refs/tags/main"}"#, r#"{"ref":"main"}"#, "{}", ""] {
            assert_eq!(run(false, payload).branch(), None, "{payload}");
        }
    }

    #[test]
    fn a_run_that_does_not_say_whether_it_is_a_forks_is_not_believed() {
        assert!(answer::read::<Run>("GET /run", br#"{"id":1}"#).is_err());
    }

    #[test]
    fn a_job_that_is_run_again_has_another_number() {
        let job: WaitingJob = answer::read(
            "GET /jobs",
            br#"{"id":394,"run_id":891,"attempt":2,"handle":"a723d3e3","repo_id":1,"owner_id":2,"name":"job_2",
            "needs":null,"runs_on":["debian-latest"],"task_id":47,"status":"waiting"}"#,
        )
        .unwrap();
        assert_eq!((job.id, job.run_id, job.handle.as_deref()), (394, Some(891), Some("a723d3e3")));
        assert_ne!(job.number(), job_number(394, 1));
        assert_eq!(job_number(394, 1), 394);
        let old: WaitingJob = answer::read("GET /jobs", br#"{"id":1,"repo_id":1}"#).unwrap();
        assert_eq!((old.number(), old.handle, old.run_id), (1, None, None));
    }

    proptest! {
        #[test]
        fn no_payload_makes_a_fork_the_repository_itself(payload in ".{0,200}") {
            prop_assert_ne!(run(true, &payload).head_repository(), Some(1));
        }
    }
}
