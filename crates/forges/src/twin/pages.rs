//! Pages for people of the simulated GitHub, as far as a browser has to go through them: making an App from a manifest.
//!
//! Nobody signs in and nobody presses a button: who posts the form is taken for the owner, and has agreed.

use super::calls::{Reply, Request};
use super::server::decoded;
use super::state::State;
use serde_json::Value;
use std::collections::BTreeMap;

impl State {
    /// Answers a page, if one is asked for.
    pub(super) fn page(&mut self, request: &Request) -> Option<Reply> {
        let parts: Vec<&str> = request.path.split('/').filter(|part| !part.is_empty()).collect();
        let owner = match parts.as_slice() {
            ["organizations", login, "settings", "apps", "new"] => {
                self.account_by_login(login).map(|one| one.id)
            }
            // There is no signing in: the first person is whoever is at the browser.
            ["settings", "apps", "new"] => {
                self.accounts.values().find(|account| !account.organization).map(|account| account.id)
            }
            _ => return None,
        };
        let Some(owner) = owner else { return Some(text(404, "no such account")) };
        if request.method != "POST" {
            return Some(text(200, "a simulated GitHub: post the form with a manifest here"));
        }
        Some(self.new_app(owner, request).unwrap_or_else(|wrong| text(422, wrong)))
    }

    fn new_app(&mut self, owner: u64, request: &Request) -> Result<Reply, &'static str> {
        let form = form(&request.body);
        let manifest = form.get("manifest").ok_or("the form has no field `manifest`")?;
        let manifest: Value = serde_json::from_str(manifest).map_err(|_| "the manifest is no JSON")?;
        let back =
            manifest.get("redirect_url").and_then(Value::as_str).ok_or("no `redirect_url`")?.to_owned();
        if !manifest.get("url").is_some_and(Value::is_string) {
            return Err("no `url`");
        }
        let code = self.accept_manifest(owner, &manifest);
        let state = request.query.get("state").map(|state| format!("&state={state}")).unwrap_or_default();
        let to = format!("{back}?code={code}{state}");
        Ok(text(302, "the simulated GitHub has made the App").with("location", to))
    }
}

fn text(status: u16, words: &str) -> Reply {
    let mut reply = Reply::empty(status).with("content-type", "text/plain; charset=utf-8");
    reply.body = words.as_bytes().to_vec();
    reply
}

/// Fields of a form as browsers post it.
fn form(body: &[u8]) -> BTreeMap<String, String> {
    let body = String::from_utf8_lossy(body);
    let field = |text: &str| decoded(&text.replace('+', " "));
    let pairs = body.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (field(name), field(value))).collect()
}
