//! Demands that are older than memory, from the database.
//!
//! The engine takes a demand out of memory some hours after its end, with its launches, attempts, machines and effects. Whoever
//! asks for one of them later is shown it as it stands in the database: as a small [`Farm`] that holds nothing else, so that the
//! same views explain it.

use crate::app::App;
use crate::http::error::{self, HttpError};
use forgeyard_engine::Farm;
use forgeyard_model::commit::Row;
use forgeyard_model::demand::Demand;
use forgeyard_model::{DemandId, JobId};

/// A demand with all that belongs to it, when it is not in memory. None where it is, or where there is no such demand.
pub async fn of_demand(app: &App, id: DemandId) -> Result<Option<Farm>, HttpError> {
    if app.core.read().demands.contains_key(&id) {
        return Ok(None);
    }
    let rows = app.store.of_demand(id).await.map_err(|error| error::database(&error))?;
    Ok((!rows.is_empty()).then(|| Farm::load(rows)))
}

/// The same for a launch.
pub async fn of_job(app: &App, id: JobId) -> Result<Option<Farm>, HttpError> {
    if app.core.read().jobs.contains_key(&id) {
        return Ok(None);
    }
    let row = app.store.row("job", &id.to_string()).await.map_err(|error| error::database(&error))?;
    match row {
        Some(Row::Job(job)) => match job.owner.demand() {
            Some(demand) => of_demand(app, demand).await,
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

/// Demands of the job of this number, at whatever forge, from memory or from the database.
pub async fn numbered(app: &App, job: u64) -> Result<Vec<Demand>, HttpError> {
    let mut found: Vec<Demand> = Vec::new();
    for forge in app.forge_names() {
        let known = app.core.read().demand_of(&forge, job).cloned();
        found.extend(match known {
            Some(demand) => Some(demand),
            None => {
                let row = app.store.demand_of(&forge, job).await.map_err(|error| error::database(&error))?;
                row.and_then(|row| match row {
                    Row::Demand(demand) => Some(demand),
                    _ => None,
                })
            }
        });
    }
    Ok(found)
}
