//! Files of a connection: the key of an App, its secrets, and its section of `forgeyard.toml`.
//!
//! A key is given out once, so a file that exists is never overwritten: it is refused before anything is asked of the
//! forge, or put aside under another name when the operator says so. All files are of mode 0600, in a folder of mode 0700.

use crate::config::FileConfig;
use crate::output::Wrong;
use anyhow::{Context as _, Result};
use forgeyard_forges::github::ConvertedApp;
use forgeyard_formats::toml_text;
use forgeyard_model::{ForgeName, Secret};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Where the secrets of an App go.
#[derive(Debug, Clone)]
pub struct Places {
    /// The private key.
    pub key: PathBuf,
    /// The secret of its webhook.
    pub webhook: PathBuf,
    /// The secret for the login of people.
    pub client: PathBuf,
}

impl Places {
    /// In a folder, which is made; each is looked at, and refused or put aside if it exists.
    pub fn prepare(folder: &Path, forge: &ForgeName, replace: bool) -> Result<Self> {
        let cannot = || {
            Wrong::new(format!("the folder {} cannot be written to", folder.display()))
                .fix("name another with --folder, or give this user the right to it")
        };
        if !folder.is_dir() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(cannot)?;
        }
        // A full disk or a missing right must show before there is a key to be lost.
        tempfile::tempfile_in(folder).with_context(cannot)?;
        let folder = folder.canonicalize()?;
        let file = |suffix: &str| folder.join(format!("{forge}{suffix}"));
        let places =
            Self { key: file(".pem"), webhook: file("-webhook.secret"), client: file("-client.secret") };
        for path in [&places.key, &places.webhook, &places.client] {
            if path.symlink_metadata().is_err() {
                continue;
            }
            if !replace {
                return Err(Wrong::new(format!("{} exists already, and is not overwritten", path.display()))
                    .fix("choose another --name or --folder, or put the old files aside with --replace")
                    .into());
            }
            put_aside(path)?;
        }
        Ok(places)
    }

    /// Writes what GitHub gave.
    pub fn write(&self, app: &ConvertedApp) -> std::io::Result<()> {
        write_new(&self.key, &app.pem)?;
        if let Some(secret) = &app.webhook_secret {
            write_new(&self.webhook, secret)?;
        }
        write_new(&self.client, &app.client_secret)
    }
}

/// Renames a file to `NAME.old-N`, the first that is free.
fn put_aside(path: &Path) -> Result<()> {
    for number in 1..1000 {
        let mut old = path.as_os_str().to_owned();
        old.push(format!(".old-{number}"));
        // A hard link is refused where the name is taken; a rename would overwrite.
        match std::fs::hard_link(path, &old) {
            Ok(()) => return Ok(fs_err::remove_file(path)?),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("putting {} aside", path.display()));
            }
        }
    }
    anyhow::bail!("{} was put aside too often; remove some of the old files", path.display())
}

fn write_new(path: &Path, secret: &Secret) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(secret.expose().as_bytes())?;
    file.sync_all()
}

/// The section of an App in `forgeyard.toml`.
pub struct Section {
    /// Name of the forge.
    pub forge: ForgeName,
    /// Address of an Enterprise Server.
    pub web: Option<String>,
    /// `organisation` or `repository`.
    pub register_at: &'static str,
    /// Client id of the App.
    pub client_id: String,
    /// Where its secrets are.
    pub places: Places,
    /// Whether it has a webhook.
    pub hook: bool,
}

