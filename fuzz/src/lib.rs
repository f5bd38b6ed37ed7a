//! Fuzz targets for all parsers of external input, as functions of bytes. They check that parsers do not panic, that
//! messages contain no raw control characters, and that accepted input satisfies its invariants.
//!
//! `tests/hostile.rs` runs them on seeded mutations in every build; cargo-fuzz runs them indefinitely (`just fuzz
//! grid`). An input that breaks a target becomes a seed here.
#![allow(clippy::unwrap_used, clippy::panic, dead_code, unreachable_pub, reason = "a target fails by a panic")]

pub mod commands;
pub mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ghostlab::archive::unpack;
use ghostlab::checkpoint::{GgufText, GgufType, Layout};
use ghostlab::corpus::{Tokenizer, read_rows, to_gguf};
use ghostlab::error::Error;
use ghostlab::grid::Grid;
use ghostlab::model::{Config, Decoder, Program, Scaling, check_weights, deployed};
use ghostlab::pipeline::stage;
use ghostlab::tasks::{TASKS, Task};
use ghostlab_definitions::{Row, native};
use ghostlab_store::{Journal, JournalRecord, Key, Lookup, Store};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Fuzz target for one kind of file.
pub struct FuzzTarget {
    pub name: &'static str,
    /// Valid files, and inputs of past failures.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Parser check, which panics if an invariant is violated.
    pub run: fn(&[u8]),
}

pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "grid", seeds: grid_seeds, run: grid },
    FuzzTarget { name: "config", seeds: config_seeds, run: config },
    FuzzTarget { name: "tokenizer", seeds: tokenizer_seeds, run: tokenizer },
    FuzzTarget { name: "weights", seeds: weights_seeds, run: weights },
    FuzzTarget { name: "gguf", seeds: gguf_seeds, run: gguf },
    FuzzTarget { name: "corpus", seeds: corpus_seeds, run: corpus },
    FuzzTarget { name: "task", seeds: task_seeds, run: task },
    FuzzTarget { name: "race", seeds: race_seeds, run: race },
    FuzzTarget { name: "definition", seeds: definition_seeds, run: definition },
    FuzzTarget { name: "template", seeds: template_seeds, run: template },
    FuzzTarget { name: "meta", seeds: meta_seeds, run: meta },
    FuzzTarget { name: "pack", seeds: pack_seeds, run: pack },
    FuzzTarget { name: "record", seeds: record_seeds, run: record },
    FuzzTarget { name: "journal", seeds: journal_seeds, run: journal },
    FuzzTarget { name: "command", seeds: commands::command_seeds, run: commands::command },
    FuzzTarget { name: "plan", seeds: commands::plan_seeds, run: commands::plan },
];

fn target(name: &str) -> &'static FuzzTarget {
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no target {name}"))
}

pub fn run(name: &str, data: &[u8]) {
    (target(name).run)(data);
}

/// Writes a target's seeds to cargo-fuzz's corpus folder.
pub fn plant(name: &str) {
    let folder = Path::new("fuzz/corpus").join(name);
    fs::create_dir_all(&folder).unwrap();
    for (number, seed) in (target(name).seeds)().iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), seed).unwrap();
    }
}

/// Returns the path of a checkout file, from the main package or this one.
fn checkout(path: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = if here.ends_with("fuzz") { here.parent().unwrap() } else { here };
    root.join(path)
}

fn file(path: &str) -> Vec<u8> {
    fs::read(checkout(path)).unwrap()
}

/// Checks that an error has the exit code of a user error, and that its message is safe to print to a terminal.
fn sound(error: &Error) {
    assert!(matches!(error.exit_code(), 2 | 3), "{error}");
    let message = error.to_string();
    assert!(!message.contains(|c: char| c.is_control() && c != '\n' && c != '\t'), "{message:?}");
}

fn with_file<T>(name: &str, data: &[u8], read: impl FnOnce(&Path) -> T) -> T {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, data).unwrap();
    read(&path)
}

