//! Messages of a session's queue: pure reading of their bytes.
//!
//! An envelope is an object with `messageId`, `messageType`, `statistics`, and `body`, which is a *text* that holds
//! a JSON array of at most about 50 events. An event that cannot be read does not spoil the others: it is told in
//! [`Message::unreadable`], and the message can be acknowledged, else it would come again for ever.

use super::super::answer;
use super::super::error::GithubError;
use forgeyard_model::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// What goes on in a scale set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Statistics {
    /// Jobs on offer.
    pub total_available_jobs: u64,
    /// Jobs that we acquired.
    pub total_acquired_jobs: u64,
    /// Jobs that wait for a runner or run: the number of runners to have. It can be 0 while a message tells of an
    /// assigned job (ARC #3420), so demand is the larger of this and what is known of single jobs.
    pub total_assigned_jobs: u64,
    /// Jobs that run.
    pub total_running_jobs: u64,
    /// Runners that are registered.
    pub total_registered_runners: u64,
    /// Runners with a job.
    pub total_busy_runners: u64,
    /// Runners without one.
    pub total_idle_runners: u64,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its id: to be acknowledged, and stored as `lastMessageId`.
    pub id: u64,
    /// Its type, where it is not the one for jobs; it then holds nothing for us.
    pub other: Option<String>,
    /// What goes on in the scale set.
    pub statistics: Option<Statistics>,
    /// What happened, in the order of the message.
    pub events: Vec<JobEvent>,
    /// Entries that could not be read.
    pub unreadable: Vec<Unreadable>,
}

/// An entry that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Its place in the message; none for the whole body.
    pub place: Option<usize>,
    /// Why, with the name of the field.
    pub reason: String,
}

/// What every event tells of its job.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobFacts {
    /// Id of the request for a runner: what is acquired.
    pub runner_request_id: u64,
    /// Name of the repository, without its owner.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub repository_name: String,
    /// Its owner.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub owner_name: String,
    /// Id of the job in the actions service, a text and not the id of the REST interface.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub job_id: String,
    /// Workflow file and ref, `owner/repo/.github/workflows/ci.yml@refs/heads/main`.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub job_workflow_ref: String,
    /// Name of the job, with the values of its matrix.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub job_display_name: String,
    /// Run, as in the REST interface.
    #[serde(default, deserialize_with = "answer::optional_id")]
    pub workflow_run_id: Option<u64>,
    /// Event of the run. The actor is not told: that is of the run.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub event_name: String,
    /// Labels that it asks for.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub request_labels: Vec<String>,
    /// When it was queued.
    #[serde(default, deserialize_with = "perhaps_time")]
    pub queue_time: Option<Timestamp>,
    /// When it was assigned to the scale set.
    #[serde(default, deserialize_with = "perhaps_time")]
    pub scale_set_assign_time: Option<Timestamp>,
    /// When it was assigned to a runner.
    #[serde(default, deserialize_with = "perhaps_time")]
    pub runner_assign_time: Option<Timestamp>,
    /// When it ended.
    #[serde(default, deserialize_with = "perhaps_time")]
    pub finish_time: Option<Timestamp>,
}

/// One entry of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEvent {
    /// A job is on offer: acquire it or leave it.
    Available {
        /// The job.
        job: JobFacts,
    },
    /// A job waits for a runner of ours.
    Assigned {
        /// The job.
        job: JobFacts,
    },
    /// A runner of ours began a job.
    Started {
        /// The job.
        job: JobFacts,
        /// The runner, in the actions service.
        runner_id: Option<u64>,
        /// Its name: who really took the job.
        runner_name: Option<String>,
    },
    /// A job ended, or was taken back from us.
    Completed {
        /// The job.
        job: JobFacts,
        /// `succeeded`, `failed`, `canceled`, …
        result: String,
        /// The runner, if one had it.
        runner_id: Option<u64>,
        /// Its name.
        runner_name: Option<String>,
    },
    /// A type that this version does not know.
    Unknown {
        /// Its name.
        kind: String,
    },
}

impl JobEvent {
    /// The job that it is about.
    pub fn job(&self) -> Option<&JobFacts> {
        match self {
            Self::Available { job } | Self::Assigned { job } => Some(job),
            Self::Started { job, .. } | Self::Completed { job, .. } => Some(job),
            Self::Unknown { .. } => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    message_id: u64,
    #[serde(default, deserialize_with = "answer::or_default")]
    message_type: String,
    #[serde(default, deserialize_with = "answer::or_default")]
    body: String,
    #[serde(default)]
    statistics: Option<Statistics>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    #[serde(default, deserialize_with = "answer::or_default")]
    message_type: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ran {
    #[serde(default, deserialize_with = "answer::or_default")]
    result: String,
    #[serde(default, deserialize_with = "answer::optional_id")]
    runner_id: Option<u64>,
    #[serde(default, deserialize_with = "answer::optional_text")]
    runner_name: Option<String>,
}

/// Times here are for display: one that cannot be read is as if it were not there.
fn perhaps_time<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Timestamp>, D::Error> {
    let text: Option<String> = Option::deserialize(reader)?;
    Ok(text.filter(|text| !text.starts_with("0001-")).and_then(|text| answer::parse_time(&text).ok()))
}

const JOB_MESSAGES: &str = "RunnerScaleSetJobMessages";

/// Reads the answer of a poll. An empty one, which happens (ARC #4285), is no message.
pub fn parse(call: &str, bytes: &[u8]) -> Result<Option<Message>, GithubError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii();
    if bytes.is_empty() || bytes == b"null" {
        return Ok(None);
    }
    let envelope: Envelope = answer::read(call, bytes)?;
    let mut message = Message {
        id: envelope.message_id,
        other: None,
        statistics: envelope.statistics,
        events: Vec::new(),
        unreadable: Vec::new(),
    };
    if envelope.message_type != JOB_MESSAGES {
        message.other = Some(envelope.message_type);
        return Ok(Some(message));
    }
    if envelope.body.trim().is_empty() {
        return Ok(Some(message));
    }
    match serde_json::from_str::<Vec<&RawValue>>(&envelope.body) {
        Ok(entries) => {
            for (place, entry) in entries.iter().enumerate() {
                match event(entry.get()) {
                    Ok(event) => message.events.push(event),
                    Err(reason) => message.unreadable.push(Unreadable { place: Some(place), reason }),
                }
            }
        }
        Err(error) => message.unreadable.push(Unreadable { place: None, reason: error.to_string() }),
    }
    Ok(Some(message))
}

fn event(text: &str) -> Result<JobEvent, String> {
    fn part<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
        let mut reader = serde_json::Deserializer::from_str(text);
        serde_path_to_error::deserialize(&mut reader)
            .map_err(|error| format!("field `{}`: {}", error.path(), error.inner()))
    }
    let Kind { message_type } = part(text)?;
    Ok(match message_type.as_str() {
        "JobAvailable" => JobEvent::Available { job: part(text)? },
        "JobAssigned" => JobEvent::Assigned { job: part(text)? },
        "JobStarted" => {
            let Ran { runner_id, runner_name, .. } = part(text)?;
            JobEvent::Started { job: part(text)?, runner_id, runner_name }
        }
        "JobCompleted" => {
            let Ran { result, runner_id, runner_name } = part(text)?;
            JobEvent::Completed { job: part(text)?, result, runner_id, runner_name }
        }
        _ => JobEvent::Unknown { kind: message_type },
    })
}

#[cfg(test)]
mod tests;
