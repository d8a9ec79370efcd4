//! What whoever may not write is told.

use super::*;

/// bb-deployments#51, bazel#16724, buildbuddy#2916: an old Bazel stops when it is told that it may not update.
#[tokio::test]
async fn bb_deployments_51_reader_with_an_old_bazel_may_update_and_nothing_is_kept() {
    let (_folder, running) = start();
    let told = async |tool: &str, version: &str, access| {
        let caller = remote(&running, "p/main", access).await.tool(tool, version);
        caller.capabilities().await.action_cache_update_capabilities.unwrap().update_enabled
    };
    assert!(told("bazel", "4.2.3", Access::Read).await);
    assert!(!told("bazel", "6.0.0", Access::Read).await);
    assert!(!told("buck2", "1", Access::Read).await);
    assert!(told("bazel", "6.0.0", Access::Write).await);
    let stranger = Remote::new(running.address, None, "p/main").await.tool("bazel", "4.2.3");
    assert!(stranger.capabilities().await.action_cache_update_capabilities.unwrap().update_enabled);
}

/// buildbuddy#2249: thrown away, told in a header, counted.
#[tokio::test]
async fn buildbuddy_2249_write_of_a_reader_is_thanked_told_and_counted() {
    let (_folder, running) = start();
    let reader = remote(&running, "p/main", Access::Read).await.tool("bazel", "4.2.3");
    assert_eq!(reader.put(&[b"x"]).await, [0]);
    let bytes = noise(90_000, 1);
    assert_eq!(reader.write(&digest(&bytes), false, vec![bytes.clone()]).await.unwrap(), 90_000);
    let wire = frames(&bytes, 1000);
    let committed = reader.write(&digest(&bytes), true, vec![wire.clone()]).await.unwrap();
    assert_eq!(committed, wire.len() as i64);
    let answer = reader.update(b"a", &result(&[b"x"])).await.unwrap();
    assert_eq!(answer.metadata().get("forgeyard-discarded").unwrap(), "this caller may not write here");
    assert_eq!(answer.into_inner(), result(&[b"x"]));
    assert!(!reader.has(b"x").await && !reader.has(&bytes).await);
    assert_eq!(reader.action(b"a").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(metric(&running, "forgeyard_cache_denied_total{scope=\"p/main\",surface=\"reapi\"}"), 4);
}

/// bazel#16454: what a client shows is enough to find the line in the log.
#[tokio::test]
async fn bazel_16454_refusal_names_digest_reason_and_number() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    let refused = main.write(&digest(b"x"), false, vec![b"y".to_vec()]).await.unwrap_err();
    let text = refused.message();
    assert!(text.contains(&digest(b"x").hash) && text.contains("do not have the digest"), "{text}");
    assert!(text.contains("(refusal "), "{text}");
    let mut http = Client::new(running.address);
    let path = format!("/p/main/-/bazel/cas/{}", digest(b"x").hash);
    let refused = http.ask("PUT", &path, Some(&token("p/main", Access::Write)), Some(b"y"));
    let text = String::from_utf8(refused.body).unwrap();
    assert_eq!(refused.status, 422);
    assert!(text.contains(&digest(b"x").hash) && text.contains("(refusal "), "{text}");
    let refused = http.ask("PUT", "/p/main/-/kv/some/key", None, Some(b"y"));
    let text = String::from_utf8(refused.body).unwrap();
    assert_eq!(refused.status, 403);
    assert!(
        text.contains("some/key") && text.contains("may not write") && text.contains("(refusal "),
        "{text}"
    );
}
