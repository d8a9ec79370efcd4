//! `forgeyard token`: API tokens. A token is shown once, when it is made; the farm keeps only its digest.

use super::{FarmArgs, ReadArgs};
use crate::output::{self, Wrong, at, table_or};
use anyhow::Result;
use clap::Subcommand;
use forgeyard_api::client::Client;
use forgeyard_api::people::{TokenRequest, TokenView};
use forgeyard_model::principal::{PrincipalKind, Role};
use forgeyard_model::who::ForgeId;
use forgeyard_model::{PrincipalId, Timestamp};
use std::process::ExitCode;

/// What can be done with tokens.
#[derive(Subcommand, Clone)]
pub enum TokenCommand {
    /// Make a token and print it, once.
    #[command(alias = "create")]
    New {
        /// Whom it is for; the audit trail shows this name.
        #[arg(long)]
        name: String,
        /// What it may do, as a role: viewer, maintainer, operator or admin.
        #[arg(long, required_unless_present = "scope", conflicts_with = "scope")]
        role: Option<Role>,
        /// What it may do, as a scope: read, approve, operate or admin. Each includes those before it.
        #[arg(long, value_parser = scope)]
        scope: Option<Role>,
        /// Only for this repository, by numeric id, with its forge where that is not the home forge: 7, lab:7. May be given more than once. Without it, for the whole farm.
        #[arg(long = "repository", value_name = "ID")]
        repositories: Vec<ForgeId>,
        /// How long it is good for: 90d, 12h, 30m. For ever when it is not given.
        #[arg(long, value_name = "TIME", value_parser = span)]
        expires_in: Option<u64>,
        #[command(flatten)]
        farm: FarmArgs,
    },
    /// List the tokens, without the tokens themselves.
    List(ReadArgs),
    /// Revoke a token: it is refused from now on.
    Revoke {
        /// The token, by its name or as `prn_…`.
        token: String,
        #[command(flatten)]
        farm: FarmArgs,
    },
}

/// Runs a command.
pub async fn run(command: TokenCommand) -> Result<ExitCode> {
    match command {
        TokenCommand::New { name, role, scope, repositories, expires_in, farm } => {
            let role = role.or(scope).unwrap_or(Role::Viewer);
            let repositories = repositories.into_iter().collect();
            let request = TokenRequest { name, role, expires_in_seconds: expires_in, repositories };
            output::say(&farm.client()?.issue_token(&request).await?.token)?;
            Ok(ExitCode::SUCCESS)
        }
        TokenCommand::List(read) => {
            let client = read.farm.client()?;
            let tokens = client.tokens().await?;
            let now = if read.json { Timestamp::default() } else { client.status().await?.at };
            output::show(read.json, &tokens, |tokens| list(tokens, now))
        }
        TokenCommand::Revoke { token, farm } => {
            let client = farm.client()?;
            let id = find(&client, &token).await?;
            client.revoke_token(id).await?;
            output::say(&format!("{token} is revoked"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn list(tokens: &[TokenView], now: Timestamp) -> String {
    let rows: Vec<Vec<String>> = tokens
        .iter()
        .map(|token| {
            let mut role = match &token.principal.kind {
                PrincipalKind::Token { role } => role.to_string(),
                PrincipalKind::Person { id, forge } => match forge {
                    Some(forge) => format!("session of id {id} at {forge}"),
                    None => format!("session of id {id}"),
                },
                _ => String::new(),
            };
            if !token.repositories.is_empty() {
                let ids: Vec<String> = token.repositories.iter().map(ToString::to_string).collect();
                role.push_str(&format!(" in {}", ids.join(", ")));
            }
            let state = match (token.revoked_at, token.expires_at) {
                (Some(time), _) => format!("revoked {}", at(time)),
                (None, Some(time)) if time <= now => format!("over since {}", at(time)),
                (None, Some(time)) => format!("good until {}", at(time)),
                (None, None) => "good for ever".to_owned(),
            };
            vec![token.principal.id.to_string(), role, state, token.principal.name.clone()]
        })
        .collect();
    table_or("no token", &["token", "role", "state", "name"], &rows)
}

async fn find(client: &Client, text: &str) -> Result<PrincipalId> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let tokens = client.tokens().await?;
    let mut good = tokens.iter().filter(|token| token.principal.name == text && token.revoked_at.is_none());
    match (good.next(), good.next()) {
        (Some(token), None) => Ok(token.principal.id),
        (Some(_), Some(_)) => Err(Wrong::new(format!("more than one token has the name `{text}`"))
            .fix("name it by its id; see `forgeyard token list`")
            .into()),
        (None, _) => Err(Wrong::new(format!("no token that is good has the name `{text}`"))
            .fix("see `forgeyard token list`")
            .into()),
    }
}

/// A scope, as the role that it is.
fn scope(text: &str) -> Result<Role, String> {
    match text {
        "read" => Ok(Role::Viewer),
        "approve" => Ok(Role::Maintainer),
        "operate" => Ok(Role::Operator),
        "admin" => Ok(Role::Admin),
        other => Err(format!("`{other}` is not a scope: read, approve, operate or admin")),
    }
}

/// A span of time as people write it, in seconds.
fn span(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a time: a number with s, m, h or d, for example 90d");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let count: u64 = text.strip_suffix(unit).and_then(|count| count.parse().ok()).ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    count.checked_mul(seconds).filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_nonsense_is_refused() {
        assert_eq!((span("90d"), span("12h"), span("1s")), (Ok(7_776_000), Ok(43_200), Ok(1)));
        for text in ["", "d", "9", "0d", "-1d", "1w", "1ä", "99999999999999999999d", "18446744073709551615d"]
        {
            assert!(span(text).is_err(), "{text}");
        }
    }
}
