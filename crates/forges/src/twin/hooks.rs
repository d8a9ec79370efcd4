//! Webhooks of the simulated GitHub: who is told, what was sent, what came back, and what went wrong on the way.
//!
//! An event has one GUID, shared by the deliveries to all hooks that subscribe to it, and repeated by a redelivery. A
//! delivery that was never sent is in no list; one that failed is, and GitHub does not try again by itself.

use super::clock::iso;
use super::state::{State, Timer};
use forgeyard_formats::webhook::sign;
use forgeyard_model::{Secret, Timestamp};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// At which level a hook was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookOwner {
    /// An App, by id.
    App(u64),
    /// An organisation, by id.
    Organization(u64),
    /// A repository, by id.
    Repository(u64),
}

/// A webhook.
#[derive(Debug, Clone)]
pub struct Hook {
    /// Numeric id.
    pub id: u64,
    /// Its level.
    pub owner: HookOwner,
    /// Where it sends to; nowhere when absent.
    pub url: Option<String>,
    /// Key of its signatures.
    pub secret: Secret,
    /// Events that it wants.
    pub events: BTreeSet<String>,
    /// Whether it sends.
    pub active: bool,
}

/// What became of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way.
    Pending,
    /// The receiver answered with this status.
    Answered(u16),
    /// No answer: this status and this text stand in the list.
    Failed(u16, String),
}

/// A delivery.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Numeric id.
    pub id: u64,
    /// Its hook.
    pub hook: u64,
    /// GUID of the event.
    pub guid: String,
    /// Name of the event.
    pub event: String,
    /// Action of the event.
    pub action: Option<String>,
    /// Repository of the event.
    pub repository: Option<u64>,
    /// Installation, for hooks of Apps.
    pub installation: Option<u64>,
    /// The body.
    pub body: Arc<[u8]>,
    /// When it was sent.
    pub at: Timestamp,
    /// Whether somebody asked for it again.
    pub redelivery: bool,
    /// What became of it.
    pub sent: Sent,
    trouble: Option<Trouble>,
    unheard: bool,
}

/// A delivery to be sent now.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Its delivery.
    pub delivery: u64,
    /// Where to.
    pub url: String,
    /// Headers.
    pub headers: Vec<(&'static str, String)>,
    /// Body.
    pub body: Arc<[u8]>,
}

/// What goes wrong with a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// It is never sent and in no list.
    Lost,
    /// It does not arrive, and this status is recorded.
    Failed(u16),
    /// It arrives, but the answer comes too late: it is recorded as failed, and a redelivery repeats it.
    Unheard,
    /// It is sent twice.
    Duplicated,
    /// It is sent later.
    Delayed(Duration),
    /// It is sent after the next one to the same hook.
    Swapped,
}

/// A scripted fault of deliveries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookFault {
    /// Only this event.
    pub event: Option<String>,
    /// Only this action.
    pub action: Option<String>,
    /// Only this hook.
    pub hook: Option<u64>,
    /// How many that fit pass before.
    pub skip: u32,
    /// How many it hits.
    pub times: u32,
    /// What goes wrong.
    pub trouble: Trouble,
}

impl HookFault {
    /// A fault of the next delivery of this event and action; an empty text fits all.
    pub fn next(event: &str, action: &str, trouble: Trouble) -> Self {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Self { event: some(event), action: some(action), hook: None, skip: 0, times: 1, trouble }
    }
}

/// Seeded faults of all deliveries, in thousandths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HookChaos {
    /// Never sent.
    pub lost: u16,
    /// Failed.
    pub failed: u16,
    /// Arrived, and recorded as failed.
    pub unheard: u16,
    /// Sent twice.
    pub duplicated: u16,
    /// Sent after the next.
    pub swapped: u16,
    /// Sent up to `longest` later.
    pub delayed: u16,
    /// The longest delay.
    pub longest: Duration,
}

/// What was sent and what is to be.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    rows: BTreeMap<u64, Delivery>,
    due: VecDeque<u64>,
    held: Vec<u64>,
    chaos: HookChaos,
    lost: u64,
}

