//! People and organisations of the simulated GitHub.

use super::clock::iso;
use super::state::State;
use forgeyard_model::forge::Person;
use serde_json::{Value, json};

/// An account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Numeric id; stays when the login changes.
    pub id: u64,
    /// Login; letter case is kept and does not matter.
    pub login: String,
    /// Whether it is an organisation.
    pub organization: bool,
}

impl Account {
    /// The account as a person of the model.
    pub fn person(&self) -> Person {
        Person { id: self.id, login: self.login.clone() }
    }
}

impl State {
    /// Adds an organisation. The runner groups 1 (`Default`) and 2 (`GitHub Actions`) come with it.
    pub fn add_organization(&mut self, login: &str) -> u64 {
        self.add_account(login, true)
    }

    /// Adds a person.
    pub fn add_user(&mut self, login: &str) -> Person {
        let id = self.add_account(login, false);
        Person { id, login: login.to_owned() }
    }

    fn add_account(&mut self, login: &str, organization: bool) -> u64 {
        if let Some(known) = self.account_by_login(login) {
            return known.id;
        }
        self.numbers.account += 1;
        let id = self.numbers.account;
        self.accounts.insert(id, Account { id, login: login.to_owned(), organization });
        id
    }

    /// Gives an account another login; its id stays, and somebody else may take the old login.
    pub fn rename_account(&mut self, id: u64, login: &str) {
        if let Some(account) = self.accounts.get_mut(&id) {
            account.login = login.to_owned();
        }
    }

    /// The account of this login, whatever its letter case.
    pub fn account_by_login(&self, login: &str) -> Option<&Account> {
        self.accounts.values().find(|account| account.login.eq_ignore_ascii_case(login))
    }

    pub(super) fn account_json(&self, id: u64) -> Value {
        match self.accounts.get(&id) {
            Some(account) => self.simple_user(account.id, &account.login, account.organization),
            None => self.simple_user(id, "ghost", false),
        }
    }

    pub(super) fn person_json(&self, person: &Person) -> Value {
        self.simple_user(person.id, &person.login, false)
    }

    /// An account in full, as `GET /users/LOGIN` tells it.
    pub(super) fn public_user_json(&self, id: u64) -> Value {
        let mut body = self.account_json(id);
        let created = iso(self.setup.now);
        let more = json!({
            "name": null, "company": null, "blog": "", "location": null, "email": null, "hireable": null,
            "bio": null, "public_repos": 0, "public_gists": 0, "followers": 0, "following": 0,
            "created_at": created, "updated_at": created, "user_view_type": "public",
        });
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        body
    }

    fn simple_user(&self, id: u64, login: &str, organization: bool) -> Value {
        let url = format!("{}/users/{login}", self.urls.api);
        json!({
            "login": login,
            "id": id,
            "node_id": format!("simulated-user-{id}"),
            "avatar_url": format!("{}/avatars/{id}", self.urls.html),
            "gravatar_id": "",
            "url": url,
            "html_url": format!("{}/{login}", self.urls.html),
            "followers_url": format!("{url}/followers"),
            "following_url": format!("{url}/following{{/other_user}}"),
            "gists_url": format!("{url}/gists{{/gist_id}}"),
            "starred_url": format!("{url}/starred{{/owner}}{{/repo}}"),
            "subscriptions_url": format!("{url}/subscriptions"),
            "organizations_url": format!("{url}/orgs"),
            "repos_url": format!("{url}/repos"),
            "events_url": format!("{url}/events{{/privacy}}"),
            "received_events_url": format!("{url}/received_events"),
            "type": if organization { "Organization" } else { "User" },
            "site_admin": false,
        })
    }
}
