//! `ghostlab verify FOLDER`: somebody's numbers, checked.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use tempfile::TempDir;

use super::answer::plan::probe;
use super::answer::{self, Answer};
use super::{candidates, home, progress, stop, units};
use crate::archive;
use crate::error::{Error, Result};
use crate::exec::RunSettings;
use crate::files::regular;
use crate::hub;
use crate::installed;
use crate::stage;
use crate::verify::{self, Check, FolderCheck, Verification, VerifyRequest, Work};
use ghostlab_store::Store;

#[derive(Args)]
pub(super) struct Arguments {
    /// A results folder, a folder of several, or a file that `record pack` has made.
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

/// What is going to be computed, and how long that takes about.
fn before(work: &Work) -> String {
    let Work { cells, backbones, calibrations, chunks, flop } = work;
    if *cells == 0 {
        return "nothing is computed afresh: what is drawn cannot be found here".to_owned();
    }
    format!(
        "to compute: {} of {} backbones, {calibrations} calibrations, {chunks} chunks, {}; about {} on this processor",
        units::cells(*cells),
        backbones.len(),
        units::flops(*flop),
        units::seconds(flop / probe()),
    )
}

/// An archive as a folder for a while, and what its own list says of its entries; none of a folder.
fn unpacked(path: &Path) -> Result<Option<(TempDir, FolderCheck)>> {
    if !path.is_file() {
        return Ok(None);
    }
    let failed = |error: std::io::Error| Error::io("read", path, &error);
    let file = regular::open(path)?;
    let bytes = file.metadata().map_err(failed)?.len();
    let folder = tempfile::Builder::new().prefix("ghostlab-record-").tempdir();
    let folder = folder.map_err(|error| Error::io("create a folder in", &std::env::temp_dir(), &error))?;
    let unpacked = archive::unpack(file, bytes, folder.path()).map_err(|error| error.at(path.display().to_string()))?;
    Ok(Some((folder, FolderCheck::of_archive(path, &unpacked))))
}

/// So many differences are said of each check; `--json` has all.
const SAID: usize = 10;

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let unpacked = unpacked(&arguments.folder)?;
    let root = unpacked.as_ref().map_or(arguments.folder.as_path(), |(folder, _)| folder.path());
    let folders = verify::folders(root)?;
    let scratch = tempfile::Builder::new().prefix("ghostlab-verify-").tempdir();
    let scratch = scratch.map_err(|error| Error::io("create a folder in", &std::env::temp_dir(), &error))?;
    let store = Store::open(scratch.path(), stage::WORDS)?;
    let (reporter, stop) = (progress::reporter(false), stop::on_ctrl_c(stop::AFTER_BATCH)?);
    let current = std::env::current_dir().map_err(|error| Error::io("find", std::path::Path::new("."), &error))?;
    let around = home::below(None, "", Some(&arguments.folder));
    let cache = hub::HubSettings::from_env().ok().map(|of| of.cache);
    let roots = arguments.inputs.iter().cloned().chain([current, around]).chain(installed::share()).chain(cache);
    let request = VerifyRequest {
        share: arguments.share,
        seed: arguments.seed,
        roots: roots.collect(),
        settings: RunSettings::default(),
        store: &store,
        reporter: &*reporter,
        stop: &stop,
    };
    let prepared = verify::prepare(&folders, &request)?;
    let works = prepared.iter().map(|of| of.work(&request)).collect::<Result<Vec<_>>>()?;
    let work = works.into_iter().fold(Work::default(), Work::and);
    note!("{}", before(&work));
    let mut checked = verify::finish(prepared, &request)?;
    if let Some((_, of_archive)) = unpacked.as_ref() {
        for (check, folder) in checked.iter_mut().zip(&folders) {
            let inner = folder.strip_prefix(root).unwrap_or(folder);
            check.folder = arguments.folder.join(inner).display().to_string();
        }
        checked.insert(0, of_archive.clone());
    }
    let found = Verification { share: arguments.share, seed: arguments.seed, work, folders: checked };
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
