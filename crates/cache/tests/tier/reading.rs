//! What is evicted here stays readable, what was removed does not come back, and other farms read too.

use super::*;

/// An action result that names these contents.
fn action(files: &[&[u8]]) -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    let varint = |mut value: usize| {
        let mut all = Vec::new();
        while value >= 128 {
            all.push(value as u8 | 128);
            value >>= 7;
        }
        all.push(value as u8);
        all
    };
    let file = |bytes: &&[u8]| {
        let digest =
            [field(1, Digest::of(bytes).hex().as_bytes()), vec![2 << 3], varint(bytes.len())].concat();
        field(2, &[field(1, b"out"), field(2, &digest)].concat())
    };
    files.iter().flat_map(file).collect()
}

#[test]
fn evicted_entries_of_every_form_are_read_back_from_the_tier_after_a_restart_too() {
    let Some(s3) = S3::start() else { return };
    let mut farm = Farm::new(tier_at(s3.address, "a", &[]));
    let (small, large, shared) = (noise(5000, 1), noise(1_500_000, 2), noise(40_000, 3));
    farm.put("/-/kv/small", "p/main", &small);
    farm.put("/-/kv/large", "p/main", &large);
    farm.put("/-/kv/shared", "p/main", &shared);
    farm.put("/-/kv/shared", "secret", &shared);
    let (one, two) = (noise(3000, 4), noise(1_300_000, 5));
    for bytes in [&one, &two] {
        farm.put(&format!("/-/bazel/cas/{}", Digest::of(bytes).hex()), "p/main", bytes);
    }
    let result = action(&[&one, &two]);
    let key = format!("/-/bazel/ac/{}", Digest::of(b"action").hex());
    farm.put(&key, "p/main", &result);
    farm.sent();
    farm.push_out(1);
    let lies_beyond = farm.stat().names;
    assert!(lies_beyond >= 6, "{:?}", farm.stat());
    farm.restart(|folder| drop(fs_err::remove_file(folder.join("store/index.snap"))));
    assert_eq!(farm.stat().names, lies_beyond);
    // nobody's business until the first look
    farm.sent();
    assert!(farm.get("/-/kv/small", "p/main") == Some(small.clone()));
    farm.running().maintain().unwrap();
    assert!(farm.get("/-/kv/large", "p/main") == Some(large.clone()), "{:?}", farm.stat());
    assert!(farm.get("/-/kv/shared", "p/main") == Some(shared.clone()));
    assert!(farm.get("/-/kv/shared", "secret") == Some(shared.clone()));
    let brought = farm.stat().brought;
    assert!(brought >= 3, "{:?}", farm.stat());
    // the second read is from the disk
    assert!(farm.get("/-/kv/small", "p/main") == Some(small.clone()));
    assert_eq!(farm.stat().brought, brought);
    // a result comes with its files, when there is room for them
    farm.running().maintain().unwrap();
    assert!(farm.get(&key, "p/main") == Some(result), "{:?}", farm.stat());
    assert!(farm.get(&format!("/-/bazel/cas/{}", Digest::of(&two).hex()), "p/main") == Some(two));
    // what never was costs nothing, and another scope sees nothing
    assert_eq!(farm.get("/-/kv/never", "p/main"), None);
    assert_eq!(farm.get("/-/kv/small", "p/pr/7").as_ref(), Some(&small), "a fork reads main");
    assert_eq!(farm.get("/-/kv/small", "secret"), None);
    // on a busy machine a request to the storage may take too long now and then, which is told and costs nothing else
    let stat = farm.stat();
    // how much of the result and its files was still here depends on what the background evicted first
    assert!(stat.brought >= brought && !stat.broken, "{stat:?}");
    let metrics = String::from_utf8(farm.client.ask("GET", "/metrics", None, None).body).unwrap();
    let line = format!("forgeyard_cache_tier_brought_total {}", stat.brought);
    assert!(metrics.contains(&line), "{metrics}");
}

