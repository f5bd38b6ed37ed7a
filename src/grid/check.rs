//! Semantic validation of a grid, in addition to type checks. Errors give the line of the offending value.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::AxisChoice;
use super::cell::{AXES, CUT_AXES};
use super::cells::{Axes, GridAxes};
use super::defined_tasks::{self, ResolvedDefinitions, TaskUseEntry};
use super::definitions::{Definitions, EntrySources};
use super::depth::{self, DepthEntry};
use super::eval_task::EvalTask;
use super::evaluate::{Evaluate, EvaluateEntry, Latency, LatencyEntry, Perplexity, PerplexityEntry};
use super::input::InputRef;
use super::library::Library;
use super::one_or_many::OneOrMany;
use super::pattern::CellPattern;
use super::schema::{IncludeEntry, Schema};
use super::search::{Search, SearchEntry};
use super::validate::{self, EntryPosition, optional_values};
use super::weights::Weights;
use super::yaml::{Positioned, YamlNode};
use crate::error::{Error, Result};
use crate::{corpus, metric};

/// Grid with validated values, whose input files have not been located yet.
#[derive(Debug)]
pub(super) struct CheckedGrid {
    pub(super) name: String,
    pub(super) axes: GridAxes,
    pub(super) evaluate: Evaluate,
    pub(super) search: Option<Search>,
    pub(super) definitions: Definitions,
    /// Resolved task definitions in the lm-evaluation-harness format.
    pub(super) resolved_definitions: ResolvedDefinitions,
}

impl CheckedGrid {
    /// Returns the inputs that the grid needs: its backbones, its calibration corpora, and those evaluated corpora and
    /// tasks that `choice` includes.
    pub(super) fn needs(&self, choice: &AxisChoice<'_>) -> Vec<InputRef> {
        let calibrated: BTreeSet<&str> =
            self.axes.all().flat_map(|axes| &axes.corpora).map(|corpus| corpus.value.as_str()).collect();
        let Definitions { backbones, corpora, tasks } = &self.definitions;
        let corpora = corpora.iter().filter(|(name, _)| {
            calibrated.contains(name.as_str())
                || (self.evaluate.perplexity.iter().any(|entry| entry.corpus == **name) && (choice.text)(name))
        });
        let tasks = tasks.iter().filter(|(name, _)| (choice.task)(name));
        let needs = backbones.values().map(|backbone| &backbone.need);
        let needs =
            needs.chain(corpora.map(|(_, corpus)| &corpus.need)).chain(tasks.map(|(_, task)| &task.need)).cloned();
        needs.chain(self.resolved_definitions.needs(choice.task)).collect()
    }
}

/// Validates a grid file. `schema` is its typed form, and `root` is the tree with the position of each value.
pub(super) fn check(schema: &Schema, root: &YamlNode, file: &Path, library: &Library) -> Result<CheckedGrid> {
    let root = EntryPosition::root(root);
    let name = read_grid_name(&root, schema, file)?;
    let Schema { backbone, criterion, depth, recovery, calibration, .. } = schema;
    let mut product = Axes::read(&root, backbone, criterion, depth, recovery, calibration)?;
    let search = schema.search.as_ref().map(|search| read_search(&root, schema, search, &mut product)).transpose()?;
    check_cut_axes(&product)?;
    let includes = schema
        .include
        .iter()
        .enumerate()
        .map(|(i, entry)| read_include(&root.key("include").item(i), entry, &product))
        .collect::<Result<Vec<_>>>()?;
    let excludes = schema
        .exclude
        .iter()
        .enumerate()
        .map(|(i, entry)| CellPattern::read(&root.key("exclude").item(i), entry))
        .collect::<Result<_>>()?;
    let (evaluate, used) = match (&schema.evaluate, &schema.search) {
        (None, None) => {
            return Err(root
                .error("missing key `evaluate` in the grid")
                .expected("`evaluate: …`, or `search: …`")
                .hint("see the complete example at the top of docs/grid.md"));
        }
        (_, Some(search)) => read_evaluations(&root.key("search"), &search.evaluate_entry())?,
        (Some(evaluate), None) => read_evaluations(&root.key("evaluate"), evaluate)?,
    };

    let weights = schema.weights.read_with(|entries| Weights::read(&root.key("weights"), entries))?;
    let weights = weights.unwrap_or_default();
    check_no_latency(&weights, &evaluate)?;
    let axes = GridAxes { product, weights, includes, excludes };
    let backbones = axes.all().filter_map(|axes| axes.backbone.as_ref()).flatten();
    let corpora = axes.all().flat_map(|axes| &axes.corpora).chain(&used.corpora);
    let seeds = collect_shard_seeds(axes.all(), &evaluate);
    let sources = EntrySources { schema, root: &root, library };
    let definitions = Definitions {
        backbones: sources.read_backbones(backbones)?,
        corpora: sources.read_corpora(corpora, &seeds)?,
        tasks: sources.read_tasks(used.tasks.iter())?,
    };
    Ok(CheckedGrid { name, axes, evaluate, search, definitions, resolved_definitions: used.resolved_definitions })
}

