//! Tokenizes texts and tasks, and reads their tokens.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rayon::prelude::*;

use super::request_tokens::{self, TokensTarget};
use super::{Prompts, TaskTokens, Text, read_windows, store_windows};
use crate::corpus::{self, Shards, Tokenizer, WindowRule, Windows};
use crate::error::{Error, Result};
use crate::files::limit::TextLimit;
use crate::files::parts;
use crate::grid::{Calibration, EvalTask};
use crate::machine;
use crate::pipeline::env::backbone::{BackbonePlan, EvalTarget};
use crate::pipeline::env::context::RunContext;
use crate::pipeline::env::coordination;
use crate::pipeline::env::event::{Event, Reporter};
use crate::pipeline::env::inputs::GridInputs;
use crate::quantity::pluralize;
use crate::sandbox;
use ghostlab_store::{Key, Lookup, Store, StoredObject};

/// Key of missing tokens, and the text or task that they come from.
type WantedTokens<'a> = (&'a Arc<Key>, TokensSource<'a>);

#[derive(Clone, Copy)]
enum TokensSource<'a> {
    Calibration(&'a Calibration),
    Evaluation(&'a EvalTarget),
}

/// Tokenizes the texts and tasks of all backbones whose tokens are missing or damaged.
///
/// # Errors
/// Fails if a corpus or task cannot be tokenized, or if `stop` is set.
pub(crate) fn tokenize_missing(
    grid_inputs: GridInputs<'_>,
    backbones: &[BackbonePlan],
    store: &Store,
    reporter: &dyn Reporter,
    stop: &AtomicBool,
) -> Result<()> {
    let find_all_missing = || -> Vec<(&BackbonePlan, Vec<WantedTokens<'_>>)> {
        let all = backbones.iter().map(|backbone| (backbone, find_missing(backbone, store, reporter)));
        all.filter(|(_, wanted)| !wanted.is_empty()).collect()
    };
    if find_all_missing().is_empty() {
        return Ok(());
    }
    // Use a single lease for all texts. With one lease per text, a thread could deadlock with itself.
    let _lease = coordination::lease(store, "tokenising", "tokenizing", reporter, stop)?;
    // Another process may have computed the tokens in the meantime.
    let missing = find_all_missing();
    if missing.is_empty() {
        return Ok(());
    }
    let each = missing.iter().flat_map(|(backbone, wanted)| wanted.iter().map(|(_, source)| (*backbone, *source)));
    let sources = Sources::read(grid_inputs, each)?;
    let wanted = missing.iter().flat_map(|(_, wanted)| wanted);
    for text in sources.single_row_notes(grid_inputs, wanted)? {
        reporter.event(Event::Note { text });
    }
    for text in sources.unlabeled_notes() {
        reporter.event(Event::Note { text });
    }
    let count: usize = missing.iter().map(|(_, wanted)| wanted.len()).sum();
    reporter.event(Event::Note { text: format!("tokenizing {}", pluralize(count, "input")) });
    for (backbone, wanted) in missing {
        let tokenizer = load_tokenizer(grid_inputs, backbone)?;
        wanted.par_iter().try_for_each(|&(key, source)| {
            coordination::check_stop(stop)?;
            let target = TokensTarget { grid_inputs, backbone, tokenizer: &tokenizer, store, key };
            if let Some(text) = tokenize(target, source, &sources)? {
                reporter.event(Event::Note { text });
            }
            Ok::<_, Error>(())
        })?;
    }
    Ok(())
}

/// Returns the tokens of a text or task, or of the sample that is scored. Missing or damaged tokens are computed again.
pub(crate) fn load_tokens(
    run: &RunContext<'_>,
    backbone: &BackbonePlan,
    target: &EvalTarget,
    key: &Key,
) -> Result<Text> {
    let full_tokens = load_full_tokens(run, backbone, target, key)?;
    match target.draw() {
        None => Ok(full_tokens),
        Some(draw) => full_tokens.subset(draw),
    }
}

/// Returns the tokens of a complete text or task, even if only a sample is scored.
pub(crate) fn load_full_tokens(
    run: &RunContext<'_>,
    backbone: &BackbonePlan,
    target: &EvalTarget,
    key: &Key,
) -> Result<Text> {
    load_or_tokenize(run, backbone, key, |artifact: &StoredObject| match target {
        EvalTarget::Windows(_) => read_windows(artifact).map(Text::Windows),
        EvalTarget::Task(task) if run.grid.task(task).is_generative() => {
            let tokenizer = load_tokenizer(GridInputs { grid: run.grid, inputs: run.inputs }, backbone)?;
            Prompts::read(artifact, tokenizer, run.settings.cache_bytes())
                .map(|prompts| Text::Generation(Box::new(prompts)))
        }
        EvalTarget::Task(_) => TaskTokens::read(artifact).map(Text::Task),
    })
}

pub(crate) fn load_windows(run: &RunContext<'_>, backbone: &BackbonePlan, key: &Key) -> Result<Windows> {
    load_or_tokenize(run, backbone, key, read_windows)
}

fn load_or_tokenize<T>(
    run: &RunContext<'_>,
    backbone: &BackbonePlan,
    key: &Key,
    read: impl Fn(&StoredObject) -> Result<T>,
) -> Result<T> {
    if let Some(artifact) = run.get(key) {
        return read(&artifact);
    }
    tokenize_again(GridInputs { grid: run.grid, inputs: run.inputs }, backbone, key, run.store)?;
    match run.store.get(key) {
        Lookup::Intact(artifact) => read(&artifact),
        _ => Err(Error::job("tokens are missing from the store").at(key.short().to_string())),
    }
}

/// Tokenizes a text or task again, because its stored tokens are missing or damaged.
fn tokenize_again(grid_inputs: GridInputs<'_>, backbone: &BackbonePlan, key: &Key, store: &Store) -> Result<()> {
    let wanted: Vec<WantedTokens<'_>> =
        wanted_tokens(backbone).into_iter().filter(|(wanted, _)| ***wanted == *key).take(1).collect();
    let sources = Sources::read(grid_inputs, wanted.iter().map(|(_, source)| (backbone, *source)))?;
    let tokenizer = load_tokenizer(grid_inputs, backbone)?;
    wanted.iter().try_for_each(|&(key, source)| {
        let target = TokensTarget { grid_inputs, backbone, tokenizer: &tokenizer, store, key };
        tokenize(target, source, &sources).map(drop)
    })
}

fn wanted_tokens(backbone: &BackbonePlan) -> Vec<WantedTokens<'_>> {
    let calibrations = backbone.calibrations.iter().map(|c| (&c.tokens, TokensSource::Calibration(&c.calibration)));
    let evaluations = backbone.evaluations.iter().map(|e| (&e.tokens, TokensSource::Evaluation(&e.target)));
    calibrations.chain(evaluations).collect()
}

