//! The session of a scale set: who holds it hears of its jobs. See the parent for the order of calls.

use super::super::answer;
use super::super::cause::Cause;
use super::super::error::GithubError;
use super::super::wire::{Answer, Proof, Request};
use super::connection::{Service, parse_url, user_agent};
use super::message::{self, Message, Statistics};
use super::{SETS, ScaleSets};
use forgeyard_model::Secret;
use reqwest::{Method, Url};
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;

/// A poll is held for about 50 seconds; a connection that says nothing for this long is dead.
const POLL_TIMEOUT: Duration = Duration::from_secs(300);

/// What came of opening a session.
pub enum Opened {
    /// It is ours.
    Session(Box<Session>),
    /// Another listener holds it (409). It lapses some time after that listener is gone: wait, try again, tell a
    /// person if it goes on.
    Conflict,
}

/// An open session.
pub struct Session {
    sets: ScaleSets,
    set: u64,
    id: String,
    queue: Url,
    token: Secret,
    statistics: Option<Statistics>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("set", &self.set).field("id", &self.id).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Given {
    session_id: String,
    message_queue_url: String,
    message_queue_access_token: Secret,
    #[serde(default)]
    statistics: Option<Statistics>,
}

impl ScaleSets {
    /// Opens the session of a scale set. `owner` names the listener for people who look for it.
    pub async fn open_session(&self, set: u64, owner: &str) -> Result<Opened, GithubError> {
        let call = Service::new(Method::POST, format!("{SETS}/{set}/sessions"))
            .of_set(set)
            .body(json!({ "ownerName": owner }));
        let answer = self.admin_call(call).await?;
        if answer.status == 409 {
            return Ok(Opened::Conflict);
        }
        let call = answer.call.clone();
        let given: Given = answer.json()?;
        Ok(Opened::Session(Box::new(Session {
            sets: self.clone(),
            set,
            id: checked_id(&call, given.session_id)?,
            queue: parse_url(&call, "messageQueueUrl", &given.message_queue_url)?,
            token: given.message_queue_access_token,
            statistics: given.statistics,
        })))
    }
}

/// A session's id becomes part of a path.
fn checked_id(call: &str, id: String) -> Result<String, GithubError> {
    let fine =
        (1..=100).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if fine {
        Ok(id)
    } else {
        let reason = "it is not the id of a session".to_owned();
        Err(GithubError::Answer { call: call.to_owned(), field: "sessionId".to_owned(), reason })
    }
}

impl Session {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What went on when it was opened or refreshed. A new session may say zero while jobs wait (ARC #4027).
    pub fn statistics(&self) -> Option<Statistics> {
        self.statistics
    }

    /// Waits for a message after `last`, up to a minute or so; none if nothing happened. `capacity` is how many
    /// runners we can have: GitHub assigns no more jobs than that.
    ///
    /// A queue token that is not taken is refreshed once.
    pub async fn poll(&mut self, last: Option<u64>, capacity: u32) -> Result<Option<Message>, GithubError> {
        let mut url = self.queue.clone();
        if let Some(last) = last {
            let others: Vec<(String, String)> = url
                .query_pairs()
                .filter(|(name, _)| name != "lastMessageId")
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect();
            url.query_pairs_mut()
                .clear()
                .extend_pairs(others)
                .append_pair("lastMessageId", &last.to_string());
        }
        let request = |session: &Self| {
            let mut headers = session.headers();
            headers.push(("x-scalesetmaxcapacity", capacity.to_string()));
            Request {
                call: "GET messages of a scale set session".to_owned(),
                method: Method::GET,
                url: url.clone(),
                proof: Proof::Bearer(session.token.clone()),
                headers,
                body: None,
                timeout: Some(POLL_TIMEOUT),
            }
        };
        let mut answer = self.sets.send(request(self)).await?;
        if answer.status == 401 {
            self.refresh().await?;
            answer = self.sets.send(request(self)).await?;
        }
        match answer.status {
            202 => Ok(None),
            200 => message::parse(&answer.call, &answer.body),
            _ => Err(gone(&answer)),
        }
    }

    /// Takes jobs on offer, by their request ids. Those that were given are answered; another farm may have the
    /// others.
    pub async fn acquire(&mut self, requests: &[u64]) -> Result<Vec<u64>, GithubError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let call = Service::new(Method::POST, format!("{SETS}/{}/acquirejobs", self.set))
            .of_set(self.set)
            .body(json!(requests));
        let mut answer = self.sets.service_call(self.token.clone(), call.clone()).await?;
        if answer.status == 401 {
            self.refresh().await?;
            answer = self.sets.service_call(self.token.clone(), call).await?;
        }
        if !answer.succeeded() {
            return Err(gone(&answer));
        }
        // Null for none.
        #[derive(Deserialize)]
        struct Acquired {
            #[serde(default, deserialize_with = "answer::or_default")]
            value: Vec<u64>,
        }
        Ok(answer.json::<Acquired>()?.value)
    }

