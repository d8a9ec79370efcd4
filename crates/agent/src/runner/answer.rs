//! What the hook of a runner is told, as the text of its answer file: a first line `allowed` or `refused`, then lines for
//! the job's own log.
//!
//! Reasons carry names from the forge, and the log of a job is read for commands by the runner program (`::name::` at the
//! beginning of a line, `##[name]` anywhere). So each line begins with a mark of ours, holds no control character, and no
//! such beginning.

use crate::state::Word;
use forgeyard_model::Explanation;

/// Most pieces of evidence, and most characters of a line.
const LINES: usize = 10;
const WIDTH: usize = 500;

/// The content of the answer file.
pub(crate) fn text(word: &Word) -> String {
    let first = match word {
        Word::Allowed { .. } => "allowed",
        Word::Refused { .. } | Word::Unanswered { .. } => "refused",
    };
    lines(word).into_iter().fold(format!("{first}\n"), |text, line| text + &line + "\n")
}

/// The same for people, a line each.
pub(crate) fn lines(word: &Word) -> Vec<String> {
    match word {
        Word::Allowed { by } if by.is_empty() => vec![line("this job may run here")],
        Word::Allowed { by } => vec![line(&format!("this job may run here, by {}", by.join(", ")))],
        Word::Refused { reason } => explained("refused, so no step of this job runs", reason),
        Word::Unanswered { reason } => explained("no step of this job runs", reason),
    }
}

fn explained(beginning: &str, reason: &Explanation) -> Vec<String> {
    let mut all = vec![line(&format!("{beginning}: {} [{}]", reason.message, reason.code))];
    all.extend(reason.evidence.iter().take(LINES).map(|evidence| line(&format!("  - {evidence}"))));
    all.extend(reason.fix.iter().map(|fix| line(&format!("fix: {fix}"))));
    all
}

fn line(text: &str) -> String {
    let plain: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WIDTH).collect::<String>();
    format!("[forgeyard] {}", plain.replace("##[", "## ["))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(message: &str) -> Word {
        let reason = Explanation::new("gate.no_grant", message).with("grant demo").fix("ask for it");
        Word::Refused { reason }
    }

    #[test]
    fn a_refusal_says_why_and_what_to_do() {
        assert_eq!(
            text(&refused("nobody grants it")),
            "refused\n[forgeyard] refused, so no step of this job runs: nobody grants it [gate.no_grant]\n\
             [forgeyard]   - grant demo\n[forgeyard] fix: ask for it\n"
        );
        assert_eq!(
            text(&Word::Allowed { by: vec!["demo".to_owned()] }),
            "allowed\n[forgeyard] this job may run here, by demo\n"
        );
    }

    proptest! {
        #[test]
        fn no_name_from_a_forge_becomes_a_command_or_an_answer(message in "(\n|::|##\\[|allowed|[a-z\\]]){0,40}") {
            let text = text(&refused(&message));
            let mut lines = text.lines();
            prop_assert_eq!(lines.next(), Some("refused"));
            prop_assert_eq!(text.lines().count(), 4);
            for line in lines {
                prop_assert!(line.starts_with("[forgeyard] ") && !line.contains("##["));
            }
        }
    }
}
