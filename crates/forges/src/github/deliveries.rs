//! Deliveries of an App's webhook: which ones failed, and sending them again.
//!
//! GitHub never repeats a failed delivery by itself. The loop that works (runners.md §3.4): every two minutes walk
//! back to the last look, group by GUID, leave groups with any success alone, and redeliver the newest of each
//! other one. Deliveries that were never sent do not appear here; polling finds their jobs.

use super::answer;
use super::client::{Call, Github};
use super::error::GithubError;
use super::link;
use forgeyard_model::Timestamp;
use serde::Deserialize;

/// One try at delivering an event.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Delivery {
    /// Numeric id of the try.
    pub id: u64,
    /// Id of the event, the same for all tries.
    pub guid: String,
    /// When.
    #[serde(deserialize_with = "answer::time")]
    pub delivered_at: Timestamp,
    /// Whether it is a repeated one.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub redelivery: bool,
    /// `OK`, or what went wrong in words.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub status: String,
    /// Status that we answered; 0 when there was no answer.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub status_code: u16,
    /// Event, `workflow_job`.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub event: String,
    /// Action, `queued`.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub action: Option<String>,
    /// Installation that it is about.
    #[serde(default, deserialize_with = "answer::optional_id")]
    pub installation_id: Option<u64>,
    /// Repository that it is about.
    #[serde(default, deserialize_with = "answer::optional_id")]
    pub repository_id: Option<u64>,
}

impl Delivery {
    /// Whether we took it.
    pub fn succeeded(&self) -> bool {
        (200..300).contains(&self.status_code) || self.status == "OK"
    }
}

/// A delivery with what was sent.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct DeliveryDetail {
    /// The try.
    #[serde(flatten)]
    pub delivery: Delivery,
    /// What was sent.
    pub request: DeliveredRequest,
}

/// What was sent to us.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct DeliveredRequest {
    /// The body, as an object: its bytes, and so its signature, are not those that were sent.
    #[serde(default)]
    pub payload: serde_json::Value,
}

/// One page of deliveries, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryPage {
    /// The deliveries.
    pub deliveries: Vec<Delivery>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

impl Github {
    /// A page of the deliveries of the App at a place; `cursor` is the `next` of the page before.
    pub async fn deliveries(&self, place: usize, cursor: Option<&str>) -> Result<DeliveryPage, GithubError> {
        let mut call =
            Call::get("deliveries", "/app/hook/deliveries".to_owned()).query("per_page", 100).background();
        if let Some(cursor) = cursor {
            call = call.query("cursor", cursor);
        }
        let answer = self.as_app(self.app(place)?, call).await?;
        let next = answer.header("link").and_then(|header| link::next(header, "cursor"));
        Ok(DeliveryPage { deliveries: answer.json()?, next })
    }

    /// One delivery with its body; none if it is too old (3 days on github.com).
    pub async fn delivery(&self, place: usize, id: u64) -> Result<Option<DeliveryDetail>, GithubError> {
        let call = Call::get("delivery", format!("/app/hook/deliveries/{id}"));
        let answer = self.as_app(self.app(place)?, call).await?;
        if answer.status == 404 { Ok(None) } else { answer.json().map(Some) }
    }

    /// Asks GitHub to deliver again, with the same GUID. GitHub does it later.
    pub async fn redeliver(&self, place: usize, id: u64) -> Result<(), GithubError> {
        let call = Call::post("redeliver", format!("/app/hook/deliveries/{id}/attempts"));
        let call = call.delivery().background();
        self.as_app(self.app(place)?, call).await?.success().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_without_an_answer_has_not_succeeded() {
        let read = |more: &str| {
            let text = format!(
                r#"{{"id":9000000000001,"guid":"0b989ba4","delivered_at":"2019-06-03T00:57:16Z","event":"workflow_job",
                "duration":0.27,"throttled_at":null,{more}}}"#
            );
            answer::read::<Delivery>("GET /x", text.as_bytes()).unwrap()
        };
        let fine = read(
            r#""status":"OK","status_code":202,"action":"queued","installation_id":123,"repository_id":null"#,
        );
        assert!(fine.succeeded());
        assert_eq!((fine.installation_id, fine.repository_id), (Some(123), None));
        assert!(!read(r#""status":"timed out","status_code":0,"action":null"#).succeeded());
        assert!(!read(r#""status":"Invalid HTTP Response: 503","status_code":503"#).succeeded());
        assert!(!read(r#""status":null,"status_code":null"#).succeeded());
    }
}
