//! What a results folder belongs to. Another description has another folder.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::grid::Grid;
use crate::identity::ComputeId;
use crate::model::EngineRequest;

/// Which command made the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// All that the grid evaluates, as one table.
    Run,
    /// What an artifact shows of its grid.
    Reproduce,
}

/// What was run, on what, and how: all that makes two runs of one name two results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunDescription {
    /// The artifact, or the grid.
    pub name: String,
    pub profile: Option<String>,
    pub by: By,
    /// What was set from outside, by key.
    pub overrides: Vec<String>,
    /// What runs each backbone.
    pub engines: BTreeMap<String, ComputeId>,
    /// In a few words, how that differs from the file as it stands and as this machine runs it; empty where it does not.
    pub differs: Vec<String>,
}

impl RunDescription {
    /// Of a grid that is run or, where its file describes an artifact, reproduced under a name.
    ///
    /// # Errors
    /// An engine that cannot run here.
    pub fn of(
        grid: &Grid,
        name: &str,
        by: By,
        is_artifact: bool,
        overrides: &[String],
        asked: EngineRequest,
    ) -> Result<Self> {
        let choose = |asked: EngineRequest| -> Result<BTreeMap<String, ComputeId>> {
            let chosen = grid.backbones.iter();
            chosen.map(|(name, of)| Ok((name.clone(), asked.choose(&of.path)?.id().into()))).collect()
        };
        let engines = choose(asked)?;
        // Of two settings of one key the later one counts; all else may stand in any order.
        let mut sorted: Vec<String> = overrides.iter().map(|text| text.trim().to_owned()).collect();
        sorted.sort_by(|a, b| key(a).cmp(key(b)));
        let mut differs = sorted.clone();
        if asked != EngineRequest::default() && engines != choose(EngineRequest::default())? {
            differs.push(words(&engines));
        }
        if is_artifact && by == By::Run {
            differs.push("run".to_owned());
        }
        Ok(Self { name: name.to_owned(), profile: grid.profile.clone(), by, overrides: sorted, engines, differs })
    }

    /// Whether results of the other one may take the place of this one's. The file may have got other backbones since.
    pub fn is_same(&self, other: &Self) -> bool {
        let alike = |(name, engine): (&String, &ComputeId)| other.engines.get(name).is_none_or(|of| of == engine);
        let named = |of: &Self| (of.name.clone(), of.profile.clone(), of.by, of.overrides.clone());
        named(self) == named(other) && self.engines.iter().all(alike)
    }

    /// What tells its folder's name from another one's.
    pub fn parts(&self) -> Vec<String> {
        match self.differs.as_slice() {
            [] => vec![words(&self.engines), if self.by == By::Run { "run" } else { "reproduce" }.to_owned()],
            differs => differs.to_vec(),
        }
    }

    /// Whether the grid itself got another name from outside.
    pub fn is_renamed(&self) -> bool {
        self.by == By::Run && self.overrides.iter().any(|text| key(text) == "name")
    }
}

fn key(setting: &str) -> &str {
    setting.split('=').next().unwrap_or_default().trim()
}

/// `cpu-bf16`, `candle-f16-cuda`.
fn words(engines: &BTreeMap<String, ComputeId>) -> String {
    let word = |of: &ComputeId| match of.device == of.name || of.device == "cpu" {
        true => format!("{}-{}", of.name, of.dtype),
        false => format!("{}-{}-{}", of.name, of.dtype, of.device),
    };
    engines.values().map(word).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(overrides: &[&str], engines: &[(&str, &str)]) -> RunDescription {
        let engine = |dtype: &str| ComputeId { name: "cpu".into(), dtype: dtype.into(), device: "cpu".into() };
        RunDescription {
            name: "grid".into(),
            profile: None,
            by: By::Run,
            overrides: overrides.iter().map(ToString::to_string).collect(),
            engines: engines.iter().map(|(name, dtype)| ((*name).to_owned(), engine(dtype))).collect(),
            differs: Vec::new(),
        }
    }

    #[test]
    fn only_the_same_settings_and_engines_may_replace_each_other() {
        let plain = of(&[], &[("a", "f32")]);
        assert!(plain.is_same(&of(&[], &[("a", "f32"), ("b", "bf16")])), "a backbone that was added");
        assert!(plain.is_same(&RunDescription { differs: vec!["told".into()], ..plain.clone() }));
        for other in [
            of(&[], &[("a", "bf16")]),
            of(&["depth=2"], &[("a", "f32")]),
            RunDescription { by: By::Reproduce, ..plain.clone() },
            RunDescription { profile: Some("tiny".into()), ..plain.clone() },
            RunDescription { name: "other".into(), ..plain.clone() },
        ] {
            assert!(!plain.is_same(&other) && !other.is_same(&plain), "{other:?}");
        }
        assert_eq!(words(&of(&[], &[("a", "f32"), ("b", "bf16"), ("c", "f32")]).engines), "cpu-bf16,cpu-f32");
    }
}
