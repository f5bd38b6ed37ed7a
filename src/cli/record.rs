//! `ghostlab record`, which packs results into one file, and `ghostlab verify`, which checks results.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tempfile::TempDir;

use super::answer::plan_cost::estimate_flop_per_second;
use super::answer::write_commands::{RecordPackAnswer, display_path};
use super::answer::{self, Answer};
use super::terminal::format_bytes;
use super::{directories, progress, stop, terminal};
use crate::archive::{self, METADATA, RecordArchive};
use crate::error::{Error, Result};
use crate::files::output::{Input, OutputFile};
use crate::files::regular;
use crate::pipeline::exec::RunEnv;
use crate::pipeline::stage;
use crate::quantity::pluralize;
use crate::verify::{self, CheckResult, FolderCheck, RecomputeCost, ValueMismatch, Verification, VerifyRequest};
use crate::{hub, installed};
use ghostlab_store::Store;

#[derive(Subcommand)]
pub(super) enum Command {
    /// Pack results folders into one reproducible zip file.
    ///
    /// The file contains RO-Crate 1.2 metadata (files with hashes and sizes, runs, software, hashes of inputs) and a
    /// list of hashes. `verify` accepts it. Packing the same folders always produces the same bytes. Only files that a
    /// run lists and that have not changed since are packed; optional files may be missing.
    Pack {
        /// Results folders, or folders that contain several.
        #[arg(required = true, value_name = "FOLDER")]
        folders: Vec<PathBuf>,
        /// Output file.
        #[arg(long, value_name = "FILE.zip")]
        to: PathBuf,
        /// License for the results, as a URL or text.
        ///
        /// For example `https://spdx.org/licenses/CC-BY-4.0`.
        #[arg(long, value_name = "TEXT")]
        license: Option<String>,
        /// Overwrite an existing file that `record pack` did not write.
        #[arg(long)]
        force: bool,
    },
}

pub(super) fn run(command: &Command) -> Result<ExitCode> {
    let Command::Pack { folders, to, license, force } = command;
    let all = folders.iter().map(|folder| verify::find_folders(folder)).collect::<Result<Vec<_>>>()?.concat();
    let inputs = all.iter().map(|folder| Input::new("a results folder", folder)).collect();
    let file = OutputFile { path: to, inputs, force: *force, is_ours };
    file.check()?;
    let RecordArchive { bytes: packed, folders, entries, omitted_files } = archive::pack(&all, license.as_deref())?;
    file.write(&packed)?;
    let done = RecordPackAnswer {
        file: display_path(to),
        bytes: packed.len() as u64,
        folders,
        entries,
        left_out: omitted_files,
    };
    answer::print_answer(done, Answer::RecordPack, |done| {
        let left = if done.left_out > 0 {
            format!(", without {}", pluralize(done.left_out, "large file"))
        } else {
            String::new()
        };
        println!(
            "{}: {} of {}, {} entries{left}",
            done.file,
            format_bytes(done.bytes),
            pluralize(done.folders.len(), "folder"),
            done.entries
        );
    })
}

/// Returns whether `record pack` wrote a file: a zip archive whose first entry is the metadata file.
fn is_ours(bytes: &[u8]) -> bool {
    // The name of the first entry follows its fixed-size local header.
    const NAME_OFFSET: usize = 30;
    bytes.starts_with(b"PK") && bytes.get(NAME_OFFSET..).is_some_and(|rest| rest.starts_with(METADATA.as_bytes()))
}

#[derive(Args)]
pub(super) struct VerifyArguments {
    /// Results folder, folder that contains several, or file from `record pack`.
    folder: PathBuf,
    /// Share of windows and documents to recompute, e.g. `5%` or `0.05`.
    ///
    /// For layer selections and operators, the square root of the share is used.
    #[arg(long, default_value = "5%", value_parser = parse_fraction)]
    share: f64,
    /// Seed for the random sample.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Additional folder to search for inputs by hash; can be repeated.
    ///
    /// The paths in the record, the checkout, the installed files and the hub cache are always searched.
    #[arg(long, value_name = "FOLDER")]
    inputs: Vec<PathBuf>,
}

fn parse_fraction(text: &str) -> Result<f64, String> {
    let (number, divisor) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    match number.trim().parse::<f64>() {
        Ok(number) if number > 0.0 && number / divisor <= 1.0 => Ok(number / divisor),
        _ => Err("expected a fraction above 0 and at most 1, such as `5%` or `0.05`".to_owned()),
    }
}

/// Describes what will be recomputed and how long it will take.
fn describe_plan(work: &RecomputeCost) -> String {
    let RecomputeCost { cells, backbones, calibrations, chunks, flop } = work;
    if *cells == 0 {
        return "nothing to recompute: the inputs of the sample are missing".to_owned();
    }
    format!(
        "to compute: {} of {}, {}, {}, {}; about {} on this processor",
        pluralize(*cells, "cell"),
        pluralize(backbones.len(), "backbone"),
        pluralize(*calibrations, "calibration"),
        pluralize(*chunks, "chunk"),
        terminal::format_flops(*flop),
        terminal::format_seconds(flop / estimate_flop_per_second()),
    )
}

