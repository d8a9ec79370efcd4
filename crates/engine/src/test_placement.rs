//! Which tests of a package need a device?
//!
//! Decided in this order; the first step that sees something settles it, and the reason records step and sight:
//!
//! 1. `explicit`: the repository's pipeline file says so;
//! 2. `depends`: the package asks for a virtual package of a driver, so it installs only where one is;
//! 3. `variant`: it was built for a device, or depends on libraries that only such builds need;
//! 4. `elf`: a file of its payload asks for a library of a driver, so it loads only where one is;
//! 5. `script`: the text of a test speaks of devices.
//!
//! Steps 2 to 4 are about the whole package, 1 and 5 about single tests. What no step sees needs no device. Two
//! further steps are elsewhere: a probe run without a device, and the check after a run that the device was used.

use forgeyard_model::package::{GpuNeed, PackageFacts, PackageTest, TestSelection};
use forgeyard_model::plan::TestRule;

/// Virtual packages of drivers.
const VIRTUAL: [&str; 2] = ["__cuda", "__cuda_arch"];
/// Packages that only builds for devices depend on.
const LIBRARIES: [&str; 20] = [
    "cuda-version",
    "cuda-cudart",
    "cuda-nvrtc",
    "cudatoolkit",
    "cudnn",
    "libcublas",
    "libcudnn",
    "libcufft",
    "libcurand",
    "libcusolver",
    "libcusparse",
    "libnvjitlink",
    "nccl",
    "hip",
    "hip-runtime-amd",
    "rocm-core",
    "khronos-opencl-icd-loader",
    "ocl-icd",
    "ocl-icd-system",
    "pyopencl",
];
/// Libraries of drivers, by the beginning of their file names.
const DRIVER_FILES: [&str; 5] =
    ["libcuda.so", "libnvidia-ml.so", "libOpenCL.so", "libamdhip64.so", "libhsa-runtime64.so"];
/// Words of tests that speak of devices.
const WORDS: [&str; 15] = [
    "nvidia-smi",
    "torch.cuda",
    "cupy",
    "numba.cuda",
    "-m gpu",
    "CUDA_VISIBLE_DEVICES",
    "compute-sanitizer",
    "rocm-smi",
    "rocminfo",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "clinfo",
    "pyopencl",
    "libOpenCL.so",
    "OCL_ICD_VENDORS",
];

/// Groups the tests of a package by what they need, in the order of their first index. A package without tests has
/// no groups.
pub fn select(facts: &PackageFacts, rules: &[TestRule]) -> Vec<TestSelection> {
    let package = of_package(facts);
    let mut groups: Vec<TestSelection> = Vec::new();
    for test in &facts.tests {
        let (gpu, reason) = explicit(facts, test, rules)
            .or_else(|| package.clone())
            .or_else(|| of_script(test))
            .unwrap_or_else(|| {
                let seen = "none: no rule, dependency, variant, library or test text speaks of a device";
                (GpuNeed::None, seen.to_owned())
            });
        match groups.iter_mut().find(|group| group.gpu == gpu) {
            Some(group) => {
                group.indexes.push(test.index);
                if !group.reason.split("; ").any(|part| part == reason) {
                    group.reason = format!("{}; {reason}", group.reason);
                }
            }
            None => groups.push(TestSelection { indexes: vec![test.index], gpu, reason }),
        }
    }
    groups
}

type Settled = Option<(GpuNeed, String)>;

/// Step 1.
fn explicit(facts: &PackageFacts, test: &PackageTest, rules: &[TestRule]) -> Settled {
    let matches = |rule: &TestRule| {
        rule.package.as_ref().is_none_or(|name| *name == facts.name)
            && rule.index.is_none_or(|index| index == test.index)
    };
    let at = rules.iter().position(matches)?;
    Some((rules.get(at)?.gpu, format!("explicit: rule {} of the pipeline file", at + 1)))
}

