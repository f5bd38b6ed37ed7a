//! Tests that the files next to a model's weights, such as tokenizer and generation settings, affect its answers as in
//! lm-evaluation-harness and transformers. Unless a test names another source, the expected values were computed with
//! lm-evaluation-harness 0.4.13 and transformers 5.24, in f32 at batch size 1.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::fs;
use std::path::Path;

use crate::common::shared;
use crate::common::world::World;
use serde_json::{Value, json};

/// Tolerance for log-likelihoods in nats. The values from lm-evaluation-harness are given to four decimals.
const LIKELIHOOD_TOLERANCE: f64 = 2e-4;
const LIKELIHOODS: &str = "output_type: loglikelihood\ndoc_to_text: '{{q}}'\nmetric_list: [{metric: perplexity}]\n";
const NO_CONTEXT: &str =
    "output_type: loglikelihood\ndoc_to_text: ''\ndoc_to_target: '{{q}}'\nmetric_list: [{metric: perplexity}]\n";
const WHOLE_TEXTS: &str = "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{q}}'\n\
    metric_list: [{metric: word_perplexity}]\n";

/// Creates a world with a copy of a model in which some files are replaced.
fn create_world(model: &Path, files: &[(&str, Value)]) -> World {
    let world = World::new();
    fs::create_dir(world.path("model")).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(model.join(name), world.path("model").join(name)).unwrap();
    }
    files.iter().for_each(|(name, file)| world.write(&format!("model/{name}"), file.to_string()));
    world
}

fn generation_definition(new: usize) -> String {
    format!(
        "output_type: generate_until\ndoc_to_text: '{{{{q}}}}'\nmetric_list: [{{metric: exact_match}}]\n\
         generation_kwargs: {{until: [\"\\n\\n\\n\"], max_gen_toks: {new}}}\n"
    )
}

/// Runs `score` with the definition on one row per question. Returns the answer for each row, and stderr.
fn ask_questions(world: &World, definition: &str, questions: &[&str], more: &[&str]) -> (Vec<Value>, String) {
    let target = if definition.contains("doc_to_target") { "" } else { "doc_to_target: ' happy'\n" };
    world.write(
        "asked.yaml",
        format!(
            "task: asked\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: rows.jsonl}}}}\ntest_split: test\n\
             {definition}{target}"
        ),
    );
    world.write("rows.jsonl", questions.iter().map(|q| json!({"q": q}).to_string() + "\n").collect::<String>());
    let arguments = ["score", "model", "--tasks", "asked.yaml", "--samples", "said"];
    let output = world.ghostlab(&[&arguments[..], more].concat());
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    let samples = fs::read_to_string(world.path("said/samples_asked.jsonl")).unwrap();
    fs::remove_dir_all(world.path("said")).unwrap();
    let lines = samples.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["resps"].clone());
    (lines.collect(), log)
}

/// Returns the first number or string in an answer.
fn first_scalar(answer: &Value) -> &Value {
    match answer {
        Value::Array(items) => first_scalar(&items[0]),
        one => one,
    }
}

fn first_number(answer: &Value) -> f64 {
    let one = first_scalar(answer);
    one.as_f64().unwrap_or_else(|| one.as_str().unwrap().parse().unwrap())
}

fn assert_near(what: &str, answers: &[Value], expected: &[f64]) {
    assert_eq!(answers.len(), expected.len(), "{what}");
    for (at, (answer, expected)) in answers.iter().zip(expected).enumerate() {
        let ours = first_number(answer);
        assert!(
            (ours - expected).abs() <= LIKELIHOOD_TOLERANCE,
            "{what}, row {at}: {ours}, the harness has {expected}"
        );
    }
}

fn answer_texts(answers: &[Value]) -> Vec<&str> {
    answers.iter().map(|answer| first_scalar(answer).as_str().unwrap()).collect()
}

