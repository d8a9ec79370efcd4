//! Known texts with which providers refuse a machine, and what they mean.
//!
//! A quota that is used up, or an account that may not, does not go away by trying again: such a refusal opens the breaker of
//! the pool at once, and a quota lets it go on as soon as a machine was given back (wr #69, gophercloud #2912: a hot loop of
//! refused requests). What a provider counts is its own affair: machines that are being deleted may still count there (wr
//! #38), so the numbers are evidence and nothing is decided by them.
//!
//! Texts: Nova's `Quota exceeded for cores, ram: Requested 8, 16384, but already used 96, 200 of 96, 51200 cores, ram` (status
//! 403, as an OpenStack that was started for it said), Neutron's `Maximum number of ports exceeded` and `Quota exceeded for
//! resources: ['port']`. The texts come from outside, and nothing that stands in them breaks the reader.

use forgeyard_model::Explanation;

/// Code of a quota that is used up.
pub(crate) const QUOTA: &str = "provider.quota";
/// Code of an account that may not.
pub(crate) const FORBIDDEN: &str = "provider.forbidden";

/// What a provider said of one of its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Of what: `cores`, `ram`, `instances`.
    pub(crate) resource: String,
    /// How much was asked for.
    pub(crate) requested: u64,
    /// How much is used.
    pub(crate) used: u64,
    /// How much there may be, where it was told.
    pub(crate) limit: Option<u64>,
}

impl Quota {
    fn text(&self) -> String {
        let Self { resource, requested, used, limit } = self;
        match limit {
            Some(limit) => format!("{resource}: {requested} asked for, {used} of {limit} used"),
            None => format!("{resource}: {requested} asked for, {used} used"),
        }
    }

    /// How much more the quota would have to be.
    fn missing(&self) -> Option<u64> {
        self.used.saturating_add(self.requested).checked_sub(self.limit?).filter(|missing| *missing > 0)
    }
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    text.split(',').map(|part| part.trim().parse().ok()).collect()
}

/// Digits, commas and spaces at the beginning of a text, and what follows them.
fn leading(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && !matches!(letter, ',' | ' '));
    text.split_at(end.unwrap_or(text.len()))
}

/// Reads `Quota exceeded for <r>: Requested <a>, but already used <b> of <c> <r>`, each a list. None unless all of it is there.
pub(crate) fn quotas(text: &str) -> Option<Vec<Quota>> {
    let (_, rest) = text.split_once("Quota exceeded for ")?;
    let (resources, rest) = rest.split_once(": Requested ")?;
    let (requested, rest) = rest.split_once("but already used ")?;
    let (used, rest) = leading(rest);
    let limits = rest.strip_prefix("of ").map(|rest| leading(rest).0);
    let plain = |name: &str| {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        (!name.is_empty() && name.len() <= 64 && name.bytes().all(fine)).then(|| name.to_owned())
    };
    let resources: Option<Vec<String>> = resources.split(',').map(|name| plain(name.trim())).collect();
    let (resources, requested) = (resources?, numbers(requested.trim().trim_end_matches(','))?);
    let (used, limits) = (numbers(used.trim())?, limits.and_then(|text| numbers(text.trim())));
    let same = |count: usize| count == resources.len();
    if !same(requested.len()) || !same(used.len()) || limits.as_ref().is_some_and(|some| !same(some.len())) {
        return None;
    }
    let each = resources.into_iter().zip(requested).zip(used).enumerate();
    let quota = |(place, ((resource, requested), used))| {
        let limit = limits.as_ref().and_then(|all| all.get(place).copied());
        Quota { resource, requested, used, limit }
    };
    Some(each.map(quota).collect())
}

/// Whether a text says that the ports of a network are used up. It tells no numbers.
fn ports(text: &str) -> bool {
    text.contains("Maximum number of ports exceeded")
        || text.contains("Quota exceeded for resources: ['port'")
}

/// Whether a text is that of a status 403.
fn forbidden(text: &str) -> bool {
    let status = |at: &str| {
        let status = at.trim_start_matches([' ', ':', '=']);
        status.strip_prefix("403").is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
    };
    let lower = text.to_lowercase();
    let after = |word: &str| {
        lower.match_indices(word).any(|(place, _)| lower.get(place + word.len()..).is_some_and(status))
    };
    lower.contains("403 forbidden")
        || after("http")
        || after("status")
        || after("status code")
        || after("(http")
}

