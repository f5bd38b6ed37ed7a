//! Project setup: `ghostlab init [FOLDER]` writes a starter grid, and `ghostlab store init` creates a store.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};

use super::answer::plan_cost::estimate_flop_per_second;
use super::answer::write_commands::{InitAnswer, SkippedItem, StoreInitAnswer, display_path};
use super::answer::{self, Answer};
use super::directories;
use super::terminal::format_seconds;
use crate::error::Result;
use crate::files::output::{Input, OutputFile};
use crate::pipeline::stage;
use crate::starter::{SplitText, Starter};
use ghostlab_store::{Store, StoreSharing};

#[derive(Args)]
pub(super) struct Arguments {
    /// Model folder, folder with several models, or .gguf file.
    ///
    /// A model folder contains config.json, tokenizer.json and *.safetensors. In a folder with several models, they can
    /// also be in subfolders `org/name`.
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Output file.
    #[arg(long, value_name = "FILE", default_value = "grid.yaml")]
    to: PathBuf,
    /// Text file (.txt, .jsonl, .jsonl.gz or .parquet); can be repeated.
    ///
    /// The first file is the calibration text, and the rest are scored. A single file is split in two, and both parts
    /// are written next to the grid. Without --corpus, the grid uses the bundled synthetic texts and tasks.
    #[arg(long = "corpus", value_name = "FILE")]
    corpora: Vec<PathBuf>,
    /// Overwrite an existing file, unless it is an input.
    #[arg(long)]
    force: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let target = &arguments.to;
    let inputs = arguments.corpora.iter().map(|file| Input::new("a text", file)).collect();
    let mut output = OutputFile { path: target, inputs, force: arguments.force, is_ours: |_| false };
    output.check()?;
    let experiments = if arguments.corpora.is_empty() {
        directories::find_or_unpack_experiments(None)
    } else {
        directories::find_experiments(None)
    };
    let embedded = experiments.ok().and_then(|folder| Some(folder.parent()?.join("data/tiny")));
    let split = match arguments.corpora.as_slice() {
        [text] => Some((text, SplitText::new(text, target)?)),
        _ => None,
    };
    let written = split.as_ref().map(|(_, split)| split.write(arguments.force)).transpose()?;
    let texts = match &split {
        Some((_, split)) => split.files().map(Path::to_path_buf).to_vec(),
        None => arguments.corpora.clone(),
    };
    let starter = Starter::new(&arguments.folder, &texts, embedded.as_deref(), target, estimate_flop_per_second());
    let starter = starter.map_err(|error| match &split {
        Some((text, _))
            if error.parts().location.as_deref().is_some_and(|location| names_split_file(location, &texts)) =>
        {
            error.at(text.display())
        }
        _ => error,
    })?;
    output.inputs.extend(starter.inputs());
    output.write(starter.yaml(target)?.as_bytes())?;
    if let Some(written) = written {
        written.keep();
    }
    let mut left_out = Vec::new();
    for (folder, error) in starter.skipped_directories() {
        note!("skipped {}: {}", folder.display(), error.one_line());
        left_out.push(SkippedItem::new(display_path(folder), error));
    }
    if let Some((text, split)) = &split {
        let [calibration, scored] = split.files().map(|file| file.display());
        note!("split {} into {calibration} (calibration) and {scored} (scoring)", text.display());
    }
    let begun =
        InitAnswer { file: display_path(target), models: starter.models().map(str::to_owned).collect(), left_out };
    answer::print_answer(begun, Answer::Init, |answer| {
        println!("wrote {}: a grid for {}", answer.file, answer.models.join(", "));
    })?;
    if let Some(time) = starter.seconds_over_limit() {
        note!("a run takes about {} on this machine, even with the smallest default sizes", format_seconds(time));
    }
    note!(
        "use `ghostlab plan {0}` to see the jobs and their cost, and `ghostlab run {0}` to run them",
        target.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Returns whether an error location names one of the two files that a text was split into.
fn names_split_file(location: &str, split_files: &[PathBuf]) -> bool {
    split_files.iter().any(|file| location.contains(&file.display().to_string()))
}

#[derive(Subcommand)]
pub(super) enum StoreCommand {
    /// Create a store in an empty or new folder.
    ///
    /// Runs create a store automatically. Use this command to create a store that several users share. In an existing
    /// store, it changes who has access and adjusts the permissions of your own files.
    Init {
        /// Store folder.
        folder: PathBuf,
        /// Who may use the store, regardless of the umask: `group` or `all`.
        ///
        /// `group` gives the folder's group read and write access (run `chgrp` first). `all` also gives everyone read
        /// access. This corresponds to git's core.sharedRepository.
        #[arg(long, value_name = "WHOM", value_parser = PossibleValuesParser::new(StoreSharing::NAMES).try_map(|name| name.parse::<StoreSharing>()))]
        shared: Option<StoreSharing>,
    },
}

pub(super) fn run_store(command: &StoreCommand) -> Result<ExitCode> {
    let StoreCommand::Init { folder, shared } = command;
    let shared = Store::init(folder, stage::STORE_WORDS, *shared)?;
    let begun = StoreInitAnswer { store: display_path(folder), shared: shared.to_string() };
    answer::print_answer(begun, Answer::StoreInit, |answer| match shared {
        StoreSharing::Umask => println!("created a store in {}", answer.store),
        StoreSharing::Group => println!("created a store in {} (group: read and write)", answer.store),
        StoreSharing::All => println!("created a store in {} (group: read and write, others: read)", answer.store),
    })
}