/// Steps 2 to 4.
fn of_package(facts: &PackageFacts) -> Settled {
    let required = |reason: String| Some((GpuNeed::Required, reason));
    let names = || facts.depends.iter().map(|spec| name(spec));
    if let Some(found) = names().find(|name| VIRTUAL.contains(name)) {
        return required(format!("depends: `{found}`, so it installs only where a driver is"));
    }
    if let Some(version) =
        facts.variant.get("cuda_compiler_version").filter(|version| built_for_cuda(version))
    {
        return required(format!("variant: `cuda_compiler_version` is `{version}`"));
    }
    if let Some(found) = names().find(|name| LIBRARIES.contains(name)) {
        return required(format!("variant: it depends on `{found}`"));
    }
    let driver = |file: &&String| DRIVER_FILES.iter().any(|driver| file.starts_with(driver));
    if let Some(found) = facts.needed_libraries.iter().find(driver) {
        return required(format!("elf: a file of the package asks for `{found}`"));
    }
    None
}

fn built_for_cuda(version: &str) -> bool {
    !version.is_empty() && !version.eq_ignore_ascii_case("none") && !version.eq_ignore_ascii_case("null")
}

/// The name of a match spec as it stands in a package: the text before the first space or operator.
fn name(spec: &str) -> &str {
    spec.split([' ', '[', '<', '>', '=', '!', '~']).next().unwrap_or(spec)
}

/// Step 5.
fn of_script(test: &PackageTest) -> Settled {
    let word = WORDS.iter().find(|word| speaks_of(&test.text, word))?;
    Some((GpuNeed::Required, format!("script: test {} speaks of `{word}`", test.index)))
}

/// Whether a word stands in a text as a word, and not to hide the devices.
fn speaks_of(text: &str, word: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(inside) && !after.starts_with(inside) && !hides(word, after)
    })
}

