//! Templates: `d0.ja.md` … `d14.en.md`, and what becomes of one for one buyer.
//!
//! A template that cannot be used is kept as a fault of its own, so that the seven others go on (R11, C040).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use super::values::Values;
use super::{check, clean, fill, layout, markdown};
use crate::domain::ids::Step;

/// The languages there are templates in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Language {
    /// Japanese.
    Ja,
    /// English.
    En,
}

impl Language {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ja, Self::En];

    /// `ja` or `en`, as in file names and settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ja => "ja",
            Self::En => "en",
        }
    }

    /// The language of a checkout page (`ja`, `ja-JP`, `en_GB`); `default` for any other, and for none.
    #[must_use]
    pub fn for_locale(locale: Option<&str>, default: Self) -> Self {
        let first = locale.unwrap_or_default().trim().split(['-', '_', '.']).next().unwrap_or_default();
        Self::ALL.into_iter().find(|language| language.name().eq_ignore_ascii_case(first)).unwrap_or(default)
    }
}

/// A template that must not leave as it is, or not for this buyer. Names no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateFault {
    /// Whose template.
    pub step: Step,
    /// In which language.
    pub language: Language,
    /// The variable, where it is one.
    pub variable: Option<String>,
    /// What is wrong, in words.
    pub reason: String,
}

impl TemplateFault {
    /// The template's file name: `d3.ja.md`.
    #[must_use]
    pub fn template(&self) -> String {
        file_name(self.step, self.language)
    }

    /// The subject of the matter: `d3.ja`.
    #[must_use]
    pub fn subject(&self) -> String {
        format!("{}.{}", self.step, self.language.name())
    }
}

impl fmt::Display for TemplateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "template {}: {}", self.template(), self.reason)
    }
}

impl std::error::Error for TemplateFault {}

/// A mail's content, ready for a message.
#[derive(Clone, PartialEq, Eq)]
pub struct Rendered {
    /// One line, not empty.
    pub subject: String,
    /// The plain part.
    pub text: String,
    /// The HTML part: a whole document.
    pub html: String,
}

impl fmt::Debug for Rendered {
    /// Lengths only: a rendered mail is somebody's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rendered({} + {} bytes)", self.text.len(), self.html.len())
    }
}

struct Source {
    subject: fill::Parsed,
    body: fill::Parsed,
}

/// The eight templates, each read and checked, or known as faulty.
pub struct Templates {
    sources: BTreeMap<(Step, Language), Result<Source, TemplateFault>>,
    offered: BTreeSet<Language>,
    built_in: bool,
}

/// The templates that come with the program, with their file names: what `init` writes.
pub const BUILTIN: [(Step, Language, &str); 8] = [
    (Step::D0, Language::Ja, include_str!("templates/d0.ja.md")),
    (Step::D0, Language::En, include_str!("templates/d0.en.md")),
    (Step::D3, Language::Ja, include_str!("templates/d3.ja.md")),
    (Step::D3, Language::En, include_str!("templates/d3.en.md")),
    (Step::D7, Language::Ja, include_str!("templates/d7.ja.md")),
    (Step::D7, Language::En, include_str!("templates/d7.en.md")),
    (Step::D14, Language::Ja, include_str!("templates/d14.ja.md")),
    (Step::D14, Language::En, include_str!("templates/d14.en.md")),
];

/// The file of a template: `d3.ja.md`.
#[must_use]
pub fn file_name(step: Step, language: Language) -> String {
    format!("{step}.{}.md", language.name())
}

impl Templates {
    /// The templates that come with the program.
    #[must_use]
    pub fn builtin() -> Self {
        Self::from_each(|step, language| {
            let found = BUILTIN.iter().find(|(s, l, _)| (*s, *l) == (step, language));
            found.map(|(_, _, text)| text.as_bytes().to_vec()).ok_or_else(|| "is not built in".to_owned())
        })
    }

