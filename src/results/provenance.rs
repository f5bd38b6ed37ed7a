//! `run.json`: the provenance of the numbers in the same directory, and the description of the run. Runs with different
//! descriptions get different directories.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Protocol, put};
use crate::error::{Error, Result};
use crate::files::regular;
use crate::grid::Grid;
use crate::machine::Machine;
use crate::model::EngineRequest;
use crate::pipeline::identity::ComputeId;

/// Contents of `run.json`.
#[derive(Debug, Clone, Serialize)]
pub struct Provenance {
    pub ghostlab: String,
    /// Versions of the crates that affect numbers.
    pub crates: BTreeMap<String, String>,
    /// Commit that the program was built from; `None` if it was built outside a checkout.
    pub commit: Option<String>,
    /// Whether the checkout had uncommitted changes.
    pub dirty: bool,
    /// Command line, including the program name.
    pub command: Vec<String>,
    pub description: RunDescription,
    /// Whether this run is recorded in the repository.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recorded: bool,
    /// Grid as it was run, with overrides and defaults filled in.
    pub grid: serde_json::Value,
    pub protocols: Vec<Protocol>,
    /// SHA-256 of each input file, by path.
    pub inputs: BTreeMap<String, String>,
    pub seeds: Vec<u64>,
    /// Engine used for each backbone, with its float type and device class.
    pub engines: BTreeMap<String, ComputeId>,
    pub machine: Machine,
    /// Peak memory of the process in bytes; `None` if the system does not report it.
    pub peak_memory_bytes: Option<u64>,
    /// SHA-256 of each results file, by name.
    pub files: BTreeMap<String, String>,
    /// Start time in UTC (RFC 3339).
    pub started: String,
    pub finished: String,
    /// Details of each cell, such as selection scores and operator metrics.
    pub cells: serde_json::Value,
}

/// Run record without its cells, which take up most of the file.
#[derive(Deserialize)]
struct RecordOutline {
    #[serde(default)]
    description: Value,
    #[serde(default)]
    recorded: Value,
    #[serde(default)]
    finished: Value,
}

impl Provenance {
    /// Name of the record file in a results directory.
    pub const FILE: &str = "run.json";

    /// Reads the run description in a results directory. Returns `None` if there is no record or if it was written by
    /// an older version of the program.
    pub fn read_description(folder: &Path) -> Option<RunDescription> {
        serde_json::from_value(Self::read::<RecordOutline>(folder).ok()?.description).ok()
    }

    /// Returns whether a directory contains a run that is recorded in the repository.
    pub fn is_recorded(folder: &Path) -> bool {
        Self::read::<RecordOutline>(folder).is_ok_and(|record| record.recorded == true)
    }

    /// Returns the time at which the run in a directory finished, according to its record.
    pub fn finished(folder: &Path) -> Option<String> {
        Some(Self::read::<RecordOutline>(folder).ok()?.finished.as_str()?.to_owned())
    }

    /// Reads the record in a directory as a `T`, which may declare only some of the record's fields.
    ///
    /// # Errors
    /// Fails if the record is missing or damaged.
    pub fn read<T: DeserializeOwned>(folder: &Path) -> Result<T> {
        let path = folder.join(Self::FILE);
        serde_json::from_slice(&regular::read(&path)?).map_err(|error| {
            Error::damaged("cannot read the run record").at(path.display().to_string()).found(error.to_string())
        })
    }

