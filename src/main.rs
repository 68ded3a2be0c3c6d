//! Arguments, logging, exit code; decides nothing.

use std::process::ExitCode;

use clap::Parser;
use tracing::level_filters::LevelFilter;

use stepmail::cli::Cli;
use stepmail::command;
use stepmail::exit::Exit;
use stepmail::report::{self, Style};

fn main() -> ExitCode {
    // clap ends the process with 2 where the command line is wrong.
    let cli = Cli::parse();
    if let Err(error) = cli.check() {
        error.exit();
    }
    let level = match (cli.global.quiet, cli.global.verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, _) => LevelFilter::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false)
        .init();
    let style = match (cli.global.json, cli.global.quiet) {
        (true, _) => Style::Json,
        (false, true) => Style::Quiet,
        (false, false) => Style::Text,
    };
    let exit = command::carry_out(cli, style).unwrap_or_else(|error| tell(&error, style));
    ExitCode::from(u8::from(exit))
}

/// Says what went wrong: to programs as an object, to people on standard error.
fn tell(error: &anyhow::Error, style: Style) -> Exit {
    let exit = Exit::of(error);
    if style == Style::Json && exit != Exit::Usage {
        let object =
            serde_json::json!({ "schema": "stepmail-error/1", "error": error.to_string(), "exit": exit });
        report::print_json(&object);
    }
    report::complain(&format!("stepmail: {error}"));
    exit
}
