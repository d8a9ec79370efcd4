//! Rules that change while the farm runs: the files of the operator are read again, and count from the next decision.
//!
//! What counts is a whole [`FarmConfig`], or nothing of it: files that cannot be read, or contradict themselves, change
//! nothing and raise an alarm that says what and where. A new configuration is given to the core together with
//! [`Input::ConfigAdopted`]: one decision stores it as a version of the history, with who had it read and what is
//! different, and asks the gate again about everything that lives.
//!
//! Files are compared by their bytes every few seconds, not by their times or by a watch of the kernel: that sees a
//! checkout of git, a changed link of a mounted secret, and a network file system alike. A change is read once two looks
//! in a row found the same bytes, because an editor or a checkout may be half way through.
//!
//! Reading happens on the control plane that leads. One that stood by reads when it begins to lead, because its files may
//! have changed meanwhile.

use crate::app::App;
use crate::history;
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_api::rules::{Reloaded, RulesView};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::principal::Principal;
use forgeyard_model::{Digest, Explanation, Timestamp};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(2);
/// Lines of difference that are kept with a version; the whole difference is in the texts of the two versions.
const MOST_LINES: usize = 40;

/// What the files say now.
#[derive(Debug, Clone)]
pub struct Read {
    /// The configuration that decisions are to be made under.
    pub config: FarmConfig,
    /// What differs from what the farm was started with and cannot change while it runs: keys of the file.
    pub restart: Vec<String>,
}

/// Where the configuration is read from. Calls may block.
pub trait RuleSource: Send + Sync + 'static {
    /// A digest of the bytes of all files, whatever they say; unreadable is a state like any other.
    fn stamp(&self) -> Digest;
    /// The stamp of what the farm was started with.
    fn started_with(&self) -> Digest;
    /// What the files say, or what is wrong with them and where.
    fn read(&self) -> Result<Read, Explanation>;
    /// Who changed the files, as far as they show it.
    fn changed_by(&self) -> String;
}

#[derive(Default)]
struct State {
    /// The bytes that were read last, whatever came of it.
    seen: Option<Digest>,
    read_at: Option<Timestamp>,
    problem: Option<Explanation>,
    restart: Vec<String>,
}

/// The source, and what became of the last reading.
pub struct Rules {
    source: Option<Arc<dyn RuleSource>>,
    state: Mutex<State>,
    /// One reading at a time: the later one sees the later files.
    turn: tokio::sync::Mutex<()>,
}

