//! `ghostlab init [FOLDER]`: a grid to begin with, for the models in a folder.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::answer::done::{Begun, Refused, shown};
use super::answer::{self, Answer};
use super::home;
use crate::error::Result;
use crate::files::output::{Input, OutputFile};
use crate::starter::Starter;

#[derive(Args)]
pub(super) struct Arguments {
    /// Where the models are: the folder of one (config.json, tokenizer.json, *.safetensors), or one that holds such folders,
    /// also as `org/name`.
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// The file to write.
    #[arg(long, value_name = "FILE", default_value = "grid.yaml")]
    to: PathBuf,
    /// A text to calibrate on and to score, .txt, .jsonl, .jsonl.gz or .parquet; of several the first is calibrated on.
    /// Without one, the invented texts and tasks that come with the program are taken.
    #[arg(long = "corpus", value_name = "FILE")]
    corpora: Vec<PathBuf>,
    /// Write over a file that is there, unless it is one that is read.
    #[arg(long)]
    force: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let target = &arguments.to;
    let inputs = arguments.corpora.iter().map(|file| Input::new("a text", file)).collect();
    let mut output = OutputFile { path: target, inputs, force: arguments.force, is_ours: |_| false };
    output.check()?;
    let experiments = if arguments.corpora.is_empty() { home::own_experiments(None) } else { home::experiments(None) };
    let embedded = experiments.ok().and_then(|folder| Some(folder.parent()?.join("data/tiny")));
    let starter = Starter::of(&arguments.folder, &arguments.corpora, embedded.as_deref(), target)?;
    output.inputs.extend(starter.inputs());
    output.write(starter.yaml(target)?.as_bytes())?;
    let mut left_out = Vec::new();
    for (folder, error) in starter.left_out() {
        note!("left out: {}: {}", folder.display(), error.one_line());
        left_out.push(Refused::new(shown(folder), error));
    }
    let begun = Begun { file: shown(target), models: starter.models().map(str::to_owned).collect(), left_out };
    answer::show(begun, Answer::Init, |of| println!("{}: a grid of {}", of.file, of.models.join(", ")))?;
    note!("`ghostlab plan {0}` tells what it would do and cost, `ghostlab run {0}` does it", target.display());
    Ok(ExitCode::SUCCESS)
}
