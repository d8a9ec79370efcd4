//! Calls about repositories: themselves, who may do what in them, their branches and their files.

use super::super::calls::Reply;
use super::super::state::State;
use super::{Context, not_simulated};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

impl State {
    pub(super) fn plain_repository_calls(
        &mut self,
        context: &Context<'_>,
        owner: u64,
        id: u64,
        rest: &[&str],
    ) -> Result<Reply, Reply> {
        if context.request.method != "GET" {
            return Err(not_simulated());
        }
        self.require(&context.caller, "metadata", "read", owner, Some(id))?;
        match rest {
            [] => {
                let mut body = self.repository_json(id);
                if let Some(fields) = body.as_object_mut() {
                    fields.insert("network_count".to_owned(), json!(0));
                    fields.insert("subscribers_count".to_owned(), json!(0));
                }
                Ok(Reply::json(200, &body))
            }
            ["collaborators", login, "permission"] => {
                let account = self.account_by_login(login).ok_or_else(Reply::not_found)?;
                let repository = self.repositories.get(&id).ok_or_else(Reply::not_found)?;
                let none = if repository.private { "none" } else { "read" };
                let role = repository.permissions.get(&account.id).map_or(none, String::as_str).to_owned();
                // The old field knows only four levels; the role has them all.
                let permission = match role.as_str() {
                    "maintain" => "write",
                    "triage" => "read",
                    other => other,
                };
                let mut user = self.account_json(account.id);
                if let Some(fields) = user.as_object_mut() {
                    fields.insert("role_name".to_owned(), json!(role));
                }
                let body = json!({ "permission": permission, "role_name": role, "user": user });
                Ok(Reply::json(200, &body))
            }
            ["contents", path @ ..] => {
                self.require(&context.caller, "contents", "read", owner, Some(id))?;
                self.file_reply(id, &path.join("/"))
            }
            ["pulls"] => {
                self.require(&context.caller, "pull_requests", "read", owner, Some(id))?;
                Ok(Reply::json(200, &json!(self.pulls_of_head(context, id))))
            }
            ["git", "ref", name @ ..] => {
                self.require(&context.caller, "contents", "read", owner, Some(id))?;
                let name = name.join("/").replace("%2F", "/");
                self.branch_reply(id, name.strip_prefix("heads/").ok_or_else(Reply::not_found)?)
            }
            ["compare", commits] => {
                self.require(&context.caller, "contents", "read", owner, Some(id))?;
                self.compare_reply(id, commits)
            }
            _ => Err(not_simulated()),
        }
    }

    fn branch_reply(&self, id: u64, branch: &str) -> Result<Reply, Reply> {
        let repository = self.repositories.get(&id).ok_or_else(Reply::not_found)?;
        let head = repository.branches.get(branch).and_then(|commits| commits.last());
        let sha = head.ok_or_else(Reply::not_found)?;
        let git = format!("{}/repos/{}/git", self.urls.api, self.full_name(id));
        let body = json!({
            "ref": format!("refs/heads/{branch}"),
            "node_id": format!("simulated-ref-{branch}"),
            "url": format!("{git}/refs/heads/{branch}"),
            "object": { "type": "commit", "sha": sha, "url": format!("{git}/commits/{sha}") },
        });
        Ok(Reply::json(200, &body))
    }

    /// Compares two commits by the branches that they are on; one that is on none has nothing in common with any other.
    fn compare_reply(&self, id: u64, commits: &str) -> Result<Reply, Reply> {
        let repository = self.repositories.get(&id).ok_or_else(Reply::not_found)?;
        let (base, head) = commits.split_once("...").ok_or_else(Reply::not_found)?;
        let place = |all: &Vec<String>, sha: &str| all.iter().position(|commit| commit == sha);
        let both = repository.branches.values().find_map(|all| Some((place(all, base)?, place(all, head)?)));
        let (base_at, head_at) = both.ok_or_else(Reply::not_found)?;
        let (ahead, behind) = (head_at.saturating_sub(base_at), base_at.saturating_sub(head_at));
        let status = match (ahead, behind) {
            (0, 0) => "identical",
            (_, 0) => "ahead",
            _ => "behind",
        };
        let api = format!("{}/repos/{}", self.urls.api, self.full_name(id));
        let page = format!("{}/{}", self.urls.html, self.full_name(id));
        let between = format!("{page}/compare/{commits}");
        let commit = json!({
            "url": format!("{api}/commits/{base}"),
            "sha": base,
            "node_id": format!("simulated-commit-{base}"),
            "html_url": format!("{page}/commit/{base}"),
            "comments_url": format!("{api}/commits/{base}/comments"),
            "commit": {
                "url": format!("{api}/git/commits/{base}"),
                "author": null,
                "committer": null,
                "message": "simulated",
                "comment_count": 0,
                "tree": { "sha": base, "url": format!("{api}/git/trees/{base}") },
            },
            "author": null,
            "committer": null,
            "parents": [],
        });
        let body = json!({
            "url": format!("{api}/compare/{commits}"),
            "html_url": between,
            "permalink_url": between,
            "diff_url": format!("{between}.diff"),
            "patch_url": format!("{between}.patch"),
            "base_commit": commit,
            "merge_base_commit": commit,
            "status": status,
            "ahead_by": ahead,
            "behind_by": behind,
            "total_commits": ahead,
            "commits": [],
        });
        Ok(Reply::json(200, &body))
    }

    /// Pull requests, newest first, by `head=owner:branch` and `state`.
    fn pulls_of_head(&self, context: &Context<'_>, id: u64) -> Vec<Value> {
        let query = |name: &str| context.request.query.get(name).map(String::as_str);
        let head = query("head").and_then(|head| head.split_once(':'));
        let state = query("state").unwrap_or("open");
        let Some(repository) = self.repositories.get(&id) else { return Vec::new() };
        let fits = |pull: &&super::super::repositories::Pull| {
            let full_name = self.full_name(pull.head_repository);
            let of =
                |owner: &str| full_name.split('/').next().is_some_and(|one| one.eq_ignore_ascii_case(owner));
            let of_head = head.is_none_or(|(owner, branch)| of(owner) && pull.head == branch);
            of_head && (state == "all" || (state == "open") == pull.open)
        };
        let found = repository.pulls.values().rev().filter(fits);
        found.filter_map(|pull| self.pull_json(id, pull.number)).collect()
    }

    fn file_reply(&self, id: u64, path: &str) -> Result<Reply, Reply> {
        let repository = self.repositories.get(&id).ok_or_else(Reply::not_found)?;
        let file = repository.files.get(path).ok_or_else(Reply::not_found)?;
        let url = format!("{}/repos/{}/contents/{path}", self.urls.api, self.full_name(id));
        let page = format!("{}/{}/blob/main/{path}", self.urls.html, self.full_name(id));
        let body = json!({
            "type": "file",
            "encoding": "base64",
            "size": file.len(),
            "name": path.rsplit('/').next(),
            "path": path,
            "content": STANDARD.encode(file),
            "sha": "0".repeat(40),
            "url": url,
            "git_url": url,
            "html_url": page,
            "download_url": page,
            "_links": { "self": url, "git": url, "html": page },
        });
        Ok(Reply::json(200, &body))
    }
}
