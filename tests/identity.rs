//! Tests that keys, journal names and lease names change if and only if a setting that affects the numbers changes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::BTreeSet;

use crate::common;
use crate::common::pairs::{self, CONSTANT_SETTINGS, Pair, Setting};
use crate::common::world::World;
use ghostlab::grid::Grid;
use ghostlab::model::EngineRequest;
use ghostlab::pipeline::exec::RunSettings;
use ghostlab::pipeline::identity::{Identity, SettingDifference, SettingPath, setting_differences, setting_paths};
use ghostlab::pipeline::plan::{Estimate, Plan, StoreView};
use ghostlab::pipeline::stage;
use ghostlab_store::Store;
use serde_json::Value;

/// Identity of a number, and the key, journal name and lease name derived from it.
struct NamedMeasurement {
    identity: Identity,
    key: String,
    /// Name of the journal that stores scored chunks; `None` for a latency.
    journal: Option<String>,
    /// Name of the lease of the calibration pass.
    lease: String,
}

/// Returns the identity and the derived names for each measurement of a setting's last cell.
fn named_measurements(setting: &Setting) -> Vec<NamedMeasurement> {
    let mut request = EngineRequest::default();
    let mut overrides = Vec::new();
    for words in setting.arguments.chunks(2) {
        let [name, value] = words else { panic!("{words:?}") };
        match name.as_str() {
            "--engine" => request.engine = Some(value.parse().unwrap()),
            "--device" => request.device = Some(value.parse().unwrap()),
            "--dtype" => request.dtype = Some(value.parse().unwrap()),
            "--kernels" => request.kernels = Some(value.parse().unwrap()),
            "--set" => overrides.push(value.clone()),
            other => panic!("{other}"),
        }
    }
    let grid = Grid::load(&setting.world.path("grid.yaml"), None, &overrides).unwrap();
    let store = Store::open_read_only(&setting.world.path("data/store"), stage::STORE_WORDS).unwrap();
    let plan = Plan::new(&grid, &store, RunSettings::with_engine(request)).unwrap();
    let (backbone, variant) = plan.variants().last().unwrap();
    let lease = backbone.calibrations[variant.calibration.unwrap()].lease_name(backbone);
    let measures =
        backbone.evaluations.iter().map(|evaluation| (&evaluation.measure, Some(evaluation.journal.clone())));
    let measures = measures.chain(variant.prompts.iter().map(|prompt| (prompt, None)));
    let keys = variant.scores.iter().chain(&variant.latencies);
    let named = measures.zip(keys).map(|((measure, journal), key)| NamedMeasurement {
        identity: variant.identity.with_measure(measure),
        key: key.hash().to_owned(),
        journal,
        lease: lease.clone(),
    });
    named.collect()
}

#[test]
fn every_setting_path_is_covered_by_a_test_pair() {
    let pairs = pairs::differing_pairs();
    let missing: Vec<SettingPath> = setting_paths()
        .into_iter()
        .filter(|setting_path| !is_covered(&pairs, setting_path) && setting_path.as_str() != "measure")
        .collect();
    assert!(missing.is_empty(), "tests/common/pairs.rs has no pair for {missing:?}");
}

fn is_covered(pairs: &[Pair], setting_path: &SettingPath) -> bool {
    let mut all = pairs.iter().flat_map(|pair| pair.setting_paths);
    CONSTANT_SETTINGS.contains(&setting_path.as_str())
        || all.any(|path| SettingPath::new(*path).is_of(setting_path.as_str()))
}

#[test]
fn identities_differ_exactly_in_the_changed_settings() {
    for pair in pairs::differing_pairs().iter().chain(&pairs::equal_pairs()) {
        let one = named_measurements(&pair.one());
        let other = named_measurements(&pair.other());
        assert_eq!(one.len(), other.len(), "{}", pair.what);
        let found: BTreeSet<SettingPath> = one
            .iter()
            .zip(&other)
            .flat_map(|(one, other)| differences(&one.identity, &other.identity))
            .map(|difference| difference.path)
            .collect();
        let stray =
            found.iter().filter(|setting_path| !pair.setting_paths.iter().any(|known| setting_path.is_of(known)));
        let stray: Vec<&SettingPath> = stray.collect();
        assert!(stray.is_empty(), "{}: {stray:?}", pair.what);
        for setting_path in pair.setting_paths {
            assert!(
                found.iter().any(|path| path.is_of(setting_path)),
                "{}: {setting_path} is not in {found:?}",
                pair.what
            );
        }
    }
}