/// Returns a folder with all files that the grids of [`grid_seeds`] name. It exists until the process exits.
fn house() -> &'static Path {
    static HOUSE: OnceLock<TempDir> = OnceLock::new();
    let made = HOUSE.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("backbone")).unwrap();
        for name in ["config.json", "model.safetensors"] {
            let from = checkout("tests/fixtures/arch/llama-gqa").join(name);
            fs::copy(from, folder.path().join("backbone").join(name)).unwrap();
        }
        fs::write(folder.path().join("train.txt"), "a b c").unwrap();
        fs::write(folder.path().join("copa.jsonl"), "{}").unwrap();
        let made = "task: made\ndataset_path: a/b\ntest_split: test\noutput_type: loglikelihood\ndoc_to_text: q\ndoc_to_target: a\n";
        fs::write(folder.path().join("made.yaml"), made).unwrap();
        folder
    });
    made.path()
}

fn grid_seeds() -> Vec<Vec<u8>> {
    let good = "name: g\nbackbones:\n  tiny: {path: backbone}\ncorpora:\n  train: {path: train.txt, rule: wikitext2, limit: 3}\n\
        tasks:\n  copa: {path: copa.jsonl}\nbackbone: [tiny]\ncriterion: [llm-streamline, {name: explicit, order: [1, 2]}]\n\
        depth: [1, 50%]\nrecovery: [none, {name: ghosted, solver: [svd, normal]}, {name: replaceme-cos, epochs: 2}]\n\
        calibration: {corpus: train, sequences: [8, 16], length: 64, seed: 1, operator_sequences: 4}\n\
        exclude: {depth: 1, recovery: ghosted}\ninclude: {criterion: sleb, depth: 1}\n\
        evaluate:\n  perplexity: {corpus: train, length: [32, 64]}\n  tasks: [{name: copa, limit: 0.5, bos: never, max_length: 9}]\n";
    vec![
        good.into(),
        good.replace(
            "[{name: copa",
            "[{definition: made.yaml, data: {test: copa.jsonl}, shots: 2, chat: true, system: s}, {name: copa",
        )
        .into(),
        good.replace("epochs: 2", "epochs: 18446744073709551615").into(),
        good.replace("[8, 16]", "1000000000000").into(),
        good.replace("tiny", "\"a\\e[2J\"").into(),
        good.replace("limit: 0.5", "limit: 1e400").into(),
        b"a: &a [1]\nb: [*a, *a]\n".to_vec(),
        format!("depth: {}", "[".repeat(100_000)).into(),
        (0..30)
            .fold("a0: &a0 [1, 2]\n".to_owned(), |text, i| text + &format!("a{0}: &a{0} [*a{i}, *a{i}]\n", i + 1))
            .into(),
    ]
}

fn grid(data: &[u8]) {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let path = house().join("grid.yaml");
    fs::write(&path, data).unwrap();
    match Grid::load(&path, None, &[]) {
        Err(error) => sound(&error),
        Ok(grid) => {
            assert!(!grid.cells.is_empty() && grid.cells.len() <= 1_000_000);
            for cell in &grid.cells {
                let layers = grid.backbones[&cell.backbone].layers;
                assert!(
                    cell.depth.count < cell.depth.unit.available(layers) + usize::from(!cell.depth.is_in_layers()),
                    "{cell}"
                );
                assert!(!cell.to_string().contains(char::is_control), "{cell}");
            }
            assert!(grid.resolved().is_ok());
            assert_eq!(grid, Grid::load(&path, None, &[]).unwrap(), "read twice");
        }
    }
}

