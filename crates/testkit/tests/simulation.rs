//! The deterministic farm: no invariant breaks under faults, and every planted bug is caught.

use forgeyard_testkit::sim::{Bug, Settings, run};

#[test]
fn no_invariant_breaks_in_ten_thousand_seeded_steps() {
    let (mut published, mut handed) = (0, 0);
    for seed in 0..5 {
        let report = run(Settings { seed, steps: 2_000, bug: None });
        assert_eq!(report.broken, None, "seed {seed}: {report:?}");
        assert!(report.attempts > 10 && report.crashes > 0, "seed {seed} did too little: {report:?}");
        published += report.published;
        handed += report.handed;
    }
    assert!(published > 0, "no run published anything, so promotion was not exercised");
    assert!(handed > 10, "only {handed} machines that waited were given work");
    println!("{published} packages published, {handed} machines that waited were given work");
}

#[test]
fn every_planted_bug_is_caught() {
    for bug in Bug::ALL {
        let caught = (0..40).find_map(|seed| run(Settings { seed, steps: 4_000, bug: Some(bug) }).broken);
        assert!(caught.is_some(), "{bug:?} was not caught by any of 40 seeds");
        println!(
            "{bug:?}: {}",
            caught.map(|(step, text)| format!("step {step}: {text}")).unwrap_or_default()
        );
    }
}

#[test]
fn a_seed_names_one_run() {
    let settings = Settings { seed: 7, steps: 1_000, bug: None };
    assert_eq!(format!("{:?}", run(settings)), format!("{:?}", run(settings)));
}
