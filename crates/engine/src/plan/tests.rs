//! Tests of the expansion of plans.

use super::*;
use proptest::prelude::*;

fn output(name: &str, depends: &[&str], together: &[&str]) -> PlannedOutput {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    PlannedOutput {
        name: name.to_owned(),
        version: "1".to_owned(),
        build: "h_0".to_owned(),
        subdir: "linux-64".to_owned(),
        depends: set(depends),
        together_with: set(together),
        variant: BTreeMap::new(),
    }
}

fn keys(plan: Vec<PlannedOutput>) -> Vec<(String, Vec<String>, Vec<String>)> {
    let made = expand(&RenderedPlan { outputs: plan }).unwrap();
    made.into_iter().map(|c| (c.key.clone(), c.output_names(), c.depends_on.into_iter().collect())).collect()
}

fn refused(plan: Vec<PlannedOutput>) -> Explanation {
    expand(&RenderedPlan { outputs: plan }).unwrap_err()
}

#[test]
fn order_of_the_list_does_not_matter() {
    let made = keys(vec![output("py", &["lib", "python"], &[]), output("lib", &["gcc"], &[])]);
    let names: Vec<_> = made.iter().map(|(key, _, needs)| (key.as_str(), needs.join(","))).collect();
    assert_eq!(names, [("lib", String::new()), ("py", "lib".to_owned())]);
}

#[test]
fn outputs_of_one_staging_are_one_build() {
    let staged = ["staging/compile"];
    let made = keys(vec![
        output("py", &["lib"], &staged),
        output("lib", &[], &staged),
        output("docs", &["py"], &[]),
    ]);
    assert_eq!(made[0], ("lib".into(), vec!["lib".into(), "py".into()], vec![]));
    assert_eq!(made[1], ("docs".into(), vec!["docs".into()], vec!["lib".into()]));
}

#[test]
fn output_between_two_of_one_staging_joins_their_build() {
    let staged = ["staging/compile"];
    let made = keys(vec![output("a", &[], &staged), output("b", &["a"], &[]), output("c", &["b"], &staged)]);
    assert_eq!(made, [("a".into(), vec!["a".into(), "b".into(), "c".into()], vec![])]);
}

#[test]
fn output_may_be_named_to_be_built_with_another() {
    let made = keys(vec![output("a", &[], &[]), output("b", &[], &["a"])]);
    assert_eq!(made.len(), 1);
}

#[test]
fn exact_pin_picks_one_of_several_builds() {
    let kernels = |build: &str| PlannedOutput { build: build.into(), ..output("kernels", &[], &[]) };
    let solver = |build: &str, pin: &str| PlannedOutput {
        build: build.into(),
        variant: BTreeMap::from([("kernels".into(), format!("1 {pin}"))]),
        ..output("solver", &["kernels"], &[])
    };
    let made = keys(vec![kernels("k1"), kernels("k2"), solver("s1", "k1"), solver("s2", "k2")]);
    let needs = |key: &str| made.iter().find(|(k, _, _)| k == key).map(|(_, _, needs)| needs.join(","));
    assert_eq!(needs("solver@s1").as_deref(), Some("kernels@k1"));
    assert_eq!(needs("solver@s2").as_deref(), Some("kernels@k2"));
}

#[test]
fn without_a_pin_every_build_of_the_name_is_needed() {
    let kernels = |build: &str| PlannedOutput { build: build.into(), ..output("kernels", &[], &[]) };
    let made = keys(vec![output("solver", &["kernels"], &[]), kernels("k1"), kernels("k2")]);
    assert_eq!(made[2].2, ["kernels@k1", "kernels@k2"]);
}

#[test]
fn own_name_comes_from_a_channel() {
    assert_eq!(keys(vec![output("python", &["python"], &[])])[0].2, Vec::<String>::new());
}

#[test]
fn circle_is_refused_and_named() {
    let reason = refused(vec![output("a", &["b"], &[]), output("b", &["c"], &[]), output("c", &["a"], &[])]);
    assert_eq!(reason.code, "plan.cycle");
    assert_eq!(reason.message, "the outputs need each other in a circle: `a` needs `b` needs `c` needs `a`");
}

#[test]
fn what_makes_no_sense_is_refused_by_code() {
    assert_eq!(refused(vec![]).code, "plan.empty");
    assert_eq!(refused(vec![output("a", &[], &[]), output("a", &[], &[])]).code, "plan.duplicate-output");
    let unknown = refused(vec![output("a", &[], &["nowhere"])]);
    assert_eq!(unknown.code, "plan.unknown-output");
    assert!(unknown.message.contains("`nowhere`"), "{unknown}");
    let many = (0..=MAX_OUTPUTS).map(|at| output(&format!("o{at}"), &[], &[])).collect();
    assert_eq!(refused(many).code, "plan.too-many-outputs");
}

/// Outputs `o0…`; edges only from smaller to larger rank, listed in a shuffled order.
fn acyclic() -> impl Strategy<Value = Vec<PlannedOutput>> {
    (1usize..12)
        .prop_flat_map(|count| {
            let edges = prop::collection::vec((0..count, 0..count), 0..30);
            let staged = prop::collection::vec(prop::option::weighted(0.4, 0u8..3), count);
            let order = Just((0..count).collect::<Vec<_>>()).prop_shuffle();
            (edges, staged, order)
        })
        .prop_map(|(edges, staged, order)| {
            order
                .iter()
                .map(|rank| {
                    let mut made = output(&format!("o{rank}"), &[], &[]);
                    made.depends = edges
                        .iter()
                        .filter(|(a, b)| b == rank && a < b)
                        .map(|(a, _)| format!("o{a}"))
                        .collect();
                    made.together_with =
                        staged[*rank].iter().map(|group| format!("staging/{group}")).collect();
                    made
                })
                .collect()
        })
}

proptest! {
    #[test]
    fn components_cover_the_plan_once_and_stand_in_build_order(plan in acyclic()) {
        let made = expand(&RenderedPlan { outputs: plan.clone() }).unwrap();
        let mut ready = BTreeSet::new();
        let mut built: Vec<String> = Vec::new();
        for component in &made {
            prop_assert!(component.depends_on.is_subset(&ready), "{component:?}");
            for one in &component.outputs {
                prop_assert!(one.depends.iter().all(|name| built.contains(name)), "{one:?} before its needs");
                built.push(one.name.clone());
            }
            prop_assert!(ready.insert(component.key.clone()), "key `{}` stands twice", component.key);
        }
        prop_assert_eq!(built.len(), plan.len());
        // One staging never reaches into two components.
        for staging in ["staging/0", "staging/1", "staging/2"] {
            let with = |c: &&Component| c.outputs.iter().any(|o| o.together_with.contains(staging));
            prop_assert!(made.iter().filter(with).count() <= 1);
        }
    }

    #[test]
    fn a_circle_is_always_refused(plan in acyclic(), picks in prop::collection::vec(any::<prop::sample::Index>(), 2..5)) {
        let mut plan = plan;
        let mut ring: Vec<usize> = picks.iter().map(|pick| pick.index(plan.len())).collect();
        ring.sort_unstable();
        ring.dedup();
        prop_assume!(ring.len() > 1);
        for (step, at) in ring.iter().enumerate() {
            let next = plan[ring[(step + 1) % ring.len()]].name.clone();
            plan[*at].depends.insert(next);
        }
        prop_assert_eq!(expand(&RenderedPlan { outputs: plan }).unwrap_err().code, "plan.cycle");
    }
}