/// Two of the five documents exceed the context length up to which `longrope` uses its short factors. All documents
/// start with the BOS token, so they share a prefix in a batch.
#[test]
fn longrope_factors_depend_on_the_document_length() {
    let Some(model) = shared("cases/turn4/longrope-lengths/model") else { return };
    let questions = [
        "Tom",
        "He was sad",
        "A big dog",
        "Lily ran home and saw a red bird in the big tree near her house with her mom and dad on a sunny day",
        "Once upon a time there was a little girl who liked to play with her dog in the big park near the house and the lake",
    ];
    let expected = [-7.4262, -6.749, -9.0715, -7.0826, -6.4006];
    for engine in ["cpu", "candle"] {
        let world = create_world(&model, &[]);
        let (answers, _) = ask_questions(&world, LIKELIHOODS, &questions, &["--engine", engine]);
        assert_near(engine, &answers, &expected);
    }
}

/// Only config.json names `<s>` as the BOS token, so the tokenizer's EOS token is used as the prefix of an empty
/// context.
#[test]
fn empty_context_prefix_is_eos_if_bos_is_null() {
    let Some(model) = shared("oracles/stories260k") else { return };
    let questions = [
        "Once upon a time there was a little girl.",
        "Lily ran home and saw a red bird.",
        "The dog was sad, and then it was happy.",
    ];
    let expected = [-21.9426, -36.5301, -45.5572];
    for config in [json!({"bos_token": null, "eos_token": "</s>"}), json!({"eos_token": "</s>"})] {
        let world = create_world(
            &model,
            &[("tokenizer.json", tokenizer_without_processor(&model)), ("tokenizer_config.json", config)],
        );
        for definition in [WHOLE_TEXTS, NO_CONTEXT] {
            let (answers, log) = ask_questions(&world, definition, &questions, &[]);
            assert_near(definition, &answers, &expected);
            assert!(!log.contains("for empty contexts"), "{log}");
        }
    }
    // If the tokenizer names neither BOS nor EOS, the program falls back to config.json and prints a note.
    let world = create_world(
        &model,
        &[("tokenizer.json", tokenizer_without_processor(&model)), ("tokenizer_config.json", json!({}))],
    );
    let (answers, log) = ask_questions(&world, NO_CONTEXT, &questions, &[]);
    assert!((first_number(&answers[0]) - expected[0]).abs() > LIKELIHOOD_TOLERANCE, "{answers:?}");
    assert!(log.contains("using token 1, the bos_token_id of config.json, for empty contexts"), "{log}");
}

fn tokenizer_without_processor(model: &Path) -> Value {
    let mut file: Value = serde_json::from_slice(&fs::read(model.join("tokenizer.json")).unwrap()).unwrap();
    file["post_processor"] = Value::Null;
    file
}

/// Tokens 512 and 513 have embedding rows, but are not listed in tokenizer.json.
#[test]
fn added_tokens_of_companion_files_are_single_tokens() {
    let Some(model) = shared("cases/turn4/added-tokens/model") else { return };
    let questions = ["<|im_start|>user Once upon<|im_end|>", "Lily <|im_end|> ran", "Nothing special here"];
    let letters = [-9.405, -10.674, -6.9894];
    let tokens = [-15.7245, -7.3083, -6.9894];
    // Added tokens that are not special are matched in the text after normalization.
    let normalized = [-7.2064, -9.2695, -6.9894];
    let tokenizer_config: Value =
        serde_json::from_slice(&fs::read(model.join("tokenizer_config.json")).unwrap()).unwrap();
    let older = json!({"<|im_start|>": 512, "<|im_end|>": 513});
    let list = json!(["<|im_start|>", "<|im_end|>"]);
    for (what, files, expected) in [
        ("none", vec![], letters),
        (
            "added_tokens_decoder",
            vec![("tokenizer_config.json", with_key(&tokenizer_config, "added_tokens_decoder", token_decoder()))],
            tokens,
        ),
        ("added_tokens.json alone", vec![("added_tokens.json", older.clone())], normalized),
        (
            "added_tokens.json",
            vec![
                ("tokenizer_config.json", with_key(&tokenizer_config, "additional_special_tokens", list.clone())),
                ("added_tokens.json", older),
            ],
            tokens,
        ),
        (
            "additional_special_tokens",
            vec![("tokenizer_config.json", with_key(&tokenizer_config, "additional_special_tokens", list))],
            tokens,
        ),
    ] {
        let world = create_world(&model, &files);
        let (answers, _) = ask_questions(&world, LIKELIHOODS, &questions, &[]);
        assert_near(what, &answers, &expected);
        // Changing these files changes the keys, so stored results are not reused.
        if what == "none" {
            let config = with_key(&tokenizer_config, "added_tokens_decoder", token_decoder());
            world.write("model/tokenizer_config.json", config.to_string());
            let (answers, _) = ask_questions(&world, LIKELIHOODS, &questions, &[]);
            assert_near("the same folder with other files", &answers, &tokens);
        }
    }
}

