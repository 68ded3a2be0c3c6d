//! What a buyer would have seen, case by case.

use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect()
}

fn settings() -> BTreeMap<String, String> {
    map(&[
        ("product", "Invoice Helper"),
        ("login_url", "https://example.com/login?a=1&b=2"),
        ("business", "Example Shop"),
        ("business_address", "1-2-3 Kanda, Tokyo"),
        ("reply_to", "hello@example.com"),
    ])
}

fn buyer(event: &[(&str, &str)]) -> Values {
    Values::new(&settings(), &map(event))
}

/// Eight templates, all of this text.
fn all(text: &str) -> Templates {
    Templates::from_each(|_, _| Ok(text.as_bytes().to_vec()))
}

fn mail(text: &str, event: &[(&str, &str)]) -> Result<Rendered, TemplateFault> {
    all(text).render(Step::D3, Language::En, &buyer(event))
}

fn body(text: &str, event: &[(&str, &str)]) -> Rendered {
    mail(&format!("Subject: s\n\n{text}\n"), event).unwrap()
}

/// The text part up to the sender block.
fn text(rendered: &Rendered) -> &str {
    rendered.text.split("\n\n----\n").next().unwrap()
}

#[test]
fn the_built_in_templates_have_no_fault_and_say_what_the_design_asks() {
    let templates = Templates::builtin();
    assert_eq!(templates.faults(&settings(), &BTreeSet::new()), []);
    for (step, language, name, must) in [
        (
            Step::D0,
            Language::Ja,
            "花子",
            &[
                "花子 様",
                "ログインする: https://example.com/login?a=1&b=2",
                "設定していない",
                "設定済み",
                "有効期限",
            ][..],
        ),
        (
            Step::D0,
            Language::En,
            "",
            &["Hello,", "Log in: https://example.com/login?a=1&b=2", "not set", "already set", "expired"],
        ),
        (
            Step::D3,
            Language::Ja,
            "",
            &["お客様", "準備", "設定", "実行", "確認", "Example Shop", "1-2-3 Kanda, Tokyo", "配信停止"],
        ),
        (
            Step::D3,
            Language::En,
            "Hanako",
            &["Hello Hanako,", "Preparing", "Setting up", "Running", "Checking", "Example Shop", "“stop”"],
        ),
        (Step::D7, Language::Ja, "", &["使えた", "配信停止"]),
        (Step::D7, Language::En, "", &["usable", "“stop”"]),
        (Step::D14, Language::Ja, "", &["二回目", "配信停止"]),
        (Step::D14, Language::En, "", &["second time", "“stop”"]),
    ] {
        let mail = templates.render(step, language, &buyer(&[("name", name)])).unwrap();
        for part in must {
            assert!(mail.text.contains(part), "{step} {language:?} lacks {part}:\n{}", mail.text);
        }
        assert!(mail.html.contains(&format!("<html lang=\"{}\">", language.name())));
        assert!(!mail.text.contains("**") && !mail.html.contains("<script") && !mail.html.contains("<img"));
        assert_eq!(
            mail.html.matches("background-color").count(),
            usize::from(step == Step::D0),
            "one action"
        );
        for price in ["円", "$", "%", "coupon", "クーポン"] {
            assert!(!mail.text.contains(price), "{step} speaks of {price}");
        }
    }
}

#[test]
fn a_checkout_page_in_another_language_gets_the_default() {
    for (locale, language) in [
        (Some("ja"), Language::Ja),
        (Some("ja-JP"), Language::Ja),
        (Some("ja_JP"), Language::Ja),
        (Some("JA"), Language::Ja),
        (Some("en"), Language::En),
        (Some("en-GB"), Language::En),
    ] {
        for default in Language::ALL {
            assert_eq!(Language::for_locale(locale, default), language, "{locale:?}");
        }
    }
    for other in [None, Some(""), Some("auto"), Some("fr"), Some("jav"), Some("日本語")] {
        assert_eq!(Language::for_locale(other, Language::Ja), Language::Ja);
        assert_eq!(Language::for_locale(other, Language::En), Language::En);
    }
}

