//! What a pool should have at a moment: its own numbers, or those of the schedule entry that is in force.
//!
//! An entry begins on each of its days at `from` and ends at `to`, both on the clock of its zone, and covers what lies
//! between, the end excluded. A time that a clock skips in spring is the moment at which it jumps forward by as much; a time
//! that it shows twice in autumn is the first of the two. The same time of the same day is therefore always the same moment,
//! so an entry that ends at eight and one that begins at eight leave no gap and never hold both.
//!
//! Zones are those that are built into the program.

use forgeyard_model::Timestamp;
use forgeyard_model::pool::{ClockTime, Day, Schedule, Terms};
use forgeyard_model::resources::Pool;
use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use std::sync::OnceLock;

/// A zone that is built in.
pub(crate) fn zone(name: &str) -> Option<TimeZone> {
    static ZONES: OnceLock<TimeZoneDatabase> = OnceLock::new();
    ZONES.get_or_init(TimeZoneDatabase::bundled).get(name).ok()
}

fn moment(zone: &TimeZone, date: Date, time: ClockTime) -> Option<Timestamp> {
    let (date, minutes) = match time.minutes() {
        1440 => (date.tomorrow().ok()?, 0),
        minutes => (date, minutes),
    };
    let (hour, minute) = (i8::try_from(minutes / 60).ok()?, i8::try_from(minutes % 60).ok()?);
    let at = zone.to_timestamp(date.at(hour, minute, 0, 0)).ok()?;
    Some(Timestamp::from_micros(at.as_microsecond()))
}

fn day(date: Date) -> Day {
    let number = usize::try_from(date.weekday().to_monday_zero_offset()).unwrap_or(0);
    Day::ALL[number % Day::ALL.len()]
}

/// The times that an entry covers, of the days from `before` days before to `after` days after a moment.
fn windows(entry: &Schedule, at: Timestamp, before: u32, after: u32) -> Vec<(Timestamp, Timestamp)> {
    let Some(zone) = zone(&entry.zone) else { return Vec::new() };
    let Ok(now) = jiff::Timestamp::from_microsecond(at.as_micros()) else { return Vec::new() };
    let mut date = zone.to_datetime(now).date();
    for _ in 0..before {
        date = date.yesterday().unwrap_or(date);
    }
    let mut found = Vec::new();
    for _ in 0..=before + after {
        if entry.days.contains(&day(date)) {
            let last = if entry.to > entry.from { Some(date) } else { date.tomorrow().ok() };
            let from = moment(&zone, date, entry.from);
            let to = last.and_then(|last| moment(&zone, last, entry.to));
            found.extend(from.zip(to));
        }
        let Ok(next) = date.tomorrow() else { break };
        date = next;
    }
    found
}

fn covers(entry: &Schedule, at: Timestamp) -> bool {
    windows(entry, at, 2, 1).into_iter().any(|(from, to)| from <= at && at < to)
}

/// What the pool should have at this moment.
pub fn terms(pool: &Pool, at: Timestamp) -> Terms {
    let found = pool.schedule.iter().enumerate().find(|(_, entry)| covers(entry, at));
    let entry = found.map(|(_, entry)| entry);
    Terms {
        min: entry.and_then(|entry| entry.min).unwrap_or(pool.min),
        warm: entry.and_then(|entry| entry.warm).unwrap_or(pool.warm),
        max: entry.and_then(|entry| entry.max).unwrap_or(pool.max),
        entry: found.and_then(|(place, _)| u32::try_from(place).ok()),
    }
}

