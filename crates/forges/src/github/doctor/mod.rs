//! The doctor: proves that a connection does all that it should, by doing it, and names what is missing with the page
//! where it is changed.
//!
//! What is looked at, in this order: the key and the clock ([`app`]); where the App is installed, with each permission and
//! event; its webhook, by the deliveries that GitHub remembers and by one sent anew ([`hook`]); a configuration for a
//! runner, really made and deleted; the runner group; scale sets; what is left of the limits ([`runners`]).
//!
//! Invariants: a check that cannot be made is [`Verdict::Unknown`] and says why, and is never called good; nothing is left
//! behind but what a finding names; no secret is in a finding. Unlike the rest of the client this waits, between looks at
//! a delivery that was asked for: a person sits in front of it.

mod app;
mod hook;
mod runners;

use super::client::Github;
use super::endpoint::{RepositoryPath, Target};
use super::error::GithubError;
use serde::Serialize;
use std::time::Duration;

/// What helps against limits.
const SECOND_APP: &str =
    "wait for the next hour; add a second App to the forge, which brings limits of its own";

/// What a look came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is as it should be.
    Good,
    /// It is not, and jobs will suffer.
    Bad,
    /// It could not be seen, or cannot be told from here.
    Unknown,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, `app.key`.
    pub check: String,
    /// Of what: an App, an organisation, a repository.
    pub of: String,
    /// What it came to.
    pub verdict: Verdict,
    /// What was seen.
    pub detail: String,
    /// What to do, with the page where it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// A scale set that is to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetQuestion {
    /// Organisation or repository.
    pub at: Target,
    /// Its name.
    pub name: String,
    /// Its runner group.
    pub group: String,
}

/// What the farm expects of a connection.
#[derive(Debug, Clone)]
pub struct Questions {
    /// Where runners are registered.
    pub targets: Vec<Target>,
    /// Repositories whose jobs they are for.
    pub repositories: Vec<RepositoryPath>,
    /// Where webhooks should go; none for a farm that asks for its work.
    pub hook: Option<String>,
    /// Runner group of runners that are registered by REST.
    pub runner_group: u64,
    /// Scale sets that are listened to.
    pub scale_sets: Vec<SetQuestion>,
    /// Makes the name of the trial runner unique.
    pub mark: String,
    /// Make and delete a runner.
    pub mint: bool,
    /// Ask for one delivery to be sent anew.
    pub redeliver: bool,
    /// Pause between two looks at that delivery.
    pub pause: Duration,
}

/// Looks at everything. `tell` is called with each finding as it comes.
pub async fn examine(
    github: &Github,
    questions: &Questions,
    tell: &mut (dyn FnMut(&Finding) + Send),
) -> Vec<Finding> {
    let mut chart = Chart { github, questions, tell, findings: Vec::new() };
    let mut usable = false;
    for place in 0..github.apps() {
        if let Some(known) = chart.app(place).await {
            usable |= chart.installations(place, &known).await;
            chart.hook(place, &known).await;
        }
    }
    if questions.targets.is_empty() {
        let fix = "declare one under [[repositories]], or name a place with --at";
        chart.bad("targets", "the farm", "no repository of this forge is configured", fix);
    }
    // Without an App that works everything else would fail with the same words.
    if usable {
        for target in &questions.targets {
            chart.trial(target).await;
            chart.group(target).await;
        }
        for set in &questions.scale_sets {
            chart.scale_set(set).await;
        }
        for target in &questions.targets {
            chart.limits(target).await;
        }
    }
    chart.findings
}

/// The findings so far.
struct Chart<'a> {
    github: &'a Github,
    questions: &'a Questions,
    tell: &'a mut (dyn FnMut(&Finding) + Send),
    findings: Vec<Finding>,
}

impl Chart<'_> {
    fn say(
        &mut self,
        check: &str,
        of: &dyn std::fmt::Display,
        verdict: Verdict,
        detail: String,
        fix: Option<String>,
    ) {
        let finding = Finding { check: check.to_owned(), of: of.to_string(), verdict, detail, fix };
        (self.tell)(&finding);
        self.findings.push(finding);
    }

    fn good(&mut self, check: &str, of: impl std::fmt::Display, detail: impl Into<String>) {
        self.say(check, &of, Verdict::Good, detail.into(), None);
    }

    fn unknown(&mut self, check: &str, of: impl std::fmt::Display, detail: impl Into<String>, fix: &str) {
        let fix = (!fix.is_empty()).then(|| fix.to_owned());
        self.say(check, &of, Verdict::Unknown, detail.into(), fix);
    }

    fn bad(
        &mut self,
        check: &str,
        of: impl std::fmt::Display,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let fix = fix.into();
        self.say(check, &of, Verdict::Bad, detail.into(), (!fix.is_empty()).then_some(fix));
    }

    /// A call that failed.
    fn failed(&mut self, check: &str, of: impl std::fmt::Display, error: &GithubError, page: &str) {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(source) = cause {
            text = format!("{text}: {source}");
            cause = source.source();
        }
        let fix = match error {
            GithubError::Limited { .. } => SECOND_APP.to_owned(),
            _ => error.cause().map(|cause| cause.fix().to_owned()).unwrap_or_default(),
        };
        let fix = match (fix.as_str(), page) {
            ("", "") => {
                "see that the address in the configuration is right and can be reached from here".to_owned()
            }
            ("", page) => format!("see {page}"),
            (_, "") | (SECOND_APP, _) => fix,
            (fix, page) => format!("{fix}: {page}"),
        };
        self.bad(check, of, text, fix);
    }

    fn web(&self) -> &str {
        self.github.endpoint().web()
    }
}