impl Rules {
    /// Nothing was read again yet.
    pub fn new(source: Option<Arc<dyn RuleSource>>) -> Self {
        let seen = source.as_ref().map(|source| source.started_with());
        Self {
            source,
            state: Mutex::new(State { seen, ..State::default() }),
            turn: tokio::sync::Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an operator should know.
    pub fn alarms(&self) -> Vec<Explanation> {
        let state = self.state();
        let mut alarms: Vec<Explanation> = state.problem.iter().cloned().collect();
        if !state.restart.is_empty() {
            let text = format!("changed, and counts from the next start: {}", state.restart.join(", "));
            alarms.push(
                Explanation::new("rules.restart", text)
                    .fix("start the farm anew when it suits; that ends no machine"),
            );
        }
        alarms
    }
}

/// What became of the last reading, for people.
pub fn view(app: &App) -> RulesView {
    let (version, config) = {
        let farm = app.core.read();
        (farm.configs.last_key_value().map_or(0, |(number, _)| *number), app.config())
    };
    let state = app.rules.state();
    RulesView {
        version,
        digest: config.digest(),
        reads_files: app.rules.source.is_some(),
        read_at: state.read_at,
        problem: state.problem.clone(),
        restart: state.restart.clone(),
    }
}

/// Reads the files and makes what they say count. `how` says by which way, after the name of whoever asked.
pub async fn reload(app: &App, by: Principal, how: &str) -> Result<Reloaded, ApiError> {
    let Some(source) = app.rules.source.clone() else {
        let text = "this farm was started without files: there is nothing to read again";
        return Err(ApiError::new(ErrorKind::Conflict, "rules.no_files", text)
            .hint("start it with `--config forgeyard.toml`"));
    };
    let _turn = app.rules.turn.lock().await;
    let (stamp, read) = blocking({
        let source = Arc::clone(&source);
        move || (source.stamp(), source.read())
    })
    .await?;
    let outcome = match read {
        Ok(read) => count(app, read, by, how).await,
        Err(reason) => Err(unread(reason)),
    };
    let mut state = app.rules.state();
    state.read_at = Some(app.clock.now());
    match outcome {
        Ok((reloaded, restart)) => {
            (state.seen, state.problem, state.restart) = (Some(stamp), None, restart.clone());
            tracing::info!(version = reloaded.version, changes = ?reloaded.changes, "the configuration was read");
            Ok(Reloaded { restart, ..reloaded })
        }
        Err(error) => {
            // What the database refused is tried again; what the files say wrongly is not, until they change.
            if error.kind == ErrorKind::Invalid {
                state.seen = Some(stamp);
            }
            tracing::warn!("the configuration was not taken: {}", error.explanation());
            state.problem = Some(error.explanation());
            Err(error)
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        ApiError::new(ErrorKind::Internal, "rules.reader", format!("the files could not be read: {error}"))
    })
}

fn unread(reason: Explanation) -> ApiError {
    let text = format!("the configuration stays as it was: {}", reason.message);
    let error =
        ApiError { evidence: reason.evidence, ..ApiError::new(ErrorKind::Invalid, "rules.unread", text) };
    error.hint(reason.fix.unwrap_or_else(|| "correct the file; it is read again by itself".to_owned()))
}

async fn count(app: &App, read: Read, by: Principal, how: &str) -> Result<(Reloaded, Vec<String>), ApiError> {
    let before = app.config();
    let config = Arc::new(read.config);
    let internal = |error: String| ApiError::new(ErrorKind::Internal, "rules.history", error);
    let text = history::kept(&config).map_err(|error| internal(error.to_string()))?;
    let changes = changes(&before, &config);
    let repeats =
        history::repeats(app, config.digest()).await.map_err(|error| internal(error.to_string()))?;
    let started_by = format!("{}, by {how}", by.name);
    let input = Input::ConfigAdopted { text, started_by, repeats, changes: changes.clone() };
    let reply = app.core.give_under(config, input, by).await?;
    let version = app.core.read().configs.last_key_value().map_or(0, |(number, _)| *number);
    let changed = reply != Reply::Unchanged;
    Ok((Reloaded { changed, version, changes, restart: Vec::new() }, read.restart))
}

/// Looks at the files as long as the control plane leads.
pub async fn watch(app: App, stop: CancellationToken) {
    let Some(source) = app.rules.source.clone() else { return };
    let mut last = None;
    loop {
        let looked = {
            let source = Arc::clone(&source);
            blocking(move || source.stamp()).await
        };
        if let Ok(stamp) = looked {
            let known = app.rules.state().seen == Some(stamp);
            if !known && last == Some(stamp) {
                let whose = {
                    let source = Arc::clone(&source);
                    blocking(move || source.changed_by()).await.unwrap_or_default()
                };
                // The farm acts; the files say for whom.
                let _ = reload(&app, crate::core::farm(), &format!("changed files ({whose})")).await;
            }
            last = Some(stamp);
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = app.clock.sleep(INTERVAL) => {}
        }
    }
}

/// What differs between two configurations, a line for each thing, by the names that the files use.
pub fn changes(old: &FarmConfig, new: &FarmConfig) -> Vec<String> {
    let json = |config: &FarmConfig| serde_json::to_value(config).unwrap_or_default();
    let mut found = Vec::new();
    differ("", &json(old), &json(new), &mut found);
    if found.len() > MOST_LINES {
        let more = found.len() - MOST_LINES;
        found.truncate(MOST_LINES);
        found.push(format!("and {more} more"));
    }
    found
}

fn differ(place: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    if old == new {
        return;
    }
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            for key in keys {
                let below = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
                differ(
                    &below,
                    old.get(key).unwrap_or(&Value::Null),
                    new.get(key).unwrap_or(&Value::Null),
                    found,
                );
            }
        }
        (Value::Array(_) | Value::Null, Value::Array(_) | Value::Null) => match (named(old), named(new)) {
            (Some(old), Some(new)) => {
                let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
                let before = found.len();
                for name in names {
                    let word = match (old.get(name), new.get(name)) {
                        (None, _) => "added",
                        (_, None) => "removed",
                        (before, after) if before != after => "changed",
                        _ => continue,
                    };
                    found.push(format!("{place} `{name}` {word}"));
                }
                if found.len() == before {
                    found.push(format!("{place}: another order"));
                }
            }
            _ => found.push(members(place, old, new)),
        },
        (old, new) => found.push(format!("{place}: {} → {}", short(old), short(new))),
    }
}