fn find_missing<'a>(backbone: &'a BackbonePlan, store: &Store, reporter: &dyn Reporter) -> Vec<WantedTokens<'a>> {
    let mut missing: Vec<WantedTokens<'_>> = Vec::new();
    for (key, source) in wanted_tokens(backbone) {
        if !missing.iter().any(|(known, _)| *known == key) && !is_intact(key, store, reporter) {
            missing.push((key, source));
        }
    }
    missing
}

/// Returns whether the tokens are stored and intact, including their answer key. Reports damage.
fn is_intact(key: &Key, store: &Store, reporter: &dyn Reporter) -> bool {
    match store.get(key) {
        Lookup::Absent => false,
        Lookup::Damaged(error) => {
            reporter.event(Event::Note { text: format!("tokens: {}; recomputing", error.one_line()) });
            false
        }
        Lookup::Intact(_) => true,
    }
}

fn load_tokenizer(grid_inputs: GridInputs<'_>, backbone: &BackbonePlan) -> Result<Tokenizer> {
    let path = parts::tokenizer_path(&backbone.folder);
    let files_beside = corpus::files_beside(&path);
    let files: Vec<&Path> = [path.as_path()].into_iter().chain(files_beside.iter().map(PathBuf::as_path)).collect();
    let tokenizer = grid_inputs.inputs.read_unchanged(&files, || Tokenizer::load(&path))?;
    if tokenizer.vocab_size() > backbone.config.vocab {
        return Err(Error::bad_input("the tokenizer's vocabulary exceeds the embedding")
            .at(tokenizer.path().display().to_string())
            .expected(format!("token ids below {}, the vocab_size of config.json", backbone.config.vocab))
            .found(format!("ids up to {}", tokenizer.vocab_size() - 1))
            .hint("use the tokenizer.json of this model"));
    }
    Ok(tokenizer.limit_ids(backbone.config.vocab))
}

