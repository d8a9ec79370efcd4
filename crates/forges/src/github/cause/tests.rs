use super::*;
use proptest::prelude::*;

fn rest(status: u16, message: &str) -> Cause {
    Cause::read(
        status,
        serde_json::json!({"message": message, "documentation_url": "x"}).to_string().as_bytes(),
        None,
    )
}

fn thrown(status: u16, name: &str) -> Cause {
    let body = serde_json::json!({
        "$id": "1", "innerException": null, "message": "some words", "errorCode": 0,
        "typeName": format!("GitHub.DistributedTask.WebApi.{name}, GitHub.DistributedTask.WebApi"), "typeKey": name,
    });
    Cause::read(status, body.to_string().as_bytes(), None)
}

#[test]
fn texts_of_the_rest_interface_have_causes() {
    let table = [
        (409, "Already exists - A runner with the name x already exists.", Cause::NameTaken),
        (
            422,
            "Runner group has reached max limit of 10000 runners",
            Cause::GroupFull { limit: Some(10_000) },
        ),
        (422, "It has reached max limit of 10,000 runners.", Cause::GroupFull { limit: Some(10_000) }),
        (422, "Repository level self-hosted runners are disabled", Cause::RepositoryRunnersDisabled),
        (422, "GitHub Actions is disabled for this repository", Cause::ActionsDisabled),
        (
            403,
            "Although you appear to have the correct authorization, the organization has an IP allow list enabled",
            Cause::IpAllowList,
        ),
        (403, "Resource not accessible by integration", Cause::PermissionMissing { needs: None }),
        (403, "This installation has been suspended", Cause::Suspended),
        (401, "Bad credentials", Cause::BadCredentials),
        (401, "A JSON web token could not be decoded", Cause::AppUnknown),
        (404, "Integration not found", Cause::AppUnknown),
        (401, "'Expiration time' claim ('exp') is too far in the future", Cause::ClockSkew),
        (422, "Runner \"x\" is currently running a job and cannot be deleted.", Cause::RunnerBusy),
        (403, "This workflow is already running", Cause::RunActive),
        (404, "Not Found", Cause::NotFound),
        (502, "Server Error", Cause::Unavailable { text: "Server Error".into() }),
        (418, "I am new", Cause::Other { text: "I am new".into() }),
    ];
    for (status, text, cause) in table {
        assert_eq!(rest(status, text), cause, "{status} {text}");
    }
}

#[test]
fn exceptions_of_the_actions_service_have_causes() {
    let table = [
        (409, "RunnerScaleSetSessionConflictException", Cause::SessionConflict),
        (409, "AgentExistsException", Cause::NameTaken),
        (404, "AgentNotFoundException", Cause::AgentUnknown),
        (400, "JobStillRunningException", Cause::RunnerBusy),
        (409, "RunnerScaleSetExistsException", Cause::ScaleSetExists),
    ];
    for (status, name, cause) in table {
        assert_eq!(thrown(status, name), cause, "{name}");
    }
}

#[test]
fn a_missing_permission_is_named_where_github_names_it() {
    let body = br#"{"message":"Resource not accessible by integration"}"#;
    let cause = Cause::read(403, body, Some("organization_self_hosted_runners=write"));
    assert!(cause.to_string().contains("organization_self_hosted_runners=write"), "{cause}");
    assert_eq!(cause.again(), Again::AfterChange);
}

#[test]
fn every_cause_that_needs_a_person_says_what_to_do() {
    let all = [
        Cause::NameTaken,
        Cause::GroupFull { limit: None },
        Cause::GroupHosted,
        Cause::RepositoryRunnersDisabled,
        Cause::ActionsDisabled,
        Cause::IpAllowList,
        Cause::PermissionMissing { needs: None },
        Cause::SingleSignOn,
        Cause::Suspended,
        Cause::AppUnknown,
        Cause::ClockSkew,
        Cause::ScaleSetExists,
        Cause::RunnerOutdated,
        Cause::NotFound,
    ];
    for cause in all {
        assert!(cause.again() == Again::Later || !cause.fix().is_empty(), "{cause:?}");
    }
}

#[test]
fn an_unknown_text_is_kept_bounded_and_without_control_characters() {
    let text = format!("\u{1b}[31mred{}", "x".repeat(5000));
    let Cause::Other { text } = Cause::read(418, text.as_bytes(), None) else { panic!("not kept") };
    assert_eq!(text.chars().count(), KEPT);
    assert!(text.starts_with(" [31mred"), "{text}");
    let details = br#"{"message":"Validation Failed","errors":[{"field":"labels","code":"invalid"}]}"#;
    assert!(Cause::read(422, details, None).to_string().contains("labels"));
}

proptest! {
    #[test]
    fn any_answer_has_a_cause(status in 300u16..600, body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let cause = Cause::read(status, &body, None);
        prop_assert!(cause.explanation().chars().count() < KEPT + 100);
    }
}
