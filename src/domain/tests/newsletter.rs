//! R14: whose contact may carry the purchaser mark.

use super::*;
use crate::domain::newsletter::{
    By, Contact, Reason, Standing, Verdict, gathered, to_look_up, to_unmark, verdict,
};

fn contact(unsubscribed: bool, confirmed: bool, marked: bool) -> Contact {
    Contact { id: "c".to_owned(), unsubscribed, confirmed, marked }
}

#[test]
fn r14_only_a_confirmed_subscriber_is_marked_but_for_a_persons_word() {
    let address = By::Address(address(BUYER).buyer());
    let (id, hand) = (By::SubscriberId("c".to_owned()), By::Hand("c".to_owned()));
    for marked in [false, true] {
        let done = if marked { Verdict::IsMarked } else { Verdict::Mark };
        for by in [&address, &id] {
            assert_eq!(verdict(&contact(false, true, marked), by), done);
            assert_eq!(verdict(&contact(false, false, marked), by), Verdict::Leave(Reason::Unconfirmed));
            assert_eq!(verdict(&contact(true, true, marked), by), Verdict::Leave(Reason::Unsubscribed));
            assert_eq!(verdict(&contact(true, false, marked), by), Verdict::Leave(Reason::Unsubscribed));
        }
        for unsubscribed in [false, true] {
            assert_eq!(verdict(&contact(unsubscribed, false, marked), &hand), done);
        }
    }
}

fn with(session: &str, newsletter: Option<Standing>, refunded: bool) -> Purchase {
    let stopped = refunded.then(|| Mark { at: paid_at(), reason: Some("refund".to_owned()) });
    Purchase { stopped, newsletter, ..purchase(session, paid_at()) }
}

fn shop(purchases: Vec<Purchase>) -> Ledger {
    let mut shop = Shop::new();
    shop.record(&purchases.into_iter().map(|p| Fact::Admitted { purchase: Box::new(p) }).collect::<Vec<_>>());
    shop.ledger
}

#[test]
fn r14_a_purchase_is_looked_up_by_its_subscriber_id_alone_else_by_address_and_once() {
    let by_id = Purchase { subscriber_id: Some("reader".to_owned()), ..with("cs_2", None, false) };
    let (at, contact) = (paid_at(), "c".to_owned());
    let told = |reason| Some(Standing::Told { at, reason, untold: false });
    let ledger = shop(vec![
        with("cs_1", None, false),
        by_id,
        with("cs_3", Some(Standing::Open { contact: Some("c".to_owned()) }), false),
        with("cs_4", Some(Standing::NotKnown { since: at, contact: None }), true),
        with("cs_5", Some(Standing::Marked { at, contact, unmarked: None }), false),
        with("cs_6", told(Reason::None), false),
        with("cs_7", told(Reason::Ignored), false),
    ]);
    let address = By::Address(address(BUYER).buyer());
    let mut expected = vec![
        (sid("cs_1"), address.clone()),
        (sid("cs_2"), By::SubscriberId("reader".to_owned())),
        (sid("cs_3"), By::Hand("c".to_owned())),
        (sid("cs_4"), address),
    ];
    assert_eq!(to_look_up(&ledger, false), expected);
    expected.pop();
    assert_eq!(to_look_up(&ledger, true), expected, "what would be taken away at once is not set");
}

#[test]
fn r14_a_mark_goes_with_the_last_purchase_of_its_contact() {
    let marked = |session: &str, contact: &str, refunded: bool, unmarked| {
        with(
            session,
            Some(Standing::Marked { at: paid_at(), contact: contact.to_owned(), unmarked }),
            refunded,
        )
    };
    let one = marked("cs_1", "c_1", true, None);
    assert_eq!(to_unmark(&shop(vec![one.clone()])), [(sid("cs_1"), "c_1".to_owned())]);
    assert_eq!(to_unmark(&shop(vec![one.clone(), marked("cs_2", "c_1", false, None)])), []);
    let other = marked("cs_2", "c_2", false, None);
    assert_eq!(to_unmark(&shop(vec![one, other])), [(sid("cs_1"), "c_1".to_owned())]);
    assert_eq!(to_unmark(&shop(vec![marked("cs_1", "c_1", true, Some(paid_at()))])), []);
}

#[test]
fn r15_the_notice_of_those_who_read_no_newsletter_comes_once_a_day_and_holds_no_address() {
    let none = |session: &str| {
        with(session, Some(Standing::Told { at: paid_at(), reason: Reason::None, untold: true }), false)
    };
    let mut shop = Shop { ledger: shop(vec![none("cs_1"), none("cs_2")]) };
    let now = paid_at() + hours(1);
    let facts = gathered(&shop.ledger, now);
    shop.record(&facts);
    assert_eq!(shop.told(), [format!("newsletter_none {}", now.unix())]);
    assert!(
        shop.ledger.matters[0].text.contains("2 purchases") && !shop.ledger.matters[0].text.contains('@')
    );
    assert_eq!(gathered(&shop.ledger, now + hours(1)), []);
    shop.record(&[Fact::Newsletter {
        session: sid("cs_1"),
        standing: Standing::Told { at: now, reason: Reason::None, untold: true },
    }]);
    assert_eq!(gathered(&shop.ledger, now + minus(hours(24), ONE)), []);
    assert!(!gathered(&shop.ledger, now + hours(24)).is_empty());
}