fn definition_seeds() -> Vec<Vec<u8>> {
    let good = "task: t\ndataset_path: a/b\ndataset_name: null\ntraining_split: train\ntest_split: test\nfewshot_split: train\n\
        output_type: multiple_choice\ndescription: \"About {{q}}.\\n\"\ndoc_to_text: \"{{q.strip()}}\\nA:\"\n\
        doc_to_choice: \"{{c}}\"\ndoc_to_target: a\nnum_fewshot: 2\nfewshot_config: {sampler: first_n}\ntarget_delimiter: \" \"\n\
        metric_list:\n  - {metric: acc, aggregation: mean, higher_is_better: true}\n  - {metric: acc_norm}\nmetadata: {version: 1.0}\n";
    let generated = "task: g\ndataset_path: a/b\ntest_split: test\ndoc_to_text: q\ndoc_to_target: \"{{c[a]}}\"\n\
        generation_kwargs: {until: [\"\\n\"], do_sample: false, max_gen_toks: 8}\nrepeats: 2\n\
        filter_list:\n  - {name: strict, filter: [{function: regex, regex_pattern: \"(?<=a)(\\\\d+)\"}, {function: take_first}]}\n\
        metric_list: [{metric: exact_match, ignore_case: true, regexes_to_ignore: [\",\"]}]\n";
    vec![
        good.into(),
        generated.into(),
        good.replace("multiple_choice", "loglikelihood_rolling").into(),
        good.replace("{sampler: first_n}", "{samples: [{q: x, c: [y, z], a: 1}]}").into(),
        good.replace("doc_to_text: ", "doc_to_text: !function utils.f #").into(),
        format!("{good}group: g\ntask: [t, {{task: t, num_fewshot: 0}}]\naggregate_metric_list: [{{metric: acc}}]\n")
            .into(),
        "include: [self.yaml]\n".into(),
    ]
}

/// Returns two rows for the seeds.
fn documents() -> Vec<ghostlab_definitions::Value> {
    (0..2).map(|index| serde_json::from_value(question_row(index)).unwrap()).collect()
}

fn question_row(index: usize) -> Value {
    json!({"q": format!(" why {index}? "), "c": ["it's", "\"so\""], "a": index % 2, "n": null, "f": 1.5})
}

/// Parses a definition, which must give an error or requests.
fn definition(data: &[u8]) {
    use ghostlab_definitions::{Definition, FileRows, Library, Setting, Task};
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("it.yaml"), data).unwrap();
    let rows: String = documents().iter().map(|row| row.json(None) + "\n").collect();
    for split in ["train", "test"] {
        fs::write(folder.path().join(format!("{split}.jsonl")), &rows).unwrap();
    }
    let file = folder.path().join("it.yaml").display().to_string();
    let selected = Library::of_folders(&[folder.path()]).and_then(|library| library.select(&[&file]));
    let tasks = match selected {
        Err(error) => return sound(&error),
        Ok(selected) => selected.tasks,
    };
    for task in tasks {
        let again: Definition = serde_json::from_value(serde_json::to_value(&task).unwrap()).unwrap();
        assert_eq!((again.asks(), again.judges()), (task.asks(), task.judges()), "{}", task.name);
        let splits = [Some(task.evaluated()), task.exampled()].into_iter().flatten().collect::<Vec<_>>();
        let made = FileRows::below(folder.path(), &task.data, &splits).and_then(|rows| {
            let task = Task::new(task.clone(), &rows)?;
            task.requests(&rows, &Setting { shots: Some(1), ..Setting::default() })
        });
        match made {
            Err(error) => sound(&error),
            Ok(requests) => assert!(!requests.is_empty()),
        }
    }
}

