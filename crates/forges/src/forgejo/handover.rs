//! What a machine is handed for one job of a Forgejo: one word, base64 of lines, so that it travels as the configuration of
//! a GitHub runner does and a shell can read it (`scripts/forgejo-runner.sh`).
//!
//! ```text
//! forgejo 1
//! url https://git.example.org
//! uuid 99fc4a58-…
//! token 40 hexadecimal digits
//! labels gpu:host,linux:host
//! handle a723d3e3-…            absent where the server tells none
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forgeyard_model::Secret;

const FIRST: &str = "forgejo 1";

/// A registration with the job that it is for.
#[derive(Debug, Clone, PartialEq)]
pub struct OneJob {
    /// Address of the server.
    pub url: String,
    /// Name of the runner's account.
    pub uuid: String,
    /// Its password.
    pub token: Secret,
    /// Labels that it offers; jobs run in the machine itself (`host`).
    pub labels: Vec<String>,
    /// The job, where the server tells it.
    pub handle: Option<String>,
}

/// A handover that is none. Nothing of it is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the handover of a runner cannot be read")]
pub struct UnreadableHandover;

/// One value: no space, no control character, no comma where lists are parted by it.
fn plain(text: &str) -> bool {
    !text.is_empty() && text.len() <= 2048 && text.bytes().all(|byte| byte.is_ascii_graphic())
}

impl OneJob {
    /// As one word. None if a value cannot stand in it: then the server told something odd.
    pub fn encode(&self) -> Option<Secret> {
        let fine = |label: &String| plain(label) && !label.contains([',', ':']);
        let values = [&self.url, &self.uuid].into_iter().chain(self.handle.as_ref());
        if !values.clone().all(|value| plain(value))
            || !plain(self.token.expose())
            || !self.labels.iter().all(fine)
        {
            return None;
        }
        let labels: Vec<String> = self.labels.iter().map(|label| format!("{label}:host")).collect();
        let mut text =
            format!("{FIRST}\nurl {}\nuuid {}\ntoken {}\n", self.url, self.uuid, self.token.expose());
        text.push_str(&format!("labels {}\n", labels.join(",")));
        if let Some(handle) = &self.handle {
            text.push_str(&format!("handle {handle}\n"));
        }
        Some(Secret::new(STANDARD.encode(text)))
    }

    /// Reads what [`OneJob::encode`] wrote.
    pub fn decode(word: &str) -> Result<Self, UnreadableHandover> {
        let bytes = STANDARD.decode(word).map_err(|_| UnreadableHandover)?;
        let text = String::from_utf8(bytes).map_err(|_| UnreadableHandover)?;
        let mut lines = text.strip_suffix('\n').ok_or(UnreadableHandover)?.split('\n');
        if lines.next() != Some(FIRST) {
            return Err(UnreadableHandover);
        }
        let mut value = |name: &str| {
            let line = lines.next()?;
            line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned)
        };
        let mut needed = |name: &str| value(name).filter(|text| plain(text)).ok_or(UnreadableHandover);
        let (url, uuid, token) = (needed("url")?, needed("uuid")?, needed("token")?);
        let labels = value("labels").ok_or(UnreadableHandover)?;
        let labels = labels.split(',').filter(|label| !label.is_empty());
        let labels: Option<Vec<String>> =
            labels.map(|label| label.strip_suffix(":host").map(str::to_owned)).collect();
        let handle = lines.next().map(|line| line.strip_prefix("handle ").filter(|text| plain(text)));
        let handle = match handle {
            None => None,
            Some(handle) => Some(handle.ok_or(UnreadableHandover)?.to_owned()),
        };
        if lines.next().is_some() {
            return Err(UnreadableHandover);
        }
        Ok(Self { url, uuid, token: Secret::new(token), labels: labels.ok_or(UnreadableHandover)?, handle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(handle: Option<&str>) -> OneJob {
        OneJob {
            url: "https://git.example.org".to_owned(),
            uuid: "99fc4a58-a25e".to_owned(),
            token: Secret::new("0123abc"),
            labels: vec!["gpu".to_owned(), "linux".to_owned()],
            handle: handle.map(str::to_owned),
        }
    }

    #[test]
    fn what_is_written_is_read_and_is_one_word_that_shows_nothing() {
        for one in [sample(Some("a723d3e3")), sample(None), OneJob { labels: Vec::new(), ..sample(None) }] {
            let word = one.encode().unwrap();
            assert!(word.expose().bytes().all(|byte| byte.is_ascii_graphic()));
            assert_eq!(OneJob::decode(word.expose()).unwrap(), one);
            assert!(!format!("{one:?} {word:?}").contains("0123abc"));
        }
    }

    /// What a server says must not become another line.
    #[test]
    fn a_value_with_a_line_end_or_a_space_in_it_is_never_handed_over() {
        for odd in ["a\nhandle b", "a b", "", "a\u{7f}"] {
            assert_eq!(sample(Some(odd)).encode(), None, "{odd:?}");
            assert_eq!(OneJob { uuid: odd.to_owned(), ..sample(None) }.encode(), None);
            assert_eq!(OneJob { token: Secret::new(odd), ..sample(None) }.encode(), None);
        }
        assert_eq!(OneJob { labels: vec!["a,b".to_owned()], ..sample(None) }.encode(), None);
    }

    proptest! {
        #[test]
        fn no_word_breaks_the_reader(text in ".{0,300}", plain in "[ -~\n]{0,300}") {
            let _ = OneJob::decode(&text);
            if let Ok(read) = OneJob::decode(&STANDARD.encode(format!("{FIRST}\n{plain}"))) {
                prop_assert!(read.encode().is_some() || read.labels.iter().any(|label| label.contains(':')));
            }
        }
    }
}
