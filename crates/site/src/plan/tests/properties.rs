//! What holds for any desired set, journal and provider.

use super::*;

fn phase() -> impl Strategy<Value = MachinePhase> {
    prop_oneof![
        Just(MachinePhase::Claimed),
        Just(MachinePhase::Up),
        Just(MachinePhase::GaveUp { reason: why() }),
        Just(MachinePhase::Refused { reason: why() }),
    ]
}

fn lease_phase() -> impl Strategy<Value = LeasePhase> {
    prop_oneof![
        Just(LeasePhase::Held),
        Just(LeasePhase::Resetting),
        Just(LeasePhase::Verifying),
        Just(LeasePhase::Released { sick: Vec::new() }),
    ]
}

fn state() -> impl Strategy<Value = ObservedState> {
    prop_oneof![
        Just(ObservedState::Creating),
        Just(ObservedState::Running),
        Just(exited()),
        Just(ObservedState::Failed { reason: why() }),
    ]
}

fn world() -> impl Strategy<Value = World> {
    let few = || 0u8..5;
    let devices =
        || prop::collection::btree_set(0u8..3, 0..3).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    (
        prop::collection::btree_map(few(), (0u8..2, devices(), any::<bool>()), 0..4),
        prop::collection::btree_map(few(), devices(), 0..3),
        prop::collection::btree_map(few(), (0u8..2, phase()), 0..4),
        prop::collection::btree_map(few(), (devices(), lease_phase()), 0..3),
        prop::collection::btree_map((few(), 0u8..2), state(), 0..4),
        prop::collection::btree_set(few(), 0..2),
        (any::<[bool; 8]>(), prop::collection::btree_set(0u8..2, 0..2)),
    )
        .prop_map(|(runners, ending, machines, leases, seen, waiting, (odd, unknown))| {
            let mut world = World::new(
                runners
                    .iter()
                    .map(|(n, (of, devices, lies))| {
                        let mut wanted = wanted(*n, *of, devices);
                        // Now and then the farm is wrong.
                        if *lies && odd[0] {
                            wanted.lease = None;
                        }
                        wanted
                    })
                    .collect(),
            );
            for (n, devices) in &ending {
                world = world.releasing(*n, devices);
            }
            for (n, (of, phase)) in machines {
                world = world.machine(n, of, phase);
            }
            for (n, (devices, phase)) in leases {
                world = world.lease(n, &devices, phase);
            }
            for ((n, of), state) in seen {
                world = world.seen(n, of, state);
            }
            if odd[1] {
                world.waiting.runners = waiting.iter().map(|n| runner(*n)).collect();
                world.waiting.leases = waiting.iter().map(|n| lease(*n)).collect();
            }
            if odd[2] {
                world.observed.unknown = unknown.into_iter().map(provider).collect();
            }
            world
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_plan_breaks_an_invariant(world in world()) {
        world.check(&world.plan())?;
    }

    #[test]
    fn a_site_settles_whatever_it_starts_from_and_however_often_it_is_cut_short(
        mut world in world(), cuts in prop::collection::vec(any::<u8>(), 0..6),
    ) {
        // Crashes: only some of the planned actions come to pass.
        for cut in cuts {
            let actions = world.plan();
            world.check(&actions)?;
            for (at, action) in actions.iter().enumerate() {
                if cut >> (at % 8) & 1 == 1 {
                    world.apply(action);
                }
            }
        }
        world.waiting = Waiting::default();
        world.observed.unknown.clear();
        let mut rounds = 0;
        loop {
            let actions = world.plan();
            world.check(&actions)?;
            if actions.is_empty() {
                break;
            }
            actions.iter().for_each(|action| world.apply(action));
            rounds += 1;
            prop_assert!(rounds < 12, "it does not settle: {world:?}");
        }
        let wants = |runner: &RunnerId| world.desired.runners.iter().find(|desired| desired.runner == *runner);
        for (runner, provider) in world.observed.machines.keys() {
            prop_assert!(wants(runner).is_some_and(|desired| desired.provider == *provider), "an unwanted machine stays");
        }
        for record in world.ledger.leases.values() {
            let free = matches!(record.phase, LeasePhase::Released { .. });
            prop_assert!(free || wants(&record.runner).is_some(), "a lease stays without a machine");
        }
        for desired in &world.desired.runners {
            let there = world.observed.any(desired.runner);
            let known = world.ledger.machines.contains_key(&desired.runner);
            let blocked = !desired.devices.is_empty();
            prop_assert!(there || known || blocked, "a wanted machine is not made");
        }
    }
}
