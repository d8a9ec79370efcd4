//! Webhooks of a Forgejo or Gitea, as far as they speak of jobs. The farm asks for lists of jobs anyway, so a webhook only
//! says that it is worth asking now: nothing of it is believed beyond the number of its repository.
//!
//! Headers come under the names of the forge itself (`X-Forgejo-Event`, `X-Gitea-Event`) and under those of GitHub. The
//! signature, `X-Forgejo-Signature` or `X-Gitea-Signature`, is the HMAC-SHA256 of the raw body in 64 lower-case hexadecimal
//! digits, without a word before them.
//!
//! Bodies, written after the public documentation and never seen from a server: Gitea 1.24 sends `workflow_job` in the shape
//! of GitHub and `workflow_run`; Forgejo sends `action_run_success`, `action_run_failure` and `action_run_recover` with the
//! `run` and its `repository`.

use super::node::Node;
use super::parse;
use forgeyard_model::Explanation;

/// Names of headers, the forge's own before those of GitHub.
pub const EVENT: [&str; 3] = ["x-forgejo-event", "x-gitea-event", "x-github-event"];
/// The same for the GUID.
pub const DELIVERY: [&str; 3] = ["x-forgejo-delivery", "x-gitea-delivery", "x-github-delivery"];
/// Headers with the bare signature.
pub const SIGNATURE: [&str; 2] = ["x-forgejo-signature", "x-gitea-signature"];

/// The number of the repository whose jobs are not what they were; none for events that speak of no jobs.
pub fn jobs_changed(event: &str, body: &[u8]) -> Result<Option<u64>, Explanation> {
    let of_run = match event {
        "workflow_job" | "workflow_run" => false,
        "action_run_success" | "action_run_failure" | "action_run_recover" => true,
        _ => return Ok(None),
    };
    let value = parse(event, body)?;
    let root = Node::root(event, &value);
    let at = if of_run { root.field("run")? } else { root };
    at.field("repository")?.field("id")?.id().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::{SignatureError, sign, verify_bare};
    use forgeyard_model::Secret;
    use proptest::prelude::*;
    use serde_json::json;

    fn job() -> String {
        json!({
            "action": "queued",
            "workflow_job": {
                "id": 394, "run_id": 891, "run_attempt": 1, "name": "build", "labels": ["gpu"], "status": "queued",
                "conclusion": "", "head_sha": "a".repeat(40), "head_branch": "main", "steps": null,
            },
            "repository": { "id": 4711, "full_name": "lab/solver" },
            "sender": { "id": 2, "login": "ada" },
        })
        .to_string()
    }

    fn run() -> String {
        json!({
            "action": "failure", "prior_status": "running", "last_run": null,
            "run": { "id": 891, "status": "failure", "repository": { "id": 4711 }, "trigger_user": { "id": 2 } },
        })
        .to_string()
    }

    #[test]
    fn an_event_of_jobs_names_its_repository_and_others_name_none() {
        for event in ["workflow_job", "workflow_run"] {
            assert_eq!(jobs_changed(event, job().as_bytes()), Ok(Some(4711)));
        }
        for event in ["action_run_success", "action_run_failure", "action_run_recover"] {
            assert_eq!(jobs_changed(event, run().as_bytes()), Ok(Some(4711)));
        }
        assert_eq!(jobs_changed("push", b"{}"), Ok(None));
        assert_eq!(jobs_changed("workflow_job", b"{}").unwrap_err().code, "webhook.missing_field");
        assert_eq!(jobs_changed("workflow_job", b"{").unwrap_err().code, "webhook.truncated");
        assert!(jobs_changed("action_run_success", job().as_bytes()).is_err());
    }

    #[test]
    fn a_bare_signature_counts_for_its_body_and_secret_alone() {
        let secret = Secret::new("simulated");
        let whole = sign(&secret, job().as_bytes()).unwrap();
        let bare = whole.strip_prefix("sha256=").unwrap();
        assert_eq!(verify_bare(&secret, Some(bare), job().as_bytes()), Ok(()));
        let mismatch = Err(SignatureError::Mismatch);
        assert_eq!(verify_bare(&Secret::new("other"), Some(bare), job().as_bytes()), mismatch);
        assert_eq!(verify_bare(&secret, Some(bare), run().as_bytes()), mismatch);
        assert_eq!(verify_bare(&secret, None, b""), Err(SignatureError::Missing));
        assert!(verify_bare(&secret, Some(&whole), job().as_bytes()).is_err());
        assert!(verify_bare(&secret, Some(&bare.to_uppercase()), job().as_bytes()).is_err());
        assert_eq!(verify_bare(&Secret::new(""), Some(bare), b""), Err(SignatureError::EmptySecret));
    }

    proptest! {
        #[test]
        fn no_body_and_no_signature_breaks_the_reader(
            body: Vec<u8>,
            text in "\\PC{0,200}",
            event in "workflow_job|workflow_run|action_run_success|\\PC{0,20}",
            cut in 0usize..400,
        ) {
            let secret = Secret::new("simulated");
            let _ = jobs_changed(&event, &body);
            let _ = jobs_changed(&event, text.as_bytes());
            prop_assert!(verify_bare(&secret, Some(&text), &body).is_err());
            let whole = job();
            prop_assert!(jobs_changed("workflow_job", &whole.as_bytes()[..cut.min(whole.len() - 1)]).is_err());
        }

        #[test]
        fn any_number_of_a_repository_is_read_as_it_is(id in 1u64..) {
            let body = json!({ "repository": { "id": id } }).to_string();
            prop_assert_eq!(jobs_changed("workflow_job", body.as_bytes()), Ok(Some(id)));
        }
    }
}