impl Section {
    /// The whole of it, or only the App, to be put under a forge that is there already.
    pub fn text(&self, whole: bool) -> String {
        let quoted = |path: &Path| toml_string(&path.display().to_string());
        let mut text = String::new();
        if whole {
            text.push_str("[[forges]]\n");
            text.push_str(&format!("name = {}\nkind = \"github\"\n", toml_string(self.forge.as_str())));
            if let Some(web) = &self.web {
                text.push_str(&format!("web-url = {}\n", toml_string(web)));
            }
            text.push_str(&format!("register-at = \"{}\"\n\n", self.register_at));
        }
        text.push_str("[[forges.apps]]\n");
        text.push_str(&format!("client-id = {}\n", toml_string(&self.client_id)));
        text.push_str(&format!("key-file = {}\n", quoted(&self.places.key)));
        if self.hook {
            text.push_str(&format!("webhook-secret-file = {}\n", quoted(&self.places.webhook)));
        }
        // One forge alone may have it, because people are known by the numbers of one forge.
        text.push_str(&format!(
            "# client-secret-file = {}   # people sign in to the console\n",
            quoted(&self.places.client)
        ));
        text
    }

    /// Adds it to a configuration, unless that has a forge of the name: what then has to be done by hand is the answer.
    pub fn add_to(&self, config: &Path) -> Result<Option<String>> {
        let old = match fs_err::read_to_string(config) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        let name = config.display().to_string();
        let read =
            |text: &str| toml_text::read::<FileConfig>(&name, text).map_err(|e| Wrong::new(e.to_string()));
        if read(&old)?.forges.iter().any(|forge| forge.name == self.forge) {
            return Ok(Some(format!("the forge `{}` is in {name} already: put this below it", self.forge)));
        }
        let gap = if old.is_empty() { "" } else { "\n" };
        let new = format!(
            "{}{gap}{}",
            old.trim_end_matches('\n').to_owned() + if old.is_empty() { "" } else { "\n" },
            self.text(true)
        );
        // What is written must be read again, whatever the file held before.
        read(&new)?;
        let folder = config.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(new.as_bytes())?;
        if let Ok(known) = config.metadata() {
            file.as_file().set_permissions(known.permissions())?;
        }
        file.as_file().sync_all()?;
        file.persist(config)?;
        Ok(None)
    }
}

/// A TOML string with everything escaped that needs it.
fn toml_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(letter))),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(folder: &Path, forge: &str) -> Section {
        let forge: ForgeName = forge.parse().unwrap();
        let places = Places::prepare(folder, &forge, false).unwrap();
        Section {
            forge,
            web: None,
            register_at: "organisation",
            client_id: "Iv\"1".to_owned(),
            places,
            hook: true,
        }
    }

    #[test]
    fn section_is_added_once_and_what_was_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("forgeyard.toml");
        assert_eq!(section(folder.path(), "github").add_to(&config).unwrap(), None);
        fs_err::write(
            &config,
            format!("# mine\nmax-running = 3\n\n{}", fs_err::read_to_string(&config).unwrap()),
        )
        .unwrap();
        assert_eq!(section(folder.path(), "ghes").add_to(&config).unwrap(), None);
        assert!(section(folder.path(), "ghes").add_to(&config).unwrap().is_some());
        let text = fs_err::read_to_string(&config).unwrap();
        let file = toml_text::read::<FileConfig>("forgeyard.toml", &text).unwrap();
        assert!(text.starts_with("# mine\n"), "{text}");
        assert_eq!(file.max_running, Some(3));
        let names: Vec<&str> = file.forges.iter().map(|forge| forge.name.as_str()).collect();
        assert_eq!(names, ["github", "ghes"]);
        assert_eq!(file.forges[1].apps[0].client_id.as_deref(), Some("Iv\"1"));
    }

    #[test]
    fn a_file_that_exists_is_refused_or_put_aside_and_never_lost() {
        let folder = tempfile::tempdir().unwrap();
        let forge: ForgeName = "github".parse().unwrap();
        let key = folder.path().join("github.pem");
        for round in 1..3 {
            fs_err::write(&key, format!("key {round}")).unwrap();
            let error = Places::prepare(folder.path(), &forge, false).unwrap_err().to_string();
            assert!(error.contains("github.pem exists already"), "{error}");
            Places::prepare(folder.path(), &forge, true).unwrap();
            assert!(!key.exists());
        }
        for round in 1..3 {
            let old = fs_err::read_to_string(folder.path().join(format!("github.pem.old-{round}"))).unwrap();
            assert_eq!(old, format!("key {round}"));
        }
    }
}
