//! The newsletter's contacts, as the mail service keeps them.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::{Act, Answer, Double, Seen, answer, fault};

#[derive(Default)]
pub(super) struct Contacts {
    /// Each with `segments` beside what the service shows.
    list: Vec<Value>,
    /// As they were made by the story.
    made: Vec<Value>,
    page_max: Option<usize>,
    repeats: bool,
    next: VecDeque<Act>,
    always: Option<Act>,
    /// Answers that it marked, and does not.
    forgets: bool,
    /// Puts the contact back on the list of subscribers, as some services do.
    resubscribes: bool,
    segments: Vec<String>,
}

/// A contact with these properties.
pub(crate) fn contact(id: &str, email: &str, properties: &Value) -> Value {
    json!({
        "object": "contact", "id": id, "email": email, "first_name": "Hanako", "created_at": "2026-01-01T00:00:00Z",
        "unsubscribed": false, "properties": properties, "segments": [],
    })
}

impl Double {
    pub(crate) fn has_contact(&self, contact: Value) -> &Self {
        let mut state = self.state();
        state.contacts.list.push(contact.clone());
        state.contacts.made.push(contact);
        drop(state);
        self
    }

    pub(crate) fn has_segment(&self, id: &str) {
        self.state().contacts.segments.push(id.to_owned());
    }

    pub(crate) fn contact(&self, id: &str) -> Value {
        self.state().contacts.list.iter().find(|one| one["id"] == id).cloned().unwrap_or_default()
    }

    pub(crate) fn forget_contact(&self, id: &str) {
        let mut state = self.state();
        state.contacts.list.retain(|one| one["id"] != id);
        state.contacts.made.retain(|one| one["id"] != id);
    }

    pub(crate) fn contacts_by_pages_of(&self, rows: usize) {
        self.state().contacts.page_max = Some(rows);
    }

    pub(crate) fn contacts_repeat(&self) {
        self.state().contacts.repeats = true;
    }

    pub(crate) fn contacts_next(&self, act: Act) -> &Self {
        self.state().contacts.next.push_back(act);
        self
    }

    pub(crate) fn contacts_always(&self, act: Option<Act>) {
        self.state().contacts.always = act;
    }

    pub(crate) fn contacts_forget_marks(&self, forgets: bool) {
        self.state().contacts.forgets = forgets;
    }

    pub(crate) fn contacts_resubscribe(&self) {
        self.state().contacts.resubscribes = true;
    }

    /// The requests about contacts.
    pub(crate) fn about_contacts(&self) -> Vec<Seen> {
        self.requests().into_iter().filter(|seen| seen.path.starts_with("/contacts")).collect()
    }

    /// Nobody was made or subscribed, and every update named the mark and nothing else. Says how many updates there were.
    pub(crate) fn only_marks(&self) -> usize {
        let mut updates = 0;
        for seen in self.about_contacts() {
            match seen.method.as_str() {
                "GET" => assert!(seen.body.is_empty()),
                "PATCH" => {
                    let body: Value = serde_json::from_slice(&seen.body).unwrap();
                    let (yes, no) = (
                        json!({ "properties": { "purchaser": "true" } }),
                        json!({ "properties": { "purchaser": "false" } }),
                    );
                    assert!(body == yes || body == no, "an update names more than the mark: {body}");
                    updates += 1;
                }
                "POST" | "DELETE" => {
                    assert!(seen.path.contains("/segments/"), "{} {}", seen.method, seen.path);
                    assert!(seen.body.is_empty());
                    updates += 1;
                }
                other => panic!("{other} {}", seen.path),
            }
        }
        let state = self.state();
        let plain = |contact: &Value| {
            let mut contact = contact.clone();
            contact["segments"] = Value::Null;
            if let Some(properties) = contact["properties"].as_object_mut() {
                properties.remove("purchaser");
            }
            contact
        };
        let was: Vec<Value> = state.contacts.made.iter().map(plain).collect();
        let is: Vec<Value> = state.contacts.list.iter().map(plain).collect();
        assert_eq!(is, was, "something else of a contact has changed");
        updates
    }
}

