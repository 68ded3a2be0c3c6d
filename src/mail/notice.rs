//! The telling of a matter: a mail to the operator, with a state of its own (R15).

use super::layout::{self, escape};
use super::{Message, Sender};
use crate::domain::ids::Address;
use crate::domain::matter::Matter;
use crate::domain::time::Timestamp;

/// The operator's notice of one matter.
#[must_use]
pub fn notice(matter: &Matter, from: &Sender, operator: &Address, now: Timestamp) -> Message {
    let kind = matter.kind.name().replace('_', " ");
    let about = matter.session.as_ref().map(|session| format!(" ({session})")).unwrap_or_default();
    let subject = format!("stepmail: {kind}{about}");
    let mut facts = vec![format!("Matter: {}", matter.id()), format!("First seen: {}", matter.at)];
    facts.extend(matter.session.iter().map(|session| format!("Session: {session}")));
    facts.push("This is told once.".to_owned());
    let body: String = matter.text.lines().map(|line| layout::paragraph(&escape(line))).collect();
    Message {
        key: matter.key(),
        date: now,
        from: from.clone(),
        reply_to: operator.clone(),
        to: operator.clone(),
        text: format!("{}{}\n", matter.text.trim_end(), layout::footer_text(&facts)),
        html: layout::document("en", &subject, &body, &layout::footer_html(&facts)),
        subject,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::matter::MatterKind;

    #[test]
    fn the_operator_reads_what_where_and_since_when() {
        let at = Timestamp::parse("2026-09-21T01:00:00Z").unwrap();
        let text = "the address or amount of <cs_1> changed; the record stands".to_owned();
        let matter =
            Matter::new(MatterKind::UnknownResult, "cs_1.d3", at, Some("cs_1".parse().unwrap()), text);
        let from = Sender { name: Some("Shop".to_owned()), address: "hello@example.com".parse().unwrap() };
        let mail = notice(&matter, &from, &"owner@example.com".parse().unwrap(), at);
        assert_eq!(mail.key.to_string(), "pp:notice:unknown_result.cs_1.d3.1789952400");
        assert_eq!(mail.subject, "stepmail: unknown result (cs_1)");
        assert!(mail.text.starts_with("the address or amount of <cs_1> changed"), "{}", mail.text);
        assert!(
            mail.html.contains("of &lt;cs_1&gt; changed") && mail.html.contains("lang=\"en\""),
            "{}",
            mail.html
        );
        assert_eq!(mail.to.as_str(), "owner@example.com");
    }
}