/// Corpora and tasks to tokenize. They are read once for all backbones.
struct Sources {
    rows: BTreeMap<String, Vec<String>>,
    /// Tasks with their documents, by [`source_name`].
    tasks: BTreeMap<String, ghostlab_definitions::Task>,
}

impl Sources {
    fn read<'a>(
        grid_inputs: GridInputs<'_>,
        wanted: impl Iterator<Item = (&'a BackbonePlan, TokensSource<'a>)>,
    ) -> Result<Self> {
        let mut sources = Self { rows: BTreeMap::new(), tasks: BTreeMap::new() };
        for (backbone, source) in wanted {
            let corpus = match source {
                TokensSource::Calibration(calibration) => &calibration.corpus,
                TokensSource::Evaluation(EvalTarget::Windows(text)) => &text.corpus,
                TokensSource::Evaluation(EvalTarget::Task(task)) => {
                    let entry = sources.tasks.entry(source_name(task));
                    // Probe the task in the sandbox. A task with a chat template must be probed once per backbone, and
                    // any other task only once.
                    if task.how.chat.is_some() || matches!(entry, Entry::Vacant(_)) {
                        sandbox::check_probe(grid_inputs.grid.task(task).probe(&task.how, &backbone.folder)?)?;
                    }
                    if let Entry::Vacant(free) = entry {
                        free.insert(request_tokens::load_task(grid_inputs, task)?);
                    }
                    continue;
                }
            };
            let entry = &grid_inputs.grid.corpora[corpus];
            // Streamed texts are read during tokenization, and only as far as needed.
            if entry.stream.is_some() {
                continue;
            }
            if let Entry::Vacant(free) = sources.rows.entry(corpus.clone()) {
                // Reject texts that do not fit in memory. Otherwise, the system might kill the process.
                let limit = TextLimit::current().at_most(machine::free_memory());
                free.insert(grid_inputs.inputs.read_unchanged(&[&entry.path], || {
                    corpus::read_rows_within(&entry.path, entry.column.as_deref(), limit)
                })?);
            }
        }
        Ok(sources)
    }

    /// Returns notes about tasks with documents that have no correct answer.
    fn unlabeled_notes(&self) -> Vec<String> {
        self.tasks.iter().filter_map(|(name, task)| Some(format!("task {name}: {}", task.unlabeled()?))).collect()
    }

    /// Returns notes about evaluated texts that have only one row although their rule joins rows. Published
    /// perplexities on WikiText-2 are computed on joined rows.
    fn single_row_notes<'a>(
        &self,
        grid_inputs: GridInputs<'_>,
        wanted: impl Iterator<Item = &'a WantedTokens<'a>>,
    ) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        for (_, source) in wanted {
            let TokensSource::Evaluation(EvalTarget::Windows(text)) = source else { continue };
            let entry = &grid_inputs.grid.corpora[&text.corpus];
            let rule: WindowRule = entry.rule.parse()?;
            let is_single = self.rows.get(&text.corpus).is_some_and(|rows| rows.len() == 1);
            let note = format!(
                "corpus `{}` has a single row, so the rule `{}` joins nothing; to reproduce published perplexities on \
                 WikiText-2, write each row as a line of a .jsonl file: {{\"text\": \"…\"}}",
                text.corpus,
                rule.name()
            );
            if is_single && rule.joins_rows() && !notes.contains(&note) {
                notes.push(note);
            }
        }
        Ok(notes)
    }
}

