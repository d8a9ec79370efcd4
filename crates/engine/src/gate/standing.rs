//! What a person may do in this farm: the roles that `[[members]]` of the access files give, and those that follow from
//! roles at the forge where `forge-roles` says so. By numeric id; nothing by default.

use forgeyard_model::ForgeName;
use forgeyard_model::access::{Access, Member};
use forgeyard_model::config::{FarmConfig, RepositoryConfig};
use forgeyard_model::principal::{Role, Standing};
use forgeyard_model::who::Ids;
use std::collections::BTreeMap;

fn names(rule: &Member, access: &Access, forge: &ForgeName, person: u64) -> bool {
    let inside = |groups: &BTreeMap<String, Ids>, name: &String| {
        groups.get(name).is_some_and(|ids| access.holds(ids, forge, person))
    };
    access.holds(&rule.users, forge, person)
        || rule.lists.iter().any(|name| inside(&access.lists, name))
        || rule.teams.iter().any(|name| inside(&access.teams, name))
}

/// Whether a rule counts in a repository. The name is the one that the operator wrote, never one that a forge sent.
fn covers(rule: &Member, access: &Access, repository: &RepositoryConfig) -> bool {
    let owner = repository.name.split_once('/').map_or("", |(owner, _)| owner);
    rule.whole_farm
        || access.holds(&rule.repositories, &repository.forge, repository.id)
        || rule.organisations.iter().any(|name| !owner.is_empty() && name.eq_ignore_ascii_case(owner))
}

/// The highest role of a person in one repository, and the rule that gives it. `read` are roles at the forge that were read
/// at sign-in; those of the access file count as well.
pub fn in_repository(
    access: &Access,
    repository: &RepositoryConfig,
    forge: &ForgeName,
    person: u64,
    read: &BTreeMap<u64, String>,
) -> Option<(Role, String)> {
    let by_rule = access
        .members
        .iter()
        .filter(|rule| covers(rule, access, repository) && names(rule, access, forge, person))
        .map(|rule| (rule.role, format!("member rule `{}`", rule.id)));
    let written = access.role((&repository.forge, repository.id), forge, person);
    // What was read at sign-in was read at the person's own forge.
    let read = read.get(&repository.id).filter(|_| repository.forge == *forge);
    let at_forge = written.into_iter().chain(read);
    let by_forge = at_forge.filter_map(|name| {
        access.forge_roles.get(name).map(|role| (*role, format!("its role `{name}` at the forge")))
    });
    by_rule.chain(by_forge).max_by_key(|(role, _)| *role)
}

/// Everything that a person may do anywhere.
pub fn of(config: &FarmConfig, forge: &ForgeName, person: u64, read: &BTreeMap<u64, String>) -> Standing {
    let access = &config.access;
    let mut standing = Standing::default();
    for rule in access.members.iter().filter(|rule| rule.whole_farm && names(rule, access, forge, person)) {
        standing.farm = standing.farm.max(Some(rule.role));
    }
    for repository in &config.repositories {
        if let Some((role, _)) = in_repository(access, repository, forge, person, read) {
            standing.raise(&repository.forge, repository.id, role);
        }
    }
    standing
}

/// Whether some rule gives anybody at least this role in a repository.
pub(super) fn anybody(access: &Access, repository: &RepositoryConfig, role: Role) -> bool {
    let people = |rule: &Member| !(rule.users.is_empty() && rule.lists.is_empty() && rule.teams.is_empty());
    access.members.iter().any(|rule| rule.role >= role && covers(rule, access, repository) && people(rule))
        || access.forge_roles.values().any(|given| *given >= role)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn github() -> ForgeName {
        "github".parse().unwrap()
    }

    fn access(text: &str) -> Access {
        serde_json::from_str(text).unwrap()
    }

    fn repository(id: u64, name: &str) -> RepositoryConfig {
        RepositoryConfig {
            forge: "github".parse().unwrap(),
            id,
            name: name.to_owned(),
            source: String::new(),
            protected: Vec::new(),
            channel: "c".parse().unwrap(),
            sites: Default::default(),
        }
    }

    #[test]
    fn a_rule_that_names_no_place_counts_nowhere_and_one_without_people_for_nobody() {
        let nowhere = access(r#"{"members":[{"id":"m","role":"admin","users":[1]}]}"#);
        assert_eq!(in_repository(&nowhere, &repository(7, "o/r"), &github(), 1, &BTreeMap::new()), None);
        let nobody = access(r#"{"members":[{"id":"m","role":"admin","whole-farm":true}]}"#);
        assert_eq!(in_repository(&nobody, &repository(7, "o/r"), &github(), 1, &BTreeMap::new()), None);
        assert!(!anybody(&nobody, &repository(7, "o/r"), Role::Viewer));
    }

    #[test]
    fn an_organisation_is_the_owner_in_the_farms_own_configuration_and_not_a_prefix() {
        let rule =
            access(r#"{"members":[{"id":"m","role":"maintainer","users":[1],"organisations":["conda"]}]}"#);
        let role = |name: &str| {
            in_repository(&rule, &repository(7, name), &github(), 1, &BTreeMap::new()).map(|(role, _)| role)
        };
        assert_eq!(role("Conda/feedstock"), Some(Role::Maintainer));
        assert_eq!((role("conda-forge/feedstock"), role("conda")), (None, None));
    }

    #[test]
    fn roles_at_the_forge_count_only_where_the_access_file_maps_them() {
        let read = BTreeMap::from([(7, "admin".to_owned())]);
        let repository = repository(7, "o/r");
        assert_eq!(in_repository(&Access::default(), &repository, &github(), 1, &read), None);
        let mapped = access(r#"{"forge-roles":{"admin":"maintainer"}}"#);
        assert_eq!(
            in_repository(&mapped, &repository, &github(), 1, &read).map(|(role, _)| role),
            Some(Role::Maintainer)
        );
        assert_eq!(in_repository(&mapped, &repository, &github(), 1, &BTreeMap::new()), None);
    }

    #[test]
    fn a_number_at_one_forge_gives_no_role_in_the_repository_of_that_number_at_another() {
        let lab: ForgeName = "lab".parse().unwrap();
        let mut config =
            FarmConfig { repositories: vec![repository(7, "o/r")], ..crate::demand::tests::desk::config() };
        config.repositories.push(RepositoryConfig { forge: lab.clone(), ..repository(7, "p/s") });
        config.access = access(
            r#"{"members":[{"id":"m","role":"maintainer","users":[1],"repositories":["lab:7"]},
                           {"id":"n","role":"viewer","users":[2],"repositories":[7]}]}"#,
        );
        let role = |person: u64, forge: &ForgeName| {
            of(&config, &github(), person, &BTreeMap::new()).role_in(forge, 7)
        };
        assert_eq!((role(1, &lab), role(1, &github())), (Some(Role::Maintainer), None));
        assert_eq!(
            (role(2, &lab), role(2, &github())),
            (None, Some(Role::Viewer)),
            "a number alone is at home"
        );
        // What was read at a forge counts there and not at another.
        config.access = access(r#"{"forge-roles":{"admin":"maintainer"}}"#);
        let read = BTreeMap::from([(7, "admin".to_owned())]);
        let there = of(&config, &lab, 1, &read);
        assert_eq!((there.role_in(&lab, 7), there.role_in(&github(), 7)), (Some(Role::Maintainer), None));
    }
}
