//! How a mail looks: a small HTML document with inline styles only, and the block at its end that says who writes and
//! how to make it stop.
//!
//! Colours of text and page are left to the mail program (`color-scheme: light dark`), so that dark mode needs no
//! rules of ours; the one button brings both its colours. No images, nothing that tells whether a mail was opened.

use std::fmt::Write as _;

use super::template::Language;
use super::values::Values;
use crate::domain::ids::Step;

const FONTS: &str = "-apple-system,BlinkMacSystemFont,'Segoe UI','Hiragino Sans','Hiragino Kaku Gothic ProN','Noto Sans JP','Noto Sans CJK JP','Yu Gothic',Meiryo,Roboto,Helvetica,Arial,sans-serif";

/// Escapes for element content and for attributes in double quotes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

pub(super) fn paragraph(inner: &str) -> String {
    format!("<p style=\"margin:0 0 1.3em\">{inner}</p>\n")
}

pub(super) fn heading(inner: &str) -> String {
    format!("<h2 style=\"margin:0 0 .8em;font-size:18px;line-height:1.5\">{inner}</h2>\n")
}

pub(super) fn list(items: &str, first: Option<usize>) -> String {
    let style = "margin:0 0 1.3em;padding:0 0 0 1.4em";
    match first {
        None => format!("<ul style=\"{style}\">\n{items}</ul>\n"),
        Some(first) => format!("<ol start=\"{first}\" style=\"{style}\">\n{items}</ol>\n"),
    }
}

pub(super) fn item(inner: &str) -> String {
    format!("<li style=\"margin:0 0 .5em\">{}</li>\n", inner.trim_end())
}

pub(super) fn quote(inner: &str) -> String {
    format!(
        "<blockquote style=\"margin:0 0 1.3em;padding:0 0 0 1em;border-left:3px solid #999\">\n{inner}</blockquote>\n"
    )
}

pub(super) fn code_block(inner: &str) -> String {
    format!("<pre style=\"margin:0 0 1.3em;white-space:pre-wrap;font-size:14px\">{inner}</pre>\n")
}

pub(super) fn rule() -> String {
    "<hr style=\"margin:1.5em 0;border:0;border-top:1px solid #999\">\n".to_owned()
}

/// A link in running text. Its colour is the mail program's, which knows whether the page is dark.
pub(super) fn link(url: &str, label: &str) -> String {
    format!("<a href=\"{}\" style=\"overflow-wrap:anywhere\">{label}</a>", escape(url))
}

/// The one action of a mail.
pub(super) fn button(url: &str, label: &str) -> String {
    format!(
        "<p style=\"margin:1.6em 0\"><a href=\"{}\" style=\"display:inline-block;padding:12px 28px;border-radius:6px;\
         background-color:#1a56a8;color:#ffffff;font-weight:bold;text-decoration:none\">{label}</a></p>\n",
        escape(url)
    )
}

/// The whole document.
pub(super) fn document(language: &str, title: &str, body: &str, footer: &str) -> String {
    let title = escape(title);
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"{language}\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"supported-color-schemes\" content=\"light dark\">\n<title>{title}</title>\n</head>\n\
         <body style=\"margin:0;padding:0;-webkit-text-size-adjust:100%\">\n\
         <div style=\"max-width:560px;margin:0 auto;padding:24px 20px;font-family:{FONTS};font-size:16px;line-height:1.7;overflow-wrap:break-word\">\n{body}"
    );
    if !footer.is_empty() {
        let _ = write!(
            html,
            "<div style=\"margin:2em 0 0;padding:1em 0 0;border-top:1px solid #999;font-size:13px;line-height:1.6\">\n{footer}</div>\n"
        );
    }
    html.push_str("</div>\n</body>\n</html>\n");
    html
}

/// The end of a mail, line by line: who writes, where an answer goes and, on d3, d7 and d14, that a reply stops all of
/// it. A template that shows `business_address` has its own sender block; the line about stopping always stands.
///
/// An error names the variable that is missing.
pub(super) fn footer(
    step: Step,
    language: Language,
    values: &Values,
    own_block: bool,
) -> Result<Vec<String>, &'static str> {
    let value = |name: &str| values.get(name).filter(|text| !text.is_empty());
    let mut lines = Vec::new();
    if !own_block {
        lines.push(value("business").ok_or("business")?.to_owned());
        let (address, reply_to) = (value("business_address"), value("reply_to"));
        if address.is_none() && reply_to.is_none() {
            return Err("business_address");
        }
        lines.extend(address.filter(|_| step != Step::D0).map(str::to_owned));
        lines.extend(reply_to.or(address.filter(|_| step == Step::D0)).map(str::to_owned));
    }
    if step != Step::D0 {
        lines.push(
            match language {
                Language::Ja => "今後のご案内が不要な場合は、このメールに「配信停止」とご返信ください。以後はお送りしません。",
                Language::En => "If you would rather not get these mails, reply with “stop” and no more will be sent.",
            }
            .to_owned(),
        );
    }
    Ok(lines)
}

/// The end of a mail, for its text part.
pub(super) fn footer_text(lines: &[String]) -> String {
    if lines.is_empty() { String::new() } else { format!("\n\n----\n{}", lines.join("\n")) }
}

/// The end of a mail, for its HTML part.
pub(super) fn footer_html(lines: &[String]) -> String {
    lines
        .iter()
        .fold(String::new(), |html, line| html + "<p style=\"margin:0 0 .3em\">" + &escape(line) + "</p>\n")
}