/// Entries by their name, when each has one of its own.
fn named(value: &Value) -> Option<BTreeMap<String, &Value>> {
    let list = match value {
        Value::Null => return Some(BTreeMap::new()),
        Value::Array(list) => list,
        _ => return None,
    };
    let mut all = BTreeMap::new();
    for entry in list {
        let name = match (entry.get("name"), entry.get("id")) {
            (Some(Value::String(name)), _) | (None, Some(Value::String(name))) => name.clone(),
            (_, Some(id)) => id.to_string(),
            _ => return None,
        };
        if all.insert(name, entry).is_some() {
            return None;
        }
    }
    Some(all)
}

/// A list of plain values: which came and which went.
fn members(place: &str, old: &Value, new: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (old, new) = (list(old), list(new));
    let text = |values: Vec<&Value>, sign: &str| {
        let shown: Vec<String> =
            values.iter().take(5).map(|value| format!("{sign}{}", short(value))).collect();
        let more = values.len().saturating_sub(5);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("{}{more}", shown.join(" "))
    };
    let gone = text(old.iter().filter(|value| !new.contains(value)).collect(), "-");
    let come = text(new.iter().filter(|value| !old.contains(value)).collect(), "+");
    format!("{place}: {}", format!("{gone} {come}").trim())
}

fn short(value: &Value) -> String {
    match value {
        Value::Null => "not set".to_owned(),
        value => {
            let text = value.to_string();
            if text.chars().count() > 60 {
                format!("{}…", text.chars().take(60).collect::<String>())
            } else {
                text
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lines(old: &Value, new: &Value) -> Vec<String> {
        let mut found = Vec::new();
        differ("", old, new, &mut found);
        found
    }

    #[test]
    fn a_difference_names_the_thing_and_not_the_whole_text() {
        let old = json!({
            "max-running": 4,
            "pools": [{"name": "a", "max": 1}, {"name": "b", "max": 1}],
            "access": {"grants": [{"id": "g", "users": [1]}], "lists": {"ops": [1, 2]}},
        });
        let new = json!({
            "max-running": 8,
            "pools": [{"name": "a", "max": 2}, {"name": "c", "max": 1}],
            "access": {"grants": [{"id": "g", "users": [1]}, {"id": "h"}], "lists": {"ops": [2, 3]}},
            "queue": {"caps": {"person": 1}},
        });
        assert_eq!(
            lines(&old, &new),
            [
                "access.grants `h` added",
                "access.lists.ops: -1 +3",
                "max-running: 4 → 8",
                "pools `a` changed",
                "pools `b` removed",
                "pools `c` added",
                "queue: not set → {\"caps\":{\"person\":1}}",
            ]
        );
        assert!(lines(&new, &new).is_empty());
        let turned = json!([{"name": "b"}, {"name": "a"}]);
        assert_eq!(lines(&json!([{"name": "a"}, {"name": "b"}]), &turned), [": another order"]);
    }
}
