//! Runner scale sets: GitHub's own queue of jobs for a farm, asked for by us, so that no inbound port is needed.
//!
//! Protocol (runners.md §3.6): a registration token opens an *admin connection* at the REST interface, which names
//! the address of the actions service and gives a token for it. There, a *scale set* stands for a pool of runners
//! with labels. One listener holds its *session* and long-polls the session's message queue.
//!
//! **Order of a message, decided by the caller.** The calls are separate so that nothing is lost by a crash between
//! any two:
//!
//! 1. [`Session::poll`] with the stored `lastMessageId`: a message with offers and news;
//! 2. *persist* the message's events and its id;
//! 3. [`Session::acquire`] the offers that are wanted; fewer may be given;
//! 4. *persist* what was acquired;
//! 5. [`Session::acknowledge`]: the message is deleted from the queue.
//!
//! A message that is not acknowledged comes again, so each step must be harmless when done twice. To acknowledge
//! before acquiring, as GitHub's own listener does, loses an offer to a crash in between.
//!
//! **Trouble.** Every error of a poll is retryable: make a new session when [`Cause::SessionGone`] says so or when
//! a refresh keeps failing (ARC #4285, #4356), and keep the stored id. [`Opened::Conflict`] means that the old
//! listener's session has not lapsed: wait, and do not crash (ARC #3209). A new session starts with statistics of
//! zero (ARC #4027), and offers are made three times at most (ARC #4602): polling the REST interface backs it up.
//!
//! Not in GitHub's published limits are calls to the actions service; a 429 of it is told as
//! [`GithubError::Limited`].

mod agents;
mod connection;
mod message;
mod session;

pub use agents::Agent;
pub use message::{JobEvent, JobFacts, Message, Statistics, Unreadable, parse as parse_message};
pub use session::{Opened, Session};

use super::answer;
use super::cause::Cause;
use super::client::Github;
use super::endpoint::Target;
use super::error::GithubError;
use connection::{Admin, Service};
use reqwest::Method;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Mutex;

/// The scale sets of an organisation or repository. Clones share the admin connection.
#[derive(Clone)]
pub struct ScaleSets {
    inner: Arc<Inner>,
}

struct Inner {
    github: Github,
    target: Target,
    admin: Mutex<Option<Admin>>,
}

/// A runner group as the actions service names it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RunnerGroup {
    /// Numeric id there.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Whether it is the default one.
    #[serde(default, rename = "isDefaultGroup", deserialize_with = "answer::or_default")]
    pub default: bool,
}

/// A scale set to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewScaleSet {
    /// Name, unique in its group.
    pub name: String,
    /// Group.
    pub runner_group_id: u64,
    /// At least one label. Enterprise servers before 3.21 keep only the first, without a word, unless a flag is set:
    /// see [`ScaleSet::lacks`].
    pub labels: Vec<String>,
}

/// A scale set.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ScaleSet {
    /// Numeric id.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Its group.
    #[serde(default, rename = "runnerGroupId", deserialize_with = "answer::optional_id")]
    pub runner_group_id: Option<u64>,
    /// Its labels.
    #[serde(default, deserialize_with = "label_names")]
    pub labels: Vec<String>,
    /// What goes on in it.
    #[serde(default)]
    pub statistics: Option<Statistics>,
}

impl ScaleSet {
    /// Which of the wanted labels it does not have. Case does not matter.
    pub fn lacks<'a>(&self, wanted: &'a [String]) -> Vec<&'a str> {
        let has = |label: &str| self.labels.iter().any(|own| own.eq_ignore_ascii_case(label));
        wanted.iter().map(String::as_str).filter(|label| !has(label)).collect()
    }
}

fn label_names<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    struct Label {
        name: String,
    }
    let labels: Option<Vec<Label>> = Option::deserialize(reader)?;
    Ok(labels.unwrap_or_default().into_iter().map(|label| label.name).collect())
}

/// A list of the actions service.
#[derive(Debug, Deserialize)]
struct Listed<T> {
    value: Vec<T>,
}

impl NewScaleSet {
    fn body(&self) -> Value {
        let labels: Vec<Value> =
            self.labels.iter().map(|name| json!({ "name": name, "type": "System" })).collect();
        json!({
            "name": self.name,
            "runnerGroupId": self.runner_group_id,
            "labels": labels,
            // The image carries the runner program; it does not renew itself inside a job's machine.
            "RunnerSetting": { "disableUpdate": true },
        })
    }
}

const SETS: &str = "/_apis/runtime/runnerscalesets";