    /// Deletes a message from the queue, after what it said was persisted and its offers were acquired.
    pub async fn acknowledge(&mut self, message: u64) -> Result<(), GithubError> {
        let mut url = self.queue.clone();
        let path = format!("{}/{message}", url.path().trim_end_matches('/'));
        url.set_path(&path);
        let request = |session: &Self| Request {
            call: "DELETE message of a scale set session".to_owned(),
            method: Method::DELETE,
            url: url.clone(),
            proof: Proof::Bearer(session.token.clone()),
            headers: session.headers(),
            body: None,
            timeout: None,
        };
        let mut answer = self.sets.send(request(self)).await?;
        if answer.status == 401 {
            self.refresh().await?;
            answer = self.sets.send(request(self)).await?;
        }
        if answer.succeeded() { Ok(()) } else { Err(gone(&answer)) }
    }

    /// Gets a new queue token. In some organisations this fails with 404 for ever (ARC #4356): make a new session
    /// then.
    pub async fn refresh(&mut self) -> Result<(), GithubError> {
        let call =
            Service::new(Method::PATCH, format!("{SETS}/{}/sessions/{}", self.set, self.id)).of_set(self.set);
        let answer = self.sets.admin_call(call).await?;
        if !answer.succeeded() {
            return Err(gone(&answer));
        }
        let call = answer.call.clone();
        let given: Given = answer.json()?;
        self.queue = parse_url(&call, "messageQueueUrl", &given.message_queue_url)?;
        self.token = given.message_queue_access_token;
        self.statistics = given.statistics.or(self.statistics);
        Ok(())
    }

    /// Ends the session, so that the next listener need not wait for it to lapse.
    pub async fn close(self) -> Result<(), GithubError> {
        let call = Service::new(Method::DELETE, format!("{SETS}/{}/sessions/{}", self.set, self.id))
            .of_set(self.set);
        let answer = self.sets.admin_call(call).await?;
        if answer.status == 404 { Ok(()) } else { answer.success().map(drop) }
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        vec![
            ("accept", "application/json; api-version=6.0-preview".to_owned()),
            ("user-agent", user_agent(Some(self.set))),
        ]
    }
}

/// A refusal inside a session; "not found" means that the session is no more.
fn gone(answer: &Answer) -> GithubError {
    match answer.refusal() {
        GithubError::Refused { call, status, cause: Cause::NotFound, request } => {
            GithubError::Refused { call, status, cause: Cause::SessionGone, request }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Listed;
    use super::*;

    #[test]
    fn an_id_that_could_change_a_path_is_refused() {
        assert!(checked_id("POST /x", "0b989ba4-242f-11e5-81e1-c7b6966d2516".into()).is_ok());
        for bad in ["", "a/b", "..", "a?b", "a b"] {
            assert!(checked_id("POST /x", bad.into()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_list_may_hold_more_than_its_value() {
        let list: Listed<u64> = answer::read("GET /x", br#"{"count":2,"value":[1,94396871545]}"#).unwrap();
        assert_eq!(list.value, [1, 94_396_871_545]);
    }
}
