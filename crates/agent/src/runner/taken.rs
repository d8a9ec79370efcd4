//! Reads what the job-started hook wrote about the job that was taken.
//!
//! ```text
//! forgeyard taken 1
//! repository_id=42
//! …                      each field once, in this order
//! end
//! ```
//!
//! The bytes come from inside the machine, so nothing is guessed: anything else than exactly this is refused, and so is
//! the job. A value with a line end in it is a line too many.

use forgeyard_model::ForgeName;
use forgeyard_model::forge::{Person, Repository};
use forgeyard_model::registration::TakenJob;

/// Largest report.
pub(crate) const MOST: u64 = 4096;
/// Longest value; names of repositories are the longest, with 39 and 100 characters and a slash.
const LONGEST: usize = 256;

const FIRST: &str = "forgeyard taken 1";
const LAST: &str = "end";
const FIELDS: [&str; 8] =
    ["repository_id", "repository", "run_id", "run_attempt", "job", "actor_id", "actor", "triggering_actor"];

/// Why a report cannot be believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("it is not text")]
    NotText,
    #[error("it is larger than {MOST} bytes")]
    TooLarge,
    #[error("its first line is not `{FIRST}`")]
    Beginning,
    #[error("the line of `{0}` is missing or not where it should be")]
    Missing(&'static str),
    #[error("`{0}` is not what it should be")]
    Value(&'static str),
    #[error("it does not end where it should")]
    End,
}

/// Reads a report of a runner of this forge.
pub(crate) fn parse(forge: &ForgeName, bytes: &[u8]) -> Result<TakenJob, Unreadable> {
    if bytes.len() as u64 > MOST {
        return Err(Unreadable::TooLarge);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| Unreadable::NotText)?;
    let text = text.strip_suffix('\n').ok_or(Unreadable::End)?;
    let mut lines = text.split('\n');
    if lines.next() != Some(FIRST) {
        return Err(Unreadable::Beginning);
    }
    let mut values = [""; FIELDS.len()];
    for (name, value) in FIELDS.iter().copied().zip(&mut values) {
        let found = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix('='));
        let found = found.ok_or(Unreadable::Missing(name))?;
        if found.len() > LONGEST || found.chars().any(char::is_control) {
            return Err(Unreadable::Value(name));
        }
        *value = found;
    }
    if lines.next() != Some(LAST) || lines.next().is_some() {
        return Err(Unreadable::End);
    }
    let [repository_id, repository, run, run_attempt, job, actor_id, actor, _triggering] = values;
    Ok(TakenJob {
        repository: Repository {
            forge: forge.clone(),
            id: number("repository_id", repository_id)?,
            name: filled("repository", repository)?,
        },
        run: number("run_id", run)?,
        run_attempt: u32::try_from(number("run_attempt", run_attempt)?)
            .map_err(|_| Unreadable::Value("run_attempt"))?,
        key: filled("job", job)?,
        // Runner programs before the variable came do not say it; whoever must be known is asked of the forge anyway.
        actor: match actor_id {
            "" => None,
            id => Some(Person { id: number("actor_id", id)?, login: filled("actor", actor)? }),
        },
    })
}

/// A numeric id, as the forge writes it: digits only, not zero.
fn number(name: &'static str, text: &str) -> Result<u64, Unreadable> {
    let plain = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain).ok_or(Unreadable::Value(name))
}

fn filled(name: &'static str, text: &str) -> Result<String, Unreadable> {
    if text.is_empty() { Err(Unreadable::Value(name)) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn forge() -> ForgeName {
        "github".parse().unwrap()
    }

    fn report(values: [&str; 8]) -> String {
        let lines: String =
            FIELDS.iter().zip(values).map(|(name, value)| format!("{name}={value}\n")).collect();
        format!("{FIRST}\n{lines}{LAST}\n")
    }

    const GOOD: [&str; 8] = ["42", "lab/solver", "9007199254740993", "2", "build", "7", "ada", "bob"];

    #[test]
    fn ids_beyond_32_bits_are_read_as_they_are_arc_4602() {
        let job = parse(&forge(), report(GOOD).as_bytes()).unwrap();
        assert_eq!((job.repository.id, job.run, job.run_attempt), (42, 9_007_199_254_740_993, 2));
        assert_eq!((job.repository.name.as_str(), job.key.as_str()), ("lab/solver", "build"));
        assert_eq!(job.actor, Some(Person { id: 7, login: "ada".to_owned() }));
    }

    #[test]
    fn a_value_that_brings_lines_of_its_own_is_refused() {
        let mut values = GOOD;
        values[4] = "build\nactor_id=1\nactor=root\ntriggering_actor=root\nend";
        assert_eq!(parse(&forge(), report(values).as_bytes()), Err(Unreadable::End));
        let twice = report(GOOD) + &report(GOOD);
        assert_eq!(parse(&forge(), twice.as_bytes()), Err(Unreadable::End));
    }

    #[test]
    fn what_is_not_exactly_a_report_is_refused_by_name() {
        let with = |place: usize, value: &'static str| {
            let mut values = GOOD;
            values[place] = value;
            parse(&forge(), report(values).as_bytes())
        };
        for bad in ["", "0", "-1", "+1", "1e3", "0x10", " 1", "18446744073709551616", "٣"] {
            assert_eq!(with(0, bad), Err(Unreadable::Value("repository_id")), "{bad:?}");
        }
        assert_eq!(with(3, "4294967296"), Err(Unreadable::Value("run_attempt")));
        assert_eq!(with(4, ""), Err(Unreadable::Value("job")));
        assert_eq!(with(4, "a\u{1b}[2J"), Err(Unreadable::Value("job")));
        assert_eq!(with(5, "").unwrap().actor, None);
        assert_eq!(parse(&forge(), b""), Err(Unreadable::End));
        assert_eq!(parse(&forge(), b"end\n"), Err(Unreadable::Beginning));
        assert_eq!(parse(&forge(), b"\xff\n"), Err(Unreadable::NotText));
        assert_eq!(parse(&forge(), &vec![b'a'; 5000]), Err(Unreadable::TooLarge));
        let cut = report(GOOD).replace("run_id=9007199254740993\n", "");
        assert_eq!(parse(&forge(), cut.as_bytes()), Err(Unreadable::Missing("run_id")));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, text in "\\PC*") {
            let _ = parse(&forge(), &bytes);
            let _ = parse(&forge(), text.as_bytes());
        }

        #[test]
        fn a_report_with_any_values_says_those_values_or_nothing(
            ids in prop::array::uniform2(any::<u64>()),
            key in "\\PC{0,300}|[a-z\n=]{0,40}",
            cut in 0usize..300,
        ) {
            let numbers = ids.map(|id| id.to_string());
            let mut values = GOOD;
            (values[0], values[2], values[4]) = (&numbers[0], &numbers[1], &key);
            let text = report(values);
            if let Ok(job) = parse(&forge(), text.as_bytes()) {
                prop_assert_eq!((job.repository.id, job.run, job.key), (ids[0], ids[1], key));
            }
            let mut cut = cut.min(text.len() - 1);
            while !text.is_char_boundary(cut) {
                cut -= 1;
            }
            prop_assert!(parse(&forge(), &text.as_bytes()[..cut]).is_err());
        }
    }
}