impl Github {
    /// The scale sets of an organisation or repository. Nothing is called yet.
    pub fn scale_sets(&self, target: Target) -> ScaleSets {
        ScaleSets { inner: Arc::new(Inner { github: self.clone(), target, admin: Mutex::new(None) }) }
    }
}

impl ScaleSets {
    /// Where they belong.
    pub fn target(&self) -> &Target {
        &self.inner.target
    }

    /// The runner group of a name, if there is exactly one.
    pub async fn group(&self, name: &str) -> Result<Option<RunnerGroup>, GithubError> {
        let call = Service::new(Method::GET, "/_apis/runtime/runnergroups/").query("groupName", name);
        let found: Listed<RunnerGroup> = self.admin_call(call).await?.json()?;
        // Two groups of one name would make the choice a guess.
        Ok(only(found.value))
    }

    /// The scale set of a name in a group.
    pub async fn find(&self, group: u64, name: &str) -> Result<Option<ScaleSet>, GithubError> {
        let call = Service::new(Method::GET, SETS).query("runnerGroupId", group).query("name", name);
        let found: Listed<ScaleSet> = self.admin_call(call).await?.json()?;
        Ok(only(found.value))
    }

    /// A scale set by id; none if it was deleted.
    pub async fn get(&self, id: u64) -> Result<Option<ScaleSet>, GithubError> {
        let answer = self.admin_call(Service::new(Method::GET, format!("{SETS}/{id}"))).await?;
        if answer.status == 404 { Ok(None) } else { answer.json().map(Some) }
    }

    /// Makes a scale set. One of the same name in the group is [`Cause::ScaleSetExists`].
    pub async fn create(&self, set: &NewScaleSet) -> Result<ScaleSet, GithubError> {
        let answer = self.admin_call(Service::new(Method::POST, SETS).body(set.body())).await?;
        match answer.json() {
            Err(GithubError::Refused { call, status: 409, request, .. }) => {
                Err(GithubError::Refused { call, status: 409, cause: Cause::ScaleSetExists, request })
            }
            made => made,
        }
    }

    /// Changes name, group and labels. Whether a server takes other labels shows in what it answers.
    pub async fn update(&self, id: u64, set: &NewScaleSet) -> Result<ScaleSet, GithubError> {
        self.admin_call(Service::new(Method::PATCH, format!("{SETS}/{id}")).body(set.body())).await?.json()
    }

    /// The scale set of this name and group: the one that is there, or a new one. Two callers at once end up with
    /// the same.
    pub async fn ensure(&self, set: &NewScaleSet) -> Result<ScaleSet, GithubError> {
        if let Some(found) = self.find(set.runner_group_id, &set.name).await? {
            return Ok(found);
        }
        match self.create(set).await {
            Err(error) if error.cause() == Some(&Cause::ScaleSetExists) => {
                self.find(set.runner_group_id, &set.name).await?.ok_or(error)
            }
            made => made,
        }
    }

    /// Deletes a scale set; true if it was there.
    pub async fn delete(&self, id: u64) -> Result<bool, GithubError> {
        let answer = self.admin_call(Service::new(Method::DELETE, format!("{SETS}/{id}"))).await?;
        if answer.status == 404 { Ok(false) } else { answer.success().map(|_| true) }
    }
}

/// The only one of a list.
fn only<T>(mut list: Vec<T>) -> Option<T> {
    if list.len() == 1 { list.pop() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_a_server_dropped_are_seen() {
        let set: ScaleSet = answer::read(
            "POST /x",
            br#"{"id":3,"name":"gpu","runnerGroupId":1,"labels":[{"id":1,"name":"GPU","type":"System"}],"createdOn":"x"}"#,
        )
        .unwrap();
        let wanted = ["gpu".to_owned(), "cuda".to_owned()];
        assert_eq!(set.lacks(&wanted), ["cuda"]);
        let bare: ScaleSet =
            answer::read("GET /x", br#"{"id":3,"name":"gpu","labels":null,"statistics":null}"#).unwrap();
        assert_eq!(bare.lacks(&wanted).len(), 2);
    }

    #[test]
    fn a_scale_set_is_asked_for_without_updates_of_the_runner() {
        let set = NewScaleSet { name: "gpu".into(), runner_group_id: 1, labels: vec!["gpu".into()] };
        let expected = json!({
            "name": "gpu", "runnerGroupId": 1, "labels": [{"name": "gpu", "type": "System"}],
            "RunnerSetting": {"disableUpdate": true},
        });
        assert_eq!(set.body(), expected);
    }
}
