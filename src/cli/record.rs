//! `ghostlab record`: results folders as one file for others.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::answer::done::{PackedRecord, shown};
use super::answer::{self, Answer};
use super::candidates;
use super::units::bytes;
use crate::archive::{self, METADATA, Packed};
use crate::error::Result;
use crate::files::output::{Input, OutputFile};
use crate::verify;

#[derive(Subcommand)]
pub(super) enum Command {
    /// Pack results folders into one zip that others can read and `verify`: RO-Crate 1.2 metadata (files with hashes and
    /// sizes, the runs, software, inputs by their hashes) and a list of hashes. The same folders give the same bytes.
    ///
    /// Only what a run listed as its own is packed, and only as it was written; what a record may leave out may lack.
    Pack {
        /// Results folders, or folders of several.
        #[arg(required = true, value_name = "FOLDER", add = candidates::results())]
        folders: Vec<PathBuf>,
        /// The file to be written.
        #[arg(long, value_name = "FILE.zip")]
        to: PathBuf,
        /// Under what the results may be used: an address, as https://spdx.org/licenses/CC-BY-4.0, or words.
        #[arg(long, value_name = "TEXT")]
        license: Option<String>,
        /// Write over a file that no earlier call has written.
        #[arg(long)]
        force: bool,
    },
}

pub(super) fn run(command: &Command) -> Result<ExitCode> {
    let Command::Pack { folders, to, license, force } = command;
    let mut all = Vec::new();
    for folder in folders {
        all.extend(verify::folders(folder)?);
    }
    let inputs = all.iter().map(|folder| Input::new("a results folder", folder)).collect();
    let file = OutputFile { path: to, inputs, force: *force, is_ours };
    file.check()?;
    let Packed { bytes: packed, folders, entries, left_out } = archive::pack(&all, license.as_deref())?;
    file.write(&packed)?;
    let done = PackedRecord { file: shown(to), bytes: packed.len() as u64, folders, entries, left_out };
    answer::show(done, Answer::RecordPack, |done| {
        let left =
            if done.left_out > 0 { format!(", {} large files are left out", done.left_out) } else { String::new() };
        println!(
            "{}: {} of {} folders, {} entries{left}",
            done.file,
            bytes(done.bytes),
            done.folders.len(),
            done.entries
        );
    })
}

/// An archive begins with the name of its first entry.
fn is_ours(bytes: &[u8]) -> bool {
    const NAME: usize = 30;
    bytes.starts_with(b"PK") && bytes.get(NAME..).is_some_and(|rest| rest.starts_with(METADATA.as_bytes()))
}
