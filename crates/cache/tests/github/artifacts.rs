//! The artifact service.

use super::*;

#[test]
fn artifact_is_bound_to_the_run_of_the_token() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, _) = main_and_fork();
    let of = |scope: &str, job: &str, run: &str| {
        let mut claims = support::claims(scope, Access::Write);
        (claims.principal, claims.run) = (job.to_owned(), Some(run.to_owned()));
        let ids = Backend::new(&claims.scope, &claims.principal, claims.run.as_deref());
        (forgeyard_cache::token::mint_jwt(&claims, &support::key()).unwrap().expose().to_owned(), ids)
    };
    let (build, build_ids) = of("p/main", "build", "1");
    let (test, test_ids) = of("p/main", "test", "1");
    let (stranger, stranger_ids) = of("p/main", "test", "2");
    let (fork, _) = of("p/pr/7", "build", "1");
    let named = |ids: &Backend, name: &str| {
        json!({"workflow_run_backend_id": ids.run, "workflow_job_run_backend_id": ids.job, "name": name, "version": 7,
            "mime_type": "application/octet-stream"})
    };
    let (status, body) = cache.call(ARTIFACT, "CreateArtifact", &build, &named(&build_ids, "objects"));
    assert_eq!(status, 200, "{body}");
    let url = path_of(&body["signed_upload_url"]);
    assert_eq!(cache.put(&url, b"objects").status, 201);
    let finalize = |size: &str, hash: String| {
        let mut body = named(&build_ids, "objects");
        body["size"] = size.into();
        body["hash"] = hash.into();
        body
    };
    let right = format!("sha256:{}", Digest::of(b"objects").hex());
    // the job of a run cannot be spoken for by another one, and neither can the run
    for token in [&test, &stranger, &fork, &main] {
        let (status, body) = cache.call(ARTIFACT, "FinalizeArtifact", token, &finalize("7", right.clone()));
        assert_eq!((status, &body["code"]), (403, &"permission_denied".into()), "{body}");
    }
    let (status, body) = cache.call(
        ARTIFACT,
        "FinalizeArtifact",
        &build,
        &finalize("7", format!("sha256:{}", Digest::of(b"other").hex())),
    );
    assert!(status == 400 && body["msg"].as_str().unwrap().contains("digest"), "{body}");
    let (_, body) = cache.call(ARTIFACT, "CreateArtifact", &build, &named(&build_ids, "objects"));
    let url = path_of(&body["signed_upload_url"]);
    assert_eq!(cache.put(&url, b"objects").status, 201);
    let (status, body) = cache.call(ARTIFACT, "FinalizeArtifact", &build, &finalize("7", right));
    assert!(status == 200 && body["artifact_id"].is_string(), "{body}");
    // another job of the run reads it
    let (_, listed) = cache.call(ARTIFACT, "ListArtifacts", &test, &named(&test_ids, ""));
    assert_eq!(listed["artifacts"][0]["name"], "objects", "{listed}");
    let (_, signed) = cache.call(ARTIFACT, "GetSignedArtifactURL", &test, &named(&build_ids, "objects"));
    let answer = cache.client.ask("GET", &path_of(&signed["signed_url"]), None, None);
    assert!(answer.body == b"objects" && answer.head.contains("filename*=UTF-8''objects"), "{}", answer.head);
    // a job of another run does not, whichever ids it names
    let (_, listed) = cache.call(ARTIFACT, "ListArtifacts", &stranger, &named(&stranger_ids, ""));
    assert_eq!(listed["artifacts"], json!([]));
    for method in ["ListArtifacts", "GetSignedArtifactURL", "DeleteArtifact"] {
        assert_eq!(cache.call(ARTIFACT, method, &stranger, &named(&build_ids, "objects")).0, 403, "{method}");
        assert_eq!(cache.call(ARTIFACT, method, "nothing", &named(&build_ids, "objects")).0, 401, "{method}");
    }
    // and after a restart it is all the same; a name that was deleted is free
    cache.restart();
    assert_eq!(cache.call(ARTIFACT, "CreateArtifact", &build, &named(&build_ids, "objects")).0, 409);
    assert_eq!(cache.call(ARTIFACT, "DeleteArtifact", &test, &named(&build_ids, "objects")).0, 200);
    assert_eq!(cache.client.ask("GET", &path_of(&signed["signed_url"]), None, None).status, 404);
    assert_eq!(cache.call(ARTIFACT, "CreateArtifact", &build, &named(&build_ids, "objects")).0, 200);
}
