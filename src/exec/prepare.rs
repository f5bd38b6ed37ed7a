//! Preflight: everything that can be wrong with any backbone or corpus is found before the first model runs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::event::{Event, Reporter};
use super::tasks::{PreparedTask, TaskData};
use crate::corpus::{self, Tokenizer, Windows};
use crate::error::{Error, Result};
use crate::files::sha256;
use crate::grid::{Grid, Method};
use crate::model::Config;
use crate::model::weights::Weights;
use crate::recovery;

/// A backbone with all the token windows that the grid asks of it.
pub(super) struct Prepared<'a> {
    pub(super) name: String,
    pub(super) folder: PathBuf,
    pub(super) config: Config,
    /// SHA-256 over the hashes of its config and weight files: what it is, whatever it is called.
    pub(super) content: String,
    /// In the order of the grid's calibrations.
    pub(super) calibrations: Vec<Windows>,
    /// In the order of the grid's perplexities.
    pub(super) texts: Vec<Windows>,
    /// In the order of the grid's tasks.
    pub(super) tasks: Vec<PreparedTask<'a>>,
}

/// Reads and tokenises all corpora and tasks for all backbones.
pub(super) fn prepare<'a>(
    grid: &Grid,
    inputs: &BTreeMap<String, String>,
    tasks: &'a TaskData<'_>,
    reporter: &dyn Reporter,
) -> Result<Vec<Prepared<'a>>> {
    let mut rows = BTreeMap::new();
    for (name, corpus) in &grid.corpora {
        rows.insert(name.as_str(), corpus::read_rows(&corpus.path, corpus.column.as_deref())?);
    }
    grid.backbone.iter().map(|name| prepare_backbone(grid, name, &rows, inputs, tasks, reporter)).collect()
}

fn prepare_backbone<'a>(
    grid: &Grid,
    name: &str,
    rows: &BTreeMap<&str, Vec<String>>,
    inputs: &BTreeMap<String, String>,
    tasks: &'a TaskData<'_>,
    reporter: &dyn Reporter,
) -> Result<Prepared<'a>> {
    let folder = grid.backbones[name].path.clone();
    let config = Config::read(&folder)?;
    for note in &config.notes {
        reporter.event(Event::Note(format!("backbone {name}: {note}")));
    }
    // The header of each weight file is read and checked here; the weights themselves when the backbone's turn comes.
    Weights::open(&folder)?;
    let used = |method: &&Method| {
        grid.cells.iter().any(|cell| cell.backbone == name && cell.recovery.as_ref() == Some(*method))
    };
    for method in grid.recovery.iter().filter(used) {
        recovery::build(&method.name, &method.options)?
            .check(&config)
            .map_err(|error| error.at(format!("backbone `{name}`, recovery `{method}`")))?;
    }
    let tokenizer = Tokenizer::load(folder.join("tokenizer.json"))?;
    if tokenizer.vocab_size() > config.vocab {
        return Err(Error::bad_input("the tokenizer's vocabulary exceeds the embedding")
            .at(tokenizer.path().display().to_string())
            .expected(format!("token ids below {}, the vocab_size of config.json", config.vocab))
            .found(format!("ids up to {}", tokenizer.vocab_size() - 1))
            .hint("tokenizer.json is of another model"));
    }
    let cut = |corpus: &str, length: usize, calibration: Option<(usize, u64)>| {
        let entry = &grid.corpora[corpus];
        let (rule, rows) = (entry.rule.parse()?, &rows[corpus]);
        if config.max_positions.is_some_and(|most| length > most) {
            reporter.event(Event::Note(format!(
                "backbone {name}: windows of {length} tokens on `{corpus}` exceed its training context of {} tokens",
                config.max_positions.unwrap_or_default()
            )));
        }
        match calibration {
            Some((sequences, seed)) => corpus::calibration(rule, rows, &tokenizer, sequences, length, seed),
            None => corpus::evaluation(rule, rows, &tokenizer, length, entry.limit),
        }
        .map_err(|error| error.at(format!("corpus `{corpus}` ({})", entry.path.display())))
    };
    let calibrations = grid
        .calibration
        .iter()
        .map(|c| cut(&c.corpus, c.length, Some((c.sequences, c.seed))))
        .collect::<Result<_>>()?;
    let texts = grid.evaluate.perplexity.iter().map(|p| cut(&p.corpus, p.length, None)).collect::<Result<_>>()?;
    let files = [vec![folder.join("config.json")], Weights::files(&folder)?].concat();
    let hashes = files.iter().filter_map(|file| inputs.get(&file.display().to_string()).map(String::as_str));
    let content = sha256::of_bytes(hashes.collect::<String>());
    let tasks = tasks.requests(grid, &folder, &tokenizer)?;
    Ok(Prepared { name: name.to_string(), folder, config, content, calibrations, texts, tasks })
}