#[test]
fn c014_a_missing_value_is_this_buyers_fault_alone_and_nobody_elses_value_appears() {
    let templates = all("Subject: {{ title }}\n\n{{ name }}: {{ title }}\n");
    let complete = [("name", "花子"), ("title", "Book")];
    for _ in 0..3 {
        let whole = templates.render(Step::D7, Language::Ja, &buyer(&complete)).unwrap();
        assert_eq!((whole.subject.as_str(), text(&whole)), ("Book", "花子: Book"));
        let fault = templates.render(Step::D7, Language::Ja, &buyer(&[("name", "太郎")])).unwrap_err();
        assert_eq!((fault.variable.as_deref(), fault.subject().as_str()), (Some("title"), "d7.ja"));
        assert_eq!(fault.to_string(), "template d7.ja.md: the variable `title` has no value");
        let nameless = templates.render(Step::D7, Language::Ja, &buyer(&[("title", "Pen")])).unwrap();
        assert!(!nameless.text.contains("花子") && !nameless.html.contains("Book"));
    }
    let fault = templates.render(Step::D7, Language::Ja, &buyer(&[("title", "\u{200b} ")])).unwrap_err();
    assert_eq!(fault.reason, "the variable `title` is empty");
}

#[test]
fn c036_no_greeting_reads_undefined_none_or_nothing() {
    let templates = Templates::builtin();
    for name in ["", "  ", "\u{3000}", "null", "None", "undefined"] {
        for (language, greeting) in [(Language::Ja, "お客様\n"), (Language::En, "Hello,\n")] {
            let mail = templates.render(Step::D3, language, &buyer(&[("name", name)])).unwrap();
            assert!(mail.text.starts_with(greeting), "{name:?}: {}", mail.text);
        }
    }
    let fault = mail("Subject: {{ nmae }}\n\nx\n", &[]).unwrap_err();
    assert_eq!((fault.variable.as_deref(), fault.template().as_str()), (Some("nmae"), "d3.en.md"));
    let fault = mail("Subject: s\n\n{% if name %}{{ nmae }}{% endif %}x\n", &[]).unwrap_err();
    assert_eq!(fault.variable.as_deref(), Some("nmae"), "a branch that is not taken counts too");
}

#[test]
fn c037_a_newsletter_placeholder_holds_the_step_in_every_spelling_and_no_other_step() {
    for placeholder in [
        "{{ unsubscribe_url }}",
        "{{{ unsubscribe_url }}}",
        "%unsubscribe_url%",
        "*|UNSUB|*",
        "[[unsubscribe]]",
        "<% unsub %>",
        "${name}",
        "｛｛name｝｝",
        "[stop](https://example.com/?u=%7B%7Burl%7D%7D)",
        "[stop](https://example.com/&#123;&#123;u&#125;&#125;)",
        "{% raw %}{{ name }}{% endraw %}",
        "{{ '{' ~ '{x}' ~ '}' }}",
        "{% if name %}x{% else %}*|X|*{% endif %}",
    ] {
        let templates = Templates::from_each(|step, language| {
            let text = if step == Step::D3 { placeholder } else { "clean" };
            Ok(format!("Subject: {}\n\n{text} \n", language.name()).into_bytes())
        });
        let fault = templates.render(Step::D3, Language::Ja, &buyer(&[("name", "N")])).unwrap_err();
        assert_eq!(fault.subject(), "d3.ja", "{placeholder}");
        assert!(templates.render(Step::D7, Language::Ja, &buyer(&[])).is_ok());
        let told: Vec<String> =
            templates.faults(&settings(), &BTreeSet::new()).iter().map(TemplateFault::subject).collect();
        assert!(
            told.contains(&"d3.ja".to_owned()) && told.iter().all(|subject| subject.starts_with("d3.")),
            "{told:?}"
        );
    }
    assert!(mail("Subject: *|X|*\n\nx\n", &[]).is_err());
}

#[test]
fn c037_a_placeholder_in_the_sellers_own_values_is_found_too() {
    let values = Values::new(
        &map(&[("product", "*|PRODUCT|*"), ("business", "B"), ("reply_to", "a@example.com")]),
        &map(&[]),
    );
    assert!(all("Subject: s\n\n{{ product }}\n").render(Step::D3, Language::En, &values).is_err());
}

