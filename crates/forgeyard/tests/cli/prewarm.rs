//! `forgeyard cache prewarm`: real git, a plain HTTP server, what is said of what fails.

use crate::cache::Cache;
use crate::rig::alone;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

fn git(folder: &std::path::Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "A").env(format!("GIT_{role}_EMAIL"), "a@example.org");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn prewarm_fetches_tells_how_it_goes_and_ends_with_1_while_a_source_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let source = folder.path().join("source");
    fs_err::create_dir(&source).unwrap();
    git(&source, &["init", "--quiet", "--initial-branch=main"]);
    git(&source, &["commit", "--quiet", "--allow-empty", "-m", "one"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = [0; 4096];
            let _ = stream.read(&mut buffer);
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nweights");
        }
    });
    let good = forgeyard_model::Digest::of(b"weights").hex();
    let configure = |digest: &str| {
        let text = format!(
            "[cache]\nlisten = \"127.0.0.1:0\"\nprice-per-cpu-hour = \"0.04\"\n\n[[cache.scopes]]\npath = \"pre\"\ntrusted = true\nread = \"public\"\n\n\
             [[cache.warm]]\nname = \"mirrors\"\nscope = \"pre\"\npools = [\"gpu\"]\n\
             git = [{{ name = \"demo\", url = \"file://{}\" }}]\n\n\
             [[cache.warm]]\nname = \"files\"\nscope = \"pre\"\ninputs = [{{ url = \"http://{address}/w\", sha256 = \"{digest}\" }}]\n",
            source.display()
        );
        fs_err::write(path("forgeyard.toml"), text).unwrap();
    };
    configure(&good.replace(|c: char| c.is_ascii_digit(), "0"));
    let cache = Cache::start(&path("data"), &path("forgeyard.toml"));
    let url = format!("http://{}", cache.address);
    let ask = |more: &[&str]| {
        alone(&[&["cache", "prewarm", "--cache", &url, "--data", &path("data")], more].concat())
    };
    let said = ask(&["--pool", "gpu"]).ends(0);
    assert!(
        said.out.contains("/pre/-/warm/git/demo.git") && said.out.contains("here, as of"),
        "{}",
        said.out
    );
    assert!(said.err.contains("git file://") && !said.out.contains("sha256"), "{}{}", said.err, said.out);
    git(folder.path(), &["clone", "--quiet", &format!("{url}/pre/-/warm/git/demo.git"), &path("clone")]);
    let said = ask(&[]).ends(1);
    for words in ["its source was changed", &format!("http://{address}/w"), "never here"] {
        assert!(said.out.contains(words), "{words}: {}", said.out);
    }
    ask(&["--check"]).ends(1);
    ask(&["--check", "--list", "mirrors"]).ends(0);
    ask(&["--list", "nothing"]).ends(2).names(&["mirrors", "files"]);
    let said = alone(&["cache", "stat", "--cache", &url, "--data", &path("data")]).ends(0);
    assert!(said.out.contains("its source was changed"), "{}", said.out);
    drop(cache);
    configure(&good);
    let cache = Cache::start(&path("data"), &path("forgeyard.toml"));
    let url = format!("http://{}", cache.address);
    let said = alone(&["cache", "prewarm", "--cache", &url, "--data", &path("data"), "--json"]).ends(0);
    let lines: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(lines.as_array().unwrap().len(), 2, "{lines}");
    assert_eq!(lines[1]["state"], "fresh");
}

#[test]
fn list_that_cannot_be_fetched_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forgeyard.toml").display().to_string();
    let data = folder.path().join("data").display().to_string();
    let text = "[cache]\nlisten = \"127.0.0.1:0\"\n[[cache.scopes]]\npath = \"pre\"\n[[cache.warm]]\nname = \"a\"\nscope = \"pre\"\n\
                git = [{ name = \"../x\", url = \"https://example.org/x\" }]\n";
    fs_err::write(&file, text).unwrap();
    alone(&["cache", "run", "--data", &data, "--config", &file]).ends(2).names(&["../x", "[[cache.warm]]"]);
}
