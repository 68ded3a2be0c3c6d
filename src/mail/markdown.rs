//! The two parts of a mail from one Markdown source: HTML with inline styles, and plain text as people write it.
//!
//! Both walk the same tree, in which stand-ins stand for the values; each value is put in where it is shown, escaped
//! once for HTML and as it is for text. Raw HTML and images are refused rather than dropped without a word.

use std::fmt::Write as _;

use comrak::nodes::{ListType, Node, NodeValue};
use comrak::{Arena, Options};

use super::fill::{Filled, Piece};
use super::layout::{self, escape};
use super::link;
use super::template::Language;
use super::values::Values;

/// Deeper nesting is no mail.
const DEPTH_MAX: usize = 40;

/// Text and HTML of a filled body; an error is a reason in words.
pub(super) fn convert(
    filled: &Filled,
    values: &Values,
    language: Language,
) -> Result<(String, String), String> {
    let mut options = Options::default();
    options.extension.cjk_friendly_emphasis = true;
    options.extension.autolink = true;
    options.extension.strikethrough = true;
    let arena = Arena::new();
    let root = comrak::parse_document(&arena, &filled.text, &options);
    let walk = Walk { filled, values, bullet: if language == Language::Ja { "・" } else { "- " } };
    let html = walk.html_blocks(root, false, 0)?;
    let text = walk.text_blocks(root, 0)?.join("\n\n");
    Ok((text, html))
}

struct Walk<'a> {
    filled: &'a Filled,
    values: &'a Values,
    bullet: &'static str,
}

/// A line of output, and what a soft line break in the source becomes: a space between Latin words, nothing beside
/// Japanese, which has no spaces.
#[derive(Default)]
struct Line {
    out: String,
    last: Option<char>,
    soft_break: bool,
}

impl Line {
    /// Makes room for the visible text that comes next.
    fn before(&mut self, text: &str) {
        if std::mem::take(&mut self.soft_break) {
            let latin = |c: Option<char>| c.is_some_and(|c| !is_wide(c));
            if latin(self.last) && latin(text.chars().next()) {
                self.out.push(' ');
            }
        }
        self.last = text.chars().next_back().or(self.last);
    }
}

