use super::*;
use crate::authority::Snapshot;
use crate::scope::ScopeRule;
use proptest::prelude::*;

/// Made by Nix 2.8: `nix key generate-secret`, and `nix copy --to file://…?secret-key=…` of paths with two, one and no
/// references. The key signs nothing else.
const KEY: &str =
    "fixture-1:axe7L6n8p/ARAy/0dmzshX7k+rUi5rfMp+TlKeXK79Tqr9QgzXC2fT9hyOVNSF0USXxf/+RcbL+LBvS71ypsJA==";
const PUBLIC: &str = "fixture-1:6q/UIM1wtn0/YcjlTUhdFEl8X//kXGy/iwb0u9cqbCQ=";
const SIGNED: [&str; 3] = [
    "StorePath: /nix/store/hyv0frbffjqgkaid4p4bzx1wzcc7ggca-with-refs
URL: nar/03vyyz9kj3gpplib7z2p11xmhxrngsq19j72y6gm4gfpi2q8zvyh.nar.xz
Compression: xz
FileHash: sha256:03vyyz9kj3gpplib7z2p11xmhxrngsq19j72y6gm4gfpi2q8zvyh
FileSize: 208
NarHash: sha256:1fihihk56ncdjmcv5aw0znx2g458vj4bck61fjzcpx97q8yfj46g
NarSize: 216
References: 6npnas09yhv9hxqg44k23d7yvm5nny6j-b xzdc2x2gw25hj9wm4h6jrpz0cm584xzy-a
Sig: fixture-1:bX2KtBPztMU8eXoeTmik5t2sphfzRJPUy25WGZ1GVxwX+cHOxmnZt8inli3z3GtpEgo7BzsXijnTcuZDSk2qDA==
",
    "StorePath: /nix/store/6npnas09yhv9hxqg44k23d7yvm5nny6j-b
URL: nar/0nl119wq3k1yrw4pliawyc4f9ls1fg3rpci1da3w169i8nrkb89d.nar.xz
Compression: xz
FileHash: sha256:0nl119wq3k1yrw4pliawyc4f9ls1fg3rpci1da3w169i8nrkb89d
FileSize: 176
NarHash: sha256:1ciz1qg6z1psanscp2x5j2bbxm07gh192paz1g6g3wk3i97q22fj
NarSize: 168
References: xzdc2x2gw25hj9wm4h6jrpz0cm584xzy-a
Sig: fixture-1:58axAMM+WlNgCXzoBGiTcpnmPWeqRJqGT3Xa7A3wiHUMU0kOYaouauIFPLCX6PmOMI6Bkzyb9S29OOttVcl0CA==
",
    "StorePath: /nix/store/7fz1x56lz225dgf7k1h612icsx3nngwn-dep
URL: nar/1lssjrqv9vx7dhimwm4why0kp11mskp04xj0m0yjdb4xxbb9bvbf.nar.xz
Compression: xz
FileHash: sha256:1lssjrqv9vx7dhimwm4why0kp11mskp04xj0m0yjdb4xxbb9bvbf
FileSize: 168
NarHash: sha256:1hcry1l4ks4cjaxf19jliraw6lv3ka3apb8601l4pq91gn1byr5w
NarSize: 288
References: 
Sig: fixture-1:Avr15c8oUWmLij/uMVX6Yuh4LHSJqt4KPtC7q1crxEH2ynmFcD+cnV31ckDX/EazGB9s3qZSqbzVayQxjjBGDA==
",
];

fn signer() -> Signer {
    Signer::read(&Secret::new(KEY)).unwrap()
}

fn key_of(narinfo: &str) -> String {
    format!("{}.narinfo", &narinfo["StorePath: /nix/store/".len()..][..32])
}

#[test]
fn signature_is_the_one_that_nix_makes_byte_for_byte() {
    assert_eq!(signer().public(), PUBLIC);
    for signed in SIGNED {
        let (bare, line) = signed.split_at(signed.find("Sig: ").unwrap());
        assert_eq!(signer().line(&key_of(signed), bare.as_bytes()).as_deref(), Some(line));
        assert_eq!(signer().line(&key_of(signed), signed.as_bytes()), None, "it has this line already");
    }
}

