//! The lease that elects the one core. It lives in the single row of `core` and counts by the clock of the database,
//! so that replicas need not agree on the time.
//!
//! The lease only decides who may begin an epoch. What keeps an old core from writing is the epoch itself, which each
//! batch checks in its own transaction under the lock of that row.

use crate::Error;
use crate::link::{Arg, Link};
use std::time::Duration;

const TAKE: &str = "take the core's lease";
const RENEW: &str = "renew the core's lease";
const GUARD: &str = "check the epoch";

fn micros(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX / 4)
}

/// The current epoch.
pub(crate) async fn current(link: &mut Link) -> Result<u64, Error> {
    let sql = "select epoch from core where id = 1".to_owned();
    let found = link.fetch(GUARD, sql, Vec::new()).await?;
    found.first().ok_or_else(|| Error::corrupt("the core's row is missing"))?.count(0)
}

/// Refuses a writer whose epoch is over, and keeps the epoch from changing until the end of the transaction. Answers
/// the position of the last journal entry.
pub(crate) async fn guard(link: &mut Link, epoch: u64) -> Result<u64, Error> {
    let lock = link.dialect().for_update();
    let sql =
        format!("select epoch, (select coalesce(max(seq), 0) from journal) from core where id = 1{lock}");
    let found = link.fetch(GUARD, sql, Vec::new()).await?;
    let row = found.first().ok_or_else(|| Error::corrupt("the core's row is missing"))?;
    let current = row.count(0)?;
    if current != epoch {
        return Err(Error::Superseded { epoch, current });
    }
    row.count(1)
}

/// Begins a new epoch.
pub(crate) async fn take(link: &mut Link, holder: &str, ttl: Duration) -> Result<u64, Error> {
    let (now, lock) = (link.dialect().now(), link.dialect().for_update());
    let sql = format!("select holder, expires_at - {now} from core where id = 1{lock}");
    let found = link.fetch(TAKE, sql, Vec::new()).await?;
    let row = found.first().ok_or_else(|| Error::corrupt("the core's row is missing"))?;
    let (held_by, remaining) = (row.text(0)?, row.int(1)?);
    if let Ok(remaining) = u64::try_from(remaining)
        && remaining > 0
        && held_by != holder
    {
        return Err(Error::Held { holder: held_by, remaining: Duration::from_micros(remaining) });
    }
    let sql = format!(
        "update core set epoch = epoch + 1, holder = $1, expires_at = {now} + $2 where id = 1 returning epoch"
    );
    let taken = link.fetch(TAKE, sql, vec![Arg::Text(holder.to_owned()), Arg::Int(micros(ttl))]).await?;
    taken.first().ok_or_else(|| Error::corrupt("the core's row is missing"))?.count(0)
}

/// Lets the lease of an epoch last this long from now; zero ends it.
pub(crate) async fn renew(link: &mut Link, epoch: u64, ttl: Duration) -> Result<(), Error> {
    let now = link.dialect().now();
    let sql = format!("update core set expires_at = {now} + $2 where id = 1 and epoch = $1");
    let changed = link.run(RENEW, sql, vec![Arg::count(epoch)?, Arg::Int(micros(ttl))]).await?;
    if changed == 0 {
        return Err(Error::Superseded { epoch, current: current(link).await? });
    }
    Ok(())
}