/// When the next entry comes into force or goes out of it, and what the pool should have then; `None` when nothing
/// changes within nine days, which is more than a week.
pub fn next_change(pool: &Pool, at: Timestamp) -> Option<(Timestamp, Terms)> {
    let mut edges: Vec<Timestamp> = pool
        .schedule
        .iter()
        .flat_map(|entry| windows(entry, at, 2, 9))
        .flat_map(|(from, to)| [from, to])
        .filter(|edge| *edge > at)
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let now = terms(pool, at);
    edges.into_iter().map(|edge| (edge, terms(pool, edge))).find(|(_, then)| *then != now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn at(text: &str) -> Timestamp {
        let at: jiff::Timestamp = text.parse().unwrap();
        Timestamp::from_micros(at.as_microsecond())
    }

    fn entry(days: &[Day], from: &str, to: &str, zone: &str, warm: u32) -> Schedule {
        Schedule {
            days: days.iter().copied().collect(),
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            zone: zone.to_owned(),
            min: None,
            warm: Some(warm),
            max: None,
        }
    }

    fn pool(schedule: Vec<Schedule>) -> Pool {
        let text = |text: &str| text.to_owned();
        let mut pool = Pool::new(
            text("p").parse().unwrap(),
            text("sandbox").parse().unwrap(),
            BTreeSet::new(),
            text("host").parse().unwrap(),
            forgeyard_model::resources::Isolation::Vm,
            9,
        );
        pool.schedule = schedule;
        pool
    }

    /// The request of IREE 9855: eight to sixteen machines by day, one at midnight in California.
    #[test]
    fn a_pool_is_down_to_one_at_midnight_in_california_in_winter_and_in_summer() {
        let mut night = entry(&Day::ALL, "22:00", "06:00", "America/Los_Angeles", 0);
        (night.min, night.max) = (Some(1), Some(1));
        let mut pool = pool(vec![night]);
        (pool.min, pool.max) = (8, 16);
        for (midnight, noon) in [
            ("2026-01-15T08:00:00Z", "2026-01-15T20:00:00Z"),
            ("2026-07-15T07:00:00Z", "2026-07-15T19:00:00Z"),
        ] {
            let night = terms(&pool, at(midnight));
            assert_eq!((night.min, night.max, night.entry), (1, 1, Some(0)));
            let day = terms(&pool, at(noon));
            assert_eq!((day.min, day.max, day.entry), (8, 16, None));
        }
        let (when, then) = next_change(&pool, at("2026-01-15T08:00:00Z")).unwrap();
        assert_eq!((when, then.max), (at("2026-01-15T14:00:00Z"), 16));
    }

    #[test]
    fn a_day_is_that_on_which_an_entry_begins() {
        let pool = pool(vec![entry(&[Day::Fri], "22:00", "02:00", "Europe/Berlin", 4)]);
        // Saturday, half past one in the morning, and an hour later.
        assert_eq!(terms(&pool, at("2026-01-17T00:30:00Z")).warm, 4);
        assert_eq!(terms(&pool, at("2026-01-17T01:30:00Z")).warm, 0);
        // Friday, half past one in the morning.
        assert_eq!(terms(&pool, at("2026-01-16T00:30:00Z")).warm, 0);
    }

    #[test]
    fn an_entry_that_begins_in_the_hour_that_spring_skips_begins_when_the_clock_jumps() {
        // 29 March 2026: 02:00 becomes 03:00 in Berlin, at 01:00 UTC; 02:30 is read as 03:30.
        let pool = pool(vec![entry(&Day::ALL, "02:30", "05:00", "Europe/Berlin", 1)]);
        assert_eq!(terms(&pool, at("2026-03-29T01:29:59Z")).warm, 0);
        assert_eq!(terms(&pool, at("2026-03-29T01:30:00Z")).warm, 1);
        // 25 October 2026: 02:30 comes twice; the first one counts, and it holds through the second.
        assert_eq!(terms(&pool, at("2026-10-25T00:29:59Z")).warm, 0);
        assert_eq!(terms(&pool, at("2026-10-25T00:30:00Z")).warm, 1);
        assert_eq!(terms(&pool, at("2026-10-25T01:30:00Z")).warm, 1);
        assert_eq!(terms(&pool, at("2026-10-25T04:00:00Z")).warm, 0);
    }

    #[test]
    fn the_first_entry_that_covers_a_moment_is_in_force() {
        let zone = "UTC";
        let pool = pool(vec![
            entry(&[Day::Sat], "00:00", "24:00", zone, 1),
            entry(&Day::ALL, "00:00", "24:00", zone, 2),
        ]);
        assert_eq!(terms(&pool, at("2026-01-17T12:00:00Z")).warm, 1);
        assert_eq!(terms(&pool, at("2026-01-18T12:00:00Z")).warm, 2);
        assert_eq!(next_change(&pool, at("2026-01-18T12:00:00Z")).unwrap().0, at("2026-01-24T00:00:00Z"));
    }

    #[test]
    fn what_never_changes_has_no_next_change() {
        assert_eq!(next_change(&pool(Vec::new()), at("2026-01-18T12:00:00Z")), None);
        let always = entry(&Day::ALL, "00:00", "24:00", "UTC", 2);
        assert_eq!(next_change(&pool(vec![always]), at("2026-01-18T12:00:00Z")), None);
    }

    const ZONES: [&str; 6] = [
        "Europe/Berlin",
        "America/Los_Angeles",
        "Australia/Lord_Howe",
        "Asia/Kolkata",
        "Africa/Casablanca",
        "UTC",
    ];

    proptest! {
        /// Two entries that share the day between them, at times that clocks skip or repeat: never both, never neither.
        #[test]
        fn entries_that_meet_leave_no_gap_and_never_both_hold(
            from in 0u16..1440, to in 0u16..1440, zone in 0usize..6, minute in 0i64..(3 * 366 * 1440)
        ) {
            prop_assume!(from != to);
            let time = |minutes: u16| format!("{:02}:{:02}", minutes / 60, minutes % 60);
            let one = entry(&Day::ALL, &time(from), &time(to), ZONES[zone], 1);
            let other = entry(&Day::ALL, &time(to), &time(from), ZONES[zone], 2);
            let moment = Timestamp::from_micros(1_767_225_600_000_000 + minute * 60_000_000);
            prop_assert!(covers(&one, moment) != covers(&other, moment), "at {}", moment);
        }

        /// Until the next change nothing changes, and then something does.
        #[test]
        fn nothing_changes_before_the_next_change_and_something_does_then(
            from in 0u16..1440, to in 0u16..1440, zone in 0usize..6, days in 1u8..127,
            minute in 0i64..(3 * 366 * 1440), part in 0.0f64..1.0
        ) {
            let time = |minutes: u16| format!("{:02}:{:02}", minutes / 60, minutes % 60);
            let days: Vec<Day> = Day::ALL.into_iter().enumerate().filter(|(n, _)| days & (1 << n) != 0).map(|(_, d)| d).collect();
            let pool = pool(vec![entry(&days, &time(from), &time(to), ZONES[zone], 1)]);
            let now = Timestamp::from_micros(1_767_225_600_000_000 + minute * 60_000_000);
            if let Some((when, then)) = next_change(&pool, now) {
                prop_assert!(when > now && when.since(now).as_secs() < 9 * 86_400);
                prop_assert_ne!(then, terms(&pool, now));
                prop_assert_eq!(then, terms(&pool, when));
                let between = now.plus(when.since(now).mul_f64(part * 0.999_999));
                prop_assert_eq!(terms(&pool, between), terms(&pool, now));
                let last = Timestamp::from_micros(when.as_micros() - 1);
                prop_assert_eq!(terms(&pool, last), terms(&pool, now));
            } else {
                // Only a schedule that covers the whole week never changes.
                prop_assert!(from == to && days.len() == 7);
            }
        }
    }
}