    /// The templates in a folder. A file that is missing or unusable is a fault of that step in that language alone. A
    /// language of which the folder has no file at all is not offered by this shop.
    #[must_use]
    pub fn from_folder(folder: &Path) -> Self {
        let has = |step, language| folder.join(file_name(step, language)).symlink_metadata().is_ok();
        let offered =
            Language::ALL.into_iter().filter(|language| Step::ALL.iter().any(|step| has(*step, *language)));
        let templates = Self::from_each(|step, language| {
            let path = folder.join(file_name(step, language));
            let cannot = |error: std::io::Error| format!("cannot read `{}`: {error}", path.display());
            // A pipe or a device would block or never end.
            if !std::fs::metadata(&path).map_err(cannot)?.is_file() {
                return Err(format!("`{}` is not a file", path.display()));
            }
            std::fs::read(&path).map_err(cannot)
        });
        Self { offered: offered.collect(), built_in: false, ..templates }
    }

    /// The language in which this shop writes to a buyer: the buyer's if it is offered, else the shop's own.
    #[must_use]
    pub fn language(&self, locale: Option<&str>, default: Language) -> Language {
        Some(Language::for_locale(locale, default))
            .filter(|language| self.offers(*language))
            .unwrap_or(default)
    }

    /// Whether these are the templates that come with the program.
    #[must_use]
    pub fn are_built_in(&self) -> bool {
        self.built_in
    }

    /// Whether there is any template in this language.
    #[must_use]
    pub fn offers(&self, language: Language) -> bool {
        self.offered.contains(&language)
    }

    fn from_each(mut bytes: impl FnMut(Step, Language) -> Result<Vec<u8>, String>) -> Self {
        let all = Step::ALL.into_iter().flat_map(|step| Language::ALL.map(|language| (step, language)));
        let read = |(step, language)| {
            let source = bytes(step, language).and_then(|bytes| Source::read(&bytes));
            (
                (step, language),
                source.map_err(|reason| TemplateFault { step, language, variable: None, reason }),
            )
        };
        Self { sources: all.map(read).collect(), offered: Language::ALL.into(), built_in: true }
    }

    /// The mail of a step for one buyer, checked (R11).
    ///
    /// # Errors
    /// What holds this mail: a fault of the template, or of it with these values.
    pub fn render(&self, step: Step, language: Language, values: &Values) -> Result<Rendered, TemplateFault> {
        let rendered = self.render_unchecked(step, language, values)?;
        // Most mails end here. What looks like a left-over placeholder may be the buyer's own odd name, which the
        // neutral words tell; where those do not fit (a filter that wants a date, say), the template's own text has
        // been found clean already: in every branch when it was read, and in this rendering before it got values.
        if look_for_leftovers(step, language, &rendered).is_err()
            && let Ok(neutral) = self.render_unchecked(step, language, &values.neutral())
        {
            look_for_leftovers(step, language, &neutral)?;
        }
        Ok(rendered)
    }

    /// All that is wrong with any of the eight, tried with these values of the seller and neutral words for a buyer
    /// with and without a name: to be told before the first request. `event_names` are variables that only purchases
    /// bring; whether one does is seen with its mail.
    #[must_use]
    pub fn faults(
        &self,
        settings: &BTreeMap<String, String>,
        event_names: &BTreeSet<String>,
    ) -> Vec<TemplateFault> {
        let event = event_names.iter().map(|name| {
            (
                name.clone(),
                if name.ends_with("_url") { "https://example.com/word" } else { "word" }.to_owned(),
            )
        });
        let values = Values::new(settings, &event.collect());
        let mut faults: Vec<TemplateFault> = Vec::new();
        for &(step, language) in self.sources.keys() {
            for name in ["word", ""] {
                if let Err(fault) = self.render(step, language, &values.clone().named(name))
                    && !faults.contains(&fault)
                {
                    faults.push(fault);
                }
            }
        }
        faults
    }

    /// The faults in every language this shop writes in: its own, and those it offers. `values` are the seller's in a
    /// language.
    #[must_use]
    pub fn faults_offered(
        &self,
        own: Language,
        values: impl Fn(Language) -> BTreeMap<String, String>,
        event_names: &BTreeSet<String>,
    ) -> Vec<TemplateFault> {
        Language::ALL
            .into_iter()
            .filter(|language| *language == own || self.offers(*language))
            .flat_map(|language| {
                let faults = self.faults(&values(language), event_names);
                faults.into_iter().filter(move |fault| fault.language == language)
            })
            .collect()
    }

