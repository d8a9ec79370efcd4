use super::*;
use proptest::prelude::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_micros(second * 1_000_000)
}

fn call(urgency: Urgency) -> Spending {
    Spending { installation: Some(7), bucket: Bucket::Core, route: "runs", cost: Cost::Read, urgency }
}

fn mint() -> Spending {
    Spending {
        installation: Some(7),
        bucket: Bucket::RunnerRegistration,
        route: "jit",
        cost: Cost::Write,
        urgency: Urgency::Now,
    }
}

fn left(remaining: u32, limit: u32, reset: i64) -> Heard {
    Heard { limit: Some(limit), remaining: Some(remaining), reset: Some(at(reset)), ..Heard::default() }
}

fn wait(until: i64, limit: Limit) -> Advice {
    Advice::Wait { until: at(until), limit }
}

#[test]
fn background_work_slows_below_a_half_and_stops_below_a_tenth_while_jobs_go_on() {
    let table = [
        (5000, Advice::Go, Advice::Go),
        (2500, Advice::Go, Advice::Go),
        (2499, Advice::Go, Advice::Slow(3)),
        (500, Advice::Go, Advice::Slow(3)),
        (499, Advice::Go, wait(3600, Limit::Reserve(Bucket::Core))),
        (1, Advice::Go, wait(3600, Limit::Reserve(Bucket::Core))),
        (0, wait(3600, Limit::Hourly(Bucket::Core)), wait(3600, Limit::Hourly(Bucket::Core))),
    ];
    for (remaining, urgent, background) in table {
        let mut budget = Budget::new(Pace::GITHUB);
        budget.sent(at(10), &call(Urgency::Now));
        assert_eq!(budget.heard(at(10), &call(Urgency::Now), 200, &left(remaining, 5000, 3600)), None);
        assert_eq!(budget.ask(at(11), &call(Urgency::Now)), urgent, "{remaining}");
        assert_eq!(budget.ask(at(11), &call(Urgency::Background)), background, "{remaining}");
        assert_eq!(
            budget.ask(at(3600), &call(Urgency::Background)),
            Advice::Go,
            "{remaining}, after the reset"
        );
    }
}

#[test]
fn buckets_and_installations_have_limits_of_their_own() {
    let mut budget = Budget::new(Pace::GITHUB);
    let heard = Heard { bucket: Some(Bucket::Core), ..left(0, 5000, 3600) };
    budget.sent(at(0), &call(Urgency::Now));
    budget.heard(at(0), &call(Urgency::Now), 200, &heard);
    assert_eq!(budget.ask(at(1), &mint()), Advice::Go);
    let other = Spending { installation: Some(8), ..call(Urgency::Now) };
    assert_eq!(budget.ask(at(1), &other), Advice::Go);
    assert_eq!(budget.share(at(1), &call(Urgency::Now)), 0);
    assert_eq!(budget.share(at(1), &other), 1000);
}

#[test]
fn a_route_that_is_charged_to_another_bucket_is_counted_there() {
    let mut budget = Budget::new(Pace::GITHUB);
    budget.sent(at(0), &mint());
    budget.heard(at(0), &mint(), 201, &Heard { bucket: Some(Bucket::Core), ..left(0, 5000, 3600) });
    assert!(matches!(budget.ask(at(1), &mint()), Advice::Wait { .. }));
}

#[test]
fn refusals_say_how_long_to_wait() {
    let table = [
        // GitHub says how long.
        (
            403,
            Heard { retry_after: Some(Duration::from_secs(30)), ..Heard::default() },
            Some((Limit::Told, 130)),
        ),
        (
            429,
            Heard { retry_after: Some(Duration::from_secs(30)), ..Heard::default() },
            Some((Limit::Told, 130)),
        ),
        (
            503,
            Heard { retry_after: Some(Duration::from_secs(5)), ..Heard::default() },
            Some((Limit::Told, 105)),
        ),
        // The hourly limit.
        (429, left(0, 5000, 900), Some((Limit::Hourly(Bucket::Core), 900))),
        (
            403,
            Heard { speaks_of_limit: true, ..left(0, 5000, 900) },
            Some((Limit::Hourly(Bucket::Core), 900)),
        ),
        // A secondary limit without a time.
        (403, Heard { speaks_of_limit: true, ..left(4000, 5000, 900) }, Some((Limit::Told, 160))),
        (429, Heard::default(), Some((Limit::Told, 160))),
        // A refusal for another reason.
        (403, left(4000, 5000, 900), None),
        (403, left(0, 5000, 900), None),
        (404, left(4000, 5000, 900), None),
        (500, Heard::default(), None),
    ];
    for (status, heard, expected) in table {
        let mut budget = Budget::new(Pace::GITHUB);
        budget.sent(at(100), &call(Urgency::Now));
        let met = budget.heard(at(100), &call(Urgency::Now), status, &heard);
        assert_eq!(met, expected.map(|(limit, until)| (limit, at(until))), "{status} {heard:?}");
    }
}

