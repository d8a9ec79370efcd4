//! What the program costs when it does nothing: memory of an idle `forgeyard serve`, and the time of `--version`.

use crate::bench::{Figure, median};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Builds the program in the development profile and answers where it is.
pub(crate) fn built(root: &Path) -> Result<PathBuf> {
    let arguments = ["build", "--quiet", "--package", "forgeyard", "--package", "forgeyard-agent"];
    let status = crate::cargo::command(root, &arguments).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("the program does not build");
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder));
    Ok(target.join("debug/forgeyard"))
}

/// Figures of the development build and, where one was made, of the released one.
pub(crate) fn figures(root: &Path) -> Result<Vec<Figure>> {
    let mut figures = of("development build", &built(root)?)?;
    let released = root.join("dist/forgeyard");
    if released.is_file() {
        figures.extend(of("released build", &released)?);
    }
    Ok(figures)
}

fn of(name: &str, binary: &Path) -> Result<Vec<Figure>> {
    let megabytes = resident(binary)? as f64 / 1e6;
    let size = std::fs::metadata(binary)?.len() as f64 / 1e6;
    let (version, floor) = (start_time(binary, &["--version"])?, start_time(Path::new("/bin/true"), &[])?);
    Ok(vec![
        Figure {
            text: format!("idle `forgeyard serve`, resident memory, {name}"),
            value: megabytes,
            unit: "MB".to_owned(),
            peer: Some(("size of the program".to_owned(), size)),
            aim: Some(("at most".to_owned(), 60.0)),
        },
        Figure {
            text: format!("`forgeyard --version`, {name}"),
            value: version,
            unit: "ms".to_owned(),
            peer: Some(("/bin/true".to_owned(), floor)),
            aim: Some(("at most".to_owned(), 50.0)),
        },
    ])
}

fn start_time(binary: &Path, arguments: &[&str]) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..21 {
        let begin = Instant::now();
        let status = Command::new(binary).args(arguments).stdout(Stdio::null()).status();
        if !status.with_context(|| format!("cannot start {}", binary.display()))?.success() {
            bail!("{} {} failed", binary.display(), arguments.join(" "));
        }
        times.push(begin.elapsed());
    }
    Ok(median(times))
}

/// Bytes that a server which nobody asks anything keeps resident.
fn resident(binary: &Path) -> Result<u64> {
    let folder = std::env::temp_dir().join(format!("forgeyard-idle-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let config = folder.join("forgeyard.toml");
    std::fs::write(&config, "listen = \"127.0.0.1:0\"\n")?;
    let mut command = Command::new(binary);
    command.arg("serve").arg("--data").arg(folder.join("data")).arg("--config").arg(&config);
    let log = std::fs::File::create(folder.join("log"))?;
    let mut server = command.stdout(log.try_clone()?).stderr(log).spawn()?;
    // Long enough for the first ticks; what an idle server keeps does not grow after them.
    std::thread::sleep(Duration::from_secs(5));
    let ended = server.try_wait()?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id()));
    let _ = server.kill();
    let _ = server.wait();
    let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    std::fs::remove_dir_all(&folder)?;
    if let Some(ended) = ended {
        bail!("`forgeyard serve` ended with {ended}: {}", log.trim());
    }
    let status = status.context("the server cannot be looked at")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").trim().parse().context("VmRSS")?;
    Ok(kibibytes * 1024)
}
