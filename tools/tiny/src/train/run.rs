//! Training run from text to a backbone's folder, which resumes after interruptions.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::batch::{Shards, mean_loss, scores};
use super::checkpoint::{StoredTensor, TrainState};
use super::corpus::{Order, Register, Stream};
use super::export::{self, Manifest};
use super::network::Network;
use super::optimizer::Moments;
use super::recipe::{Answers, MARKER, Recipe};
use super::tokenizer::Tokens;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::atomic::{ensure_writable, write_whole};
use ghostlab_core::files::sha256;

/// Reporting and saving options, which do not affect the result.
#[derive(Debug, Clone)]
pub struct Habits {
    pub report_every: usize,
    pub validate_every: usize,
    /// Windows per register in these validations.
    pub validate_windows: usize,
    /// Windows per register in the final validation.
    pub final_windows: usize,
    pub save_every: Duration,
    /// Step before which the run saves a checkpoint and stops.
    pub stop_before: Option<usize>,
    /// Flag that makes the run save a checkpoint and stop before the next step.
    pub stop: Arc<AtomicBool>,
    /// Program recorded in the manifest: name, version, commit.
    pub program: String,
}

impl Default for Habits {
    fn default() -> Self {
        Self {
            report_every: 25,
            validate_every: 500,
            validate_windows: 16,
            final_windows: 256,
            save_every: Duration::from_secs(120),
            stop_before: None,
            stop: Arc::default(),
            program: String::new(),
        }
    }
}

const CHECKPOINT: &str = "checkpoint.safetensors";

/// State of a training run.
struct Run<'a> {
    recipe: &'a Recipe,
    habits: &'a Habits,
    network: Network,
    streams: &'a [Stream],
    answers: Answers,
    shards: Shards,
    state: TrainState,
    checkpoint: PathBuf,
}

/// Trains a backbone into `folder`, passing log lines to `say`. Returns `None` if stopped before the end.
///
/// # Errors
/// Fails if the recipe is invalid, the text is too short, the checkpoint belongs to another run, the training diverges,
/// or the disk is full.
pub fn train(
    recipe: &Recipe,
    registers: &[Register],
    folder: &Path,
    habits: &Habits,
    say: &mut dyn FnMut(&str),
) -> Result<Option<Manifest>> {
    recipe.check()?;
    ensure_writable(folder, &[export::MANIFEST])?;
    let (tokens, streams) = prepare(recipe, registers, folder, say)?;
    let corpus: Vec<_> = streams.iter().map(|stream| stream.origin.clone()).collect();
    let fingerprint = fingerprint(recipe, &corpus, &tokens)?;
    if let Some(manifest) = Manifest::read(folder)? {
        if manifest.fingerprint == fingerprint {
            say("trained already: the manifest is of this recipe and corpus");
            return Ok(Some(manifest));
        }
        return Err(Error::bad_input("the folder holds a backbone of another run")
            .at(folder.display())
            .expected(format!("recipe and corpus {fingerprint}"))
            .found(manifest.fingerprint)
            .hint("choose another folder"));
    }
    let network = Network::new(recipe.config(tokens.end)?, recipe.chunk);
    let checkpoint = folder.join(CHECKPOINT);
    let total = network.parameters.total;
    let state = match TrainState::load(&checkpoint, &fingerprint)? {
        Some(state) => {
            say(&format!("goes on at step {}", state.progress.step));
            state
        }
        None => {
            let mut state = TrainState { weights: network.parameters.start(recipe.seed), ..TrainState::default() };
            state.moments = Moments { first: vec![0.0; total], second: vec![0.0; total] };
            state.progress.fingerprint = fingerprint;
            state
        }
    };
    if state.weights.len() != total || state.moments.first.len() != total || state.moments.second.len() != total {
        return Err(Error::damaged("a checkpoint is of another size")
            .at(checkpoint.display())
            .expected(format!("{total} weights"))
            .found(state.weights.len()));
    }
    let shards = Shards::new(recipe.shards, total);
    let answers = Answers::new(tokens.ids(MARKER)?, recipe.lessons.weight);
    let mut run = Run { recipe, habits, network, streams: &streams, answers, shards, state, checkpoint };
    if !run.steps(say)? {
        return Ok(None);
    }
    run.finish(folder, &tokens, corpus, say).map(Some)
}

