//! R17: what is left of the forgotten, and what it is good for.

use super::*;
use crate::domain::erase::Theirs;
use crate::domain::forgotten::{Forgotten, WrongKey};
use crate::domain::keyed::Key;
use crate::domain::ledger::LooseStop;
use crate::domain::matter::{Matter, MatterKind};

const KEY: [u8; 32] = [7; 32];

/// A shop that has forgotten the buyer of `cs_1`, who paid by `pi_1` as customer `cus_1`.
fn forgot(extra: impl FnOnce(&mut Shop)) -> Shop {
    let mut shop = Shop::new();
    let refs =
        Refs { payment_intent: Some("pi_1".into()), customer: Some("cus_1".into()), ..Refs::default() };
    let first = checkout("evt_1", "cs_1", BUYER, paid_at());
    shop.take(paid_at(), vec![Incoming::Checkout(Box::new(Checkout { refs, ..first }))]);
    extra(&mut shop);
    let theirs = Theirs::of(&shop.ledger, &Whom::Address(address(BUYER)));
    shop.ledger.forgotten.take(&Key::new(KEY), Vec::new()).unwrap();
    assert!(shop.ledger.forgotten.remember(&theirs, paid_at()));
    shop.ledger.erase_forgotten();
    shop
}

#[test]
fn r17_nothing_but_hashes_is_left_and_each_kind_of_name_has_its_own() {
    let shop = forgot(|_| {});
    let text = serde_json::to_string(&shop.ledger).unwrap();
    for name in ["cs_1", "evt_1", "pi_1", "cus_1", "buyer@", "example"] {
        assert!(!text.contains(name), "{name} in {text}");
    }
    let forgotten = &shop.ledger.forgotten;
    assert!(forgotten.knows_session(&sid("cs_1")) && !forgotten.knows_session(&sid("evt_1")));
    assert!(forgotten.knows_id("evt_1") && forgotten.knows_id("cus_1") && !forgotten.knows_id("cs_1"));
    assert!(forgotten.knows_address(&address("Buyer@EXAMPLE.com").buyer()));
    for (name, known) in
        [("cs_1", true), ("pi_1", true), (" BUYER@example.com", true), ("cs_2", false), ("", false)]
    {
        assert_eq!(forgotten.knows_text(name), known, "{name}");
    }
    // Without the key they are worth nothing; with another they are refused.
    let mut read: Ledger = serde_json::from_str(&text).unwrap();
    assert!(!read.forgotten.knows_session(&sid("cs_1")));
    assert_eq!(read.forgotten.take(&Key::new([8; 32]), Vec::new()), Err(WrongKey));
    assert_eq!(read.forgotten.take(&Key::new(KEY), Vec::new()), Ok(false));
    assert!(read.forgotten.knows_session(&sid("cs_1")));
}

#[test]
fn r17_the_hash_is_hmac_sha256_and_the_key_hides_itself() {
    // Computed with another program: `printf 'session:cs_1' | openssl dgst -sha256 -mac HMAC -macopt hexkey:0707…`.
    let shop = forgot(|_| {});
    let session = shop.ledger.forgotten.people()[0].sessions.first().copied().unwrap();
    assert_eq!(String::from(session), "d1616219cca885e5d6aad526900de4128818a4856c51a5c14c4980411b689855");
    let key: Key = serde_json::from_str(&format!("\"{}\"", "07".repeat(32))).unwrap();
    assert_eq!(key, Key::new(KEY));
    let said = format!("{key:?} {:?} {:?}", shop.ledger.forgotten, shop.ledger);
    assert!(!said.contains("0707") && !said.contains("7, 7"), "{said}");
}

#[test]
fn r17_the_list_of_the_state_folder_adds_people_and_stops_and_loses_none() {
    let shop = forgot(|_| {});
    let mut older = Forgotten::default();
    older.take(&Key::new(KEY), Vec::new()).unwrap();
    let other = Theirs { address: Some(address("o@example.com").buyer()), ..Theirs::default() };
    older.remember(&other, paid_at());
    let mut people = shop.ledger.forgotten.people().to_vec();
    people[0].stopped = Some(paid_at());
    assert_eq!(older.take(&Key::new(KEY), people.clone()), Ok(true));
    assert_eq!(older.take(&Key::new(KEY), people), Ok(false), "twice is once");
    assert_eq!(older.people().len(), 2);
    assert_eq!(older.stopped(&address(BUYER).buyer()), Some(paid_at()));
    assert!(older.knows_address(&address("o@example.com").buyer()));
    assert!(!older.remember(&other, paid_at() + days(1)), "the time alone is nothing new");
}