fn template_seeds() -> Vec<Vec<u8>> {
    [
        "{{q.strip()}} {{c[a]}} {{c|join(', ')}}",
        "{% for x in c %}{{loop.index}}. {{x|capitalize}}\n{% endfor %}{{ 'yes' if n is none else 'no' }}",
        "{% set y = q.split(' ') %}{{ y[0] ~ y[-1] }}{% if f > 1 and not a %}{{ (a + 1) * 2 }}{% endif %}",
        "{{ q * 1000000 }}{{ c * 1000000 }}",
        "{% set x = q %}{% set x = x ~ x ~ x ~ x %}{% set x = x ~ x ~ x ~ x %}{{ x.replace('', x) }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ q }}{% endfor %}{% endfor %}",
        "{%- macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set n = namespace(x=q) %}{{ n.x }}{{ undefined_name.field }}",
        "{{ q|regex_replace('(a|a)*b', '') }}{{ q[0:2] }}{{ q[-1:] }}{{ c.index('x') }}",
        "{%}{% generation %}{{ q }}{% endgeneration %}",
        "{{ messages }}{{ raise_exception('no') }}{{ strftime_now('%Y') }}{{ q|tojson(indent=2) }}",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Renders a text as a document template and as a chat template.
fn template(data: &[u8]) {
    use ghostlab_definitions::prompt::Role;
    use ghostlab_definitions::{ChatTemplate, template::Template, yaml::Place};
    let Ok(text) = std::str::from_utf8(data) else { return };
    let source = Place { file: "it.yaml".into(), line: 1 };
    match Template::new(text, &source) {
        Err(error) => sound(&error),
        Ok(template) => {
            for document in documents() {
                match template.render(&document) {
                    Err(error) => sound(&error),
                    Ok(one) => assert_eq!(template.render(&document).unwrap(), one, "rendered twice"),
                }
            }
        }
    }
    match ChatTemplate::new(text, Vec::new(), "it.jinja") {
        Err(error) => sound(&error),
        Ok(chat) => {
            let messages = [message(Role::System, "s"), message(Role::User, " q "), message(Role::Assistant, "It is")];
            for continued in [false, true] {
                if let Err(error) = chat.render(&messages, continued) {
                    sound(&error);
                }
            }
        }
    }
}

fn message(role: ghostlab_definitions::prompt::Role, content: &str) -> ghostlab_definitions::prompt::Message {
    ghostlab_definitions::prompt::Message { role, content: content.to_owned(), delimiter: String::new() }
}

fn config_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = ["llama-gqa", "llama3-rope", "olmo2", "qwen3", "mistral", "qwen2"]
        .map(|name| file(&format!("tests/fixtures/arch/{name}/config.json")))
        .to_vec();
    seeds.push(file("data/tiny/llama/config.json"));
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    for (key, value) in
        [("rope_scaling", llama3), ("num_hidden_layers", json!(10_000_000)), ("rms_norm_eps", json!(1e39))]
    {
        let mut config: Value = serde_json::from_slice(&seeds[0]).unwrap();
        config[key] = value;
        seeds.push(config.to_string().into_bytes());
    }
    let mut ours: Value = serde_json::from_slice(&seeds[0]).unwrap();
    ours["architectures"] = json!(["GhostedLlamaForCausalLM"]);
    ours["hidden_act"] = json!("none that there is");
    ours["ghostlab"] =
        json!({"operators": [dense_attachment(1, "before"), dense_attachment(1, "after")], "activation": "silu"});
    seeds.push(ours.to_string().into_bytes());
    seeds
}

/// Returns the description of an exported operator.
fn dense_attachment(layer: usize, at: &str) -> Value {
    json!({"layer": layer, "at": at, "form": "dense", "bias": true})
}

fn config(data: &[u8]) {
    with_file("config.json", data, |path| match Config::read_with_attachments(path.parent().unwrap()) {
        Err(error) => sound(&error),
        Ok(config) => {
            assert!(config.heads % config.kv_heads == 0 && config.head_dim % 2 == 0);
            assert!(config.norm_eps > 0.0 && config.norm_eps.is_finite() && config.rope.theta.is_finite());
            assert!(match &config.rope.scaling {
                Some(Scaling::Llama3(scaling)) =>
                    scaling.high_freq_factor > scaling.low_freq_factor && scaling.factor >= 1.0,
                Some(Scaling::Linear { factor } | Scaling::Dynamic { factor, .. }) =>
                    factor.is_finite() && *factor > 0.0,
                Some(Scaling::Yarn(scaling)) => scaling.factor.is_finite() && scaling.attention.is_finite(),
                Some(Scaling::LongRope(scaling)) =>
                    scaling.short.iter().chain(&scaling.long).all(|scaling| scaling.is_finite() && *scaling > 0.0),
                None => true,
            });
            let places: BTreeSet<String> = config
                .attachments
                .iter()
                .map(|attachment| format!("{} {}", attachment.layer, attachment.place.name()))
                .collect();
            assert!(places.len() == config.attachments.len(), "two operators at one place");
            assert!(config.attachments.iter().all(|attachment| attachment.layer < config.layers));
            // Weights of another model never match this config.
            let folder = checkout("tests/fixtures/arch/llama-gqa");
            if let Err(error) = check_weights(&config, &folder) {
                sound(&error);
            }
        }
    });
}

fn tokenizer_seeds() -> Vec<Vec<u8>> {
    let words = json!({"<unk>": 0, "<s>": 1, "a": 2, "b": 3, "##a": 4, "ab": 5, "Ġ": 6});
    let template = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}});
    let bpe =
        json!({"type": "BPE", "vocab": words, "merges": [["a", "b"]], "byte_fallback": false, "unk_token": "<unk>"});
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    vec![
        tokenizer_json(
            Value::Null,
            json!({"type": "WhitespaceSplit"}),
            template.clone(),
            Value::Null,
            json!({"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}),
        ),
        tokenizer_json(json!({"type": "NFC"}), level.clone(), level.clone(), level, bpe.clone()),
        tokenizer_json(
            json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}),
            Value::Null,
            template.clone(),
            json!({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
            bpe,
        ),
        tokenizer_json(
            json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
                "lowercase": true}),
            json!({"type": "BertPreTokenizer"}),
            json!({"type": "BertProcessing", "sep": ["b", 3], "cls": ["a", 2]}),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            json!({"type": "WordPiece", "vocab": words, "unk_token": "<unk>", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100}),
        ),
        tokenizer_json(
            json!({"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="}),
            json!({"type": "Metaspace",
                "replacement": "▁", "prepend_scheme": "always", "split": true}),
            template,
            Value::Null,
            json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["▁b", -2.5]], "byte_fallback": false}),
        ),
    ]
}