/// `CUDA_VISIBLE_DEVICES=""`, `=-1` and `=` alone make a test run without a device.
fn hides(word: &str, after: &str) -> bool {
    if !word.ends_with("_VISIBLE_DEVICES") {
        return false;
    }
    let first =
        |value: &str| value.split([' ', '\t', '\n', ';', '&', ')']).next().unwrap_or_default().to_owned();
    // A shell allows no space before the sign and takes none after it into the value; Python writes both.
    let value = match after.strip_prefix('=') {
        Some(value) => first(value),
        None => match after.trim_start_matches(['"', '\'', ']', ',', ' ']).strip_prefix('=') {
            Some(value) => first(value.trim_start_matches(' ')),
            None => return false,
        },
    };
    matches!(value.trim_matches(['"', '\'']), "" | "-1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use std::collections::BTreeMap;

    fn facts(tests: &[&str]) -> PackageFacts {
        let tests = (0..).zip(tests).map(|(index, text)| PackageTest {
            index,
            kind: "commands".into(),
            text: (*text).to_owned(),
        });
        PackageFacts {
            name: "fy".into(),
            version: "1".into(),
            build: "0".into(),
            build_number: 0,
            subdir: "linux-64".into(),
            depends: vec!["libstdcxx >=13".into()],
            license: None,
            variant: BTreeMap::from([("cuda_compiler_version".into(), "None".into())]),
            tests: tests.collect(),
            tests_digest: None,
            needed_libraries: vec!["libc.so.6".into()],
        }
    }

    fn rule(package: Option<&str>, index: Option<u32>, gpu: GpuNeed) -> TestRule {
        TestRule { package: package.map(str::to_owned), index, gpu, min_memory_mib: 0 }
    }

    #[rstest]
    #[case("nvidia-smi", true)]
    #[case("python -c 'import torch; assert torch.cuda.is_available()'", true)]
    #[case("import cupy as cp", true)]
    #[case("pytest -m gpu tests", true)]
    #[case("CUDA_VISIBLE_DEVICES=0 ./run", true)]
    #[case("clinfo --list", true)]
    #[case("import pyopencl", true)]
    #[case("test -f lib/libfy.so", false)]
    #[case("echo occupy the queue", false)]
    #[case("pytest -m 'not gpu'", false)]
    #[case("CUDA_VISIBLE_DEVICES= pytest", false)]
    #[case("CUDA_VISIBLE_DEVICES='' pytest", false)]
    #[case("export CUDA_VISIBLE_DEVICES=-1\npytest", false)]
    #[case("os.environ['CUDA_VISIBLE_DEVICES'] = ''", false)]
    #[case("", false)]
    fn text_of_a_test_says_whether_it_needs_a_device(#[case] text: &str, #[case] needs: bool) {
        let groups = select(&facts(&[text]), &[]);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].gpu == GpuNeed::Required, needs, "{groups:?}");
        let step = if needs { "script: test 0 speaks of" } else { "none: " };
        assert!(groups[0].reason.starts_with(step), "{}", groups[0].reason);
    }

    #[rstest]
    #[case("depends: `__cuda`", |f: &mut PackageFacts| f.depends.push("__cuda >=12".into()))]
    #[case("depends: `__cuda_arch`", |f: &mut PackageFacts| f.depends.push("__cuda_arch>=8.0".into()))]
    #[case("variant: `cuda_compiler_version` is `12.9`", |f: &mut PackageFacts| {
        f.variant.insert("cuda_compiler_version".into(), "12.9".into());
    })]
    #[case("variant: it depends on `libcublas`", |f: &mut PackageFacts| f.depends.push("libcublas >=12".into()))]
    #[case("variant: it depends on `ocl-icd`", |f: &mut PackageFacts| f.depends.push("ocl-icd >=2.3".into()))]
    #[case("elf: a file of the package asks for `libcuda.so.1`", |f: &mut PackageFacts| {
        f.needed_libraries.push("libcuda.so.1".into());
    })]
    #[case("elf: a file of the package asks for `libOpenCL.so.1`", |f: &mut PackageFacts| {
        f.needed_libraries.push("libOpenCL.so.1".into());
    })]
    fn package_says_it_for_all_its_tests(#[case] reason: &str, #[case] change: fn(&mut PackageFacts)) {
        let mut facts = facts(&["true", "test -f x"]);
        change(&mut facts);
        let groups = select(&facts, &[]);
        assert_eq!(groups.len(), 1);
        assert_eq!((groups[0].indexes.as_slice(), groups[0].gpu), (&[0, 1][..], GpuNeed::Required));
        assert!(groups[0].reason.starts_with(reason), "{}", groups[0].reason);
    }

    #[test]
    fn earlier_step_wins() {
        let mut facts = facts(&["nvidia-smi"]);
        facts.needed_libraries.push("libcuda.so.1".into());
        assert!(select(&facts, &[])[0].reason.starts_with("elf:"));
        facts.variant.insert("cuda_compiler_version".into(), "12.9".into());
        assert!(select(&facts, &[])[0].reason.starts_with("variant:"));
        facts.depends.push("__cuda".into());
        assert!(select(&facts, &[])[0].reason.starts_with("depends:"));
        let groups = select(&facts, &[rule(None, None, GpuNeed::None)]);
        assert_eq!(
            (groups[0].gpu, groups[0].reason.as_str()),
            (GpuNeed::None, "explicit: rule 1 of the pipeline file")
        );
    }

    #[test]
    fn first_matching_rule_counts_and_tests_are_grouped_by_need() {
        let rules = [
            rule(Some("other"), None, GpuNeed::Required),
            rule(Some("fy"), Some(1), GpuNeed::Optional),
            rule(None, Some(1), GpuNeed::Required),
        ];
        let groups = select(&facts(&["true", "true", "clinfo", "nvidia-smi", "true"]), &rules);
        let short: Vec<_> = groups.iter().map(|group| (group.gpu, group.indexes.clone())).collect();
        assert_eq!(
            short,
            [(GpuNeed::None, vec![0, 4]), (GpuNeed::Optional, vec![1]), (GpuNeed::Required, vec![2, 3])]
        );
        assert_eq!(groups[1].reason, "explicit: rule 2 of the pipeline file");
        assert_eq!(
            groups[2].reason,
            "script: test 2 speaks of `clinfo`; script: test 3 speaks of `nvidia-smi`"
        );
    }

    #[test]
    fn package_without_tests_has_no_groups() {
        assert_eq!(select(&facts(&[]), &[rule(None, None, GpuNeed::Required)]), []);
    }

    proptest! {
        #[test]
        fn every_test_is_in_exactly_one_group(texts in prop::collection::vec("(.{0,20}|clinfo|nvidia-smi)", 0..8)) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let groups = select(&facts(&texts), &[rule(None, Some(2), GpuNeed::Optional)]);
            let mut all: Vec<u32> = groups.iter().flat_map(|group| group.indexes.clone()).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..texts.len() as u32).collect::<Vec<_>>());
        }
    }
}