fn special_token(content: &str) -> Value {
    json!({
        "content": content, "lstrip": false, "rstrip": false, "single_word": false, "normalized": false, "special": true
    })
}

fn with_key(tokenizer_config: &Value, key: &str, value: Value) -> Value {
    let mut config = tokenizer_config.clone();
    config[key] = value;
    config
}

fn token_decoder() -> Value {
    json!({"512": special_token("<|im_start|>"), "513": special_token("<|im_end|>")})
}

/// Token 426 is `.`, so generation stops at the end of a sentence.
#[test]
fn generation_stops_at_eos_tokens_of_generation_config() {
    let Some(model) = shared("oracles/stories260k") else { return };
    let plain = ", there was a little girl named Lily. She";
    let world = create_world(&model, &[]);
    assert_eq!(answer_of_both_engines(&world), plain);
    for (ends, expected) in [
        (json!([2, 426]), ", there was a little girl named Lily."),
        (json!(426), ", there was a little girl named Lily."),
        (json!([2]), plain),
        (json!(null), plain),
    ] {
        world.write("model/generation_config.json", json!({"eos_token_id": ends}).to_string());
        assert_eq!(answer_of_both_engines(&world), expected, "{ends}");
    }
}

/// Greedy answers if there are no generation settings.
const PLAIN: [&str; 3] = [
    ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw",
    "the park. They saw a big box with a big box. Lily was very happy. She wanted to play with it,",
    "was a big, red ball. He liked to play with his ball. He liked to play with his ball. He liked",
];
/// Contents of `generation_config.json`, each with the answers that transformers generates.
const GENERATION_SETTINGS: [(&str, [&str; 3]); 15] = [
    (r#"{}"#, PLAIN),
    (r#"{"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20}"#, PLAIN),
    (
        r#"{"repetition_penalty": 1.1}"#,
        [
            ", there was a little girl named Lily. She loved to play outside in the park with her friends. One",
            "the park. They saw a big box with a shiny cake. There was a big, red ball",
            "was a big, red ball. He liked to play with his friends in the sun. One day, he saw a big tre",
        ],
    ),
    (
        r#"{"no_repeat_ngram_size": 3}"#,
        [
            PLAIN[0],
            "the park. They saw a big box with a big, red ball. Lily wanted to play with it, but she d",
            "was a big, red ball. He liked to play with his ball and run around the room. He saw",
        ],
    ),
    (
        r#"{"suppress_tokens": [426]}"#,
        [
            ", there was a little girl named Lily who loved to play with her toys and her friends in the park with",
            "the park with their mom and dad went to the park with her mommy and daddy who loved",
            "was a big, red ball who lived in a big house with a big box of colors and",
        ],
    ),
    (
        r#"{"bad_words_ids": [[426], [376, 298]]}"#,
        [
            ", there was a little boy named Timmy who loved to play with his toys and run around in the p",
            "the park with their mom and dad went to the park with her mommy and daddy who loved",
            "was a big, red ball who lived in a big house with a big box of colors and",
        ],
    ),
    (
        r#"{"sequence_bias": [[[426], -4.0], [[376, 298], -9.0]]}"#,
        [
            ", there was a little boy named Timmy who loved to play with his toys and run around in the p",
            "the park with their mom and dad. They saw a big box with a big box on the ground and",
            "was a big, red ball who lived in a big house with a big box of colors and",
        ],
    ),
    (
        r#"{"eos_token_id": [2, 426], "min_new_tokens": 20}"#,
        [
            ", there was a little girl named Lily who loved to play with her toys.",
            "the park with their mom and dad went to the park with her mom.",
            "was a big, red ball who lived in a big house with a big box.",
        ],
    ),
    (
        r#"{"eos_token_id": [2, 426], "min_length": 30}"#,
        [
            ", there was a little girl named Lily who loved to play with her toys and her friends.",
            "the park with their mom and dad went to the park with her mommy.",
            "was a big, red ball who lived in a big house with a big box of colors.",
        ],
    ),
    (
        r#"{"forced_eos_token_id": 2}"#,
        [
            ", there was a little girl named Lily. She loved to play outside in the park. One day, she",
            "the park. They saw a big box with a big box. Lily was very happy. She wanted to play with it",
            "was a big, red ball. He liked to play with his ball. He liked to play with his ball. He li",
        ],
    ),
    (
        r#"{"eos_token_id": 426, "exponential_decay_length_penalty": [4, 1.3]}"#,
        [", there was a little girl.", "the park.", "was a big, red ball."],
    ),
    (
        r#"{"begin_suppress_tokens": [432, 403]}"#,
        [
            "there was a little girl named Lily. She loved to play outside in the park. One day, she saw a",
            PLAIN[1],
            PLAIN[2],
        ],
    ),
    (
        r#"{"max_new_tokens": 9}"#,
        [", there was a little girl named", "the park. They saw a big", "was a big, red ball."],
    ),
    (
        r#"{"max_new_tokens": 40}"#,
        [
            ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball.",
            "the park. They saw a big box with a big box. Lily was very happy. She wanted to play with it, but she did not \
             want to",
            "was a big, red ball. He liked to play with his ball. He liked to play with his ball. He liked to play with his \
             ball. He",
        ],
    ),
    (
        r#"{"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "suppress_tokens": [432]}"#,
        [
            "there was a little girl named Lily. She loved to play outside in the park with her friends. One day",
            "the park. They saw a big box with lots of chickens on it. There was a sm",
            "was a big box. He liked to play with his friends in the park. One day he saw something u",
        ],
    ),
];

#[test]
fn generation_config_affects_answers_like_transformers() {
    let Some(model) = shared("oracles/stories260k") else { return };
    let questions = ["Once upon a time", "Lily and her mom went to", "The dog"];
    let world = create_world(&model, &[]);
    for (settings, expected) in GENERATION_SETTINGS {
        world.write("model/generation_config.json", settings);
        let (answers, _) = ask_questions(&world, &generation_definition(32), &questions, &[]);
        assert_eq!(answer_texts(&answers), expected, "{settings}");
    }
}

#[test]
fn unsupported_generation_setting_is_rejected_with_its_name() {
    let Some(model) = shared("oracles/stories260k") else { return };
    let world = create_world(&model, &[("generation_config.json", json!({"num_beams": 4}))]);
    let (answers, _) = ask_questions(&world, LIKELIHOODS, &["Tom"], &[]);
    assert_eq!(answers.len(), 1, "generation settings must not affect likelihoods");
    world.write(
        "asked.yaml",
        fs::read_to_string(world.path("asked.yaml")).unwrap().replace(LIKELIHOODS, &generation_definition(8)),
    );
    let output = world.ghostlab(&["score", "model", "--tasks", "asked.yaml"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("generation_config.json, num_beams") && text.contains("found:    4"), "{text}");
}

fn answer_of_both_engines(world: &World) -> String {
    let answers = ["cpu", "candle"]
        .map(|engine| ask_questions(world, &generation_definition(12), &["Once upon a time"], &["--engine", engine]).0);
    let [one, two] = answers.map(|answers| answer_texts(&answers)[0].to_owned());
    assert_eq!(one, two, "engines");
    one
}
