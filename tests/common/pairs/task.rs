//! Setting pairs that differ in tasks, definitions, few-shot examples or chat settings.

use serde_json::json;

use super::{Pair, Setting, between, pair, planned};

/// Returns setting pairs that differ in a built-in task.
pub(super) fn tasks() -> Vec<Pair> {
    vec![
        planned("another task", &["measure.task.task"], Setting::remove_document_limit, |setting| {
            setting.remove_document_limit();
            setting.replace_in_grid("copa: {path: copa.jsonl}", "copa: {path: copa.jsonl, task: winogrande}");
        }),
        pair("other documents", &["measure.task.rows"], |setting| {
            let documents = std::fs::read_to_string(setting.world.path("copa.jsonl")).unwrap();
            setting.world.write("copa.jsonl", documents.replacen("w4", "w5", 1));
        }),
        planned(
            "documents in another file format",
            &["measure.task.formats"],
            Setting::remove_document_limit,
            |setting| {
                setting.remove_document_limit();
                setting.rename("copa.jsonl", "copa.parquet");
            },
        ),
        pair("fewer documents", &["measure.task.limit"], |setting| setting.replace_in_grid("limit: 6", "limit: 3")),
        pair("special tokens", &["measure.task.bos"], |setting| {
            setting.replace_in_grid("limit: 6", "limit: 6, bos: never");
        }),
        pair("a shorter context", &["measure.task.max_length"], |setting| {
            setting.replace_in_grid("limit: 6", "limit: 6, max_length: 24");
        }),
        pair("another token before an empty context", &["measure.task.prefix"], |setting| {
            setting.change_json("backbone/tokenizer_config.json", |config| config["bos_token"] = json!("w2"));
        }),
    ]
}

/// Returns setting pairs that differ in a task definition or its documents.
pub(super) fn definitions() -> Vec<Pair> {
    vec![
        between(
            "another definition",
            &["measure.defined.asks"],
            |setting| setting.add_definition(""),
            |setting| {
                setting.add_definition("");
                setting.replace_in_file("made.yaml", "[w1, w2]", "[w1, w3]");
            },
        ),
        planned(
            "other documents of a definition",
            &["measure.defined.rows"],
            |setting| setting.add_definition(""),
            |setting| {
                setting.add_definition("");
                setting.add_labeled_row("rows/test.jsonl");
            },
        ),
        planned(
            "documents of a definition in another file format",
            &["measure.defined.formats"],
            |setting| setting.add_definition(""),
            |setting| {
                setting.add_definition("");
                std::fs::rename(setting.world.path("rows/test.jsonl"), setting.world.path("rows/test.parquet"))
                    .unwrap();
            },
        ),
    ]
}

/// Returns setting pairs that differ in few-shot examples.
pub(super) fn examples() -> Vec<Pair> {
    vec![
        planned(
            "few-shot examples",
            &["measure.defined.shots"],
            |setting| setting.add_definition(""),
            |setting| setting.add_definition(", shots: 2"),
        ),
        between(
            "more few-shot examples",
            &["measure.defined.shots.count"],
            |setting| setting.add_definition(", shots: 2"),
            |setting| setting.add_definition(", shots: 3"),
        ),
        planned(
            "another seed of few-shot examples",
            &["measure.defined.shots.seed"],
            |setting| setting.add_definition(", shots: 2"),
            |setting| setting.add_definition(", shots: 2, seed: 7"),
        ),
        planned(
            "other few-shot examples",
            &["measure.defined.shots.rows"],
            |setting| setting.add_definition(", shots: 2"),
            |setting| {
                setting.add_definition(", shots: 2");
                setting.add_labeled_row("rows/train.jsonl");
            },
        ),
        planned(
            "few-shot examples in another file format",
            &["measure.defined.shots.formats"],
            |setting| setting.add_definition(", shots: 2"),
            |setting| {
                setting.add_definition(", shots: 2");
                std::fs::rename(setting.world.path("rows/train.jsonl"), setting.world.path("rows/train.parquet"))
                    .unwrap();
            },
        ),
    ]
}

/// Returns setting pairs that differ in the chat template or the system message.
pub(super) fn chats() -> Vec<Pair> {
    vec![
        between(
            "a chat template",
            &["measure.defined.chat"],
            |setting| setting.add_definition(""),
            |setting| setting.add_definition(", chat: true"),
        ),
        planned(
            "another chat template",
            &["measure.defined.chat.template"],
            |setting| setting.add_definition(", chat: true"),
            |setting| {
                setting.add_definition(", chat: true");
                setting.replace_in_file("backbone/chat_template.jinja", "w6", "w7");
            },
        ),
        planned(
            "a chat in a single turn",
            &["measure.defined.chat.multiturn"],
            |setting| setting.add_definition(", chat: true"),
            |setting| setting.add_definition(", chat: true, multiturn: false"),
        ),
        between(
            "a system message",
            &["measure.defined.system"],
            |setting| setting.add_definition(""),
            |setting| setting.add_definition(", system: w8"),
        ),
    ]
}

/// Returns setting pairs that differ in a task definition's document limit, special tokens, context length or
/// generation settings.
pub(super) fn request_settings() -> Vec<Pair> {
    vec![
        planned(
            "fewer documents of a definition",
            &["measure.defined.limit"],
            |setting| setting.add_definition(""),
            |setting| setting.add_definition(", limit: 3"),
        ),
        planned(
            "special tokens of a definition",
            &["measure.defined.bos"],
            |setting| setting.add_definition(""),
            |setting| setting.add_definition(", bos: never"),
        ),
        planned(
            "a shorter context of a definition",
            &["measure.defined.max_length"],
            |setting| setting.add_definition(""),
            |setting| setting.add_definition(", max_length: 24"),
        ),
        planned(
            "another token before an empty context of a definition",
            &["measure.defined.prefix", "measure.task.prefix"],
            |setting| setting.add_definition(""),
            |setting| {
                setting.add_definition("");
                setting.change_json("backbone/tokenizer_config.json", |config| config["bos_token"] = json!("w2"));
            },
        ),
        planned(
            "other generation settings of the backbone",
            &["measure.defined.generation"],
            |setting| setting.add_generation_definition(),
            |setting| {
                setting.add_generation_definition();
                setting.world.write("backbone/generation_config.json", json!({"eos_token_id": [2, 7]}).to_string());
            },
        ),
    ]
}
