//! From specs to records: reads the indexes of the channels and asks the solver.

use super::Client;
use crate::explain::because;
use crate::{Lock, MakeRequest};
use forgeyard_model::environment::LockedPackage;
use forgeyard_model::{Digest, Explanation};
use rattler_conda_types::{
    Channel, GenericVirtualPackage, MatchSpec, PackageName, ParseStrictness, RepoDataRecord, Subdir, Version,
};
use rattler_repodata_gateway::fetch::CacheAction;
use rattler_repodata_gateway::{ChannelConfig, Gateway, RepoData, SourceConfig};
use rattler_solve::{SolveError, SolverImpl as _, SolverTask, resolvo::Solver};
use reqwest::Url;
use std::collections::HashMap;

/// What the solver chose.
#[derive(Debug, Clone)]
pub struct Solved {
    pub(super) platform: Subdir,
    pub(super) records: Vec<RepoDataRecord>,
}

impl Solved {
    /// The canonical lock of it. Refuses packages that the index gives no SHA-256 of.
    pub fn lock(&self) -> Result<Lock, Explanation> {
        let locked = self.records.iter().map(locked).collect::<Result<_, _>>()?;
        Lock::new(self.platform.as_str(), locked)
    }
}

pub(super) fn locked(record: &RepoDataRecord) -> Result<LockedPackage, Explanation> {
    let file_name = record.identifier.to_file_name();
    let Some(sha256) = record.package_record.sha256 else {
        let message = format!("the index of the channel gives no SHA-256 of {file_name}");
        let explanation = Explanation::new("environment.package_unverifiable", message);
        return Err(explanation
            .with(shown(&record.url))
            .fix("index the channel again with a tool that writes SHA-256"));
    };
    Ok(LockedPackage {
        subdir: record.package_record.subdir.clone(),
        file_name,
        digest: Digest::from_bytes(sha256.into()),
        url: shown(&record.url),
    })
}

/// A URL without what a person may have put in it to log in.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Both fail only for URLs that cannot carry a login.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}

/// Reads the indexes and solves.
pub async fn solve(client: &Client, request: &MakeRequest) -> Result<Solved, Explanation> {
    let platform = platform(&request.platform)?;
    let specs = request.specs.iter().map(|text| spec(text)).collect::<Result<Vec<_>, _>>()?;
    if specs.is_empty() {
        let explanation =
            Explanation::new("environment.request_invalid", "the environment asks for no package");
        return Err(explanation.fix("list at least one package in `specs`"));
    }
    let virtual_packages =
        request.virtual_packages.iter().map(virtual_package).collect::<Result<Vec<_>, _>>()?;
    let urls = request.channel_urls.iter().map(|text| channel_url(text)).collect::<Result<Vec<_>, _>>()?;
    let repodata = fetch(client, request, &urls, platform, &specs).await?;

    let described = virtual_packages.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let searched: Vec<_> = urls.iter().map(shown).collect();
    let limit = request.limits.solve;
    let cancel = rattler_solve::CancellationToken::new();
    // Cancels the solver when this future is dropped; a thread cannot be stopped from outside.
    let stop = CancelOnDrop(cancel.clone());
    let task = tokio::task::spawn_blocking(move || {
        let mut task: SolverTask<'_, Vec<_>> = repodata.iter().map(RepoData::iter).collect();
        task.specs = specs;
        task.virtual_packages = virtual_packages;
        task.timeout = Some(limit);
        task.cancellation_token = Some(cancel);
        Solver.solve(task).map(|solved| solved.records)
    });
    let solved = task.await.map_err(|error| {
        because(Explanation::new("environment.solver", "the solver ended without an answer"), &error)
    })?;
    drop(stop);
    let records = solved.map_err(|error| unsolvable(error, request, &searched, &described))?;
    Ok(Solved { platform, records })
}