#[allow(clippy::needless_pass_by_value, reason = "callers pass literals")]
fn tokenizer_json(normalizer: Value, split: Value, post: Value, decoder: Value, model: Value) -> Vec<u8> {
    json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer, "pre_tokenizer": split,
            "post_processor": post, "decoder": decoder, "model": model,
            "added_tokens": [{"id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}]})
    .to_string()
    .into_bytes()
}

fn tokenizer(data: &[u8]) {
    with_file("tokenizer.json", data, |path| {
        let tokenizer = match Tokenizer::load(path) {
            Ok(tokenizer) => tokenizer,
            Err(error) => return sound(&error),
        };
        for text in ["", "a", "ab b  a\n\né中 <s> 1.", "\u{0}\u{feff}\u{1f600}a\u{301}"] {
            match tokenizer.encode(text) {
                Ok(ids) => assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size())),
                Err(error) => sound(&error),
            }
        }
        for id in [0, 3, u32::MAX] {
            if let Err(error) = tokenizer.decode(id) {
                sound(&error);
            }
        }
    });
}

fn weights_seeds() -> Vec<Vec<u8>> {
    vec![
        file("tests/fixtures/arch/llama-gqa/model.safetensors"),
        safetensors_file(&json!({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}), 24),
        safetensors_file(
            &json!({"a": {"dtype": "F16", "shape": [1_u64 << 40, 1_u64 << 40], "data_offsets": [0, 8]}}),
            8,
        ),
        [&u64::MAX.to_le_bytes()[..], b"{}"].concat(),
    ]
}

fn safetensors_file(json: &Value, bytes: usize) -> Vec<u8> {
    let text = json.to_string();
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &vec![0; bytes]].concat()
}

fn weights(data: &[u8]) {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("model.safetensors"), data).unwrap();
    let config = Config::read(&checkout("tests/fixtures/arch/llama-gqa")).unwrap();
    match check_weights(&config, folder.path()) {
        Err(error) => sound(&error),
        // The header was validated, so only a non-finite number may still be rejected.
        Ok(()) => {
            if let Err(error) = Decoder::load_with(config, folder.path()) {
                sound(&error);
                assert!(error.to_string().contains("not a finite number"), "{error}");
            }
        }
    }
}

