//! What is fetched before jobs come: mirrors with the real git, containers with a real registry and skopeo, inputs from a plain HTTP
//! server. Skipped, visibly, where a program is not installed (`scripts/install-clients.sh`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::Stat;
use forgeyard_cache::service::{Options, Running, start};
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::token::{Access, Claims};
use forgeyard_cache::warm::{Line, List, Standing};
use forgeyard_model::{Digest, Timestamp};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::{Client, options, token, write_authority};

struct Set {
    folder: tempfile::TempDir,
    running: Running,
    now: Arc<AtomicI64>,
}

impl Set {
    /// A cache with these lists; `pre/demo` is a public scope that `p/main` reads, `secret` is private.
    fn new(lists: serde_json::Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path(), Durability::PageCache);
        write_authority(&options.authority, |snapshot| {
            let demo = "pre/demo".parse().unwrap();
            let main = snapshot.scopes.iter_mut().find(|rule| rule.path.as_str() == "p/main").unwrap();
            let rule = forgeyard_cache::scope::ScopeRule { path: demo, ..main.clone() };
            main.parents = vec![rule.path.clone()];
            snapshot.scopes.push(rule);
        });
        let now = Arc::new(AtomicI64::new(support::NOW));
        let clock = Arc::clone(&now);
        let clock: forgeyard_cache::store::Clock =
            Arc::new(move || Timestamp::from_micros(clock.load(Ordering::SeqCst)));
        let mut running = start(Options { clock, ..options }).unwrap();
        let lists: Vec<List> = serde_json::from_value(lists).unwrap();
        running.warm(lists, folder.path().join("mirrors")).unwrap();
        Self { folder, running, now }
    }

    fn admin(&self, method: &str, path: &str) -> String {
        let claims = Claims {
            expires_at: Timestamp::from_micros(i64::MAX),
            ..support::claims("admin", Access::Admin)
        };
        let token = forgeyard_cache::token::mint(&claims, &support::key()).unwrap();
        let answer = Client::new(self.running.address).ask(method, path, Some(token.expose()), None);
        assert_eq!(answer.status, 200, "{}", answer.head);
        String::from_utf8(answer.body).unwrap()
    }

    fn lines(&self) -> Vec<Line> {
        self.admin("GET", "/-/admin/warm").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until nothing waits or is fetched.
    fn settled(&self) -> Vec<Line> {
        let begin = Instant::now();
        loop {
            let lines = self.lines();
            let busy = |line: &Line| matches!(line.standing, Standing::Waiting | Standing::Fetching { .. });
            if !lines.iter().any(busy) {
                return lines;
            }
            assert!(begin.elapsed() < Duration::from_secs(120), "{lines:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn again(&self) -> Vec<Line> {
        self.admin("POST", "/-/admin/warm");
        self.settled()
    }

    fn get(&self, path: &str, token: Option<&str>) -> support::Answer {
        Client::new(self.running.address).ask("GET", path, token, None)
    }
}

fn fresh(line: &Line) {
    assert!(matches!(line.standing, Standing::Fresh { .. }), "{line:?}");
}

fn failing(line: &Line) -> &str {
    match &line.standing {
        Standing::Failing { error, .. } => error,
        other => panic!("{other:?}"),
    }
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args(arguments).env("GIT_TERMINAL_PROMPT", "0");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "A").env(format!("GIT_{role}_EMAIL"), "a@example.org");
    }
    let output = command.env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    assert!(output.status.success(), "git {arguments:?}: {text}");
    text.trim().to_owned()
}

fn commit(folder: &Path, text: &str) -> String {
    fs_err::write(folder.join("file"), text).unwrap();
    git(folder, &["add", "."]);
    git(folder, &["commit", "--quiet", "-m", text]);
    git(folder, &["rev-parse", "HEAD"])
}