struct CancelOnDrop(rattler_solve::CancellationToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

async fn fetch(
    client: &Client,
    request: &MakeRequest,
    urls: &[Url],
    platform: Subdir,
    specs: &[MatchSpec],
) -> Result<Vec<RepoData>, Explanation> {
    let Some(first) = urls.first() else {
        let explanation = Explanation::new("environment.request_invalid", "the environment names no channel");
        return Err(explanation.fix("name at least one channel"));
    };
    // What was promoted a moment ago must be seen: the first channel is the farm's own and is never taken from a cache.
    let fresh = SourceConfig {
        sharded_enabled: false,
        cache_action: CacheAction::NoCache,
        ..SourceConfig::default()
    };
    let per_channel = HashMap::from([(Channel::from_url(first.clone()).base_url.into(), fresh)]);
    let gateway = Gateway::builder()
        .with_client(client.0.clone())
        .with_cache_dir(request.cache_dir.join("indexes"))
        .with_channel_config(ChannelConfig { per_channel, ..ChannelConfig::default() })
        .finish();
    let channels = urls.iter().map(|url| Channel::from_url(url.clone()));
    let query =
        gateway.query(channels, [platform, Subdir::NoArch], specs.iter().cloned()).recursive(true).execute();
    let unreachable = || {
        let message = format!("the index of a channel could not be read: {}", shown(first));
        let fix = "check that the channel exists and that this host reaches it: fetch noarch/repodata.json below its URL";
        Explanation::new("environment.channel_unreachable", message).fix(fix)
    };
    match tokio::time::timeout(request.limits.fetch, query).await {
        Ok(Ok(output)) => Ok(output.repodata),
        Ok(Err(error)) => Err(because(unreachable(), &error)),
        Err(_) => Err(unreachable().with(format!("no answer within {:?}", request.limits.fetch))),
    }
}

fn unsolvable(error: SolveError, request: &MakeRequest, channels: &[String], offers: &str) -> Explanation {
    let message = format!("no set of packages satisfies {}", request.specs.join(", "));
    let mut explanation = match error {
        SolveError::Unsolvable(reasons) => {
            let mut explanation = Explanation::new("environment.unsolvable", message);
            for line in
                reasons.iter().flat_map(|reason| reason.lines()).filter(|line| !line.trim().is_empty())
            {
                explanation = explanation.with(line.trim_end());
            }
            explanation
        }
        SolveError::Cancelled => {
            let message = format!("the solver found no answer within {:?}", request.limits.solve);
            Explanation::new("environment.solve_timeout", message)
                .fix("ask for fewer packages or narrower versions")
        }
        other => because(Explanation::new("environment.solver", message), &other),
    };
    explanation = explanation
        .with(format!("channels: {}", channels.join(", ")))
        .with(format!("this host offers: {offers}"));
    if explanation.fix.is_none() {
        explanation = explanation
            .fix("relax a spec, publish the missing package, or use a host that offers what is needed");
    }
    explanation
}

pub(super) fn platform(text: &str) -> Result<Subdir, Explanation> {
    text.parse().map_err(|error| {
        let message = format!("`{text}` is not a conda platform");
        because(Explanation::new("environment.request_invalid", message), &error)
            .fix("use a platform such as `linux-64`")
    })
}

fn spec(text: &str) -> Result<MatchSpec, Explanation> {
    let spec = MatchSpec::from_str(text, ParseStrictness::Strict).map_err(|error| {
        let message = format!("`{text}` is not a match spec");
        let fix = "write `name`, `name >=1.2`, or `name ==1.2 build`";
        because(Explanation::new("environment.spec_invalid", message), &error).fix(fix)
    })?;
    // A spec may not bring a source of its own: only the channels of the request were allowed.
    if spec.channel.is_some() || spec.url.is_some() || spec.namespace.is_some() {
        let message = format!("`{text}` names a channel or a URL");
        let explanation = Explanation::new("environment.spec_foreign", message);
        return Err(
            explanation.fix("name the package only; it is taken from the channels of the environment")
        );
    }
    if spec.name.as_exact().is_none() {
        let explanation =
            Explanation::new("environment.spec_invalid", format!("`{text}` does not name one package"));
        return Err(explanation.fix("write the name of the package without `*`"));
    }
    Ok(spec)
}

fn channel_url(text: &str) -> Result<Url, Explanation> {
    let wrong = || {
        let explanation = Explanation::new("environment.request_invalid", "a channel is not an HTTP URL");
        explanation.fix("name channels by their http:// or https:// URL")
    };
    let url = text.parse::<Url>().map_err(|error| because(wrong(), &error))?;
    if matches!(url.scheme(), "http" | "https") { Ok(url) } else { Err(wrong().with(shown(&url))) }
}

fn virtual_package(package: &crate::VirtualPackage) -> Result<GenericVirtualPackage, Explanation> {
    let wrong = |error: &dyn std::error::Error| {
        let message =
            format!("`{} {} {}` is not a virtual package", package.name, package.version, package.build);
        because(Explanation::new("environment.request_invalid", message), error)
    };
    Ok(GenericVirtualPackage {
        name: package.name.parse::<PackageName>().map_err(|error| wrong(&error))?,
        version: package.version.parse::<Version>().map_err(|error| wrong(&error))?,
        build_string: package.build.parse().map_err(|error| wrong(&error))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_spec_that_brings_its_own_source_is_refused() {
        for text in [
            "conda-forge::numpy",
            "https://elsewhere.example/noarch/x-1-0.conda",
            "x[url=https://a.example/x-1-0.conda]",
        ] {
            let error = spec(text).unwrap_err();
            assert_eq!(error.code, "environment.spec_foreign", "{text}: {error}");
        }
    }

    #[test]
    fn usual_specs_are_read() {
        for text in ["numpy", "numpy >=1.2,<3", "numpy ==1.26.4", "numpy 1.26.*", "pytorch =2.5 cuda*"] {
            spec(text).unwrap();
        }
        assert_eq!(spec("num*py").unwrap_err().code, "environment.spec_invalid");
        assert_eq!(spec("numpy >>1").unwrap_err().code, "environment.spec_invalid");
    }

    #[test]
    fn a_channel_that_is_not_http_is_refused_without_showing_a_login() {
        for text in ["file:///tmp/channel", "conda-forge", "ftp://user:hunter2@host.example/c"] {
            let error = channel_url(text).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        assert_eq!(
            shown(&channel_url("https://me:hunter2@host.example/c").unwrap()),
            "https://host.example/c"
        );
    }

    proptest! {
        #[test]
        fn any_spec_text_is_read_or_refused(text in ".{0,60}") {
            let _ = spec(&text);
        }

        #[test]
        fn no_text_smuggles_a_channel(text in "[a-z:/\\[\\]=. ]{0,40}") {
            if let Ok(spec) = spec(&text) {
                prop_assert!(spec.channel.is_none() && spec.url.is_none());
            }
        }
    }
}
