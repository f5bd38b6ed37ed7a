//! Setting pairs that differ only in details that affect no number.

use serde_json::json;

use super::{Pair, Setting, between, pair, planned};

/// Returns setting pairs that differ only in how the grid is written, or in names.
pub(super) fn grids() -> Vec<Pair> {
    vec![
        pair("a comment", &[], |setting| setting.replace_in_grid("depth: 1", "depth: 1  # The first.")),
        pair("the order of keys", &[], |setting| {
            setting.replace_in_grid("depth: 1\nrecovery: ghosted\n", "recovery: ghosted\ndepth: 1\n");
            setting.replace_in_grid(
                "{corpus: train, sequences: 4, length: 32,",
                "{length: 32, sequences: 4, corpus: train,",
            );
        }),
        pair("the name of a text's file", &[], |setting| setting.rename("test.jsonl", "other.jsonl")),
        planned(
            "names of a definition, its file and its metrics",
            &[],
            |setting| setting.add_definition(""),
            |setting| {
                setting.add_definition("");
                let text = std::fs::read_to_string(setting.world.path("made.yaml")).unwrap();
                setting.world.write("other.yaml", text + "task_alias: Made\nmetric_list: [{metric: acc_norm}]\n");
                setting.replace_in_grid("definition: made.yaml", "definition: other.yaml");
            },
        ),
        pair("the folder of the backbone", &[], |setting| {
            std::fs::rename(setting.world.path("backbone"), setting.world.path("elsewhere")).unwrap();
            setting.replace_in_grid("{path: backbone}", "{path: elsewhere}");
        }),
        pair("an explicit default", &[], |setting| {
            setting.replace_in_grid("recovery: ghosted", "recovery: {name: ghosted, solver: normal}");
            setting.replace_in_grid("operator_sequences: 3", "operator_sequences: 3, seed: 0");
            setting.replace_in_grid("limit: 6", "limit: 6, bos: tokenizer");
        }),
        pair("another notation of a number", &[], |setting| setting.replace_in_grid("limit: 6", "limit: 6.0")),
        pair("an override on the command line", &[], |setting| {
            setting.replace_in_grid("depth: 1", "depth: 2");
            setting.add_arguments(&["--set", "depth=1"]);
        }),
        pair("a profile", &[], |setting| {
            setting.replace_in_grid("depth: 1", "depth: 2\nprofile: small\nprofiles: {small: {depth: 1}}");
        }),
    ]
}

/// Returns setting pairs that have irrelevant differences in files of the backbone or of a task.
pub(super) fn files() -> Vec<Pair> {
    vec![
        pair("unused config entries", &[], change_unused_entries),
        planned(
            "generation settings without effect",
            &[],
            |setting| setting.add_generation_definition(),
            |setting| {
                setting.add_generation_definition();
                let eos = crate::common::json(&setting.world.path("backbone/config.json"))["eos_token_id"].clone();
                let settings = json!({"eos_token_id": eos, "do_sample": true, "temperature": 0.6});
                setting.world.write("backbone/generation_config.json", settings.to_string());
            },
        ),
        pair("a chat template", &[], |setting| {
            setting.change_json("backbone/tokenizer_config.json", |config| {
                config["chat_template"] = json!("{{ messages }}");
            });
        }),
        pair("weights in several files", &[], split_weights),
        between(
            "the description of a task's files",
            &[],
            |setting| setting.move_task_to_folder(),
            |setting| {
                setting.move_task_to_folder();
                setting.world.write("copa/README.md", "Another text.\n");
            },
        ),
        pair("the context length of the config", &[], |setting| {
            setting.replace_in_grid("limit: 6", "limit: 6, max_length: 256");
        }),
        pair("the name of a text", &[], |setting| {
            setting.replace_in_grid("  train: {", "  other: {");
            setting.replace_in_grid("corpus: train", "corpus: other");
        }),
    ]
}

/// Changes config entries that do not affect any number.
fn change_unused_entries(setting: &mut Setting) {
    setting.change_json("backbone/config.json", |config| {
        config["transformers_version"] = json!("0.0.1");
        config["initializer_range"] = json!(0.5);
        config["architectures"] = json!(["LlamaForCausalLM"]);
    });
}

/// Splits the weights into three files and writes their index.
fn split_weights(setting: &mut Setting) {
    let bytes = std::fs::read(setting.world.path("backbone/model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let all: Vec<_> = tensors.iter().collect();
    let mut map = serde_json::Map::new();
    for (at, part) in all.chunks(all.len().div_ceil(3)).enumerate() {
        let file = format!("part-{at}.safetensors");
        safetensors::serialize_to_file(part.iter().cloned(), None, &setting.world.path("backbone").join(&file))
            .unwrap();
        map.extend(part.iter().map(|(name, _)| ((*name).to_owned(), json!(file))));
    }
    setting.world.write("backbone/model.safetensors.index.json", json!({"weight_map": map}).to_string());
    std::fs::remove_file(setting.world.path("backbone/model.safetensors")).unwrap();
}
