//! Names and links of a package's entries: everything stays inside the package.
//!
//! A target that looks harmless as a text can still lead outside through another link, so links are followed step
//! by step the way an operating system does, over the links of the package itself.

use std::collections::BTreeMap;

/// Steps that following one link may take.
const STEPS: usize = 256;

/// The path of an entry without `./` and a closing slash.
///
/// # Errors
/// When it is empty, absolute, too long or has a `..`.
pub(super) fn clean(path: &str) -> Result<String, &'static str> {
    if path.len() > 4096 {
        return Err("its path is too long");
    }
    if path.starts_with('/') {
        return Err("its path is absolute");
    }
    if path.contains('\0') {
        return Err("its path holds a zero byte");
    }
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err("its path leads upwards"),
            other => parts.push(other),
        }
    }
    if parts.is_empty() {
        return Err("its path is empty");
    }
    Ok(parts.join("/"))
}

/// Follows `target`, the text of a symbolic link at `path`.
///
/// # Errors
/// When it is absolute, leaves the package at any step, or takes too many steps.
pub(super) fn follow(links: &BTreeMap<String, String>, path: &str, target: &str) -> Result<(), &'static str> {
    let mut at: Vec<&str> = path.split('/').collect();
    at.pop();
    let mut todo: Vec<&str> = Vec::new();
    push(&mut todo, target)?;
    let mut steps = 0;
    while let Some(part) = todo.pop() {
        steps += 1;
        if steps > STEPS {
            return Err("following the link takes too many steps");
        }
        match part {
            "" | "." => {}
            ".." => {
                if at.pop().is_none() {
                    return Err("the link leads out of the package");
                }
            }
            name => {
                at.push(name);
                if let Some(next) = links.get(&at.join("/")) {
                    at.pop();
                    push(&mut todo, next)?;
                }
            }
        }
    }
    Ok(())
}

fn push<'a>(todo: &mut Vec<&'a str>, target: &'a str) -> Result<(), &'static str> {
    if target.is_empty() || target.len() > 4096 || target.contains('\0') {
        return Err("the link has no usable target");
    }
    if target.starts_with('/') {
        return Err("the link leads to an absolute path");
    }
    if todo.len() > STEPS {
        return Err("following the link takes too many steps");
    }
    todo.extend(target.split('/').rev());
    Ok(())
}

/// The nearest parent of `path` that is a symbolic link.
pub(super) fn linked_parent<'a>(links: &BTreeMap<String, String>, path: &'a str) -> Option<&'a str> {
    path.match_indices('/').map(|(at, _)| &path[..at]).find(|parent| links.contains_key(*parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect()
    }

    fn all_inside(pairs: &[(&str, &str)]) -> bool {
        let links = links(pairs);
        links.iter().all(|(path, target)| follow(&links, path, target).is_ok())
    }

    #[test]
    fn links_inside_are_allowed() {
        assert!(all_inside(&[("lib/libz.so", "libz.so.1"), ("lib64", "lib"), ("bin/x", "../lib/./a/../x")]));
    }

    #[test]
    fn links_outside_are_refused() {
        for target in ["/etc/passwd", "../..", "../../x", "x/../../../y", ""] {
            assert!(!all_inside(&[("lib/x", target)]), "{target}");
        }
    }

    #[test]
    fn link_that_leaves_only_through_another_link_is_refused() {
        let deep = ("x/y/b", "../..");
        assert!(all_inside(&[deep]));
        assert!(!all_inside(&[deep, ("a", "x/y/b/../../../outside")]));
    }

    #[test]
    fn circle_of_links_ends() {
        assert!(!all_inside(&[("a", "b"), ("b", "a")]));
    }

    #[test]
    fn paths_are_cleaned_or_refused() {
        assert_eq!(clean("./lib//x/"), Ok("lib/x".to_owned()));
        for bad in ["", ".", "/x", "a/../b", "..", "a\0b"] {
            assert!(clean(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn entry_below_a_link_is_found() {
        let links = links(&[("a/b", "c")]);
        assert_eq!(linked_parent(&links, "a/b/c/d"), Some("a/b"));
        assert_eq!(linked_parent(&links, "a/bb/c"), None);
    }
}
