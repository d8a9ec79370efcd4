//! Rust files stay short enough to be read in one sitting.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// A longer file fails the check.
const LIMIT: usize = 800;
/// A longer file is listed, as one to split next.
const WISH: usize = 500;

/// Checks every Rust file of the repository.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut files = Vec::new();
    for folder in ["crates", "xtask", "tests", "fuzz"] {
        walk(&root.join(folder), &mut files)?;
    }
    let mut counted = Vec::new();
    for file in files {
        let text = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let lines = text.iter().filter(|byte| **byte == b'\n').count();
        counted.push((lines, file.strip_prefix(root).unwrap_or(&file).to_path_buf()));
    }
    let report = judge(counted);
    println!("{} Rust files, {} lines", report.files, report.lines);
    for (lines, file) in &report.long {
        println!("{lines:>6}  {}  over {WISH}, to be split", file.display());
    }
    for (lines, file) in &report.too_long {
        println!("{lines:>6}  {}  over {LIMIT}", file.display());
    }
    if !report.too_long.is_empty() {
        bail!("{} file(s) are longer than {LIMIT} lines", report.too_long.len());
    }
    Ok(())
}

/// What was found, longest first.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    files: usize,
    lines: usize,
    long: Vec<(usize, PathBuf)>,
    too_long: Vec<(usize, PathBuf)>,
}

fn judge(mut counted: Vec<(usize, PathBuf)>) -> Report {
    counted.sort_by(|a, b| b.cmp(a));
    let mut report = Report { files: counted.len(), ..Report::default() };
    for (lines, file) in counted {
        report.lines += lines;
        if lines > LIMIT {
            report.too_long.push((lines, file));
        } else if lines > WISH {
            report.long.push((lines, file));
        }
    }
    report
}

/// Collects Rust files below a folder that may be absent; build outputs are passed over.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
        let path = entry.path();
        let kind = entry.file_type().with_context(|| format!("cannot look at {}", path.display()))?;
        if kind.is_dir() {
            if entry.file_name() != "target" {
                walk(&path, files)?;
            }
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(lines: usize, name: &str) -> (usize, PathBuf) {
        (lines, PathBuf::from(name))
    }

    #[test]
    fn limits_themselves_are_allowed() {
        let report = judge(vec![file(WISH, "a.rs"), file(LIMIT, "b.rs")]);
        assert_eq!(report.long, vec![file(LIMIT, "b.rs")]);
        assert!(report.too_long.is_empty());
    }

    #[test]
    fn longest_file_is_named_first() {
        let report = judge(vec![file(801, "a.rs"), file(900, "b.rs"), file(10, "c.rs")]);
        assert_eq!(report.too_long, vec![file(900, "b.rs"), file(801, "a.rs")]);
        assert_eq!((report.files, report.lines), (3, 1711));
    }

    #[test]
    fn this_repository_is_walked_without_build_outputs() {
        let mut files = Vec::new();
        walk(Path::new(env!("CARGO_MANIFEST_DIR")), &mut files).unwrap();
        assert!(files.iter().any(|file| file.ends_with("src/size.rs")));
        assert!(files.iter().all(|file| !file.components().any(|part| part.as_os_str() == "target")));
    }
}
