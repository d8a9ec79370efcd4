//! Tests of the migrations, on both databases.

use super::*;
use crate::dialect::Dialect;
use crate::test_pools::{TestPools, both};

/// The schema as text, without what differs from run to run.
async fn schema(pools: &Pools) -> String {
    let queries: &[&str] = match pools.dialect() {
        Dialect::Sqlite => &["select sql from sqlite_schema where sql is not null order by type, name"],
        Dialect::Postgres => &[
            "select table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' \
             || coalesce(collation_name, '') from information_schema.columns \
             where table_schema = current_schema() order by table_name, ordinal_position",
            "select replace(indexdef, current_schema() || '.', '') from pg_indexes \
             where schemaname = current_schema() order by indexname",
            "select conrelid::regclass::text || ': ' || conname || ' ' || pg_get_constraintdef(oid) \
             from pg_constraint where connamespace = current_schema()::regnamespace \
             order by conrelid::regclass::text, conname",
            "select replace(pg_get_triggerdef(t.oid), current_schema() || '.', '') from pg_trigger t \
             join pg_class c on c.oid = t.tgrelid \
             where c.relnamespace = current_schema()::regnamespace and not t.tgisinternal \
             order by c.relname, t.tgname",
        ],
    };
    let mut link = pools.read("test").await.unwrap();
    let mut lines = Vec::new();
    for sql in queries {
        for row in link.fetch("test", (*sql).to_owned(), Vec::new()).await.unwrap() {
            lines.push(row.text(0).unwrap());
        }
    }
    lines.join("\n")
}

#[tokio::test]
async fn steps_one_by_one_give_the_pinned_schema() {
    for TestPools { pools, .. } in both().await {
        for last in 1..=MIGRATIONS.len() {
            migrate_with(&pools, &MIGRATIONS[..last]).await.unwrap();
        }
        let stepwise = schema(&pools).await;
        // Once more changes nothing.
        migrate(&pools).await.unwrap();
        assert_eq!(schema(&pools).await, stepwise);
        let name = match pools.dialect() {
            Dialect::Sqlite => "schema_sqlite",
            Dialect::Postgres => "schema_postgres",
        };
        insta::with_settings!({omit_expression => true}, { insta::assert_snapshot!(name, stepwise) });
    }
    for TestPools { pools, .. } in both().await {
        migrate(&pools).await.unwrap();
        let at_once = schema(&pools).await;
        let name = match pools.dialect() {
            Dialect::Sqlite => "schema_sqlite",
            Dialect::Postgres => "schema_postgres",
        };
        insta::with_settings!({omit_expression => true}, { insta::assert_snapshot!(name, at_once) });
    }
}

#[tokio::test]
async fn newer_database_is_refused_with_both_versions() {
    for TestPools { pools, .. } in both().await {
        migrate(&pools).await.unwrap();
        let error = migrate_with(&pools, &MIGRATIONS[..10]).await.unwrap_err();
        let newest = MIGRATIONS[MIGRATIONS.len() - 1].number;
        assert!(matches!(error, Error::Newer { found, known: 10 } if found == newest), "{error:?}");
        assert!(error.to_string().contains("newer program"), "{error}");
    }
}

#[tokio::test]
async fn step_that_was_edited_after_it_was_applied_is_noticed() {
    for TestPools { pools, .. } in both().await {
        migrate(&pools).await.unwrap();
        let mut steps = MIGRATIONS.to_vec();
        steps[3].sqlite = "select 1";
        steps[3].postgres = "select 1";
        let error = migrate_with(&pools, &steps).await.unwrap_err();
        assert!(error.to_string().contains("0004_pipelines_have_jobs"), "{error}");
    }
}

#[tokio::test]
async fn step_that_fails_leaves_the_version_before() {
    for TestPools { pools, .. } in both().await {
        migrate(&pools).await.unwrap();
        let before = schema(&pools).await;
        let text = "create table half (key text); select nothing from nowhere";
        let bad = Migration { number: 9999, name: "9999_bad", sqlite: text, postgres: text };
        let steps: Vec<Migration> = MIGRATIONS.iter().copied().chain([bad]).collect();
        migrate_with(&pools, &steps).await.unwrap_err();
        assert_eq!(schema(&pools).await, before);
        migrate(&pools).await.unwrap();
    }
}

