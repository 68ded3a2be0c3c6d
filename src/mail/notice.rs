//! The telling of matters: one mail to the operator, with a state of its own (R15).

use std::fmt::Write as _;

use super::layout::{self, escape};
use super::{Message, Sender};
use crate::domain::ids::Address;
use crate::domain::matter::Matter;
use crate::domain::time::Timestamp;

/// The operator's notice of these matters, under the key of the first; none of nothing.
#[must_use]
pub fn notice(matters: &[Matter], from: &Sender, operator: &Address, now: Timestamp) -> Option<Message> {
    let first = matters.first()?;
    let subject = match matters {
        [matter] => format!("stepmail: {}", headline(matter)),
        _ => format!("stepmail: {} things to look at", matters.len()),
    };
    let (mut text, mut body) = (String::new(), String::new());
    for matter in matters {
        if matters.len() > 1 {
            let headline = headline(matter);
            let _ = write!(text, "* {headline}, since {}\n\n", matter.at);
            body.push_str(&layout::paragraph(&format!("<b>{}</b>, since {}", escape(&headline), matter.at)));
        }
        text.push_str(matter.text.trim_end());
        text.push_str(if matters.len() > 1 { "\n\n" } else { "" });
        body.extend(matter.text.lines().map(|line| layout::paragraph(&escape(line))));
    }
    let mut facts = Vec::new();
    if matters.len() == 1 {
        facts = vec![format!("Matter: {}", first.id()), format!("First seen: {}", first.at)];
        facts.extend(first.session.iter().map(|session| format!("Session: {session}")));
    }
    facts.push("This is told once. `stepmail status` shows what still waits for you.".to_owned());
    Some(Message {
        key: first.key(),
        date: now,
        from: from.clone(),
        reply_to: operator.clone(),
        to: operator.clone(),
        text: format!("{}{}\n", text.trim_end(), layout::footer_text(&facts)),
        html: layout::document("en", &subject, &body, &layout::footer_html(&facts)),
        subject,
    })
}

fn headline(matter: &Matter) -> String {
    let about = matter.session.as_ref().map(|session| format!(" ({session})")).unwrap_or_default();
    format!("{}{about}", matter.kind.name().replace('_', " "))
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
        let operator = "owner@example.com".parse().unwrap();
        let mail = notice(std::slice::from_ref(&matter), &from, &operator, at).unwrap();
        assert_eq!(mail.key.to_string(), "pp:notice:unknown_result.cs_1.d3.1789952400");
        assert_eq!(mail.subject, "stepmail: unknown result (cs_1)");
        assert!(mail.text.starts_with("the address or amount of <cs_1> changed"), "{}", mail.text);
        assert!(
            mail.html.contains("of &lt;cs_1&gt; changed") && mail.html.contains("lang=\"en\""),
            "{}",
            mail.html
        );
        assert_eq!(mail.to.as_str(), "owner@example.com");
        let other = Matter::new(MatterKind::NoMark, "state_dir", at, None, "make it <writable>".to_owned());
        let both = notice(&[matter, other], &from, &operator, at).unwrap();
        assert_eq!((both.key, both.subject.as_str()), (mail.key, "stepmail: 2 things to look at"));
        for said in
            ["unknown result (cs_1), since", "of <cs_1> changed", "* no mark, since", "make it <writable>"]
        {
            assert!(both.text.contains(said), "{}", both.text);
        }
        assert!(both.html.contains("make it &lt;writable&gt;"), "{}", both.html);
        assert_eq!(notice(&[], &from, &operator, at), None);
    }
}
