//! Which pools serve a job of a forge, by its labels.
//!
//! Labels are compared without regard to case, as forges do. What follows `--` in a label makes it unique and is not
//! compared (`cirun-gpu--8123` asks for `cirun-gpu`), but the runner registers with the whole of it, so that no other job
//! fits that runner. A pool serves a job that asks for some of its labels and for no other; one that is `exact` serves only
//! a job that asks for all of them.

use forgeyard_model::Explanation;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::forge::WorkflowJob;
use forgeyard_model::resources::{Isolation, Pool, RunnerOffer};
use std::collections::BTreeSet;

/// Label by which a job of a forge says that it starts containers of its own.
pub const DOCKER: &str = "docker";

/// A label as it is compared.
fn compared(label: &str) -> String {
    label.split("--").next().unwrap_or(label).trim().to_lowercase()
}

/// Labels of a job as they are compared.
pub fn asked(labels: &[String]) -> BTreeSet<String> {
    labels.iter().map(|label| compared(label)).collect()
}

fn offered(offer: &RunnerOffer) -> BTreeSet<String> {
    offer.labels.iter().map(|label| label.trim().to_lowercase()).collect()
}

/// Whether an offer suits what is asked for.
pub fn suits(offer: &RunnerOffer, labels: &[String]) -> bool {
    let (asked, offered) = (asked(labels), offered(offer));
    if asked.is_empty() || asked.contains("") {
        return false;
    }
    if offer.exact { asked == offered } else { asked.is_subset(&offered) }
}

/// Pools that serve these labels, in the operator's order.
pub fn serving<'a>(config: &'a FarmConfig, labels: &[String]) -> Vec<&'a Pool> {
    let serves = |pool: &&Pool| pool.runners.as_ref().is_some_and(|offer| suits(offer, labels));
    config.pools.iter().filter(serves).collect()
}

/// Why a job that would be served but for the label `docker` is refused: the pools that serve the rest of its labels keep
/// jobs apart by namespaces on one kernel, and no container can be started in their machines. Whether a job has
/// `container:` or services is not in what a forge says of it, so the label is all that can be known before it runs.
pub(crate) fn needs_docker(config: &FarmConfig, labels: &[String]) -> Option<Explanation> {
    if !asked(labels).contains(DOCKER) || !serving(config, labels).is_empty() {
        return None;
    }
    let rest: Vec<String> = labels.iter().filter(|label| compared(label) != DOCKER).cloned().collect();
    let pools = serving(config, &rest);
    let sandboxes: Vec<&str> = pools
        .iter()
        .filter(|pool| pool.isolation == Isolation::SharedKernel)
        .map(|pool| pool.name.as_str())
        .collect();
    if sandboxes.is_empty() {
        return None;
    }
    let text = format!(
        "the job asks for `{DOCKER}`; the machines of {} are sandboxes on a shared kernel, and Docker cannot run in them",
        sandboxes.join(", ")
    );
    Some(Explanation::new("demand.needs_docker", text).with(format!("asks for [{}]", labels.join(", "))).fix(format!(
        "ask for a pool of virtual machines that offers `{DOCKER}`, or, if the job starts no containers, take `{DOCKER}` out of its `runs-on`"
    )))
}

/// Why no pool serves a job: most such jobs are for the forge's own runners.
pub(crate) fn nobody(config: &FarmConfig, job: &WorkflowJob) -> Explanation {
    let labels = job.labels.join(", ");
    let text = format!("job {} asks for [{labels}]; no pool of this farm serves these labels", job.job);
    let mut reason = Explanation::new("demand.not_ours", text);
    for pool in &config.pools {
        let Some(offer) = &pool.runners else { continue };
        let (asked, offered) = (asked(&job.labels), offered(offer));
        if asked.is_disjoint(&offered) {
            continue;
        }
        let missing: Vec<&str> = asked.difference(&offered).map(String::as_str).collect();
        reason = reason.with(match missing.as_slice() {
            [] => format!("pool {} serves only jobs that ask for exactly its labels", pool.name),
            missing => format!("pool {} has no label {}", pool.name, missing.join(", ")),
        });
    }
    reason
}

/// Pairs of pools of different shape where a job that is meant for one may get a runner of the other: worth a word when a
/// configuration is loaded.
pub fn overlaps(config: &FarmConfig) -> Vec<Explanation> {
    let offers: Vec<(&Pool, &RunnerOffer)> =
        config.pools.iter().filter_map(|pool| Some((pool, pool.runners.as_ref()?))).collect();
    let mut found = Vec::new();
    for (at, (first, one)) in offers.iter().enumerate() {
        for (second, other) in &offers[at + 1..] {
            let (a, b) = (offered(one), offered(other));
            let common: Vec<&str> = a.intersection(&b).map(String::as_str).collect();
            let closed =
                |offer: &RunnerOffer, labels: &BTreeSet<String>| offer.exact && common.len() < labels.len();
            if common.is_empty() || one.flavor == other.flavor || closed(one, &a) || closed(other, &b) {
                continue;
            }
            let text = format!(
                "a job that asks only for [{}] may get a runner of pool {} or of pool {}, whose shapes differ",
                common.join(", "),
                first.name,
                second.name
            );
            found.push(
                Explanation::new("pool.labels_overlap", text)
                    .fix("give each shape a label of its own and ask for it, or write `exact = true`"),
            );
        }
    }
    found
}
