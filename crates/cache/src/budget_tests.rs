use super::*;
use proptest::prelude::*;

const BUDGET: Budget = Budget { hit_percent: 60, of_at_least: 200, within_minutes: 60 };

/// A window in which a filled scope is asked for what it does not have.
fn cold() -> Window {
    let tally = Tally { hits: 20, misses: 380, entries: 1000, ..Tally::default() };
    Window { tally, minutes: 60, entries_then: 1000, most_entries: 1000 }
}

fn with(change: impl FnOnce(&mut Window)) -> Window {
    let mut window = cold();
    change(&mut window);
    window
}

fn verdict(window: Window) -> Verdict {
    judge(&BUDGET, &window, &Around::default())
}

#[test]
fn budget_is_met_from_its_percentage_on_and_says_nothing_of_few_reads() {
    let rate = |hits, misses| verdict(with(|w| (w.tally.hits, w.tally.misses) = (hits, misses)));
    assert_eq!(rate(120, 80), Verdict::Met);
    assert_ne!(rate(119, 81), Verdict::Met);
    assert_eq!(rate(0, 199), Verdict::Undecided);
}

#[test]
fn client_that_does_not_come_is_named_once_the_window_was_seen() {
    let nobody = |minutes| verdict(with(|w| (w.tally.hits, w.tally.misses, w.minutes) = (0, 0, minutes)));
    assert_eq!(nobody(59), Verdict::Undecided);
    assert_eq!(nobody(60), Verdict::Cold(Cause::NoClient));
}

#[test]
fn denied_writes_are_named() {
    assert_eq!(verdict(with(|w| w.tally.denied = 380)), Verdict::Cold(Cause::Denied));
    // a stranger beside a job that writes is not the cause
    let both = with(|w| (w.tally.denied, w.tally.writes) = (5, 380));
    assert_eq!(verdict(both), Verdict::Cold(Cause::KeyChurn));
}

#[test]
fn scope_that_nobody_writes_is_named() {
    let empty = with(|w| (w.tally.entries, w.entries_then, w.most_entries) = (0, 0, 0));
    assert_eq!(verdict(empty), Verdict::Cold(Cause::NeverWritten));
    assert_eq!(verdict(cold()), Verdict::Cold(Cause::NotWritten));
}

#[test]
fn keys_that_change_are_told_from_a_first_build() {
    let churn = with(|w| (w.tally.writes, w.tally.entries, w.most_entries) = (380, 1380, 1380));
    assert_eq!(verdict(churn), Verdict::Cold(Cause::KeyChurn));
    let first = Window { entries_then: 0, ..churn };
    assert_eq!(verdict(first), Verdict::Undecided);
    // a pull request is to hit its parent from the first build on
    let parents = Around { parents: true, ..Around::default() };
    assert_eq!(judge(&BUDGET, &first, &parents), Verdict::Cold(Cause::KeyChurn));
}

#[test]
fn entries_that_went_are_named() {
    let gone = with(|w| (w.tally.writes, w.tally.entries) = (380, 700));
    assert_eq!(verdict(gone), Verdict::Cold(Cause::Evicted));
    let all_gone = with(|w| w.tally.entries = 0);
    assert_eq!(verdict(all_gone), Verdict::Cold(Cause::Evicted), "and not: never written");
    let churn = with(|w| w.tally.writes = 380);
    let full =
        |minutes| judge(&BUDGET, &churn, &Around { full_tail_minutes: Some(minutes), ..Around::default() });
    assert_eq!(full(30), Verdict::Cold(Cause::Evicted), "what was used half an hour ago goes already");
    assert_eq!(full(600), Verdict::Cold(Cause::KeyChurn));
}

#[test]
fn failures_and_refused_entries_are_named() {
    assert_eq!(verdict(with(|w| w.tally.failures = 40)), Verdict::Cold(Cause::Failing));
    assert_eq!(verdict(with(|w| w.tally.malformed = 40)), Verdict::Cold(Cause::Malformed));
    assert_eq!(verdict(with(|w| w.tally.writes = 5)), Verdict::Cold(Cause::Unclear));
}

#[test]
fn report_says_what_was_seen_and_what_to_do() {
    let text = report("p/main", &BUDGET, &with(|w| w.tally.denied = 380), &Around::default()).text;
    for part in
        ["p/main: 5 % of 400 reads", "last 60 minutes", "60 % of at least 200", "380 denied", "may only read"]
    {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    let early = report("p/main", &BUDGET, &with(|w| w.minutes = 3), &Around::default()).text;
    assert!(early.contains("in the last 3 of 60 minutes"), "{early}");
}

#[test]
fn window_forgets_what_is_older() {
    let mut history = History::default();
    let at = |minute: i64| Timestamp::from_micros(minute * 60_000_000);
    let tally = |hits, entries| Tally { hits, entries, ..Tally::default() };
    assert_eq!(history.window("p", at(0), tally(0, 0)), None);
    history.note("p", &BUDGET, at(0), tally(7, 3));
    let window = history.window("p", at(1), tally(9, 4)).unwrap();
    assert_eq!(
        (window.tally.hits, window.minutes, window.entries_then),
        (9, 1, 3),
        "the first minute counts"
    );
    for minute in 1..=200 {
        history.note("p", &BUDGET, at(minute), tally(10 * minute as u64, if minute == 150 { 99 } else { 5 }));
    }
    let window = history.window("p", at(200), tally(2000, 5)).unwrap();
    assert_eq!((window.tally.hits, window.minutes, window.most_entries), (600, 60, 99));
    assert!(history.samples["p"].len() <= SAMPLES as usize + 2);
    history.retain(|scope| scope != "p");
    assert_eq!(history.window("p", at(200), tally(0, 0)), None);
}

proptest! {
    #[test]
    fn any_figures_get_a_verdict(
        figures in prop::array::uniform8(0u64..u64::MAX / 4), minutes: u32, then: u64, most: u64, parents: bool, tail: Option<u32>,
    ) {
        let [hits, misses, writes, repeats, denied, malformed, failures, entries] = figures;
        let tally = Tally { hits, misses, writes, repeats, denied, malformed, failures, entries };
        let window = Window { tally, minutes, entries_then: then, most_entries: most };
        let around = Around { parents, full_tail_minutes: tail };
        let report = report("p", &BUDGET, &window, &around);
        prop_assert_eq!(report.verdict == Verdict::Met, hits + misses >= 200
            && u128::from(hits) * 100 >= u128::from(hits + misses) * 60);
    }
}