#[test]
fn released_order_is_identified_by_its_layers() {
    let pairs = pairs::differing_pairs();
    let pair = pairs.iter().find(|pair| pair.setting_paths.contains(&"cut.known")).unwrap();
    let mut rows = csv::Reader::from_path(common::checkout().join("data/released_orders.csv")).unwrap();
    let rows: Vec<csv::StringRecord> = rows.records().map(Result::unwrap).collect();
    for (setting, backbone) in [(pair.one(), "llama-2-7b"), (pair.other(), "llama-3-8b")] {
        let row = rows.iter().find(|row| &row[0] == backbone && &row[1] == "ppl").unwrap();
        let order: Vec<usize> = row[2].split(' ').map(|layer| layer.parse().unwrap()).collect();
        for entry in named_measurements(&setting) {
            let cut = entry.identity.cut.as_ref().unwrap();
            assert_eq!(cut.known.as_ref().unwrap().value(), serde_json::json!(order));
        }
    }
}

fn differences(one: &Identity, other: &Identity) -> Vec<SettingDifference> {
    setting_differences(&one.flat_settings(), &other.flat_settings())
}

/// Returns whether two identities differ in a setting at or below one of the given paths.
fn differs_in(one: &Identity, other: &Identity, paths: &[&str]) -> bool {
    differences(one, other).iter().any(|difference| paths.iter().any(|path| difference.path.is_of(path)))
}

#[test]
fn keys_journals_and_leases_differ_exactly_when_settings_do() {
    for pair in pairs::differing_pairs().iter().chain(&pairs::equal_pairs()) {
        for (one, other) in named_measurements(&pair.one()).into_iter().zip(named_measurements(&pair.other())) {
            let a = &one.identity;
            let b = &other.identity;
            let what = pair.what;
            let measure = &a.flat_settings();
            assert_eq!(one.key != other.key, a != b, "key, {what}: {measure:?}");
            // The scoring journal for a text is shared by all cells of a backbone.
            assert_eq!(
                one.journal != other.journal,
                one.journal.is_some() && differs_in(a, b, &["model", "engine", "measure"]),
                "journal, {what}"
            );
            assert_eq!(
                one.lease != other.lease,
                // Quantizing the weights after a repair is computed does not change the calibration.
                differs_in(a, b, &["model.content", "model.tokenizer", "engine", "calibration"]),
                "lease, {what}"
            );
        }
    }
}

fn collect_keys(answer: &Value, keys: &mut BTreeSet<String>) {
    match answer {
        Value::Object(map) => {
            keys.extend(map.get("key").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| collect_keys(value, keys));
        }
        Value::Array(items) => items.iter().for_each(|value| collect_keys(value, keys)),
        _ => {}
    }
}

