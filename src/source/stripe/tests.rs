//! Stripe's event bodies, as found and as derived, and what each of them says.

use super::super::{Reading, parse};
use super::*;

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../../../tests/data/stripe-events/", $name, ".json"))
    };
}

const PURCHASE_2019: &str = fixture!("01-2019-05-16-checkout.session.completed-payment");
const SUBSCRIPTION_2020: &str = fixture!("02-2020-08-27-checkout.session.completed-subscription");
const SETUP: &str = fixture!("03-noversion-checkout.session.completed-setup");
const SUBSCRIPTION_2023: &str = fixture!("04-2023-08-16-checkout.session.completed-subscription");
const GUEST: &str = fixture!("05-2026-01-28.clover-checkout.session.completed-guest-payment");
const KONBINI_UNPAID: &str = fixture!("06-DERIVED-checkout.session.completed-unpaid-konbini");
const KONBINI_PAID: &str = fixture!("07-DERIVED-checkout.session.async_payment_succeeded-konbini");
const REFUND: &str = fixture!("08-2020-03-02-charge.refunded-full");
const PART_REFUND: &str = fixture!("09-DERIVED-charge.refunded-partial-clover-shape");
const DISPUTE: &str = fixture!("10-2026-04-22.dahlia-charge.dispute.created");
const CANCELED: &str = fixture!("11-2026-04-22.dahlia-customer.subscription.deleted");
const PAGE: &str = fixture!("12-2025-11-17.clover-events-list-page");
const ALL: [&str; 12] = [
    PURCHASE_2019,
    SUBSCRIPTION_2020,
    SETUP,
    SUBSCRIPTION_2023,
    GUEST,
    KONBINI_UNPAID,
    KONBINI_PAID,
    REFUND,
    PART_REFUND,
    DISPUTE,
    CANCELED,
    PAGE,
];

fn reading(text: &str, livemode: bool) -> Reading {
    parse("f", text.as_bytes(), &Rules::plain(livemode)).unwrap()
}