/// Returns an exported backbone of four layers with a byte tokenizer, and headers that declare missing data.
fn gguf_seeds() -> Vec<Vec<u8>> {
    let folder = checkout("tests/fixtures/arch/qwen3");
    let config = Config::read(&folder).unwrap();
    let dense = deployed(&Program::dense(config.layers), &config);
    let layout = Layout::of(&config, &folder, &dense, None).unwrap();
    let vocab: serde_json::Map<String, Value> = (b'a'..=b'z')
        .chain(b'A'..=b'Z')
        .enumerate()
        .map(|(id, byte)| (char::from(byte).to_string(), json!(id)))
        .collect();
    let tokenizer = json!({
        "added_tokens": [{"id": 60, "content": "<s>", "special": true}], "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": false}
    });
    let entries = to_gguf(&tokenizer, config.vocab, &[("bos", Some(60))]).unwrap().entries;
    let text = GgufText { name: "seed".to_owned(), entries };
    let mut bytes = Vec::new();
    layout.write_gguf(&config, GgufType::Q8_0, &text, Path::new("seed"), &mut bytes, &mut |_| Ok(())).unwrap();
    vec![
        bytes,
        gguf_header(3, 0, 0),
        gguf_header(3, u64::MAX, 1),
        gguf_header(9, 0, 0),
        [gguf_header(3, 0, 1), gguf_entry("general.alignment", 4, &0_u32.to_le_bytes())].concat(),
        [gguf_header(2, 0, 1), gguf_entry("a", 9, &[&8_u32.to_le_bytes()[..], &(1_u64 << 40).to_le_bytes()].concat())]
            .concat(),
    ]
}

fn gguf_entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &kind.to_le_bytes(), value].concat()
}

fn gguf_header(version: u32, tensors: u64, entries: u64) -> Vec<u8> {
    [&b"GGUF"[..], &version.to_le_bytes(), &tensors.to_le_bytes(), &entries.to_le_bytes()].concat()
}

fn gguf(data: &[u8]) {
    with_file("m.gguf", data, |path| {
        if let Err(error) = Tokenizer::load(path).and_then(|tokenizer| tokenizer.encode("a bc <s>")) {
            sound(&error);
        }
        let read = Config::read(path).and_then(|config| check_weights(&config, path).map(|()| config));
        match read {
            Err(error) => sound(&error),
            // The header was validated, so only a non-finite number may still be rejected.
            Ok(config) => {
                if let Err(error) = Decoder::load_with(config, path) {
                    sound(&error);
                    assert!(error.to_string().contains("not a finite number"), "{error}");
                }
            }
        }
    });
}

/// File extensions of a corpus; the first byte of the data selects one.
const ENDINGS: [&str; 4] = ["jsonl", "txt", "jsonl.gz", "parquet"];

fn zipped(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn corpus_seeds() -> Vec<Vec<u8>> {
    let lines = b"{\"text\": \"a b\", \"url\": 1}\n\n{\"text\": \"\\ud83d\\ude00 \\u0000\"}\n{\"text\": \"\"}\n";
    vec![
        with_ending(0, lines),
        with_ending(0, b"{\"sentence\": \"x\"}"),
        with_ending(1, "no columns \u{2028} here\n".as_bytes()),
        with_ending(2, &zipped(lines)),
        with_ending(0, &[b"{\"text\": ".as_slice(), &[b'['; 300]].concat()),
    ]
}

fn with_ending(ending: u8, bytes: &[u8]) -> Vec<u8> {
    [&[ending], bytes].concat()
}

fn corpus(data: &[u8]) {
    let Some((first, text)) = data.split_first() else { return };
    let ending = ENDINGS[usize::from(*first) % ENDINGS.len()];
    with_file(&format!("c.{ending}"), text, |path| match read_rows(path, None) {
        Ok(rows) => assert!(!rows.is_empty()),
        Err(error) => sound(&error),
    });
}

/// Returns rows of each task; the first byte of the data selects one.
fn task_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = TASKS
        .iter()
        .enumerate()
        .map(|(index, task)| {
            let path = format!("tests/fixtures/lm_eval/docs/{}.jsonl", task.name.trim_end_matches("_v2"));
            let text = String::from_utf8(file(&path)).unwrap();
            let lines: Vec<&str> = text.lines().take(2).collect();
            [&[index as u8], lines.join("\n").as_bytes()].concat()
        })
        .collect();
    let copa = TASKS.iter().position(|task| task.name == "copa").unwrap() as u8;
    let hidden = json!({"premise": "A.", "question": "cause", "choice1": "b", "choice2": "c", "label": -1});
    seeds.push([&[copa], hidden.to_string().as_bytes()].concat());
    seeds
}

