//! `forgeyard artifact verify`: what signed statements say about a package, and whether it is really said of these
//! bytes by that key. With a public key and the statements as files, neither the farm nor a network is asked.

use super::{FarmArgs, artifact, named};
use crate::output::{self, Wrong};
use anyhow::{Context as _, Result};
use clap::Args;
use ed25519_dalek::VerifyingKey;
use ed25519_dalek::pkcs8::DecodePublicKey as _;
use forgeyard_formats::statement::{self, Predicate, StatementError, Subject, TestResult};
use forgeyard_model::{ArtifactId, Digest};
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What is verified, and by what.
#[derive(Args, Clone)]
pub struct VerifyArgs {
    /// The package: a file, or an artifact of the farm, `art_…`, which is downloaded.
    package: String,
    /// Public key that the statements must be signed with, PEM, as `forgeyard public-key` prints it. Keep it where the
    /// farm cannot change it. When it is not given, the farm is asked: that proves only that the farm is at one with
    /// itself.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// The signed statements, JSON. When it is not given, the farm is asked for those about these bytes.
    #[arg(long, value_name = "FILE")]
    statements: Option<PathBuf>,
    /// Name under which the package is spoken of, when the file has another one now.
    #[arg(long)]
    name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    farm: FarmArgs,
}

/// What came of one statement.
#[derive(Serialize)]
struct Finding {
    holds: bool,
    /// What it says, or why it is refused.
    says: Vec<String>,
}

#[derive(Serialize)]
struct Report {
    name: String,
    digest: Digest,
    key: String,
    /// The key is a file of the caller's own, not what the farm says of itself.
    key_is_pinned: bool,
    verified: bool,
    statements: Vec<Finding>,
}

