//! `ghostlab train-tiny ARCHITECTURE FOLDER`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::stop;
use crate::error::{Error, Result, nearest};
use crate::model::config::LAYOUTS;
use crate::train::recipe::Recipe;
use crate::train::run::{Habits, train};
use crate::train::world;

#[derive(Args)]
pub(super) struct Arguments {
    /// llama, qwen3 or olmo2.
    architecture: String,
    /// Where the backbone is put, with its manifest; a run that was stopped goes on from the checkpoint there.
    folder: PathBuf,
    /// Tokens to train on before the lessons, each epoch counted again; the lessons are shortened alike.
    #[arg(long)]
    tokens: Option<usize>,
    /// Of the first weights and of the order of the text.
    #[arg(long)]
    seed: Option<u64>,
}

/// The seed of the world that everybody shares.
const WORLD: u64 = 0;

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let names = LAYOUTS.map(|layout| layout.model_type);
    let layout = LAYOUTS.iter().find(|layout| layout.model_type == arguments.architecture).ok_or_else(|| {
        let error = Error::bad_input(format!("unknown architecture `{}`", arguments.architecture))
            .expected(format!("one of {}", names.join(", ")))
            .found(format!("`{}`", arguments.architecture));
        match nearest(&arguments.architecture, names) {
            Some(name) => error.hint(format!("did you mean `{name}`?")),
            None => error,
        }
    })?;
    let mut recipe = Recipe::tiny(layout);
    if let Some(tokens) = arguments.tokens {
        recipe.lessons.tokens = (recipe.lessons.tokens as f64 * tokens as f64 / recipe.tokens as f64) as usize;
        recipe.tokens = tokens;
    }
    recipe.seed = arguments.seed.unwrap_or(recipe.seed);
    let habits = Habits { stop: stop::on_ctrl_c()?, ..Habits::default() };
    let trained = train(&recipe, &world::registers(WORLD), &arguments.folder, &habits, &mut |line| println!("{line}"))?;
    match trained {
        Some(_) => Ok(ExitCode::SUCCESS),
        None => Err(Error::interrupted("stopped before the training was finished")
            .hint("nothing is lost: the same command goes on from here")),
    }
}