/// Rejects `latency` for rounded weights. Rounded weights are converted to floats for computation, so time and memory
/// would not be those of the rounded types.
fn check_no_latency(weights: &[Positioned<Weights>], evaluate: &Evaluate) -> Result<()> {
    match weights.iter().find(|weight| weight.value.rounding().is_some() && !evaluate.latency.is_empty()) {
        None => Ok(()),
        Some(weight) => Err(Error::bad_input("latency cannot be measured with quantized weights")
            .at(weight.position.to_string())
            .expected("`weights: as-stored` together with `latency`")
            .found(format!("`{}`", weight.value))
            .hint("measure the backbones as stored: quantized weights are computed as floats")),
    }
}

/// Returns, for each corpus, the shard seeds that calibration, training and perplexity evaluation use.
fn collect_shard_seeds<'a>(
    axes: impl Iterator<Item = &'a Axes> + Clone,
    evaluate: &'a Evaluate,
) -> BTreeMap<&'a str, BTreeSet<u64>> {
    let recoveries = axes.clone().filter_map(|axes| axes.recovery.as_ref()).flatten();
    let trained: BTreeSet<u64> =
        recoveries.filter_map(|recovery| recovery.value.training).map(|training| training.seed).collect();
    let mut seeds: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for calibration in axes.filter_map(|axes| axes.calibration.as_ref()).flatten() {
        let corpus_seeds = seeds.entry(&calibration.value.corpus).or_default();
        corpus_seeds.insert(calibration.value.seed);
        corpus_seeds.extend(&trained);
    }
    for text in &evaluate.perplexity {
        seeds.entry(&text.corpus).or_default().insert(corpus::EVALUATION_SEED);
    }
    seeds
}

fn read_grid_name(root: &EntryPosition<'_>, schema: &Schema, file: &Path) -> Result<String> {
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = schema.name.clone().or(stem).unwrap_or_default();
    validate::check_folder_name(&name, &root.key("name").position())?;
    Ok(name)
}

/// Reads the `search` key. If the `depth` axis is missing, sets it to the depths in the budget.
fn read_search(root: &EntryPosition<'_>, schema: &Schema, entry: &SearchEntry, axes: &mut Axes) -> Result<Search> {
    let at = root.key("search");
    if schema.evaluate.is_some() {
        return Err(at
            .error("a grid cannot have both `evaluate` and `search`")
            .expected("`evaluate` or `search`")
            .found("both")
            .hint("remove `evaluate`; to score all candidates, use `ghostlab run` with the same file"));
    }
    let search = entry.validate(&at)?;
    if axes.depth.is_none() {
        if search.budget.layers.is_empty() {
            return Err(at
                .error("the search has no depths")
                .expected("`depth: [4, 5, 6]` with the other axes, or `layers` in the budget")
                .found("neither")
                .hint("use `ghostlab search MODEL` to choose the depths automatically"));
        }
        let depths: Vec<DepthEntry> =
            search.budget.layers.iter().map(|&count| DepthEntry::from_layers(count)).collect();
        axes.depth = Some(depth::read_depths(&at.key("budget").key("layers"), &depths)?);
    }
    Ok(search)
}

/// Checks that either all or none of the pruning axes are present.
fn check_cut_axes(axes: &Axes) -> Result<()> {
    let (written, absent) = axes.cut_axis_keys();
    if written.is_empty() || absent.is_empty() {
        return Ok(());
    }
    Err(missing_axes_error("the grid", axes, &absent)
        .expected(format!("all four of {}, or none of them", CUT_AXES.join(", ")))
        .found(format!("only {}", written.join(", ")))
        .hint("add the missing axes, or remove the others to score only the dense backbones"))
}

