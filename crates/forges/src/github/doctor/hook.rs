//! The webhook of an App: where it points, and what became of what was sent.
//!
//! GitHub never shows the secret, and whether it can reach the farm is seen only from GitHub. So the deliveries that it
//! remembers are read, and one is asked for again: the farm's answer to that one is the proof. An event that the farm knows
//! is only counted there.

use super::Chart;
use super::app::Known;
use crate::github::deliveries::Delivery;
use crate::github::error::GithubError;

/// How often it is looked for the delivery that was asked for.
const LOOKS: u32 = 30;

impl Chart<'_> {
    pub(super) async fn hook(&mut self, place: usize, known: &Known) {
        let name = known.app.name.clone();
        let page = known.settings.clone();
        let Some(wanted) = self.questions.hook.clone() else {
            self.good("webhook", name, "none is wanted: the farm asks for its work");
            return;
        };
        let config = match self.github.hook_config(place).await {
            Ok(config) => config,
            Err(error) => return self.failed("webhook.address", name, &error, &page),
        };
        match config.url.as_deref() {
            Some(url) if url == wanted => self.good("webhook.address", &name, wanted),
            Some(url) => {
                let text = format!("GitHub sends to {url}, and this farm listens at {wanted}");
                self.bad("webhook.address", &name, text, format!("write the farm's address: {page}"));
            }
            None => {
                self.bad(
                    "webhook.address",
                    &name,
                    "the App has none",
                    format!("write {wanted} under Webhook: {page}"),
                );
                return;
            }
        }
        if config.content_type.as_deref().is_some_and(|kind| kind != "json") {
            let text = "bodies come as a form, and the farm reads JSON";
            self.bad("webhook.type", &name, text, format!("choose application/json: {page}"));
        }
        match self.github.deliveries(place, None).await {
            Ok(found) => self.deliveries(place, &name, &page, found.deliveries).await,
            Err(error) => self.failed("webhook.deliveries", name, &error, &page),
        }
    }

    async fn deliveries(&mut self, place: usize, name: &str, page: &str, mut rows: Vec<Delivery>) {
        rows.sort_by_key(|row| (row.delivered_at, row.id));
        let advanced = format!("{page}/advanced");
        let Some(newest) = rows.last() else {
            let text = "GitHub remembers no delivery, so neither the secret nor the way here can be told";
            let fix = format!("see that Webhook is Active ({page}), push something, and look again");
            return self.unknown("webhook.deliveries", name, text, &fix);
        };
        let arrived = rows.iter().filter(|row| row.succeeded()).count();
        let text = format!("{arrived} of the last {} arrived", rows.len());
        match newest.succeeded() {
            true => self.good("webhook.deliveries", name, text),
            false => {
                let (what, fix) = meaning(newest, page);
                self.bad("webhook.deliveries", name, format!("{text}; the newest: {what}"), fix);
            }
        }
        if !self.questions.redeliver {
            return;
        }
        // A ping means nothing, so it is the best one to repeat.
        let chosen = rows.iter().rev().find(|row| row.event == "ping").unwrap_or(newest).clone();
        match self.sent_anew(place, &chosen, newest.id).await {
            Ok(Some(row)) if row.succeeded() => {
                let text = format!("a {} was sent anew and answered {}", row.event, row.status_code);
                self.good("webhook.reach", name, text);
            }
            Ok(Some(row)) => {
                let (what, fix) = meaning(&row, page);
                self.bad("webhook.reach", name, format!("a {} was sent anew: {what}", row.event), fix);
            }
            Ok(None) => {
                let text = "GitHub took the request to send one anew, and has not done so yet";
                self.unknown("webhook.reach", name, text, &format!("look later: {advanced}"));
            }
            Err(error) => self.failed("webhook.reach", name, &error, &advanced),
        }
    }

    /// Asks for a delivery again and waits until GitHub tells what became of it.
    async fn sent_anew(
        &self,
        place: usize,
        chosen: &Delivery,
        newest: u64,
    ) -> Result<Option<Delivery>, GithubError> {
        self.github.redeliver(place, chosen.id).await?;
        for _ in 0..LOOKS {
            tokio::time::sleep(self.questions.pause).await;
            let page = self.github.deliveries(place, None).await?;
            let told =
                |row: &Delivery| row.status_code != 0 || !matches!(row.status.as_str(), "" | "pending");
            let again = page.deliveries.into_iter();
            let found = again.filter(|row| row.guid == chosen.guid && row.redelivery && row.id > newest);
            if let Some(row) = found.filter(told).max_by_key(|row| row.id) {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}

/// What a failed delivery means, and what to do about it.
fn meaning(row: &Delivery, page: &str) -> (String, String) {
    match row.status_code {
        401 => (
            "the farm answered 401: the secret at GitHub is not the one of the farm".to_owned(),
            format!("write the secret of `webhook-secret-file` there, or the other way round: {page}"),
        ),
        404 => (
            "answered 404: no farm is at the address, or no forge of that name in it".to_owned(),
            format!("compare the address with `public-url` and the `name` of the forge: {page}"),
        ),
        413 => (
            "answered 413: something before the farm refuses large bodies".to_owned(),
            "let the proxy pass bodies of 25 MiB".to_owned(),
        ),
        503 => (
            "the farm answered 503: it has no secret for this forge, or could not store".to_owned(),
            "name the secret with `webhook-secret-file`, and see the farm's log".to_owned(),
        ),
        status if (400..500).contains(&status) => (
            format!("answered {status}"),
            "see what stands between GitHub and the farm: a proxy, an access list".to_owned(),
        ),
        _ => (
            format!("GitHub got no good answer: {} ({})", row.status, row.status_code),
            "see that the farm runs, and that its name, port and certificate are reachable from the internet"
                .to_owned(),
        ),
    }
}