#[test]
fn what_was_written_anew_removed_or_purged_does_not_come_back_from_the_tier() {
    let Some(s3) = S3::start() else { return };
    let mut farm = Farm::new(tier_at(s3.address, "a", &[]));
    for key in ["anew", "removed", "purged", "kept", "poison"] {
        farm.put(&format!("/-/kv/{key}"), "p/pr/7", &noise(5000, key.len() as u32));
    }
    farm.put("/-/kv/mine", "p/pr/8", &noise(5000, 9));
    farm.sent();
    farm.push_out(1);
    let writer = token("p/pr/7", Access::Write);
    // while they lie beyond
    farm.put("/-/kv/anew", "p/pr/7", b"another");
    assert_eq!(farm.client.ask("DELETE", "/-/kv/removed", Some(&writer), None).status, 204);
    let admin = token("p/main", Access::Admin);
    farm.now.fetch_add(60_000_000, Ordering::SeqCst);
    let purge = "/-/admin/entries?scope=p/pr/7&prefix=purge";
    assert_eq!(farm.client.ask("DELETE", purge, Some(&admin), None).status, 200);
    let purge = "/-/admin/entries?writer=run%20of%20p%2Fpr%2F8";
    assert_eq!(farm.client.ask("DELETE", purge, Some(&admin), None).status, 200);
    let mut other = Farm::new(tier_at(s3.address, "b", &["a"]));
    for round in 0..2 {
        assert_eq!(farm.get("/-/kv/removed", "p/pr/7"), None, "round {round}");
        assert_eq!(farm.get("/-/kv/purged", "p/pr/7"), None);
        assert_eq!(farm.get("/-/kv/mine", "p/pr/8"), None);
        assert_eq!(farm.get("/-/kv/anew", "p/pr/7").as_deref(), Some(&b"another"[..]));
        assert!(farm.get("/-/kv/kept", "p/pr/7") == Some(noise(5000, 4)));
        farm.sent();
        farm.push_out(2 + round);
        farm.restart(|folder| drop(fs_err::remove_file(folder.join("store/index.snap"))));
        farm.sent();
    }
    // nor for somebody else who reads what this farm wrote
    other.restart(|_| {});
    other.sent();
    assert_eq!(other.get("/-/kv/purged", "p/pr/7"), None);
    assert_eq!(other.get("/-/kv/mine", "p/pr/8"), None);
    assert_eq!(other.get("/-/kv/anew", "p/pr/7").as_deref(), Some(&b"another"[..]));
}

#[test]
fn second_farm_reads_through_and_damage_in_the_tier_is_a_miss_and_no_wrong_byte() {
    let Some(s3) = S3::start() else { return };
    let mut first = Farm::new(tier_at(s3.address, "a", &[]));
    let (small, large, shared) = (noise(5000, 1), noise(1_500_000, 2), noise(6000, 3));
    first.put("/-/kv/small", "p/main", &small);
    first.put("/-/kv/shared", "p/main", &shared);
    first.put("/-/kv/shared", "secret", &shared);
    first.put("/-/kv/large", "p/main", &large);
    first.put("/-/kv/other", "p/main", &noise(7000, 4));
    first.sent();
    let mut second = Farm::new(tier_at(s3.address, "b", &["a"]));
    second.sent();
    assert_eq!(second.stat().foreign_names, 5, "{:?}", second.stat());
    assert!(second.get("/-/kv/small", "p/main") == Some(small.clone()));
    assert!(second.get("/-/kv/large", "p/main") == Some(large));
    assert!(second.get("/-/kv/shared", "secret") == Some(shared));
    assert_eq!(second.get("/-/kv/small", "secret"), None);
    // what the first writes from now on, too
    first.put("/-/kv/later", "p/main", b"later");
    first.sent();
    let begin = Instant::now();
    while second.get("/-/kv/later", "p/main").is_none() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(200));
    }
    // a fork of the second writes nothing for the first
    second.put("/-/kv/small", "p/pr/7", b"a fork's");
    assert!(first.get("/-/kv/small", "p/main") == Some(small));
    // somebody changed the segment: one byte of the content, then the large content's object is gone
    let id = fs_err::read_to_string(first.folder.path().join("store/tier/id")).unwrap();
    let other = noise(7000, 4);
    let found = (1..5).find_map(|number| {
        let key = format!("cache/a/{id}/seg/{number:08}.fyl");
        let bytes = s3.get(&key);
        let at = bytes.windows(64).position(|window| window == &other[..64])?;
        Some((key, bytes, at))
    });
    let (key, mut bytes, at) = found.unwrap();
    bytes[at + 3000] ^= 1;
    s3.put(&key, &bytes);
    assert_eq!(second.get("/-/kv/other", "p/main"), None);
    assert!(second.stat().absent >= 1, "{:?}", second.stat());
    let hex = Digest::of(&noise(1_500_000, 2)).hex();
    s3.delete(&format!("cache/large/{}/{hex}", &hex[..2]));
    let mut third = Farm::new(tier_at(s3.address, "c", &["a"]));
    third.sent();
    assert_eq!(third.get("/-/kv/large", "p/main"), None);
}