/// A mirror is cloned by plain git, of the scope and of one that reads it, follows its source, and can be written by nobody.
#[test]
fn repository_is_mirrored_cloned_by_plain_git_and_kept_fresh() {
    let source = tempfile::tempdir().unwrap();
    let source = source.path();
    git(source, &["init", "--quiet", "--initial-branch=trunk"]);
    commit(source, "one");
    git(source, &["tag", "-a", "v1", "-m", "v1"]);
    git(source, &["branch", "old"]);
    let url = format!("file://{}", source.display());
    let set = Set::new(
        serde_json::json!([{ "name": "demo", "scope": "pre/demo", "git": [{ "name": "demo", "url": url }] }]),
    );
    let lines = set.settled();
    fresh(&lines[0]);
    assert!(lines[0].bytes > 0 && lines[0].path == "/pre/demo/-/warm/git/demo.git");
    let address = format!("http://{}", set.running.address);
    let place = |name: &str| set.folder.path().join(name).display().to_string();
    let here = set.folder.path();
    for scope in ["pre/demo", "p/main"] {
        let to = place(&scope.replace('/', "-"));
        git(here, &["clone", "--quiet", &format!("{address}/{scope}/-/warm/git/demo.git"), &to]);
        git(Path::new(&to), &["fsck", "--strict"]);
        assert_eq!(git(Path::new(&to), &["rev-parse", "HEAD"]), git(source, &["rev-parse", "HEAD"]));
        assert_eq!(git(Path::new(&to), &["rev-parse", "--abbrev-ref", "HEAD"]), "trunk");
        assert_eq!(git(Path::new(&to), &["describe"]), "v1");
    }
    // a fork's job reads it through main, with its token; then the rest comes from where it always came from
    let mine = place("fork");
    let header = format!("http.extraHeader=Authorization: Bearer {}", token("p/pr/7", Access::Write));
    let from = format!("{address}/p/pr/7/-/warm/git/demo.git");
    git(here, &["-c", &header, "clone", "--quiet", &from, &mine]);
    let newer = commit(source, "two");
    git(Path::new(&mine), &["fetch", "--quiet", &url, "trunk"]);
    assert_eq!(git(Path::new(&mine), &["rev-parse", "FETCH_HEAD"]), newer);
    let reference = place("with-reference");
    git(here, &["clone", "--quiet", "--reference", &mine, &url, &reference]);

    // what was rewritten and removed at the source is so here
    git(source, &["branch", "-D", "old"]);
    git(source, &["commit", "--amend", "--quiet", "-m", "two, rewritten"]);
    for number in 0..6 {
        commit(source, &format!("more {number}"));
        fresh(&set.again()[0]);
    }
    let again = place("again");
    git(here, &["clone", "--quiet", &format!("{address}/pre/demo/-/warm/git/demo.git"), &again]);
    assert_eq!(git(Path::new(&again), &["rev-parse", "HEAD"]), git(source, &["rev-parse", "HEAD"]));
    assert_eq!(git(Path::new(&again), &["branch", "--remotes", "--list", "*/old"]), "");
    git(Path::new(&again), &["fsck", "--strict"]);
    let first = place("pre-demo");
    git(Path::new(&first), &["fetch", "--quiet"]);

    // no token writes here, not even one of the scope
    let mut client = Client::new(set.running.address);
    let own = token("pre/demo", Access::Write);
    for method in ["PUT", "DELETE"] {
        let path = "/pre/demo/-/warm/git/demo.git/info/refs";
        assert_eq!(client.ask(method, path, Some(&own), Some(b"evil")).status, 405);
    }
    // the source goes away: what is here stays
    fs_err::remove_dir_all(source).unwrap();
    let lines = set.again();
    let text = failing(&lines[0]);
    assert!(
        text.contains("file://") && text.contains("git ls-remote") && text.contains("look whether"),
        "{text}"
    );
    git(here, &["clone", "--quiet", &format!("{address}/pre/demo/-/warm/git/demo.git"), &place("still")]);
    set.running.stop().unwrap();
}

