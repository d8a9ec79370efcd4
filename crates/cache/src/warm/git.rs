//! A mirror of a repository: fetched with git into a folder, and served as the files that git's plain HTTP protocol asks for.
//!
//! git computes the digest of every object that it fetches. All objects lie in packs, which are named by what is in them and never
//! change; `objects/info/packs` names the packs, `info/refs` the branches and tags, and they are stored in this order. A pack
//! that was merged into another one stays for an hour ([`RETIRED`]): somebody may be in the middle of a clone.

use super::fetch::{Got, Taking, Trouble, is_here, keep};
use super::{Mirror, shown};
use crate::name::{Kind, Name};
use crate::scope::ScopePath;
use crate::service::Core;
use crate::store::Store as _;
use forgeyard_model::{Digest, Timestamp};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// How long a pack stays that is not named any more.
const RETIRED: Duration = Duration::from_secs(3600);
/// How long one fetch may take.
const LONGEST: Duration = Duration::from_secs(3 * 3600);
/// How often the size of a growing mirror is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// What a mirror needs to know.
pub(super) struct Task<'t> {
    pub(super) core: &'t Core,
    pub(super) scope: &'t ScopePath,
    pub(super) list: &'t str,
    /// Most bytes that it may take.
    pub(super) most: u64,
    pub(super) now: Timestamp,
}

fn io(what: &str) -> impl FnOnce(std::io::Error) -> Trouble {
    let what = what.to_owned();
    move |error| Trouble::new(format!("{what}: {error}"), "look at the disk of the cache")
}

