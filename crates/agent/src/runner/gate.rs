//! The second gate: a job that a runner took runs no step before the farm has said that it may.
//!
//! Forges bind late, so what a runner takes may be another job than the one that it was made for. The runner program runs
//! a hook of ours before the first step. Hook and agent speak by files, since a machine has no way to the farm and holds no
//! token:
//!
//! - `hook/job-started.sh`, the hook, and `hook/answer`, what it is told: owned by the host's root, shown read-only.
//! - `taken/job`, what it took ([`super::taken`]): written by the hook beside the file and moved there.
//!
//! Each file appears as a whole. The agent looks for `taken/job`, asks the farm until it is told, and writes the answer; the
//! hook waits, and without an answer lets nothing run. All is on disk before it is acted on: an agent that is killed
//! at any point asks again and writes the same.
//!
//! **What a job can do to the files.** Before the answer nothing of the job runs: there are the runner program and this
//! hook, in a machine that is new and takes one job. After `refused` nothing of it ever runs. After `allowed` it may do what
//! it likes to `taken`:
//! - *Write another report, or garbage.* The first report counts, is in the agent's state before it is asked about, and the
//!   file is not looked at again.
//! - *Delete it.* The same.
//! - *Put a link, a pipe or an endless file there.* It is read once, before the job runs; through [`crate::inside`] and up to
//!   a bound all the same.
//! - *Fill it.* It counts against the disk limit.
//! - *Write an answer.* It cannot: the folder of the answer is read-only for it, and the agent writes nothing where a job
//!   can write, so no link of a job leads the agent anywhere.
//!
//! An image that lies (a runner program that calls no hook, or calls it and does not wait) is the operator's own; the farm
//! sees a runner that is busy and never said what it took.
//!
//! **A failed hook does not end a job.** Steps that are to run always (`if: always()`) run after it. So the hook ends the
//! part of the runner program that would run them and leaves the part that reports; and a runner whose job is not allowed
//! is never asked to end, which would let such steps run, but killed: at once when there is a stop, and a while after a
//! refusal.

use super::taken;
use super::{HOOK_FILE, WAIT_SECONDS, answer};
use crate::error::Error;
use crate::inside;
use crate::state::{RunnerRecord, Word};
use forgeyard_api::agent::RunnerTook;
use forgeyard_api::client::Backoff;
use forgeyard_api::client::agent::{AgentClient, Session, superseded, transient};
use forgeyard_model::machine::{INSIDE_HOOK, INSIDE_TAKEN, MachineFile, MachineFolder};
use forgeyard_model::registration::{TakenAnswer, TakenJob};
use forgeyard_model::{Explanation, ForgeName};
use serde_json::{Value, json};
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const HOOK: &str = include_str!("hook.sh");
/// Leads the cache of JavaScript actions to the farm; it does nothing without the two variables that it reads.
const PRELOAD: &str = include_str!("../../../../scripts/runner/forgeyard-cache.cjs");
const PRELOAD_FILE: &str = "forgeyard-cache.cjs";
const ANSWER: &str = "answer";
const REPORT: &str = "job";
/// How long the farm is asked; the hook waits a little longer.
const PATIENCE: Duration = Duration::from_secs(240);
/// How long a runner whose job was refused may take to report that to the forge.
const LEAVES: Duration = Duration::from_secs(30);

/// What happened at the gate, for the log and the signs of life.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The hook said what was taken; the farm is being asked.
    Taken(TakenJob),
    /// The hook has its answer.
    Told(Word),
}

/// The agent's side of the gate.
pub(crate) struct Gate {
    folder: MachineFolder,
    forge: ForgeName,
    client: AgentClient,
    session: Session,
    asking: Option<JoinHandle<Word>>,
    /// When the answer was written in this life of the agent.
    told: Option<Instant>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        if let Some(asking) = &self.asking {
            asking.abort();
        }
    }
}

impl Gate {
    pub(crate) fn new(
        folder: &MachineFolder,
        forge: &ForgeName,
        client: &AgentClient,
        session: &Session,
    ) -> Self {
        let (folder, forge, client, session) =
            (folder.clone(), forge.clone(), client.clone(), session.clone());
        Self { folder, forge, client, session, asking: None, told: None }
    }

    /// Makes the folders new. Only before the runner program has begun.
    pub(crate) fn prepare(&self, machine: &MachineFile) -> Result<(), Error> {
        let (hook, taken) = (self.folder.hook(), self.folder.taken());
        let parent = hook.parent().unwrap_or(&hook);
        let make = || {
            match std::fs::remove_dir_all(parent) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            for folder in [&hook, &taken] {
                std::fs::create_dir_all(folder)?;
                std::fs::set_permissions(folder, Permissions::from_mode(0o755))?;
            }
            let job = Some(machine.ids.host_job());
            chown(&taken, job, job)?;
            place(&hook, PRELOAD_FILE, PRELOAD, 0o644)?;
            place(&hook, HOOK_FILE, HOOK, 0o755)
        };
        make().map_err(|source| Error::file("make", parent, source))
    }

