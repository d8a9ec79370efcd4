//! Looks at the budgets of the scopes: the figures of a running service, held against [`crate::budget`].

use crate::budget::{Around, Report, Tally, Verdict, report};
use crate::scope::{ScopePath, ScopeRule};
use crate::service::Core;
use crate::store::Store as _;
use crate::surface::Surface;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::PoisonError;

/// Most scopes of families that are watched at once.
const MOST: usize = 10_000;

/// The scopes that have a budget, with their rules and figures: those that are declared, and those of families that somebody
/// came to.
fn watched(core: &Core) -> BTreeMap<String, (ScopeRule, Tally)> {
    let authority = core.authority();
    let mut watched = BTreeMap::new();
    let (all, uses) = (core.figures.all(), core.store.uses());
    let declared = authority.tree().rules().filter(|rule| !rule.family).map(|rule| rule.path.as_str());
    for scope in declared.chain(all.iter().map(|counted| counted.scope.as_str())).take(MOST) {
        let rule = scope.parse::<ScopePath>().ok().and_then(|path| authority.tree().of(&path).cloned());
        if let Some(rule) = rule.filter(|rule| rule.budget.is_some()) {
            watched.insert(scope.to_owned(), (rule, Tally::default()));
        }
    }
    // git asks a mirror for files that no mirror has: no cache is cold for that
    for one in all.iter().filter(|one| one.surface != Surface::Warm.as_str()) {
        if let Some((_, tally)) = watched.get_mut(&one.scope) {
            tally.hits += one.hits + one.parent_hits;
            tally.misses += one.misses;
            tally.writes += one.writes;
            tally.repeats += one.repeats;
            tally.denied += one.denied;
            tally.malformed += one.malformed;
            tally.failures += one.failures;
        }
    }
    for one in &uses {
        if let Some((_, tally)) = watched.get_mut(&one.scope) {
            tally.entries = one.entries;
        }
    }
    watched
}

/// Takes note of the figures now.
pub(crate) fn note(core: &Core) {
    let (now, watched) = ((core.clock)(), watched(core));
    core.day.lock().unwrap_or_else(PoisonError::into_inner).note(&core.figures.all(), now);
    let mut history = core.history.lock().unwrap_or_else(PoisonError::into_inner);
    history.retain(|scope| watched.contains_key(scope));
    for (scope, (rule, tally)) in &watched {
        if let Some(budget) = &rule.budget {
            history.note(scope, budget, now, *tally);
        }
    }
}

/// What is to be said of one scope with a budget, or of all.
pub(crate) fn reports(core: &Core, only: Option<&str>) -> Vec<Report> {
    let (now, watched, totals) = ((core.clock)(), watched(core), core.store.totals());
    let full = totals.disk_bytes >= core.capacity / 10 * 9;
    let history = core.history.lock().unwrap_or_else(PoisonError::into_inner);
    let said = watched.iter().filter(|(scope, _)| only.is_none_or(|only| only == *scope));
    said.filter_map(|(scope, (rule, tally))| {
        let window = history.window(scope, now, *tally).unwrap_or_default();
        let around = Around {
            parents: !rule.parents.is_empty(),
            full_tail_minutes: totals.tail_idle_minutes.filter(|_| full),
        };
        Some(report(scope, rule.budget.as_ref()?, &window, &around))
    })
    .collect()
}

/// The same for Prometheus: 1 where the budget is met or too little was seen to say.
pub(crate) fn prometheus(reports: &[Report]) -> String {
    let mut text = "# HELP forgeyard_cache_budget_met Whether the hit rate of a scope is what its budget asks for; if not, why.\n\
                    # TYPE forgeyard_cache_budget_met gauge\n"
        .to_owned();
    for Report { scope, verdict, .. } in reports {
        let (cause, met) = match verdict {
            Verdict::Cold(cause) => (cause.as_str(), 0),
            Verdict::Met | Verdict::Undecided => ("", 1),
        };
        let _ = writeln!(text, "forgeyard_cache_budget_met{{scope=\"{scope}\",cause=\"{cause}\"}} {met}");
    }
    text
}