#[test]
fn r17_matters_and_notices_about_them_are_known_as_theirs() {
    let matter = |kind, subject: &str, session: Option<&str>, text: &str| {
        Matter::new(kind, subject, paid_at(), session.map(sid), text.to_owned())
    };
    let theirs = [
        matter(MatterKind::UnknownResult, "cs_1.d3", Some("cs_1"), "subject \"Hanako\""),
        matter(MatterKind::PartialRefund, "evt_part", Some("cs_1"), "part of the money"),
        matter(
            MatterKind::Conflict,
            "evt_1",
            Some("cs_2"),
            "event evt_1 was taken in for session cs_1 and came again",
        ),
        matter(MatterKind::UnlinkedStop, "evt:odd", None, "event evt:odd (refund) stops a purchase"),
    ];
    let others = [
        matter(
            MatterKind::UnknownResult,
            "cs_11.d3",
            Some("cs_11"),
            "nobody knows whether d3 of session cs_11 left",
        ),
        matter(MatterKind::Brake, "run", None, "300 mails are due"),
    ];
    let shop = forgot(|shop| {
        for matter in theirs.iter().chain(&others) {
            shop.record(&[Fact::Matter { matter: Box::new(matter.clone()) }]);
        }
        // The stop was told when it came, and found its purchase later.
        let stopped = Fact::Marked {
            whom: Whom::Session(sid("cs_1")),
            mark: MarkKind::Stopped,
            at: paid_at(),
            reason: None,
            event: Some("evt:odd".parse().unwrap()),
        };
        shop.record(&[stopped]);
    });
    assert_eq!(shop.ledger.matters, others);
    for matter in &theirs {
        // The third is called by the event, and goes by it.
        assert!(shop.ledger.forgotten.knows_mail(&matter.key()), "{}", matter.id());
    }
    for matter in &others {
        assert!(!shop.ledger.forgotten.knows_mail(&matter.key()), "{}", matter.id());
    }
    assert!(shop.ledger.forgotten.knows_mail(&key("cs_1", Step::D14)));
    assert!(!shop.ledger.forgotten.knows_mail(&key("cs_11", Step::D14)));
}

#[test]
fn r17_a_forgotten_events_id_on_a_new_session_is_told_and_admits_nobody() {
    let mut shop = forgot(|_| {});
    let now = paid_at() + days(1);
    let counts = shop.take(now, vec![bought("evt_1", "cs_new", "new@example.com", now)]);
    assert_eq!((counts.invalid, counts.purchases), (1, 0));
    assert_eq!(shop.told(), ["conflict cs_new"]);
    assert!(!shop.ledger.matters[0].text.contains("evt_1"));
    // It is told once, however often the event comes: the matter is not taken for one of the forgotten.
    assert!(shop.ledger.erase_forgotten().is_nothing());
    shop.take(now, vec![bought("evt_1", "cs_new", "new@example.com", now)]);
    assert_eq!(shop.told().len(), 1);
}

#[test]
fn r17_any_order_of_refund_and_new_purchase_stops_the_same() {
    let (now, later) = (paid_at() + days(2), paid_at() + days(3));
    let refs = |payment_intent: &str| Refs {
        payment_intent: Some(payment_intent.into()),
        customer: Some("cus_1".into()),
        ..Refs::default()
    };
    let again = |payment_intent: &str| {
        let checkout = checkout("evt_2", "cs_2", BUYER, paid_at() + days(1));
        Incoming::Checkout(Box::new(Checkout { refs: refs(payment_intent), ..checkout }))
    };
    let refund = |payment_intent: &str| stop("evt_r", now, StopTarget::Refs(refs(payment_intent)));
    for (refunded, stopped) in [("pi_2", true), ("pi_1", false), ("pi_3", false)] {
        for first in [true, false] {
            let mut shop = forgot(|_| {});
            let (a, b) = (refund(refunded), again("pi_2"));
            let batches = if first { [a, b] } else { [b, a] };
            for batch in batches {
                shop.take(later, vec![batch]);
                assert!(shop.ledger.erase_forgotten().is_nothing(), "{refunded} {first}");
            }
            let steps = &shop.purchase("cs_2");
            assert_eq!(steps.stopped.is_some(), stopped, "{refunded}, refund first: {first}");
            let counts = shop.take(later, vec![refund(refunded)]);
            assert_eq!((counts.stops, counts.duplicates), (0, 1), "{refunded}, refund first: {first}");
            // What is kept of a refund in case its purchase comes says nothing in plain.
            for kept in &shop.ledger.loose_stops {
                let text = format!("{:?} {:?}", kept.refs, kept.event);
                assert!(!text.contains("cus_1") && !text.contains("evt_r"), "{text}");
            }
        }
    }
}

#[test]
fn r17_stops_and_marks_for_the_future_go_if_they_are_theirs_and_only_then() {
    let loose = |event: &str, session: Option<&str>, refs: Refs| LooseStop {
        at: paid_at(),
        reason: None,
        event: Some(event.parse().unwrap()),
        session: session.map(sid),
        refs,
        asked: false,
        lifted: None,
    };
    let by = |id: &str| Refs { payment_intent: Some(id.into()), ..Refs::default() };
    let customer = Refs { customer: Some("cus_1".into()), ..Refs::default() };
    let shop = forgot(|shop| {
        shop.ledger.loose_stops = vec![
            loose("evt_a", Some("cs_1"), Refs::default()),
            loose("evt_b", None, by("pi_1")),
            loose("evt_c", None, by("pi_9")),
            loose("evt_d", None, customer),
            loose("evt_e", Some("cs_9"), Refs::default()),
        ];
    });
    let kept: Vec<_> =
        shop.ledger.loose_stops.iter().map(|stop| stop.event.clone().unwrap().to_string()).collect();
    assert_eq!((kept.len(), kept[0].as_str(), kept[2].as_str()), (3, "evt_c", "evt_e"));
    assert!(kept[1].starts_with("forgotten:"), "{kept:?}");
    let mut again = shop.ledger.clone();
    assert!(again.erase_forgotten().is_nothing(), "twice is once");
    assert_eq!(again, shop.ledger);
}