/// A plain HTTP server with these files. Counts what it was asked for.
fn files(files: Vec<(&'static str, Vec<u8>)>) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) > 0 {
                head.push(byte[0]);
            }
            counted.fetch_add(1, Ordering::SeqCst);
            let head = String::from_utf8_lossy(&head).into_owned();
            let path = head.split(' ').nth(1).unwrap_or_default();
            let found = files.iter().find(|(name, _)| *name == path);
            let (status, body) = found.map_or(("404 Not Found", &[][..]), |(_, body)| ("200 OK", &body[..]));
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(answer.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    (address, asked)
}

/// An input is fetched once, held against its digest, and served by it; another content is refused, and so is one too many.
#[test]
fn input_is_fetched_once_and_nothing_is_served_that_has_another_digest() {
    let (small, large) = (b"weights".to_vec(), vec![7; 3 << 20]);
    let (address, asked) = files(vec![
        ("/small", small.clone()),
        ("/large", large.clone()),
        ("/changed", b"other weights".to_vec()),
    ]);
    let input = |path: &str, content: &[u8]| serde_json::json!({ "url": format!("http://user:secret@{address}{path}"), "sha256": Digest::of(content).hex() });
    let set = Set::new(serde_json::json!([
        { "name": "good", "scope": "pre/demo", "inputs": [input("/small", &small), input("/large", &large)] },
        { "name": "bad", "scope": "pre/demo", "inputs": [input("/changed", b"weights, v2"), input("/none", b"none")] },
        { "name": "narrow", "scope": "secret", "most-mib": 2, "inputs": [input("/large", &large)] },
        { "name": "nowhere", "scope": "undeclared", "inputs": [input("/small", &small)] },
    ]));
    let lines = set.settled();
    fresh(&lines[0]);
    fresh(&lines[1]);
    for (number, content) in [(0, &small), (1, &large)] {
        assert_eq!(&set.get(&lines[number].path, None).body, content);
        assert_eq!(lines[number].bytes, content.len() as u64);
    }
    for (number, words) in [
        (2, "its source was changed"),
        (3, "404 Not Found; correct its address"),
        (4, "raise `most-mib`"),
        (5, "`undeclared` is not declared"),
    ] {
        let text = failing(&lines[number]);
        assert!(text.contains(words) && text.contains(&format!("http://{address}/")), "{text}");
        assert!(!text.contains("secret@"), "{text}");
    }
    assert_eq!(set.get(&lines[2].path, None).status, 404);
    let wrong = format!("/pre/demo/-/warm/sha256/{}", Digest::of(b"other weights").hex());
    assert_eq!(set.get(&wrong, None).status, 404, "it is not even there under what it is");
    let before = asked.load(Ordering::SeqCst);
    set.again();
    assert_eq!(asked.load(Ordering::SeqCst) - before, 3, "what is here is not fetched again");
    let stat: Stat = serde_json::from_str(&set.admin("GET", "/-/admin/stat")).unwrap();
    assert_eq!(stat.warm.len(), 6);
    let metrics = String::from_utf8(set.get("/metrics", None).body).unwrap();
    assert!(metrics.contains("forgeyard_cache_warm_failing 4"), "{metrics}");
    assert!(metrics.contains("forgeyard_cache_warm_age_seconds{list=\"good\""), "{metrics}");
    set.running.stop().unwrap();
}

/// A source that fails is left alone for longer and longer, and asked again by itself.
#[test]
fn source_that_fails_is_asked_again_by_itself_after_one_two_and_four_minutes() {
    let (address, asked) = files(Vec::new());
    let input = serde_json::json!({ "url": format!("http://{address}/x"), "sha256": Digest::of(b"x").hex() });
    let set = Set::new(serde_json::json!([{ "name": "gone", "scope": "pre/demo", "inputs": [input] }]));
    let mut next = support::NOW;
    for (tries, minutes) in [(1, 1), (2, 2), (3, 4)] {
        let begin = Instant::now();
        let line = loop {
            let line = set.settled().remove(0);
            match &line.standing {
                Standing::Failing { tries: now, .. } if *now == tries => break line,
                _ => assert!(begin.elapsed() < Duration::from_secs(60), "{line:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let Standing::Failing { next: said, .. } = line.standing else { unreachable!() };
        assert_eq!(said, Timestamp::from_micros(next + minutes * 60_000_000));
        assert_eq!(asked.load(Ordering::SeqCst), tries as usize);
        next += minutes * 60_000_000;
        set.now.store(next, Ordering::SeqCst);
    }
    set.running.stop().unwrap();
}

struct Registry {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file());
    if found.is_none() {
        println!("SKIPPED: {name} is not installed (scripts/install-clients.sh)");
    }
    found
}

impl Registry {
    fn start(program: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let text = format!(
            "version: 0.1\nlog: {{ level: error }}\nstorage: {{ filesystem: {{ rootdirectory: {} }} }}\nhttp: {{ addr: \"{address}\" }}\n",
            folder.path().join("data").display()
        );
        let config = folder.path().join("config.yml");
        fs_err::write(&config, text).unwrap();
        let mut command = Command::new(program);
        command.arg("serve").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the registry does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { child, address, folder }
    }
}

/// A file of an OCI layout, by its digest.
fn blob(layout: &Path, kind: &str, bytes: &[u8]) -> serde_json::Value {
    let digits = Digest::of(bytes).hex();
    fs_err::write(layout.join("blobs/sha256").join(&digits), bytes).unwrap();
    serde_json::json!({ "mediaType": kind, "digest": format!("sha256:{digits}"), "size": bytes.len() })
}

/// A container for two platforms with a layer of 2 MB, in OCI layout. Answers with the layer.
fn layout(folder: &Path) -> Vec<u8> {
    fs_err::create_dir_all(folder.join("blobs/sha256")).unwrap();
    fs_err::write(folder.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}").unwrap();
    // a tar with one file of noise, by hand: it is not compressed, so that everybody keeps it as it is
    let mut state = 1u32;
    let noise: Vec<u8> = (0..2_000_000 / 512 * 512)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    let mut head = [0u8; 512];
    head[..5].copy_from_slice(b"noise");
    head[100..107].copy_from_slice(b"0000644");
    head[108..115].copy_from_slice(b"0000000");
    head[116..123].copy_from_slice(b"0000000");
    head[124..135].copy_from_slice(format!("{:011o}", noise.len()).as_bytes());
    head[136..147].copy_from_slice(b"00000000000");
    head[156] = b'0';
    head[257..263].copy_from_slice(b"ustar\0");
    head[263..265].copy_from_slice(b"00");
    head[148..156].copy_from_slice(b"        ");
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let layer = [&head[..], &noise, &[0; 1024]].concat();
    let of = blob(folder, "application/vnd.oci.image.layer.v1.tar", &layer);
    let mut manifests = Vec::new();
    for architecture in ["amd64", "arm64"] {
        let config = serde_json::json!({
            "architecture": architecture, "os": "linux", "config": {},
            "rootfs": { "type": "layers", "diff_ids": [of["digest"]] }
        });
        let config = blob(folder, "application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest =
            serde_json::json!({ "schemaVersion": 2, "mediaType": kind, "config": config, "layers": [of] });
        let mut named = blob(folder, kind, manifest.to_string().as_bytes());
        named["platform"] = serde_json::json!({ "os": "linux", "architecture": architecture });
        manifests.push(named);
    }
    let kind = "application/vnd.oci.image.index.v1+json";
    let index = serde_json::json!({ "schemaVersion": 2, "mediaType": kind, "manifests": manifests });
    let index = blob(folder, kind, index.to_string().as_bytes());
    let top = serde_json::json!({ "schemaVersion": 2, "manifests": [index] });
    fs_err::write(folder.join("index.json"), top.to_string()).unwrap();
    layer
}

fn skopeo(program: &Path, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program)
        .args(["--insecure-policy", "copy", "--quiet", "--preserve-digests"])
        .args(arguments)
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// A container comes from a real registry and goes to a real client after the registry is gone; bytes that are not what their
/// digest says are not served.
#[test]
fn container_is_fetched_from_a_registry_and_pulled_when_the_registry_is_gone() {
    let (Some(server), Some(client)) = (program("docker-registry"), program("skopeo")) else { return };
    let work = tempfile::tempdir().unwrap();
    let layer = layout(&work.path().join("source"));
    let registry = Registry::start(&server);
    let source = format!("oci:{}", work.path().join("source").display());
    for name in ["demo", "damaged"] {
        let to = format!("docker://{}/team/{name}:1", registry.address);
        skopeo(&client, &["--all", "--dest-tls-verify=false", &source, &to]).unwrap();
    }
    let image = |name: &str| serde_json::json!({ "image": format!("{}/team/{name}:1", registry.address), "plain-http": true });
    let list =
        |scope: &str| serde_json::json!({ "name": scope, "scope": scope, "containers": [image("demo")] });
    let set = Set::new(serde_json::json!([
        list("pre/demo"),
        list("secret"),
        { "name": "absent", "scope": "pre/demo", "containers": [image("none")] },
        { "name": "strange", "scope": "pre/demo",
          "containers": [{ "image": format!("{}/team/demo:1", registry.address), "plain-http": true, "platform": "linux/s390x" }] },
    ]));
    let lines = set.settled();
    fresh(&lines[0]);
    fresh(&lines[1]);
    assert!(lines[0].bytes > layer.len() as u64);
    assert!(failing(&lines[2]).contains("404"), "{}", failing(&lines[2]));
    assert!(failing(&lines[3]).contains("nothing for linux/s390x"), "{}", failing(&lines[3]));

    // at the source a layer is damaged: it is fetched by nobody who has not got it, and what is here stays whole
    let digits = Digest::of(&layer).hex();
    let data = format!("data/docker/registry/v2/blobs/sha256/{}/{digits}/data", &digits[..2]);
    let data = registry.folder.path().join(data);
    let mut bytes = fs_err::read(&data).unwrap();
    bytes[1_000_000] ^= 1;
    fs_err::write(&data, bytes).unwrap();
    let other =
        Set::new(serde_json::json!([{ "name": "x", "scope": "pre/demo", "containers": [image("damaged")] }]));
    let lines = other.settled();
    assert!(failing(&lines[0]).contains("its bytes have the SHA-256"), "{}", failing(&lines[0]));
    let missing = format!("{}/manifests/1", lines[0].path.rsplit_once(':').unwrap().0);
    assert_eq!(other.get(&missing, None).status, 404, "no manifest without its layers");
    other.running.stop().unwrap();

    let address = registry.address;
    drop(registry);
    let name = address.to_string().replace(':', "-");
    let pull = |scope: &str, to: &str, more: &[&str]| {
        let from = format!("docker://{}/{scope}/warm/{name}/team/demo:1", set.running.address);
        let to = format!("oci:{}", work.path().join(to).display());
        skopeo(&client, &[more, &["--src-tls-verify=false", "--override-arch=amd64", &from, &to]].concat())
    };
    pull("pre/demo", "public", &[]).unwrap();
    pull("p/main", "through-main", &[]).unwrap();
    for to in ["public", "through-main"] {
        assert!(fs_err::read(work.path().join(to).join("blobs/sha256").join(&digits)).unwrap() == layer);
    }
    let refused = pull("secret", "none", &[]).unwrap_err();
    assert!(refused.contains("authentication required") || refused.contains("unauthorized"), "{refused}");
    let credentials = format!("any:{}", token("secret", Access::Read));
    pull("secret", "private", &["--src-creds", &credentials]).unwrap();
    set.running.stop().unwrap();
}
