//! `numbers.json`: the stored results of a run, as read by claims, comparisons and the page.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::number_record::Record;
use super::result_row::{ResultRow, Results, number_id};
use super::{Protocol, Settings, put, stem};
use crate::corpus::EVALUATION_SEED;
use crate::error::{Error, Result};
use crate::files::sha256;
use crate::grid::{Grid, defined_columns};
use crate::metric::{ACCURACY, Metric, PERPLEXITY};
use crate::model::CPU;
use crate::pipeline::identity::{ComputeId, FlatSettings, Identity, MeasureId, SettingPath, flatten};
use crate::pipeline::outcome::GridOutcome;

/// Stored results of a single run of a grid.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredResults {
    /// Name of the artifact or grid.
    pub name: String,
    pub profile: String,
    /// Version of the program, with its commit.
    pub program: String,
    /// Whether the run was set to skip pruned cells if their dense backbone missed the paper's dense results.
    pub gate: bool,
    /// Grid as it was run, with overrides and defaults filled in.
    pub settings: Value,
    /// SHA-256 of each input file, by path.
    pub inputs: BTreeMap<String, String>,
    /// Engine used for each backbone.
    pub engines: BTreeMap<String, ComputeId>,
    /// Protocol for each metric, with the hashes of its input files.
    pub protocols: BTreeMap<String, Value>,
    /// Settings that distinguish each cell, keyed by cell name.
    pub cells: BTreeMap<String, Settings>,
    /// Settings that distinguish each measurement, keyed by column.
    pub measures: BTreeMap<String, Settings>,
    /// Identity of each cell, by name.
    #[serde(with = "super::stored_form::identities")]
    pub identities: BTreeMap<String, Identity>,
    /// Identities of measurements, keyed by backbone and column. A mean lists the measurements that it averages.
    pub measured: BTreeMap<String, BTreeMap<String, Vec<MeasureId>>>,
    /// Identities of latency measurements, keyed by cell and column, because each cell may have been timed together
    /// with other variants.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub timed: BTreeMap<String, BTreeMap<String, Vec<MeasureId>>>,
    #[serde(with = "super::stored_form")]
    pub numbers: Vec<ResultRow>,
}

impl StoredResults {
    pub const FILE: &str = "numbers.json";

    pub fn new(
        name: &str,
        grid: &Grid,
        outcome: &GridOutcome,
        gate: bool,
        results: &Results,
        program: &str,
    ) -> Result<Self> {
        let (mut measured, mut timed) =
            (BTreeMap::<String, BTreeMap<_, _>>::new(), BTreeMap::<_, BTreeMap<_, _>>::new());
        for number in results.numbers().filter(|number| !number.setup.measures.is_empty()) {
            let measures_by_column = match number.metric.is_latency() {
                true => timed.entry(number.cell.clone()).or_default(),
                false => measured.entry(number.record.condition.backbone.clone()).or_default(),
            };
            measures_by_column
                .entry(number.column.clone())
                .or_insert_with(|| number.setup.measures.iter().map(|measure| MeasureId::clone(measure)).collect());
        }
        Ok(Self {
            name: name.to_owned(),
            profile: grid.profile.clone().unwrap_or_default(),
            program: program.to_owned(),
            gate,
            settings: grid.resolved()?,
            inputs: outcome.inputs.clone(),
            engines: outcome.engines.clone(),
            protocols: collect_protocols(grid, outcome),
            cells: results.cells.iter().map(|cell| (cell.cell.name.clone(), Settings::clone(&cell.settings))).collect(),
            measures: results.numbers().map(|number| (number.column.clone(), number.setup.measure.clone())).collect(),
            identities: results
                .numbers()
                .filter_map(|number| Some((number.cell.clone(), number.setup.identity.as_deref()?.clone())))
                .collect(),
            measured,
            timed,
            numbers: results.numbers().map(|number| ResultRow::clone(number)).collect(),
        })
    }

    /// Writes `numbers.json` into a folder atomically, and returns its path.
    ///
    /// # Errors
    /// Fails with exit code 3 if the folder cannot be written.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        let text = serde_json::to_string(self)
            .map_err(|error| Error::job("cannot write the numbers as JSON").found(error.to_string()))?;
        put(&folder.join(Self::FILE), text.as_bytes())
    }

    /// Reads the numbers in a results folder.
    ///
    /// # Errors
    /// Fails if the folder has no `numbers.json` or the file is damaged.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(Self::FILE);
        let text = std::fs::read_to_string(&path).map_err(|error| {
            Error::io("read", &path, &error).hint("pass a folder that `ghostlab run` or `ghostlab reproduce` wrote")
        })?;
        serde_json::from_str(&text).map_err(|error| {
            Error::damaged("cannot read the numbers in the results folder")
                .at(path.display().to_string())
                .found(error.to_string())
                .hint("run the grid again; cached results are reused")
        })
    }

    /// Returns the engine used for a backbone, or the default CPU engine if none is recorded.
    pub fn engine(&self, backbone: &str) -> ComputeId {
        self.engines.get(backbone).cloned().unwrap_or_else(|| CPU.into())
    }

    /// Returns the settings that distinguish a number from the other numbers in its run.
    pub fn number_settings(&self, number: &ResultRow) -> Settings {
        let cell = self.cells.get(&number.cell);
        let measure = self.measures.get(&number.column);
        cell.into_iter().chain(measure).flatten().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Returns the identity of the measurement that produced a number. For a mean, returns those of all averaged
    /// measurements.
    pub fn measures(&self, number: &ResultRow) -> &[MeasureId] {
        let measures = self.timed.get(&number.cell).and_then(|timed| timed.get(&number.column));
        let measures = measures.or_else(|| self.measured.get(&number.record.condition.backbone)?.get(&number.column));
        measures.map_or(&[], Vec::as_slice)
    }

    /// Flattens the identity of a number: its model and each measurement. Returns `None` if the gate skipped its cell.
    pub fn flat_settings(&self, number: &ResultRow) -> Option<FlatSettings> {
        let mut all = self.identities.get(&number.cell)?.flat_settings();
        for (at, measure) in self.measures(number).iter().enumerate() {
            let settings = flatten(&serde_json::to_value(measure).unwrap_or_default());
            let path = SettingPath::new("measure").child(&at.to_string());
            all.extend(settings.into_iter().map(|(inner, value)| (path.child(inner.as_str()), value)));
        }
        Some(all)
    }

    /// Returns the SHA-256 of a number's identity, which the results page also uses. Returns `None` if the gate skipped
    /// its cell.
    pub fn identity(&self, number: &ResultRow) -> Option<String> {
        let variant = self.identities.get(&number.cell)?;
        let measures: Vec<&MeasureId> = self.measures(number).iter().collect();
        Some(number_id(&[variant], &measures, &number.record.metric))
    }

    pub fn records(&self) -> Vec<Record> {
        self.numbers.iter().map(|number| number.record.clone()).collect()
    }
}

