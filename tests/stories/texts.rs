//! Templates that must not leave as they are, and buyers whose names hold anything.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::shop::Shop;

/// A shop with templates of its own.
fn shop_with_templates() -> Shop {
    let shop = Shop::new();
    shop.set("[templates]\ndir = \"templates\"");
    shop.stepmail(&["init", ".", "--templates"]).exits(0);
    shop
}

/// What stands in d7's file instead of a sound template, and what is said about it.
const FAULTS: &[(&str, &[u8], &str)] = &[
    ("c040 empty", b"", "empty"),
    ("blank", b" \r\n\n", "empty"),
    ("c058 UTF-16", b"\xff\xfeS\0u\0b\0", "UTF-16"),
    ("not UTF-8", b"Subject: Gr\xfc\xdfe\n\nText\n", "not UTF-8"),
    ("NUL bytes", b"Subject: Hello\n\nText\0\0\n", "NUL"),
    ("no subject", b"Hello\n\nText\n", "Subject"),
    ("an empty subject", b"Subject: \n\nText\n", "subject"),
    ("no text", b"Subject: Hello\n\n\n", "text is empty"),
    ("c059 conflict", b"Subject: Hello\n\n<<<<<<< HEAD\nText\n=======\nTexts\n>>>>>>> main\n", "line 3"),
    ("c036 misspelt variable", b"Subject: Hello\n\nText {{ prodcut }}\n", "`prodcut`"),
    ("c036 misspelt in the subject", b"Subject: Hello {{ nmae }}\n\nText\n", "`nmae`"),
    (
        "misspelt in a branch nobody takes",
        b"Subject: Hello\n\n{% if name %}Text{% else %}{{ nobody }}{% endif %}\n",
        "`nobody`",
    ),
    ("a block that never ends", b"Subject: Hello\n\n{% if name %}Text\n", "unexpected end"),
    ("a filter nobody knows", b"Subject: Hello\n\n{{ name | shout }}\n", "shout"),
    ("c037 newsletter tag", b"Subject: Hello\n\n{{ unsubscribe_url }}\n", "unsubscribe_url"),
    ("c037 triple braces", b"Subject: Hello\n\n{{{ unsubscribe }}}\n", "{{{"),
    (
        "c037 percent signs",
        b"Subject: Hello\n\n[stop](https://example.com/%unsubscribe_url%)\n",
        "unsubscribe_url",
    ),
    ("c037 percent signs alone", b"Subject: Hello\n\n%unsubscribe_url%\n", "unsubscribe_url"),
    ("c037 stars", b"Subject: Hello *|FNAME|*\n\nText\n", "*|FNAME|*"),
    ("c037 brackets", b"Subject: Hello\n\nHello [[name]]\n", "[[name]]"),
    ("c037 full-width braces", "Subject: Hello\n\nHello ｛｛name｝｝\n".as_bytes(), "｛｛"),
    (
        "c037 braces in a link",
        b"Subject: Hello\n\n[stop](https://example.com/%7B%7Bstop%7D%7D)\n",
        "line 3 holds `{{stop",
    ),
    (
        "c037 braces as HTML",
        b"Subject: Hello\n\nHello &#123;&#123;name&#125;&#125;\n",
        "line 3 holds `{{name",
    ),
    ("c037 dollar", b"Subject: Hello\n\nHello ${name}\n", "${name}"),
    ("c037 angle brackets", b"Subject: Hello\n\nHello <%= name %>\n", "<%"),
    ("a link to nowhere", b"Subject: Hello\n\n[log in](/login)\n", "link `/login`"),
    (
        "a link that is not safe",
        b"Subject: Hello\n\n[log in](http://example.com/login)\n",
        "link `http://example.com/login`",
    ),
    (
        "a link that is a program",
        b"Subject: Hello\n\n[log in](javascript:alert(1))\n",
        "link `javascript:alert(1)`",
    ),
];

#[test]
fn c036_c037_c040_c059_a_template_that_must_not_leave_is_told_once_each_time_it_breaks_and_the_others_go_on()
{
    let shop = shop_with_templates();
    let good = shop.read("templates/d7.en.md");
    let mut minute = 0;
    let mut next = || {
        minute += 1;
        format!("2026-10-01T{:02}:{:02}:00Z", minute / 60, minute % 60)
    };
    shop.run(&next()).exits(0);
    for (n, (story, fault, said)) in FAULTS.iter().enumerate() {
        shop.write("templates/d7.en.md", fault);
        let session = format!("cs_{n}");
        shop.buys(&session, &format!("buyer{n}@example.com"), "2026-10-01T00:00:00Z");
        let ran = shop.run(&next());
        assert_eq!(ran.code, 1, "{story}: {}{}", ran.stdout, ran.stderr);
        assert_eq!(ran.notices(), ["template_fault"], "{story}");
        let text = ran.json()["notices"][0]["text"].as_str().unwrap().to_owned();
        assert!(text.contains("d7.en.md") && text.contains(said), "{story}: {text}");
        assert_eq!(ran.hides_addresses().mails(), [format!("pp:{session}:d0 sent")], "{story}: d0 goes on");
        if n % 7 == 0 {
            assert!(shop.run(&next()).exits(0).notices().is_empty(), "{story}: told twice");
        }
        shop.write("templates/d7.en.md", &good);
        assert!(shop.run(&next()).exits(0).notices().is_empty(), "{story}: healed");
        assert_eq!(shop.notices().len(), n + 1, "{story}: a fault that comes back is told again");
    }
}