fn task(data: &[u8]) {
    let Some((first, text)) = data.split_first() else { return };
    let task = &TASKS[usize::from(*first) % TASKS.len()];
    with_file("t.jsonl", text, |path| match native::task(task, path, None) {
        Ok(read) => {
            assert!(!read.documents.is_empty());
            for index in 0..read.documents.len() {
                match read.solution(index) {
                    Ok((_, gold)) => assert!(gold.as_int().unwrap() >= 0 || task.name != "copa"),
                    Err(error) => sound(&error),
                }
            }
        }
        Err(error) => sound(&error),
    });
}

fn race_seeds() -> Vec<Vec<u8>> {
    vec![
        b"[{'question': 'Lee is  _  .', 'options': ['a', \"b'\", 'c\\n', 'd\\x41'], 'answer': 'B'},]".to_vec(),
        b"({'question': u'q', 'options': ('a' 'b', 'c', 'd', 'e'), 'answer': 'A', 'n': -1.5e3, 'x': None},)".to_vec(),
        b"[[[[[[{'a': True, 'b': '\\ud83d\\ude00', '''c''': \"\"\"d\"\"\"}]]]]]]".to_vec(),
    ]
}

fn race(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let fields = json!({"article": "A.", "problems": text});
    let row = Row { place: "t.jsonl:1".to_owned(), value: serde_json::from_value(fields).unwrap() };
    let definition = native::definition(Task::find("race").unwrap()).unwrap();
    match ghostlab_definitions::Task::of_rows(definition.clone(), vec![row], None) {
        Ok(read) => {
            let (choices, gold) = read.solution(0).unwrap();
            assert!(choices.len() == 4 && (0..4).contains(&gold.as_int().unwrap()));
        }
        Err(error) => sound(&error),
    }
}

const PAYLOADS: [(&str, &[u8]); 2] = [("a.json", b"[1, 2]"), ("values.f64", b"12345678")];

fn stored(folder: &Path) -> (Store, Key, PathBuf) {
    let store = Store::open(folder, stage::WORDS).unwrap();
    let key = Key::new(stage::operator::KIND, json!({"of": 1}), []);
    let mut draft = store.draft().unwrap();
    PAYLOADS.iter().for_each(|(name, bytes)| draft.write(name, bytes).unwrap());
    let artifact = store.commit(draft, &key, 0.5).unwrap();
    (store, key, artifact.folder().join("meta.json"))
}

fn meta_seeds() -> Vec<Vec<u8>> {
    let folder = TempDir::new().unwrap();
    vec![fs::read(stored(folder.path()).2).unwrap()]
}

/// Checks that an object with a modified record is reported as damaged, or unchanged.
fn meta(data: &[u8]) {
    let folder = TempDir::new().unwrap();
    let (store, key, path) = stored(folder.path());
    fs::write(path, data).unwrap();
    if let Lookup::Whole(artifact) = store.get(&key) {
        for name in artifact.payloads() {
            let written = PAYLOADS.iter().find(|(known, _)| *known == name);
            assert_eq!(Some(artifact.read(name).unwrap().as_slice()), written.map(|(_, bytes)| *bytes), "{name}");
        }
    }
}

