//! The tour, as a person runs it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails")]

mod chain;

use chain::{Place, possible, rows::Rows, traces};

#[test]
fn the_tour_holds_and_leaves_nothing_behind() {
    if !possible() {
        return;
    }
    let place = Place::new();
    let ended = place.tour(&[]).end(&place);
    let said = place.said();
    println!("{said}");
    assert!(ended.success(), "{ended}");
    assert!(said.contains("stage ") && said.contains("push: test/fy-bandwidth/gpu"), "the table is missing");
    assert!(said.contains("fy-bandwidth-0.1.0") && !said.contains("BROKEN"), "a claim is broken");
    let digests: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("fy-bandwidth-0.1.0"))
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    assert!(digests.len() >= 6, "too few stages: {digests:?}");
    assert!(digests.iter().all(|digest| digest.len() == 64 && *digest == digests[0]), "{digests:?}");

    let rows = Rows::read(&place.data);
    assert_eq!(rows.broken(), Vec::<String>::new());
    assert!(rows.attempts.iter().all(|attempt| attempt.fence == 1), "undisturbed, nothing is tried twice");
    assert_eq!(traces::of(&place.data, &rows.machines()), Vec::<String>::new());
}

#[test]
fn two_tours_at_once_do_not_disturb_each_other() {
    if !possible() {
        return;
    }
    let places = [Place::new(), Place::new()];
    let lives = places.each_ref().map(|place| place.tour(&[]));
    for (place, life) in places.iter().zip(lives) {
        let ended = life.end(place);
        assert!(ended.success(), "{ended}\n{}", place.said());
    }
    for place in &places {
        let rows = Rows::read(&place.data);
        assert_eq!(rows.broken(), Vec::<String>::new());
        assert!(rows.attempts.iter().all(|attempt| attempt.fence == 1), "an attempt was tried twice");
        assert_eq!(traces::of(&place.data, &rows.machines()), Vec::<String>::new());
    }
}

#[test]
fn a_second_tour_in_a_used_folder_is_refused_and_told_how_to_go_on() {
    let place = Place::new();
    std::fs::create_dir_all(&place.data).unwrap();
    std::fs::write(place.data.join("farm.db"), "").unwrap();
    let data = place.data.display().to_string();
    let ended = place.start(&["tour", "--data", &data]).end(&place);
    assert_eq!(ended.code(), Some(1));
    assert!(place.said().contains("--resume"), "{}", place.said());
}