/// Reads an `include` entry. Missing axes are taken from the grid.
fn read_include(at: &EntryPosition<'_>, entry: &IncludeEntry, grid: &Axes) -> Result<Axes> {
    let IncludeEntry { backbone, criterion, depth, recovery, calibration } = entry;
    let axes = Axes::read(at, backbone, criterion, depth, recovery, calibration)?;
    let (written, absent) = axes.cut_axis_keys();
    if axes.backbone.is_none() && written.is_empty() {
        return Err(at
            .error("an entry of `include` is empty")
            .expected(format!("one or more of {}", AXES.join(", ")))
            .found("an empty map")
            .hint("remove the entry, or name the values to add"));
    }
    if grid.cut_axis_keys().0.is_empty() && !absent.is_empty() {
        return Err(missing_axes_error("an entry of `include`", &axes, &absent)
            .expected(CUT_AXES.join(", "))
            .found(if written.is_empty() { "none of them".to_owned() } else { format!("only {}", written.join(", ")) })
            .hint("add the missing axes to the entry or to the grid"));
    }
    Ok(axes.inherit_from(grid))
}

fn missing_axes_error(subject: &str, axes: &Axes, absent: &[&str]) -> Error {
    let keys: Vec<String> = absent.iter().map(|key| format!("`{key}`")).collect();
    let noun = if keys.len() == 1 { "key" } else { "keys" };
    Error::bad_input(format!("missing {noun} {} in {subject}", keys.join(", "))).at(axes.position.to_string())
}

/// Corpora, tasks and task definitions that the evaluations refer to.
struct UsedInputs {
    corpora: Vec<Positioned<String>>,
    tasks: Vec<Positioned<String>>,
    resolved_definitions: ResolvedDefinitions,
}

fn read_evaluations(at: &EntryPosition<'_>, entries: &EvaluateEntry) -> Result<(Evaluate, UsedInputs)> {
    let written = [
        entries.perplexity.explicit_values().is_some(),
        entries.tasks.explicit_values().is_some(),
        entries.latency.explicit_values().is_some(),
    ];
    if written == [false; 3] {
        return Err(at
            .error(format!("`{}` has no evaluations", at.name()))
            .expected("one or more of `perplexity: [{corpus: …, length: …}]`, `tasks: [arc_easy, …]` and `latency: {length: …}`")
            .found("an empty map"));
    }
    let (perplexity, corpora) = read_texts(&at.key("perplexity"), &entries.perplexity)?;
    check_task_settings(&at.key("tasks"), &entries.tasks, true)?;
    // An omitted list is valid, but an empty one is not.
    if entries.perplexity.explicit_values().is_some() {
        validate::check_values(&at.key("perplexity"), &perplexity)?;
    }
    let (tasks, names, resolved_definitions) = read_tasks(&at.key("tasks"), &entries.tasks)?;
    let groups = resolved_definitions.groups.clone();
    let perplexity: Vec<Perplexity> = perplexity.into_iter().map(|text| text.value).collect();
    let latency = read_latencies(&at.key("latency"), &entries.latency)?;
    let metrics = read_metrics(&at.key("metrics"), &entries.metrics)?;
    if let Some(index) = metrics.iter().position(|name| metric::is_damage(name))
        && !perplexity.iter().any(|text| text.damage)
    {
        return Err(at
            .key("metrics")
            .item(index)
            .error(format!("metric `{}` requires a text with `damage: true`", metrics[index]))
            .expected("an entry of `perplexity` with `damage: true`")
            .found("no such entry")
            .hint("add `damage: true` to an entry of `perplexity`"));
    }
    let used = UsedInputs { corpora, tasks: names, resolved_definitions };
    Ok((Evaluate { perplexity, tasks, groups, latency, metrics }, used))
}

/// Checks the settings of the entries that refer to definitions if `defined` is set, or else those of the built-in
/// tasks.
fn check_task_settings(at: &EntryPosition<'_>, entries: &OneOrMany<TaskUseEntry>, defined: bool) -> Result<()> {
    let mut checked = entries.iter().enumerate().filter(|(_, entry)| entry.definition.is_some() == defined);
    checked.try_for_each(|(i, entry)| defined_tasks::check_settings(&at.item(i), &entry.how))
}

