use super::*;

fn open(dir: &Path, cap: u64) -> Log {
    Log::open(dir, Masker::new(["hunter2!"]), cap).unwrap()
}

fn text(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("log")).unwrap()
}

fn records(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("T stdout F {line}\n")).collect()
}

#[test]
fn log_goes_on_where_it_was_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("spool");
    std::fs::write(&spool, records(&["one"]) + "T stdout P hun\n").unwrap();
    let mut log = open(dir.path(), 1 << 20);
    log.begin(0, "== build ==").unwrap();
    assert!(log.take(&spool).unwrap());
    drop(log);
    // Bytes that were written and not counted, as a crash leaves them.
    std::fs::write(dir.path().join("log"), text(dir.path()) + "garbage").unwrap();
    std::fs::write(&spool, records(&["one"]) + "T stdout P hun\n" + &records(&["ter2! two"])).unwrap();
    let mut log = open(dir.path(), 1 << 20);
    log.begin(0, "== build ==").unwrap();
    assert!(log.take(&spool).unwrap());
    assert!(!log.take(&spool).unwrap());
    log.close().unwrap();
    assert_eq!(text(dir.path()), "== build ==\none\n*** two\n");
    assert_eq!(*log.follow().borrow(), text(dir.path()).len() as u64);
}

#[test]
fn capped_log_keeps_beginning_and_end_and_counts_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("spool");
    let lines: Vec<String> = (0..2000).map(|n| format!("line {n:04}")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    std::fs::write(&spool, records(&lines)).unwrap();
    let mut log = open(dir.path(), 4096);
    log.begin(0, "== build ==").unwrap();
    while log.take(&spool).unwrap() {}
    let written = 12 + 2000 * 10;
    log.close().unwrap();
    let shown = text(dir.path());
    assert!(shown.len() <= 4096, "{}", shown.len());
    assert!(shown.starts_with("== build ==\nline 0000\n"));
    assert!(shown.ends_with("line 1999\n"));
    let marker = shown.lines().find(|line| line.starts_with("[forgeyard]")).unwrap();
    let kept = shown.len() - marker.len() - 1;
    let dropped = log.dropped();
    assert!(marker.contains(&format!("{dropped} bytes")));
    // The marker may have needed a line end of its own.
    assert!((written as u64 - kept as u64).abs_diff(dropped) <= 1);
}

#[test]
fn a_log_that_just_fits_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("spool");
    let line = "x".repeat(3500);
    std::fs::write(&spool, records(&[&line])).unwrap();
    let mut log = open(dir.path(), 4096);
    log.begin(0, "b").unwrap();
    while log.take(&spool).unwrap() {}
    log.close().unwrap();
    assert_eq!(text(dir.path()), format!("b\n{line}\n"));
    assert_eq!(log.dropped(), 0);
}

#[test]
fn banner_begins_on_a_line_of_its_own_and_is_masked() {
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("spool");
    std::fs::write(&spool, "T stdout P no end\n").unwrap();
    let mut log = open(dir.path(), 1 << 20);
    log.begin(0, "a").unwrap();
    log.take(&spool).unwrap();
    log.begin(1, "b hunter2!").unwrap();
    assert_eq!(text(dir.path()), "a\nno end\nb ***\n");
}

#[test]
fn blocks_of_a_spool_that_was_read_are_given_back() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("spool");
    std::fs::write(&spool, records(&[&"x".repeat(1000)]).repeat(9000)).unwrap();
    let before = std::fs::metadata(&spool).unwrap();
    let mut log = open(dir.path(), 1 << 16);
    log.begin(0, "b").unwrap();
    while log.take(&spool).unwrap() {}
    let after = std::fs::metadata(&spool).unwrap();
    assert_eq!(after.len(), before.len());
    assert!(after.blocks() < before.blocks() / 2, "{} of {}", after.blocks(), before.blocks());
}
