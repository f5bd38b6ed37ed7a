use serde_json::json;

use super::*;
use crate::grid::{Calibration, MethodAxis};
use crate::recovery;

/// Builds a method as written in a grid: `{"name": "ghosted", "solver": "svd"}`.
fn method<M: MethodAxis + ?Sized>(written: &Value) -> Method<M> {
    let mut options = written.as_object().unwrap().clone();
    let name = options.remove("name").unwrap();
    Method::new(name.as_str().unwrap(), &options).unwrap()
}

fn cell(backbone: &str, criterion: &Value, depth: usize, recovery: &Value, calibration: &Value) -> Cell {
    let sequences = integer(calibration, "sequences", 8);
    Cell {
        backbone: backbone.to_owned(),
        criterion: Some(method(criterion)),
        depth: depth.into(),
        recovery: Some(method(recovery)),
        calibration: Some(Calibration {
            corpus: calibration["corpus"].as_str().unwrap_or("c4").to_owned(),
            sequences: to_usize(sequences),
            length: to_usize(integer(calibration, "length", 64)),
            seed: integer(calibration, "seed", 0),
            operator_sequences: to_usize(integer(calibration, "operator_sequences", sequences)),
        }),
        name: String::new(),
    }
}

fn integer(calibration: &Value, key: &str, default: u64) -> u64 {
    calibration[key].as_u64().unwrap_or(default)
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

fn names(cells: &[Cell]) -> Vec<String> {
    let mut cells = cells.to_vec();
    assign_names(&mut cells);
    cells.into_iter().map(|cell| cell.name).collect()
}

/// Returns the names of cells that differ only in their recovery.
fn recovery_names(recoveries: &[Value]) -> Vec<String> {
    let streamline = json!({"name": "llm-streamline"});
    names(
        &recoveries
            .iter()
            .map(|recovery| cell("llama-3.1-8b", &streamline, 7, recovery, &json!({})))
            .collect::<Vec<_>>(),
    )
}

fn calibration_names(calibrations: &[Value]) -> Vec<String> {
    let sleb = json!({"name": "sleb"});
    let none = json!({"name": "none"});
    names(&calibrations.iter().map(|calibration| cell("a", &sleb, 2, &none, calibration)).collect::<Vec<_>>())
}

#[test]
fn name_has_backbone_criterion_depth_and_recovery() {
    assert_eq!(recovery_names(&[json!({"name": "ghosted"})]), ["llama-3.1-8b.streamline-7.ghosted"]);
    assert_eq!(names(&[Cell::with_name("llama-3.1-8b", "")]), ["llama-3.1-8b.dense"]);
    // A cell without neighbors (cells with equal backbone, criterion, depth and recovery) has no options in its name.
    let alone = [json!({"name": "ghosted", "solver": "svd", "finetune": {"sequences": 4, "length": 32}})];
    assert_eq!(recovery_names(&alone), ["llama-3.1-8b.streamline-7.ghosted"]);
}

#[test]
fn name_suffix_lists_differing_options_without_defaults() {
    let plain = json!({"name": "ghosted"});
    let svd = json!({"name": "ghosted", "solver": "svd"});
    assert_eq!(names_of(&[plain.clone(), svd.clone()]), ["ghosted", "ghosted.solver-svd"]);
    assert_eq!(names_of(&[json!({"name": "ghosted", "solver": "normal"}), svd]), ["ghosted", "ghosted.solver-svd"]);
    assert_eq!(names_of(&[plain, finetuned(0)]), ["ghosted", "ghosted.finetune"]);
    assert_eq!(
        names_of(&[json!({"name": "ghosted"}), finetuned(0), finetuned(1)])[1..],
        ["ghosted.finetune-seed-0", "ghosted.finetune-seed-1"]
    );
    assert_eq!(names_of(&[finetuned(1), finetuned(2)]), ["ghosted.finetune-seed-1", "ghosted.finetune-seed-2"]);

    assert_eq!(
        names(&[explicit(&[3, 4]), explicit(&[3, 5]), explicit(&[7])]),
        ["a.explicit-2.none.layers-3-4", "a.explicit-2.none.layers-3-5", "a.explicit-1.none"]
    );

    assert_eq!(
        calibration_names(&[json!({}), json!({"seed": 1}), json!({"seed": 2, "operator_sequences": 3})]),
        ["a.sleb-2.none", "a.sleb-2.none.seed-1", "a.sleb-2.none.seed-2"]
    );
    // The cells differ in four settings, but the first one is enough to distinguish them.
    let unlike = json!({"corpus": "wiki", "sequences": 16, "length": 32, "seed": 7});
    assert_eq!(calibration_names(&[json!({}), unlike]), ["a.sleb-2.none.corpus-c4", "a.sleb-2.none.corpus-wiki"]);
    assert_eq!(
        calibration_names(&[json!({}), json!({"corpus": "wikitext2-train"}), json!({"sequences": 16})]),
        [
            "a.sleb-2.none.corpus-c4.sequences-8",
            "a.sleb-2.none.corpus-wikitext2-train.sequences-8",
            "a.sleb-2.none.corpus-c4.sequences-16"
        ]
    );
}

fn finetuned(seed: u64) -> Value {
    json!({"name": "ghosted", "finetune": {"sequences": 4, "length": 32, "seed": seed}})
}

fn explicit(chosen: &[usize]) -> Cell {
    cell("a", &json!({"name": "explicit", "layers": chosen}), chosen.len(), &json!({"name": "none"}), &json!({}))
}

fn names_of(all: &[Value]) -> Vec<String> {
    recovery_names(all).iter().map(|name| name.replace("llama-3.1-8b.streamline-7.", "")).collect()
}

#[test]
fn colliding_names_are_distinguished_by_hash_digits() {
    let names_of =
        |backbones: &[&str]| names(&backbones.iter().map(|backbone| Cell::with_name(backbone, "")).collect::<Vec<_>>());
    assert_eq!(names_of(&["my model"]), ["my-model.dense"]);
    let two = names_of(&["my model", "My-model", "other"]);
    assert!(two[0].starts_with("my-model.dense.") && two[1].starts_with("My-model.dense."), "{two:?}");
    assert_eq!(two[0].len(), "my-model.dense.".len() + HASH_DIGITS);
    assert_eq!(two[2], "other.dense");
    assert_eq!(names_of(&["..", "-x", "日本"])[1], "x.dense");
    let long = "x".repeat(200);
    assert!(names_of(&[&long])[0].len() < 100);
}

/// Deterministic random number generator (xorshift).
struct RandomNumbers(u64);

impl RandomNumbers {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % count as u64) as usize
    }

    fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Backbone names that do not resemble each other.