/// The one thing that a test-mode event says.
fn incoming(text: &str) -> Incoming {
    let mut all = reading(text, false).incoming;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn checkout_of(text: &str) -> Checkout {
    match incoming(text) {
        Incoming::Checkout(checkout) => *checkout,
        other => panic!("{other:?}"),
    }
}

fn why(text: &str) -> String {
    match incoming(text) {
        Incoming::Invalid(invalid) => invalid.why,
        other => panic!("{other:?}"),
    }
}

/// The text with one piece replaced, which must be there.
fn with(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

fn refs(payment_intent: &str, invoice: &str, subscription: &str, customer: &str) -> Refs {
    let id = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Refs {
        payment_intent: id(payment_intent),
        invoice: id(invoice),
        subscription: id(subscription),
        customer: id(customer),
    }
}

fn amount(value: i64, currency: &str) -> Amount {
    Amount { value, currency: currency.to_owned() }
}

#[test]
fn a_purchase_of_2019_is_read_but_not_taken_for_paid() {
    assert_eq!(
        checkout_of(PURCHASE_2019),
        Checkout {
            event: "evt_1Emw4mGf8y65MteUNt6J2zlN".parse().unwrap(),
            at: at("2019-06-19T05:11:16Z"),
            session: "cs_test_0FldEAQpyiya1xFLtZpPuEaWQ8OGnMMsotlnwrWCk8jXrAeeMtVruHwB".parse().unwrap(),
            payment: Payment::Unknown,
            email: None,
            email_fault: None,
            name: None,
            locale: None,
            billing: None,
            subscriber_id: Some("ff3bbecb-e744-4674-b411-a11d6832a5ac".to_owned()),
            amount: None,
            refs: refs("pi_1Emw4WGf8y65MteUBrVOy4ME", "", "", "cus_FHV47hm01bNBpG"),
            vars: BTreeMap::new(),
        }
    );
}

#[test]
fn subscriptions_of_2020_and_2023_start_a_sequence_and_their_metadata_stays_the_sellers() {
    assert_eq!(
        checkout_of(SUBSCRIPTION_2020),
        Checkout {
            event: "evt_1KReZuClnCBJWy55jnEhLQ9H".parse().unwrap(),
            at: at("2022-02-10T15:29:02Z"),
            session: "cs_test_a1P7GbDJbtfBG96HpRAf1AFvz0UMB3XWv1cBkndQxtSBMWQ5vzVlnlLu1R".parse().unwrap(),
            payment: Payment::Paid,
            email: Some("buyer2@example.com".parse().unwrap()),
            email_fault: None,
            name: None,
            locale: None,
            billing: None,
            subscriber_id: None,
            amount: Some(amount(3000, "eur")),
            refs: refs("", "", "sub_1KReZrClnCBJWy556NyE96aD", "cus_L7uOLpyHjoItiF"),
            vars: BTreeMap::new(),
        }
    );
    assert_eq!(
        checkout_of(SUBSCRIPTION_2023),
        Checkout {
            event: "evt_1SVlloAsZsvo7FHidtWOpmCI".parse().unwrap(),
            at: at("2025-11-21T04:16:28Z"),
            session: "cs_test_a1TZaEVMpRvxCgZYSYNHg4VIgUfYe05m8fLAsmzEF8Scsb5FbqJL2iT2Q2".parse().unwrap(),
            payment: Payment::Paid,
            email: Some("buyer4@example.com".parse().unwrap()),
            email_fault: None,
            name: Some("EXAMPLE BUYER".to_owned()),
            locale: None,
            billing: None,
            subscriber_id: None,
            amount: Some(amount(199, "usd")),
            refs: refs(
                "",
                "in_1SVlllAsZsvo7FHik9weF6X1",
                "sub_1SVllmAsZsvo7FHiW0uYj8d5",
                "cus_TShA12zyXnS5sV"
            ),
            vars: BTreeMap::new(),
        }
    );
}

#[test]
fn storing_a_card_is_no_purchase() {
    assert_eq!(incoming(SETUP), Incoming::Ignored);
    assert_eq!(incoming(&with(GUEST, r#""mode": "payment""#, r#""mode": "barter""#)), Incoming::Ignored);
}

#[test]
fn c034_a_guest_without_a_customer_is_a_buyer() {
    let guest = Checkout {
        event: "evt_1T0a5MIeADuLKrJVoPKwvIl4".parse().unwrap(),
        at: at("2026-02-14T04:04:00Z"),
        session: "cs_test_a1yLrQloLkXm5x0qx5KEC6GKDGrbLkztRnSL9qkIJyG7nmmEOKuBPEzr18".parse().unwrap(),
        payment: Payment::Paid,
        email: Some("stripe@example.com".parse().unwrap()),
        email_fault: None,
        name: Some("Jenny Rosen".to_owned()),
        locale: None,
        billing: None,
        subscriber_id: None,
        amount: Some(amount(3000, "usd")),
        refs: refs("pi_3T0a5LIeADuLKrJV03FitWbm", "", "", ""),
        vars: BTreeMap::new(),
    };
    assert_eq!(checkout_of(GUEST), guest);
    // The object's own livemode is not asked.
    let inner = with(GUEST, r#""livemode": false"#, r#""livemode": true"#);
    assert_eq!(checkout_of(&inner), guest);
}

#[test]
fn c033_a_convenience_store_buyer_waits_until_the_money_is_there() {
    let unpaid = checkout_of(KONBINI_UNPAID);
    assert_eq!((unpaid.payment, unpaid.at), (Payment::Unpaid, at("2026-02-14T04:05:00Z")));
    assert_eq!(unpaid.email.as_ref().unwrap().as_str(), "Kaimono.Hanako@Example.COM");
    assert_eq!((unpaid.name.as_deref(), unpaid.locale.as_deref()), (Some("買物 花子"), Some("ja")));
    assert_eq!(
        (&unpaid.amount, &unpaid.refs),
        (&Some(amount(3300, "jpy")), &refs("pi_DERIVEDkonbini00000000001", "", "", ""))
    );

    let paid = Checkout {
        event: "evt_DERIVED0000000000000000002".parse().unwrap(),
        at: at("2026-02-16T04:05:00Z"),
        payment: Payment::Paid,
        ..unpaid.clone()
    };
    assert_eq!(checkout_of(KONBINI_PAID), paid);

    let failed = with(KONBINI_UNPAID, "checkout.session.completed", "checkout.session.async_payment_failed");
    assert_eq!(incoming(&failed), Incoming::PaymentFailed { event: unpaid.event, session: unpaid.session });
}

#[test]
fn c033_only_the_words_that_mean_paid_are_paid() {
    let status = r#""payment_status": "paid""#;
    for (base, to, payment) in [
        (GUEST, r#""payment_status": "no_payment_required""#, Payment::Paid),
        (GUEST, r#""payment_status": "unpaid""#, Payment::Unpaid),
        (GUEST, r#""payment_status": "PAID""#, Payment::Unknown),
        (GUEST, r#""payment_status": "processing""#, Payment::Unknown),
        (GUEST, r#""payment_status": null"#, Payment::Unknown),
        (KONBINI_PAID, r#""payment_status": null"#, Payment::Paid),
        (KONBINI_PAID, r#""payment_status": "new word""#, Payment::Paid),
        (KONBINI_PAID, r#""payment_status": "unpaid""#, Payment::Unknown),
    ] {
        assert_eq!(checkout_of(&with(base, status, to)).payment, payment, "{to}");
    }
    assert_eq!(
        why(&with(GUEST, status, r#""payment_status": true"#)),
        "`data.object.payment_status` must be text"
    );
}

#[test]
fn c021_refunds_disputes_and_cancellations_find_their_purchase() {
    let signal = |event: &str, time: &str, reason: &str, refs| StopSignal {
        event: event.parse().unwrap(),
        at: at(time),
        reason: reason.to_owned(),
        target: StopTarget::Refs(refs),
        asked: false,
        quiet: false,
    };
    let refund_refs =
        refs("pi_3Kl36gJDPojXS6LN02fQVtKR", "in_1KJdKkJDPojXS6LNSwSWkZSN", "", "cus_J7Mkgr8mvbl1eK");
    let refund = signal("evt_3KtQThJDPojXS6LN0E06aNxq", "2021-04-29T12:58:31Z", "refund", refund_refs);
    let part = signal(
        "evt_DERIVED0000000000000000003",
        "2026-02-17T03:46:40Z",
        "refund",
        refs("pi_3T0a5LIeADuLKrJV03FitWbm", "", "", ""),
    );
    assert_eq!(incoming(REFUND), Incoming::Stop(refund.clone()));
    assert_eq!(incoming(PART_REFUND), Incoming::PartialRefund { signal: part.clone(), total: Some(1000) });
    // What is left of the flag or of the amounts decides.
    assert_eq!(incoming(&with(REFUND, r#""refunded": true,"#, "")), Incoming::Stop(refund.clone()));
    let all = with(PART_REFUND, r#""amount_refunded": 1000"#, r#""amount_refunded": 3000"#);
    assert_eq!(incoming(&all), Incoming::Stop(part));
    let no_amount = with(REFUND, r#""amount": 2500,"#, "");
    assert_eq!(incoming(&no_amount), Incoming::Stop(refund));

    assert_eq!(
        incoming(DISPUTE),
        Incoming::Stop(signal(
            "evt_1TbG48JEe0yY0QKrrgcor0DZ",
            "2026-05-26T08:10:19Z",
            "dispute",
            refs("pi_3TbG44JEe0yY0QKr0OnHpigY", "", "", "")
        ))
    );
    let unlinked = with(DISPUTE, r#""pi_3TbG44JEe0yY0QKr0OnHpigY""#, "null");
    let Incoming::Stop(stop) = incoming(&unlinked) else { panic!() };
    assert_eq!(stop.target, StopTarget::Refs(Refs::default()));

    assert_eq!(
        incoming(CANCELED),
        Incoming::Stop(signal(
            "evt_1TbGjLJEe0yY0QKrJVg6cuyY",
            "2026-05-26T08:52:55Z",
            "canceled",
            refs("", "", "sub_1TbGh3JEe0yY0QKrmHd5I4l8", "")
        ))
    );
}

#[test]
fn a_deleted_customer_is_a_stop_and_a_changed_one_is_not() {
    assert_eq!(incoming(PAGE), Incoming::Ignored);
    let Incoming::Stop(stop) = incoming(&with(PAGE, "customer.updated", "customer.deleted")) else {
        panic!()
    };
    assert_eq!((stop.reason.as_str(), stop.at), ("customer_deleted", at("2001-09-09T01:46:40Z")));
    assert_eq!(stop.target, StopTarget::Refs(refs("", "", "", "cus_EXAMPLE0000001")));
    let nameless =
        PAGE.replace("customer.updated", "customer.deleted").replace(r#""id": "cus_EXAMPLE0000001","#, "");
    assert_eq!(why(&nameless), "`data.object.id` is missing");
}

#[test]
fn c021_unknown_types_and_renewals_start_nothing() {
    for other in
        ["invoice.paid", "checkout.session.expired", "payment_intent.succeeded", "what.nobody.knows", ""]
    {
        let text = with(GUEST, "checkout.session.completed", other);
        assert_eq!(incoming(&text), Incoming::Ignored, "{other}");
    }
    let thin = r#"{"id":"evt_test_65","object":"v2.core.event","type":"v2.core.account.created","livemode":false,"created":"2026-01-01T00:00:00.000Z"}"#;
    let read = reading(thin, false);
    assert_eq!((read.incoming.as_slice(), read.thin, read.other_mode), (&[Incoming::Ignored][..], 1, 0));
}

#[test]
fn c074_test_events_start_nothing_in_a_live_shop() {
    let all = reading(&ALL.join("\n"), true);
    assert_eq!((all.incoming, all.other_mode), (vec![Incoming::Ignored; 12], 12));
    let livemode = "\"livemode\": false,\n  \"pending";
    for (written, test, live) in [
        ("\"livemode\": false,", true, false),
        ("\"livemode\": true,", false, true),
        ("\"livemode\": \"false\",", false, false),
        ("\"livemode\": \"true\",", false, false),
        ("\"livemode\": null,", false, false),
        ("\"livemode\": 1,", false, false),
        ("", false, false),
    ] {
        let text = with(GUEST, livemode, &format!("{written}\n  \"pending"));
        for (mode, passes) in [(false, test), (true, live)] {
            let read = reading(&text, mode);
            assert_eq!(matches!(read.incoming[..], [Incoming::Checkout(_)]), passes, "{written} {mode}");
            assert_eq!(read.other_mode, usize::from(!passes), "{written} {mode}");
        }
    }
    let twice = with(GUEST, livemode, "\"livemode\": true,\n  \"livemode\": false,\n  \"pending");
    assert_eq!(why(&twice), "`livemode` stands twice");
}

#[test]
fn the_order_of_events_does_not_change_what_each_says() {
    let said = |texts: &[&str]| {
        let mut all: Vec<_> =
            reading(&texts.join("\n"), false).incoming.iter().map(|one| format!("{one:?}")).collect();
        all.sort();
        all
    };
    let mut texts = ALL;
    let expected = said(&texts);
    for _ in 0..ALL.len() {
        texts.rotate_left(1);
        assert_eq!(said(&texts), expected);
    }
}

#[test]
fn c034_the_address_is_taken_from_the_documented_places_in_order() {
    let typed = r#""email": "stripe@example.com""#;
    let shop = r#""customer_email": null"#;
    let other = r#""customer_email": "other@example.com""#;
    for (details, customer, found) in [
        (typed, other, Some("stripe@example.com")),
        (r#""email": null"#, other, Some("other@example.com")),
        (r#""email": """#, other, Some("other@example.com")),
        (r#""email": " 　""#, other, Some("other@example.com")),
        (r#""phone_2": null"#, other, Some("other@example.com")),
        (r#""email": null"#, shop, None),
        (r#""email": null"#, r#""customer_email": """#, None),
        (r#""email": " stripe@example.com ""#, shop, Some("stripe@example.com")),
    ] {
        let sale = checkout_of(&with(&with(GUEST, typed, details), shop, customer));
        assert_eq!(sale.email.as_ref().map(Address::as_str), found, "{details} {customer}");
        assert_eq!(sale.email_fault, None);
    }
    let no_details = with(SETUP, r#""mode": "setup""#, r#""mode": "payment""#);
    assert_eq!(checkout_of(&no_details).email, None);
    let nameless = with(GUEST, r#""name": "Jenny Rosen""#, r#""name": null"#);
    assert_eq!(checkout_of(&nameless).name, None);
    let individual = with(&nameless, r#""individual_name": null"#, r#""individual_name": " Jenny ""#);
    assert_eq!(checkout_of(&individual).name.as_deref(), Some("Jenny"));
}

#[test]
fn c044_a_mistyped_address_keeps_the_purchase_and_is_not_replaced_by_another() {
    let shop = with(GUEST, r#""customer_email": null"#, r#""customer_email": "other@example.com""#);
    for bad in ["a b@example.com", "ｂｕｙｅｒ＠ｅｘａｍｐｌｅ．ｃｏｍ", "buyer@example,com", "buyer"]
    {
        let sale = checkout_of(&with(&shop, "stripe@example.com", bad));
        assert_eq!(sale.email, None, "{bad}");
        let fault = sale.email_fault.unwrap();
        assert!(fault.starts_with("address ") && !fault.contains(bad), "{fault}");
    }
    assert_eq!(
        why(&with(GUEST, r#""stripe@example.com""#, "5")),
        "`data.object.customer_details.email` must be text"
    );
}

#[test]
fn an_event_with_an_odd_time_or_session_is_refused_by_field() {
    let created = "\"created\": 1771041840";
    for (to, said) in [
        ("\"x\": 1", "`created` is missing"),
        ("\"created\": null", "`created` is missing"),
        ("\"created\": \"1771041840\"", "`created` must be a whole number"),
        ("\"created\": 1771041840.5", "`created` must be a whole number"),
        ("\"created\": 1.771041840e9", "`created` must be a whole number"),
        ("\"created\": 12345678901234567890", "`created` must be a whole number"),
        ("\"created\": -5", "`created` is refused: -5 lies outside the years 2000 to 2200"),
        (
            "\"created\": 1771041840000",
            "`created` is refused: 1771041840000 lies outside the years 2000 to 2200 (seconds are expected; this looks like milliseconds)",
        ),
        ("\"created\": 1771041840, \"created\": 1", "`created` stands twice"),
    ] {
        assert_eq!(why(&with(GUEST, created, to)), said);
    }
    assert_eq!(checkout_of(&with(GUEST, created, "\"created\": 4000000000")).at.unix(), 4_000_000_000);

    let id = "cs_test_a1yLrQloLkXm5x0qx5KEC6GKDGrbLkztRnSL9qkIJyG7nmmEOKuBPEzr18";
    for bad in ["", "cs 1", "cs/1", "cs:1", "notice", "ｃｓ", "hanako@example.com"] {
        let said = why(&with(GUEST, id, bad));
        assert!(said.starts_with("`data.object.id` is refused: session id "), "{said}");
    }
    let Incoming::Invalid(invalid) = incoming(&with(GUEST, id, "cs 1")) else { panic!() };
    assert_eq!(
        (invalid.subject.as_str(), invalid.place.as_str()),
        ("evt_1T0a5MIeADuLKrJVoPKwvIl4", "f line 1")
    );
}

#[test]
fn an_event_without_its_object_is_refused() {
    let event = |data: &str| {
        format!(
            r#"{{"id":"evt_1","object":"event","type":"charge.refunded","livemode":false,"created":1771041840{data}}}"#
        )
    };
    for (data, said) in [
        ("", "`data` is missing"),
        (r#","data":[]"#, "`data` must be an object"),
        (r#","data":{}"#, "`data.object` is missing"),
        (r#","data":{"object":"ch_1"}"#, "`data.object` must be an object"),
        (r#","data":{"object":{"object":"refund"}}"#, "`data.object.object` is not `charge`"),
        (r#","data":{"object":{"amount":1.5}}"#, "`data.object.amount` must be a whole number"),
        (r#","data":{"object":{"refunded":"true"}}"#, "`data.object.refunded` must be true or false"),
        (r#","data":{"object":{"customer":[]}}"#, "`data.object.customer` must be text"),
    ] {
        assert_eq!(why(&event(data)), said, "{data}");
    }
    assert_eq!(why(&event("").replace(r#""type":"charge.refunded","#, "")), "`type` is missing");
    assert_eq!(
        why(&event(r#","data":{"object":{}}"#).replace("evt_1", "evt 1")),
        "`id` is refused: event id may hold only visible ASCII characters"
    );
}

#[test]
fn expanded_references_give_the_same_ids() {
    let expanded = with(
        GUEST,
        r#""pi_3T0a5LIeADuLKrJV03FitWbm""#,
        r#"{"object":"payment_intent","id":"pi_3T0a5LIeADuLKrJV03FitWbm"}"#,
    );
    assert_eq!(checkout_of(&expanded), checkout_of(GUEST));
}

#[test]
fn of_the_metadata_only_our_own_entries_become_values() {
    let metadata = r#""metadata": {"mail":"hanako@example.com","stepmail_product":"A & B","stepmail_login-url":"x","stepmail_":"x","stepmail_n":5,"stepmail_gone":null,"Stepmail_x":"x","stepmail_empty":""}"#;
    let sale = checkout_of(&with(
        GUEST,
        "\"metadata\": {},\n      \"mode\"",
        &format!("{metadata},\n      \"mode\""),
    ));
    let expected = [("empty", ""), ("product", "A & B")];
    assert_eq!(sale.vars, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    let list = with(GUEST, "\"metadata\": {},\n      \"mode\"", "\"metadata\": [],\n      \"mode\"");
    assert_eq!(checkout_of(&list), checkout_of(GUEST));
}

#[test]
fn a_locale_that_the_browser_chose_is_no_locale() {
    for (written, locale) in [("\"auto\"", None), ("\"\"", None), ("\"en-GB\"", Some("en-GB"))] {
        let text = with(GUEST, "\"locale\": null", &format!("\"locale\": {written}"));
        assert_eq!(checkout_of(&text).locale.as_deref(), locale);
    }
}

#[test]
fn c066_a_broken_name_or_deep_metadata_spoils_one_event_only() {
    let broken = with(GUEST, "\"Jenny Rosen\"", "\"\\ud800\"");
    let read = reading(&format!("[{broken},{KONBINI_PAID}]"), false).incoming;
    assert!(matches!(read[..], [Incoming::Invalid(_), Incoming::Checkout(_)]), "{read:?}");
    // What nobody reads harms nobody.
    let odd = format!("\"x\": {}1e400{}, \"metadata\": {{}}", "[".repeat(500), "]".repeat(500));
    let unread = with(GUEST, "\"metadata\": {},\n      \"mode\"", &format!("{odd},\n      \"mode\""));
    assert_eq!(checkout_of(&unread), checkout_of(GUEST));
    let read = with(GUEST, "\"amount_total\": 3000", "\"amount_total\": 1e400");
    assert_eq!(why(&read), "`data.object.amount_total` must be a whole number");
}