fn create_scratch_folder(name: &str) -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix(&format!("ghostlab-{name}-")).tempdir();
    folder.map_err(|error| Error::folder_io("write to", &std::env::temp_dir(), &error))
}

/// Unpacks an archive to a temporary directory and checks the hashes of its entries. Returns `None` if the path is not
/// a file.
fn unpack_archive(path: &Path) -> Result<Option<(TempDir, FolderCheck)>> {
    if !path.is_file() {
        return Ok(None);
    }
    let file = regular::open(path)?;
    let bytes = file.metadata().map_err(|error| Error::io("read", path, &error))?.len();
    let folder = create_scratch_folder("record")?;
    let unpacked = archive::unpack(file, bytes, folder.path()).map_err(|error| error.at(path.display().to_string()))?;
    Ok(Some((folder, FolderCheck::from_archive(path, &unpacked))))
}

/// Maximum number of differences printed for each check. `--json` prints all of them.
const MAX_PRINTED: usize = 10;

pub(super) fn run_verify(arguments: &VerifyArguments) -> Result<ExitCode> {
    let unpacked = unpack_archive(&arguments.folder)?;
    let root = unpacked.as_ref().map_or(arguments.folder.as_path(), |(folder, _)| folder.path());
    let folders = verify::find_folders(root)?;
    let scratch = create_scratch_folder("verify")?;
    let store = Store::open(scratch.path(), stage::STORE_WORDS)?;
    let reporter = progress::reporter(false);
    let stop = stop::on_ctrl_c(stop::STOPPING_AFTER_BATCH)?;
    let current =
        std::env::current_dir().map_err(|error| Error::folder_io("open", std::path::Path::new("."), &error))?;
    let checkout = directories::default_directory(None, "", Some(&arguments.folder));
    let cache = hub::HubSettings::from_env().ok().map(|from_env| from_env.cache);
    let roots =
        arguments.inputs.iter().cloned().chain([current, checkout]).chain(installed::installed_folder()).chain(cache);
    let request = VerifyRequest {
        fraction: arguments.share,
        seed: arguments.seed,
        roots: roots.collect(),
        env: RunEnv { reporter: &*reporter, stop: &stop, ..RunEnv::new(&store) },
    };
    let prepared = verify::prepare(&folders, &request)?;
    let works = prepared.iter().map(|part| part.estimate_work(&request)).collect::<Result<Vec<_>>>()?;
    let work = works.into_iter().fold(RecomputeCost::default(), RecomputeCost::merge);
    note!("{}", describe_plan(&work));
    let mut checked = verify::finish(prepared, &request)?;
    if let Some((_, archive_check)) = unpacked.as_ref() {
        for (check, folder) in checked.iter_mut().zip(&folders) {
            let inner = folder.strip_prefix(root).unwrap_or(folder);
            check.folder = arguments.folder.join(inner).display().to_string();
        }
        checked.insert(0, archive_check.clone());
    }
    let found = Verification { share: arguments.share, seed: arguments.seed, work, folders: checked };
    let code = match (found.has_differences(), found.has_unchecked()) {
        (true, _) => 4,
        (_, true) => 3,
        _ => 0,
    };
    answer::print_answer(found, Answer::Verify, |found| {
        found.folders.iter().for_each(print_folder_check);
        println!(
            "{}",
            match code {
                0 => "all checks passed",
                3 => "no differences found, but some checks could not run",
                _ => "differences found",
            }
        );
    })?;
    Ok(ExitCode::from(code))
}

fn print_folder_check(folder_check: &FolderCheck) {
    println!("{} ({}), by {}", folder_check.folder, folder_check.name, folder_check.program);
    for check in folder_check.checks.iter().filter(|check| check.total > 0 || !check.unchecked.is_empty()) {
        println!("  {}", format_check(check));
        for ValueMismatch { at, recorded, found, difference } in check.mismatches.iter().take(MAX_PRINTED) {
            let difference = difference.map(|value| format!(", difference {value:.3e}")).unwrap_or_default();
            println!("    differs: {at}: recorded {recorded}, found {found}{difference}");
        }
        for value in check.unchecked.iter().take(MAX_PRINTED) {
            println!("    not checked: {}: missing {}", value.at, value.missing_input);
        }
        let more =
            check.mismatches.len().saturating_sub(MAX_PRINTED) + check.unchecked.len().saturating_sub(MAX_PRINTED);
        if more > 0 {
            println!("    … and {more} more (use --json to see all)");
        }
    }
    folder_check.notes.iter().for_each(|note| println!("  {note}"));
    println!("");
}

fn format_check(check: &CheckResult) -> String {
    let CheckResult { kind, max_difference, total, detection_probability, mismatches, .. } = check;
    let result = if mismatches.is_empty() { "all agree".to_owned() } else { format!("{} differ", mismatches.len()) };
    let difference =
        if *max_difference > 0.0 { format!(", largest difference {max_difference:.1e}") } else { String::new() };
    let probability = 100.0 * detection_probability;
    format!(
        "{}: {} of {total} checked, {result}{difference} ({probability:.1} % detection probability)",
        kind.label(),
        check.compared_count()
    )
}
