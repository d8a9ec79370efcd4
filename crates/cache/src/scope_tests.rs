use super::*;
use proptest::prelude::*;

fn path(text: &str) -> ScopePath {
    text.parse().unwrap()
}

fn rule(text: &str, parents: &[&str]) -> ScopeRule {
    ScopeRule { parents: parents.iter().map(|text| path(text)).collect(), ..ScopeRule::new(path(text)) }
}

fn project() -> ScopeTree {
    ScopeTree::new([
        ScopeRule { trusted: true, read: Reading::Public, ..rule("iree/main", &[]) },
        ScopeRule { family: true, ..rule("iree/pr", &["iree/main"]) },
        ScopeRule { trusted: true, read: Reading::Public, redistributable: false, ..rule("iree/cuda", &[]) },
        ScopeRule { read: Reading::Public, ..rule("iree/dev", &["iree/cuda", "iree/main"]) },
    ])
    .unwrap()
}

fn member(scope: &str) -> Who {
    Who::Member { scope: path(scope), writes: true, cold: false }
}

#[test]
fn fork_reads_main_and_writes_its_own_scope() {
    let grant = project().grant(&member("iree/pr/7"), Some(&path("iree/main")));
    assert_eq!(grant.reads, [path("iree/pr/7"), path("iree/main")]);
    assert_eq!(grant.writes, Some(path("iree/pr/7")));
    assert!(!grant.trusted);
}

#[test]
fn fork_reads_nothing_of_another_fork() {
    let grant = project().grant(&member("iree/pr/7"), Some(&path("iree/pr/8")));
    assert_eq!(grant, Grant::default());
}

#[test]
fn stranger_reads_public_scopes_and_writes_none() {
    let grant = project().grant(&Who::Anonymous, Some(&path("iree/main")));
    assert_eq!(grant, Grant { reads: vec![path("iree/main")], writes: None, trusted: false });
}

#[test]
fn what_may_not_be_redistributed_needs_a_token_even_as_a_parent() {
    let tree = project();
    assert_eq!(tree.grant(&Who::Anonymous, Some(&path("iree/cuda"))), Grant::default());
    let grant = tree.grant(&Who::Anonymous, Some(&path("iree/dev")));
    assert_eq!(grant.reads, [path("iree/dev"), path("iree/main")]);
    assert_eq!(tree.grant(&member("iree/dev"), None).reads.len(), 3);
}

#[test]
fn release_mode_reads_no_parents() {
    let who = Who::Member { scope: path("iree/dev"), writes: true, cold: true };
    let tree = project();
    assert_eq!(tree.grant(&who, Some(&path("iree/dev"))).reads, [path("iree/dev")]);
    assert_eq!(tree.grant(&who, Some(&path("iree/main"))).reads, [path("iree/dev")]);
    let other = ScopeTree::new([ScopeRule { read: Reading::Public, ..rule("other", &[]) }]).unwrap();
    assert_eq!(other.grant(&who, Some(&path("other"))), Grant::default());
}

#[test]
fn trees_that_would_leak_or_loop_are_refused() {
    let trusted = |rule| ScopeRule { trusted: true, ..rule };
    let family = |rule| ScopeRule { family: true, ..rule };
    let wrong = |rules: Vec<ScopeRule>| ScopeTree::new(rules).unwrap_err();
    assert!(matches!(wrong(vec![trusted(rule("a", &["b"])), rule("b", &[])]), ScopeError::Untrusted { .. }));
    assert!(matches!(wrong(vec![rule("a", &["b"]), rule("b", &["a"])]), ScopeError::Deep(_)));
    assert!(matches!(wrong(vec![rule("a", &["a"])]), ScopeError::Deep(_)));
    assert!(matches!(wrong(vec![rule("a", &["b"])]), ScopeError::NoParent { .. }));
    assert!(matches!(wrong(vec![rule("a", &[]), rule("a", &[])]), ScopeError::Twice(_)));
    assert!(matches!(
        wrong(vec![rule("a", &["b"]), family(rule("b", &[]))]),
        ScopeError::FamilyParent { .. }
    ));
}

#[test]
fn paths_hold_no_traversal() {
    for wrong in ["", "/", "a/", "/a", "a//b", "a/../b", "..", "a/-/b", "a b", "a%2fb", "ä", "a\0"] {
        assert!(wrong.parse::<ScopePath>().is_err(), "{wrong}");
    }
}

fn any_tree() -> impl Strategy<Value = ScopeTree> {
    let names = ["a", "b", "c", "a/x", "b/x"];
    let one =
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), prop::collection::vec(0..5usize, 0..3));
    prop::collection::vec(one, 5).prop_filter_map("a refused tree", move |all| {
        let rules =
            all.into_iter().zip(names).map(|((family, open, trusted, redistributable, parents), name)| {
                let mut parents: Vec<&str> = parents.into_iter().map(|at| names[at]).collect();
                parents.sort_unstable();
                parents.dedup();
                let read = if open { Reading::Public } else { Reading::Members };
                ScopeRule { family, trusted, redistributable, read, ..rule(name, &parents) }
            });
        ScopeTree::new(rules).ok()
    })
}

proptest! {
    #[test]
    fn nobody_writes_outside_the_own_scope_or_reads_a_sibling(
        tree in any_tree(),
        own in "[abc](/[xy])?",
        asked in prop::option::of("[abc](/[xy])?"),
        writes: bool,
        cold: bool,
    ) {
        let own = path(&own);
        let asked = asked.map(|text| path(&text));
        let who = Who::Member { scope: own.clone(), writes, cold };
        let grant = tree.grant(&who, asked.as_ref());
        let anonymous = tree.grant(&Who::Anonymous, asked.as_ref());
        prop_assert!(anonymous.writes.is_none());
        if let Some(scope) = &grant.writes {
            prop_assert!(writes && *scope == own && tree.of(&own).is_some());
        }
        let chain = tree.chain(&own);
        for read in &grant.reads {
            prop_assert!(chain.contains(read) || anonymous.reads.contains(read));
            prop_assert!(!cold || *read == own);
        }
        for read in &anonymous.reads {
            let rule = tree.of(read).unwrap();
            prop_assert!(rule.read == Reading::Public && rule.redistributable);
        }
        if grant.trusted {
            for read in &chain {
                prop_assert!(tree.of(read).unwrap().trusted);
            }
        }
    }

    #[test]
    fn any_text_is_a_path_that_reads_back_or_is_refused(text in "\\PC{0,20}") {
        if let Ok(path) = text.parse::<ScopePath>() {
            prop_assert_eq!(path.as_str(), text);
        }
    }
}