#[test]
fn a_told_wait_stops_every_call_of_the_app_and_ends() {
    let mut budget = Budget::new(Pace::GITHUB);
    let heard = Heard { retry_after: Some(Duration::from_secs(30)), ..Heard::default() };
    budget.sent(at(0), &call(Urgency::Now));
    budget.heard(at(0), &call(Urgency::Now), 403, &heard);
    assert_eq!(budget.ask(at(29), &mint()), wait(30, Limit::Told));
    assert_eq!(budget.ask(at(30), &mint()), Advice::Go);
}

#[test]
fn secondary_refusals_in_a_row_double_the_wait_up_to_sixteen_minutes() {
    let mut budget = Budget::new(Pace::GITHUB);
    let heard = Heard { speaks_of_limit: true, ..Heard::default() };
    let mut now = at(0);
    let mut waits = Vec::new();
    for _ in 0..7 {
        budget.sent(now, &call(Urgency::Now));
        let (_, until) = budget.heard(now, &call(Urgency::Now), 403, &heard).unwrap();
        waits.push(until.since(now).as_secs());
        now = until;
    }
    assert_eq!(waits, [60, 120, 240, 480, 960, 960, 960]);
    budget.sent(now, &call(Urgency::Now));
    budget.heard(now, &call(Urgency::Now), 200, &Heard::default());
    budget.sent(now, &call(Urgency::Now));
    let (_, until) = budget.heard(now, &call(Urgency::Now), 403, &heard).unwrap();
    assert_eq!(until.since(now).as_secs(), 60, "a success forgets");
}

#[test]
fn minting_stays_below_the_secondary_limit_in_any_minute() {
    let mut budget = Budget::new(Pace::GITHUB);
    let mut now = at(0);
    let mut made = Vec::new();
    while now < at(600) {
        match budget.ask(now, &mint()) {
            Advice::Wait { until, limit } => {
                assert_eq!(limit, Limit::Pace);
                assert!(until > now);
                now = until;
            }
            _ => {
                budget.sent(now, &mint());
                budget.heard(now, &mint(), 201, &Heard::default());
                made.push(now);
                now = now.plus(Duration::from_millis(50));
            }
        }
    }
    for (index, start) in made.iter().enumerate() {
        let inside = made[index..].iter().take_while(|other| other.since(*start) < MINUTE).count();
        assert!(inside <= 162, "{inside} in a minute");
    }
    assert!(made.len() >= 1600, "{} in ten minutes: the limit is also used", made.len());
}

#[test]
fn created_things_are_limited_per_minute_and_per_hour() {
    let check = Spending { cost: Cost::Content, route: "checks", ..call(Urgency::Now) };
    let mut budget = Budget::new(Pace::GITHUB);
    let mut now = at(0);
    let mut made = 0;
    while now < at(3600) {
        match budget.ask(now, &check) {
            Advice::Wait { until, .. } => now = until,
            _ => {
                budget.sent(now, &check);
                budget.lost(&check);
                made += 1;
            }
        }
    }
    assert_eq!(made, 450);
}

#[test]
fn background_work_does_not_slow_down_while_the_hour_goes_faster_than_its_calls() {
    let mut budget = Budget::new(Pace::GITHUB);
    budget.sent(at(1800), &call(Urgency::Now));
    // Four tenths are left, and half an hour.
    budget.heard(at(1800), &call(Urgency::Now), 200, &left(2000, 5000, 3600));
    assert_eq!(budget.ask(at(1801), &call(Urgency::Background)), Advice::Slow(3));
    // And the same with twenty minutes.
    assert_eq!(budget.ask(at(2401), &call(Urgency::Background)), Advice::Go);
}

