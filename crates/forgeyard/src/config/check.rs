//! Whether a configuration contradicts itself: names that are used must be declared.

use crate::output::Wrong;
use anyhow::Result;
use forgeyard_model::config::FarmConfig;

pub(super) fn wrong(what: String) -> Result<()> {
    Err(Wrong::new(what).fix("correct the configuration").into())
}

/// Names that are used must be declared.
pub(super) fn check(config: &FarmConfig) -> Result<()> {
    let uses = &config.use_flavors;
    for flavor in [&uses.plan, &uses.build, &uses.test, &uses.gpu_test] {
        if config.flavor(flavor).is_none() {
            return wrong(format!(
                "`use-flavors` names the flavor `{flavor}`, which is not declared under [[flavors]]"
            ));
        }
    }
    for pool in &config.pools {
        if config.image(&pool.image).is_none() {
            return wrong(format!(
                "pool `{}` boots the image `{}`, which is not declared under [[images]]",
                pool.name, pool.image
            ));
        }
        if let Some(flavor) = pool.flavors.iter().find(|flavor| config.flavor(flavor).is_none()) {
            return wrong(format!(
                "pool `{}` offers the flavor `{flavor}`, which is not declared under [[flavors]]",
                pool.name
            ));
        }
    }
    forgeyard_engine::pools::check::pools(config).map_err(|reason| {
        let fix = reason.fix.unwrap_or_else(|| "correct the configuration".to_owned());
        Wrong::new(reason.message).fix(fix)
    })?;
    queue_rules(config)
}

/// Rules of the queue must name what is there, and not contradict themselves.
fn queue_rules(config: &FarmConfig) -> Result<()> {
    let rules = &config.queue;
    if let Some(problem) = rules.problems().into_iter().next() {
        return wrong(problem);
    }
    let of_budgets = rules.budgets.iter().filter_map(|budget| budget.pool.as_ref());
    let of_prices = rules.prices.iter().filter_map(|price| price.pool.as_ref());
    if let Some(pool) = of_budgets.chain(of_prices).find(|pool| config.pool(pool).is_none()) {
        return wrong(format!("[queue] names the pool `{pool}`, which is not declared under [[pools]]"));
    }
    let mut of_prices = rules.prices.iter().filter_map(|price| price.flavor.as_ref());
    if let Some(flavor) = of_prices.find(|flavor| config.flavor(flavor).is_none()) {
        return wrong(format!(
            "[[queue.prices]] names the flavor `{flavor}`, which is not declared under [[flavors]]"
        ));
    }
    let of_budgets = rules.budgets.iter().filter_map(|budget| budget.repository.as_ref());
    let of_rules = rules.repositories.iter().map(|own| (&own.forge, own.id));
    let mut named = of_budgets.map(|key| (&key.forge, key.id)).chain(of_rules);
    if let Some((forge, id)) = named.find(|(forge, id)| config.repository(forge, *id).is_none()) {
        return wrong(format!(
            "[queue] names repository {id} at {forge}, which is not declared under [[repositories]]"
        ));
    }
    Ok(())
}
