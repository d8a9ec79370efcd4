//! Installation tokens: made when needed, kept until shortly before they end, one call at a time per installation.

use super::answer;
use super::apps::Installation;
use super::cause::Cause;
use super::client::{App, Call, Github};
use super::endpoint::Target;
use super::error::GithubError;
use forgeyard_model::{Secret, Timestamp};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A token is not used during its last minutes: a call may take a while, and clocks differ.
const MARGIN: Duration = Duration::from_secs(5 * 60);
/// How long "the App is not installed there" is believed.
const ABSENT_FOR: Duration = Duration::from_secs(10 * 60);

/// Where an App is installed, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// There.
    At(u64),
    /// Not at all, a short while ago.
    Absent,
}

#[derive(Debug, Clone)]
struct Held {
    token: Secret,
    until: Timestamp,
}

type Slot = Arc<tokio::sync::Mutex<Option<Held>>>;

/// What is kept for one App.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By owner, in lower case: one installation serves all repositories of an account.
    installed: HashMap<String, u64>,
    /// By organisation or repository.
    absent: HashMap<Target, Timestamp>,
    slots: HashMap<u64, Slot>,
}

#[derive(Deserialize)]
struct Made {
    token: Secret,
    #[serde(deserialize_with = "answer::time")]
    expires_at: Timestamp,
}

impl Tokens {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the App is installed, if that is known.
    pub(crate) fn known(&self, target: &Target, now: Timestamp) -> Option<Known> {
        let inner = self.inner();
        if let Some(id) = inner.installed.get(&owner(target)) {
            return Some(Known::At(*id));
        }
        inner.absent.get(target).filter(|until| **until > now).map(|_| Known::Absent)
    }

    fn learn(&self, target: &Target, id: u64) {
        let mut inner = self.inner();
        inner.absent.remove(target);
        inner.installed.insert(owner(target), id);
    }

    fn learn_absent(&self, target: &Target, now: Timestamp) {
        let mut inner = self.inner();
        inner.absent.retain(|_, until| *until > now);
        inner.absent.insert(target.clone(), now.plus(ABSENT_FOR));
    }

    /// Forgets where the App is installed at an account.
    pub(crate) fn forget(&self, target: &Target) {
        let mut inner = self.inner();
        if let Some(id) = inner.installed.remove(&owner(target)) {
            inner.slots.remove(&id);
        }
    }

    fn slot(&self, installation: u64) -> Slot {
        self.inner().slots.entry(installation).or_default().clone()
    }

    /// Throws a token away that was not taken, unless it was replaced meanwhile.
    pub(crate) async fn drop_token(&self, installation: u64, token: &Secret) {
        let slot = self.slot(installation);
        let mut held = slot.lock().await;
        if held.as_ref().is_some_and(|held| held.token == *token) {
            *held = None;
        }
    }
}

fn owner(target: &Target) -> String {
    target.owner().as_str().to_ascii_lowercase()
}

impl Github {
    /// Where the App is installed; asked once per account.
    pub(crate) async fn installation_id(&self, app: &App, target: &Target) -> Result<u64, GithubError> {
        let call = Call::get("installation", format!("{}/installation", target.path()));
        match app.tokens.known(target, self.now()) {
            Some(Known::At(id)) => return Ok(id),
            Some(Known::Absent) => return Err(not_installed(target)),
            None => {}
        }
        let answer = self.as_app(app, call).await?;
        if answer.status == 404 && matches!(answer.cause(), Cause::NotFound) {
            app.tokens.learn_absent(target, self.now());
            return Err(not_installed(target));
        }
        let found: Installation = answer.json()?;
        app.tokens.learn(target, found.id);
        Ok(found.id)
    }

    /// The kept token of an installation, or a new one.
    pub(crate) async fn installation_token(
        &self,
        app: &App,
        installation: u64,
    ) -> Result<Secret, GithubError> {
        let slot = app.tokens.slot(installation);
        // Held while the token is made, so that a crowd of callers makes one.
        let mut held = slot.lock().await;
        if let Some(held) = held.as_ref().filter(|held| held.until > self.now()) {
            return Ok(held.token.clone());
        }
        let path = format!("/app/installations/{installation}/access_tokens");
        let made: Made = self.as_app(app, Call::post("token", path)).await?.json()?;
        let margin = i64::try_from(MARGIN.as_micros()).unwrap_or(0);
        let until = Timestamp::from_micros(made.expires_at.as_micros().saturating_sub(margin));
        *held = Some(Held { token: made.token.clone(), until });
        Ok(made.token)
    }
}

fn not_installed(target: &Target) -> GithubError {
    GithubError::Refused {
        call: format!("GET {}/installation", target.path()),
        status: 404,
        cause: Cause::NotInstalled,
        request: None,
    }
}
