//! What the farm asks of an App: permissions and events, each with its reason. The manifest is made of this table,
//! and the doctor holds installations against it.

use super::apps::Installation;
use super::endpoint::{Endpoint, Login, Target};
use serde_json::{Map, Value, json};

/// A permission that the farm needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Name of the permission.
    pub permission: &'static str,
    /// `read` or `write`.
    pub level: &'static str,
    /// What it is for.
    pub why: &'static str,
    /// Where it is needed.
    pub place: Place,
}

/// Where runners are registered, for a need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Everywhere.
    Anywhere,
    /// Only when runners are registered at an organisation.
    Organisation,
    /// Only when runners are registered at single repositories.
    Repository,
}

/// All of them.
pub const NEEDS: &[Need] = &[
    Need {
        permission: "actions",
        level: "write",
        why: "read queued runs and jobs, and repeat jobs that were lost",
        place: Place::Anywhere,
    },
    Need {
        permission: "administration",
        level: "write",
        why: "register and delete runners at a repository",
        place: Place::Repository,
    },
    Need {
        permission: "checks",
        level: "write",
        why: "say in pull requests why a job waits or was refused",
        place: Place::Anywhere,
    },
    Need {
        permission: "contents",
        level: "read",
        why: "read the access files and the sources that are built, and see that a push is on the branch that it names",
        place: Place::Anywhere,
    },
    Need {
        permission: "members",
        level: "read",
        why: "know the teams that grants name",
        place: Place::Organisation,
    },
    Need {
        permission: "metadata",
        level: "read",
        why: "know repositories and the roles of people in them",
        place: Place::Anywhere,
    },
    Need {
        permission: "organization_self_hosted_runners",
        level: "write",
        why: "register and delete runners at an organisation",
        place: Place::Organisation,
    },
    Need {
        permission: "pull_requests",
        level: "read",
        why: "know author and head of pull requests",
        place: Place::Anywhere,
    },
];

/// Events that the App subscribes to.
pub const EVENTS: &[&str] = &["check_run", "pull_request", "push", "workflow_job"];

impl Place {
    /// Where runners for a target are registered.
    pub const fn of(target: &Target) -> Self {
        match target {
            Target::Organisation(_) => Self::Organisation,
            Target::Repository(_) => Self::Repository,
        }
    }
}

/// What an App needs whose runners are registered there; of [`Place::Anywhere`], only what every App needs.
pub fn at(place: Place) -> impl Iterator<Item = &'static Need> {
    NEEDS.iter().filter(move |need| need.place == Place::Anywhere || need.place == place)
}

/// The permissions that an installation lacks for what is registered there.
pub fn missing(installation: &Installation, target: &Target) -> Vec<&'static Need> {
    at(Place::of(target))
        .filter(|need| {
            let held = installation.permissions.get(need.permission).map(String::as_str);
            rank(held.unwrap_or_default()) < rank(need.level)
        })
        .collect()
}

/// Events that an installation does not send, although they are wanted.
pub fn silent(installation: &Installation) -> Vec<&'static str> {
    EVENTS.iter().copied().filter(|event| !installation.events.iter().any(|sent| sent == event)).collect()
}

fn rank(level: &str) -> u8 {
    match level {
        "read" => 1,
        "write" => 2,
        "admin" => 3,
        _ => 0,
    }
}

/// What the manifest of a new App says.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Name for people, unique at the whole GitHub.
    pub name: String,
    /// Address of the farm, shown to people.
    pub farm: String,
    /// Where GitHub sends the browser with the code.
    pub redirect: String,
    /// Where webhooks go; none for a farm without an inbound port.
    pub hook: Option<String>,
    /// Where runners will be registered: nothing is asked for that is of use elsewhere only.
    pub place: Place,
}

/// The manifest of a new App, to be posted by the person's browser as the field `manifest` of a form to
/// [`manifest_page`].
pub fn manifest(wish: &Wish) -> Value {
    let permissions: Map<String, Value> =
        at(wish.place).map(|need| (need.permission.to_owned(), need.level.into())).collect();
    let mut manifest = json!({
        "name": wish.name,
        "url": wish.farm,
        "redirect_url": wish.redirect,
        // Where the browser of somebody who signs in to the console comes back to.
        "callback_urls": [format!("{}/login/callback", wish.farm.trim_end_matches('/'))],
        "public": false,
        "default_permissions": permissions,
    });
    if let Some(hook) = &wish.hook {
        manifest["hook_attributes"] = json!({ "url": hook, "active": true });
        manifest["default_events"] = json!(EVENTS);
    }
    manifest
}

