//! Claims about demand. A claim that answers a public report is named after it.

mod caps;
pub(crate) mod desk;
mod docker;
mod gate;
mod ledger;
mod limits;
mod past;
mod people;
mod registrations;
mod repeat;
mod storm;
mod theft;