#[test]
fn c038_a_buyers_odd_name_is_shown_as_it_is_and_holds_nothing() {
    for (name, html) in [
        (
            "<a href=\"https://example.org\">x</a>",
            "&lt;a href=&quot;https://example.org&quot;&gt;x&lt;/a&gt;",
        ),
        ("{{product}}", "{{product}}"),
        ("*|X|*", "*|X|*"),
        ("[x](https://evil.example)", "[x](https://evil.example)"),
        ("**b** `c` _d_", "**b** `c` _d_"),
        ("# h", "# h"),
        ("&amp;", "&amp;amp;"),
        ("smv0q000000x", "smv0q000000x"),
        ("https://evil.example/", "https://evil.example/"),
        ("%unsubscribe_url%", "%unsubscribe_url%"),
    ] {
        let rendered =
            mail("Subject: {{ name }}\n\n{{ name }}\n\nHi **{{ name }}**!\n", &[("name", name)]).unwrap();
        assert_eq!(rendered.subject, name);
        assert_eq!(text(&rendered), format!("{name}\n\nHi {name}!"));
        assert!(rendered.html.contains(&format!("Hi <strong>{html}</strong>!")), "{}", rendered.html);
        assert!(!rendered.html.contains("<a "), "{name} became a link: {}", rendered.html);
    }
    let title = body("{{ title }}", &[("title", "A & B <c> \"d\" 'e'")]);
    assert!(title.html.contains("A &amp; B &lt;c&gt; &quot;d&quot; &#39;e&#39;"));
    assert_eq!(text(&title), "A & B <c> \"d\" 'e'");
}

#[test]
fn c039_a_line_break_in_a_name_leaves_one_subject_line() {
    for name in [
        "a\nBcc: x@example.org",
        "a\r\nBcc: x@example.org",
        "a\u{2028}Bcc: x@example.org",
        "a\tBcc: x@example.org",
    ] {
        let rendered = mail("Subject: Hi {{ name }}\n\nx\n", &[("name", name)]).unwrap();
        assert_eq!(rendered.subject, "Hi a Bcc: x@example.org");
    }
    assert_eq!(mail("Subject: a{{ \"\\n\" }}b\n\nx\n", &[]).unwrap().subject, "a b");
    assert!(mail("Subject: {{ name }}\n\nx\n", &[]).unwrap_err().reason.contains("subject is empty"));
}

#[test]
fn a_shop_that_writes_in_japanese_only_writes_to_everybody_in_japanese() {
    let folder = tempfile::tempdir().unwrap();
    for step in Step::ALL {
        let path = folder.path().join(file_name(step, Language::Ja));
        crate::disk::replace(&path, b"Subject: a\n\nb\n", 0o600, || Ok(())).unwrap();
    }
    let templates = Templates::from_folder(folder.path());
    assert!(templates.offers(Language::Ja) && !templates.offers(Language::En));
    assert_eq!(templates.language(Some("en-GB"), Language::Ja), Language::Ja);
    assert_eq!(Templates::builtin().language(Some("en-GB"), Language::Ja), Language::En);
}