#[test]
fn c040_a_d7_that_is_missing_or_a_folder_holds_d7_alone_until_it_is_healed() {
    for folder in [false, true] {
        let shop = shop_with_templates();
        let good = shop.read("templates/d7.en.md");
        fs::remove_file(shop.path("templates/d7.en.md")).unwrap();
        if folder {
            fs::create_dir(shop.path("templates/d7.en.md")).unwrap();
        }
        shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
        let ran = shop.run("2026-10-01T01:00:00Z").exits(1).says("d7.en.md");
        assert_eq!(
            (ran.mails(), ran.notices()),
            (vec!["pp:cs_1:d0 sent".into()], vec!["template_fault".into()])
        );
        assert_eq!(shop.run("2026-10-04T01:00:00Z").exits(0).mails(), ["pp:cs_1:d3 sent"]);
        let held = shop.run("2026-10-08T01:00:00Z");
        assert!(held.mails().is_empty() && held.notices().is_empty(), "{}", held.stdout);
        assert_eq!(shop.step("cs_1", "d7"), "pending", "no plan is saved for what must not leave");
        if folder {
            fs::remove_dir(shop.path("templates/d7.en.md")).unwrap();
        }
        shop.write("templates/d7.en.md", good);
        assert_eq!(shop.run("2026-10-08T02:00:00Z").exits(0).mails(), ["pp:cs_1:d7 sent"]);
        assert_eq!(shop.run("2026-10-15T01:00:00Z").exits(0).mails(), ["pp:cs_1:d14 sent"]);
        assert_eq!(shop.notices().len(), 1);
    }
}

#[test]
fn c012_a_template_folder_that_is_gone_is_told_and_not_made_anew() {
    let shop = shop_with_templates();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.rename("templates", "moved");
    let ran = shop.run("2026-10-01T01:00:00Z").exits(1).says("templates");
    assert!(ran.mails().is_empty() && shop.outbox().is_empty());
    assert!(!shop.path("templates").exists());
    shop.rename("moved", "templates");
    assert_eq!(shop.run("2026-10-01T02:00:00Z").exits(0).mails(), ["pp:cs_1:d0 sent"]);
}

#[test]
fn c058_templates_saved_on_windows_make_clean_mails() {
    let shop = shop_with_templates();
    for file in ["d0.en.md", "d3.en.md"] {
        let text = shop.read(&format!("templates/{file}")).replace('\n', "\r\n");
        shop.write(&format!("templates/{file}"), format!("\u{feff}{}", text.trim_end()));
    }
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.run("2026-10-04T01:00:00Z").exits(0);
    let mails = mails(&shop);
    assert_eq!(mails.len(), 2);
    for mail in mails {
        let subject = mail["Subject"].as_str().unwrap();
        assert!(!subject.contains(['\u{feff}', '\r', '\n']) && !subject.is_empty(), "{subject:?}");
        assert!(!mail["text"].as_str().unwrap().contains('\u{feff}'));
    }
}

#[test]
fn c043_a_subject_with_emoji_arrives_as_it_was_written() {
    let shop = shop_with_templates();
    let long = "あ".repeat(200);
    for (n, subject) in
        ["Welcome 🎉", "👨\u{200d}👩\u{200d}👧\u{200d}👦 and 🇯🇵 {{ product }}", "日本語の件名①㈱髙﨑", &long]
            .iter()
            .enumerate()
    {
        shop.write("templates/d0.en.md", format!("Subject: {subject}\n\nCome in: {{{{ login_url }}}}\n"));
        shop.buys(&format!("cs_{n}"), &format!("b{n}@example.com"), "2026-10-01T00:00:00Z");
        shop.run(&format!("2026-10-01T0{}:00:00Z", n + 1)).exits(0);
        let subject = subject.replace("{{ product }}", "your purchase");
        let mail = mails(&shop).into_iter().find(|mail| mail["To"] == format!("b{n}@example.com")).unwrap();
        assert_eq!(mail["Subject"], subject);
    }
}

