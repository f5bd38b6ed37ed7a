//! Starter grids for the models in a directory (layer 4 of the architecture).

mod find;
mod sizes;
mod split;

use std::path::{Component, Path, PathBuf};

use find::{Corpus, Model};
use minijinja::context;
use sizes::{DEPTHS, ScoredData, Sizes, last_items};
pub use split::{SplitText, WrittenParts};

use crate::corpus::{WindowRule, read_rows};
use crate::error::{Error, Result};
use crate::files;
use crate::files::output::Input;
use crate::grid::{self, Grid};
use crate::linalg::hadamard;
use crate::options::MethodDescription;
use crate::{criterion, recovery, template};

/// Default window length in tokens, as in the paper's reference code.
const MAX_LENGTH: usize = 2048;
/// Window length in tokens for the embedded texts, which are short, like the training texts of the bundled models.
const EMBEDDED_LENGTH: usize = 256;
/// Shortest useful window length in tokens.
const MIN_WINDOW_LENGTH: usize = 8;
/// Number of calibration sequences used in the paper.
const PAPER_SEQUENCES: usize = 128;
/// Number of bytes of a text that are tokenized to choose the window length.
const SAMPLE_BYTES: usize = 1 << 20;

/// Starter grid for the models found in a directory.
#[derive(Debug)]
pub struct Starter {
    folder: PathBuf,
    models: Vec<Model>,
    /// Directories whose models cannot be used, each with the reason.
    skipped_directories: Vec<(PathBuf, Error)>,
    corpora: Vec<Corpus>,
    /// Names and files of the bundled tasks. Empty if the user's texts are used.
    tasks: Vec<(String, PathBuf)>,
    sizes: Sizes,
    /// Whether sizes were reduced below those of the paper to shorten the run.
    is_reduced: bool,
    /// Estimated duration of a run in seconds.
    seconds: f64,
}

impl Starter {
    /// Creates a starter grid for the models in `folder`. The folder is a model or contains models up to two levels
    /// below.
    ///
    /// `texts` contains at least two files for calibration and scoring ([`SplitText`] splits a single file in two). If
    /// it is empty, the texts in `embedded` are used. The grid will be stored at `target`. Sizes are chosen so that a
    /// run takes at most `MAX_SECONDS` at `flop_per_second`, if possible.
    ///
    /// # Errors
    /// Fails if no model is usable, with the reason for each model. Also fails if a text is missing or too short.
    pub fn new(
        folder: &Path,
        texts: &[PathBuf],
        embedded: Option<&Path>,
        target: &Path,
        flop_per_second: f64,
    ) -> Result<Self> {
        let (models, skipped_directories) = find::find_models(folder)?;
        let corpora = match texts {
            [] => find::find_embedded_texts(embedded)?,
            texts => find::read_texts(texts)?,
        };
        let max_length = if texts.is_empty() { EMBEDDED_LENGTH } else { MAX_LENGTH };
        let token_counts =
            corpora.iter().map(|corpus| count_tokens(corpus, &models)).collect::<Result<Vec<TokenCount>>>()?;
        let (length, sequences) = choose_windows(&corpora, &token_counts, &models, max_length)?;
        let tasks = match (texts, embedded) {
            ([], Some(folder)) => find::find_embedded_tasks(folder, &grid::task_names()),
            _ => Vec::new(),
        };
        let folder = folder.to_owned();
        let sizes = Sizes::new(length, sequences);
        let mut starter = Self {
            folder,
            models: Vec::new(),
            skipped_directories,
            corpora,
            tasks,
            sizes,
            is_reduced: false,
            seconds: 0.0,
        };
        for mut model in models {
            // Skip a model if a grid with only this model is invalid.
            match Grid::from_text(&starter.render(std::slice::from_ref(&model), target)?, target) {
                Ok(grid) => {
                    model.depths = grid.depth.iter().map(|depth| depth.count).collect();
                    starter.models.push(model);
                }
                Err(error) => starter.skipped_directories.push((model.path, error)),
            }
        }
        if starter.models.is_empty() {
            return Err(find::no_model_error(&starter.folder, &starter.skipped_directories));
        }
        let scored = starter.corpora.iter().zip(&token_counts).filter(|(corpus, _)| !corpus.is_calibration);
        let scored_data = ScoredData {
            scored_tokens: scored.map(|(_, count)| count.tokens).collect(),
            tasks: starter.tasks.iter().filter(|(name, _)| SCORED_TASKS.contains(&name.as_str())).count(),
        };
        let reduced = sizes::shrink_to_budget(sizes, &starter.models, &scored_data, flop_per_second);
        starter.is_reduced = reduced != sizes;
        starter.seconds = sizes::estimate_seconds(reduced, &starter.models, &scored_data, flop_per_second);
        starter.sizes = reduced;
        Ok(starter)
    }

