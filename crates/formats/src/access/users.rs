//! Users JSON: `{"users": [{"github": LOGIN, "id": NUMBER}]}`.
//!
//! Logins are looked up without regard to ASCII case, as GitHub does. A login that two entries give to different ids
//! is nobody's.

use super::ImportError;
use super::yaml::Notes;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// All people of all users files.
#[derive(Debug, Default)]
pub(super) struct Directory {
    /// Ids by lower-case login.
    by_login: BTreeMap<String, BTreeSet<u64>>,
    /// Login by id, as first written.
    pub(super) logins: BTreeMap<u64, String>,
    /// Ids by file.
    pub(super) files: BTreeMap<String, BTreeSet<u64>>,
}

/// What a login stands for.
pub(super) enum Found {
    One(u64),
    None,
    Ambiguous(BTreeSet<u64>),
}

impl Directory {
    pub(super) fn read(files: &BTreeMap<String, &str>, notes: &mut Notes) -> Result<Self, ImportError> {
        let mut directory = Self::default();
        for (file, text) in files {
            let value: Value = serde_json::from_str(text)
                .map_err(|error| ImportError::Json { file: file.clone(), message: error.to_string() })?;
            let entries = value.get("users").and_then(Value::as_array).ok_or_else(|| ImportError::Json {
                file: file.clone(),
                message: "`users` must be a list".to_owned(),
            })?;
            let unknown = value.as_object().into_iter().flatten().filter(|(key, _)| *key != "users");
            for (key, _) in unknown {
                notes.add(&format!("{file}.{key}"), "unknown key, not carried over");
            }
            let members = entries
                .iter()
                .enumerate()
                .filter_map(|(place, entry)| {
                    directory.entry(&format!("{file}: users[{place}]"), entry, notes)
                })
                .collect();
            directory.files.insert(file.clone(), members);
        }
        Ok(directory)
    }

    fn entry(&mut self, place: &str, entry: &Value, notes: &mut Notes) -> Option<u64> {
        for (key, value) in entry.as_object().into_iter().flatten() {
            if !matches!(key.as_str(), "github" | "id") {
                notes.add(&format!("{place}.{key}"), format!("unknown key, not carried over: {value}"));
            }
        }
        let login = entry.get("github").and_then(Value::as_str);
        let id = entry.get("id").and_then(Value::as_u64).filter(|id| *id > 0);
        let (Some(login), Some(id)) = (login, id) else {
            notes.add(
                place,
                format!("needs a text `github` and a positive number `id`, found {entry}; matches nobody"),
            );
            return None;
        };
        let ids = self.by_login.entry(login.to_ascii_lowercase()).or_default();
        ids.insert(id);
        if ids.len() > 1 {
            notes.add(
                place,
                format!("login `{login}` has more than one id: {ids:?}; by login it matches nobody"),
            );
        }
        match self.logins.get(&id) {
            Some(known) if known != login => {
                notes.add(place, format!("id {id} has two logins, `{known}` and `{login}`; the id counts"));
            }
            Some(_) => {}
            None => {
                self.logins.insert(id, login.to_owned());
            }
        }
        Some(id)
    }

    pub(super) fn find(&self, login: &str) -> Found {
        match self.by_login.get(&login.to_ascii_lowercase()) {
            None => Found::None,
            Some(ids) => match (ids.first(), ids.len()) {
                (Some(id), 1) => Found::One(*id),
                _ => Found::Ambiguous(ids.clone()),
            },
        }
    }

    /// Members of the file that a policy names: by the name as written, else by the last part of a URL.
    pub(super) fn members(&self, name: &str) -> Option<&BTreeSet<u64>> {
        let last = name.rsplit('/').next().unwrap_or(name);
        self.files.get(name).or_else(|| self.files.get(last))
    }
}
