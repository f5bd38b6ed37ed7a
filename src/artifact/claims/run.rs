//! The numbers of an artifact and what made them.
//!
//! A claim that joins artifacts compares numbers of two runs. What its conditions tell apart (backbone, depth, criterion,
//! recovery, calibration text) may differ between the two; everything else that makes a number has to agree.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::identity::{Leaves, differs};
use crate::results::record::Record;
use crate::results::{Factors, StoredEngine, StoredResults, distinct, factors};

/// The numbers of an artifact.
#[derive(Debug, Clone, Default)]
pub struct ArtifactNumbers {
    pub records: Vec<Record>,
    /// What tells each of them from the others of its run, record by record; empty for those that the paper prints, and
    /// where an older program made them.
    pub factors: Vec<Factors>,
    /// What made them; none for those that the paper prints.
    pub run: Option<Run>,
}

/// A number with what tells it from the others of its run, where that is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) record: &'a Record,
    pub(super) factors: Option<&'a Factors>,
}

impl ArtifactNumbers {
    /// Those that the paper prints.
    pub fn printed(records: Vec<Record>) -> Self {
        Self { records, ..Self::default() }
    }

    /// Those of a results folder.
    pub fn of(stored: StoredResults) -> Self {
        let records = stored.records();
        let factors = stored.numbers.iter().map(|number| stored.factors(number));
        let factors = if stored.identified() { factors.collect() } else { Vec::new() };
        let engine = |name: &String| (name.clone(), stored.engine(name));
        let engines = distinct(records.iter().map(|of| &of.condition.backbone)).iter().map(engine).collect();
        let mut identities: BTreeMap<String, BTreeSet<Leaves>> = BTreeMap::new();
        for number in &stored.numbers {
            let of = &number.record.condition;
            let said = [&of.backbone, &of.depth.to_string(), &of.criterion, &of.recovery, &number.record.metric];
            let trained = if of.finetuned { " trained" } else { "" };
            let said = format!("{}{trained}", said.map(String::as_str).join("/"));
            if let Some(mut leaves) = stored.leaves(number) {
                // What it was calibrated on, a condition says.
                leaves.retain(|aspect, _| !aspect.is_of("calibration.text"));
                identities.entry(said).or_default().insert(leaves);
            }
        }
        let StoredResults { program, gate, settings, inputs, cells, .. } = stored;
        let run = Run { program, gate, settings, inputs, engines, cells: cells.into_values().collect(), identities };
        Self { records, factors, run: Some(run) }
    }

    pub(super) fn known(&self) -> impl Iterator<Item = Known<'_>> {
        self.records.iter().enumerate().map(|(at, record)| Known { record, factors: self.factors.get(at) })
    }
}

/// By name: `table2` and so on.
pub type Artifacts = BTreeMap<String, ArtifactNumbers>;

/// What made the numbers of an artifact.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// Version and commit.
    pub program: String,
    /// Whether a dense backbone that missed the paper's dense numbers would have stopped its pruned cells.
    pub gate: bool,
    /// The grid as it ran.
    pub settings: Value,
    /// SHA-256 of each input file, by path.
    pub inputs: BTreeMap<String, String>,
    /// What ran each backbone.
    pub engines: BTreeMap<String, StoredEngine>,
    /// What tells each cell from the others, options with every default filled in; none where an older program made them.
    pub cells: Vec<Factors>,
    /// What each number is, by what its condition says, its text aside; none where an older program made them.
    pub identities: BTreeMap<String, BTreeSet<Leaves>>,
}

/// Why the numbers of two runs may not be read together; none where they may.
pub(super) fn apart((a, one): (&str, &Run), (b, other): (&str, &Run)) -> Option<String> {
    if one.program != other.program {
        return Some(format!("{a} is by {}, {b} by {}: make both again by one program", one.program, other.program));
    }
    if one.gate != other.gate {
        let open = if one.gate { b } else { a };
        return Some(format!("{open} was made with --no-gate, and the other not"));
    }
    // What a user wrote or can look at comes first; what is left, identities tell.
    let settings = engines_apart(one, other)
        .or_else(|| cells_apart(one, other))
        .or_else(|| definitions_apart(one, other))
        .or_else(|| scored_apart(one, other))
        .or_else(|| identities_apart(one, other));
    settings.map(|what| format!("{a} and {b} differ in {what}"))
}