/// Trains the tokenizer once, or reads it from the folder, and tokenizes the text.
fn prepare(
    recipe: &Recipe,
    registers: &[Register],
    folder: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<(Tokens, Vec<Stream>)> {
    let started = Instant::now();
    let texts = || registers.iter().flat_map(|register| &register.train).map(String::as_str);
    let tokens = Tokens::learn(texts(), recipe.shape.vocab, recipe.shape.begins)?;
    write_whole(&folder.join(export::TOKENIZER), tokens.json()?.as_bytes())?;
    let streams = registers.iter().map(|register| Stream::of(register, &tokens)).collect::<Result<Vec<_>>>()?;
    for (register, stream) in registers.iter().zip(&streams) {
        let words: usize = register.train.iter().map(|text| text.split_whitespace().count()).sum();
        say(&format!(
            "{}: {} documents, {words} words, {} tokens; validation {} tokens",
            stream.name,
            register.train.len(),
            stream.train.len(),
            stream.validation.len()
        ));
    }
    say(&format!("text ready after {:.1} s", started.elapsed().as_secs_f64()));
    Ok((tokens, streams))
}

fn fingerprint(recipe: &Recipe, corpus: &[super::corpus::Origin], tokens: &Tokens) -> Result<String> {
    let corpus =
        serde_json::to_string(corpus).map_err(|error| Error::job("the corpus cannot be named").found(error))?;
    recipe.fingerprint(&format!("{corpus}\n{}", sha256::of_bytes(tokens.json()?)))
}

impl Run<'_> {
    /// Runs the remaining steps. Returns whether the end was reached.
    fn steps(&mut self, say: &mut dyn FnMut(&str)) -> Result<bool> {
        let recipe = self.recipe;
        let steps = self.recipe.all_steps();
        let streams = self.streams.iter().map(|stream| stream.train.as_slice()).collect();
        let mut order = Order::new(streams, recipe.chunk, recipe.seed)?;
        let before = self.state.progress.seconds;
        let started = Instant::now();
        let mut saved = Instant::now();
        let first = self.state.progress.step;
        let mut pending = Pending::begin();
        for step in first..steps {
            let stop = self.habits.stop.load(Relaxed) || self.habits.stop_before.is_some_and(|stop| step >= stop);
            if stop {
                self.state.save(&self.checkpoint)?;
                say(&format!("stopped before step {step}"));
                return Ok(false);
            }
            let chunks: Vec<&[u32]> = (0..recipe.batch).map(|i| order.at(step * recipe.batch + i)).collect();
            let counts = |chunk: &[u32]| match step < recipe.steps() {
                true => vec![1.0; chunk.len() - 1],
                false => self.answers.weights(chunk),
            };
            let loss = self.shards.run(&self.network, &self.state.weights, &chunks, recipe.span_at(step), &counts);
            if !loss.is_finite() {
                return Err(Error::job("the training diverged")
                    .at(format!("step {step}"))
                    .expected("a finite loss")
                    .found(loss)
                    .hint("lower the learning rate or lengthen the warm-up"));
            }
            let state = &mut self.state;
            let norm = recipe.optimizer.update(
                step,
                recipe.rate_at(step),
                &self.network.parameters,
                &mut state.weights,
                &mut state.moments,
                &mut self.shards.gradients,
            );
            state.progress.step = step + 1;
            state.progress.seconds = before + started.elapsed().as_secs_f64();
            pending.add(loss);
            let done = step + 1;
            let last = step + 1 == steps;
            if done.is_multiple_of(self.habits.report_every) || last {
                self.report(&mut pending, norm, say);
            }
            // Save only after a log line, so that pending losses are never lost.
            if pending.losses == 0 && !last && saved.elapsed() >= self.habits.save_every {
                self.state.save(&self.checkpoint)?;
                saved = Instant::now();
            }
        }
        Ok(true)
    }

    fn report(&mut self, pending: &mut Pending, norm: f64, say: &mut dyn FnMut(&str)) {
        let recipe = self.recipe;
        let steps = self.recipe.all_steps();
        let step = self.state.progress.step;
        let seconds = pending.started.elapsed().as_secs_f64().max(1e-9);
        let speed = (pending.losses * recipe.batch * recipe.chunk) as f64 / seconds;
        let left = ((steps - step) as f64 * seconds / pending.losses.max(1) as f64) as u64;
        let train_loss = pending.sum / pending.losses.max(1) as f64;
        let mut line = format!(
            "step {step}/{steps}  loss {train_loss:.4}  rate {:.2e}  norm {norm:.2}  {speed:.0} tokens/s  left {}:{:02}",
            recipe.rate_at(step - 1),
            left / 60,
            left % 60
        );
        let due = step.is_multiple_of(self.habits.validate_every) || step == steps;
        let validation_loss = if due { self.validate(&mut line) } else { None };
        self.state.progress.history.push(StoredTensor { step, train_loss, validation_loss });
        say(&line);
        *pending = Pending::begin();
    }

    fn validate(&mut self, line: &mut String) -> Option<f64> {
        let weights = &self.state.weights;
        let windows = self.habits.validate_windows;
        let scores = scores(&self.network, weights, self.streams, self.recipe.chunk, windows, &mut self.shards);
        for score in &scores {
            line.push_str(&format!("  {} {:.3}", score.register, score.loss));
        }
        mean_loss(&scores)
    }

    fn finish(
        &mut self,
        folder: &Path,
        tokens: &Tokens,
        corpus: Vec<super::corpus::Origin>,
        say: &mut dyn FnMut(&str),
    ) -> Result<Manifest> {
        let recipe = self.recipe;
        let parameters = &self.network.parameters;
        let stored = export::rounded(parameters, &self.state.weights)?;
        let windows = self.habits.final_windows;
        let validation = scores(&self.network, &stored, self.streams, recipe.chunk, windows, &mut self.shards);
        for score in &validation {
            say(&format!(
                "{}: perplexity {:.2} on {} tokens, unigram {:.1}",
                score.register, score.perplexity, score.tokens, score.unigram_perplexity
            ));
        }
        let files = export::write(folder, recipe, tokens, parameters, &stored)?;
        let progress = &self.state.progress;
        let trained = recipe.all_steps() * recipe.batch * recipe.chunk;
        let epoch: usize = corpus.iter().map(|origin| origin.train_tokens).sum();
        let manifest = Manifest {
            fingerprint: progress.fingerprint.clone(),
            recipe: recipe.clone(),
            parameters: parameters.total,
            steps: recipe.all_steps(),
            tokens: trained,
            epochs: trained as f64 / epoch.max(1) as f64,
            seconds: progress.seconds,
            tokens_per_second: trained as f64 / progress.seconds.max(1e-9),
            threads: rayon::current_num_threads(),
            program: self.habits.program.clone(),
            corpus,
            train_loss: progress.history.last().map_or(f64::NAN, |entry| entry.train_loss),
            validation,
            files,
            history: progress.history.clone(),
        };
        manifest.write(folder)?;
        if self.checkpoint.exists() {
            std::fs::remove_file(&self.checkpoint).map_err(|error| Error::io("delete", &self.checkpoint, &error))?;
        }
        Ok(manifest)
    }
}

/// Losses since the last log line.
struct Pending {
    sum: f64,
    losses: usize,
    started: Instant,
}

impl Pending {
    fn begin() -> Self {
        Self { sum: 0.0, losses: 0, started: Instant::now() }
    }

    fn add(&mut self, loss: f64) {
        self.sum += loss;
        self.losses += 1;
    }
}