fn is_wide(c: char) -> bool {
    matches!(c, '\u{2e80}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
}

fn refuse<T>(what: &str) -> Result<T, String> {
    Err(format!("{what} cannot be used in a mail"))
}

impl Walk<'_> {
    fn html_blocks(&self, parent: Node<'_>, tight: bool, depth: usize) -> Result<String, String> {
        if depth > DEPTH_MAX {
            return refuse("nesting this deep");
        }
        let mut html = String::new();
        for node in parent.children() {
            let block = match &node.data.borrow().value {
                NodeValue::Paragraph if tight => self.html_inlines(node)? + "\n",
                NodeValue::Paragraph => match self.only_link(node)? {
                    Some((url, label)) => layout::button(&url, &label),
                    None => layout::paragraph(&self.html_inlines(node)?),
                },
                NodeValue::Heading(_) => layout::heading(&self.html_inlines(node)?),
                NodeValue::List(list) => {
                    let mut items = String::new();
                    for item in node.children() {
                        items += &layout::item(&self.html_blocks(item, list.tight, depth + 1)?);
                    }
                    layout::list(&items, (list.list_type == ListType::Ordered).then_some(list.start))
                }
                NodeValue::BlockQuote => layout::quote(&self.html_blocks(node, false, depth + 1)?),
                NodeValue::CodeBlock(code) => layout::code_block(&self.escaped(&code.literal)),
                NodeValue::ThematicBreak => layout::rule(),
                NodeValue::HtmlBlock(tag) => {
                    let url = self.bracketed_value(tag.literal.trim())?;
                    layout::paragraph(&layout::link(&url, &escape(&url)))
                }
                _ => return refuse("this kind of Markdown"),
            };
            html += &block;
        }
        Ok(html)
    }

    fn html_inlines(&self, node: Node<'_>) -> Result<String, String> {
        let mut line = Line::default();
        self.html_into(node, &mut line, 0)?;
        Ok(line.out)
    }

    fn html_into(&self, parent: Node<'_>, line: &mut Line, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return refuse("nesting this deep");
        }
        for node in parent.children() {
            match &node.data.borrow().value {
                NodeValue::Text(text) => {
                    for piece in self.filled.pieces(text) {
                        let (Piece::Literal(shown) | Piece::Value(shown)) = piece;
                        line.before(shown);
                        line.out += &match piece {
                            Piece::Value(url) if self.values.is_url(url) && !in_link(node) => {
                                layout::link(&link::resolve(url, self.filled)?, &escape(url))
                            }
                            _ => escape(shown),
                        };
                    }
                }
                NodeValue::Code(code) => {
                    line.before(&self.filled.plain(&code.literal));
                    let _ = write!(line.out, "<code>{}</code>", self.escaped(&code.literal));
                }
                NodeValue::SoftBreak => line.soft_break = true,
                NodeValue::LineBreak => {
                    line.out += "<br>\n";
                    line.soft_break = false;
                    line.last = None;
                }
                NodeValue::Emph => self.html_within("em", node, line, depth)?,
                NodeValue::Strong => self.html_within("strong", node, line, depth)?,
                NodeValue::Strikethrough => self.html_within("s", node, line, depth)?,
                NodeValue::Link(target) => {
                    line.before(&self.label(node, depth)?);
                    let url = link::resolve(&target.url, self.filled)?;
                    line.out += &layout::link(&url, &self.html_inlines(node)?);
                }
                NodeValue::HtmlInline(tag) => {
                    let url = self.bracketed_value(tag)?;
                    line.before(&url);
                    line.out += &layout::link(&url, &escape(&url));
                }
                NodeValue::Image(_) => return refuse("an image"),
                _ => return refuse("this kind of Markdown"),
            }
        }
        Ok(())
    }

    fn html_within(&self, tag: &str, node: Node<'_>, line: &mut Line, depth: usize) -> Result<(), String> {
        line.before(&self.label(node, depth)?);
        let inner = self.html_inlines_from(node, line.last, depth)?;
        let _ = write!(line.out, "<{tag}>{inner}</{tag}>");
        Ok(())
    }

    fn html_inlines_from(&self, node: Node<'_>, last: Option<char>, depth: usize) -> Result<String, String> {
        let mut line = Line { last, ..Line::default() };
        self.html_into(node, &mut line, depth + 1)?;
        Ok(line.out)
    }

    fn text_blocks(&self, parent: Node<'_>, depth: usize) -> Result<Vec<String>, String> {
        if depth > DEPTH_MAX {
            return refuse("nesting this deep");
        }
        let mut blocks = Vec::new();
        for node in parent.children() {
            blocks.push(match &node.data.borrow().value {
                NodeValue::Paragraph | NodeValue::Heading(_) => self.text_inlines(node, depth)?,
                NodeValue::List(list) => {
                    let ordered = list.list_type == ListType::Ordered;
                    let between = if list.tight { "\n" } else { "\n\n" };
                    let mut items = Vec::new();
                    for (at, item) in node.children().enumerate() {
                        let bullet = if ordered {
                            format!("{}. ", list.start.saturating_add(at))
                        } else {
                            self.bullet.to_owned()
                        };
                        let inner = self.text_blocks(item, depth + 1)?.join(between);
                        items.push(bullet + &inner.replace('\n', "\n  "));
                    }
                    items.join(between)
                }
                NodeValue::BlockQuote => {
                    let inner = self.text_blocks(node, depth + 1)?.join("\n\n");
                    inner.lines().map(|line| format!("> {line}")).collect::<Vec<_>>().join("\n")
                }
                NodeValue::CodeBlock(code) => self.filled.plain(code.literal.trim_end()),
                NodeValue::ThematicBreak => "----".to_owned(),
                NodeValue::HtmlBlock(tag) => self.bracketed_value(tag.literal.trim())?,
                _ => return refuse("this kind of Markdown"),
            });
        }
        Ok(blocks)
    }

    /// The visible text of a node, links without their addresses.
    fn label(&self, node: Node<'_>, depth: usize) -> Result<String, String> {
        let mut line = Line::default();
        self.text_into(node, &mut line, false, depth + 1)?;
        Ok(line.out)
    }

    fn text_inlines(&self, node: Node<'_>, depth: usize) -> Result<String, String> {
        if let Some(child) = node.first_child().filter(|child| child.next_sibling().is_none())
            && let NodeValue::Link(target) = &child.data.borrow().value
        {
            let url = link::resolve(&target.url, self.filled)?;
            let label = self.label(child, depth)?;
            return Ok(if shows(&label, &url) { label } else { format!("{label}: {}", shown(&url)) });
        }
        let mut line = Line::default();
        self.text_into(node, &mut line, true, depth)?;
        Ok(line.out)
    }

    fn text_into(
        &self,
        parent: Node<'_>,
        line: &mut Line,
        addresses: bool,
        depth: usize,
    ) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return refuse("nesting this deep");
        }
        for node in parent.children() {
            match &node.data.borrow().value {
                NodeValue::Text(text) => {
                    let text = self.filled.plain(text);
                    line.before(&text);
                    line.out += &text;
                }
                NodeValue::Code(code) => {
                    let text = self.filled.plain(&code.literal);
                    line.before(&text);
                    line.out += &text;
                }
                NodeValue::SoftBreak => line.soft_break = true,
                NodeValue::LineBreak => {
                    line.out.push('\n');
                    line.soft_break = false;
                    line.last = None;
                }
                NodeValue::Link(target) => {
                    let label = self.label(node, depth)?;
                    line.before(&label);
                    line.out += &label;
                    let url = link::resolve(&target.url, self.filled)?;
                    if addresses && !shows(&label, &url) {
                        // The space keeps the bracket out of what a mail program takes for the address.
                        let _ = write!(line.out, " ({})", shown(&url));
                    }
                }
                NodeValue::HtmlInline(tag) => {
                    let url = self.bracketed_value(tag)?;
                    line.before(&url);
                    line.out += &url;
                }
                _ => self.text_into(node, line, addresses, depth + 1)?,
            }
        }
        Ok(())
    }

    /// The address and the label of a paragraph that is nothing but one web link: the action of the mail.
    fn only_link(&self, paragraph: Node<'_>) -> Result<Option<(String, String)>, String> {
        let Some(child) = paragraph.first_child().filter(|child| child.next_sibling().is_none()) else {
            return Ok(None);
        };
        let NodeValue::Link(target) = &child.data.borrow().value else { return Ok(None) };
        let url = link::resolve(&target.url, self.filled)?;
        let button = url.starts_with("https://") && !shows(&self.label(child, 0)?, &url);
        Ok(if button { Some((url, self.html_inlines(child)?)) } else { None })
    }

    /// `<{{ login_url }}>` is read as a tag, for the stand-in looks like one; what is meant is a link.
    fn bracketed_value(&self, tag: &str) -> Result<String, String> {
        let inner = tag.strip_prefix('<').and_then(|tag| tag.strip_suffix('>')).unwrap_or_default();
        match self.filled.pieces(inner).as_slice() {
            [Piece::Value(_)] => link::resolve(inner, self.filled),
            _ => refuse("raw HTML"),
        }
    }

    fn escaped(&self, text: &str) -> String {
        escape(&self.filled.plain(text))
    }
}

/// An address as people read it.
fn shown(url: &str) -> &str {
    url.strip_prefix("mailto:").unwrap_or(url)
}

fn shows(label: &str, url: &str) -> bool {
    let label = label.trim();
    label == url || label == shown(url)
}

fn in_link(node: Node<'_>) -> bool {
    node.ancestors().any(|above| matches!(above.data.borrow().value, NodeValue::Link(_)))
}