fn bytes_of(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_of(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// Runs git. `growing` is a folder that may become so large and no larger.
async fn git(
    arguments: &[&str],
    folder: &Path,
    growing: Option<u64>,
    mut seen: impl FnMut(u64),
) -> Result<String, Trouble> {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args(arguments).kill_on_drop(true);
    // never a question, never a program that an address names, never a server that sleeps for ever
    command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_SSH_COMMAND", "ssh -o BatchMode=yes");
    command.env("GIT_ALLOW_PROTOCOL", "https:http:ssh:file").env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command
        .spawn()
        .map_err(|error| Trouble::new(format!("git: {error}"), "install git beside the cache"))?;
    let output = child.wait_with_output();
    tokio::pin!(output);
    let began = tokio::time::Instant::now();
    let output = loop {
        match tokio::time::timeout(LOOK, &mut output).await {
            Ok(output) => break output.map_err(io("git"))?,
            Err(_) => {
                let size = bytes_of(folder);
                seen(size);
                if growing.is_some_and(|most| size > most) {
                    let text = format!("the mirror has more than {} MiB", growing.unwrap_or_default() >> 20);
                    return Err(Trouble::new(text, "raise `most-mib` of the list"));
                }
                if began.elapsed() > LONGEST {
                    return Err(Trouble::new(
                        "git took longer than three hours",
                        "it is tried again by itself",
                    ));
                }
            }
        }
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let told = |line: &&str| line.starts_with("fatal: ") || line.starts_with("error: ");
    let line = said.lines().find(told).or(said.lines().last()).unwrap_or("no reason given");
    let verb = arguments.iter().find(|word| !word.starts_with('-') && !word.contains('=')).copied();
    let text = format!("git {}: {}", verb.unwrap_or_default(), line.chars().take(300).collect::<String>());
    let fix = "look whether this host reaches it, without a password";
    Err(Trouble::new(text, fix))
}

/// The branch that a clone checks out, as `git ls-remote --symref` names it.
pub(super) fn head_of(text: &str) -> Option<&str> {
    let target = text.lines().find_map(|line| line.strip_prefix("ref: ")?.strip_suffix("\tHEAD"))?;
    target.starts_with("refs/heads/").then_some(target)
}

/// Fetches and serves. Answers with the bytes that the mirror takes.
pub(super) async fn refresh(
    task: &Task<'_>,
    mirror: &Mirror,
    folder: &Path,
    mut seen: impl FnMut(u64),
) -> Result<u64, Trouble> {
    // by its address too: another repository under the same name begins anew
    let place =
        folder.join(format!("{}-{}.git", mirror.name, &Digest::of(mirror.url.as_bytes()).hex()[..12]));
    if !place.join("HEAD").exists() {
        let _ = std::fs::remove_dir_all(&place);
        fs_err::create_dir_all(&place).map_err(io("making the mirror"))?;
        git(&["init", "--quiet", "--bare", "."], &place, None, |_| {}).await?;
    }
    let slow = ["-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60"];
    let heads = git(&["ls-remote", "--symref", "--", &mirror.url, "HEAD"], &place, None, |_| {}).await?;
    // everything in packs, none of it thrown away by itself
    let settings = ["-c", "fetch.unpackLimit=1", "-c", "gc.auto=0", "-c", "maintenance.auto=0"];
    let what = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"];
    let fetch = ["fetch", "--quiet", "--prune", "--no-tags", "--force", "--", mirror.url.as_str()];
    let arguments = [&slow[..], &settings, &fetch, &what].concat();
    let fetched = git(&arguments, &place, Some(task.most), &mut seen).await;
    if let Err(trouble) = fetched {
        if bytes_of(&place) > task.most {
            let _ = std::fs::remove_dir_all(&place);
        }
        return Err(trouble);
    }
    // so that there are ten packs for a thousand fetches
    git(&["repack", "--quiet", "-d", "--geometric=2"], &place, None, |_| {}).await?;
    if let Some(head) = head_of(&heads) {
        git(&["symbolic-ref", "HEAD", head], &place, None, |_| {}).await?;
    }
    git(&["update-server-info"], &place, None, |_| {}).await?;
    let bytes = bytes_of(&place);
    if bytes > task.most {
        let text = format!("{} of {} takes {} MiB", mirror.name, shown(&mirror.url), bytes >> 20);
        return Err(Trouble::new(text, "raise `most-mib` of the list"));
    }
    serve(task, mirror, &place, &mut seen).await?;
    Ok(bytes)
}

fn file(core: &Core, path: &Path) -> Result<Got, Trouble> {
    let mut file = fs_err::File::open(path).map_err(io("reading the mirror"))?;
    let mut taking = Taking::new(core, u64::MAX);
    let mut buffer = vec![0; 256 << 10];
    loop {
        let read = file.read(&mut buffer).map_err(io("reading the mirror"))?;
        if read == 0 {
            return taking.finish();
        }
        taking.take(&buffer[..read])?;
    }
}

/// Names of the packs of a mirror, without their ends.
fn packs(place: &Path) -> Result<Vec<String>, Trouble> {
    let entries = fs_err::read_dir(place.join("objects/pack")).map_err(io("reading the mirror"))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut packs: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".idx").map(str::to_owned)).collect();
    packs.sort();
    Ok(packs)
}

async fn serve(
    task: &Task<'_>,
    mirror: &Mirror,
    place: &Path,
    seen: &mut impl FnMut(u64),
) -> Result<(), Trouble> {
    let key = |path: &str| format!("git/{}.git/{path}", mirror.name);
    let packs = packs(place)?;
    let mut sent = 0;
    for pack in &packs {
        for end in ["pack", "idx"] {
            let path = format!("objects/pack/{pack}.{end}");
            if is_here(task.core, task.scope, &key(&path))?.is_some() {
                continue;
            }
            let got = file(task.core, &place.join(&path))?;
            sent += got.size();
            keep(task.core, task.scope, &key(&path), got, task.list).await?;
            seen(sent);
        }
    }
    for path in ["objects/info/packs", "info/refs", "HEAD"] {
        keep(task.core, task.scope, &key(path), file(task.core, &place.join(path))?, task.list).await?;
    }
    // which packs were served, and since when they are not named any more
    let book = place.join("forgeyard-served.json");
    let known: BTreeMap<String, Option<Timestamp>> =
        fs_err::read(&book).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let mut next: BTreeMap<String, Option<Timestamp>> =
        packs.iter().map(|pack| (pack.clone(), None)).collect();
    for (pack, since) in known {
        if next.contains_key(&pack) {
            continue;
        }
        let since = since.unwrap_or(task.now);
        if task.now.since(since) < RETIRED {
            next.insert(pack, Some(since));
            continue;
        }
        for end in ["pack", "idx"] {
            let key = key(&format!("objects/pack/{pack}.{end}"));
            task.core.store.remove(&Name { scope: task.scope.clone(), kind: Kind::Warm, key })?;
        }
    }
    let text = serde_json::to_vec(&next).unwrap_or_default();
    fs_err::write(&book, text).map_err(io("writing the mirror"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branch_of_a_clone_is_found() {
        let text = "ref: refs/heads/main\tHEAD\n0123\tHEAD\n";
        assert_eq!(head_of(text), Some("refs/heads/main"));
        assert_eq!(head_of("0123\tHEAD\n"), None);
        assert_eq!(head_of("ref: ../../x\tHEAD\n"), None);
    }
}
