//! The App itself, the clock, and where it is installed with which rights.

use super::Chart;
use crate::github::apps::{AppDescription, Installation};
use crate::github::cause::Cause;
use crate::github::client::Call;
use crate::github::endpoint::Target;
use crate::github::needs::{self, Need, Place};
use forgeyard_model::Timestamp;
use std::collections::BTreeMap;

/// A difference of clocks that is worth a word: GitHub takes tokens up to a minute off.
const SKEW: u64 = 20;

/// What is known of an App.
pub(super) struct Known {
    pub(super) app: AppDescription,
    /// Its settings, for people.
    pub(super) settings: String,
}

impl Chart<'_> {
    /// The key and the clock. Without them nothing else can be looked at.
    pub(super) async fn app(&mut self, place: usize) -> Option<Known> {
        let name = format!("App {}", place + 1);
        let app = match self.github.app(place) {
            Ok(app) => app,
            Err(error) => {
                self.failed("app.key", name, &error, "");
                return None;
            }
        };
        let answer = match self.github.as_app(app, Call::get("app", "/app".to_owned())).await {
            Ok(answer) => answer,
            Err(error) => {
                self.failed("app.reach", name, &error, "");
                return None;
            }
        };
        let skewed = self.clock(&name, answer.header("date"));
        let settings = format!("{}/settings/apps", self.web());
        match answer.json::<AppDescription>() {
            Ok(app) => {
                let settings = self.settings(&app);
                self.good("app.key", &app.name, format!("GitHub knows it as id {}", app.id));
                Some(Known { app, settings })
            }
            Err(error) => {
                if skewed && matches!(error.cause(), Some(Cause::ClockSkew)) {
                    // One trouble, told once.
                    return None;
                }
                self.failed("app.key", name, &error, &settings);
                None
            }
        }
    }

    /// Compares clocks; whether they differ too much.
    fn clock(&mut self, of: &str, date: Option<&str>) -> bool {
        let parsed = date.and_then(|text| jiff::fmt::rfc2822::parse(text).ok());
        let Some(theirs) = parsed.map(|zoned| Timestamp::from_micros(zoned.timestamp().as_microsecond()))
        else {
            self.unknown("clock", of, "the answer holds no time", "");
            return false;
        };
        let ours = self.github.now();
        let (off, word) = if ours > theirs {
            (ours.since(theirs).as_secs(), "ahead of")
        } else {
            (theirs.since(ours).as_secs(), "behind")
        };
        if off <= SKEW {
            self.good("clock", of, format!("within {SKEW} s of GitHub's"));
            return false;
        }
        let text = format!("this machine's clock is {off} s {word} GitHub's, and tokens live nine minutes");
        self.bad("clock", of, text, "set the clock and keep it right (chrony or systemd-timesyncd)");
        true
    }

    /// The page where an App is changed.
    fn settings(&self, app: &AppDescription) -> String {
        let slug = app.slug.as_deref().unwrap_or_default();
        match app.owner.as_ref().filter(|owner| owner.kind == "Organization") {
            Some(owner) => format!("{}/organizations/{}/settings/apps/{slug}", self.web(), owner.login),
            None => format!("{}/settings/apps/{slug}", self.web()),
        }
    }

    /// Where it is installed; whether it can be used anywhere.
    pub(super) async fn installations(&mut self, place: usize, known: &Known) -> bool {
        let mut usable = false;
        for target in self.questions.targets.clone() {
            match self.github.installation(place, &target).await {
                Ok(Some(found)) => {
                    if let Some(since) = found.suspended_at {
                        let page = self.installation_page(&found);
                        let text = format!("suspended since {since}: GitHub refuses all its calls");
                        self.bad("installation", &target, text, format!("unsuspend it: {page}"));
                        continue;
                    }
                    usable = true;
                    self.good(
                        "installation",
                        &target,
                        format!("{} is installed as {}", known.app.name, found.id),
                    );
                    self.permissions(&target, &found, known);
                    self.events(&target, &found, known);
                    self.selection(place, &target, known).await;
                }
                Ok(None) => {
                    let text = format!("{} is not installed there", known.app.name);
                    self.bad(
                        "installation",
                        &target,
                        text,
                        format!("install it: {}", self.install_page(known)),
                    );
                }
                Err(error) => self.failed("installation", &target, &error, &known.settings),
            }
        }
        usable
    }

    fn install_page(&self, known: &Known) -> String {
        format!("{}/installations", known.settings)
    }

    fn installation_page(&self, found: &Installation) -> String {
        match found.account.as_ref().filter(|account| account.kind == "Organization") {
            Some(account) => {
                format!("{}/organizations/{}/settings/installations/{}", self.web(), account.login, found.id)
            }
            None => format!("{}/settings/installations/{}", self.web(), found.id),
        }
    }

    fn permissions(&mut self, target: &Target, found: &Installation, known: &Known) {
        let missing = needs::missing(found, target);
        for need in needs::at(Place::of(target)) {
            let check = format!("permission.{}", need.permission);
            if !missing.contains(&need) {
                self.good(&check, target, format!("{} held", need.level));
                continue;
            }
            let has = |held: &BTreeMap<String, String>| held.get(need.permission).cloned();
            let held = has(&found.permissions).unwrap_or_else(|| "none".to_owned());
            let text = format!("{} wanted, {held} held; it is to {}", need.level, need.why);
            // An App may ask for more than an owner has agreed to yet.
            let asked = has(&known.app.permissions).is_some_and(|level| covers(&level, need));
            let fix = if asked {
                format!("agree to the App's new permissions: {}", self.installation_page(found))
            } else {
                format!("ask for it, then agree at the installation: {}/permissions", known.settings)
            };
            self.bad(&check, target, text, fix);
        }
    }

    fn events(&mut self, target: &Target, found: &Installation, known: &Known) {
        if self.questions.hook.is_none() {
            return;
        }
        let silent = needs::silent(found);
        if silent.is_empty() {
            self.good("events", target, needs::EVENTS.join(", "));
        } else {
            let text = format!("not subscribed: {}", silent.join(", "));
            self.bad("events", target, text, format!("tick them: {}/permissions", known.settings));
        }
    }

    /// Repositories that the App was not given.
    async fn selection(&mut self, place: usize, target: &Target, known: &Known) {
        let Target::Organisation(org) = target else { return };
        for path in self.questions.repositories.clone() {
            if path.owner() != org {
                continue;
            }
            match self.github.installation(place, &path.clone().into()).await {
                Ok(Some(_)) => self.good("repository", &path, format!("{} may see it", known.app.name)),
                Ok(None) => {
                    let text = format!("{} was not given it, or it does not exist", known.app.name);
                    self.bad("repository", &path, text, format!("add it: {}", self.install_page(known)));
                }
                Err(error) => self.failed("repository", &path, &error, &known.settings),
            }
        }
    }
}

/// Whether a held level is enough.
fn covers(held: &str, need: &Need) -> bool {
    held == need.level || matches!((held, need.level), ("write" | "admin", "read") | ("admin", "write"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GitHub writes dates as RFC 9110 has it.
    #[test]
    fn date_of_an_answer_is_read() {
        let zoned = jiff::fmt::rfc2822::parse("Tue, 14 Nov 2023 22:13:20 GMT").unwrap();
        assert_eq!(zoned.timestamp().as_microsecond(), 1_700_000_000_000_000);
        let app: AppDescription =
            crate::github::answer::read("GET /app", br#"{"id":1,"name":"farm","owner":null}"#).unwrap();
        assert_eq!(app.owner, None);
    }
}