const PLAIN_NAMES: [&str; 4] = ["llama-3.1-8b", "a", "b", "a.b"];
/// Backbone names that resemble each other or parts of cell names.
const SPECIAL_NAMES: [&str; 14] = [
    "a",
    "A",
    "a b",
    "a-b",
    "a.b",
    ".a",
    "-a",
    "日本",
    "日",
    "a.dense",
    "a.sleb-1.none",
    "a.sleb-1.none.seed-1",
    "a.streamline-1.ghosted.rank-0.5",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
];

/// Draws up to `count` distinct cells.
fn random_cells(random: &mut RandomNumbers, backbones: &[&str], count: usize) -> Vec<Cell> {
    let criteria = [
        json!({"name": "llm-streamline"}),
        json!({"name": "llm-streamline", "cosine": "token"}),
        json!({"name": "shortgpt"}),
        json!({"name": "shortgpt", "cosine": "token", "last_layer": "allow"}),
        json!({"name": "sleb"}),
        json!({"name": "explicit", "layers": [1, 2]}),
        json!({"name": "explicit", "layers": (0..60).collect::<Vec<_>>()}),
        json!({"name": "explicit", "layers": (1..61).collect::<Vec<_>>()}),
    ];
    let mut recoveries = vec![
        json!({"name": "none"}),
        json!({"name": "ghosted"}),
        json!({"name": "ghosted", "solver": "svd"}),
        json!({"name": "ghosted", "boundary": "layer"}),
        json!({"name": "prune-and-comp", "granularity": "scalar", "target": "stream"}),
        json!({"name": "prune-and-comp"}),
    ];
    for (sequences, seed) in [(4, 0), (4, 1), (5, 0)] {
        let finetune = json!({"sequences": sequences, "length": 32, "seed": seed});
        recoveries.push(json!({"name": "ghosted", "finetune": finetune}));
    }
    let corpora = ["c4", "C4", "c4 x", "c4-x", "c4.x", "c4.sleb-1.none", "dense"];
    let mut cells: Vec<Cell> = Vec::new();
    for _ in 0..count {
        let calibration = json!({
            "corpus": random.choose(&corpora), "sequences": 8 + random.below(2), "length": 64 + random.below(2),
            "seed": random.below(3), "operator_sequences": 7 + random.below(2),
        });
        let backbone: &str = backbones[random.below(backbones.len())];
        let drawn = match random.below(12) {
            0 => Cell::with_name(backbone, ""),
            _ => {
                let criterion = random.choose(&criteria).clone();
                let recovery = random.choose(&recoveries).clone();
                cell(backbone, &criterion, 1 + random.below(2), &recovery, &calibration)
            }
        };
        if !cells.contains(&drawn) {
            cells.push(drawn);
        }
    }
    cells
}

