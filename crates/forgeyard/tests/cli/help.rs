//! Help texts: each command explains itself, and a change of them is seen in review.

use crate::rig::alone;

/// Names of the commands in a help text.
fn commands(help: &str) -> Vec<String> {
    let Some((_, after)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let list = after.split("\n\n").next().unwrap_or_default();
    list.lines()
        // A name stands two columns in; what stands deeper is the end of a long line.
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

fn collect(path: &[&str], into: &mut String) {
    let help = alone(&[path, &["--help"]].concat()).ends(0).out;
    into.push_str(&format!("$ forgeyard {}\n\n{help}\n", [path, &["--help"]].concat().join(" ")));
    for command in commands(&help) {
        collect(&[path, &[command.as_str()]].concat(), into);
    }
}

#[test]
fn every_command_explains_itself() {
    let top = alone(&["--help"]).ends(0).out;
    insta::assert_snapshot!("forgeyard", top);
    let names = commands(&top);
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let mut text = String::new();
        collect(&[&name], &mut text);
        insta::assert_snapshot!(name, text);
        // The line of the usage is the only one that the parser does not break.
        let mut lines = text.lines().filter(|line| !line.starts_with("Usage: "));
        assert!(lines.all(|line| line.chars().count() <= 100), "a line is longer than 100: {text}");
    }
}

#[test]
fn a_command_that_does_not_exist_is_answered_with_the_nearest_one() {
    alone(&["jobb", "list"]).ends(2).names(&["jobb", "'job'"]);
    alone(&["job", "lst"]).ends(2).names(&["lst", "'list'"]);
}