    /// Renders the grid for a file at `target`.
    pub fn yaml(&self, target: &Path) -> Result<String> {
        self.render(&self.models, target)
    }

    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(|model| model.name.as_str())
    }

    /// Returns the input files: the texts, and all files in model directories except grids.
    pub fn inputs(&self) -> Vec<Input> {
        let listed = self.models.iter().flat_map(|model| files::entries(&model.path).unwrap_or_default());
        let single = self.models.iter().map(|model| model.path.clone());
        let files = listed.chain(single).filter(|path| path.is_file() && !grid::is_yaml(path));
        let texts = self.corpora.iter().map(|corpus| Input::new("a text", &corpus.path));
        let tasks = self.tasks.iter().map(|(name, file)| Input::new(format!("the task {name}"), file));
        files.map(|file| Input::new("a model file", file)).chain(texts).chain(tasks).collect()
    }

    /// Returns the estimated duration of a run in seconds if it exceeds the limit even with the smallest sizes.
    pub fn seconds_over_limit(&self) -> Option<f64> {
        Some(self.seconds).filter(|seconds| *seconds > sizes::MAX_SECONDS)
    }

    pub fn skipped_directories(&self) -> &[(PathBuf, Error)] {
        &self.skipped_directories
    }
}

/// Token counts of a text with the tokenizer that produces the fewest tokens.
struct TokenCount {
    /// Number of tokens in the first [`SAMPLE_BYTES`] bytes.
    in_sample: usize,
    /// Number of tokens in the whole text, extrapolated.
    tokens: usize,
}