    /// How the folders are shown inside.
    pub(crate) fn mounts(&self) -> Vec<Value> {
        let mount = |source: &Path, inside: &str, options: &[&str]| json!({"destination": inside, "type": "bind", "source": source, "options": options});
        vec![
            mount(&self.folder.hook(), INSIDE_HOOK, &["bind", "ro", "nosuid", "nodev"]),
            mount(&self.folder.taken(), INSIDE_TAKEN, &["bind", "rw", "nosuid", "nodev", "noexec"]),
        ]
    }

    /// Looks once and says what is new. The record is to be saved before the next look whenever there is an event.
    pub(crate) async fn look(&mut self, record: &mut RunnerRecord) -> Result<Option<Event>, Error> {
        if let Some(word) = &record.word {
            if self.told.is_none() {
                let hook = self.folder.hook();
                place(&hook, ANSWER, &answer::text(word), 0o644)
                    .map_err(|source| Error::file("write the answer in", &hook, source))?;
                self.told = Some(Instant::now());
            }
            return Ok(None);
        }
        if let Some(job) = &record.taken {
            let Some(asking) = &mut self.asking else {
                self.asking = Some(tokio::spawn(ask(self.client.clone(), self.session.clone(), job.clone())));
                return Ok(None);
            };
            if !asking.is_finished() {
                return Ok(None);
            }
            let word = asking.await.unwrap_or_else(|error| {
                unanswered("runner.not_asked", format!("the agent could not ask the farm: {error}"))
            });
            self.asking = None;
            record.word = Some(word.clone());
            return Ok(Some(Event::Told(word)));
        }
        let bytes = match inside::read(&self.folder.taken(), Path::new(REPORT), taken::MOST) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => Err(error.to_string()),
            Ok(bytes) => Ok(bytes),
        };
        let job =
            bytes.and_then(|bytes| taken::parse(&self.forge, &bytes).map_err(|error| error.to_string()));
        Ok(Some(match job {
            Ok(job) => {
                record.taken = Some(job.clone());
                Event::Taken(job)
            }
            Err(reason) => {
                let text = format!("what the runner says that it took cannot be understood: {reason}");
                let word = unanswered("runner.report", text);
                record.word = Some(word.clone());
                Event::Told(word)
            }
        }))
    }

    /// Whether a runner whose job was refused has had its time.
    pub(crate) fn overstayed(&self, record: &RunnerRecord) -> bool {
        let refused = matches!(record.word, Some(Word::Refused { .. } | Word::Unanswered { .. }));
        refused && self.told.is_some_and(|at| at.elapsed() >= LEAVES)
    }
}

/// Whether the runner may be asked to end, which lets steps run that are to run always.
pub(crate) fn open(record: &RunnerRecord) -> bool {
    matches!(record.word, Some(Word::Allowed { .. }))
}

fn unanswered(code: &str, message: String) -> Word {
    let fix = "run the job again; if that does not help, ask whoever runs this farm";
    Word::Unanswered { reason: Explanation::new(code, message).fix(fix) }
}

/// Asks the farm until it has decided.
async fn ask(client: AgentClient, session: Session, job: TakenJob) -> Word {
    let took = RunnerTook {
        fence: session.fence,
        wait_seconds: WAIT_SECONDS,
        repository_id: job.repository.id,
        repository: job.repository.name,
        run: job.run,
        run_attempt: job.run_attempt,
        job: job.key,
        actor_id: job.actor.as_ref().map(|actor| actor.id),
        actor: job.actor.map(|actor| actor.login),
    };
    let asking = async {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(3));
        loop {
            match client.runner_took(&session, &took).await {
                Ok(TakenAnswer::Allowed { by }) => return Word::Allowed { by },
                Ok(TakenAnswer::Refused { reason }) => return Word::Refused { reason },
                Ok(TakenAnswer::Asked) => {}
                Err(error) if transient(&error) && !superseded(&error) => {
                    tracing::warn!(error = forgeyard_api::client::http::causes(&error), "no answer yet");
                }
                Err(error) => {
                    let text = format!(
                        "the farm takes no question about it: {}",
                        forgeyard_api::client::http::causes(&error)
                    );
                    return unanswered("runner.not_heard", text);
                }
            }
            backoff.sleep().await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| {
        let text = format!("the farm did not decide within {} seconds", PATIENCE.as_secs());
        unanswered("runner.no_answer", text)
    })
}

/// Makes a file appear as a whole in a folder of ours.
fn place(folder: &Path, name: &str, text: &str, mode: u32) -> std::io::Result<()> {
    let fresh = folder.join(format!("{name}.new"));
    std::fs::write(&fresh, text)?;
    std::fs::set_permissions(&fresh, Permissions::from_mode(mode))?;
    std::fs::rename(&fresh, folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hook_names_the_places_that_are_mounted() {
        assert!(HOOK.contains(&format!("taken={INSIDE_TAKEN}\n")));
        assert!(HOOK.contains(&format!("answer={INSIDE_HOOK}/{ANSWER}\n")));
        assert!(HOOK.contains(&format!("\"$taken/{REPORT}\"")));
    }

    #[test]
    fn the_hook_outwaits_the_agent() {
        let line = HOOK.lines().find_map(|line| line.strip_prefix("patience=")).unwrap();
        assert!(Duration::from_secs(line.parse().unwrap()) > PATIENCE);
    }
}