/// A number of both that is not the same thing in both: the first aspect in which it is not.
fn identities_apart(one: &Run, other: &Run) -> Option<String> {
    let mut both = one.identities.iter().filter_map(|(said, all)| Some((said, all, other.identities.get(said)?)));
    let (said, all, others) = both.find(|(_, all, others)| all != others)?;
    let [own, theirs] = [all.difference(others).next(), others.difference(all).next()];
    let nothing = Leaves::new();
    let differences = differs(own.unwrap_or(&nothing), theirs.unwrap_or(&nothing));
    Some(match (own, theirs, differences.first()) {
        (Some(_), Some(_), Some(first)) => format!("{} of {said}", first.aspect),
        _ => format!("the cells of {said}"),
    })
}

/// A backbone of both that something else ran, or in another float type.
fn engines_apart(one: &Run, other: &Run) -> Option<String> {
    let mut both = one.engines.iter().filter_map(|(name, ran)| Some((name, ran, other.engines.get(name)?)));
    let (name, ran, others) = both.find(|(_, ran, others)| ran != others)?;
    Some(format!("what ran {name}: {ran}, and {others}"))
}

/// A cell that both have, with other options or another calibration than its condition says.
fn cells_apart(one: &Run, other: &Run) -> Option<String> {
    let known = !one.cells.is_empty() && !other.cells.is_empty();
    let (one, other) = match known {
        true => (kept_cells(&one.cells), kept_cells(&other.cells)),
        false => (cells(&one.settings), cells(&other.settings)),
    };
    let differs = one.iter().find(|(name, made)| other.get(*name).is_some_and(|others| others != *made));
    differs.map(|(name, _)| format!("the settings of {name}"))
}

/// Of each cell, by what its condition says, what it does not say.
fn kept_cells(cells: &[Factors]) -> BTreeMap<String, BTreeSet<String>> {
    const SAID: [&str; 4] = ["backbone", factors::DEPTH, "criterion", "recovery"];
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.contains_key("criterion")) {
        let word =
            |name: &str| cell.get(name).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        let said: Vec<String> = SAID.iter().filter_map(|name| word(name)).collect();
        let unsaid = cell.iter().filter(|(name, _)| !SAID.contains(&name.as_str()) && *name != factors::CORPUS);
        let unsaid: Vec<String> = unsaid.map(|(name, value)| format!("{name}={value}")).collect();
        all.entry(said.join("/")).or_default().insert(unsaid.join(" "));
    }
    all
}

/// The same of a run by an older program, by its settings as they are written.
fn cells(settings: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for cell in settings["cells"].as_array().into_iter().flatten() {
        let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let (criterion, recovery) = (&cell["criterion"], &cell["recovery"]);
        if criterion.is_null() {
            continue;
        }
        let said = [&cell["backbone"], &cell["depth"], &criterion["name"], &recovery["name"]].map(word);
        let mut calibration = cell["calibration"].clone();
        if let Some(fields) = calibration.as_object_mut() {
            fields.remove("corpus");
        }
        let unsaid = format!("{} {} {calibration}", criterion["options"], recovery["options"]);
        all.entry(said.join("/")).or_default().insert(unsaid);
    }
    all
}

/// A backbone, text or task of both that is not the same in both: its options, or what its files hold.
fn definitions_apart(one: &Run, other: &Run) -> Option<String> {
    for (section, noun) in [("backbones", "the backbone"), ("corpora", "the text"), ("tasks", "the task")] {
        for (name, definition) in one.settings[section].as_object().into_iter().flatten() {
            let Some(second) = other.settings[section].get(name) else { continue };
            if options(definition) != options(second) {
                return Some(format!("the settings of {noun} {name}"));
            }
            let (first, second) = (files(definition, &one.inputs), files(second, &other.inputs));
            if first != second || first.is_empty() {
                return Some(format!("the files of {noun} {name}"));
            }
        }
    }
    None
}

/// A definition without its place.
fn options(definition: &Value) -> Value {
    let mut options = definition.clone();
    if let Some(fields) = options.as_object_mut() {
        fields.remove("path");
    }
    options
}