fn count_tokens(corpus: &Corpus, models: &[Model]) -> Result<TokenCount> {
    let mut text = read_rows(&corpus.path, None)?.join("\n\n");
    let bytes = text.len();
    let end = (0..=SAMPLE_BYTES.min(bytes)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.truncate(end);
    let counts = models.iter().map(|model| Ok(model.tokenizer.encode(&text)?.len()));
    let in_sample = counts.collect::<Result<Vec<usize>>>()?.into_iter().min().unwrap_or(0);
    Ok(TokenCount { in_sample, tokens: (in_sample as f64 * bytes as f64 / end.max(1) as f64) as usize })
}

/// Chooses the window length and the number of calibration windows. A window fits into the context of every model, and
/// every text yields at least two windows.
fn choose_windows(
    corpora: &[Corpus],
    token_counts: &[TokenCount],
    models: &[Model],
    max_length: usize,
) -> Result<(usize, usize)> {
    let tokens = token_counts.iter().map(|count| count.in_sample);
    let Some((shortest, fewest)) = corpora.iter().zip(tokens).min_by_key(|(_, tokens)| *tokens) else {
        return Err(Error::missing("no text for calibration"));
    };
    let context = models.iter().filter_map(|model| model.config.max_positions).min().unwrap_or(max_length);
    // Calibration skips a tenth of the text. The rest must contain two windows.
    let available = (fewest * 9 / 20).min(context).min(max_length);
    if available < MIN_WINDOW_LENGTH {
        return Err(Error::bad_input("the text is too short")
            .at(shortest.path.display().to_string())
            .expected(format!("at least {} tokens", MIN_WINDOW_LENGTH * 20 / 9 + 1))
            .found(format!("{fewest} tokens"))
            .hint("use a longer text with --corpus"));
    }
    let length = 1 << available.ilog2();
    Ok((length, (fewest / length).clamp(8, PAPER_SEQUENCES)))
}

/// Window rule for starter grids. It works with any text.
const WINDOW_RULE: WindowRule = WindowRule::Wikitext2;

const GRID_TEMPLATE: &str = include_str!("grid.yaml.j2");

/// Bundled tasks that the grid scores. The grid defines the other bundled tasks without scoring them.
const SCORED_TASKS: [&str; 2] = ["arc_easy", "hellaswag"];

impl Starter {
    /// Renders a grid with the given models for a file at `target`.
    fn render(&self, models: &[Model], target: &Path) -> Result<String> {
        let corpora = self.corpora.iter().map(|corpus| {
            context! {
                name => quote_yaml(&corpus.name), path => quote_yaml(&relative_path(&corpus.path, target)),
                generated => corpus.is_generated, calibrates => corpus.is_calibration,
            }
        });
        let tasks =
            self.tasks.iter().map(|(name, file)| context! { name, path => quote_yaml(&relative_path(file, target)) });
        let skipped_directories = self
            .skipped_directories
            .iter()
            .map(|(folder, error)| format!("{}: {}", format_comment_path(folder), error.one_line()));
        let scored =
            self.tasks.iter().map(|(name, _)| name.clone()).filter(|name| SCORED_TASKS.contains(&name.as_str()));
        // A rotation of the residual stream requires a Hadamard matrix of the hidden size.
        let can_rotate = models.iter().all(|model| hadamard::is_supported(model.config.hidden));
        let patch = if can_rotate { "linearpatch-rotate" } else { "linearpatch-diag" };
        let all = [recovery::NONE, "replaceme-ls", patch, "ghosted"];
        let chosen_methods = [&all[..1], last_items(&all, self.sizes.repairs)].concat();
        let values = context! {
            folder => format_comment_path(&self.folder),
            file => target.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            models => models.iter().map(|model| self.build_model_values(model, target)).collect::<Vec<_>>(),
            skipped_directories => skipped_directories.collect::<Vec<_>>(),
            rules => grid::rule_names().join(", "),
            rule => WINDOW_RULE.to_string(),
            generated => self.corpora.iter().any(|corpus| corpus.is_generated),
            corpora => corpora.collect::<Vec<_>>(),
            tasks => tasks.collect::<Vec<_>>(),
            criteria => describe_methods(&criterion::descriptions()),
            recoveries => describe_methods(&recovery::descriptions()),
            depth => format_reduced_list(last_items(&DEPTHS, self.sizes.depths), &DEPTHS),
            recovery => format_reduced_list(&chosen_methods, &all),
            length => self.sizes.length,
            sequences => self.sizes.sequences,
            windows => self.sizes.windows,
            is_reduced => self.is_reduced,
            limit => sizes::MAX_SECONDS / 60.0,
            minutes => self.seconds_over_limit().map(|seconds| (seconds / 60.0).ceil()),
            paper_length => MAX_LENGTH,
            paper_sequences => PAPER_SEQUENCES,
            known => grid::task_names().join(", "),
            scored => scored.collect::<Vec<_>>(),
        };
        template::render("the grid", GRID_TEMPLATE, values)
    }

    fn build_model_values(&self, model: &Model, target: &Path) -> minijinja::Value {
        let depths: Vec<String> =
            last_items(&model.depths, self.sizes.depths).iter().map(ToString::to_string).collect();
        context! {
            name => quote_yaml(&model.name),
            plain => &model.name,
            path => quote_yaml(&relative_path(&model.path, target)),
            architecture => model.config.architecture.model_type, layers => model.config.layers,
            depths => depths.join(" and "),
        }
    }
}

/// Formats a list for YAML. If items were left out, adds the complete list as a comment.
fn format_reduced_list(kept: &[&str], all: &[&str]) -> String {
    let [kept_list, all_list] = [kept, all].map(|items| format!("[{}]", items.join(", ")));
    if kept.len() == all.len() { kept_list } else { format!("{kept_list}   # reduced from {all_list} to save time") }
}

/// Formats one comment line per method, with its label and options.
fn describe_methods(methods: &[MethodDescription]) -> Vec<String> {
    methods
        .iter()
        .map(|MethodDescription { name, label, options, .. }| {
            let keys = options["properties"].as_object().into_iter().flat_map(|keys| keys.keys());
            let keys: Vec<&str> = keys.map(String::as_str).filter(|key| *key != "finetune").collect();
            let label = if *label == name { String::new() } else { format!(": {label}") };
            match keys.as_slice() {
                [] => format!("{name}{label}"),
                [one] => format!("{name}{label}; option {one}"),
                several => format!("{name}{label}; options {}", several.join(", ")),
            }
        })
        .collect()
}

/// Formats a path on a single line, for use in a comment.
fn format_comment_path(path: &Path) -> String {
    crate::error::printable(&path.display().to_string()).replace('\n', " ")
}

/// Quotes a string for YAML if necessary.
fn quote_yaml(text: &str) -> String {
    let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '.' || c == '/')
        && text.chars().any(|c| c.is_ascii_alphabetic())
        && !text.starts_with("...")
        && !reserved.contains(&text.to_ascii_lowercase().as_str());
    // YAML reads `.5e3` and `.inf` as numbers, so they must be quoted.
    let is_number = text.starts_with('.') && !text.contains('/');
    if is_word && !is_number && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c)) {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

/// Returns a path relative to the grid's directory, or an absolute path if the two share only the root.
fn relative_path(path: &Path, target: &Path) -> String {
    let path = files::absolute(path);
    // Resolve only the directory. The file itself may be a link in the hub cache to a blob without an extension.
    let path = match (path.is_file(), path.parent(), path.file_name()) {
        (true, Some(folder), Some(name)) => canonical_or_same(folder.to_owned()).join(name),
        _ => canonical_or_same(path),
    };
    let folder =
        files::absolute(target).parent().map(|folder| canonical_or_same(folder.to_owned())).unwrap_or_default();
    let common = path.components().zip(folder.components()).take_while(|(a, b)| a == b).count();
    // Paths that share only the root are unrelated, so a relative path would make no sense.
    if path.components().take(common).filter(|part| matches!(part, Component::Normal(_))).count() == 0 {
        return path.display().to_string();
    }
    let up = std::iter::repeat_n(Component::ParentDir, folder.components().count() - common);
    let relative: PathBuf = up.chain(path.components().skip(common)).collect();
    if relative.as_os_str().is_empty() { ".".to_owned() } else { relative.display().to_string() }
}

fn canonical_or_same(path: PathBuf) -> PathBuf {
    path.canonicalize().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn symlinked_model_file_keeps_its_link_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("blob"), "").unwrap();
        let link = folder.path().join("m.gguf");
        std::os::unix::fs::symlink("blob", &link).unwrap();
        assert_eq!(relative_path(&link, &folder.path().join("grid.yaml")), "m.gguf");
    }

    #[test]
    fn ambiguous_yaml_names_are_quoted() {
        for (text, written) in [
            ("models/my-llama", "models/my-llama"),
            ("../data/a.jsonl.gz", "../data/a.jsonl.gz"),
            ("true", "\"true\""),
            ("7b", "\"7b\""),
            ("a: b", "\"a: b\""),
            (".5", "\".5\""),
            ("modèle", "\"modèle\""),
        ] {
            assert_eq!(quote_yaml(text), written);
        }
    }

    #[test]
    fn starter_paths_are_relative_to_the_grid_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        for (path, grid, expected) in
            [("a/b", "grid.yaml", "a/b"), ("a", "a/b/grid.yaml", ".."), ("a/b", "a/b/grid.yaml", ".")]
        {
            assert_eq!(relative_path(&folder.path().join(path), &folder.path().join(grid)), expected);
        }
    }
}