/// Reads the evaluated tasks. Also returns the names of the built-in tasks, and the definitions of the other tasks. The
/// settings of definition entries are checked separately.
fn read_tasks(
    at: &EntryPosition<'_>,
    entries: &OneOrMany<TaskUseEntry>,
) -> Result<(Vec<EvalTask>, Vec<Positioned<String>>, ResolvedDefinitions)> {
    let entries_at: Vec<_> = entries.iter().enumerate().map(|(i, entry)| (at.item(i), entry)).collect();
    let builtin = entries_at.iter().filter(|(_, entry)| entry.definition.is_none());
    let (builtin, names): (Vec<_>, Vec<_>) = builtin
        .map(|(at, TaskUseEntry { name, how, .. })| {
            let task = EvalTask { name: name.clone(), how: how.clone(), defined: false };
            (at.with_position(task), at.key("name").with_position(name.clone()))
        })
        .unzip();
    if entries.explicit_values().is_some() {
        validate::check_length(at, entries)?;
        validate::check_unique(&at.name(), &builtin)?;
    }
    check_task_settings(at, entries, false)?;
    let definitions = ResolvedDefinitions::read(&entries_at)?;
    let tasks = builtin.into_iter().map(|task| task.value).chain(definitions.uses.iter().cloned()).collect();
    Ok((tasks, names, definitions))
}

/// Evaluated texts, and the corpora they refer to.
type Texts = (Vec<Positioned<Perplexity>>, Vec<Positioned<String>>);

/// Returns every combination of the corpora and window lengths in each entry.
fn read_texts(at: &EntryPosition<'_>, entries: &OneOrMany<PerplexityEntry>) -> Result<Texts> {
    let mut perplexity = Vec::new();
    let mut all_corpora = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let at = at.item(i);
        let corpora = validate::read_values(&at.key("corpus"), &entry.corpus)?;
        let lengths = validate::read_counts(&at.key("length"), &entry.length, 2, "the length of an evaluation window")?;
        validate::check_cell_count(&[corpora.len(), lengths.len()], &at.position())?;
        for (corpus, length) in corpora.iter().flat_map(|corpus| lengths.iter().map(move |length| (corpus, length))) {
            // If only one of the two lists has several items, report the position of the item. Otherwise, report the
            // position of the entry.
            let position = match (corpora.len(), lengths.len()) {
                (1, 2..) => length.position.clone(),
                (2.., 1) => corpus.position.clone(),
                _ => at.position(),
            };
            let corpus = corpus.value.clone();
            let value = Perplexity { corpus, length: length.value, damage: entry.damage, draw: None };
            perplexity.push(Positioned { value, position });
        }
        all_corpora.extend(corpora);
    }
    Ok((perplexity, all_corpora))
}

/// Reads the names of additional metrics. Rejects unknown names and duplicates.
fn read_metrics(at: &EntryPosition<'_>, entries: &OneOrMany<String>) -> Result<Vec<String>> {
    entries.read_with(|names| validate::read_values(at, names))?;
    let known: Vec<&str> = metric::names_of_opt_in_metrics().collect();
    match entries.iter().enumerate().find(|(_, name)| !known.contains(&name.as_str())) {
        None => Ok(entries.to_vec()),
        Some((i, name)) => Err(at.item(i).error(format!("unknown metric `{name}`")).none_of(name, known)),
    }
}

/// Returns every combination of the lengths, batch sizes and numbers of new tokens in each entry.
fn read_latencies(at: &EntryPosition<'_>, entries: &OneOrMany<LatencyEntry>) -> Result<Vec<Latency>> {
    let mut prompts = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let at = at.item(i);
        let lengths = validate::read_counts(&at.key("length"), &entry.length, 1, "the length of a timed prompt")?;
        let batches = read_optional_counts(&at, "batch", &entry.batch, "the number of sequences of a timed prompt")?;
        let new =
            read_optional_counts(&at, "decode", &entry.decode, "the number of tokens decoded after a timed prompt")?;
        validate::check_cell_count(&[lengths.len(), batches.len(), new.len()], &at.position())?;
        for (length, batch) in lengths.iter().flat_map(|length| batches.iter().map(move |batch| (length, batch))) {
            let (length, batch, position) = (length.value, batch.value.unwrap_or(1), &length.position);
            prompts.extend(new.iter().map(|decode| Positioned {
                value: Latency { length, batch, decode: decode.value },
                position: position.clone(),
            }));
        }
    }
    if entries.explicit_values().is_some() {
        validate::check_values(at, &prompts)?;
    }
    Ok(prompts.into_iter().map(|prompt| prompt.value).collect())
}

fn read_optional_counts(
    at: &EntryPosition<'_>,
    key: &str,
    values: &OneOrMany<usize>,
    subject: &str,
) -> Result<Vec<Positioned<Option<usize>>>> {
    Ok(optional_values(at, values.read_with(|values| validate::read_counts(&at.key(key), values, 1, subject))?))
}
