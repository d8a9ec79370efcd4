use super::*;

/// A prefix with one shell program `prog`.
fn prefix(script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    let path = folder.path().join("bin/prog");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

async fn proof(argv: &[&str], script: &str, limit: Duration) -> Result<ProofRun, Explanation> {
    let prefix = prefix(script);
    let path = format!("{}/bin:/usr/bin:/bin", prefix.path().display());
    let variables = BTreeMap::from([(OsString::from("PATH"), OsString::from(path))]);
    let argv: Vec<_> = argv.iter().map(|&text| text.to_owned()).collect();
    run(&argv, prefix.path(), &variables, &Scratch::new().unwrap(), limit).await
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_program_runs_with_clean_variables_in_an_empty_folder() {
    let proof = proof(&["prog", "a b"], "echo \"$1\"; ls -A; env | grep -c CARGO", LONG).await;
    let error = proof.unwrap_err();
    assert!(error.evidence.iter().any(|line| line == "stdout: a b\n0"), "{error}");
}

#[tokio::test]
async fn output_is_cut_and_the_program_is_not_blocked() {
    let proof =
        proof(&["prog"], "head -c 300000 /dev/zero | tr '\\0' x; head -c 300000 /dev/zero >&2", LONG).await;
    assert_eq!(proof.unwrap().stdout.len(), OUTPUT_CAP);
}

#[tokio::test]
async fn a_failing_program_is_explained_with_what_it_said() {
    let error =
        proof(&["prog"], "echo out; echo 'ImportError: libcuda.so.1' >&2; exit 3", LONG).await.unwrap_err();
    assert_eq!(error.code, "environment.program_failed");
    assert!(error.message.contains("exit status 3"), "{error}");
    assert!(error.evidence.contains(&"stderr: ImportError: libcuda.so.1".to_owned()), "{error}");
    let error = proof(&["prog"], "kill -SEGV $$", LONG).await.unwrap_err();
    assert!(error.message.contains("SIGSEGV"), "{error}");
}

#[tokio::test]
async fn a_program_that_takes_too_long_is_killed_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let script = format!("sleep 1000 & echo $! > {}; wait", pid_file.display());
    let error = proof(&["prog"], &script, Duration::from_millis(700)).await.unwrap_err();
    assert_eq!(error.code, "environment.program_timeout");
    let pid = std::fs::read_to_string(pid_file).unwrap();
    let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    // Gone, or a zombie that nobody has collected yet.
    assert!(state.is_err() || state.is_ok_and(|stat| stat.contains(") Z ")));
}

#[tokio::test]
async fn a_child_that_keeps_the_output_open_does_not_hold_the_proof() {
    let proof = proof(&["prog"], "sleep 1000 & echo done", LONG).await.unwrap();
    assert_eq!(proof.stdout, "done\n");
}

#[tokio::test]
async fn a_missing_program_is_explained_with_what_there_is() {
    let error = proof(&["sh"], "true", LONG).await.unwrap_err();
    assert_eq!(error.code, "environment.program_missing");
    assert!(error.evidence.iter().any(|line| line.contains("would prove nothing")), "{error}");
    assert!(error.evidence.contains(&"its programs: prog".to_owned()), "{error}");
    let proof = proof(&["/bin/sh", "-c", "echo asked for"], "true", LONG).await.unwrap();
    assert_eq!(proof.stdout, "asked for\n");
}
