//! Calls about hooks and what was sent to them.

use super::super::calls::Reply;
use super::super::hooks::HookOwner;
use super::super::state::State;
use super::{Context, id_of, not_simulated};
use serde_json::{Value, json};

impl State {
    pub(super) fn hook_calls(
        &mut self,
        context: &Context<'_>,
        owner: HookOwner,
        rest: &[&str],
    ) -> Result<Reply, Reply> {
        match rest {
            [id, "deliveries", rest @ ..] => {
                let hook = self.hook_of(owner, id_of(id)?)?;
                self.delivery_calls(context, hook, rest)
            }
            _ => Err(not_simulated()),
        }
    }

    pub(super) fn delivery_calls(
        &mut self,
        context: &Context<'_>,
        hook: u64,
        rest: &[&str],
    ) -> Result<Reply, Reply> {
        let method = context.request.method.as_str();
        match (method, rest) {
            ("GET", []) => {
                let (size, _) = context.page();
                let before = match context.request.query.get("cursor") {
                    None => None,
                    Some(cursor) => match cursor.strip_prefix("v1_").and_then(|text| text.parse().ok()) {
                        Some(id) => Some(id),
                        None => return Err(Reply::unprocessable("The cursor is not valid")),
                    },
                };
                let (page, cursor) = self.deliveries_page(hook, before, size);
                let items: Vec<Value> = page.iter().map(|row| row.item_json()).collect();
                let mut reply = Reply::json(200, &json!(items));
                if let Some(cursor) = cursor {
                    reply = reply.with("link", self.link(context, &[("cursor", format!("v1_{cursor}"))]));
                }
                Ok(reply)
            }
            ("GET", [id]) => {
                let row = self.delivery_of(hook, id_of(id)?).ok_or_else(Reply::not_found)?;
                let url = self.hooks.get(&hook).and_then(|hook| hook.url.clone()).unwrap_or_default();
                Ok(Reply::json(200, &row.full_json(&url)))
            }
            ("POST", [id, "attempts"]) => {
                self.redeliver(hook, id_of(id)?).ok_or_else(Reply::not_found)?;
                Ok(Reply::json(202, &json!({})))
            }
            _ => Err(not_simulated()),
        }
    }
}