impl Contacts {
    pub(super) fn act(&mut self) -> Act {
        self.next.pop_front().or_else(|| self.always.clone()).unwrap_or(Act::Accept)
    }

    pub(super) fn answer(&mut self, seen: &Seen) -> Answer {
        let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
        let words: Vec<String> = path.trim_start_matches('/').split('/').map(decoded).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let not_found = || fault(404, "not_found", "Contact not found");
        match (seen.method.as_str(), &words[..]) {
            ("GET", ["contacts"]) => {
                let rows: Vec<Value> = self.list.iter().map(shown).collect();
                self.page(&rows, query)
            }
            ("GET", ["contacts", id]) => {
                match self.list.iter().find(|one| one["id"] == *id || one["email"] == *id) {
                    Some(contact) => answer(200, &shown(contact)),
                    None => not_found(),
                }
            }
            ("GET", ["contacts", id, "segments"]) => match self.list.iter().find(|one| one["id"] == *id) {
                Some(contact) => {
                    let ids = contact["segments"].as_array().unwrap();
                    let rows: Vec<Value> =
                        ids.iter().map(|id| json!({ "id": id, "name": "A segment" })).collect();
                    self.page(&rows, query)
                }
                None => not_found(),
            },
            ("PATCH", ["contacts", id]) => {
                let (forgets, resubscribes) = (self.forgets, self.resubscribes);
                let Some(contact) = self.list.iter_mut().find(|one| one["id"] == *id) else {
                    return not_found();
                };
                let body: Value = serde_json::from_slice(&seen.body).unwrap();
                for (name, value) in body["properties"].as_object().into_iter().flatten().filter(|_| !forgets)
                {
                    contact["properties"][name] = json!({ "type": "string", "value": value });
                }
                if let Some(unsubscribed) = body.get("unsubscribed") {
                    contact["unsubscribed"] = unsubscribed.clone();
                }
                if resubscribes {
                    contact["unsubscribed"] = (!contact["unsubscribed"].as_bool().unwrap()).into();
                }
                answer(200, &json!({ "object": "contact", "id": id }))
            }
            (method @ ("POST" | "DELETE"), ["contacts", id, "segments", segment]) => {
                let known = self.segments.iter().any(|one| one == segment);
                let Some(contact) = self.list.iter_mut().find(|one| known && one["id"] == *id) else {
                    return not_found();
                };
                let of = contact["segments"].as_array_mut().unwrap();
                of.retain(|one| one != segment);
                if method == "POST" {
                    of.push((*segment).into());
                }
                answer(200, &json!({ "id": segment }))
            }
            _ => fault(405, "method_not_allowed", "Not here"),
        }
    }

    fn page(&self, rows: &[Value], query: &str) -> Answer {
        let one = |name: &str| {
            query.split('&').filter_map(|pair| pair.split_once('=')).find(|(n, _)| *n == name).map(|(_, v)| v)
        };
        let limit: usize = one("limit").map_or(Ok(20), str::parse).unwrap_or(0);
        if !(1..=100).contains(&limit) {
            return fault(422, "validation_error", "The limit must be between 1 and 100");
        }
        let rows: Vec<&Value> = rows.iter().collect();
        let from = match one("after").filter(|_| !self.repeats) {
            Some(id) => rows.iter().position(|row| row["id"] == decoded(id)).map_or(rows.len(), |at| at + 1),
            None => 0,
        };
        let limit = self.page_max.map_or(limit, |max| limit.min(max));
        let page: Vec<&&Value> = rows.iter().skip(from).take(limit).collect();
        answer(200, &json!({ "object": "list", "data": page, "has_more": rows.len() > from + limit }))
    }
}

/// A contact as the service shows it.
fn shown(contact: &Value) -> Value {
    let mut shown = contact.clone();
    shown.as_object_mut().unwrap().remove("segments");
    shown
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        if first == b'%' {
            bytes.push(u8::from_str_radix(std::str::from_utf8(&more[..2]).unwrap(), 16).unwrap());
            rest = &more[2..];
        } else {
            bytes.push(first);
            rest = more;
        }
    }
    String::from_utf8(bytes).unwrap()
}