#[test]
fn names_are_safe_and_unique_within_a_grid() {
    let mut random = RandomNumbers(1);
    for _ in 0..60 {
        let count = 1 + random.below(300);
        let cells = random_cells(&mut random, &SPECIAL_NAMES, count);
        let names = names(&cells);
        let folded: BTreeSet<String> = names.iter().map(|name| name.to_lowercase()).collect();
        assert_eq!(folded.len(), cells.len(), "{names:#?}");
        for name in names {
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)), "{name}");
            assert!(!name.starts_with(['.', '-']) && !name.ends_with('.') && !name.contains("..2"), "{name}");
            assert!(name.len() <= MAX_NAME_BYTES + 1 + 64, "{name}");
        }
    }
}

#[test]
fn name_does_not_depend_on_unrelated_cells() {
    let mut random = RandomNumbers(2);
    for _ in 0..40 {
        let cells = random_cells(&mut random, &PLAIN_NAMES, 120);
        let named = names(&cells);
        // The order of the cells must not affect their names.
        let backwards: Vec<Cell> = cells.iter().rev().cloned().collect();
        assert_eq!(names(&backwards), named.iter().rev().cloned().collect::<Vec<_>>());
        // Removing a cell must affect only the names of its neighbors.
        let at = random.below(cells.len());
        let fewer: Vec<Cell> = (0..cells.len()).filter(|&i| is_other_cell(at, i)).map(|i| cells[i].clone()).collect();
        let without = names(&fewer);
        for (index, i) in (0..cells.len()).filter(|&i| is_other_cell(at, i)).enumerate() {
            assert!(
                without[index] == named[i] || are_neighbors(&cells[i], &cells[at]),
                "{} {}",
                without[index],
                named[i]
            );
        }
        // Default options must not affect the names, whether or not they are written out.
        let mut unwritten = cells.clone();
        for cell in &mut unwritten {
            cell.criterion.iter_mut().for_each(|criterion| criterion.options = criterion.resolved.clone());
            cell.recovery.iter_mut().for_each(|recovery| recovery.options = recovery.resolved.clone());
        }
        assert_eq!(names(&unwritten), named);
    }
}

fn are_neighbors(one: &Cell, other: &Cell) -> bool {
    neighbor_key(one) == neighbor_key(other)
}

fn is_other_cell(removed: usize, index: usize) -> bool {
    index != removed
}

/// Checks that a name can be split into its beginning and its further parts in only one way. This holds only if no
/// further part equals `dense` or the name of a recovery.
#[test]
fn short_method_names_keep_cell_names_unambiguous() {
    let criteria = criterion::descriptions();
    let short: BTreeSet<&str> = criteria.iter().map(|criterion| criterion.short).collect();
    assert_eq!(short.len(), criteria.len());
    assert!(short.iter().all(|name| is_safe(name) && *name != "dense"), "{short:?}");
    let recoveries = recovery::descriptions();
    let last: BTreeSet<String> =
        recoveries.iter().map(|recovery| recovery.name.clone()).chain(["dense".to_owned()]).collect();
    assert_eq!(last.len(), recoveries.len() + 1);
    assert!(last.iter().all(|name| is_safe(name)), "{last:?}");
    let options = criteria.iter().chain(&recoveries).flat_map(|criterion| criterion.options["properties"].as_object());
    // If the value of an option is a map, the key can appear in a cell name on its own.
    let options = options.flatten().map(|(name, option)| (name.clone(), option.to_string().contains("\"object\"")));
    let settings = ["corpus", "sequences", "length", "seed", "operator_sequences"].map(|name| (name.to_owned(), false));
    for (option, map) in options.chain(settings) {
        let begins = format!("{option}-");
        assert!(
            !last.iter().any(|name| map && *name == option || name.starts_with(&begins)),
            "{option} could be mistaken for a recovery"
        );
    }
}

fn is_safe(name: &str) -> bool {
    !name.is_empty()
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && name.starts_with(|c: char| c.is_ascii_lowercase())
}

fn neighbor_key(cell: &Cell) -> (String, Vec<String>, crate::criterion::Depth) {
    let names: Vec<String> = methods(cell).map(|(_, name, _)| name.clone()).collect();
    (cell.backbone.clone(), names, cell.depth)
}
