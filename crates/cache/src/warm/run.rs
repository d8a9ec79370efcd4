//! The thread that fetches: one thing at a time, those that wait longest first.

use super::fetch::{self, Trouble};
use super::{Item, Standing, Thing, Warm, git, oci};
use crate::service::Core;
use forgeyard_model::Timestamp;
use std::sync::PoisonError;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Longest pause after a failure.
const LONGEST: Duration = Duration::from_secs(3600);
/// How often it is looked whether something is due.
const TICK: Duration = Duration::from_millis(200);

/// How long after so many failures in a row it is tried again.
fn pause(tries: u32) -> Duration {
    let minutes = 1u64 << tries.saturating_sub(1).min(6);
    Duration::from_secs(minutes * 60).min(LONGEST)
}

pub(super) fn run(core: &Core, stop: &CancellationToken) {
    let Some(warm) = core.warm.get() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (runtime, client) = match (runtime, fetch::client()) {
        (Ok(runtime), Ok(client)) => (runtime, client),
        (runtime, client) => {
            let (one, two) = (runtime.err().map(|it| it.to_string()), client.err().map(|it| it.to_string()));
            tracing::error!("nothing is fetched beforehand: {one:?} {two:?}");
            return;
        }
    };
    while !stop.is_cancelled() {
        let Some(number) = next(warm, (core.clock)()) else {
            std::thread::sleep(TICK);
            continue;
        };
        let went = runtime.block_on(async {
            tokio::select! {
                went = refresh(core, warm, &client, number) => Some(went),
                () = stop.cancelled() => None,
            }
        });
        if let Some(went) = went {
            settle(core, warm, number, went);
        }
    }
}

/// The thing that is due for longest.
fn next(warm: &Warm, now: Timestamp) -> Option<usize> {
    let items = warm.items.lock().unwrap_or_else(PoisonError::into_inner);
    let due = items.iter().enumerate().filter(|(_, item)| item.due <= now);
    due.min_by_key(|(_, item)| item.due).map(|(number, _)| number)
}

fn with<T>(warm: &Warm, number: usize, of: impl FnOnce(&mut Item) -> T) -> Option<T> {
    warm.items.lock().unwrap_or_else(PoisonError::into_inner).get_mut(number).map(of)
}

async fn refresh(core: &Core, warm: &Warm, client: &reqwest::Client, number: usize) -> Result<u64, Trouble> {
    let gone = || Trouble::new("the list is gone", "restart the cache");
    let taken = |items: &[Item], list: usize| -> u64 {
        let others = items.iter().enumerate().filter(|(other, item)| *other != number && item.list == list);
        others.map(|(_, item)| item.line.bytes).sum()
    };
    let (thing, scope, list, most) = {
        let items = warm.items.lock().unwrap_or_else(PoisonError::into_inner);
        let item = items.get(number).ok_or_else(gone)?;
        let list = warm.lists.get(item.list).ok_or_else(gone)?;
        let most = (list.most_mib << 20).saturating_sub(taken(&items, item.list));
        (item.thing.clone(), item.scope.clone(), list.name.clone(), most)
    };
    if core.authority().tree().of(&scope).is_none() {
        return Err(Trouble::new(
            format!("the scope `{scope}` is not declared"),
            "declare it under [[cache.scopes]]",
        ));
    }
    // what stood there is remembered, for when this fails
    let seen = |done: u64| {
        with(warm, number, |item| item.line.standing = Standing::Fetching { done });
    };
    match &thing {
        Thing::Input(input) => {
            let key = format!("sha256/{}", input.sha256.hex());
            if let Some(size) = fetch::is_here(core, &scope, &key)? {
                return Ok(size);
            }
            seen(0);
            let answer = fetch::answer(client.get(&input.url)).await?;
            let got = fetch::body(core, answer, most, seen).await?;
            fetch::verify(&got, input.sha256)?;
            let size = got.size();
            fetch::keep(core, &scope, &key, got, &list).await?;
            Ok(size)
        }
        Thing::Git(mirror) => {
            seen(0);
            let folder = warm.folder.join(scope.as_str().replace('/', "-"));
            fs_err::create_dir_all(&folder)
                .map_err(|error| Trouble::new(error.to_string(), "look at the disk of the cache"))?;
            let now = (core.clock)();
            let task = git::Task { core, scope: &scope, list: &list, most, now };
            git::refresh(&task, mirror, &folder, seen).await
        }
        Thing::Container(container, reference) => {
            seen(0);
            let task = oci::Task { core, client, scope: &scope, list: &list, most };
            oci::refresh(&task, container, reference, seen).await
        }
    }
}

fn settle(core: &Core, warm: &Warm, number: usize, went: Result<u64, Trouble>) {
    let now = (core.clock)();
    with(warm, number, |item| {
        let every = warm.lists.get(item.list).map_or(60, |list| list.every_minutes.max(1));
        match went {
            Ok(bytes) => {
                item.line.bytes = bytes;
                item.line.standing = Standing::Fresh { at: now };
                (item.tries, item.last_good) = (0, Some(now));
                item.due = now.plus(Duration::from_secs(u64::from(every) * 60));
            }
            Err(trouble) => {
                item.tries += 1;
                let next = now.plus(pause(item.tries));
                let line = &mut item.line;
                let error = format!("{}: {trouble}", line.source);
                tracing::warn!(list = %line.list, kind = %line.kind, tries = item.tries, "not fetched beforehand: {error}");
                line.standing =
                    Standing::Failing { error, tries: item.tries, next, last_good: item.last_good };
                item.due = next;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_that_fails_is_asked_less_and_less_often() {
        let minutes: Vec<u64> = [1, 2, 3, 6, 7, 8, u32::MAX].map(|tries| pause(tries).as_secs() / 60).into();
        assert_eq!(minutes, [1, 2, 4, 32, 60, 60, 60]);
    }
}
