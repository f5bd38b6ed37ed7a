//! `ghostlab verify FOLDER`: somebody's numbers, checked.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::answer::{self, Answer};
use super::{candidates, home, progress, stop};
use crate::error::{Error, Result};
use crate::exec::Settings;
use crate::hub;
use crate::installed;
use crate::store::Store;
use crate::verify::{self, Check, FolderCheck, Request, Verification};

#[derive(Args)]
pub(super) struct Arguments {
    /// A results folder, or a folder of several.
    #[arg(add = candidates::results())]
    folder: PathBuf,
    /// The part of all windows and documents that is computed afresh: `5%` or `0.05`. Of selections and operators its square
    /// root is drawn.
    #[arg(long, default_value = "5%", value_parser = share)]
    share: f64,
    /// Another seed draws others.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Where inputs are looked for beside the places that the record names, the checkout, what is installed and the hub's
    /// cache; by their hashes.
    #[arg(long, value_name = "FOLDER")]
    inputs: Vec<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    let (number, part) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    match number.trim().parse::<f64>() {
        Ok(number) if number > 0.0 && number / part <= 1.0 => Ok(number / part),
        _ => Err("a part of all, above 0 and at most 1: `5%`, `0.05`".to_owned()),
    }
}

/// So many differences are said of each check; `--json` has all.
const SAID: usize = 10;

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let folders = verify::folders(&arguments.folder)?;
    let scratch = tempfile::Builder::new().prefix("ghostlab-verify-").tempdir();
    let scratch = scratch.map_err(|error| Error::io("create a folder in", &std::env::temp_dir(), &error))?;
    let store = Store::open(scratch.path())?;
    let (reporter, stop) = (progress::reporter(false), stop::on_ctrl_c(stop::AFTER_BATCH)?);
    let current = std::env::current_dir().map_err(|error| Error::io("find", std::path::Path::new("."), &error))?;
    let around = home::below(None, "", Some(&arguments.folder));
    let cache = hub::Settings::from_env().ok().map(|of| of.cache);
    let roots = arguments.inputs.iter().cloned().chain([current, around]).chain(installed::share()).chain(cache);
    let request = Request {
        share: arguments.share,
        seed: arguments.seed,
        roots: roots.collect(),
        settings: Settings::default(),
        store: &store,
        reporter: &*reporter,
        stop: &stop,
    };
    let checked = folders.iter().map(|folder| verify::verify(folder, &request)).collect::<Result<Vec<_>>>()?;
    let found = Verification { share: arguments.share, seed: arguments.seed, folders: checked };
    let code = match (found.differs(), found.cannot()) {
        (true, _) => 4,
        (_, true) => 3,
        _ => 0,
    };
    answer::show(found, Answer::Verify, |found| {
        found.folders.iter().for_each(text);
        println!(
            "{}",
            match code {
                0 => "all that was checked agrees",
                3 => "nothing differs, and something cannot be checked",
                _ => "something differs",
            }
        );
    })?;
    Ok(ExitCode::from(code))
}

fn text(of: &FolderCheck) {
    println!("{} ({}), by {}", of.folder, of.name, of.program);
    for check in of.checks.iter().filter(|check| check.all > 0 || !check.cannot.is_empty()) {
        println!("  {}", line(check));
        for differs in check.differs.iter().take(SAID) {
            let by = differs.by.map(|by| format!(", apart by {by:.3e}")).unwrap_or_default();
            println!("    differs: {}: recorded {}, found {}{by}", differs.at, differs.recorded, differs.found);
        }
        for lacking in check.cannot.iter().take(SAID) {
            println!("    cannot: {}: lacks {}", lacking.at, lacking.lacks);
        }
        let more = check.differs.len().saturating_sub(SAID) + check.cannot.len().saturating_sub(SAID);
        if more > 0 {
            println!("    and {more} more; --json has all");
        }
    }
    of.notes.iter().for_each(|note| println!("  {note}"));
    println!("");
}

fn line(check: &Check) -> String {
    let Check { kind, agreed, largest, all, chance, differs, .. } = check;
    let apart = if *largest > 0.0 { format!(", at most {largest:.1e} apart") } else { String::new() };
    let differ = if differs.is_empty() { String::new() } else { format!(", {} differ", differs.len()) };
    let found = format!("a single altered one is found with {:.1} %", 100.0 * chance);
    format!("{}: {agreed} of {} agree{apart}{differ}; {all} in all: {found}", kind.words(), check.compared())
}
