//! Setting pairs that differ in the removed layers or in the recovery.

use super::{Pair, between, pair, planned};

/// Returns setting pairs that differ in the removed layers.
pub(super) fn cuts() -> Vec<Pair> {
    vec![
        pair("another criterion", &["cut.criterion", "cut.options"], |setting| {
            setting.replace_in_grid("llm-streamline", "shortgpt");
        }),
        pair("an option of the criterion", &["cut.options.cosine"], |setting| {
            setting.replace_in_grid("criterion: llm-streamline", "criterion: {name: llm-streamline, cosine: token}");
        }),
        pair("another depth", &["cut.depth"], |setting| setting.replace_in_grid("depth: 1", "depth: 2")),
        between(
            "another backbone's published order",
            &["cut.known"],
            |setting| {
                setting.deepen_model();
                setting.replace_in_grid("tiny: {path", "llama-2-7b: {path");
                setting.replace_in_grid("backbone: tiny", "backbone: llama-2-7b");
            },
            |setting| {
                setting.deepen_model();
                setting.replace_in_grid("tiny: {path", "llama-3-8b: {path");
                setting.replace_in_grid("backbone: tiny", "backbone: llama-3-8b");
            },
        ),
    ]
}

/// Returns setting pairs that differ in the recovery.
pub(super) fn repairs() -> Vec<Pair> {
    vec![
        pair("another recovery", &["repair.fitted", "repair.options", "repair.recovery"], |setting| {
            setting.replace_in_grid("recovery: ghosted", "recovery: replaceme-ls");
        }),
        pair("an option of the recovery", &["repair.options.solver"], |setting| {
            setting.replace_in_grid("recovery: ghosted", "recovery: {name: ghosted, solver: svd}");
        }),
        planned(
            "another repair of layers removed one by one",
            &["cut.repaired.options", "cut.repaired.recovery", "repair.options", "repair.recovery"],
            |setting| setting.make_iterative(),
            |setting| {
                setting.make_iterative();
                setting.replace_in_grid("recovery: ghosted", "recovery: linearpatch-diag");
            },
        ),
        planned(
            "fewer sequences for repairing layers removed one by one",
            &["cut.repaired.fitted", "repair.fitted"],
            |setting| setting.make_iterative(),
            |setting| {
                setting.make_iterative();
                setting.replace_in_grid("operator_sequences: 3", "operator_sequences: 2");
            },
        ),
        pair("fewer sequences for solving the operator", &["repair.fitted"], |setting| {
            setting.replace_in_grid("operator_sequences: 3", "operator_sequences: 2");
        }),
    ]
}

/// Returns setting pairs that differ in the fine-tuning of a recovery.
pub(super) fn training() -> Vec<Pair> {
    vec![
        pair("training", &["repair.training.length", "repair.training.seed", "repair.training.sequences"], |setting| {
            setting.add_finetuning();
        }),
        between(
            "more training sequences",
            &["repair.training.sequences"],
            |setting| setting.add_finetuning(),
            |setting| {
                setting.add_finetuning();
                setting.replace_in_grid("finetune: {sequences: 4", "finetune: {sequences: 5");
            },
        ),
        between(
            "longer training sequences",
            &["repair.training.length"],
            |setting| setting.add_finetuning(),
            |setting| {
                setting.add_finetuning();
                setting.replace_in_grid("length: 32, seed", "length: 48, seed");
            },
        ),
        between(
            "another training seed",
            &["repair.training.seed"],
            |setting| setting.add_finetuning(),
            |setting| {
                setting.add_finetuning();
                setting.replace_in_grid("seed: 0", "seed: 1");
            },
        ),
    ]
}
