//! `forgeyard device`: GPUs of the sites, with their health.

use super::{FarmArgs, ReadArgs};
use crate::output::{self, table_or};
use anyhow::Result;
use clap::Subcommand;
use forgeyard_model::DeviceId;
use forgeyard_model::device::{Device, DeviceState};
use std::process::ExitCode;

/// What can be asked about devices.
#[derive(Subcommand, Clone)]
pub enum DeviceCommand {
    /// List devices; those in quarantine with the reason.
    List(ReadArgs),
    /// Lift the quarantine of a device.
    Clear {
        /// The device, `dev_…`.
        device: DeviceId,
        #[command(flatten)]
        farm: FarmArgs,
    },
    /// Take a device out: no new work gets it.
    Quarantine {
        /// The device, `dev_…`.
        device: DeviceId,
        /// Why; it is written into the audit trail.
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        farm: FarmArgs,
    },
}

/// Runs a command.
pub async fn run(command: DeviceCommand) -> Result<ExitCode> {
    match command {
        DeviceCommand::List(read) => {
            let devices = read.farm.client()?.devices().await?;
            output::show(read.json, &devices, |devices| list(devices))
        }
        DeviceCommand::Clear { device, farm } => {
            farm.client()?.clear_device(device).await?;
            output::say(&format!("{device} is out of quarantine"))?;
            Ok(ExitCode::SUCCESS)
        }
        DeviceCommand::Quarantine { device, reason, farm } => {
            farm.client()?.quarantine_device(device, &reason).await?;
            output::say(&format!("{device} is quarantined"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Devices as text: a table, then why any of them is out.
pub fn list(devices: &[Device]) -> String {
    let rows: Vec<Vec<String>> = devices
        .iter()
        .map(|device| {
            let facts = &device.facts;
            let memory = output::bytes(facts.memory_mib << 20);
            let model = format!("{}: {}", facts.kind.label(), facts.model);
            vec![device.id.to_string(), device.state.name().to_owned(), memory, model]
        })
        .collect();
    let mut text = table_or(
        "no site reports a device; see what a host offers with `forgeyard doctor`",
        &["device", "state", "memory", "model"],
        &rows,
    );
    for device in devices {
        if let DeviceState::Quarantined { reason } = &device.state {
            text.push_str(&format!("\n{} is quarantined: {reason}\n", device.id));
        }
    }
    text
}
