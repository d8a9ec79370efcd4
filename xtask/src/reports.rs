//! Tests of `docs/reports.md` and `docs/cache-reports.md`: the tests that they name exist, and no row is forgotten.

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

/// A page and the number of its last row.
const PAGES: [(&str, u32); 2] = [("docs/reports.md", 50), ("docs/cache-reports.md", 52)];

fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_default()
}

#[test]
fn every_test_that_a_page_of_reports_names_exists() {
    let mut text = String::new();
    sources(&root().join("crates"), &mut text);
    for (path, _) in PAGES {
        let page = read(path);
        let lines = page.lines().filter(|line| line.starts_with("| "));
        let missing: BTreeSet<&str> =
            lines.flat_map(named).filter(|name| !text.contains(&format!("fn {name}("))).collect();
        assert!(missing.is_empty(), "{path} names tests that do not exist: {missing:#?}");
    }
}

#[test]
fn every_row_of_reports_is_there_once_and_has_a_test_or_says_why_not() {
    for (path, last) in PAGES {
        let page = read(path);
        let mut rows: Vec<u32> = Vec::new();
        for line in page.lines() {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            let Some(row) = cells.next().and_then(|cell| cell.parse().ok()) else { continue };
            rows.push(row);
            let tests = cells.next_back().unwrap_or_default();
            let open = tests.starts_with("open: ");
            assert!(
                open || named(tests).next().is_some(),
                "{path}: row {row} has no test and does not say why"
            );
        }
        assert_eq!(rows, (1..=last).collect::<Vec<u32>>(), "{path}");
    }
}
