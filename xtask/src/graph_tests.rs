//! Claims about the check of the graph, on small answers in the shape of `cargo metadata`.

use super::*;
use serde_json::json;

/// Packages with `(name, dependencies)`; a dependency is `(name, ours, kind, features)`.
type Declared<'a> = (&'a str, bool, Option<&'a str>, &'a [&'a str]);

fn judged(packages: &[(&str, &[Declared])]) -> Vec<String> {
    let packages: Vec<Value> = packages
        .iter()
        .map(|(name, dependencies)| {
            let dependencies: Vec<Value> = dependencies
                .iter()
                .map(|(name, ours, kind, features)| {
                    let path = ours.then(|| format!("/somewhere/{name}"));
                    json!({ "name": name, "path": path, "kind": kind, "features": features })
                })
                .collect();
            json!({ "name": name, "dependencies": dependencies })
        })
        .collect();
    let (crates, edges) = read(&json!({ "packages": packages })).unwrap();
    judge(&crates, &edges)
}

const MODEL: (&str, &[Declared]) = ("forgeyard-model", &[]);

#[test]
fn edge_of_the_table_is_allowed() {
    let engine: (&str, &[Declared]) =
        ("forgeyard-engine", &[("forgeyard-model", true, None, &[]), ("regex", false, None, &[])]);
    assert_eq!(judged(&[MODEL, engine]), Vec::<String>::new());
}

#[test]
fn edge_against_the_table_is_refused() {
    let model: (&str, &[Declared]) = ("forgeyard-model", &[("forgeyard-engine", true, None, &[])]);
    let engine: (&str, &[Declared]) = ("forgeyard-engine", &[]);
    assert_eq!(judged(&[model, engine]), ["model may not depend on engine"]);
}

#[test]
fn edge_against_the_table_is_refused_in_tests_as_well() {
    let engine: (&str, &[Declared]) = ("forgeyard-engine", &[("forgeyard-db", true, Some("dev"), &[])]);
    let db: (&str, &[Declared]) = ("forgeyard-db", &[]);
    assert_eq!(judged(&[engine, db]), ["engine may not depend on db in its tests"]);
}

#[test]
fn tests_may_use_the_testkit() {
    let engine: (&str, &[Declared]) = ("forgeyard-engine", &[("forgeyard-testkit", true, Some("dev"), &[])]);
    let testkit: (&str, &[Declared]) = ("forgeyard-testkit", &[]);
    assert_eq!(judged(&[engine, testkit]), Vec::<String>::new());
}

#[test]
fn heavy_family_stays_with_its_owner() {
    let envs: (&str, &[Declared]) = ("forgeyard-envs", &[("rattler_solve", false, None, &[])]);
    let control: (&str, &[Declared]) =
        ("forgeyard-control", &[("sqlx", false, Some("dev"), &[]), ("rattler", false, None, &[])]);
    assert_eq!(
        judged(&[envs, control]),
        [
            "control may not depend on sqlx: the family sqlx belongs to db",
            "control may not depend on rattler: the family rattler belongs to envs"
        ]
    );
}

#[test]
fn name_that_only_begins_like_a_family_is_none_of_it() {
    let control: (&str, &[Declared]) = ("forgeyard-control", &[("kubernetes", false, None, &[])]);
    assert_eq!(judged(&[control]), Vec::<String>::new());
}

#[test]
fn client_feature_needs_a_row_that_names_it() {
    let api: (&str, &[Declared]) = ("forgeyard-api", &[]);
    let site: (&str, &[Declared]) = ("forgeyard-site", &[("forgeyard-api", true, None, &["client"])]);
    let control: (&str, &[Declared]) = ("forgeyard-control", &[("forgeyard-api", true, None, &["client"])]);
    assert_eq!(judged(&[api, site]), Vec::<String>::new());
    assert_eq!(judged(&[api, control]), ["control may not turn on the feature `client` of api"]);
}

#[test]
fn pure_crate_reaches_for_nothing() {
    let formats: (&str, &[Declared]) = (
        "forgeyard-formats",
        &[("tokio-util", false, None, &[]), ("tokio", false, Some("dev"), &[]), ("zip", false, None, &[])],
    );
    assert_eq!(judged(&[formats]), ["formats is pure and may not depend on tokio-util"]);
}

#[test]
fn crate_without_a_row_is_refused() {
    assert_eq!(
        judged(&[("forgeyard-util", &[])]),
        ["util is not in the table: give it a row, or take the crate away"]
    );
}

#[test]
fn graph_is_drawn_from_the_ground_up_even_with_a_cycle() {
    let crates: BTreeSet<String> = ["a", "b", "c"].map(str::to_owned).into();
    let edge = |from: &str, to: &str| Edge {
        from: from.to_owned(),
        to: to.to_owned(),
        ours: true,
        dev: false,
        features: BTreeSet::new(),
    };
    assert_eq!(draw(&crates, &[edge("a", "b"), edge("b", "c")]), "c  -\nb  c\na  b\n");
    assert_eq!(draw(&crates, &[edge("a", "b"), edge("b", "a")]), "c  -\na  b\nb  a\n");
}

#[test]
fn answer_that_is_no_metadata_is_refused() {
    assert!(read(&json!({})).is_err());
    assert!(read(&json!({ "packages": [{ "name": "x" }] })).is_err());
}
