//! `forgeyard cache prewarm`: has the cache fetch what it is to hold before jobs come, and tells how that goes.
//!
//! The cache does all of it, by itself too; this asks it to begin now, watches, and says what fails, where, and what to do.

use super::cache::AdminArgs;
use crate::output::{self, Wrong, bytes, table_or};
use anyhow::Result;
use clap::Args;
use forgeyard_cache::warm::{Line, Standing};
use reqwest::Method;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(300);
/// How often bytes that come are told.
const TELL: Duration = Duration::from_secs(2);

/// What is to be fetched.
#[derive(Args, Clone)]
pub struct PrewarmArgs {
    /// Only this list.
    #[arg(long, value_name = "NAME")]
    list: Option<String>,
    /// Only lists that are for this pool.
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Fetch nothing: say what is here and of when. Ends with 1 when something is missing or its source fails.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

impl PrewarmArgs {
    fn means(&self, line: &Line) -> bool {
        self.list.as_ref().is_none_or(|name| line.list == *name)
            && self.pool.as_ref().is_none_or(|pool| line.pools.contains(pool))
    }
}

/// How a thing stands, in a few words.
fn words(line: &Line) -> String {
    match &line.standing {
        Standing::Waiting => "waits".to_owned(),
        Standing::Fetching { done: 0 } => "is fetched".to_owned(),
        Standing::Fetching { done } => format!("is fetched, {} so far", bytes(*done)),
        Standing::Fresh { at } => format!("here, as of {}", output::at(*at)),
        Standing::Failing { tries, next, last_good, .. } => {
            let before = last_good
                .map_or_else(|| "never here".to_owned(), |at| format!("here as of {}", output::at(at)));
            format!("failing ({tries} times, again at {}), {before}", output::at(*next))
        }
    }
}

/// What fails, each with why; nothing when nothing does.
pub fn failing(lines: &[Line]) -> String {
    let mut text = String::new();
    for line in lines {
        if let Standing::Failing { error, .. } = &line.standing {
            let _ = write!(text, "\n{} of list `{}` {}: {error}\n", line.kind, line.list, words(line));
        }
    }
    text
}

fn table(lines: &[Line]) -> String {
    let row = |line: &Line| {
        let size = if line.bytes == 0 { String::new() } else { bytes(line.bytes) };
        vec![line.list.clone(), line.kind.clone(), size, words(line), line.path.clone()]
    };
    let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
    table_or("nothing", &["list", "kind", "size", "state", "path on the cache"], &rows) + &failing(lines)
}

async fn look(args: &PrewarmArgs) -> Result<Vec<Line>> {
    let text = args.admin.admin()?.ask(Method::GET, "warm", &[]).await?;
    let all: Vec<Line> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    if all.is_empty() {
        return Err(Wrong::new("the cache is to fetch nothing beforehand")
            .fix("write [[cache.warm]] into the configuration and start the cache again, see docs/cache-prewarm.md")
            .into());
    }
    let chosen: Vec<Line> = all.iter().filter(|line| args.means(line)).cloned().collect();
    if chosen.is_empty() {
        let mut names: Vec<&str> = all.iter().map(|line| line.list.as_str()).collect();
        names.dedup();
        return Err(Wrong::new("no list is called so, or is for this pool")
            .fix(format!("the lists are: {}", names.join(", ")))
            .into());
    }
    Ok(chosen)
}

/// Runs the command.
pub async fn run(args: PrewarmArgs) -> Result<ExitCode> {
    let mut lines = look(&args).await?;
    if !args.check {
        let mut lists: Vec<&str> = lines.iter().map(|line| line.list.as_str()).collect();
        lists.dedup();
        for list in lists {
            args.admin.admin()?.ask(Method::POST, "warm", &[("list", list)]).await?;
        }
        let mut said: BTreeMap<String, (String, Instant)> = BTreeMap::new();
        loop {
            lines = look(&args).await?;
            for line in &lines {
                let now = words(line);
                let coming = matches!(line.standing, Standing::Fetching { .. });
                let news = said
                    .get(&line.path)
                    .is_none_or(|(before, at)| *before != now && (!coming || at.elapsed() > TELL));
                if news && !matches!(line.standing, Standing::Waiting) {
                    eprintln!("{} {}: {now}", line.kind, line.source);
                    said.insert(line.path.clone(), (now, Instant::now()));
                }
            }
            let busy = |line: &Line| matches!(line.standing, Standing::Waiting | Standing::Fetching { .. });
            if !lines.iter().any(busy) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    let here = |line: &Line| matches!(line.standing, Standing::Fresh { .. });
    let shown = output::show(args.admin.json, &lines, |lines| table(lines))?;
    Ok(if lines.iter().all(here) { shown } else { ExitCode::FAILURE })
}