/// Writes scores of two variants in one pack.
fn packed(folder: &Path) -> ([Key; 2], PathBuf) {
    let store = Store::open(folder, stage::WORDS).unwrap();
    let keys = [1, 2].map(|id| Key::new(stage::scores::KIND, json!({"of": id}), []));
    store.put_all(keys.iter().map(|key| store.packing(key, 0.5, &PAYLOADS)).collect()).unwrap();
    let file = store.lies(&keys[0]);
    (keys, file)
}

fn pack_seeds() -> Vec<Vec<u8>> {
    let folder = TempDir::new().unwrap();
    vec![fs::read(packed(folder.path()).1).unwrap()]
}

/// Checks that reading a modified pack returns only original data.
fn pack(data: &[u8]) {
    let folder = TempDir::new().unwrap();
    let (keys, path) = packed(folder.path());
    fs::write(path, data).unwrap();
    let store = Store::look_at(folder.path(), stage::WORDS).unwrap();
    for key in &keys {
        if let Lookup::Whole(artifact) = store.get(key) {
            PAYLOADS.into_iter().for_each(|(name, bytes)| assert_eq!(artifact.read(name).unwrap(), bytes, "{name}"));
        }
    }
    store.entries();
}

fn records() -> Vec<JournalRecord> {
    (0..3)
        .map(|chunk| JournalRecord {
            key: "k".repeat(64),
            chunk,
            values: vec![-1.25 * chunk as f64, f64::NAN, f64::NEG_INFINITY],
            seconds: 0.5,
        })
        .collect()
}

fn journal_in(folder: &Path) -> (Journal, PathBuf) {
    let store = Store::open(folder, stage::WORDS).unwrap();
    (store.journal("j").unwrap(), folder.join("journals/j"))
}

fn journal_seeds() -> Vec<Vec<u8>> {
    let folder = TempDir::new().unwrap();
    let (mut journal, journal_dir) = journal_in(folder.path());
    records().iter().for_each(|record| journal.push(record).unwrap());
    journal.flush().unwrap();
    let file = fs::read_dir(journal_dir).unwrap().next().unwrap().unwrap().path();
    vec![fs::read(file).unwrap()]
}

/// Checks that a modified journal record is not used.
fn journal(data: &[u8]) {
    let folder = TempDir::new().unwrap();
    let (mut journal, journal_dir) = journal_in(folder.path());
    fs::create_dir_all(&journal_dir).unwrap();
    fs::write(journal_dir.join("another.jsonl"), data).unwrap();
    // Compare debug output, because NaN differs from itself; the output shows every bit of a number.
    let written: BTreeMap<usize, String> =
        records().iter().map(|record| (record.chunk, format!("{record:?}"))).collect();
    for record in journal.read().0 {
        assert_eq!(written.get(&record.chunk), Some(&format!("{record:?}")));
    }
}

fn record_seeds() -> Vec<Vec<u8>> {
    let archive = file("tests/fixtures/record/small.zip");
    vec![archive_with(b"../b.tx", &archive), archive_with(b"/ab.txt", &archive), archive]
}

/// Returns the archive with `a/b.txt` renamed to another name of the same length, in both places.
fn archive_with(entry: &[u8], archive: &[u8]) -> Vec<u8> {
    let mut bytes = archive.to_vec();
    for start in 0..bytes.len() - 7 {
        if &bytes[start..start + 7] == b"a/b.txt" {
            bytes[start..start + 7].copy_from_slice(entry);
        }
    }
    bytes
}

/// Checks that unpacking writes nothing outside the folder, and no more bytes than the limit.
fn record(data: &[u8]) {
    let outer = TempDir::new().unwrap();
    let inner = outer.path().join("inner");
    fs::create_dir(&inner).unwrap();
    match unpack(std::io::Cursor::new(data), data.len() as u64, &inner) {
        Ok(unpacked) => assert!(unpacked.sound + unpacked.altered.len() <= data.len()),
        Err(error) => sound(&error),
    }
    assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1, "a file was written next to the folder");
}
