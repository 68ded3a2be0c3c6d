//! R17 on disk: nobody comes back, by an edit, a list, or a left-over.

use super::*;

/// A keyed hash, of whatever.
const HASH: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn whom(session: &str) -> Whom {
    Whom::Address(format!("{session}@example.com").parse().unwrap())
}

/// The files in which somebody can be read, the list of the forgotten too.
fn traces(shop: &Shop, session: &str) -> Vec<String> {
    let state = shop.at("state/forgotten");
    let lists = fs::read_dir(state).into_iter().flatten().map(|entry| entry.unwrap().path());
    let files =
        shop.names().into_iter().map(|name| shop.at(&name)).filter(|path| path.is_file()).chain(lists);
    files
        .filter(|path| String::from_utf8_lossy(&fs::read(path).unwrap()).contains(session))
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn r17_an_edit_by_hand_beside_forget_is_kept_and_brings_nobody_back() {
    let (shop, _, _) = worked();
    let mut locked = shop.lock();
    shop.edit("\"name\": \"花子\"", "\"name\": \"春子\"");
    let forgot = locked.forget(&whom("cs_2"), at(NOW)).unwrap().unwrap();
    assert_eq!((forgot.erased.purchases, forgot.before), (1, None));
    locked.finish(None).unwrap();
    assert!(String::from_utf8(shop.get("ledger.json")).unwrap().contains("春子"), "the edit was lost");
    assert_eq!(traces(&shop, "cs_2"), Vec::<String>::new());

    // Somebody who is put back by hand goes again, also in mid-command.
    let with_her = snapshot::bytes(&{
        let mut ledger = shop.view().ledger;
        ledger.forgotten = crate::domain::forgotten::Forgotten::default();
        apply(&mut ledger, &admitted("cs_2")).unwrap();
        ledger
    });
    let mut locked = shop.lock();
    locked.record(&[admitted("cs_5")]).unwrap();
    shop.put("ledger.json", &with_her.unwrap());
    locked.finish(None).unwrap();
    assert_eq!(traces(&shop, "cs_2"), Vec::<String>::new());
    assert!(shop.view().ledger.buyers.purchase(&"cs_5".parse().unwrap()).is_some());
    assert_eq!(shop.view().ledger.forgotten.people().len(), 1);
}

#[test]
fn r17_a_stop_of_somebody_who_was_forgotten_reaches_the_list_and_comes_back_with_it() {
    let shop = Shop::new();
    let mut locked = shop.lock();
    locked.forget(&whom("cs_1"), at(NOW)).unwrap().unwrap();
    locked.finish(None).unwrap();
    let unstopped = shop.get("ledger.json");
    let list = || {
        fs::read_to_string(fs::read_dir(shop.at("state/forgotten")).unwrap().next().unwrap().unwrap().path())
    };
    assert!(!list().unwrap().contains("stopped"));

    let mut locked = shop.lock();
    let address = locked.ledger().forgotten.people()[0].address.unwrap();
    locked.record(&[Fact::ForgottenStopped { address, at: at(NOW), event: None }]).unwrap();
    die(locked);
    let is_stopped = || shop.view().ledger.forgotten.people()[0].is_stopped().is_some();
    assert!(is_stopped(), "it is in the journal");
    shop.lock().finish(None).unwrap();
    assert!(list().unwrap().contains("stopped"));
    shop.put("ledger.json", &unstopped);
    assert!(is_stopped(), "the ledger of before the stop was put back");
}

#[test]
fn r17_half_written_lists_and_backups_of_a_dead_forget_are_swept() {
    let shop = Shop::new();
    let mut locked = shop.lock();
    locked.forget(&whom("cs_1"), at(NOW)).unwrap().unwrap();
    locked.finish(None).unwrap();
    let list = format!("state/forgotten/.stepmail-{ID}.json-AbC123");
    for name in [".stepmail-ledger.json.bak-AbC123", &list] {
        shop.put(name, b"half");
        shop.lock().abandon();
        assert!(!shop.at(name).exists(), "{name}");
    }
}

#[test]
fn r17_where_nobody_was_forgotten_no_list_is_made_and_none_is_needed() {
    let shop = Shop::new();
    let mut locked = shop.lock();
    assert!(locked.forget(&whom("cs_9"), at(NOW)).unwrap().is_none());
    locked.finish(Some(at(NOW))).unwrap();
    assert!(!shop.at("state/forgotten").exists());
    assert!(!String::from_utf8(shop.get("ledger.json")).unwrap().contains("forgotten"));
}

#[test]
fn r17_what_is_no_list_of_the_forgotten_is_refused_named_and_left_alone() {
    let whole = String::from_utf8(snapshot::bytes(&one_buyer()).unwrap()).unwrap();
    let forgotten =
        |json: &str| whole.replacen("\"waiting\"", &format!("\"forgotten\": {json}, \"waiting\""), 1);
    let people = |json: &str| forgotten(&format!("{{\"key_id\": \"{HASH}\", \"people\": [{json}]}}"));
    let person =
        |hash: &str, more: &str| people(&format!("{{\"address\": \"{hash}\", \"at\": \"{NOW}\", {more}}}"));
    let shop = Shop::new();
    for (content, said) in [
        (forgotten("{}"), "missing field `key_id`"),
        (forgotten(&format!("{{\"key_id\": \"{HASH}\", \"people\": []}}")), "it is empty"),
        (people("{\"at\": \"2026-10-01T00:00:00Z\"}"), "neither an address nor a session"),
        (person(HASH, "\"stoped\": null"), "unknown field `stoped`"),
        (person(HASH, "\"stopped\": true"), "forgotten.people[0].stopped"),
        (person(HASH, "\"ids\": [\"evt_1\"]"), "64 hex digits"),
        (person(HASH, &format!("\"address\": \"{HASH}\"")), "duplicate field `address`"),
        (person(&HASH[1..], "\"ids\": []"), "64 hex digits"),
        (person(&HASH.to_uppercase(), "\"ids\": []"), "64 hex digits"),
        (person("hanako@example.com", "\"ids\": []"), "64 hex digits"),
        (
            people(&format!(
                "{{\"address\": \"{HASH}\", \"at\": \"{NOW}\"}}, {{\"address\": \"{HASH}\", \"at\": \"{NOW}\"}}"
            )),
            "people[0] and people[1] have the same address",
        ),
    ] {
        shop.put("ledger.json", content.as_bytes());
        shop.refused(StoreErrorKind::Damaged, said);
    }
}
