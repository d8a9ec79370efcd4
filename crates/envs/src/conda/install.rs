//! From records to files: fetches packages into the cache, links them into a folder, checks what lies there.

use super::{Client, Solved};
use crate::explain::{because, disk_full};
use crate::{Lock, MakeRequest};
use forgeyard_model::Explanation;
use forgeyard_model::environment::LockedPackage;
use rattler::install::{ExternalSymlinkPolicy, Installer, InstallerError};
use rattler::package_cache::PackageCache;
use rattler::validation::ValidationMode;
use rattler_conda_types::PrefixRecord;
use std::path::Path;

/// Installs into `staging` what will be used as `prefix`: that path is the one that is written into files.
pub async fn install(
    client: &Client,
    solved: &Solved,
    request: &MakeRequest,
    staging: &Path,
    prefix: &Path,
) -> Result<(), Explanation> {
    // Every file of a cached package is compared again: environments share inodes with the cache, so an edit in place
    // of one would otherwise reach all that come later.
    let cache = [request.cache_dir.join("packages")];
    let cache = PackageCache::new_layered(cache, false, ValidationMode::Full);
    let installer = Installer::new()
        .with_download_client(client.0.clone())
        .with_package_cache(cache)
        .with_target_platform(solved.platform)
        .with_alternative_target_prefix(prefix)
        .with_external_symlink_policy(ExternalSymlinkPolicy::Deny)
        .with_execute_link_scripts(false)
        .with_installed_packages(Vec::new())
        .with_max_concurrent_requests(16)
        .install(staging, solved.records.iter().cloned());
    match tokio::time::timeout(request.limits.install, installer).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(explain(&error, request)),
        Err(_) => {
            let message = format!("the packages were not installed within {:?}", request.limits.install);
            let explanation = Explanation::new("environment.install_timeout", message);
            Err(explanation.fix("check the connection to the channel; what was fetched is kept, so trying again goes on from there"))
        }
    }
}

fn explain(error: &InstallerError, request: &MakeRequest) -> Explanation {
    if disk_full(error) {
        let explanation = Explanation::new("environment.no_space", "no space left while installing packages");
        let places = format!("{} and {}", request.root_dir.display(), request.cache_dir.display());
        return because(explanation, error)
            .fix(format!("free space in {places}, or remove environments that are not used"));
    }
    let explanation = because(Explanation::new("environment.install_failed", error.to_string()), error);
    // The type of this cause is private to a crate that we do not depend on; a test pins its wording.
    if explanation.evidence.iter().any(|line| line.starts_with("hash mismatch")) {
        let message = format!("{error}: its bytes are not those that the index of the channel announces");
        let fix =
            "do not use the package; compare the channel's file with its index and with the artifact record";
        return Explanation {
            code: "environment.digest_mismatch".into(),
            message,
            fix: Some(fix.into()),
            ..explanation
        };
    }
    match error {
        InstallerError::FailedToFetch(..) => {
            explanation.fix("check the connection to the channel and try again")
        }
        InstallerError::LinkError(..) => {
            explanation.fix("the package cannot be installed as it is; look at its files")
        }
        _ => explanation,
    }
}

/// What a prefix says that it holds, sorted; from its `conda-meta`.
pub(crate) fn installed(prefix: &Path) -> Result<Vec<LockedPackage>, Explanation> {
    let records = PrefixRecord::collect_from_prefix::<PrefixRecord>(prefix)
        .map_err(|error| crate::explain::at("reading what is installed in", prefix, &error))?;
    let mut all = records
        .iter()
        .map(|record| super::solve::locked(&record.repodata_record))
        .collect::<Result<Vec<_>, _>>()?;
    all.sort();
    Ok(all)
}

/// Compares what a prefix holds with its lock; the answer names the first difference. Where packages came from does
/// not matter.
pub(crate) fn same_as(lock: &Lock, installed: &[LockedPackage]) -> Result<(), String> {
    let key =
        |package: &LockedPackage| format!("{}/{} {}", package.subdir, package.file_name, package.digest);
    let wanted: Vec<_> = lock.packages().iter().map(key).collect();
    let found: Vec<_> = installed.iter().map(key).collect();
    if let Some(missing) = wanted.iter().find(|package| !found.contains(package)) {
        return Err(format!("{missing} is in the lock and not in the prefix"));
    }
    if let Some(extra) = found.iter().find(|package| !wanted.contains(package)) {
        return Err(format!("{extra} is in the prefix and not in the lock"));
    }
    Ok(())
}
