//! Tests of `docs/reports.md`: the tests that it names exist, and no row is forgotten.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

fn sources(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            into.push_str(&std::fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

/// Texts in back quotes that can be names of functions.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted.filter(|text| {
        text.contains('_') && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/reports.md")).unwrap_or_default()
}

#[test]
fn every_test_that_the_page_of_reports_names_exists() {
    let mut text = String::new();
    sources(&root().join("crates"), &mut text);
    let page = page();
    let lines = page.lines().filter(|line| line.starts_with("| "));
    let missing: BTreeSet<&str> =
        lines.flat_map(named).filter(|name| !text.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}

#[test]
fn every_row_of_reports_is_there_once_and_has_a_test_or_says_why_not() {
    let page = page();
    let mut rows: Vec<u32> = Vec::new();
    for line in page.lines() {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let Some(row) = cells.next().and_then(|cell| cell.parse().ok()) else { continue };
        rows.push(row);
        let tests = cells.next_back().unwrap_or_default();
        let open = tests.starts_with("open: ");
        assert!(open || named(tests).next().is_some(), "row {row} has no test and does not say why");
    }
    assert_eq!(rows, (1..=50).collect::<Vec<u32>>());
}
