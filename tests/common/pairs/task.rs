//! Setting pairs that differ in tasks, definitions, few-shot examples or chat settings.

use serde_json::json;

use super::{Pair, Setting, between, pair, planned};

/// Returns setting pairs that differ in a built-in task.
pub(super) fn tasks() -> Vec<Pair> {
    vec![
        planned("another task", &["measure.task.task"], Setting::whole_task, |setting| {
            setting.whole_task();
            setting.grid("copa: {path: copa.jsonl}", "copa: {path: copa.jsonl, task: winogrande}");
        }),
        pair("other documents", &["measure.task.rows"], |setting| {
            let documents = std::fs::read_to_string(setting.world.path("copa.jsonl")).unwrap();
            setting.world.write("copa.jsonl", documents.replacen("w4", "w5", 1));
        }),
        planned("documents in another file format", &["measure.task.formats"], Setting::whole_task, |setting| {
            setting.whole_task();
            setting.rename("copa.jsonl", "copa.parquet");
        }),
        pair("fewer documents", &["measure.task.limit"], |setting| setting.grid("limit: 6", "limit: 3")),
        pair("special tokens", &["measure.task.bos"], |setting| setting.grid("limit: 6", "limit: 6, bos: never")),
        pair("a shorter context", &["measure.task.max_length"], |setting| {
            setting.grid("limit: 6", "limit: 6, max_length: 24");
        }),
        pair("another token before an empty context", &["measure.task.prefix"], |setting| {
            setting.json("backbone/tokenizer_config.json", |config| config["bos_token"] = json!("w2"));
        }),
    ]
}

/// Returns setting pairs that differ in a task definition or its documents.
pub(super) fn definitions() -> Vec<Pair> {
    vec![
        between(
            "another definition",
            &["measure.defined.asks"],
            |setting| setting.defined(""),
            |setting| {
                setting.defined("");
                setting.text("made.yaml", "[w1, w2]", "[w1, w3]");
            },
        ),
        planned(
            "other documents of a definition",
            &["measure.defined.rows"],
            |setting| setting.defined(""),
            |setting| {
                setting.defined("");
                setting.another_row_of("rows/test.jsonl");
            },
        ),
        planned(
            "documents of a definition in another file format",
            &["measure.defined.formats"],
            |setting| setting.defined(""),
            |setting| {
                setting.defined("");
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
            "examples",
            &["measure.defined.shots"],
            |setting| setting.defined(""),
            |setting| setting.defined(", shots: 2"),
        ),
        between(
            "more examples",
            &["measure.defined.shots.count"],
            |setting| setting.defined(", shots: 2"),
            |setting| setting.defined(", shots: 3"),
        ),
        planned(
            "another draw of examples",
            &["measure.defined.shots.seed"],
            |setting| setting.defined(", shots: 2"),
            |setting| setting.defined(", shots: 2, seed: 7"),
        ),
        planned(
            "other examples",
            &["measure.defined.shots.rows"],
            |setting| setting.defined(", shots: 2"),
            |setting| {
                setting.defined(", shots: 2");
                setting.another_row_of("rows/train.jsonl");
            },
        ),
        planned(
            "examples in another file format",
            &["measure.defined.shots.formats"],
            |setting| setting.defined(", shots: 2"),
            |setting| {
                setting.defined(", shots: 2");
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
            |setting| setting.defined(""),
            |setting| setting.defined(", chat: true"),
        ),
        planned(
            "another chat template",
            &["measure.defined.chat.template"],
            |setting| setting.defined(", chat: true"),
            |setting| {
                setting.defined(", chat: true");
                setting.text("backbone/chat_template.jinja", "w6", "w7");
            },
        ),
        planned(
            "a chat in one turn",
            &["measure.defined.chat.multiturn"],
            |setting| setting.defined(", chat: true"),
            |setting| setting.defined(", chat: true, multiturn: false"),
        ),
        between(
            "a system text",
            &["measure.defined.system"],
            |setting| setting.defined(""),
            |setting| setting.defined(", system: w8"),
        ),
    ]
}

/// Returns setting pairs that differ in options that limit the requests of a task definition.
pub(super) fn limits() -> Vec<Pair> {
    vec![
        planned(
            "fewer documents of a definition",
            &["measure.defined.limit"],
            |setting| setting.defined(""),
            |setting| setting.defined(", limit: 3"),
        ),
        planned(
            "special tokens of a definition",
            &["measure.defined.bos"],
            |setting| setting.defined(""),
            |setting| setting.defined(", bos: never"),
        ),
        planned(
            "a shorter context of a definition",
            &["measure.defined.max_length"],
            |setting| setting.defined(""),
            |setting| setting.defined(", max_length: 24"),
        ),
        planned(
            "another token before an empty context of a definition",
            &["measure.defined.prefix", "measure.task.prefix"],
            |setting| setting.defined(""),
            |setting| {
                setting.defined("");
                setting.json("backbone/tokenizer_config.json", |config| config["bos_token"] = json!("w2"));
            },
        ),
        planned(
            "other generation settings of the backbone",
            &["measure.defined.generation"],
            |setting| setting.generating(),
            |setting| {
                setting.generating();
                setting.world.write("backbone/generation_config.json", json!({"eos_token_id": [2, 7]}).to_string());
            },
        ),
    ]
}
