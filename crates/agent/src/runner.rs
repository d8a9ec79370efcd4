//! A machine that is a runner of a forge: the forge's own program is the one step.
//!
//! **Configuration.** It is asked for when the machine is up, kept in the agent's state before anything else is done with
//! it, and good for one job. It goes to the runner program in the variable that the program documents, and nowhere else:
//! the log masks it, whole and in pieces; the configuration of the container forgets it once the container is made; process
//! 1 cannot be read by later processes; the agent forgets it when the program is over. What the program itself keeps
//! of it (its own environment, its files) a later process of the same user can read: by then it is consumed.
//!
//! **Once.** A consumed configuration is never used again (ARC 4148): `crate::steps` starts a container once, goes on with
//! one that runs, and calls one that is gone lost. There is no second start.
//!
//! **The second gate.** [`gate`] is the far side of the job-started hook.

pub(crate) mod answer;
pub(crate) mod gate;
mod pieces;
mod taken;

pub(crate) use gate::Gate;
pub(crate) use pieces::pieces;

use crate::clock;
use crate::error::Error;
use crate::stop::{Cause, Stop};
use forgeyard_api::client::agent::{AgentClient, Session, superseded, transient};
use forgeyard_api::client::{Backoff, ClientError};
use forgeyard_model::attempt::AttemptState;
use forgeyard_model::job::{ForgeRunner, JobSpec, Step};
use forgeyard_model::machine::INSIDE_HOOK;
use forgeyard_model::{Secret, Timestamp, deadline};
use std::time::Duration;

/// Variable in which the runner program of GitHub takes its configuration; it takes it out of its own environment again.
pub(crate) const CONFIG_VARIABLE: &str = "ACTIONS_RUNNER_INPUT_JITCONFIG";
/// Variable that names the program to run before the first step of a job.
const HOOK_VARIABLE: &str = "ACTIONS_RUNNER_HOOK_JOB_STARTED";
/// The hook. Runners look at the ending.
pub(crate) const HOOK_FILE: &str = "job-started.sh";
/// Largest configuration; those that were seen have a few KiB.
const MOST: usize = 64 << 10;
/// How long a call may be held by the farm.
pub(crate) const WAIT_SECONDS: u64 = 20;
/// The farm has no configuration yet.
const NOT_MINTED: &str = "registration.not_minted";
/// The agent gives up so much before the farm would, and can say why.
const MARGIN: Duration = Duration::from_secs(5);
/// Exit code of the runner program when the forge no longer accepts its version.
pub(crate) const TOO_OLD: i32 = 7;
/// Name of the step.
pub(crate) const STEP: &str = "runner";

/// Fetches the configuration: not over the deadline of the attempt, nor after a stop.
pub(crate) async fn configuration(
    client: &AgentClient,
    session: &Session,
    since: Timestamp,
    limit: Duration,
    stop: &Stop,
) -> Result<Secret, Error> {
    let whole = deadline::forge_attempt(AttemptState::Starting, limit).unwrap_or(limit);
    let left = whole.saturating_sub(MARGIN).saturating_sub(clock::now().since(since));
    tokio::select! {
        fetched = tokio::time::timeout(left, fetch(client, session, stop)) => match fetched {
            Ok(fetched) => checked(fetched?),
            Err(_) => {
                let reason = format!("none came within {} seconds of the machine's first call", whole.as_secs());
                Err(wrong(reason))
            }
        },
        () = stop.asked() => Err(Error::Stopped),
    }
}

fn wrong(reason: String) -> Error {
    Error::Runner { object: "the configuration of the runner", reason }
}