/// Where the form with the manifest is posted to: at an organisation, or at the person's own account. GitHub hands
/// `state` back with its code.
pub fn manifest_page(endpoint: &Endpoint, organisation: Option<&Login>, state: &str) -> String {
    match organisation {
        Some(login) => format!("{}/organizations/{login}/settings/apps/new?state={state}", endpoint.web()),
        None => format!("{}/settings/apps/new?state={state}", endpoint.web()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_missing_permission_is_found_where_it_is_needed() {
        let installation = |permissions: &[(&str, &str)]| Installation {
            id: 1,
            account: None,
            repository_selection: None,
            permissions: permissions.iter().map(|(name, level)| ((*name).into(), (*level).into())).collect(),
            events: vec!["push".into(), "workflow_job".into()],
            suspended_at: None,
        };
        let all: Vec<(&str, &str)> = NEEDS.iter().map(|need| (need.permission, need.level)).collect();
        let org = Target::parse("conda").unwrap();
        let repository = Target::parse("conda/feedstock").unwrap();
        assert!(missing(&installation(&all), &org).is_empty());
        let names = |held: &[(&str, &str)], target: &Target| {
            missing(&installation(held), target).iter().map(|need| need.permission).collect::<Vec<_>>()
        };
        let most: Vec<(&str, &str)> =
            all.iter().copied().filter(|(name, _)| *name != "administration").collect();
        assert!(names(&most, &org).is_empty());
        assert_eq!(names(&most, &repository), ["administration"]);
        let weak: Vec<(&str, &str)> = all
            .iter()
            .map(|(name, level)| (*name, if *name == "checks" { "read" } else { *level }))
            .collect();
        assert_eq!(names(&weak, &org), ["checks"]);
        assert_eq!(silent(&installation(&all)), ["check_run", "pull_request"]);
    }

    fn wish(place: Place, hook: Option<&str>) -> Wish {
        let text = str::to_owned;
        Wish {
            name: text("farm"),
            farm: text("https://farm.example"),
            redirect: text("http://127.0.0.1:8080/callback"),
            hook: hook.map(text),
            place,
        }
    }

    #[test]
    fn manifest_asks_for_exactly_what_is_needed_where_runners_are_registered() {
        for place in [Place::Organisation, Place::Repository] {
            let asked = manifest(&wish(place, Some("https://farm.example/webhooks/github")));
            let asked_for: BTreeMap<&str, &str> = asked["default_permissions"]
                .as_object()
                .unwrap()
                .iter()
                .map(|(name, level)| (name.as_str(), level.as_str().unwrap()))
                .collect();
            let needed: BTreeMap<&str, &str> = NEEDS
                .iter()
                .filter(|need| [Place::Anywhere, place].contains(&need.place))
                .map(|need| (need.permission, need.level))
                .collect();
            assert_eq!(asked_for, needed);
            assert_eq!(asked["default_events"], json!(EVENTS));
            assert_eq!(asked["public"], false);
            // An App that was made so lacks nothing.
            let target = if place == Place::Organisation { "conda" } else { "conda/feedstock" };
            let made = Installation {
                id: 1,
                account: None,
                repository_selection: None,
                permissions: needed.iter().map(|(name, level)| ((*name).into(), (*level).into())).collect(),
                events: EVENTS.iter().map(|event| (*event).to_owned()).collect(),
                suspended_at: None,
            };
            assert!(missing(&made, &Target::parse(target).unwrap()).is_empty());
            assert!(silent(&made).is_empty());
        }
        let at_organisation = manifest(&wish(Place::Organisation, None));
        assert!(at_organisation["default_permissions"].get("administration").is_none());
    }

    #[test]
    fn a_farm_without_an_inbound_port_asks_for_no_webhook() {
        let with = manifest(&wish(Place::Organisation, Some("https://farm.example/w")));
        assert_eq!(with["hook_attributes"]["url"], "https://farm.example/w");
        let without = manifest(&wish(Place::Organisation, None));
        assert!(without.get("hook_attributes").is_none() && without.get("default_events").is_none());
        let endpoint = Endpoint::github_com();
        let page = manifest_page(&endpoint, Some(&Login::parse("conda").unwrap()), "s");
        assert_eq!(page, "https://github.com/organizations/conda/settings/apps/new?state=s");
        assert_eq!(manifest_page(&endpoint, None, "s"), "https://github.com/settings/apps/new?state=s");
    }
}