/// Verifies. Succeeds when there is at least one statement and every one holds.
pub async fn run(args: VerifyArgs) -> Result<ExitCode> {
    let subject = subject(&args).await?;
    let key = key(&args).await?;
    let envelopes = envelopes(&args, &subject).await?;
    let findings: Vec<Finding> =
        envelopes.iter().map(|envelope| finding(&key, envelope.get().as_bytes(), &subject)).collect();
    let report = Report {
        verified: !findings.is_empty() && findings.iter().all(|finding| finding.holds),
        name: subject.name,
        digest: subject.digest,
        key: statement::key_id(&key),
        key_is_pinned: args.key.is_some(),
        statements: findings,
    };
    output::show(args.json, &report, text)?;
    Ok(if report.verified { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Name and digest of the package, from its bytes.
async fn subject(args: &VerifyArgs) -> Result<Subject> {
    let path = Path::new(&args.package);
    if path.exists() {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = args.name.clone().or(name).unwrap_or_default();
        return Ok(Subject { name, digest: digest(path)? });
    }
    let Ok(id) = args.package.parse::<ArtifactId>() else {
        return Err(Wrong::new(format!("{} is neither a file nor an artifact", args.package))
            .fix("name a file, or an artifact as `forgeyard artifact list` shows it")
            .into());
    };
    let client = args.farm.client()?;
    let record = client.artifact(id).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("package");
    artifact::download(&client, &record, &file).await?;
    Ok(Subject { name: args.name.clone().unwrap_or(record.name), digest: digest(&file)? })
}

fn digest(path: &Path) -> Result<Digest> {
    let cannot = || Wrong::new(format!("cannot read {}", path.display()));
    let mut file = fs_err::File::open(path).with_context(cannot)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer).with_context(cannot)?;
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
        hash.update(bytes);
    }
    Ok(Digest::from_bytes(hash.finalize().into()))
}

async fn key(args: &VerifyArgs) -> Result<VerifyingKey> {
    let (pem, from) = match &args.key {
        Some(path) => (super::named_text(path)?, path.display().to_string()),
        None => (args.farm.open_client()?.public_key().await?.pem, args.farm.farm.clone()),
    };
    VerifyingKey::from_public_key_pem(&pem).map_err(|error| {
        Wrong::new(format!("the key from {from} is not an Ed25519 public key in PEM: {error}"))
            .fix("print it with `forgeyard public-key`")
            .into()
    })
}

/// The envelopes, byte for byte as they were written, so that what is verified is what stands there.
async fn envelopes(args: &VerifyArgs, subject: &Subject) -> Result<Vec<Box<RawValue>>> {
    if let Some(path) = &args.statements {
        let bytes = named(path)?;
        let wrong = || {
            Wrong::new(format!("{} holds no statements", path.display()))
                .fix("get them with `forgeyard artifact get --statements`")
        };
        // A list, or one envelope alone.
        let starts_list = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
        return if starts_list {
            serde_json::from_slice(&bytes).with_context(wrong)
        } else {
            Ok(vec![serde_json::from_slice(&bytes).with_context(wrong)?])
        };
    }
    let client = args.farm.client()?;
    let artifacts = client.artifacts().await?;
    let mut envelopes = Vec::new();
    for artifact in artifacts.iter().filter(|artifact| artifact.digest == subject.digest) {
        for envelope in client.statements(artifact.id).await? {
            envelopes.push(serde_json::value::to_raw_value(&envelope)?);
        }
    }
    Ok(envelopes)
}

fn finding(key: &VerifyingKey, envelope: &[u8], subject: &Subject) -> Finding {
    match statement::verify_about(key, envelope, subject) {
        Ok(predicate) => Finding { holds: true, says: meaning(&predicate) },
        Err(StatementError::Subject { found, .. }) => Finding { holds: false, says: other(&found, subject) },
        Err(error) => Finding { holds: false, says: vec![error.to_string()] },
    }
}

/// It holds, and is about something else.
fn other(found: &str, subject: &Subject) -> Vec<String> {
    let mut says = vec![format!("it is signed with this key, and about something else: {found}")];
    if found.ends_with(&subject.digest.to_string()) {
        says.push(
            "those are these bytes under another name; if the file was renamed, give the old --name"
                .to_owned(),
        );
    }
    says
}

/// What a statement says, in words.
fn meaning(predicate: &Predicate) -> Vec<String> {
    match predicate {
        Predicate::Publish(publish) => vec![match &publish.target_channel {
            Some(channel) => format!("it may stand in the channel {channel}"),
            None => "it may stand in any channel".to_owned(),
        }],
        Predicate::TestResult(result) => tested(result),
    }
}

fn tested(result: &TestResult) -> Vec<String> {
    let indexes: Vec<String> = result.test_indexes.iter().map(ToString::to_string).collect();
    let device = match &result.device {
        None => "without a device".to_owned(),
        Some(device) => format!(
            "on {} ({}, driver {}){}",
            device.kind.label(),
            device.model,
            device.driver,
            device.uuid.as_ref().map(|uuid| format!(", UUID {uuid}")).unwrap_or_default()
        ),
    };
    vec![
        format!("its tests {} {}, {device}", indexes.join(", "), result.outcome.name()),
        format!("from {} to {}, at the site {}", result.started_at, result.ended_at, result.site.name),
        format!("in {} (fence {})", result.attempt.id, result.attempt.fence),
        format!(
            "built from {} at {}, started by {}, lane {}",
            result.recipe.repository, result.recipe.commit, result.trigger, result.lane
        ),
        format!("list of tests {}", result.tests),
        format!("environment lock {}", result.environment_lock),
        format!("site key {}, policy {}", result.site.key, result.policy_version),
    ]
}

fn text(report: &Report) -> String {
    let mut text =
        format!("package: {}\nsha256:  {}\nkey:     {}\n", report.name, report.digest.hex(), report.key);
    if !report.key_is_pinned {
        text.push_str(
            "note:    the key comes from the farm itself, so this shows only that the farm is at one with itself;\n         \
             keep the key once, and name it with --key\n",
        );
    }
    for (number, finding) in report.statements.iter().enumerate() {
        let _ =
            writeln!(text, "\nstatement {}: {}", number + 1, if finding.holds { "holds" } else { "REFUSED" });
        for line in &finding.says {
            let _ = writeln!(text, "  {line}");
        }
    }
    let end = match (report.statements.len(), report.verified) {
        (0, _) => "REFUSED: there is no statement about it; only what was promoted has some".to_owned(),
        (count, true) => format!("verified: {count} statements hold for exactly these bytes"),
        (count, false) => {
            let refused = report.statements.iter().filter(|finding| !finding.holds).count();
            format!("REFUSED: {refused} of {count} statements do not hold")
        }
    };
    let _ = writeln!(text, "\n{end}");
    text
}