impl State {
    /// Makes a hook of an organisation or a repository. Hooks of Apps come with the App.
    pub fn add_hook(&mut self, owner: HookOwner, url: Option<&str>, secret: Secret, events: &[&str]) -> u64 {
        self.numbers.hook += 1;
        let id = self.numbers.hook;
        let events = events.iter().map(|event| (*event).to_owned()).collect();
        self.hooks.insert(id, Hook { id, owner, url: url.map(str::to_owned), secret, events, active: true });
        id
    }

    /// Sends a ping to the hook of an App, as GitHub does when the hook is made.
    pub fn ping(&mut self, app: u64) {
        let Some(hook) = self.apps.get(&app).and_then(|app| self.hooks.get(&app.hook)).cloned() else {
            return;
        };
        let body =
            json!({ "zen": "simulated", "hook_id": hook.id, "hook": { "type": "App", "app_id": app } });
        let delivery = Delivery {
            id: 0,
            hook: hook.id,
            guid: self.guid(),
            event: "ping".to_owned(),
            action: None,
            repository: None,
            installation: None,
            body: super::calls::written(&body).into(),
            at: self.now,
            redelivery: false,
            sent: Sent::Pending,
            trouble: self.trouble_for(hook.id, "ping", None),
            unheard: false,
        };
        self.send_after(self.setup.delivery_delay, delivery);
    }

    /// A hook, to be changed.
    pub fn hook_mut(&mut self, id: u64) -> Option<&mut Hook> {
        self.hooks.get_mut(&id)
    }

    /// Plans a fault of deliveries.
    pub fn plan_hook_fault(&mut self, fault: HookFault) {
        self.hook_faults.push(fault);
    }

    /// Sets the seeded faults of all deliveries from now on.
    pub fn set_hook_chaos(&mut self, chaos: HookChaos) {
        self.deliveries.chaos = chaos;
    }

    /// How many deliveries were lost by faults.
    pub fn lost_deliveries(&self) -> u64 {
        self.deliveries.lost
    }

    /// All deliveries that are remembered, oldest first.
    pub fn deliveries(&self) -> impl Iterator<Item = &Delivery> {
        self.deliveries.rows.values()
    }

    /// Tells all hooks of an event. `body` is without `installation`, which only hooks of Apps get.
    pub(super) fn emit(&mut self, event: &str, action: Option<&str>, repository: Option<u64>, body: &Value) {
        let owner = repository.and_then(|id| self.repositories.get(&id)).map(|repository| repository.owner);
        self.emit_to(event, action, repository, owner, body);
    }

    pub(super) fn emit_to(
        &mut self,
        event: &str,
        action: Option<&str>,
        repository: Option<u64>,
        owner: Option<u64>,
        body: &Value,
    ) {
        let mut guid = None;
        for hook in self.hooks.values().cloned().collect::<Vec<_>>() {
            if !hook.active || hook.url.is_none() || !hook.events.contains(event) {
                continue;
            }
            let mut installation = None;
            let concerns = match hook.owner {
                HookOwner::App(app) => {
                    let found = self.installations.values().find(|one| {
                        one.app == app
                            && Some(one.account) == owner
                            && (one.suspended_at.is_none() || event == "installation")
                            && repository.is_none_or(|id| one.sees(id))
                    });
                    installation = found.map(|found| found.id);
                    found.is_some()
                }
                HookOwner::Organization(id) => Some(id) == owner,
                HookOwner::Repository(id) => Some(id) == repository,
            };
            if !concerns {
                continue;
            }
            let guid = guid.get_or_insert_with(|| self.guid()).clone();
            let mut body = body.clone();
            if let (Some(id), Some(fields)) = (installation, body.as_object_mut()) {
                fields.entry("installation").or_insert_with(
                    || json!({ "id": id, "node_id": format!("simulated-installation-{id}") }),
                );
            }
            let trouble = self.trouble_for(hook.id, event, action);
            if trouble == Some(Trouble::Lost) {
                self.deliveries.lost += 1;
                continue;
            }
            let wait = match &trouble {
                Some(Trouble::Delayed(more)) => self.setup.delivery_delay + *more,
                _ => self.setup.delivery_delay,
            };
            let delivery = Delivery {
                id: 0,
                hook: hook.id,
                guid,
                event: event.to_owned(),
                action: action.map(str::to_owned),
                repository,
                installation,
                body: super::calls::written(&body).into(),
                at: self.now,
                redelivery: false,
                sent: Sent::Pending,
                trouble: trouble.clone(),
                unheard: false,
            };
            if trouble == Some(Trouble::Duplicated) {
                self.send_after(wait, delivery.clone());
            }
            self.send_after(wait, delivery);
        }
    }

