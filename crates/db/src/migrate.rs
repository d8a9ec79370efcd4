//! Migrations: small steps, numbered, forward only, embedded in the program.
//!
//! A step has one file where the databases agree, else one file each. The table `migration` records what was applied,
//! with a digest of its text: a step is never edited after a release. All missing steps are applied in one
//! transaction, so that a database is at one version or another and never in between.

use crate::Error;
use crate::dialect::Dialect;
use crate::link::{Arg, Pools};
use forgeyard_model::Digest;

const MIGRATE: &str = "migrate the database";

/// One step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Migration {
    pub(crate) number: i64,
    pub(crate) name: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

macro_rules! same {
    ($number:literal, $name:literal) => {
        Migration {
            number: $number,
            name: $name,
            sqlite: include_str!(concat!("../migrations/", $name, ".sql")),
            postgres: include_str!(concat!("../migrations/", $name, ".sql")),
        }
    };
}

macro_rules! two {
    ($number:literal, $name:literal) => {
        Migration {
            number: $number,
            name: $name,
            sqlite: include_str!(concat!("../migrations/", $name, ".sqlite.sql")),
            postgres: include_str!(concat!("../migrations/", $name, ".postgres.sql")),
        }
    };
}

/// Every step, in order.
pub(crate) const MIGRATIONS: &[Migration] = &[
    same!(1, "0001_one_core_holds_the_lease"),
    same!(2, "0002_sites_have_devices"),
    same!(3, "0003_deliveries_keep_their_bodies"),
    same!(4, "0004_pipelines_have_jobs"),
    same!(5, "0005_runners_serve_attempts"),
    two!(6, "0006_fences_grow"),
    same!(7, "0007_leases_claim_devices"),
    same!(8, "0008_artifacts_reach_channels_and_environments"),
    same!(9, "0009_effects_wait_in_the_outbox"),
    same!(10, "0010_tokens_are_known_by_digest"),
    same!(11, "0011_the_past_is_append_only"),
    two!(12, "0012_the_past_cannot_be_changed"),
    same!(13, "0013_logs_are_numbered_chunks"),
    same!(14, "0014_settings_are_kept"),
    two!(15, "0015_demands_have_launches"),
    same!(16, "0016_the_ledger_sums_up"),
    two!(17, "0017_pools_are_remembered"),
    same!(18, "0018_people_approve_and_accept"),
    two!(31, "0031_demands_rest"),
];

impl Migration {
    fn sql(&self, dialect: Dialect) -> String {
        match dialect {
            Dialect::Sqlite => dialect.spell(self.sqlite),
            Dialect::Postgres => dialect.spell(self.postgres),
        }
    }
}

/// Brings the database to the last version that this program knows.
pub(crate) async fn migrate(pools: &Pools) -> Result<(), Error> {
    migrate_with(pools, MIGRATIONS).await
}

/// Brings the database to the last of these steps.
pub(crate) async fn migrate_with(pools: &Pools, steps: &[Migration]) -> Result<(), Error> {
    let dialect = pools.dialect();
    let mut link = pools.write(MIGRATE).await?;
    if let Some(lock) = dialect.lock_migrations() {
        link.script(MIGRATE, lock.to_owned()).await?;
    }
    let table = "create table if not exists migration (number bigint not null primary key, name text not null, \
                 digest text not null, applied_at bigint not null)";
    link.script(MIGRATE, table.to_owned()).await?;
    let sql = "select number, name, digest from migration order by number".to_owned();
    let applied = link.fetch(MIGRATE, sql, Vec::new()).await?;
    let known = steps.last().map_or(0, |step| step.number);
    if let Some(last) = applied.last()
        && last.int(0)? > known
    {
        return Err(Error::Newer { found: last.int(0)?, known });
    }
    for (place, step) in steps.iter().enumerate() {
        let text = step.sql(dialect);
        let digest = Digest::of(text.as_bytes()).to_string();
        if let Some(done) = applied.get(place) {
            if done.int(0)? != step.number || done.text(2)? != digest {
                return Err(Error::corrupt(format!(
                    "schema step `{}` was applied in another form than this program has it",
                    done.text(1)?
                )));
            }
            continue;
        }
        tracing::info!(step = step.name, "applying a schema step");
        link.script(MIGRATE, text).await?;
        let sql = format!(
            "insert into migration (number, name, digest, applied_at) values ($1, $2, $3, {})",
            dialect.now()
        );
        let args = vec![Arg::Int(step.number), Arg::Text(step.name.to_owned()), Arg::Text(digest)];
        link.run(MIGRATE, sql, args).await?;
    }
    pools.commit(link, MIGRATE).await
}

#[cfg(test)]
#[cfg(feature = "testing")]
#[path = "migrate_tests.rs"]
mod tests;