#[test]
fn deliveries_keep_the_minute_and_come_before_what_people_read() {
    let content = Spending { cost: Cost::Content, route: "checks", ..call(Urgency::Now) };
    let again = Spending { cost: Cost::Delivery, route: "redeliver", ..call(Urgency::Background) };
    let mut budget = Budget::new(Pace::GITHUB);
    let mut send = |budget: &mut Budget, what: &Spending, second| {
        let mut sent = 0;
        while budget.ask(at(second), what) == Advice::Go {
            budget.sent(at(second), what);
            budget.lost(what);
            sent += 1;
        }
        sent
    };
    assert_eq!(send(&mut budget, &content, 0), 72, "nobody waits for the minute");
    assert_eq!(send(&mut budget, &again, 10), 0, "both together stay below the limit");
    assert_eq!(send(&mut budget, &content, 60), 18, "while deliveries wait, a quarter is for others");
    assert_eq!(send(&mut budget, &again, 60), 54);
    assert_eq!(send(&mut budget, &content, 60 + 121), 72, "until none has waited for two minutes");
}

#[test]
fn calls_in_flight_count_and_late_answers_do_not_raise_what_is_left() {
    let mut budget = Budget::new(Pace::GITHUB);
    let urgent = call(Urgency::Now);
    budget.sent(at(0), &urgent);
    budget.heard(at(0), &urgent, 200, &left(2, 5000, 3600));
    budget.sent(at(1), &urgent);
    budget.sent(at(1), &urgent);
    assert_eq!(budget.ask(at(1), &urgent), wait(3600, Limit::Hourly(Bucket::Core)));
    budget.heard(at(2), &urgent, 200, &left(0, 5000, 3600));
    budget.heard(at(2), &urgent, 200, &left(1, 5000, 3600));
    assert_eq!(budget.ask(at(3), &urgent), wait(3600, Limit::Hourly(Bucket::Core)));
}

#[test]
fn an_unchanged_answer_costs_nothing_of_the_hour() {
    let mut budget = Budget::new(Pace::GITHUB);
    let urgent = call(Urgency::Now);
    for _ in 0..50 {
        budget.sent(at(0), &urgent);
        budget.heard(at(0), &urgent, 304, &left(10, 5000, 3600));
    }
    assert_eq!(budget.ask(at(1), &urgent), Advice::Go);
}

#[test]
fn a_server_without_limits_is_not_held_back() {
    let mut budget = Budget::new(Pace::NONE);
    for _ in 0..5000 {
        assert_eq!(budget.ask(at(0), &mint()), Advice::Go);
        budget.sent(at(0), &mint());
        budget.heard(at(0), &mint(), 201, &Heard::default());
    }
    assert!(budget.routes.is_empty());
}

#[test]
fn headers_are_read_in_any_case_and_nonsense_is_as_if_absent() {
    let read = Heard::read(
        [
            ("X-RateLimit-Limit", "5000"),
            ("x-ratelimit-remaining", "4999"),
            ("X-Ratelimit-Reset", "1700000000"),
            ("x-ratelimit-resource", "actions_runner_registration"),
            ("Retry-After", "60"),
        ]
        .into_iter(),
    );
    assert_eq!(
        read,
        Heard {
            limit: Some(5000),
            remaining: Some(4999),
            reset: Some(at(1_700_000_000)),
            bucket: Some(Bucket::RunnerRegistration),
            retry_after: Some(Duration::from_secs(60)),
            speaks_of_limit: false,
        }
    );
    let odd =
        [("x-ratelimit-limit", "-1"), ("x-ratelimit-reset", "9223372036854775807"), ("retry-after", "soon")];
    assert_eq!(Heard::read(odd.into_iter()), Heard::default());
}

proptest! {
    #[test]
    fn no_headers_make_us_wait_longer_than_two_hours(
        status in 200u16..600,
        values in proptest::collection::vec("[0-9]{0,20}", 4),
        text in ".{0,60}",
    ) {
        let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"];
        let pairs = names.iter().copied().zip(values.iter().map(String::as_str));
        let heard = Heard::read(pairs).with_text(text.as_bytes());
        let mut budget = Budget::new(Pace::GITHUB);
        let now = at(1_700_000_000);
        budget.sent(now, &call(Urgency::Now));
        if let Some((_, until)) = budget.heard(now, &call(Urgency::Now), status, &heard) {
            prop_assert!(until <= now.plus(LONGEST_WAIT));
        }
        if let Advice::Wait { until, .. } = budget.ask(now, &call(Urgency::Now)) {
            prop_assert!(until <= now.plus(LONGEST_WAIT));
        }
    }
}