/// Returns a name that distinguishes a built-in task from a user-defined task that has the same name.
fn source_name(task: &EvalTask) -> String {
    format!("{task}{}", if task.defined { ", by its definition" } else { "" })
}

/// Tokenizes one text or task. Returns a note for the user, if any.
fn tokenize(target: TokensTarget<'_>, source: TokensSource<'_>, sources: &Sources) -> Result<Option<String>> {
    let TokensTarget { grid_inputs, tokenizer, store, key, .. } = target;
    let started = Instant::now();
    let windows = |corpus: &str, length: usize, calibration: Option<(usize, u64)>| {
        let entry = &grid_inputs.grid.corpora[corpus];
        let windows = || {
            let Some(stream) = &entry.stream else {
                let rule = entry.rule.parse()?;
                let rows = &sources.rows[corpus];
                return match calibration {
                    Some((sequences, seed)) => {
                        corpus::calibration_windows(rule, rows, tokenizer, sequences, length, seed)
                    }
                    None => corpus::evaluation_windows(rule, rows, tokenizer, length, entry.limit),
                };
            };
            let open = |shard: usize| corpus::open_rows(&entry.shard(shard)?, entry.column.as_deref());
            let shards = Shards { count: stream.count, order: stream.shards, open: &open };
            let files = entry.files();
            let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
            grid_inputs.inputs.read_unchanged(&files, || match calibration {
                Some((sequences, seed)) => {
                    corpus::streamed_calibration_windows(&shards, tokenizer, sequences, length, seed)
                }
                None => corpus::streamed_evaluation_windows(&shards, tokenizer, length, entry.limit),
            })
        };
        windows().map_err(|error| error.at(format!("corpus `{corpus}` ({})", entry.path.display())))
    };
    let windows = match source {
        TokensSource::Calibration(c) => windows(&c.corpus, c.length, Some((c.sequences, c.seed)))?,
        TokensSource::Evaluation(EvalTarget::Windows(text)) => windows(&text.corpus, text.length, None)?,
        TokensSource::Evaluation(EvalTarget::Task(eval_task)) => {
            let task = &sources.tasks[&source_name(eval_task)];
            return request_tokens::store_task(target, eval_task, task, || seconds_since(&started)).map(|()| None);
        }
    };
    store_windows(store, key, &windows, seconds_since(&started))?;
    Ok(match source {
        TokensSource::Calibration(calibration)
            if grid_inputs.grid.corpora[&calibration.corpus].rule.parse::<WindowRule>()?.joins_rows() =>
        {
            overlap_note(calibration, &windows)
        }
        TokensSource::Calibration(_) | TokensSource::Evaluation(_) => None,
    })
}

fn seconds_since(started: &Instant) -> f64 {
    started.elapsed().as_secs_f64()
}

/// Returns a note if a calibration draws at least twice as many tokens as its text contains.
fn overlap_note(calibration: &Calibration, windows: &Windows) -> Option<String> {
    let Calibration { corpus, sequences, length, .. } = calibration;
    let drawn = sequences.saturating_mul(*length);
    let repeats = drawn.checked_div(windows.corpus_tokens)?;
    (repeats > 1).then(|| {
        format!(
            "calibration on corpus `{corpus}` draws {drawn} tokens from {} tokens of text, each about {repeats} times",
            windows.corpus_tokens
        )
    })
}