/// Returns the protocol for each metric: its settings and the hashes of its data files. Numbers for the same condition
/// have the same items only if their protocols are equal.
fn collect_protocols(grid: &Grid, outcome: &GridOutcome) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let texts = add_text_protocols(grid, outcome, &mut all);
    let tasks = add_task_protocols(grid, outcome, &mut all);
    for (average, parts) in [(PERPLEXITY.id, texts), (ACCURACY.id, tasks)] {
        if parts.len() > 1 {
            all.insert(average.to_owned(), parts.into());
        }
    }
    all
}

/// Returns the hashes of the input files at a path, which may be a directory or a single file.
fn data_hashes<'a>(outcome: &'a GridOutcome, path: &Path) -> Vec<&'a String> {
    outcome.inputs.iter().filter(|(file, _)| Path::new(file).starts_with(path)).map(|(_, hash)| hash).collect()
}

/// Adds the text protocols to `all`, keyed by metric, and returns them keyed by text.
///
/// If several texts have the same metric name, their protocols are added under the column names instead.
fn add_text_protocols(grid: &Grid, outcome: &GridOutcome, all: &mut BTreeMap<String, Value>) -> Map<String, Value> {
    let mut texts = Map::new();
    for text in &grid.evaluate.perplexity {
        let corpus = &grid.corpora[&text.corpus];
        let files = match &corpus.stream {
            None => corpus.files(),
            Some(_) => corpus.files_for_seed(EVALUATION_SEED).unwrap_or_default(),
        };
        let mut protocol = json!({
            "data": files.iter().flat_map(|file| data_hashes(outcome, file)).collect::<Vec<_>>(),
            "column": corpus.column, "rule": corpus.rule, "length": text.length, "limit": corpus.limit,
        });
        if let Some(stream) = &corpus.stream {
            protocol["shards"] = json!({"order": stream.shards, "of": stream.count});
        }
        let same_name =
            grid.evaluate.perplexity.iter().filter(|other| stem(&other.corpus) == stem(&text.corpus)).count();
        let (part, name) = match same_name {
            1 => (text.corpus.clone(), Metric::perplexity(stem(&text.corpus)).id),
            _ => (text.to_string(), Protocol::text(grid, text, None).column()),
        };
        texts.insert(part, protocol.clone());
        all.insert(name, protocol);
    }
    texts
}

/// Adds the protocols of the tasks to `all`, keyed by metric, and returns those of the built-in tasks keyed by task.
fn add_task_protocols(grid: &Grid, outcome: &GridOutcome, all: &mut BTreeMap<String, Value>) -> Map<String, Value> {
    let mut tasks = Map::new();
    for used in &grid.evaluate.tasks {
        let task = grid.task(used);
        let files: Vec<&String> = task.paths().into_iter().flat_map(|path| data_hashes(outcome, path)).collect();
        let Some(builtin) = task.builtin() else {
            let Ok(definition) = task.definition() else { continue };
            let asks = sha256::of_bytes(definition.request_keys());
            let judges = sha256::of_bytes(definition.scoring_keys());
            let protocol = json!({"data": files, "asks": asks, "judges": judges, "how": used.how});
            for column in defined_columns(&used.name, &used.how, definition) {
                all.insert(column.metric().id, protocol.clone());
            }
            continue;
        };
        let Some(extent) = outcome.task(used) else { continue };
        let protocol = json!({
            "data": files, "task": builtin.name, "version": builtin.version,
            "metric": builtin.paper_metric.name(), "bos": used.how.bos.to_string(), "documents": extent.documents,
        });
        let is_only = grid.evaluate.builtin().filter(|other| other.name == used.name).count() == 1;
        let name = if is_only { used.name.clone() } else { used.to_string() };
        if is_only {
            all.insert(builtin.name.to_owned(), protocol.clone());
        }
        tasks.insert(name.clone(), protocol.clone());
        all.insert(name, protocol);
    }
    tasks
}
