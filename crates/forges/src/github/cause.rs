//! Known refusals: what GitHub's text means, and what a person does about it.
//!
//! GitHub has no stable codes for most of these, so they are known by their texts and by the exception names of the
//! actions service (runners.md §3.2 and §3.6). The texts about single sign-on, clocks and old runner programs are from
//! general knowledge and were not seen in a public source. A text that is not known is kept as it is:
//! [`Cause::Other`].

use serde::Deserialize;

/// What a refusal means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// A runner of this name is there already.
    NameTaken,
    /// The runner group holds as many runners as it may.
    GroupFull {
        /// How many that is, where the text says so.
        limit: Option<u64>,
    },
    /// The runner group is one of GitHub's own.
    GroupHosted,
    /// The organisation does not allow runners at its repositories.
    RepositoryRunnersDisabled,
    /// GitHub Actions is turned off.
    ActionsDisabled,
    /// The organisation admits only some network addresses, and the farm's is not among them.
    IpAllowList,
    /// The App lacks a permission.
    PermissionMissing {
        /// What GitHub says would do (`x-accepted-github-permissions`), such as
        /// `organization_self_hosted_runners=write`.
        needs: Option<String>,
    },
    /// The organisation wants single sign-on for this token.
    SingleSignOn,
    /// The installation was suspended, by the organisation or by GitHub.
    Suspended,
    /// The App is not installed at the account or repository.
    NotInstalled,
    /// The token was not taken.
    BadCredentials,
    /// The App's signature or issuer was not taken.
    AppUnknown,
    /// GitHub's clock and ours differ by too much.
    ClockSkew,
    /// A job runs on the runner.
    RunnerBusy,
    /// Another listener holds the session of the scale set.
    SessionConflict,
    /// The session of the scale set is no more.
    SessionGone,
    /// A scale set of this name is there already.
    ScaleSetExists,
    /// The actions service knows no such runner.
    AgentUnknown,
    /// A run cannot be repeated while it goes on.
    RunActive,
    /// The runner program in the image is too old.
    RunnerOutdated,
    /// There is no such thing, or the App may not see it.
    NotFound,
    /// The request breaks a rule; the text says which.
    Invalid {
        /// GitHub's text.
        text: String,
    },
    /// GitHub itself has trouble.
    Unavailable {
        /// GitHub's text.
        text: String,
    },
    /// Something that is not known.
    Other {
        /// GitHub's text.
        text: String,
    },
}

/// What to do with the call that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// It may work by itself, later.
    Later,
    /// Only after a person changed something; the pool is better paused.
    AfterChange,
    /// Never as it is: the request itself has to be another.
    Never,
}

/// Longest text that is kept of an answer, in characters.
const KEPT: usize = 400;

/// The shapes in which refusals come: REST has `message`, the actions service `message` and `typeName`.
#[derive(Deserialize, Default)]
struct Body {
    #[serde(default)]
    message: Option<String>,
    #[serde(default, rename = "typeName")]
    type_name: Option<String>,
    #[serde(default)]
    errors: Option<serde_json::Value>,
}

impl Cause {
    /// Reads a refusal. `needs` is the header `x-accepted-github-permissions`.
    pub fn read(status: u16, body: &[u8], needs: Option<&str>) -> Self {
        let (text, exception) = text(body);
        let lower = text.to_ascii_lowercase();
        let says = |part: &str| lower.contains(part);
        let thrown = |name: &str| exception.contains(name) || text.contains(name);

        if thrown("RunnerScaleSetSessionConflictException") {
            Self::SessionConflict
        } else if thrown("AgentExistsException") {
            Self::NameTaken
        } else if thrown("AgentNotFoundException") {
            Self::AgentUnknown
        } else if thrown("JobStillRunningException")
            || says("currently running a job")
            || says("still running a job")
        {
            Self::RunnerBusy
        } else if thrown("RunnerScaleSetExistsException") {
            Self::ScaleSetExists
        } else if thrown("RunnerScaleSetSessionNotFoundException") {
            Self::SessionGone
        } else if says("max limit of") && says("runners") {
            Self::GroupFull { limit: number_after(&lower, "max limit of") }
        } else if says("repository level self-hosted runners are disabled")
            || says("repository-level self-hosted runners are disabled")
        {
            Self::RepositoryRunnersDisabled
        } else if says("actions is disabled") || says("actions has been disabled") {
            Self::ActionsDisabled
        } else if says("ip allow list") || says("ip allowlist") {
            Self::IpAllowList
        } else if says("resource not accessible by integration") {
            Self::PermissionMissing { needs: needs.map(cut) }
        } else if says("saml") {
            Self::SingleSignOn
        } else if says("suspended") {
            Self::Suspended
        } else if status == 401 && (says("'exp'") || says("'iat'") || says("expiration time")) {
            Self::ClockSkew
        } else if says("json web token") || says("integration not found") || says("'issuer' claim") {
            Self::AppUnknown
        } else if says("already running") {
            Self::RunActive
        } else if says("runner version") && (says("deprecated") || says("outdated") || says("too old")) {
            Self::RunnerOutdated
        } else if status == 409 && says("already exists") {
            Self::NameTaken
        } else if status == 403 && says("hosted") && says("group") {
            Self::GroupHosted
        } else {
            match status {
                401 => Self::BadCredentials,
                404 => Self::NotFound,
                400 | 422 => Self::Invalid { text },
                500..=599 => Self::Unavailable { text },
                _ => Self::Other { text },
            }
        }
    }

