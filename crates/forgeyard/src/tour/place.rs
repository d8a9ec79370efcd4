//! What a tour must find again when it goes on after a kill: its repository with the commits that the webhooks speak
//! of, the secret that they are signed with, and the address that agents call home to.
//!
//! Layout of the folder `tour` in the data folder: `repository.git`, `commits` (base and head), `webhook.secret`,
//! `port`. Each file is written whole or not at all.

use super::example;
use super::repository::{self, Repository};
use anyhow::{Context as _, Result, bail};
use forgeyard_model::Secret;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

/// Ports to choose from: below those that systems give to outgoing connections, so that the port of a farm that was
/// killed is still free when it comes back.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// The place of a tour.
pub struct Place {
    /// The repository and its commits.
    pub repository: Repository,
    /// What webhooks are signed with.
    pub secret: Secret,
    /// Where the farm listens, in every life of it.
    pub listen: SocketAddr,
}

impl Place {
    /// The place in a data folder: found again with `resume`, else made new.
    pub fn open(data: &Path, resume: bool) -> Result<Self> {
        if !resume && data.join("farm.db").exists() {
            bail!(
                "{} holds a farm already; go on with its tour by --resume, or choose another folder",
                data.display()
            );
        }
        let folder = crate::farm::folder(&data.join("tour"))?;
        let commits = folder.join("commits");
        let repository = if resume && commits.is_file() {
            let text = fs_err::read_to_string(&commits)?;
            let (base, head) = text.trim().split_once(' ').context("the saved tour is damaged")?;
            Repository { path: folder.join("repository.git"), base: base.to_owned(), head: head.to_owned() }
        } else {
            let made = repository::make(&folder, example::write)?;
            write(&commits, &format!("{} {}\n", made.base, made.head))?;
            made
        };
        let secret = kept(&folder.join("webhook.secret"), || Ok(forgeyard_control::keys::new_token()))?;
        let port = kept(&folder.join("port"), || free_port().map(|port| port.to_string()))?;
        let port: u16 = port.parse().context("the saved port of the tour is damaged")?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(Self { repository, secret: Secret::new(secret), listen })
    }
}

/// The text of a file; made and written down when there is none.
fn kept(path: &Path, make: impl FnOnce() -> Result<String>) -> Result<String> {
    if path.is_file() {
        return Ok(fs_err::read_to_string(path)?.trim().to_owned());
    }
    let text = make()?;
    write(path, &text)?;
    Ok(text)
}

/// Writes a file whole or not at all, for its owner only.
fn write(path: &Path, text: &str) -> Result<()> {
    use fs_err::os::unix::fs::OpenOptionsExt as _;
    use std::io::Write as _;
    let part = path.with_extension("part");
    let mut file =
        fs_err::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs_err::rename(&part, path)?;
    Ok(())
}

fn free_port() -> Result<u16> {
    for _ in 0..200 {
        let port = rand::random_range(PORTS);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port from {} to {} is free on this machine", PORTS.start, PORTS.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_tour_has_the_address_the_secret_and_the_commits_of_the_first() {
        let data = tempfile::tempdir().unwrap();
        let first = Place::open(data.path(), false).unwrap();
        let again = Place::open(data.path(), true).unwrap();
        assert_eq!(
            first.listen, again.listen,
            "agents that outlived the farm call the address they were given"
        );
        assert_eq!(first.secret.expose(), again.secret.expose());
        assert_eq!(
            (first.repository.base, first.repository.head),
            (again.repository.base, again.repository.head)
        );
    }

    #[test]
    fn a_folder_with_a_farm_is_not_taken_for_a_new_tour() {
        let data = tempfile::tempdir().unwrap();
        std::fs::write(data.path().join("farm.db"), "").unwrap();
        let error = Place::open(data.path(), false).err().unwrap().to_string();
        assert!(error.contains("--resume"), "{error}");
    }
}