    fn send_after(&mut self, wait: Duration, mut delivery: Delivery) {
        self.numbers.delivery += 1;
        delivery.id = self.numbers.delivery;
        let id = delivery.id;
        self.deliveries.rows.insert(id, delivery);
        self.after(wait, Timer::Send(id));
    }

    fn trouble_for(&mut self, hook: u64, event: &str, action: Option<&str>) -> Option<Trouble> {
        for fault in &mut self.hook_faults {
            let fits = fault.event.as_deref().is_none_or(|one| one == event)
                && fault.action.as_deref().is_none_or(|one| Some(one) == action)
                && fault.hook.is_none_or(|one| one == hook);
            if !fits || fault.times == 0 {
                continue;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                continue;
            }
            fault.times -= 1;
            return Some(fault.trouble.clone());
        }
        let chaos = self.deliveries.chaos;
        if chaos == HookChaos::default() {
            return None;
        }
        let mut draw = u16::try_from(self.rng.below(1000)).unwrap_or(0);
        let longest = usize::try_from(chaos.longest.as_millis()).unwrap_or(usize::MAX);
        let delay = Duration::from_millis(u64::try_from(self.rng.below(longest)).unwrap_or(0));
        for (share, trouble) in [
            (chaos.lost, Trouble::Lost),
            (chaos.failed, Trouble::Failed(502)),
            (chaos.unheard, Trouble::Unheard),
            (chaos.duplicated, Trouble::Duplicated),
            (chaos.swapped, Trouble::Swapped),
            (chaos.delayed, Trouble::Delayed(delay)),
        ] {
            if draw < share {
                return Some(trouble);
            }
            draw -= share;
        }
        None
    }

    pub(super) fn hook_due(&mut self, id: u64) {
        let now = self.now;
        let Some(delivery) = self.deliveries.rows.get_mut(&id) else { return };
        delivery.at = now;
        match delivery.trouble.take() {
            Some(Trouble::Failed(status)) => {
                delivery.sent = Sent::Failed(status, "failed to connect to host".to_owned());
            }
            Some(Trouble::Swapped) => self.deliveries.held.push(id),
            other => {
                delivery.unheard = other == Some(Trouble::Unheard);
                let hook = delivery.hook;
                self.deliveries.due.push_back(id);
                let rows = &self.deliveries.rows;
                let same = |held: &u64| rows.get(held).is_some_and(|row| row.hook == hook);
                let (after, held): (Vec<u64>, Vec<u64>) =
                    self.deliveries.held.iter().partition(|id| same(id));
                self.deliveries.held = held;
                self.deliveries.due.extend(after);
            }
        }
        self.forget_old_deliveries();
    }

    fn forget_old_deliveries(&mut self) {
        let (now, kept) = (self.now, self.setup.delivery_history);
        while let Some(first) = self.deliveries.rows.first_entry() {
            if now.since(first.get().at) <= kept {
                return;
            }
            first.remove();
        }
    }

    /// Takes what is to be sent now, in order. Each must be followed by [`State::delivery_answered`].
    pub fn take_due_deliveries(&mut self) -> Vec<Outgoing> {
        let due: Vec<u64> = self.deliveries.due.drain(..).collect();
        due.into_iter().filter_map(|id| self.outgoing(id)).collect()
    }

    fn outgoing(&self, id: u64) -> Option<Outgoing> {
        let delivery = self.deliveries.rows.get(&id)?;
        let hook = self.hooks.get(&delivery.hook)?;
        let (target, target_id) = match hook.owner {
            HookOwner::App(id) => ("integration", id),
            HookOwner::Organization(id) => ("organization", id),
            HookOwner::Repository(id) => ("repository", id),
        };
        let mut headers = vec![
            ("content-type", "application/json".to_owned()),
            ("user-agent", "GitHub-Hookshot/simulated".to_owned()),
            ("x-github-delivery", delivery.guid.clone()),
            ("x-github-event", delivery.event.clone()),
            ("x-github-hook-id", hook.id.to_string()),
            ("x-github-hook-installation-target-id", target_id.to_string()),
            ("x-github-hook-installation-target-type", target.to_owned()),
        ];
        if let Ok(signature) = sign(&hook.secret, &delivery.body) {
            headers.push(("x-hub-signature-256", signature));
        }
        Some(Outgoing { delivery: id, url: hook.url.clone()?, headers, body: Arc::clone(&delivery.body) })
    }