/// All mails of the outbox as Python's reader understands them: an eye that is not ours.
fn mails(shop: &Shop) -> Vec<Value> {
    const READ: &str = r#"
import email, email.policy, glob, json, sys
mails = []
for path in sorted(glob.glob(sys.argv[1] + "/*.eml")):
    mail = email.message_from_binary_file(open(path, "rb"), policy=email.policy.default)
    read = {name: str(mail[name]) for name in ("To", "Subject", "From")}
    read["headers"] = sorted(name.lower() for name in mail.keys())
    read["defects"] = [str(defect) for part in mail.walk() for defect in part.defects]
    read["text"] = mail.get_body(("plain",)).get_content()
    read["html"] = mail.get_body(("html",)).get_content()
    mails.append(read)
print(json.dumps(mails))
"#;
    let output = Command::new("python3").args(["-c", READ]).arg(shop.path("outbox")).output();
    let output = output.expect("python3 is needed for this story");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn c013_c036_c038_c039_c042_a_name_may_hold_anything_and_stays_a_name() {
    // The name as it was bought with, and what the greeting says.
    let long = "x".repeat(100_000);
    let wide = "名".repeat(5_000);
    let names: &[(&str, &str)] = &[
        ("Hanako", "Hello Hanako,"),
        ("", "Hello,"),
        ("   \u{3000}\t", "Hello,"),
        ("\u{200b}\u{feff}", "Hello,"),
        ("null", "Hello,"),
        ("undefined", "Hello,"),
        ("None", "Hello,"),
        ("hanako@example.com", "Hello,"),
        ("{{product}}", "Hello {{product}},"),
        ("{{ login_url }} {% raw %}", "Hello {{ login_url }} {% raw %},"),
        ("{{{ x }}}", "Hello {{{ x }}},"),
        ("*|FNAME|*", "Hello *|FNAME|*,"),
        ("[[name]]", "Hello [[name]],"),
        ("%unsubscribe_url%", "Hello %unsubscribe_url%,"),
        ("${name} <%= name %> #{name}", "Hello ${name} <%= name %> #{name},"),
        ("<a href=\"https://example.org\">x</a>", "Hello <a href=\"https://example.org\">x</a>,"),
        ("<script>alert(1)</script>", "Hello <script>alert(1)</script>,"),
        ("A & B &amp; \"C\" 'D'", "Hello A & B &amp; \"C\" 'D',"),
        ("[link](https://example.org) **bold** # _x_", "Hello [link](https://example.org) **bold** # _x_,"),
        ("Hanako\nBcc: x@example.org", "Hello Hanako Bcc: x@example.org,"),
        ("Hanako\r\n\r\n<b>body</b>", "Hello Hanako <b>body</b>,"),
        ("Hanako\u{2028}X\u{2029}Y\u{85}Z", "Hello Hanako X Y Z,"),
        ("Hana\0ko\u{1b}[31m", "Hello Hana ko [31m,"),
        ("\u{202e}okanaH", "Hello okanaH,"),
        ("髙﨑①㈱ 〜ｶﾞ か\u{3099} 🇯🇵", "Hello 髙﨑①㈱ 〜ｶﾞ か\u{3099} 🇯🇵,"),
        ("=?utf-8?q?x?=", "Hello =?utf-8?q?x?=,"),
        ("--stepmail", "Hello --stepmail,"),
        ("$(rm -rf /) `id` \\n %s", "Hello $(rm -rf /) `id` \\n %s,"),
        (&long, &format!("Hello {},", "x".repeat(64))),
        (&wide, &format!("Hello {},", "名".repeat(64))),
    ];
    let shop = shop_with_templates();
    let template = shop.read("templates/d0.en.md");
    shop.write("templates/d0.en.md", template.replace("Subject: ", "Subject: {{ name }} "));
    for (n, (name, _)) in names.iter().enumerate() {
        shop.event(
            &json!({ "id": format!("e{n:02}"), "type": "checkout.completed", "session": format!("cs_{n:02}"), "name": name,
                "email": format!("buyer{n:02}@example.com"), "paid_at": "2026-10-01T00:00:00Z" }).to_string(),
        );
    }
    let ran = shop.run("2026-10-01T01:00:00Z").exits(0).hides_addresses();
    assert_eq!(ran.mails().len(), names.len());
    let mails = mails(&shop);
    assert_eq!(mails.len(), names.len());
    for (n, (mail, (name, greeting))) in mails.iter().zip(names).enumerate() {
        let name: String = name.chars().take(80).collect();
        assert_eq!(mail["To"], format!("buyer{n:02}@example.com"), "{name:?}");
        assert_eq!(
            mail["headers"],
            json!([
                "auto-submitted",
                "content-type",
                "date",
                "from",
                "message-id",
                "mime-version",
                "reply-to",
                "subject",
                "to",
                "x-stepmail-key"
            ]),
            "{name:?}"
        );
        assert_eq!(mail["defects"], json!([]), "{name:?}");
        let (text, html) = (mail["text"].as_str().unwrap(), mail["html"].as_str().unwrap());
        assert_eq!(text.lines().next().unwrap(), *greeting, "{name:?}");
        let subject = mail["Subject"].as_str().unwrap();
        let called = greeting.strip_prefix("Hello").unwrap().strip_suffix(',').unwrap().trim();
        assert!(subject.starts_with(called) && !subject.contains(['\r', '\n']), "{name:?}: {subject}");
        let escaped = called
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('"', "&quot;")
            .replace('\'', "&#39;");
        let plain = html.replace("&#x27;", "&#39;").replace("&apos;", "&#39;");
        assert!(plain.contains(&escaped), "{name:?}: escaped once\n{html}");
        assert!(
            !html.contains("<script>") && !html.contains("https://example.org\">") && !html.contains("<b>"),
            "{name:?}"
        );
        assert!(!text.contains("undefined") || called == "undefined", "{name:?}");
    }
    // The next buyer has nothing of the one before (C014).
    assert!(
        mails.iter().filter(|mail| mail["text"].as_str().unwrap().contains("Hello Hanako,")).count() == 1
    );
}

#[test]
fn c014_c036_a_value_that_one_purchase_lacks_holds_that_buyer_alone_and_takes_nobody_elses() {
    let shop = shop_with_templates();
    shop.write(
        "templates/d0.en.md",
        "Subject: {{ seat }} for {{ product }}\n\nYour seat: {{ seat }} of {{ product }}\n",
    );
    let sold = |n: usize, vars: Value| {
        json!({ "id": format!("e{n}"), "type": "checkout.completed", "session": format!("cs_{n}"), "vars": vars,
            "email": format!("buyer{n}@example.com"), "paid_at": "2026-10-01T00:00:00Z" })
    };
    let odd = "A & <b>B</b> \"C\" {{ seat }}\r\nBcc: x@example.org";
    for (n, vars) in [
        json!({ "seat": "1-A", "product": odd }),
        json!({ "product": "Book" }),
        json!({ "seat": "3-C", "product": "Pen" }),
        json!({ "seat": "", "product": "Ink" }),
        json!({ "seat": "5-E" }),
    ]
    .into_iter()
    .enumerate()
    {
        shop.event(&sold(n, vars).to_string());
    }
    let ran = shop.run("2026-10-01T01:00:00Z").exits(1).hides_addresses().says("`seat`").says("d0.en.md");
    assert_eq!(ran.mails(), ["pp:cs_0:d0 sent", "pp:cs_2:d0 sent", "pp:cs_4:d0 sent"]);
    assert_eq!(ran.notices(), ["template_fault", "template_fault"]);
    let said: Vec<String> =
        mails(&shop).iter().map(|mail| mail["Subject"].as_str().unwrap().to_owned()).collect();
    let plain = "A & <b>B</b> \"C\" {{ seat }} Bcc: x@example.org";
    assert_eq!(said, [format!("1-A for {plain}"), "3-C for Pen".into(), "5-E for your purchase".into()]);
    let first = &mails(&shop)[0];
    assert!(first["text"].as_str().unwrap().starts_with(&format!("Your seat: 1-A of {plain}")), "{first}");
    let html = first["html"].as_str().unwrap();
    assert!(
        html.contains("A &amp; &lt;b&gt;B&lt;/b&gt;") && !html.contains("<b>") && !html.contains("&amp;amp;"),
        "{html}"
    );
    assert!(!first["headers"].as_array().unwrap().contains(&json!("bcc")));
    assert!(shop.run("2026-10-01T02:00:00Z").exits(0).notices().is_empty(), "told once");
    assert_eq!((shop.step("cs_1", "d0"), shop.step("cs_3", "d0")), ("pending".into(), "pending".into()));
}

#[test]
fn c040_a_dry_run_shows_each_subject_so_that_swapped_files_are_seen() {
    let shop = shop_with_templates();
    shop.buys("cs_1", "a@example.com", "2026-10-01T00:00:00Z");
    shop.run("2026-10-01T01:00:00Z").exits(0);
    shop.rename("templates/d3.en.md", "templates/x");
    shop.rename("templates/d7.en.md", "templates/d3.en.md");
    shop.rename("templates/x", "templates/d7.en.md");
    let subject = shop.read("templates/d3.en.md").lines().next().unwrap().replace("Subject: ", "");
    shop.stepmail(&["run", "--dry-run", "--now", "2026-10-04T01:00:00Z"]).exits(0).says("d3").says(&subject);
}