async fn fetch(client: &AgentClient, session: &Session, stop: &Stop) -> Result<Secret, Error> {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    loop {
        match client.runner_config(session, WAIT_SECONDS).await {
            Ok(answer) => return Ok(Secret::new(answer.config)),
            // The farm held the call as long as it was asked to.
            Err(ClientError::Refused { error, .. }) if error.code == NOT_MINTED => {}
            Err(error) if superseded(&error) => {
                stop.ask(Cause::Superseded);
                return Err(Error::Stopped);
            }
            Err(error) if transient(&error) => {
                tracing::warn!(error = forgeyard_api::client::http::causes(&error), "no configuration yet");
            }
            Err(source) => {
                return Err(Error::Farm {
                    action: "fetch the configuration of the runner".to_owned(),
                    source,
                });
            }
        }
        backoff.sleep().await;
    }
}

/// A configuration as a forge writes it: one word of printable characters. Nothing of it is in the error.
fn checked(config: Secret) -> Result<Secret, Error> {
    let text = config.expose().trim();
    let reason = if text.is_empty() {
        "the farm sent an empty one".to_owned()
    } else if text.len() > MOST {
        format!("the farm sent one of more than {MOST} bytes")
    } else if text.bytes().any(|byte| !byte.is_ascii_graphic()) {
        "the farm sent something that is not one".to_owned()
    } else {
        return Ok(Secret::new(text));
    };
    Err(wrong(reason))
}

/// The job with the runner program as its one step.
pub(crate) fn spec(of: &JobSpec, runner: &ForgeRunner, config: &str) -> JobSpec {
    let env = [
        (CONFIG_VARIABLE.to_owned(), config.to_owned()),
        (HOOK_VARIABLE.to_owned(), format!("{INSIDE_HOOK}/{HOOK_FILE}")),
    ];
    let step = Step { name: STEP.to_owned(), argv: runner.program.clone(), env: env.into() };
    JobSpec { steps: vec![step], ..of.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_one_word_and_an_error_shows_nothing_of_it() {
        assert_eq!(checked(Secret::new(" e30= \n")).unwrap().expose(), "e30=");
        for bad in ["", "  ", "two words", "a\u{1b}b", &"x".repeat(MOST + 1)] {
            let line = checked(Secret::new(bad)).unwrap_err().line();
            assert!(bad.trim().is_empty() || !line.contains(bad.trim()), "{line}");
        }
    }

    #[tokio::test]
    async fn nothing_is_waited_for_beyond_the_deadline_of_the_attempt_arc_4602() {
        // Whoever waits longer than the farm would lets the forge take the job away from a runner that is lost.
        let limit = Duration::from_secs(24 * 3600);
        assert!(deadline::forge_attempt(AttemptState::Starting, limit).unwrap() <= Duration::from_secs(300));
        let client = AgentClient::new("http://127.0.0.1:9", &Default::default()).unwrap();
        let session = Session {
            attempt: forgeyard_model::Id::new(Timestamp::from_micros(1), 1),
            fence: 1,
            token: Secret::new("token"),
        };
        let stop = Stop::new(None);
        let late = Timestamp::from_micros(1);
        let error = configuration(&client, &session, late, limit, &stop).await.unwrap_err().line();
        assert_eq!(
            error,
            "the configuration of the runner: none came within 90 seconds of the machine's first call"
        );
        stop.ask(Cause::Canceled);
        let now = clock::now();
        assert!(matches!(configuration(&client, &session, now, limit, &stop).await, Err(Error::Stopped)));
    }

    #[test]
    fn the_one_step_is_the_program_of_the_pool_with_configuration_and_hook() {
        let of: JobSpec = serde_json::from_value(serde_json::json!({
            "flavor": "small", "steps": [],
            "forge_runner": {"forge": "github", "labels": ["gpu"]},
        }))
        .unwrap();
        let runner = of.forge_runner.clone().unwrap();
        let made = spec(&of, &runner, "e30=");
        assert_eq!(made.steps.len(), 1);
        assert_eq!(made.steps[0].argv, ["/opt/actions-runner/run.sh"]);
        assert_eq!(made.steps[0].env[CONFIG_VARIABLE], "e30=");
        assert_eq!(made.steps[0].env[HOOK_VARIABLE], "/.forgeyard/hook/job-started.sh");
    }
}