    /// What happened, in one sentence.
    pub fn explanation(&self) -> String {
        match self {
            Self::NameTaken => "a runner of this name is registered already".into(),
            Self::GroupFull { limit: Some(limit) } => {
                format!("the runner group holds its {limit} runners already")
            }
            Self::GroupFull { limit: None } => "the runner group holds as many runners as it may".into(),
            Self::GroupHosted => "the runner group is GitHub's own, no runner can join it".into(),
            Self::RepositoryRunnersDisabled => {
                "the organisation does not allow runners at single repositories".into()
            }
            Self::ActionsDisabled => "GitHub Actions is turned off there".into(),
            Self::IpAllowList => {
                "the organisation's list of allowed addresses does not hold the farm's".into()
            }
            Self::PermissionMissing { needs: Some(needs) } => format!("the App lacks a permission: {needs}"),
            Self::PermissionMissing { needs: None } => "the App lacks a permission for this".into(),
            Self::SingleSignOn => "the organisation asks for single sign-on".into(),
            Self::Suspended => "the installation of the App is suspended".into(),
            Self::NotInstalled => "the App is not installed there".into(),
            Self::BadCredentials => "GitHub did not take the token".into(),
            Self::AppUnknown => "GitHub knows no App with this id and key".into(),
            Self::ClockSkew => "the farm's clock and GitHub's differ too much".into(),
            Self::RunnerBusy => "a job still runs on the runner".into(),
            Self::SessionConflict => "another listener holds the session of the scale set".into(),
            Self::SessionGone => "the session of the scale set has ended".into(),
            Self::ScaleSetExists => "a scale set of this name is there already".into(),
            Self::AgentUnknown => "the runner is not registered any more".into(),
            Self::RunActive => "the workflow run still goes on".into(),
            Self::RunnerOutdated => "the runner program in the image is too old for GitHub".into(),
            Self::NotFound => "there is no such thing, or the App may not see it".into(),
            Self::Invalid { text } => format!("the request is not valid: {text}"),
            Self::Unavailable { text } => format!("GitHub has trouble: {text}"),
            Self::Other { text } => text.clone(),
        }
    }

    /// What to do, in one sentence; empty where there is nothing to do but wait.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::NameTaken => "delete the registration of that name, or use another name",
            Self::GroupFull { .. } => "delete offline runners of the group, or use a second group",
            Self::GroupHosted => "choose another runner group for the pool",
            Self::RepositoryRunnersDisabled => {
                "register at the organisation, or allow repository runners in its settings under Actions, General"
            }
            Self::ActionsDisabled => "turn Actions on in the settings of the organisation or repository",
            Self::IpAllowList => "add the farm's public address to the organisation's IP allow list",
            Self::PermissionMissing { .. } => {
                "grant the permission in the App's settings, then accept it at the installation"
            }
            Self::SingleSignOn => "authorise the App for the organisation's single sign-on",
            Self::Suspended => "unsuspend the App in the organisation's settings under GitHub Apps",
            Self::NotInstalled => "install the App on the organisation or repository",
            Self::BadCredentials => {
                "nothing, if it happens once: the token is made anew; else check the App's key"
            }
            Self::AppUnknown => "compare the client id and the private key with the App's settings page",
            Self::ClockSkew => "set the clock of the farm's machine (NTP)",
            Self::ScaleSetExists => "use the scale set that is there, or another name",
            Self::RunnerOutdated => "build the image anew with the current runner program",
            Self::NotFound => "check the name, and that the App is installed on it",
            Self::Invalid { .. } | Self::Other { .. } => "read GitHub's text",
            Self::RunnerBusy
            | Self::SessionConflict
            | Self::SessionGone
            | Self::AgentUnknown
            | Self::RunActive
            | Self::Unavailable { .. } => "",
        }
    }

    /// Whether trying again can help.
    pub fn again(&self) -> Again {
        match self {
            Self::RunnerBusy
            | Self::SessionConflict
            | Self::SessionGone
            | Self::RunActive
            | Self::BadCredentials
            | Self::Unavailable { .. }
            | Self::Other { .. } => Again::Later,
            Self::NameTaken | Self::ScaleSetExists | Self::AgentUnknown | Self::Invalid { .. } => {
                Again::Never
            }
            Self::GroupFull { .. }
            | Self::GroupHosted
            | Self::RepositoryRunnersDisabled
            | Self::ActionsDisabled
            | Self::IpAllowList
            | Self::PermissionMissing { .. }
            | Self::SingleSignOn
            | Self::Suspended
            | Self::NotInstalled
            | Self::AppUnknown
            | Self::ClockSkew
            | Self::RunnerOutdated
            | Self::NotFound => Again::AfterChange,
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.explanation())?;
        match self.fix() {
            "" => Ok(()),
            fix => write!(f, " ({fix})"),
        }
    }
}

/// Text of a refusal for people, and the name of an exception.
fn text(body: &[u8]) -> (String, String) {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    match serde_json::from_slice::<Body>(body) {
        Ok(Body { message: Some(message), type_name, errors }) => {
            let mut text = message;
            if let Some(errors) = errors {
                text.push_str(": ");
                text.push_str(&errors.to_string());
            }
            (cut(&text), type_name.unwrap_or_default())
        }
        Ok(Body { type_name, .. }) => (cut(&String::from_utf8_lossy(body)), type_name.unwrap_or_default()),
        Err(_) => (cut(&String::from_utf8_lossy(body)), String::new()),
    }
}

/// Cuts a foreign text and takes control characters out, since it ends up in logs and terminals.
fn cut(text: &str) -> String {
    text.trim().chars().take(KEPT).map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// The number that follows a phrase; thousands may be marked by commas.
fn number_after(text: &str, phrase: &str) -> Option<u64> {
    let (_, rest) = text.split_once(phrase)?;
    let digits: String = rest
        .trim_start()
        .chars()
        .take_while(|letter| letter.is_ascii_digit() || *letter == ',')
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests;
