//! What a host offers to packages: virtual packages (CEP 30).
//!
//! [`detect`] asks the host; what cannot be found out is left out, so a package that needs it is refused by the solver
//! with its name rather than failing later. `__cuda` comes from what the driver says it supports.

use std::process::Stdio;
use std::time::Duration;

/// A virtual package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualPackage {
    /// Name, for example `__glibc`.
    pub name: String,
    /// Version.
    pub version: String,
    /// Build string; `0` when there is none.
    pub build: String,
}

impl VirtualPackage {
    /// A virtual package without a build string.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self { name: name.into(), version: version.into(), build: "0".into() }
    }
}

/// The virtual packages of this Linux host, and its platform folder.
pub async fn detect() -> (String, Vec<VirtualPackage>) {
    let platform = match std::env::consts::ARCH {
        "x86_64" => "linux-64".to_owned(),
        other => format!("linux-{other}"),
    };
    let mut found = vec![VirtualPackage::new("__unix", "0")];
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if let Some(version) = leading_version(&release) {
        found.push(VirtualPackage::new("__linux", version));
    }
    // `glibc 2.36`
    let glibc = output("getconf", &["GNU_LIBC_VERSION"]).await;
    if let Some(version) =
        glibc.as_deref().and_then(|text| text.strip_prefix("glibc ")).and_then(leading_version)
    {
        found.push(VirtualPackage::new("__glibc", version));
    }
    let arch = std::env::consts::ARCH;
    found.push(VirtualPackage { build: arch.into(), ..VirtualPackage::new("__archspec", "1") });
    if let Some(version) = output("nvidia-smi", &[]).await.as_deref().and_then(cuda_version) {
        found.push(VirtualPackage::new("__cuda", version));
    }
    (platform, found)
}

/// Digits and dots at the beginning, without a dot at the end.
fn leading_version(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let version = text[..end].trim_end_matches('.');
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
}

/// The version that `nvidia-smi` prints in the head of its table: `CUDA Version: 12.9`.
fn cuda_version(table: &str) -> Option<String> {
    let (_, rest) = table.split_once("CUDA Version:")?;
    leading_version(rest.trim_start())
}

/// Output of a program of the host, if it is there and answers soon.
async fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    // A driver in trouble can make nvidia-smi hang for minutes.
    let answer = tokio::time::timeout(Duration::from_secs(20), command.output()).await.ok()?.ok()?;
    answer.status.success().then(|| String::from_utf8_lossy(&answer.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_hosts_say() {
        let cases = [
            ("6.1.0-18-amd64\n", Some("6.1.0")),
            ("2.36", Some("2.36")),
            ("12.", Some("12")),
            ("N/A", None),
            ("", None),
        ];
        for (text, version) in cases {
            assert_eq!(leading_version(text).as_deref(), version, "{text}");
        }
    }

    #[test]
    fn the_cuda_version_is_read_from_the_head_of_the_table() {
        let head = "| NVIDIA-SMI 575.57.08     Driver Version: 575.57.08      CUDA Version: 12.9     |";
        assert_eq!(cuda_version(head).as_deref(), Some("12.9"));
        assert_eq!(cuda_version("| CUDA Version: N/A |"), None);
        assert_eq!(cuda_version("NVIDIA-SMI has failed"), None);
    }

    #[tokio::test]
    async fn this_host_is_a_linux_with_a_kernel_version() {
        let (platform, found) = detect().await;
        assert!(platform.starts_with("linux-"));
        assert!(found.iter().any(|package| package.name == "__linux" && package.version.contains('.')));
    }
}