#[test]
fn c040_a_file_that_cannot_be_used_is_a_fault_of_that_step_alone() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| {
        crate::disk::replace(&folder.path().join(name), bytes, 0o600, || Ok(())).unwrap();
    };
    put("d0.ja.md", b"\xef\xbb\xbfSubject: a\r\n\r\nb\r\nc\r\n");
    put("d0.en.md", b"");
    put("d3.ja.md", b"\xff\xfeS\0u\0");
    put("d3.en.md", b"Subject: a\n\n\x83\x65");
    put("d7.ja.md", b"Hello\n\nx\n");
    put("d7.en.md", b"Subject: a\nno empty line\n");
    put("d14.ja.md", b"Subject: a\n\nx\n<<<<<<< HEAD\ny\n=======\nz\n>>>>>>> b\n");
    put("d5.en.md", b"ignored");
    put("d3.en.md~", b"ignored");
    let templates = Templates::from_folder(folder.path());
    let values = buyer(&[]);
    let good = templates.render(Step::D0, Language::Ja, &values).unwrap();
    assert_eq!((good.subject.as_str(), text(&good)), ("a", "b c"));
    for (step, language, reason) in [
        (Step::D0, Language::En, "is empty"),
        (Step::D3, Language::Ja, "is UTF-16"),
        (Step::D3, Language::En, "is not UTF-8 (line 3)"),
        (Step::D7, Language::Ja, "its first line must be"),
        (Step::D7, Language::En, "an empty line must follow"),
        (Step::D14, Language::Ja, "line 4 is left over from a merge conflict"),
        (Step::D14, Language::En, "cannot read `"),
    ] {
        let fault = templates.render(step, language, &values).unwrap_err();
        assert!(fault.reason.starts_with(reason), "{fault}");
        assert!(fault.to_string().contains(&file_name(step, language)));
    }
    assert_eq!(templates.faults(&settings(), &BTreeSet::new()).len(), 7);
    for bad in [
        "Subject:\n\nx",
        "Subject: a\n\n  \n",
        "Subject: a",
        "Subject：a\n\nx",
        "\n\nx",
        "Subject: a\n\n{% if %}",
        "Subject: {{ a\n\nx",
    ] {
        assert!(mail(bad, &[]).is_err(), "{bad:?}");
    }
    assert_eq!(
        Templates::from_folder(&folder.path().join("gone")).faults(&settings(), &BTreeSet::new()).len(),
        8
    );
}

#[test]
fn c042_old_characters_are_the_same_in_text_and_html() {
    let title = "髙﨑①㈱ ～ − ｶﾞ か\u{3099} 🇯🇵";
    let rendered = body("{{ title }}", &[("title", title)]);
    assert_eq!(text(&rendered), title);
    assert!(rendered.html.contains(title));
}

#[test]
fn c043_a_subject_keeps_its_emoji_whole() {
    for subject in ["🎁 present".to_owned(), "👨‍👩‍👧‍👦".to_owned(), "あ".repeat(200)] {
        assert_eq!(mail(&format!("Subject: {subject}\n\nx\n"), &[]).unwrap().subject, subject);
    }
}

#[test]
fn a_link_keeps_its_value_and_goes_only_where_a_mail_may_lead() {
    let link = body("Now [log in]({{ login_url }}) please.", &[]);
    assert_eq!(text(&link), "Now log in (https://example.com/login?a=1&b=2) please.");
    assert!(link.html.contains("<a href=\"https://example.com/login?a=1&amp;b=2\""), "{}", link.html);
    for (source, shown) in [
        ("[a](https://example.com/?n={{ name }})", "a: https://example.com/?n=A%20%26%20%E8%8A%B1%22%3E"),
        ("[write](mailto:{{ reply_to }})", "write: hello@example.com"),
        ("<https://example.com/x>", "https://example.com/x"),
        ("https://example.com/x", "https://example.com/x"),
        ("<{{ login_url }}>", "https://example.com/login?a=1&b=2"),
        ("{{ login_url }}", "https://example.com/login?a=1&b=2"),
        ("[a](https://日本語.example/あ)", "a: https://xn--wgv71a119e.example/%E3%81%82"),
    ] {
        let rendered = body(source, &[("name", "A & 花\">")]);
        assert_eq!(text(&rendered), shown, "{source}");
        assert_eq!(rendered.html.matches("<a ").count(), 1, "{source}: {}", rendered.html);
    }
    for bad in [
        "[a](http://example.com)",
        "http://example.com",
        "www.example.com",
        "[a](/login)",
        "[a](login)",
        "[a]()",
        "[a](javascript:alert)",
        "[a](mailto:x)",
        "![a](https://example.com/a.png)",
        "<b>x</b>",
        "<div>\nx\n</div>",
        "<!-- note -->",
        "[a]({{ odd_url }})",
        "x [a]({{ odd_url }})",
        "[a](//example.com)",
    ] {
        let fault =
            mail(&format!("Subject: s\n\n{bad}\n"), &[("odd_url", "javascript:alert('花子')")]).unwrap_err();
        assert!(!fault.reason.contains("花子"), "{fault}");
    }
    let fault =
        mail("Subject: s\n\n[a]({{ odd_url }}/x)\n", &[("odd_url", "http://secret.example")]).unwrap_err();
    assert_eq!(fault.reason, "the link `{{…}}/x` is not an absolute https or mailto address");
}