    /// Records what the receiver answered: a status, or why there was none.
    pub fn delivery_answered(&mut self, id: u64, answer: Result<u16, String>) {
        if let Some(delivery) = self.deliveries.rows.get_mut(&id) {
            delivery.sent = match answer {
                Ok(_) if delivery.unheard => Sent::Failed(504, "timed out".to_owned()),
                Ok(status) => {
                    if (200..300).contains(&status) && !self.setup.keep_accepted_bodies {
                        delivery.body = Arc::from([]);
                    }
                    Sent::Answered(status)
                }
                Err(why) if why.contains("timed out") => Sent::Failed(504, "timed out".to_owned()),
                Err(_) => Sent::Failed(502, "failed to connect to host".to_owned()),
            };
        }
    }

    /// Sends a delivery again under the same GUID. None when it is not remembered.
    pub(super) fn redeliver(&mut self, hook: u64, id: u64) -> Option<u64> {
        let old = self.deliveries.rows.get(&id).filter(|row| row.hook == hook)?;
        let mut again = old.clone();
        again.redelivery = true;
        again.sent = Sent::Pending;
        again.unheard = false;
        again.trouble = self.trouble_for(hook, &again.event.clone(), again.action.clone().as_deref());
        if again.trouble == Some(Trouble::Lost) {
            again.trouble = Some(Trouble::Failed(502));
        }
        self.send_after(self.setup.delivery_delay, again);
        Some(self.numbers.delivery)
    }

    /// One page of what was sent to a hook, newest first, and the cursor of the next page.
    pub(super) fn deliveries_page(
        &self,
        hook: u64,
        before: Option<u64>,
        size: usize,
    ) -> (Vec<&Delivery>, Option<u64>) {
        let below = before.unwrap_or(u64::MAX);
        let mut page: Vec<&Delivery> = self
            .deliveries
            .rows
            .range(..below)
            .rev()
            .map(|(_, row)| row)
            .filter(|row| row.hook == hook && row.sent != Sent::Pending)
            .filter(|row| self.now.since(row.at) <= self.setup.delivery_history)
            .take(size + 1)
            .collect();
        let more = page.len() > size;
        page.truncate(size);
        let cursor = page.last().map(|row| row.id).filter(|_| more);
        (page, cursor)
    }

    pub(super) fn delivery_of(&self, hook: u64, id: u64) -> Option<&Delivery> {
        self.deliveries.rows.get(&id).filter(|row| row.hook == hook && row.sent != Sent::Pending)
    }
}

impl Delivery {
    /// Its line in a list.
    pub(super) fn item_json(&self) -> Value {
        let (code, status) = match &self.sent {
            Sent::Pending => (0, "pending".to_owned()),
            Sent::Answered(code) if (200..300).contains(code) => (*code, "OK".to_owned()),
            Sent::Answered(code) => (*code, format!("Invalid HTTP Response: {code}")),
            Sent::Failed(code, text) => (*code, text.clone()),
        };
        json!({
            "id": self.id,
            "guid": self.guid,
            "delivered_at": iso(self.at),
            "redelivery": self.redelivery,
            "duration": 0.05,
            "status": status,
            "status_code": code,
            "event": self.event,
            "action": self.action,
            "installation_id": self.installation,
            "repository_id": self.repository,
            "throttled_at": null,
        })
    }

    /// The whole of it, with what was sent.
    pub(super) fn full_json(&self, url: &str) -> Value {
        let mut body = self.item_json();
        let payload: Value = serde_json::from_slice(&self.body).unwrap_or(Value::Null);
        if let Some(fields) = body.as_object_mut() {
            fields.insert("url".to_owned(), json!(url));
            let headers = json!({ "X-GitHub-Event": self.event, "X-GitHub-Delivery": self.guid });
            fields.insert("request".to_owned(), json!({ "headers": headers, "payload": payload }));
            fields.insert("response".to_owned(), json!({ "headers": {}, "payload": "" }));
        }
        body
    }
}
