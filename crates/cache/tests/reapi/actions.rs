//! Action results, and the contents that they promise.

use super::*;

#[tokio::test]
async fn first_result_of_a_trusted_scope_stays_and_the_second_is_an_alarm() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    main.put(&[b"one", b"two"]).await;
    main.update(b"a", &result(&[b"one"])).await.unwrap();
    main.update(b"a", &result(&[b"two"])).await.unwrap();
    assert_eq!(main.action(b"a").await.unwrap(), result(&[b"one"]));
    assert_eq!(metric(&running, "forgeyard_cache_mismatches_total{scope=\"p/main\",surface=\"reapi\"}"), 1);
}

#[tokio::test]
async fn bazel_18696_result_without_its_contents_is_refused_and_later_a_miss() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    assert_eq!(main.action(b"a").await.unwrap_err().code(), Code::NotFound);
    let refused = main.update(b"a", &result(&[b"x"])).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    main.put(&[b"x", b"in a tree"]).await;
    // files in a tree, and below a directory that has no tree
    let file = |bytes: &[u8]| OutputFile { path: "f".to_owned(), digest: Some(digest(bytes)) };
    let below = Directory { files: vec![file(b"deep")], directories: Vec::new() }.encode_to_vec();
    let root = Directory { files: vec![file(b"x")], directories: vec![file(&below)] }.encode_to_vec();
    let tree = Tree { root: Some(Directory::decode(&root[..]).unwrap()) }.encode_to_vec();
    let directory = |tree: Option<&[u8]>, root: Option<&[u8]>| ActionResult {
        output_directories: vec![OutputDirectory {
            path: "d".to_owned(),
            tree_digest: tree.map(digest),
            root_directory_digest: root.map(digest),
        }],
        ..ActionResult::default()
    };
    for whole in [directory(Some(&tree), None), directory(None, Some(&root))] {
        assert_eq!(main.update(b"dir", &whole).await.unwrap_err().code(), Code::FailedPrecondition);
    }
    main.put(&[&tree, &root, &below]).await;
    assert!(main.update(b"dir", &directory(Some(&tree), None)).await.is_ok());
    assert_eq!(
        main.update(b"root", &directory(None, Some(&root))).await.unwrap_err().code(),
        Code::FailedPrecondition
    );
    main.put(&[b"deep"]).await;
    let with_fields = ActionResult { of_tomorrow: "kept".to_owned(), ..directory(None, Some(&root)) };
    main.update(b"root", &with_fields).await.unwrap();
    assert_eq!(
        main.action(b"root").await.unwrap(),
        with_fields,
        "fields that the server does not know are kept"
    );
    // the contents go, as when somebody purged them
    let admin = token("admin", Access::Admin);
    let mut http = Client::new(running.address);
    let gone = format!("/-/admin/entries?scope=p%2Fmain&prefix={}", digest(b"deep").hash);
    assert_eq!(http.ask("DELETE", &gone, Some(&admin), None).body, b"{\"removed\":1}\n");
    assert_eq!(main.action(b"root").await.unwrap_err().code(), Code::NotFound);
    main.put(&[b"deep"]).await;
    assert_eq!(main.action(b"root").await.unwrap_err().code(), Code::NotFound, "it was dropped");
    // and can be stored again, also where the first one would stay
    main.update(b"root", &with_fields).await.unwrap();
    assert!(main.action(b"root").await.is_ok());
}

#[tokio::test]
async fn result_that_lost_its_contents_gives_way_in_a_trusted_scope() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    main.put(&[b"one", b"two"]).await;
    main.update(b"a", &result(&[b"one"])).await.unwrap();
    let admin = token("admin", Access::Admin);
    let gone = format!("/-/admin/entries?scope=p%2Fmain&prefix={}", digest(b"one").hash);
    Client::new(running.address).ask("DELETE", &gone, Some(&admin), None);
    // Bazel does not ask first with --noremote_accept_cached
    main.update(b"a", &result(&[b"two"])).await.unwrap();
    assert_eq!(main.action(b"a").await.unwrap(), result(&[b"two"]));
}

/// bazel#8250, #19348: whoever was told of a result can fetch its files for as long as a build takes, whatever else is stored.
#[tokio::test]
async fn bazel_8250_files_of_an_action_hit_outlive_the_quota() {
    let (folder, running) = start();
    write_authority(&folder.path().join("authority.json"), |authority| {
        authority.scopes.iter_mut().for_each(|scope| scope.quota_mib = Some(1));
    });
    let main = remote(&running, "p/main", Access::Write).await;
    let object = noise(300_000, 1);
    let linked = noise(300_000, 2);
    main.put(&[&object, &linked]).await;
    main.update(b"compile", &result(&[&object])).await.unwrap();
    main.action(b"compile").await.unwrap();
    assert!(main.has(&linked).await, "told that it is here");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut round = 10;
    // until the new authority is in force and something had to go
    loop {
        let more = noise(300_000, round);
        let stored = main.put(&[&more]).await;
        running.maintain().unwrap();
        let gone = Client::new(running.address)
            .ask("GET", &format!("/p/main/-/bazel/cas/{}", digest(&more).hash), None, None)
            .status;
        if gone == 404 {
            assert!(stored == [0] || stored == [Code::ResourceExhausted as i32]);
            break;
        }
        assert!(std::time::Instant::now() < end, "nothing was evicted");
        round += 1;
    }
    assert_eq!(main.read(&digest(&object), false, 0, 0).await.unwrap(), object);
    assert_eq!(main.read(&digest(&linked), false, 0, 0).await.unwrap(), linked);
    assert!(main.action(b"compile").await.is_ok());
}