    fn render_unchecked(
        &self,
        step: Step,
        language: Language,
        values: &Values,
    ) -> Result<Rendered, TemplateFault> {
        let fault =
            |variable: Option<String>, reason: String| TemplateFault { step, language, variable, reason };
        let unfilled = |error: fill::Unfilled| fault(error.variable, error.reason);
        let source = match self.sources.get(&(step, language)) {
            Some(Ok(source)) => source,
            Some(Err(known)) => return Err(known.clone()),
            None => return Err(fault(None, "is missing".to_owned())),
        };
        let subject = fill::fill(&source.subject, values).map_err(unfilled)?;
        let body = fill::fill(&source.body, values).map_err(unfilled)?;
        for (part, filled) in [("subject", &subject), ("text", &body)] {
            if let Some(found) = check::leftover(&filled.text) {
                return Err(fault(None, format!("the {part} still holds `{found}`")));
            }
        }
        let subject = clean::line(&subject.plain(&subject.text));
        if subject.is_empty() {
            return Err(fault(None, "the subject is empty".to_owned()));
        }
        let (text, html) =
            markdown::convert(&body, values, language).map_err(|reason| fault(None, reason))?;
        if text.trim().is_empty() {
            return Err(fault(None, "the text is empty".to_owned()));
        }
        let own_block = source.body.uses("business_address");
        let footer = layout::footer(step, language, values, own_block)
            .map_err(|name| fault(Some(name.to_owned()), format!("the sender block lacks `{name}`")))?;
        Ok(Rendered {
            text: format!("{text}{}\n", layout::footer_text(&footer)),
            html: layout::document(language.name(), &subject, &html, &layout::footer_html(&footer)),
            subject,
        })
    }
}

fn look_for_leftovers(step: Step, language: Language, mail: &Rendered) -> Result<(), TemplateFault> {
    for (part, text) in [("subject", &mail.subject), ("text", &mail.text), ("HTML", &mail.html)] {
        if let Some(found) = check::leftover(text) {
            let reason = format!("the {part} still holds `{found}`");
            return Err(TemplateFault { step, language, variable: None, reason });
        }
    }
    Ok(())
}

impl Source {
    /// Reads and checks a file: `Subject: …`, an empty line, Markdown.
    fn read(bytes: &[u8]) -> Result<Self, String> {
        if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
            return Err("is UTF-16; save it as UTF-8".to_owned());
        }
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let line = bytes[..error.valid_up_to()].split(|byte| *byte == b'\n').count();
            format!("is not UTF-8 (line {line})")
        })?;
        if text.contains('\0') {
            return Err("holds NUL bytes; save it as UTF-8".to_owned());
        }
        let text = text.replace('\u{feff}', "").replace("\r\n", "\n").replace('\r', "\n");
        if text.trim().is_empty() {
            return Err("is empty".to_owned());
        }
        let conflict =
            |line: &str| ["<<<<<<<", ">>>>>>>", "|||||||"].iter().any(|mark| line.starts_with(mark));
        if let Some(at) = text.lines().position(conflict) {
            return Err(format!("line {} is left over from a merge conflict", at + 1));
        }
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let subject = first
            .get(..8)
            .filter(|word| word.eq_ignore_ascii_case("Subject:"))
            .map(|_| first[8..].trim().to_owned())
            .ok_or("its first line must be `Subject: …`")?;
        if subject.is_empty() {
            return Err("the subject is empty".to_owned());
        }
        let (second, body) = rest.split_once('\n').unwrap_or((rest, ""));
        if !second.trim().is_empty() {
            return Err("an empty line must follow the subject".to_owned());
        }
        if body.trim().is_empty() {
            return Err("the text is empty".to_owned());
        }
        if let Some((line, found)) = check::leftover_in_source(&text) {
            return Err(format!("line {line} holds `{found}`, which is no value of stepmail's"));
        }
        let subject = fill::Parsed::new(&subject).map_err(|error| format!("subject: {}", error.reason))?;
        // Two empty lines for the two that were taken off: a fault then names the line of the file.
        let body = fill::Parsed::new(&format!("\n\n{body}")).map_err(|error| error.reason)?;
        Ok(Self { subject, body })
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