#[test]
fn the_text_part_reads_like_plain_mail_and_japanese_is_not_torn() {
    let source = "# 見出し\n\nこれは**「{{ title }}」**です。\n次の行。\nLatin words\nstay apart.\n\n- 一つ\n- 二つ\n\n1. a\n2. b\n\n> quoted\n\n`code` ~~old~~ *em*\n\n---\n\nend\\\nnext\n";
    let rendered = all(&format!("Subject: s\n\n{source}"))
        .render(Step::D3, Language::Ja, &buyer(&[("title", "本")]))
        .unwrap();
    assert_eq!(
        text(&rendered),
        "見出し\n\nこれは「本」です。次の行。Latin words stay apart.\n\n・一つ\n・二つ\n\n1. a\n2. b\n\n> quoted\n\ncode old em"
    );
    assert!(rendered.text.contains("\n\n----\n\nend\nnext\n\n----\nExample Shop\n"), "{}", rendered.text);
    assert!(
        rendered.html.contains("これは<strong>「本」</strong>です。次の行。Latin words stay apart."),
        "{}",
        rendered.html
    );
    assert!(rendered.html.contains("<li style=\"margin:0 0 .5em\">一つ</li>"));
}

#[test]
fn every_mail_says_who_writes_and_the_later_ones_how_to_stop() {
    let text = "Subject: s\n\nx\n";
    let end = |step: Step, source: &str, values: &Values| {
        let rendered = all(source).render(step, Language::En, values)?;
        Ok::<String, TemplateFault>(
            rendered.text.split_once("\n\n----\n").map(|(_, end)| end.to_owned()).unwrap_or_default(),
        )
    };
    let stop = "If you would rather not get these mails, reply with “stop” and no more will be sent.\n";
    let values = buyer(&[]);
    assert_eq!(end(Step::D0, text, &values).unwrap(), "Example Shop\nhello@example.com\n");
    for step in [Step::D3, Step::D7, Step::D14] {
        assert_eq!(
            end(step, text, &values).unwrap(),
            format!("Example Shop\n1-2-3 Kanda, Tokyo\nhello@example.com\n{stop}")
        );
        assert_eq!(end(step, "Subject: s\n\n{{ business_address }}\n", &values).unwrap(), stop);
    }
    let fault = |pairs: &[(&str, &str)]| {
        end(Step::D7, text, &Values::new(&map(pairs), &map(&[]))).unwrap_err().variable
    };
    assert_eq!(fault(&[("business", "B")]).as_deref(), Some("business_address"));
    assert_eq!(fault(&[("reply_to", "a@example.com")]).as_deref(), Some("business"));
    let odd = Values::new(&map(&[("business", "A & <B>"), ("reply_to", "a@example.com")]), &map(&[]));
    assert!(all(text).render(Step::D7, Language::En, &odd).unwrap().html.contains("A &amp; &lt;B&gt;"));
}

#[test]
fn a_variable_that_only_purchases_bring_is_no_fault_beforehand() {
    let templates = all("Subject: s\n\n{{ plan }} [a]({{ start_url }})\n");
    assert_eq!(templates.faults(&settings(), &BTreeSet::new()).len(), 8);
    let names = ["plan".to_owned(), "start_url".to_owned()].into();
    assert_eq!(templates.faults(&settings(), &names), []);
}

#[test]
fn odd_templates_are_refused_without_a_panic() {
    for odd in [
        "> ".repeat(500),
        "- ".repeat(500),
        "*".repeat(3_000),
        "[".repeat(3_000),
        "![](".repeat(500),
        "{{ name }}".repeat(2_000),
        "\u{0300}".repeat(100),
        "smv0q".repeat(3),
        "[a](https://example.com/\u{3000})".to_owned(),
        "｛".repeat(9),
        "&#0; &#x110000; &".to_owned(),
        "%".repeat(99),
        "**[a](https://example.com)**".to_owned(),
        "{{ name }}\u{3042}smv{{ name }}".to_owned(),
        "_".repeat(2_000) + "a" + &"_".repeat(2_000),
    ] {
        let _ = mail(&format!("Subject: s\n\n{odd}\n"), &[("name", "smv")]);
    }
}
