//! Access files: the farm's own TOML, and import from the `.access.yml`, `.cirun.global.yml`, users JSON and admin-requests
//! that other farms keep.
//!
//! The TOML file is [`Access`] with keys in kebab-case; ids of repositories and people that are keys are written as
//! text, because TOML has no other keys:
//!
//! ```toml
//! [[grants]]
//! id = "widget-gpu"
//! repository = { id = 1, name = "widgets/widget" }
//! resources = ["gpu"]
//! events = ["push", "pull-request"]
//! users = [100000]
//! roles = ["admin", "write"]
//!
//! [roles.1]
//! 100000 = "admin"
//! ```
//!
//! Invariants:
//! - `read(export(x)) == x`;
//! - nothing that is not understood opens a door: an import that loses a person, a role or an id keeps the grant
//!   narrower than it was, and says so in `notes`.

mod cirun;
mod requests;
mod runners;
mod users;
mod yaml;

pub use cirun::{CirunFiles, ImportError, ImportOptions, Imported, NOBODY, import_cirun};
pub use requests::{RequestOptions, apply_requests};
pub use runners::{ImportedRunner, RunnerChoice};

use crate::toml_text::{self, TomlError};
use forgeyard_model::access::Access;

/// An access file that cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("access cannot be written as TOML: {0}")]
pub struct ExportError(String);

/// Reads the farm's own access file. `file` is its name in messages.
pub fn read(file: &str, text: &str) -> Result<Access, TomlError> {
    let access: Access = toml_text::read(file, text)?;
    let mut seen = std::collections::BTreeSet::new();
    for grant in &access.grants {
        if !seen.insert(grant.id.as_str()) {
            // A decision names its rule by this id, so it must be one rule.
            let place = last_mention(text, &grant.id);
            return Err(TomlError::at(file, text, place, format!("grant `{}` stands twice", grant.id)));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    for rule in &access.members {
        if !seen.insert(rule.id.as_str()) {
            let place = last_mention(text, &rule.id);
            return Err(TomlError::at(file, text, place, format!("member rule `{}` stands twice", rule.id)));
        }
    }
    Ok(access)
}

fn last_mention(text: &str, id: &str) -> usize {
    text.rfind(&format!("\"{id}\"")).or_else(|| text.rfind(&format!("'{id}'"))).unwrap_or(0)
}

/// Writes the farm's own access file. Equal access gives equal text.
pub fn export(access: &Access) -> Result<String, ExportError> {
    toml::to_string_pretty(access).map_err(|error| ExportError(error.to_string()))
}

/// Puts what was imported into what is there: grants, lists and teams of the same name are replaced, everything else
/// is kept. Doing it twice changes nothing.
#[must_use]
pub fn merge(mut into: Access, mut imported: Access) -> Access {
    if into.home() != imported.home() {
        imported = imported.spelled_out();
    }
    for grant in imported.grants {
        match into.grants.iter_mut().find(|known| known.id == grant.id) {
            Some(known) => *known = grant,
            None => into.grants.push(grant),
        }
    }
    into.lists.extend(imported.lists);
    for (team, members) in imported.teams {
        // Members of teams are never in the imported files, so what somebody wrote by hand is not emptied.
        let known = into.teams.entry(team).or_default();
        known.extend(members);
    }
    for (repository, roles) in imported.roles {
        into.roles.entry(repository).or_default().extend(roles);
    }
    into.terms_version = into.terms_version.max(imported.terms_version);
    for (person, version) in imported.terms_accepted {
        let known = into.terms_accepted.entry(person).or_default();
        *known = version.max(*known);
    }
    into.logins.extend(imported.logins);
    for note in imported.notes {
        if !into.notes.contains(&note) {
            into.notes.push(note);
        }
    }
    into
}

#[cfg(test)]
mod tests;
