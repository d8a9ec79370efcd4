//! The storage is dead, hung, failing, slow, or breaks off: reads and writes here go on, and what comes back is right.

use super::*;

/// Nobody waits for long: a few reads of what lies beyond take their time, then none does.
fn bounded<T>(what: &str, most: Duration, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let done = work();
    assert!(begin.elapsed() < most, "{what} took {:?}", begin.elapsed());
    done
}

#[rstest::rstest]
fn storage_in_trouble_costs_misses_and_nothing_else(
    #[values(Fault::Dead, Fault::Hung, Fault::Failing)] fault: Fault,
) {
    let Some(s3) = S3::start() else { return };
    let proxy = Proxy::start(s3.address);
    let mut farm = Farm::new(tier_at(proxy.address, "a", &[]));
    for number in 0..20 {
        farm.put(&format!("/-/kv/{number}"), "p/main", &noise(5000, number));
    }
    farm.sent();
    farm.push_out(1);
    farm.put("/-/kv/here", "p/main", b"here");
    proxy.fault(fault);
    // what is here is served and stored as ever, though a stop at the storage is under way
    for round in 0..20u32 {
        farm.put(&format!("/-/kv/new-{round}"), "p/main", &noise(3000, 100 + round));
        assert_eq!(farm.get("/-/kv/here", "p/main").as_deref(), Some(&b"here"[..]));
        let most = Duration::from_secs(20);
        let beyond =
            bounded("a read of what lies beyond", most, || farm.get(&format!("/-/kv/{round}"), "p/main"));
        assert_eq!(beyond, None, "a miss while the storage is in trouble");
    }
    let stat = farm.stat();
    assert!(stat.broken && stat.skipped > 10 && stat.failures >= 3, "{stat:?}");
    // from now on nobody waits: two hundred reads, each a miss
    let before = proxy.connections.load(Ordering::SeqCst);
    bounded("two hundred misses", Duration::from_secs(30), || {
        for round in 0..200 {
            assert_eq!(farm.get(&format!("/-/kv/{}", round % 20), "p/main"), None);
        }
    });
    assert!(proxy.connections.load(Ordering::SeqCst) - before < 20, "the storage is left alone");
    // eviction does not wait for it either
    for number in 0..60u32 {
        farm.put(&format!("/-/kv/more-{number}"), "p/main", &noise(200_000, 500 + number));
        farm.running().maintain().unwrap();
    }
    proxy.fault(Fault::None);
    let begin = Instant::now();
    while farm.stat().broken {
        assert!(begin.elapsed() < Duration::from_secs(120), "{:?}", farm.stat());
        std::thread::sleep(Duration::from_millis(100));
    }
    for number in 0..20 {
        assert!(
            farm.get(&format!("/-/kv/{number}"), "p/main") == Some(noise(5000, number)),
            "{number}: {:?}",
            farm.stat()
        );
    }
    farm.sent();
}

/// An upload breaks off in the middle, again and again, and the process is stopped meanwhile: the manifest never names what is
/// not there, and in the end everything is.
#[test]
fn upload_that_breaks_off_is_sent_again_and_nothing_by_halves_is_read() {
    let Some(s3) = S3::start() else { return };
    let proxy = Proxy::start(s3.address);
    let mut farm = Farm::new(tier_at(proxy.address, "a", &[]));
    farm.put("/-/kv/first", "p/main", b"first");
    farm.sent();
    proxy.fault(Fault::Cut);
    for number in 0..10u32 {
        farm.put(&format!("/-/kv/{number}"), "p/main", &noise(150_000, number));
    }
    farm.put("/-/kv/large", "p/main", &noise(1_300_000, 77));
    farm.running().seal().unwrap();
    let begin = Instant::now();
    while farm.stat().failures < 2 {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", farm.stat());
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut other = Farm::new(tier_at(s3.address, "b", &["a"]));
    other.sent();
    assert_eq!(other.get("/-/kv/first", "p/main").as_deref(), Some(&b"first"[..]));
    assert_eq!(other.get("/-/kv/3", "p/main"), None, "not announced yet");
    // stopped in the middle of it, and without a snapshot
    farm.restart(|folder| {
        drop(fs_err::remove_file(folder.join("store/index.snap")));
        proxy.fault(Fault::None);
    });
    farm.sent();
    other.restart(|_| {});
    other.sent();
    for number in 0..10u32 {
        assert!(other.get(&format!("/-/kv/{number}"), "p/main") == Some(noise(150_000, number)), "{number}");
    }
    assert!(other.get("/-/kv/large", "p/main") == Some(noise(1_300_000, 77)));
}

/// A service whose storage cannot be reached starts, and a storage that is slow slows nobody who writes.
#[test]
fn service_starts_without_its_storage_and_sends_when_it_comes() {
    let Some(s3) = S3::start() else { return };
    let proxy = Proxy::start(s3.address);
    proxy.fault(Fault::Dead);
    let mut farm = Farm::new(tier_at(proxy.address, "a", &[]));
    farm.put("/-/kv/one", "p/main", b"one");
    assert_eq!(farm.get("/-/kv/one", "p/main").as_deref(), Some(&b"one"[..]));
    assert_eq!(farm.stat().state, "waiting");
    proxy.fault(Fault::Slow);
    farm.sent();
    for number in 0..40u32 {
        farm.put(&format!("/-/kv/{number}"), "p/main", &noise(100_000, number));
    }
    farm.sent();
    let mut other = Farm::new(tier_at(s3.address, "b", &["a"]));
    other.sent();
    assert!(other.get("/-/kv/39", "p/main") == Some(noise(100_000, 39)));
}