#[test]
fn what_readers_could_understand_differently_is_not_signed() {
    let good = SIGNED[0];
    let key = key_of(good);
    let print = |text: &str| fingerprint(&key, text.as_bytes());
    assert!(print(good).is_some());
    let twice = format!("{good}NarHash: sha256:1ciz1qg6z1psanscp2x5j2bbxm07gh192paz1g6g3wk3i97q22fj\n");
    let references = format!("{good}References: \n");
    let size = good.replace("NarSize: 216", "NarSize: +216");
    let name = good.replace("-with-refs", "-with;refs");
    let hash = good.replace("NarHash: sha256:1fih", "NarHash: sha256:Ufih");
    let reference = good.replace(" xzdc2x2gw25hj9wm4h6jrpz0cm584xzy-a", " ../a");
    for wrong in [twice, references, size, name, hash, reference] {
        assert_eq!(print(&wrong), None, "{wrong}");
    }
    assert_eq!(fingerprint(&key_of(SIGNED[1]), good.as_bytes()), None, "the path of another entry");
}

#[test]
fn keys_are_read_for_scopes_and_never_shared_by_trusted_and_untrusted_ones() {
    let rule = |path: &str, trusted, file: &str| ScopeRule {
        trusted,
        sign_key_file: Some(file.into()),
        ..ScopeRule::new(path.parse().unwrap())
    };
    let family = ScopeRule { family: true, ..rule("p/pr", false, "other") };
    let authority =
        |rules: Vec<ScopeRule>| Authority::new(Snapshot { scopes: rules, ..Snapshot::default() }).unwrap();
    let read = |path: &Path| match path.to_str() {
        Some("key" | "copy") => Ok(KEY.as_bytes().to_vec()),
        Some("other") => {
            Ok(format!("o:{}", STANDARD.encode(SigningKey::from_bytes(&[5; 32]).to_keypair_bytes())).into())
        }
        Some("broken") => Ok(KEY.replace("axe7", "axe8").into()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    let good = with_keys(authority(vec![rule("p/main", true, "key"), family]), read).unwrap();
    let public = |path: &str| good.signer(&path.parse().unwrap()).map(|signer| signer.public());
    assert_eq!(public("p/main").as_deref(), Some(PUBLIC));
    assert!(public("p/pr/7").unwrap().starts_with("o:"), "the key of its family");
    assert_eq!(public("p/other"), None);
    for (file, said) in [("missing", "not found"), ("broken", "no key"), ("copy", "the same key")] {
        let rules = vec![rule("p/main", true, "key"), rule("p/try", false, file)];
        let error = with_keys(authority(rules), read).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("p/try") && !error.contains("axe"), "{error}");
    }
    assert!(!format!("{:?}", signer()).contains("axe7"), "the secret is not printed");
}

proptest! {
    #[test]
    fn fingerprint_has_five_parts_and_does_not_depend_on_the_order_of_fields(
        names in prop::collection::vec("[0-9a-df-np-sv-z]{32}-[a-z+._?=-]{1,9}", 0..5), size in 1u64.., turn in 0usize..4,
    ) {
        let mut lines = vec![
            "StorePath: /nix/store/hyv0frbffjqgkaid4p4bzx1wzcc7ggca-a".to_owned(),
            "NarHash: sha256:1fihihk56ncdjmcv5aw0znx2g458vj4bck61fjzcpx97q8yfj46g".to_owned(),
            format!("NarSize: {size}"),
            format!("References: {}", names.join(" ")),
        ];
        let print = |lines: &[String]| {
            fingerprint("hyv0frbffjqgkaid4p4bzx1wzcc7ggca.narinfo", format!("{}\n", lines.join("\n")).as_bytes()).unwrap()
        };
        let first = print(&lines);
        prop_assert_eq!(first.split(';').count(), 5);
        let there = names.iter().all(|name| first.contains(&format!("/nix/store/{name}")));
        prop_assert!(there);
        lines.rotate_left(turn);
        prop_assert_eq!(print(&lines), first);
    }

    #[test]
    fn any_bytes_are_signed_or_left(bytes: Vec<u8>, text in "((StorePath|NarHash|NarSize|References|Sig): ?\\PC{0,30}\n){0,6}") {
        let key = "hyv0frbffjqgkaid4p4bzx1wzcc7ggca.narinfo";
        let _ = (signer().line(key, &bytes), signer().line(key, text.as_bytes()));
        let _ = Signer::read(&Secret::new(String::from_utf8_lossy(&bytes)));
    }
}
