//! `init`: settings and an empty ledger. What exists is named and left alone.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::cli::{Global, Init};
use crate::clock::Clock;
use crate::config::{self, Settings};
use crate::disk::{self, Created};
use crate::domain::ledger::Ledger;
use crate::domain::time::Timestamp;
use crate::exit::Exit;
use crate::mail::template::{BUILTIN, file_name};
use crate::report::{Style, print, print_json};
use crate::store::Store;

/// The commented lines of the sample that name a templates folder, and what they become when templates are written.
const TEMPLATES_OFF: &str = "# [templates]\n# dir = \"templates\"\n";
const TEMPLATES_ON: &str = "[templates]\ndir = \"templates\"\n";

#[derive(Serialize)]
struct InitReport {
    schema: &'static str,
    made: Vec<String>,
    kept: Vec<String>,
    exit: Exit,
}

pub(super) fn init(init: &Init, global: &Global, style: Style, clock: &Clock) -> anyhow::Result<Exit> {
    let mut report =
        InitReport { schema: "stepmail-init/1", made: Vec::new(), kept: Vec::new(), exit: Exit::Done };
    let mut note = |path: &Path, created: Created| match created {
        Created::New => report.made.push(path.display().to_string()),
        Created::AlreadyThere => report.kept.push(path.display().to_string()),
    };
    disk::make_folder(&init.dir)?;
    let settings_file = global.config.clone().unwrap_or_else(|| init.dir.join(config::FILE_NAME));
    let settings = if init.templates {
        config::SAMPLE.replace(TEMPLATES_OFF, TEMPLATES_ON)
    } else {
        config::SAMPLE.to_owned()
    };
    let settings_made = disk::create(&settings_file, settings.as_bytes(), disk::PRIVATE)?;
    note(&settings_file, settings_made);
    if init.templates {
        let folder = init.dir.join("templates");
        disk::make_folder(&folder)?;
        for (step, language, text) in BUILTIN {
            let path = folder.join(file_name(step, language));
            note(&path, disk::create(&path, text.as_bytes(), disk::PRIVATE)?);
        }
    }
    let spool = init.dir.join(config::SPOOL);
    note(&spool, if spool.is_dir() { Created::AlreadyThere } else { Created::New });
    disk::make_folder(&spool)?;
    let go_live = init.go_live.unwrap_or_else(|| clock.now());
    let ledger_file = global.ledger.clone().unwrap_or_else(|| init.dir.join("ledger.json"));
    let ledger_made = Store::create(&ledger_file, &Ledger::empty(go_live, None))?;
    note(&ledger_file, ledger_made);

    // Settings that cannot be read are the next run's to refuse; that the templates are named cannot be said of them.
    let are_named = || Settings::load(Some(&settings_file)).is_ok_and(|read| read.templates_dir.is_some());
    let to_be_named =
        (init.templates && settings_made == Created::AlreadyThere && !are_named()).then_some(TEMPLATES_ON);
    let go_live = (ledger_made == Created::New).then_some(go_live);
    match style {
        Style::Json => print_json(&report),
        Style::Quiet => {}
        Style::Text => print(|out| report.say(out, &init.dir, &settings_file, go_live, to_be_named)),
    }
    Ok(report.exit)
}

impl InitReport {
    fn say(
        &self,
        out: &mut impl Write,
        dir: &Path,
        settings: &Path,
        go_live: Option<Timestamp>,
        to_be_named: Option<&str>,
    ) -> io::Result<()> {
        for path in &self.made {
            writeln!(out, "made  {path}")?;
        }
        for path in &self.kept {
            writeln!(out, "kept  {path} (it was there before)")?;
        }
        if let Some(go_live) = go_live {
            writeln!(out, "\nPurchases paid before {go_live} are history and get no mail.")?;
        }
        if let Some(lines) = to_be_named {
            writeln!(out, "\nTo use the templates, say so in {}:\n\n{lines}", settings.display())?;
        }
        let go_there =
            if dir == Path::new(".") { String::new() } else { format!("cd {} && ", dir.display()) };
        writeln!(
            out,
            "\nNext: put your names and addresses into {}, then: {go_there}stepmail run --dry-run",
            settings.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_has_the_lines_that_switch_templates_on() {
        assert!(config::SAMPLE.contains(TEMPLATES_OFF));
    }
}