    /// Writes `run.json` into `dir` atomically.
    ///
    /// # Errors
    /// Fails with exit code 3 if the directory is not writable.
    pub fn write(&self, dir: &Path) -> Result<()> {
        // Recorded runs are committed to the repository, so keep their files compact.
        let text = if self.recorded { serde_json::to_string(self) } else { serde_json::to_string_pretty(self) };
        let mut text =
            text.map_err(|error| Error::job("cannot write the run record as JSON").found(error.to_string()))?;
        text.push('\n');
        put(&dir.join(Self::FILE), text.as_bytes()).map(drop)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunCommand {
    /// `run`: all evaluations in the grid, as one table.
    Run,
    /// `reproduce`: an artifact of the paper.
    Reproduce,
}

/// Identity of a run: grid name, profile, overrides and engines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunDescription {
    /// Name of the artifact or grid.
    pub name: String,
    pub profile: Option<String>,
    pub by: RunCommand,
    /// Overrides from the command line, sorted by key.
    pub overrides: Vec<String>,
    pub engines: BTreeMap<String, ComputeId>,
    /// Short descriptions of how the run differs from the grid file and from this machine's default engine. Empty if it
    /// does not differ.
    pub differs: Vec<String>,
}

impl RunDescription {
    /// Describes a run of a grid, or a reproduction of an artifact.
    ///
    /// # Errors
    /// Fails if the engine is not supported here.
    pub fn new(
        grid: &Grid,
        name: &str,
        by: RunCommand,
        is_artifact: bool,
        overrides: &[String],
        request: EngineRequest,
    ) -> Result<Self> {
        let engines = choose_engines(grid, request)?;
        // Sort by key only. The sort is stable, so the later of two overrides with the same key still wins.
        let mut sorted: Vec<String> = overrides.iter().map(|text| text.trim().to_owned()).collect();
        sorted.sort_by(|a, b| override_key(a).cmp(override_key(b)));
        let mut differs = sorted.clone();
        if request != EngineRequest::default() && engines != choose_engines(grid, EngineRequest::default())? {
            differs.push(format_engines(&engines));
        }
        if is_artifact && by == RunCommand::Run {
            differs.push("run".to_owned());
        }
        Ok(Self { name: name.to_owned(), profile: grid.profile.clone(), by, overrides: sorted, engines, differs })
    }

    /// Returns whether the results of `other` may replace those of this run. Backbones present in only one run are
    /// ignored, because they may since have been added to or removed from the grid file.
    pub fn is_same(&self, other: &Self) -> bool {
        let Self { name, profile, by, overrides, engines, differs: _ } = self;
        (name, profile, by, overrides) == (&other.name, &other.profile, &other.by, &other.overrides)
            && engines.iter().all(|(name, engine)| other.engines.get(name).is_none_or(|engines| engines == engine))
    }

    /// Returns the parts of this run's directory name that distinguish it from those of other runs.
    pub fn name_parts(&self) -> Vec<String> {
        let command = if self.by == RunCommand::Run { "run" } else { "reproduce" };
        match self.differs.as_slice() {
            [] => vec![format_engines(&self.engines), command.to_owned()],
            differs => differs.to_vec(),
        }
    }

