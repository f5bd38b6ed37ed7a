//! Setting pairs that differ in the calibration or evaluation texts.

use super::{Pair, between, pair, planned};

/// Returns setting pairs that differ in the calibration data.
pub(super) fn calibration() -> Vec<Pair> {
    vec![
        pair("another calibration text", &["calibration.text.bytes"], |setting| setting.add_text_row("train.jsonl")),
        pair("a calibration text in another file format", &["calibration.text.format"], |setting| {
            setting.rename("train.jsonl", "train.txt");
        }),
        pair("another column of the calibration text", &["calibration.text.column"], |setting| {
            setting.replace_in_grid("train.jsonl, rule: ptb", "train.jsonl, rule: ptb, column: side");
        }),
        pair("another rule of the calibration text", &["calibration.text.rule"], |setting| {
            setting.replace_in_grid("train.jsonl, rule: ptb", "train.jsonl, rule: wikitext2");
        }),
        pair("more calibration sequences", &["calibration.sequences"], |setting| {
            setting.replace_in_grid("sequences: 4, length", "sequences: 5, length");
        }),
        pair("longer calibration sequences", &["calibration.length"], |setting| {
            setting.replace_in_grid("length: 32,", "length: 48,");
        }),
        pair("another calibration seed", &["calibration.seed"], |setting| {
            setting.replace_in_grid("operator_sequences: 3", "operator_sequences: 3, seed: 1");
        }),
    ]
}

/// Returns setting pairs that differ in the evaluated text.
pub(super) fn texts() -> Vec<Pair> {
    vec![
        pair("another text", &["measure.windows.text.bytes"], |setting| setting.add_text_row("test.jsonl")),
        pair("a text in another file format", &["measure.windows.text.format"], |setting| {
            setting.rename("test.jsonl", "test.txt");
        }),
        pair("another column", &["measure.windows.text.column"], |setting| {
            setting.replace_in_grid("test.jsonl, rule: ptb", "test.jsonl, rule: ptb, column: side");
        }),
        pair("another rule", &["measure.windows.text.rule"], |setting| {
            setting.replace_in_grid("test.jsonl, rule: ptb", "test.jsonl, rule: wikitext2");
        }),
    ]
}

/// Returns setting pairs that differ in how a calibration or evaluation text is streamed.
pub(super) fn shards() -> Vec<Pair> {
    vec![
        between(
            "another order of calibration shards",
            &["calibration.text.shards.order"],
            |setting| setting.write_shards("train", 1, ""),
            |setting| setting.write_shards("train", 1, ", shards: by-turns"),
        ),
        planned(
            "more calibration shards to read",
            &["calibration.text.shards.read", "calibration.text.bytes"],
            |setting| setting.write_shards("train", 2, ""),
            |setting| setting.write_shards("train", 2, ", shards_read: 2"),
        ),
        planned(
            "more shards in the calibration text",
            &["calibration.text.shards.of"],
            |setting| setting.write_shards("train", 2, ""),
            |setting| setting.write_shards("train", 3, ""),
        ),
        between(
            "another order of shards",
            &["measure.windows.text.shards.order"],
            |setting| setting.write_shards("test", 1, ""),
            |setting| setting.write_shards("test", 1, ", shards: by-turns"),
        ),
        planned(
            "more shards to read",
            &["measure.windows.text.shards.read", "measure.windows.text.bytes"],
            |setting| setting.write_shards("test", 2, ""),
            |setting| setting.write_shards("test", 2, ", shards_read: 2"),
        ),
        planned(
            "more shards",
            &["measure.windows.text.shards.of"],
            |setting| setting.write_shards("test", 2, ""),
            |setting| setting.write_shards("test", 3, ""),
        ),
    ]
}

/// Returns setting pairs that differ in the evaluation windows.
pub(super) fn windows() -> Vec<Pair> {
    vec![
        pair("longer windows", &["measure.windows.length"], |setting| {
            setting.replace_in_grid("test, length: 64", "test, length: 48");
        }),
        pair("fewer windows", &["measure.windows.limit"], |setting| setting.replace_in_grid("limit: 5", "limit: 4")),
    ]
}