/// What a refusal of a provider means, if that is known. What the provider said stays in the evidence, word for word.
pub(crate) fn cause(reason: &Explanation) -> Option<Explanation> {
    let texts = || std::iter::once(reason.message.as_str()).chain(reason.evidence.iter().map(String::as_str));
    let known = if let Some(all) = texts().find_map(quotas) {
        let said: Vec<String> = all.iter().map(Quota::text).collect();
        let more: Vec<String> = all
            .iter()
            .filter_map(|quota| Some(format!("{} more of {}", quota.missing()?, quota.resource)))
            .collect();
        let raise = if more.is_empty() { String::new() } else { format!(" ({})", more.join(", ")) };
        Explanation::new(QUOTA, format!("the quota of the provider is used up: {}", said.join("; "))).fix(format!(
            "lower `max` of the pool to what the quota holds, have the quota raised{raise}, or delete what other things of the project hold; machines that are being deleted may still count"
        ))
    } else if texts().any(ports) {
        Explanation::new(QUOTA, "the quota of the provider for ports is used up").fix(
            "delete ports that belong to no machine, or have the quota for ports raised: each machine takes one",
        )
    } else if texts().any(forbidden) {
        Explanation::new(
            FORBIDDEN,
            "the provider forbids it (status 403), and trying again would change nothing",
        )
        .fix("give the account that the site uses at the provider the right to make machines there")
    } else {
        return None;
    };
    let known = texts().fold(known, |known, text| known.with(text.to_owned()));
    // Whoever knew a better way out said so.
    Some(match &reason.fix {
        Some(fix) => known.fix(fix.clone()),
        None => known,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quota(resource: &str, requested: u64, used: u64, limit: Option<u64>) -> Quota {
        Quota { resource: resource.to_owned(), requested, used, limit }
    }

    /// The first text is what an OpenStack that was started for it said.
    #[test]
    fn wr_69_texts_of_quotas_are_read_with_their_numbers() {
        let text = "Quota exceeded for ram: Requested 10000000, but already used 0 of 51200 ram (HTTP 403)";
        assert_eq!(quotas(text), Some(vec![quota("ram", 10_000_000, 0, Some(51200))]));
        let text = "server `a`: 403 Quota exceeded for cores, ram: Requested 8, 16384, but already used 96, 200 of 96, 51200 cores, ram";
        assert_eq!(
            quotas(text),
            Some(vec![quota("cores", 8, 96, Some(96)), quota("ram", 16384, 200, Some(51200))])
        );
        let text = "Quota exceeded for cores: Requested 8, but already used 96 of 96";
        assert_eq!(quotas(text), Some(vec![quota("cores", 8, 96, Some(96))]));
        let short = "Quota exceeded for instances: Requested 1, but already used 10";
        assert_eq!(quotas(short), Some(vec![quota("instances", 1, 10, None)]));
        for other in [
            "Quota exceeded",
            "Quota exceeded for cores: Requested 8",
            "Quota exceeded for cores: Requested many, but already used 96 of 96 cores",
            "Quota exceeded for cores, ram: Requested 8, but already used 96 of 96 cores",
            "No valid host was found. There are not enough hosts available.",
        ] {
            assert_eq!(quotas(other), None, "{other}");
        }
    }

    #[test]
    fn known_refusals_have_a_name_their_numbers_and_a_way_out() {
        let said = |text: &str| cause(&Explanation::new("runner.not_made", text));
        let full = said("Quota exceeded for cores: Requested 8, but already used 92 of 96 cores").unwrap();
        assert_eq!(full.code, QUOTA);
        assert!(full.message.contains("cores: 8 asked for, 92 of 96 used"), "{full}");
        assert!(full.evidence[0].starts_with("Quota exceeded for cores"), "{full}");
        assert!(full.fix.as_ref().unwrap().contains("4 more of cores"), "{full}");
        assert_eq!(said("409 OverQuota: Maximum number of ports exceeded").unwrap().code, QUOTA);
        for text in [
            "403 Forbidden",
            "Policy doesn't allow os_compute_api:servers:create to be performed. (HTTP 403)",
            "create: the provider answered with status 403",
        ] {
            assert_eq!(said(text).unwrap().code, FORBIDDEN, "{text}");
        }
        for text in ["No valid host was found", "port 4030 is taken", "http 4031", "status 500 in job 403"] {
            assert_eq!(said(text), None, "{text}");
        }
        let inside = Explanation::new("provider.create", "the machine could not be made")
            .with("Quota exceeded for ram: Requested 4096, but already used 51200 of 51200 ram");
        assert_eq!(cause(&inside).unwrap().code, QUOTA, "wherever the text stands");
    }

    proptest! {
        #[test]
        fn any_numbers_are_read_as_they_are(
            all in prop::collection::vec(("[a-z_]{1,20}", any::<u64>(), any::<u64>(), any::<u64>()), 1..4),
            before in "[^Q]{0,40}",
        ) {
            type One = (String, u64, u64, u64);
            let list = |of: fn(&One) -> String| all.iter().map(of).collect::<Vec<_>>().join(", ");
            let names = list(|one| one.0.clone());
            let text = format!(
                "{before}Quota exceeded for {names}: Requested {}, but already used {} of {} {names}",
                list(|one| one.1.to_string()), list(|one| one.2.to_string()), list(|one| one.3.to_string()),
            );
            let read: Vec<Quota> = all.iter().map(|one| quota(&one.0, one.1, one.2, Some(one.3))).collect();
            prop_assert_eq!(quotas(&text), Some(read));
            prop_assert_eq!(cause(&Explanation::new("x", text)).unwrap().code, QUOTA);
        }

        #[test]
        fn no_text_breaks_the_reader(
            text in "\\PC{0,200}",
            pieces in prop::collection::vec(
                prop_oneof![
                    Just("Quota exceeded for "), Just(": Requested "), Just("but already used "), Just("of "),
                    Just("9999999999999999999999"), Just(", "), Just("cores"), Just("HTTP 403"), Just("ſ"), Just("İ"),
                ],
                0..12,
            ),
        ) {
            let _ = quotas(&text);
            let _ = cause(&Explanation::new("x", text));
            let joined = pieces.concat();
            let _ = quotas(&joined);
            let _ = cause(&Explanation::new("x", joined));
        }
    }
}