    /// Returns whether an override changed the grid's name.
    pub fn is_renamed(&self) -> bool {
        self.by == RunCommand::Run && self.overrides.iter().any(|text| override_key(text) == "name")
    }
}

fn choose_engines(grid: &Grid, request: EngineRequest) -> Result<BTreeMap<String, ComputeId>> {
    let chosen = grid.backbones.iter();
    chosen.map(|(name, entry)| Ok((name.clone(), request.choose(&entry.path)?.id().into()))).collect()
}

fn override_key(setting: &str) -> &str {
    setting.split('=').next().unwrap_or_default().trim()
}

/// Formats the distinct engines as a comma-separated list of names such as `cpu-bf16`, `cpu-bf16-amx` or
/// `candle-f16-cuda`.
fn format_engines(engines: &BTreeMap<String, ComputeId>) -> String {
    engines
        .values()
        .map(|id| match id.device == id.name || id.device == "cpu" {
            true => format!("{}-{}", id.name, id.dtype),
            false => {
                let device = id.device.strip_prefix("cpu-").unwrap_or(&id.device);
                format!("{}-{}-{device}", id.name, id.dtype)
            }
        })
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use crate::clock::format_utc;
    use crate::model::CPU;
    use crate::results::RunCommand;

    use super::*;

    #[test]
    fn provenance_is_written_as_readable_json() {
        let dir = tempfile::tempdir().unwrap();
        let record = Provenance {
            ghostlab: "0.1.0".into(),
            crates: BTreeMap::from([("faer".into(), "0.24".into())]),
            commit: None,
            dirty: true,
            command: vec!["ghostlab".into(), "run".into()],
            description: RunDescription {
                name: "grid".into(),
                profile: None,
                by: RunCommand::Run,
                overrides: Vec::new(),
                engines: BTreeMap::new(),
                differs: Vec::new(),
            },
            recorded: false,
            grid: serde_json::json!({"depth": [3]}),
            protocols: vec![Protocol::Windows {
                corpus: "c4".into(),
                rule: "c4".into(),
                shards: None,
                length: 512,
                limit: Some(100),
                windows: Some(100),
                all: Some(900),
                generated: false,
            }],
            inputs: BTreeMap::from([("a".into(), "ff".into())]),
            seeds: vec![0],
            engines: BTreeMap::from([("llama".into(), CPU.into())]),
            machine: Machine::current(),
            peak_memory_bytes: None,
            files: BTreeMap::new(),
            started: format_utc(UNIX_EPOCH),
            finished: format_utc(UNIX_EPOCH),
            cells: serde_json::json!([]),
        };
        record.write(dir.path()).unwrap();
        assert_eq!(Provenance::read_description(dir.path()), Some(record.description.clone()));
        let text = std::fs::read_to_string(dir.path().join("run.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["commit"], serde_json::Value::Null);
        assert_eq!(json["protocols"][0]["rule"], "c4");
        assert_eq!(json["engines"]["llama"]["dtype"], "f32");
        assert!(json["machine"]["threads"].as_u64() > Some(0));
        assert_eq!(json["started"], "1970-01-01T00:00:00Z");
    }
}

#[cfg(test)]
mod description_tests {
    use super::*;

    fn description(overrides: &[&str], engines: &[(&str, &str)]) -> RunDescription {
        RunDescription {
            name: "grid".into(),
            profile: None,
            by: RunCommand::Run,
            overrides: overrides.iter().map(ToString::to_string).collect(),
            engines: engines.iter().map(|(name, dtype)| ((*name).to_owned(), engine_of(dtype))).collect(),
            differs: Vec::new(),
        }
    }

    fn engine_of(dtype: &str) -> ComputeId {
        ComputeId { name: "cpu".into(), dtype: dtype.into(), device: "cpu".into() }
    }

    #[test]
    fn only_results_with_equal_settings_are_replaced() {
        let plain = description(&[], &[("a", "f32")]);
        assert!(plain.is_same(&description(&[], &[("a", "f32"), ("b", "bf16")])), "a backbone that was added");
        assert!(plain.is_same(&RunDescription { differs: vec!["told".into()], ..plain.clone() }));
        for other in [
            description(&[], &[("a", "bf16")]),
            description(&["depth=2"], &[("a", "f32")]),
            RunDescription { by: RunCommand::Reproduce, ..plain.clone() },
            RunDescription { profile: Some("tiny".into()), ..plain.clone() },
            RunDescription { name: "other".into(), ..plain.clone() },
        ] {
            assert!(!plain.is_same(&other) && !other.is_same(&plain), "{other:?}");
        }
        assert_eq!(
            format_engines(&description(&[], &[("a", "f32"), ("b", "bf16"), ("c", "f32")]).engines),
            "cpu-bf16,cpu-f32"
        );
        let amx = ComputeId { device: "cpu-amx".into(), ..description(&[], &[("a", "bf16")]).engines["a"].clone() };
        assert_eq!(format_engines(&BTreeMap::from([("a".to_owned(), amx)])), "cpu-bf16-amx");
    }
}
