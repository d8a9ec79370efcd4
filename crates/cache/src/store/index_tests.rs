use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Few shards and homes, so that words collide, and some have the same print.
fn hash(key: u128) -> u128 {
    (key % 3) | (key / 3 % 7) << (64 + 28) | (key / 21) << 70
}

proptest! {
    #[test]
    fn table_does_what_a_map_does(steps in prop::collection::vec((0u8..4, 0u128..60), 0..400)) {
        let table: Table<Slot> = Table::default();
        let mut map: BTreeMap<u128, Slot> = BTreeMap::new();
        for (step, (what, key)) in steps.into_iter().enumerate() {
            let slot = Slot::new(step as u32, 64 * (1 + key as u64), 64, 1, 1);
            let before = map.get(&key).copied();
            match (what, before) {
                (0, None) => { table.add(hash(key), slot); map.insert(key, slot); }
                (0 | 1, Some(before)) => { prop_assert!(table.replace(hash(key), before, slot)); map.insert(key, slot); }
                (2, Some(before)) => { prop_assert!(table.remove(hash(key), before).is_some()); map.remove(&key); }
                (_, before) => {
                    let found = table.find(hash(key)).filter(|found| found.at() == 64 * (1 + key as u64)).last();
                    prop_assert_eq!(found.map(|found| (found.segment(), found.at())), before.map(|slot| (slot.segment(), slot.at())));
                }
            }
            prop_assert_eq!(table.len(), map.len());
        }
        let mut all = 0;
        let mut wrong = 0;
        table.each(|stand_in, slot| {
            all += 1;
            wrong += usize::from(!table.find(stand_in).any(|found| found == slot));
        });
        prop_assert_eq!((all, wrong), (map.len(), 0));
    }

    #[test]
    fn slot_keeps_its_fields(
        segment in 0..=LAST_SEGMENT, at in 0u64..1 << 22, len in 0u64..1 << 15, minute in 0..=LAST_MINUTE, scope in 0..=LAST_SCOPE,
        print in 0u64..1 << 62, carries: bool,
    ) {
        let slot = Slot::new(segment, at * 64, len * 64, minute, scope).carrying(carries).with_print(print);
        let fields = (slot.segment(), slot.at(), slot.len(), slot.minute(), slot.scope(), slot.print());
        prop_assert_eq!(fields, (segment, at * 64, len * 64, minute, scope, print));
        prop_assert_eq!((slot.carries(), slot.carrying(!carries).print()), (carries, print));
        prop_assert_eq!(slot.moved(3, 64).carrying(false).with_print(1), Slot::new(3, 64, len * 64, minute, scope).with_print(1));
        prop_assert_eq!(slot.used(7).used(minute), slot);
        let mut bytes = Vec::new();
        slot.write(&mut bytes);
        prop_assert_eq!(Slot::read(&bytes), slot);
        let spot = Spot::new(segment, at * 64).with_print(print >> 44);
        prop_assert_eq!((spot.segment(), spot.at(), spot.print(), spot.linked()), (segment, at * 64, print >> 44, false));
        prop_assert!(spot.through_a_link().linked() && spot.through_a_link().same_place(spot));
        prop_assert!(!spot.through_a_link().moved(1, 64).used() && spot.through_a_link().moved(1, 64).linked());
    }
}

#[test]
fn only_what_carries_its_content_is_promised_without_a_look_at_its_record() {
    let table: Table<Slot> = Table::default();
    let (name, now) = (u128::MAX / 3, 7);
    let slot = Slot::new(7, 640, 128, 5, 1);
    table.add(name, slot);
    assert!(!table.promise(name, now + 120, now), "it may be a link");
    table.carries(name, slot);
    assert!(table.promise(name, now + 120, now) && table.promise(name, now + 60, now));
    let leased = table.find(name).next().unwrap();
    assert_eq!((minutes_ahead(leased.minute(), now), leased.at()), (120, 640), "the longer lease holds");
    for bit in [10, 63, 126, 127] {
        // ten bits choose the shard and 62 are the print
        let promised = table.promise(name ^ 1 << bit, now, now);
        assert_eq!(promised, bit == 10 || bit == 63 || bit > 125, "bit {bit}");
    }
}

#[test]
fn minutes_wrap() {
    assert_eq!(minutes_since(5, 9), 4);
    assert_eq!(minutes_since(LAST_MINUTE, 1), 2);
    assert_eq!(minutes_since(9, 5), 0, "a clock that was set back");
}

/// The index at its emptiest right after a shard has grown, which is when an entry costs most.
#[test]
fn an_entry_costs_at_most_40_bytes_of_memory() {
    let (names, contents): (Table<Slot>, Table<Spot>) = Default::default();
    let mut worst = 0;
    for number in 0..600_000u64 {
        let hash = crate::name::NameHash::of("a", crate::name::Kind::Keyed, &number.to_string()).0;
        names.add(hash, Slot::new(1, 64, 64, 1, 1));
        contents.add(hash.rotate_left(64), Spot::new(1, 64));
        if number > 200_000 && number % 10_000 == 0 {
            worst = worst.max((names.memory() + contents.memory()) as u64 * 10 / number);
        }
    }
    assert!(worst <= 400, "{} bytes", worst as f64 / 10.0);
}
