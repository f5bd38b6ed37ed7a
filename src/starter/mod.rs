//! A grid to begin with, of the models that lie in a folder. Floor 4.

mod find;
mod text;

use std::path::{Path, PathBuf};

use find::{Corpus, Model};

use crate::corpus::{Rule, read_rows};
use crate::error::{Error, Result};
use crate::files::output::Input;
use crate::grid::{self, Grid};

/// Tokens of a window where texts and models allow it: the reference code's.
const LENGTH: usize = 2048;
/// The same of the texts that come with the program: they are short, and so is what their models were trained on.
const EMBEDDED_LENGTH: usize = 256;
/// Windows shorter than these tell nothing.
const SHORTEST: usize = 8;
/// Calibration sequences of the paper.
const SEQUENCES: usize = 128;
/// As much of a text is tokenised to see how long its windows may be.
const LOOKED_AT: usize = 1 << 20;

/// What a grid to begin with is made of.
#[derive(Debug)]
pub struct Starter {
    /// The folder that was looked through.
    folder: PathBuf,
    models: Vec<Model>,
    /// Folders of models that cannot be used, each with the reason.
    left_out: Vec<(PathBuf, Error)>,
    corpora: Vec<Corpus>,
    /// The tasks that come with the program, where their texts are used: name and file.
    tasks: Vec<(String, PathBuf)>,
    /// Tokens of a window, and calibration sequences.
    length: usize,
    sequences: usize,
}

impl Starter {
    /// Looks through a folder: it is a model's, or holds folders of models, or folders of such. `texts` are files to
    /// calibrate on and to score; without any, those in `embedded` are taken. The grid is to stand at `target`.
    ///
    /// # Errors
    /// No model that can be used, with what is wrong with each; no text, or one that is too short.
    pub fn of(folder: &Path, texts: &[PathBuf], embedded: Option<&Path>, target: &Path) -> Result<Self> {
        let (models, left_out) = find::models(folder)?;
        let corpora = match texts {
            [] => find::embedded_texts(embedded)?,
            texts => find::own_texts(texts)?,
        };
        let most = if texts.is_empty() { EMBEDDED_LENGTH } else { LENGTH };
        let tokens = corpora.iter().map(|corpus| tokens_of(corpus, &models)).collect::<Result<Vec<_>>>()?;
        let (length, sequences) = windows(&corpora, &tokens, &models, most)?;
        let tasks = match (texts, embedded) {
            ([], Some(folder)) => find::embedded_tasks(folder, &grid::tasks()),
            _ => Vec::new(),
        };
        let folder = folder.to_owned();
        let mut starter = Self { folder, models: Vec::new(), left_out, corpora, tasks, length, sequences };
        for mut model in models {
            // What a grid of that model alone is refused for is known by trying.
            match Grid::of_text(&starter.text(std::slice::from_ref(&model), target)?, target) {
                Ok(grid) => {
                    model.depths = grid.depth;
                    starter.models.push(model);
                }
                Err(error) => starter.left_out.push((model.path, error)),
            }
        }
        if starter.models.is_empty() { Err(find::none(&starter.folder, &starter.left_out)) } else { Ok(starter) }
    }

    /// The grid's text, for a file at `target`.
    ///
    /// # Errors
    /// A template that does not fit, which is a fault of the program.
    pub fn yaml(&self, target: &Path) -> Result<String> {
        self.text(&self.models, target)
    }

    /// The models that are used, by name.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(|model| model.name.as_str())
    }

    /// What was read: the models' files and the texts. A grid may stand beside them.
    pub fn inputs(&self) -> Vec<Input> {
        let is_grid = |path: &Path| path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
        let listed =
            self.models.iter().flat_map(|model| std::fs::read_dir(&model.path).into_iter().flatten().flatten());
        let files = listed.map(|entry| entry.path()).filter(|path| path.is_file() && !is_grid(path));
        let texts = self.corpora.iter().map(|of| Input::new("a text", &of.path));
        let tasks = self.tasks.iter().map(|(name, file)| Input::new(format!("the task {name}"), file));
        files.map(|file| Input::new("a model's file", file)).chain(texts).chain(tasks).collect()
    }

    /// The folders that are left out, each with the reason.
    pub fn left_out(&self) -> &[(PathBuf, Error)] {
        &self.left_out
    }
}

/// How many tokens the beginning of a text has, by the tokenizer that makes the fewest of it.
fn tokens_of(corpus: &Corpus, models: &[Model]) -> Result<usize> {
    let mut text = read_rows(&corpus.path, None)?.join("\n\n");
    let end = (0..=LOOKED_AT.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.truncate(end);
    let counts = models.iter().map(|model| Ok(model.tokenizer.encode(&text)?.len()));
    Ok(counts.collect::<Result<Vec<usize>>>()?.into_iter().min().unwrap_or(0))
}

/// Windows of which each text has two and that fit into each model's context: their tokens, and how many to calibrate on.
fn windows(corpora: &[Corpus], tokens: &[usize], models: &[Model], most: usize) -> Result<(usize, usize)> {
    let Some((shortest, fewest)) = corpora.iter().zip(tokens).min_by_key(|(_, tokens)| **tokens) else {
        return Err(Error::missing("there is no text to calibrate on"));
    };
    let context = models.iter().filter_map(|model| model.context).min().unwrap_or(most);
    // A tenth of a text is kept from calibration.
    let room = (fewest * 9 / 20).min(context).min(most);
    if room < SHORTEST {
        return Err(Error::bad_input("a text is too short")
            .at(shortest.path.display().to_string())
            .expected(format!("{} tokens or more", SHORTEST * 20 / 9 + 1))
            .found(format!("{fewest}"))
            .hint("name a longer one with --corpus"));
    }
    let length = 1 << room.ilog2();
    Ok((length, (fewest / length).clamp(8, SEQUENCES)))
}

/// The rule by which the starter joins texts: any text has windows by it.
const RULE: Rule = Rule::Wikitext2;