/// The hashes of what lies at a definition's place, by the names there.
fn files<'a>(definition: &Value, inputs: &'a BTreeMap<String, String>) -> BTreeMap<&'a str, &'a str> {
    let Some(place) = definition["path"].as_str() else { return BTreeMap::new() };
    let inner = |path: &'a str| path.strip_prefix(place).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    inputs.iter().filter_map(|(path, hash)| Some((inner(path)?, hash.as_str()))).collect()
}

/// What cells are scored on, where both score it.
fn scored_apart(one: &Run, other: &Run) -> Option<String> {
    let list = |run: &Run, kind: &str| run.settings["evaluate"][kind].as_array().cloned().unwrap_or_default();
    let differs = |kind: &&str| {
        let (first, second) = (list(one, kind), list(other, kind));
        !first.is_empty() && !second.is_empty() && first != second
    };
    ["perplexity", "tasks"].into_iter().find(|kind| differs(kind)).map(|kind| format!("evaluate.{kind}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::identity::Canonical;

    fn engine(dtype: &str) -> StoredEngine {
        StoredEngine { name: "candle".into(), dtype: dtype.into(), device: "cpu".into() }
    }

    #[test]
    fn another_engine_or_float_type_keeps_them_apart() {
        let why = why(|run| drop(run.engines.insert("llama".into(), engine("bf16"))));
        assert_eq!(why, "table2 and tableA7 differ in what ran llama: candle f32 on cpu, and candle bf16 on cpu");
        // A backbone that only one of them has.
        assert_eq!(self::why(|run| drop(run.engines.insert("other".into(), engine("bf16")))), "");
    }

    #[test]
    fn numbers_of_one_condition_that_are_not_one_thing_keep_them_apart_by_the_aspect() {
        let leaves = |of: Value| BTreeSet::from([crate::identity::leaves(&of)]);
        let (mut one, mut other) = (run(), run());
        let all = |seed: u64| [("llama/4/sleb/ghosted/rte".to_owned(), leaves(json!({"calibration": {"seed": seed}})))];
        (one.identities, other.identities) = (all(0).into(), all(0).into());
        assert_eq!(apart(("a", &one), ("b", &other)), None);
        other.identities = all(1).into();
        assert_eq!(
            apart(("a", &one), ("b", &other)).unwrap(),
            "a and b differ in calibration.seed of llama/4/sleb/ghosted/rte"
        );
    }

    #[test]
    fn every_aspect_of_what_a_number_is_keeps_them_apart() {
        let aspects = crate::identity::aspects();
        assert!(aspects.len() > 40, "{aspects:?}");
        for aspect in aspects {
            let of = |value: &str| {
                let leaves = Leaves::from([(aspect.clone(), Canonical::of(&json!(value)))]);
                Run { identities: [("said".to_owned(), BTreeSet::from([leaves]))].into(), ..run() }
            };
            assert_eq!(apart(("a", &of("one")), ("b", &of("one"))), None);
            let why = apart(("a", &of("one")), ("b", &of("other"))).unwrap();
            assert_eq!(why, format!("a and b differ in {aspect} of said"));
        }
    }

    #[test]
    fn a_default_that_is_written_out_keeps_nothing_apart_and_a_seed_does() {
        let cell = |seed: u64| {
            let of = json!({
                "backbone": "llama", "depth": 4, "criterion": "sleb",
                "recovery": "ghosted", "calibration": {"corpus": "c4", "seed": seed}, "solver": "normal",
            });
            vec![factors::below("", &of)]
        };
        let (mut one, mut other) = (run(), run());
        other.settings["cells"][2]["recovery"]["options"] = json!({"solver": "normal"});
        assert!(apart(("a", &one), ("b", &other)).is_some(), "as it was written");
        (one.cells, other.cells) = (cell(0), cell(0));
        assert_eq!(apart(("a", &one), ("b", &other)), None);
        other.cells = cell(1);
        assert_eq!(
            apart(("a", &one), ("b", &other)).unwrap(),
            "a and b differ in the settings of llama/4/sleb/ghosted"
        );
    }

    fn run() -> Run {
        let cell = |recovery: &str| {
            json!({
                "backbone": "llama", "depth": 4,
                "criterion": {"name": "sleb", "options": {}}, "recovery": {"name": recovery, "options": {}},
                "calibration": {"corpus": "c4", "sequences": 128, "length": 256, "operator_sequences": 32},
            })
        };
        let dense = json!({"backbone": "llama", "depth": 0, "criterion": null, "recovery": null, "calibration": null});
        Run {
            program: "ghostlab 0.1.0 ab".into(),
            gate: true,
            settings: json!({
                "backbones": {"llama": {"path": "models/llama", "layers": 16}},
                "corpora": {"c4": {"path": "c4.jsonl", "rule": "c4", "limit": null}},
                "tasks": {"copa": {"path": "copa.jsonl"}},
                "evaluate": {"perplexity": [], "tasks": [{"name": "copa", "limit": 300}]},
                "cells": [dense, cell("none"), cell("ghosted")],
            }),
            engines: [("llama".to_owned(), engine("f32"))].into(),
            cells: Vec::new(),
            identities: BTreeMap::new(),
            inputs: [
                ("models/llama/config.json", "1"),
                ("models/llama-2/config.json", "2"),
                ("c4.jsonl", "3"),
                ("copa.jsonl", "4"),
            ]
            .map(|(path, hash)| (path.to_owned(), hash.to_owned()))
            .into(),
        }
    }

    fn why(change: impl FnOnce(&mut Run)) -> String {
        let mut other = run();
        change(&mut other);
        apart(("table2", &run()), ("tableA7", &other)).unwrap_or_default()
    }

    #[test]
    fn runs_of_one_program_on_the_same_settings_and_inputs_are_read_together() {
        assert_eq!(why(|_| ()), "");
        // What a condition says may differ, and so may what only one of the two has.
        assert_eq!(why(|run| run.settings["cells"][1]["calibration"]["corpus"] = json!("wikitext2")), "");
        assert_eq!(why(|run| run.settings["cells"][1]["depth"] = json!(6)), "");
        assert_eq!(why(|run| run.settings["corpora"]["ptb"] = json!({"path": "ptb.txt"})), "");
        assert_eq!(why(|run| run.settings["evaluate"]["perplexity"] = json!([{"corpus": "c4"}])), "");
        // The same files elsewhere.
        let moved = why(|run| {
            run.settings["corpora"]["c4"]["path"] = json!("/data/c4.jsonl");
            run.inputs.remove("c4.jsonl");
            run.inputs.insert("/data/c4.jsonl".into(), "3".into());
        });
        assert_eq!(moved, "");
    }

    #[test]
    fn another_program_or_gate_keeps_them_apart() {
        assert!(why(|run| run.program = "ghostlab 0.1.0 cd".into()).contains("by one program"));
        assert_eq!(why(|run| run.gate = false), "tableA7 was made with --no-gate, and the other not");
    }

    #[test]
    fn other_settings_keep_them_apart() {
        let cell = why(|run| run.settings["cells"][2]["calibration"]["operator_sequences"] = json!(128));
        assert_eq!(cell, "table2 and tableA7 differ in the settings of llama/4/sleb/ghosted");
        let option = why(|run| run.settings["cells"][1]["criterion"]["options"] = json!({"cosine": "token"}));
        assert!(option.ends_with("the settings of llama/4/sleb/none"), "{option}");
        let rule = why(|run| run.settings["corpora"]["c4"]["rule"] = json!("ptb"));
        assert!(rule.ends_with("the settings of the text c4"), "{rule}");
        let limit = why(|run| run.settings["evaluate"]["tasks"][0]["limit"] = json!(100));
        assert!(limit.ends_with("evaluate.tasks"), "{limit}");
    }

    #[test]
    fn other_inputs_keep_them_apart_and_so_do_unknown_ones() {
        let other = why(|run| drop(run.inputs.insert("models/llama/config.json".into(), "9".into())));
        assert_eq!(other, "table2 and tableA7 differ in the files of the backbone llama");
        let none = || Run { inputs: BTreeMap::new(), ..run() };
        let unknown = apart(("table2", &none()), ("tableA7", &none())).unwrap_or_default();
        assert!(unknown.ends_with("the files of the backbone llama"), "{unknown}");
    }
}
