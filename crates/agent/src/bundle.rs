//! The OCI configuration of one step: the provider's template, completed by command, environment, cgroup and the
//! folder for the record of process 1.

use crate::error::Error;
use forgeyard_model::job::{JobSpec, Step};
use forgeyard_model::machine::{INSIDE_STATUS, MachineFile};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Where the OpenCL driver keeps compiled kernels, inside; kernels that were enqueued leave a library there.
pub(crate) const POCL_CACHE: &str = "/work/.pocl-cache";

/// Completes the template; `further` are mounts beside those of any step.
pub(crate) fn complete(
    template: &Value,
    machine: &MachineFile,
    spec: &JobSpec,
    number: usize,
    step: &Step,
    status: &Path,
    further: &[Value],
) -> Result<Value, Error> {
    let mut config = template.clone();
    let wrong =
        || Error::Content { object: "bundle.json".to_owned(), reason: "not an OCI configuration".to_owned() };
    let process = config.get_mut("process").and_then(Value::as_object_mut).ok_or_else(wrong)?;
    let mut command = machine.runtime.init.clone();
    command.push("--".to_owned());
    command.extend(step.argv.iter().cloned());
    process.insert("args".to_owned(), json!(command));
    let pairs: Vec<String> =
        environment(spec, step).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    process.insert("env".to_owned(), json!(pairs));
    let linux = config.get_mut("linux").and_then(Value::as_object_mut).ok_or_else(wrong)?;
    linux.insert("cgroupsPath".to_owned(), json!(format!("{}/step-{number}", machine.cgroup.path)));
    let mounts = config.get_mut("mounts").and_then(Value::as_array_mut).ok_or_else(wrong)?;
    mounts.push(json!({
        "destination": INSIDE_STATUS,
        "type": "bind",
        "source": status,
        "options": ["bind", "rw", "nosuid", "nodev", "noexec"],
    }));
    mounts.extend(further.iter().cloned());
    Ok(config)
}

/// The environment of a step. What the job sets counts more than what we set, except for the kernel cache: it is how
/// the use of the device is seen.
fn environment(spec: &JobSpec, step: &Step) -> BTreeMap<String, String> {
    let ours = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/work/home"),
        ("USER", "job"),
        ("LOGNAME", "job"),
        ("TMPDIR", "/tmp"),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
        ("CI", "true"),
        ("FORGEYARD", "1"),
    ];
    let mut all: BTreeMap<String, String> =
        ours.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    all.extend(spec.env.clone());
    all.extend(step.env.clone());
    all.insert("POCL_CACHE_DIR".to_owned(), POCL_CACHE.to_owned());
    // Neither can be part of a name or value that a process is given.
    all.retain(|name, value| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_environment_counts_more_than_that_of_the_job() {
        let spec: JobSpec = serde_json::from_value(json!({
            "flavor": "small", "steps": [], "env": {"A": "job", "B": "job", "LANG": "de", "BAD=": "x"},
        }))
        .unwrap();
        let step = Step {
            name: "s".to_owned(),
            argv: vec!["true".to_owned()],
            env: [("A".to_owned(), "step".to_owned()), ("POCL_CACHE_DIR".to_owned(), "/x".to_owned())].into(),
        };
        let env = environment(&spec, &step);
        assert_eq!((env["A"].as_str(), env["B"].as_str(), env["LANG"].as_str()), ("step", "job", "de"));
        assert_eq!(env["POCL_CACHE_DIR"], POCL_CACHE);
        assert!(!env.contains_key("BAD="));
    }
}
