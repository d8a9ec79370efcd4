//! What is released: `dist/forgeyard`, `dist/forgeyard-agent` (static, so that it runs in any image) and
//! `dist/SHA256SUMS`.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// The agent is copied into every machine, so it stays small.
const AGENT_LIMIT: u64 = 15 * 1000 * 1000;

/// Builds and collects.
pub(crate) fn make(root: &Path) -> Result<()> {
    let host = host_triple()?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder));
    let dist = root.join("dist");
    std::fs::create_dir_all(&dist).with_context(|| format!("cannot make {}", dist.display()))?;

    cargo(root, &["build", "--release", "--package", "forgeyard"], &[])?;
    // With an explicit target the flag reaches the agent and not the compiler plug-ins that run on this machine.
    cargo(
        root,
        &["build", "--release", "--package", "forgeyard-agent", "--target", &host],
        &[("RUSTFLAGS", "-C target-feature=+crt-static")],
    )?;

    let agent = dist.join("forgeyard-agent");
    copy(&target.join("release/forgeyard"), &dist.join("forgeyard"))?;
    copy(&target.join(&host).join("release/forgeyard-agent"), &agent)?;
    let bytes = std::fs::read(&agent).with_context(|| format!("cannot read {}", agent.display()))?;
    if wants_an_interpreter(&bytes).with_context(|| format!("{} is not an ELF file", agent.display()))? {
        bail!("{} is not static: it asks for a dynamic loader", agent.display());
    }
    let size = u64::try_from(bytes.len())?;
    if size > AGENT_LIMIT {
        bail!("{} has {size} bytes, over the limit of {AGENT_LIMIT}", agent.display());
    }

    let sums = Command::new("sha256sum")
        .args(["forgeyard", "forgeyard-agent"])
        .current_dir(&dist)
        .output()
        .context("cannot start sha256sum")?;
    if !sums.status.success() {
        bail!("sha256sum failed: {}", String::from_utf8_lossy(&sums.stderr).trim());
    }
    let file = dist.join("SHA256SUMS");
    std::fs::write(&file, &sums.stdout).with_context(|| format!("cannot write {}", file.display()))?;
    print!("{}", String::from_utf8_lossy(&sums.stdout));
    println!("the agent is static and has {size} bytes; all is in {}", dist.display());
    Ok(())
}

fn cargo(root: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let status = crate::cargo::command(root, arguments)
        .envs(environment.iter().copied())
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("cargo {} failed", arguments.join(" "));
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// The platform that the compiler builds for by itself.
pub(crate) fn host_triple() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot start rustc")?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("rustc -vV names no host")
}

/// Whether a 64-bit little-endian ELF file has a program header of type `PT_INTERP`.
fn wants_an_interpreter(bytes: &[u8]) -> Result<bool> {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, length: usize| -> Result<u64> {
        let field =
            at.checked_add(length).and_then(|end| bytes.get(at..end)).context("the file ends too early")?;
        Ok(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    if bytes.get(..6) != Some(b"\x7fELF\x02\x01".as_slice()) {
        bail!("no 64-bit little-endian ELF header");
    }
    let start = usize::try_from(number(32, 8)?)?;
    let size = usize::try_from(number(54, 2)?)?;
    let count = usize::try_from(number(56, 2)?)?;
    for index in 0..count {
        let at = index
            .checked_mul(size)
            .and_then(|offset| offset.checked_add(start))
            .context("headers lie outside")?;
        if number(at, 4)? == PT_INTERP {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF header with program headers of these types.
    fn elf(types: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = u8::try_from(types.len()).unwrap();
        for kind in types {
            let mut header = [0; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            bytes.extend(header);
        }
        bytes
    }

    #[test]
    fn file_with_a_loader_is_not_static() {
        assert!(wants_an_interpreter(&elf(&[1, 3, 2])).unwrap());
        assert!(!wants_an_interpreter(&elf(&[1, 2])).unwrap());
    }

    #[test]
    fn this_test_itself_asks_for_a_loader() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(wants_an_interpreter(&bytes).unwrap());
    }

    #[test]
    fn cut_or_foreign_file_is_an_error() {
        assert!(wants_an_interpreter(b"#!/bin/sh\n").is_err());
        let whole = elf(&[1, 2, 3]);
        assert!(wants_an_interpreter(&whole[..whole.len() - 60]).is_err());
        assert!(wants_an_interpreter(&[]).is_err());
    }
}