#[tokio::test]
async fn jobs_that_exist_keep_their_pipeline_and_their_attempts_when_jobs_may_belong_to_demands() {
    for TestPools { pools, .. } in both().await {
        migrate_with(&pools, &MIGRATIONS[..14]).await.unwrap();
        let mut link = pools.write("test").await.unwrap();
        let rows = "insert into site (key, generation, v, data, updated_at, name) values ('s', 1, 1, '{}', 0, 's'); \
             insert into pipeline (key, generation, v, data, updated_at, delivery, state) \
             values ('p', 1, 1, '{}', 0, 'd', 'running'); \
             insert into job (key, generation, v, data, updated_at, pipeline, name, state) \
             values ('j', 7, 1, '{}', 9, 'p', 'plan', 'running'), ('k', 2, 1, '{}', 9, 'p', 'build/a', 'held'); \
             insert into runner (key, generation, v, data, updated_at, site, attempt, state) \
             values ('r', 1, 1, '{}', 0, 's', 'a', 'busy'), ('q', 1, 1, '{}', 0, 's', 'b', 'deleted'); \
             insert into attempt (key, generation, v, data, updated_at, job, pipeline, fence, runner, state, ended_at) \
             values ('b', 1, 1, '{}', 0, 'j', 'p', 1, 'q', 'ended', 5), ('a', 1, 1, '{}', 0, 'j', 'p', 2, 'r', 'running', null)";
        link.script("test", rows.to_owned()).await.unwrap();
        link.commit("test").await.unwrap();
        migrate(&pools).await.unwrap();
        let mut link = pools.read("test").await.unwrap();
        let sql = "select attempt.key || ' ' || attempt.owner || ' ' || job.key || ' ' || job.pipeline || ' ' || job.name \
                   from attempt join job on job.key = attempt.job where job.demand is null order by attempt.fence";
        let found = link.fetch("test", sql.to_owned(), Vec::new()).await.unwrap();
        let lines: Vec<String> = found.iter().map(|row| row.text(0).unwrap()).collect();
        assert_eq!(lines, ["b p j p plan", "a p j p plan"]);
        drop(link);
        // A job without an owner, or with two, cannot be.
        for (pipeline, demand) in [("null", "null"), ("'p'", "'x'")] {
            let mut link = pools.write("test").await.unwrap();
            let sql = format!(
                "insert into job (key, generation, v, data, updated_at, pipeline, demand, name, state) \
                 values ('z', 1, 1, '{{}}', 0, {pipeline}, {demand}, 'n', 'held')"
            );
            link.script("test", sql).await.unwrap_err();
        }
    }
}

#[tokio::test]
async fn demands_that_exist_rest_since_their_end_or_since_their_job_was_asked_for_again() {
    for TestPools { pools, .. } in both().await {
        let before = MIGRATIONS.iter().position(|step| step.name == "0031_demands_rest").unwrap();
        migrate_with(&pools, &MIGRATIONS[..before]).await.unwrap();
        let mut link = pools.write("test").await.unwrap();
        let cases = [
            ("a", "null", "{}"),
            ("b", "5", r#"{"launch":"job_x"}"#),
            ("c", "5", r#"{"repeat":{"intent":"wanted","cause":"\u0000"}}"#),
            ("d", "5", r#"{"repeat":{"intent":"done","at":7},"name":"\u0000"}"#),
            ("e", "5", r#"{"repeat":{"intent":"done","at":3}}"#),
            ("f", "5", r#"{"repeat":{"intent":"dropped"}}"#),
        ];
        for (key, ended, data) in cases {
            let sql = format!(
                "insert into demand (key, generation, v, data, updated_at, forge, job, run, state, ended_at) \
                 values ('{key}', 1, 1, '{data}', 0, 'github', '{key}', '1', 'ended', {ended})"
            );
            link.script("test", sql).await.unwrap();
        }
        link.commit("test").await.unwrap();
        migrate(&pools).await.unwrap();
        let mut link = pools.read("test").await.unwrap();
        let sql = "select key || ' ' || coalesce(cast(rests_at as text), '-') || ' ' || coalesce(launch, '-') \
                   from demand order by key";
        let found = link.fetch("test", sql.to_owned(), Vec::new()).await.unwrap();
        let lines: Vec<String> = found.iter().map(|row| row.text(0).unwrap()).collect();
        assert_eq!(lines, ["a - -", "b 5 job_x", "c - -", "d 7 -", "e 5 -", "f 5 -"]);
    }
}

#[tokio::test]
async fn replicas_that_start_together_migrate_once() {
    for TestPools { pools, .. } in both().await {
        let (one, two, three) = tokio::join!(migrate(&pools), migrate(&pools), migrate(&pools));
        one.and(two).and(three).unwrap();
    }
}

#[test]
fn steps_are_numbered_as_named() {
    for pair in MIGRATIONS.windows(2) {
        assert!(pair[0].number < pair[1].number, "{} comes before {}", pair[0].name, pair[1].name);
    }
    for step in MIGRATIONS {
        assert!(step.name.starts_with(&format!("{:04}_", step.number)), "{}", step.name);
    }
}

#[tokio::test]
async fn the_past_cannot_be_changed_even_by_hand() {
    for TestPools { pools, .. } in both().await {
        migrate(&pools).await.unwrap();
        let mut link = pools.write("test").await.unwrap();
        let rows = "insert into journal (seq, at, config, v, data) values (1, 1, '', 1, ''); \
                    insert into event (seq, place, id, at, subject, v, data) values (1, 0, 'e', 1, '', 1, ''); \
                    insert into usage (seq, place, at, v, data) values (1, 0, 1, 1, '')";
        link.script("test", rows.to_owned()).await.unwrap();
        link.commit("test").await.unwrap();
        for table in ["journal", "event", "usage"] {
            for sql in [format!("update {table} set at = 0"), format!("delete from {table}")] {
                let mut link = pools.write("test").await.unwrap();
                match link.script("test", sql).await.unwrap_err() {
                    Error::Constraint { name } => assert_eq!(name, format!("{table}_append_only")),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

#[tokio::test]
async fn row_of_an_unknown_data_version_is_reported_not_guessed() {
    for TestPools { pools, .. } in both().await {
        migrate(&pools).await.unwrap();
        let mut link = pools.write("test").await.unwrap();
        let sql = "insert into channel (key, generation, v, data, updated_at) values ('new', 1, 2, '{}', 0); \
                   insert into channel (key, generation, v, data, updated_at) values ('odd', 1, 1, '{}', 0)";
        link.script("test", sql.to_owned()).await.unwrap();
        let error = crate::load::row(&mut link, "channel", "new").await.unwrap_err();
        assert!(error.to_string().contains("data version 2"), "{error}");
        let error = crate::load::row(&mut link, "channel", "odd").await.unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
    }
}
