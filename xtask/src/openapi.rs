//! The document that describes the HTTP API: written from the code, kept in git, never edited by hand.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Stdio;

/// Where the document is kept.
const FILE: &str = "openapi/forgeyard.json";

/// Writes the document, or with `check` says whether the one that is kept is still right.
pub(crate) fn make(root: &Path, check: bool) -> Result<()> {
    let package = ["run", "--quiet", "--locked", "--package", "forgeyard-api"];
    let example = ["--features", "openapi", "--example", "openapi"];
    let output = crate::cargo::command(root, &[&package[..], &example].concat())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the document could not be made from crates/api/src/openapi.rs");
    }
    let path = root.join(FILE);
    if !check {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        std::fs::write(&path, &output.stdout).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{FILE}: {} bytes", output.stdout.len());
        return Ok(());
    }
    let kept = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    if let Some(line) = first_difference(&kept, &output.stdout) {
        bail!(
            "{FILE} is not what the code says, from line {line} on; run `cargo xtask openapi` and commit it"
        );
    }
    println!("{FILE}: as the code says");
    Ok(())
}

/// Number of the first line that differs.
fn first_difference(kept: &[u8], made: &[u8]) -> Option<usize> {
    if kept == made {
        return None;
    }
    let (kept, made) = (kept.split(|byte| *byte == b'\n'), made.split(|byte| *byte == b'\n'));
    Some(kept.zip(made).take_while(|(kept, made)| kept == made).count() + 1)
}

#[cfg(test)]
mod tests {
    use super::first_difference;

    #[test]
    fn first_line_that_differs_is_named() {
        assert_eq!(first_difference(b"a\nb\n", b"a\nb\n"), None);
        assert_eq!(first_difference(b"a\nb\n", b"a\nc\n"), Some(2));
        assert_eq!(first_difference(b"a\n", b"a\nb\n"), Some(2));
    }
}
