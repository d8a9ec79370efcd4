//! Check runs.

use super::clock::iso;
use super::state::State;
use forgeyard_model::Timestamp;
use serde_json::{Value, json};

/// A check run.
#[derive(Debug, Clone)]
pub struct CheckRun {
    /// Numeric id.
    pub id: u64,
    /// Repository.
    pub repository: u64,
    /// The App that made it.
    pub app: u64,
    /// Commit.
    pub head_sha: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// What was written: name, status, conclusion, output, actions, …
    pub fields: Value,
    /// How often it was written.
    pub writes: u32,
}

impl State {
    /// Check runs, oldest first.
    pub fn check_runs(&self) -> impl Iterator<Item = &CheckRun> {
        self.checks.values()
    }

    pub(super) fn add_check(&mut self, repository: u64, app: u64, head_sha: &str, fields: Value) -> u64 {
        // Check runs and jobs share one space of numbers at GitHub.
        self.numbers.job += 1;
        let id = self.numbers.job;
        let row = CheckRun {
            id,
            repository,
            app,
            head_sha: head_sha.to_owned(),
            created_at: self.now,
            fields,
            writes: 1,
        };
        self.checks.insert(id, row);
        id
    }

    pub(super) fn change_check(&mut self, id: u64, changes: &Value) {
        let Some(row) = self.checks.get_mut(&id) else { return };
        row.writes += 1;
        if let (Some(fields), Some(changes)) = (row.fields.as_object_mut(), changes.as_object()) {
            fields.extend(changes.iter().map(|(name, value)| (name.clone(), value.clone())));
            // A conclusion ends the check run, whatever status came with it.
            if changes.contains_key("conclusion") {
                fields.insert("status".to_owned(), json!("completed"));
            }
        }
    }

    pub(super) fn check_json(&self, row: &CheckRun) -> Value {
        let field = |name: &str| row.fields.get(name).cloned().unwrap_or(Value::Null);
        let output = field("output");
        let part = |name: &str| output.get(name).cloned().unwrap_or(Value::Null);
        let full_name = self.full_name(row.repository);
        let url = format!("{}/repos/{full_name}/check-runs/{}", self.urls.api, row.id);
        let page = format!("{}/{full_name}/runs/{}", self.urls.html, row.id);
        let conclusion = field("conclusion");
        let status = match (field("status"), conclusion.is_null()) {
            (_, false) => json!("completed"),
            (Value::Null, _) => json!("queued"),
            (status, _) => status,
        };
        let done = status == "completed";
        json!({
            "id": row.id,
            "node_id": format!("simulated-check-{}", row.id),
            "head_sha": row.head_sha,
            "external_id": field("external_id").as_str().unwrap_or_default(),
            "url": url,
            "html_url": page,
            "details_url": field("details_url").as_str().map_or(page, str::to_owned),
            "name": field("name"),
            "status": status,
            "conclusion": conclusion,
            "started_at": field("started_at").as_str().map_or_else(|| iso(row.created_at), str::to_owned),
            "completed_at": match field("completed_at") {
                Value::Null if done => json!(iso(self.now)),
                other => other,
            },
            "check_suite": { "id": row.id },
            "output": {
                "title": part("title"),
                "summary": part("summary"),
                "text": part("text"),
                "annotations_count": part("annotations").as_array().map_or(0, Vec::len),
                "annotations_url": format!("{url}/annotations"),
            },
            "app": self.app_json(row.app),
            "pull_requests": [],
        })
    }
}