/// Bytes that shrink to a tenth.
fn code(length: usize) -> Vec<u8> {
    (0u32..).flat_map(|at| format!("{at} mov %rax,%rbx; call _ZN;").into_bytes()).take(length).collect()
}

#[test]
fn what_is_compressed_here_is_sent_so_and_read_by_others() {
    let Some(s3) = S3::start() else { return };
    let mut first = Farm::new(tier_at(s3.address, "a", &[]));
    let entries = [("small", code(300_000)), ("large", code(2_500_000)), ("noise", noise(4000, 1))];
    for (key, bytes) in &entries {
        first.put(&format!("/-/kv/{key}"), "p/main", bytes);
    }
    first.put("/-/kv/shared", "secret", &entries[0].1);
    first.running().seal().unwrap();
    first.running().shrink().unwrap();
    first.sent();
    let sent = first.stat().sent_bytes;
    assert!(sent < 1_000_000, "{sent} bytes of 2.8 million were sent");
    let hex = Digest::of(&entries[1].1).hex();
    let object = s3.get(&format!("cache/large/{}/{hex}", &hex[..2]));
    assert!(zstd::decode_all(&object[..]).unwrap() == entries[1].1);
    let mut second = Farm::new(tier_at(s3.address, "b", &["a"]));
    second.sent();
    for (key, bytes) in &entries {
        assert!(second.get(&format!("/-/kv/{key}"), "p/main").as_ref() == Some(bytes), "{key}");
    }
    assert!(second.get("/-/kv/shared", "secret").as_ref() == Some(&entries[0].1));
    // and by itself, once it has no room for it
    first.push_out(1);
    for (key, bytes) in &entries {
        first.running().maintain().unwrap();
        let back = first.get(&format!("/-/kv/{key}"), "p/main");
        assert!(back.as_ref() == Some(bytes), "{key} {:?} {:?}", back.map(|some| some.len()), first.stat());
    }
    // a bomb in the place of the large one, and one that ends early; this farm would send the right one again
    first.running.take().unwrap().stop().unwrap();
    let zeros = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
    for (writer, object) in [("c", zeros), ("d", object[..object.len() / 2].to_vec())] {
        s3.put(&format!("cache/large/{}/{hex}", &hex[..2]), &object);
        let mut third = Farm::new(tier_at(s3.address, writer, &["a"]));
        third.sent();
        assert_eq!(third.get("/-/kv/large", "p/main"), None);
    }
}

/// Two processes with one name: the one that started last writes, the other one notices and sends nothing more.
#[test]
fn name_of_a_writer_has_one_process_and_the_older_one_stops() {
    let Some(s3) = S3::start() else { return };
    let mut first = Farm::new(tier_at(s3.address, "a", &[]));
    first.put("/-/kv/one", "p/main", b"one");
    first.sent();
    let mut second = Farm::new(tier_at(s3.address, "a", &[]));
    second.put("/-/kv/two", "p/main", b"two");
    second.sent();
    first.put("/-/kv/three", "p/main", b"three");
    first.running().seal().unwrap();
    let begin = Instant::now();
    while first.stat().state != "lost" {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", first.stat());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(first.get("/-/kv/three", "p/main").as_deref(), Some(&b"three"[..]));
    // nothing of either is lost: the second has what the first had sent, as of a store that was before it
    assert_eq!(second.get("/-/kv/one", "p/main").as_deref(), Some(&b"one"[..]));
    let mut third = Farm::new(tier_at(s3.address, "c", &["a"]));
    third.sent();
    assert_eq!(third.get("/-/kv/two", "p/main").as_deref(), Some(&b"two"[..]));
    assert_eq!(third.get("/-/kv/one", "p/main").as_deref(), Some(&b"one"[..]));
}
