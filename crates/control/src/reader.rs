//! Reading stored deliveries: raw bodies become meanings, and meanings become decisions.

use crate::app::App;
use crate::auth::person;
use crate::core::farm;
use forgeyard_formats::webhook;
use forgeyard_model::forge::Meaning;
use forgeyard_model::input::Input;
use forgeyard_model::{Explanation, ForgeName, delivery};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Reads deliveries until told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    let mut version = app.core.version();
    loop {
        version.catch_up();
        let unread: Vec<String> = app.core.read().index.unread.iter().take(64).cloned().collect();
        let idle = unread.is_empty();
        // Together, so that one transaction stores what was decided about all of them.
        let troubled = futures::future::join_all(unread.iter().map(|guid| read(&app, guid))).await;
        let wait = if troubled.into_iter().any(|ok| !ok) {
            Duration::from_secs(1)
        } else {
            Duration::from_millis(0)
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = version.changed(), if idle => {}
            () = app.clock.sleep(Duration::from_secs(5)), if idle => {}
            () = app.clock.sleep(wait), if !idle => {}
        }
    }
}

/// Reads one; answers whether it went through.
async fn read(app: &App, guid: &str) -> bool {
    let event = app.core.read().deliveries.get(guid).map(|delivery| delivery.event.clone());
    let Some(event) = event else { return true };
    let body = match app.store.delivery_body(guid).await {
        Ok(body) => body,
        Err(error) => {
            tracing::warn!(%guid, %error, "a delivery cannot be read from the database");
            return false;
        }
    };
    let meaning = match (body, delivery::forge_of(guid).parse()) {
        (Some(body), Ok(forge)) if app.forges.forgejo(&forge).is_some() => {
            of_forgejo(app, &forge, &event, &body)
        }
        (Some(body), Ok(forge)) => webhook::read(&forge, &event, &body),
        _ => Err(Explanation::new("delivery.no_body", "the stored body is missing")),
    };
    // What a person asks for is theirs in the audit trail; the forge's signature vouches for who it is.
    let by = match &meaning {
        Ok(Meaning::Pressed(press)) => person(&press.repository.forge, &press.sender),
        _ => farm(),
    };
    if let Ok(Meaning::Demand(job)) = &meaning {
        app.sources.hear(job, app.clock.now());
    }
    if let (Ok(Meaning::PullRequestClosed { repository, number }), Some(tokens)) =
        (&meaning, &app.cache_tokens)
    {
        // Before the delivery is settled, so that a crash between the two does it twice and not never.
        if let Err(error) = tokens.cache().close(repository, *number) {
            tracing::warn!(%error, number, "the scope of a closed pull request stays until its entries are old");
        }
    }
    let input = Input::DeliveryRead { guid: guid.to_owned(), meaning, asked: app.sources.was_asked(guid) };
    match app.core.give(input, by).await {
        Ok(_) => true,
        Err(error) => {
            tracing::warn!(%guid, %error, "what a delivery says was not taken");
            false
        }
    }
}

/// What a webhook of a Forgejo means. One that speaks of jobs only has the list of jobs asked for now: that list says more, and
/// in numbers that tell attempts apart.
fn of_forgejo(app: &App, forge: &ForgeName, event: &str, body: &[u8]) -> Result<Meaning, Explanation> {
    let Some(repository) = webhook::forgejo::jobs_changed(event, body)? else {
        return webhook::read(forge, event, body);
    };
    let ours = crate::demand::poll::wanted(app, forge).contains_key(&repository);
    let reason = if ours {
        app.sources.hurry(forge);
        format!("`{event}`: the list of jobs is asked for")
    } else {
        format!("`{event}`: repository {repository} has no grant here")
    };
    Ok(Meaning::Nothing { reason })
}