/// Returns the store keys that occur in the output of `plan --json`, `explain --json` and `explain` for a setting.
fn printed_keys(setting: &Setting) -> [BTreeSet<String>; 3] {
    let plan = run_command(setting, &["plan", "grid.yaml"], &["--json"]);
    let answer: Value = serde_json::from_str(&plan).unwrap();
    let mut cells = BTreeSet::new();
    collect_cell_names(&answer, &mut cells);
    let cell = cells.iter().find(|name| !name.ends_with(".dense")).unwrap().clone();
    let explained = run_command(setting, &["explain", "grid.yaml", &cell], &["--json"]);
    let text = run_command(setting, &["explain", "grid.yaml", &cell], &[]);
    let text = text
        .split_whitespace()
        .filter(|word| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .map(str::to_owned)
        .collect();
    [parse_keys(&plan), parse_keys(&explained), text]
}

fn parse_keys(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    collect_keys(&serde_json::from_str(text).unwrap(), &mut found);
    found
}

/// Collects the names of the cells that still have to run.
fn collect_cell_names(answer: &Value, names: &mut BTreeSet<String>) {
    match answer {
        Value::Object(map) => {
            names.extend(map.get("cell").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| collect_cell_names(value, names));
        }
        Value::Array(items) => items.iter().for_each(|value| collect_cell_names(value, names)),
        _ => {}
    }
}

#[test]
fn plan_and_explain_keys_differ_exactly_when_settings_do() {
    for pair in pairs::differing_pairs().iter().chain(&pairs::equal_pairs()).filter(|pair: &&Pair| pair.runs) {
        let one = printed_keys(&pair.one());
        let other = printed_keys(&pair.other());
        for (view, (one, other)) in ["plan --json", "explain --json", "explain"].iter().zip(one.iter().zip(&other)) {
            assert!(!one.is_empty(), "{view} prints no key");
            assert_eq!(one != other, !pair.setting_paths.is_empty(), "{view}, {}", pair.what);
        }
    }
}

#[test]
fn calibrations_with_different_operator_sequences_share_a_pass() {
    let plan_of = |count: &str, look: &dyn Fn(&Plan<'_>, &StoreView) -> Vec<f64>| {
        let world = World::new();
        let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
        let line = "{corpus: train, sequences: 8, length: 64}";
        assert!(grid.contains(line));
        let more = line.replace('}', &format!(", operator_sequences: {count}}}"));
        world.write("grid.yaml", grid.replace(line, &more));
        // Estimating costs requires tokenized corpora, so run the grid once.
        world.run_ok(&[]);
        let grid = Grid::load(&world.path("grid.yaml"), None, &[]).unwrap();
        let store = Store::open_read_only(&world.path("data/store"), stage::STORE_WORDS).unwrap();
        let plan = Plan::new(&grid, &store, RunSettings::default()).unwrap();
        look(&plan, &StoreView::survey(&plan, &store))
    };
    let several = "[2, 4, 8]";
    plan_of(several, &|plan, state| {
        let backbone = &plan.backbones[0];
        assert_eq!(backbone.calibrations.len(), 1);
        let estimate = Estimate::from_plan(plan, state, u64::MAX, u64::MAX).unwrap();
        assert_eq!(estimate.jobs.len(), 1 + backbone.evaluations.len());
        let fitted: BTreeSet<usize> =
            backbone.variants.iter().filter_map(|variant| Some(variant.identity.repair.as_ref()?.fitted)).collect();
        assert!(fitted.is_superset(&BTreeSet::from([2, 4])), "operators do not keep their sequence counts: {fitted:?}");
        Vec::new()
    });
    let shared_costs = |count: &str| {
        plan_of(count, &|plan, state| {
            let all = Estimate::from_plan(plan, state, u64::MAX, u64::MAX).unwrap();
            let jobs: f64 = all.jobs.iter().take(1).map(|job| job.cost.shared).sum();
            vec![all.cost.shared, jobs]
        })
    };
    let one = shared_costs("8")[1];
    let three = shared_costs(several)[1];
    // Both grids need one calibration pass, and solving more operators adds little to its cost.
    assert!(three < 3.0 * one && three > one, "{one} {three}");
}

#[test]
fn identity_round_trips_through_json() {
    for entry in named_measurements(&pairs::differing_pairs()[0].one()) {
        let text = serde_json::to_string(&entry.identity).unwrap();
        let read: Identity = serde_json::from_str(&text).unwrap();
        assert_eq!(read, entry.identity);
    }
}

#[test]
fn stored_objects_describe_their_identity() {
    let world = World::new();
    world.run_ok(&["--set", "depth=1"]);
    let store = Store::open_read_only(&world.path("data/store"), stage::STORE_WORDS).unwrap();
    let mut kinds = BTreeSet::new();
    for entry in store.entries() {
        let Ok(artifact) = &entry.object else { panic!("{entry:?}") };
        let about = artifact.meta().description();
        if about.is_null() {
            continue;
        }
        let identity: Identity = serde_json::from_value(about.clone()).unwrap();
        let kind = entry.stage.split('-').next().unwrap().to_owned();
        assert_eq!(identity.measure.is_some(), kind == "scores", "{kind}");
        assert_eq!(identity.engine.dtype, "f32");
        kinds.insert(kind);
    }
    assert_eq!(kinds, ["operator", "scores", "selection"].map(str::to_owned).into());
}

fn run_command(setting: &Setting, arguments: &[&str], more: &[&str]) -> String {
    let arguments: Vec<&str> = arguments
        .iter()
        .copied()
        .chain(setting.arguments.iter().map(String::as_str))
        .chain(more.iter().copied())
        .collect();
    let output = setting.world.ghostlab(&arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
