//! Pairs of settings that differ in one aspect of a number's identity, and pairs that differ only in irrelevant
//! details. Every view must distinguish the first kind and treat the second kind as equal. `setting_paths()` lists the
//! aspects that must be covered.

use serde_json::{Value, json};

use super::fixture;
use super::world::{World, tokenizer};

/// A test world with its grid and the arguments after `run grid.yaml`.
pub struct Setting {
    pub world: World,
    pub arguments: Vec<String>,
}

pub struct Pair {
    /// Description of the change in the second setting.
    pub what: &'static str,
    /// Aspects in which the numbers differ; empty if no relevant setting differs.
    pub aspects: &'static [&'static str],
    /// Whether both settings run quickly on any machine. Settings that need a missing device or a long stream can only
    /// be planned.
    pub runs: bool,
    one: fn(&mut Setting),
    other: fn(&mut Setting),
}

/// Aspects that no grid, file or flag changes: program constants, and search draws (see `tests/search.rs`).
pub const CONSTANT: [&str; 17] = [
    "cut.repaired.training.length",
    "cut.repaired.training.seed",
    "cut.repaired.training.sequences",
    "cut.repaired.version",
    "cut.version",
    "measure.boundary",
    "measure.defined.batch",
    "measure.prefill.rounds",
    "measure.prefill.warmups",
    "measure.task.draw.from",
    "measure.task.draw.seed",
    "measure.task.draw.to",
    "measure.task.version",
    "measure.windows.draw.from",
    "measure.windows.draw.seed",
    "measure.windows.draw.to",
    "repair.version",
];

/// Grid with one pruned cell that is scored on a text and a task, and timed.
const GRID: &str = "\
backbones:
  tiny: {path: backbone}
corpora:
  train: {path: train.jsonl, rule: ptb}
  test: {path: test.jsonl, rule: ptb, limit: 5}
tasks:
  copa: {path: copa.jsonl}
backbone: tiny
criterion: llm-streamline
depth: 1
recovery: ghosted
calibration: {corpus: train, sequences: 4, length: 32, operator_sequences: 3}
evaluate:
  perplexity: {corpus: test, length: 64}
  tasks: {name: copa, limit: 6}
  latency: {length: 16}
";

impl Setting {
    fn new() -> Self {
        let world = World::large();
        let words =
            |seed: usize| (0..400).map(|at| format!("w{}", (at * at * seed + at) % 299)).collect::<Vec<_>>().join(" ");
        for (name, seed) in [("train.jsonl", 3), ("test.jsonl", 5)] {
            world.write(name, (0..3).map(|at| side_row(&words(seed + at), &words(seed + at + 50))).collect::<String>());
        }
        world.write("backbone/tokenizer_config.json", json!({"bos_token": "w1"}).to_string());
        world.write("grid.yaml", GRID);
        Self { world, arguments: Vec::new() }
    }

    /// Replaces a part of the grid that must occur exactly once.
    pub fn grid(&self, from: &str, to: &str) {
        self.text("grid.yaml", from, to);
    }

    fn another_row(&self, file: &str) {
        let rows = std::fs::read_to_string(self.world.path(file)).unwrap();
        self.world.write(file, rows + &json!({"text": "w1 w2 w3", "side": "w3 w2 w1"}).to_string() + "\n");
    }

    fn another_row_of(&self, file: &str) {
        let rows = std::fs::read_to_string(self.world.path(file)).unwrap();
        self.world.write(file, rows + &json!({"text": "w1 w2", "label": 1}).to_string() + "\n");
    }

    fn text(&self, file: &str, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.world.path(file)).unwrap();
        assert_eq!(text.matches(from).count(), 1, "{from} in {file}");
        self.world.write(file, text.replace(from, to));
    }

    fn argue(&mut self, arguments: &[&str]) {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
    }

    fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.world.path(from), self.world.path(to)).unwrap();
        self.grid(from, to);
    }

    fn json(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let path = self.world.path(file);
        let mut value = super::json(&path);
        change(&mut value);
        self.world.write(file, serde_json::to_vec_pretty(&value).unwrap());
    }

    /// Writes a text as `shards` identical shards, so that each shard yields the same bytes.
    fn streamed(&self, text: &str, shards: usize, settings: &str) {
        let rows = std::fs::read_to_string(self.world.path(&format!("{text}.jsonl"))).unwrap().repeat(100);
        std::fs::create_dir(self.world.path(text)).unwrap();
        for at in 0..shards {
            self.world.write(&format!("{text}/{at}.jsonl"), &rows);
        }
        self.grid(&format!("{{path: {text}.jsonl, rule: ptb"), &format!("{{path: {text}, rule: c4-stream{settings}"));
    }

    /// Moves the task's file into a folder, as published.
    fn task_folder(&self) {
        std::fs::create_dir(self.world.path("copa")).unwrap();
        std::fs::rename(self.world.path("copa.jsonl"), self.world.path("copa/validation.jsonl")).unwrap();
        self.world.write("copa/README.md", "A text.\n");
        self.grid("path: copa.jsonl", "path: copa");
    }

    /// Removes the timing, because quantized weights are not timed.
    fn untimed(&mut self) {
        self.grid("  latency: {length: 16}\n", "");
    }

    /// Removes the task's document limit, so that documents are not counted beforehand.
    fn whole_task(&mut self) {
        self.grid("tasks: {name: copa, limit: 6}", "tasks: copa");
    }

    fn defined(&self, options: &str) {
        std::fs::create_dir(self.world.path("rows")).unwrap();
        for (split, count) in [("train", 5), ("test", 6)] {
            self.world.write(
                &format!("rows/{split}.jsonl"),
                (0..count).map(|at| numbered_row(3 * at + count)).collect::<String>(),
            );
        }
        self.world.write(
            "made.yaml",
            "task: made\ndataset_path: a/b\ntraining_split: train\ntest_split: test\noutput_type: multiple_choice\n\
             doc_to_text: '{{text}} w9'\ndoc_to_choice: [w1, w2]\ndoc_to_target: label\n",
        );
        self.world.write("backbone/chat_template.jinja", "{% for m in messages %}w5 {{ m.content }} w6 {% endfor %}");
        self.grid(
            "tasks: {name: copa, limit: 6}",
            &format!("tasks: [{{name: copa, limit: 6}}, {{definition: made.yaml, data: rows{options}}}]"),
        );
    }

    fn generating(&self) {
        self.defined("");
        self.world.write(
            "made.yaml",
            "task: made\ndataset_path: a/b\ntest_split: test\noutput_type: generate_until\n\
             doc_to_text: '{{text}} w9'\ndoc_to_target: w1\nmetric_list: [{metric: exact_match}]\n",
        );
    }

    fn tuned(&self) {
        self.grid("recovery: ghosted", "recovery: {name: ghosted, finetune: {sequences: 4, length: 32, seed: 0}}");
    }

    /// Removes layers one by one, with a repair after each.
    fn one_by_one(&self) {
        self.grid("criterion: llm-streamline", "criterion: {name: shortgpt, iterative: true}");
    }

    /// Repeats the fixture's layers up to the depth of published models.
    fn deep(&self) {
        const LAYERS: usize = 32;
        let bytes = std::fs::read(fixture("arch/llama-gqa/model.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut all = Vec::new();
        for (name, view) in tensors.iter() {
            match name.strip_prefix("model.layers.0.") {
                Some(part) => all.extend((0..LAYERS).map(|at| (format!("model.layers.{at}.{part}"), view.clone()))),
                None if name.starts_with("model.layers.") => {}
                None => all.push((name.to_owned(), view)),
            }
        }
        safetensors::serialize_to_file(all, None, &self.world.path("backbone/model.safetensors")).unwrap();
        self.json("backbone/config.json", |config| config["num_hidden_layers"] = json!(LAYERS));
        self.grid("criterion: llm-streamline", "criterion: {name: shortened-llama, order: released}");
    }
}

fn side_row(text: &str, side: &str) -> String {
    json!({"text": text, "side": side}).to_string() + "\n"
}

fn numbered_row(at: usize) -> String {
    json!({"text": format!("w{at} w{}", at * 7 % 299), "label": at % 2}).to_string() + "\n"
}

impl Pair {
    pub fn one(&self) -> Setting {
        Self::made(self.one)
    }

    pub fn other(&self) -> Setting {
        Self::made(self.other)
    }

    fn made(change: fn(&mut Setting)) -> Setting {
        let mut setting = Setting::new();
        change(&mut setting);
        setting
    }
}

fn pair(what: &'static str, aspects: &'static [&'static str], other: fn(&mut Setting)) -> Pair {
    Pair { what, aspects, runs: true, one: |_| (), other }
}

fn between(
    what: &'static str,
    aspects: &'static [&'static str],
    one: fn(&mut Setting),
    other: fn(&mut Setting),
) -> Pair {
    Pair { what, aspects, runs: true, one, other }
}

/// Returns pairs whose numbers differ, each with the differing aspects.
pub fn unlike() -> Vec<Pair> {
    vec![
        pair("other weights", &["model.content"], |setting| {
            let path = setting.world.path("backbone/model.safetensors");
            let mut bytes = std::fs::read(&path).unwrap();
            let last = bytes.len() - 4;
            bytes[last] ^= 1;
            std::fs::write(path, bytes).unwrap();
        }),
        pair("another type of a tensor", &["model.content"], |setting| {
            let path = setting.world.path("backbone/model.safetensors");
            let bytes = std::fs::read(&path).unwrap();
            let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let norm = tensors.tensor("model.norm.weight").unwrap();
            assert_eq!(norm.dtype(), safetensors::Dtype::F32);
            // bf16 is the upper half of an f32.
            let halves: Vec<u8> = norm.data().chunks_exact(4).flat_map(|float| [float[2], float[3]]).collect();
            let shape = norm.shape().to_vec();
            let half = safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, shape, &halves).unwrap();
            let others = tensors.iter().filter(|(name, _)| *name != "model.norm.weight");
            let all: Vec<_> = others.chain([("model.norm.weight", half)]).collect();
            safetensors::serialize_to_file(all, None, &path).unwrap();
        }),
        pair("another constant of the norms", &["model.content"], |setting| {
            setting.json("backbone/config.json", |config| config["rms_norm_eps"] = json!(1e-6));
        }),
        pair("another tokenizer", &["model.tokenizer"], |setting| {
            let mut other = tokenizer(300);
            other["model"]["vocab"]["w7"] = json!(8);
            other["model"]["vocab"]["w8"] = json!(7);
            setting.world.write("backbone/tokenizer.json", other.to_string());
        }),
        between("rounded weights", &["model.weights"], Setting::untimed, |setting| {
            setting.untimed();
            setting.grid("backbone: tiny\n", "backbone: tiny\nweights: q8_0\n");
        }),
        between(
            "repairs of rounded weights",
            &["calibration.weights"],
            |setting| {
                setting.untimed();
                setting.grid("backbone: tiny\n", "backbone: tiny\nweights: q8_0\n");
            },
            |setting| {
                setting.untimed();
                setting.grid("backbone: tiny\n", "backbone: tiny\nweights: {type: q8_0, calibrated: rounded}\n");
            },
        ),
        pair("candle", &["engine.name"], |setting| setting.argue(&["--engine", "candle"])),
        pair("bf16", &["engine.dtype"], |setting| setting.argue(&["--dtype", "bf16", "--kernels", "portable"])),
        Pair {
            runs: false,
            ..between(
                "another family of kernels",
                &["engine.device"],
                |setting| setting.argue(&["--dtype", "bf16", "--kernels", "portable"]),
                |setting| setting.argue(&["--dtype", "bf16", "--kernels", "amx"]),
            )
        },
        Pair {
            runs: false,
            ..between(
                "a GPU",
                // Batches on a GPU hold more tokens.
                &["engine.device", "measure.prefill.machine.gpu.device", "measure.task.batch", "measure.windows.batch"],
                |setting| setting.argue(&["--engine", "candle", "--device", "cpu", "--dtype", "f32"]),
                |setting| setting.argue(&["--engine", "candle", "--device", "cuda", "--dtype", "f32"]),
            )
        },
        Pair {
            runs: false,
            ..between(
                "another GPU",
                &["measure.prefill.machine.gpu.device"],
                |setting| setting.argue(&["--device", "cuda:0", "--dtype", "f32"]),
                |setting| setting.argue(&["--device", "cuda:1", "--dtype", "f32"]),
            )
        },
        pair("another criterion", &["cut.criterion", "cut.options"], |setting| {
            setting.grid("llm-streamline", "shortgpt");
        }),
        pair("an option of the criterion", &["cut.options.cosine"], |setting| {
            setting.grid("criterion: llm-streamline", "criterion: {name: llm-streamline, cosine: token}");
        }),
        pair("another depth", &["cut.depth"], |setting| setting.grid("depth: 1", "depth: 2")),
        between(
            "another backbone's published order",
            &["cut.known"],
            |setting| {
                setting.deep();
                setting.grid("tiny: {path", "llama-2-7b: {path");
                setting.grid("backbone: tiny", "backbone: llama-2-7b");
            },
            |setting| {
                setting.deep();
                setting.grid("tiny: {path", "llama-3-8b: {path");
                setting.grid("backbone: tiny", "backbone: llama-3-8b");
            },
        ),
        pair("another recovery", &["repair.fitted", "repair.options", "repair.recovery"], |setting| {
            setting.grid("recovery: ghosted", "recovery: replaceme-ls");
        }),
        pair("an option of the recovery", &["repair.options.solver"], |setting| {
            setting.grid("recovery: ghosted", "recovery: {name: ghosted, solver: svd}");
        }),
        Pair {
            runs: false,
            ..between(
                "another repair of layers removed one by one",
                &["cut.repaired.options", "cut.repaired.recovery", "repair.options", "repair.recovery"],
                |setting| setting.one_by_one(),
                |setting| {
                    setting.one_by_one();
                    setting.grid("recovery: ghosted", "recovery: linearpatch-diag");
                },
            )
        },
        Pair {
            runs: false,
            ..between(
                "sequences that layers removed one by one are repaired on",
                &["cut.repaired.fitted", "repair.fitted"],
                |setting| setting.one_by_one(),
                |setting| {
                    setting.one_by_one();
                    setting.grid("operator_sequences: 3", "operator_sequences: 2");
                },
            )
        },
        pair("sequences that the operator is solved on", &["repair.fitted"], |setting| {
            setting.grid("operator_sequences: 3", "operator_sequences: 2");
        }),
        pair("training", &["repair.training.length", "repair.training.seed", "repair.training.sequences"], |setting| {
            setting.tuned();
        }),
        between(
            "more training",
            &["repair.training.sequences"],
            |setting| setting.tuned(),
            |setting| {
                setting.tuned();
                setting.grid("finetune: {sequences: 4", "finetune: {sequences: 5");
            },
        ),
        between(
            "longer training",
            &["repair.training.length"],
            |setting| setting.tuned(),
            |setting| {
                setting.tuned();
                setting.grid("length: 32, seed", "length: 48, seed");
            },
        ),
        between(
            "another draw of the training",
            &["repair.training.seed"],
            |setting| setting.tuned(),
            |setting| {
                setting.tuned();
                setting.grid("seed: 0", "seed: 1");
            },
        ),
        pair("another calibration text", &["calibration.text.bytes"], |setting| setting.another_row("train.jsonl")),
        pair("a calibration text read in another way", &["calibration.text.format"], |setting| {
            setting.rename("train.jsonl", "train.txt");
        }),
        pair("another column of the calibration text", &["calibration.text.column"], |setting| {
            setting.grid("train.jsonl, rule: ptb", "train.jsonl, rule: ptb, column: side");
        }),
        pair("another rule of the calibration text", &["calibration.text.rule"], |setting| {
            setting.grid("train.jsonl, rule: ptb", "train.jsonl, rule: wikitext2");
        }),
        pair("more calibration", &["calibration.sequences"], |setting| {
            setting.grid("sequences: 4, length", "sequences: 5, length");
        }),
        pair("longer calibration", &["calibration.length"], |setting| setting.grid("length: 32,", "length: 48,")),
        pair("another draw", &["calibration.seed"], |setting| {
            setting.grid("operator_sequences: 3", "operator_sequences: 3, seed: 1");
        }),
        pair("another text", &["measure.windows.text.bytes"], |setting| setting.another_row("test.jsonl")),
        pair("a text read in another way", &["measure.windows.text.format"], |setting| {
            setting.rename("test.jsonl", "test.txt");
        }),
        pair("another column", &["measure.windows.text.column"], |setting| {
            setting.grid("test.jsonl, rule: ptb", "test.jsonl, rule: ptb, column: side");
        }),
        pair("another rule", &["measure.windows.text.rule"], |setting| {
            setting.grid("test.jsonl, rule: ptb", "test.jsonl, rule: wikitext2");
        }),
        between(
            "another order of shards to calibrate on",
            &["calibration.text.shards.order"],
            |setting| setting.streamed("train", 1, ""),
            |setting| setting.streamed("train", 1, ", shards: by-turns"),
        ),
        Pair {
            runs: false,
            ..between(
                "more shards to calibrate on",
                &["calibration.text.shards.read", "calibration.text.bytes"],
                |setting| setting.streamed("train", 2, ""),
                |setting| setting.streamed("train", 2, ", shards_read: 2"),
            )
        },
        Pair {
            runs: false,
            ..between(
                "more shards to calibrate on in all",
                &["calibration.text.shards.of"],
                |setting| setting.streamed("train", 2, ""),
                |setting| setting.streamed("train", 3, ""),
            )
        },
        between(
            "another order of shards",
            &["measure.windows.text.shards.order"],
            |setting| setting.streamed("test", 1, ""),
            |setting| setting.streamed("test", 1, ", shards: by-turns"),
        ),
        Pair {
            runs: false,
            ..between(
                "more shards to read",
                &["measure.windows.text.shards.read", "measure.windows.text.bytes"],
                |setting| setting.streamed("test", 2, ""),
                |setting| setting.streamed("test", 2, ", shards_read: 2"),
            )
        },
        Pair {
            runs: false,
            ..between(
                "more shards",
                &["measure.windows.text.shards.of"],
                |setting| setting.streamed("test", 2, ""),
                |setting| setting.streamed("test", 3, ""),
            )
        },
        pair("longer windows", &["measure.windows.length"], |setting| {
            setting.grid("test, length: 64", "test, length: 48");
        }),
        pair("fewer windows", &["measure.windows.limit"], |setting| setting.grid("limit: 5", "limit: 4")),
        Pair {
            runs: false,
            ..between("another task", &["measure.task.task"], Setting::whole_task, |setting| {
                setting.whole_task();
                setting.grid("copa: {path: copa.jsonl}", "copa: {path: copa.jsonl, task: winogrande}");
            })
        },
        pair("other documents", &["measure.task.rows"], |setting| {
            let documents = std::fs::read_to_string(setting.world.path("copa.jsonl")).unwrap();
            setting.world.write("copa.jsonl", documents.replacen("w4", "w5", 1));
        }),
        Pair {
            runs: false,
            ..between("documents read in another way", &["measure.task.formats"], Setting::whole_task, |setting| {
                setting.whole_task();
                setting.rename("copa.jsonl", "copa.parquet");
            })
        },
        pair("fewer documents", &["measure.task.limit"], |setting| setting.grid("limit: 6", "limit: 3")),
        pair("special tokens", &["measure.task.bos"], |setting| setting.grid("limit: 6", "limit: 6, bos: never")),
        pair("a shorter context", &["measure.task.max_length"], |setting| {
            setting.grid("limit: 6", "limit: 6, max_length: 24");
        }),
        pair("another token before an empty context", &["measure.task.prefix"], |setting| {
            setting.json("backbone/tokenizer_config.json", |config| config["bos_token"] = json!("w2"));
        }),
        between(
            "another definition",
            &["measure.defined.asks"],
            |setting| setting.defined(""),
            |setting| {
                setting.defined("");
                setting.text("made.yaml", "[w1, w2]", "[w1, w3]");
            },
        ),
        Pair {
            runs: false,
            ..between(
                "other documents of a definition",
                &["measure.defined.rows"],
                |setting| setting.defined(""),
                |setting| {
                    setting.defined("");
                    setting.another_row_of("rows/test.jsonl");
                },
            )
        },
        Pair {
            runs: false,
            ..between(
                "documents of a definition read in another way",
                &["measure.defined.formats"],
                |setting| setting.defined(""),
                |setting| {
                    setting.defined("");
                    std::fs::rename(setting.world.path("rows/test.jsonl"), setting.world.path("rows/test.parquet"))
                        .unwrap();
                },
            )
        },
        Pair {
            runs: false,
            ..between(
                "examples",
                &["measure.defined.shots"],
                |setting| setting.defined(""),
                |setting| setting.defined(", shots: 2"),
            )
        },
        between(
            "more examples",
            &["measure.defined.shots.count"],
            |setting| setting.defined(", shots: 2"),
            |setting| setting.defined(", shots: 3"),
        ),
        Pair {
            runs: false,
            ..between(
                "another draw of examples",
                &["measure.defined.shots.seed"],
                |setting| setting.defined(", shots: 2"),
                |setting| setting.defined(", shots: 2, seed: 7"),
            )
        },
        Pair {
            runs: false,
            ..between(
                "other examples",
                &["measure.defined.shots.rows"],
                |setting| setting.defined(", shots: 2"),
                |setting| {
                    setting.defined(", shots: 2");
                    setting.another_row_of("rows/train.jsonl");
                },
            )
        },
        Pair {
            runs: false,
            ..between(
                "examples read in another way",
                &["measure.defined.shots.formats"],
                |setting| setting.defined(", shots: 2"),
                |setting| {
                    setting.defined(", shots: 2");
                    std::fs::rename(setting.world.path("rows/train.jsonl"), setting.world.path("rows/train.parquet"))
                        .unwrap();
                },
            )
        },
        between(
            "a chat template",
            &["measure.defined.chat"],
            |setting| setting.defined(""),
            |setting| setting.defined(", chat: true"),
        ),
        Pair {
            runs: false,
            ..between(
                "another chat template",
                &["measure.defined.chat.template"],
                |setting| setting.defined(", chat: true"),
                |setting| {
                    setting.defined(", chat: true");
                    setting.text("backbone/chat_template.jinja", "w6", "w7");
                },
            )
        },
        Pair {
            runs: false,
            ..between(
                "a chat in one turn",
                &["measure.defined.chat.multiturn"],
                |setting| setting.defined(", chat: true"),
                |setting| setting.defined(", chat: true, multiturn: false"),
            )
        },
        between(
            "a system text",
            &["measure.defined.system"],
            |setting| setting.defined(""),
            |setting| setting.defined(", system: w8"),
        ),
        Pair {
            runs: false,
            ..between(
                "fewer documents of a definition",
                &["measure.defined.limit"],
                |setting| setting.defined(""),
                |setting| setting.defined(", limit: 3"),
            )
        },
        Pair {
            runs: false,
            ..between(
                "special tokens of a definition",
                &["measure.defined.bos"],
                |setting| setting.defined(""),
                |setting| setting.defined(", bos: never"),
            )
        },
        Pair {
            runs: false,
            ..between(
                "a shorter context of a definition",
                &["measure.defined.max_length"],
                |setting| setting.defined(""),
                |setting| setting.defined(", max_length: 24"),
            )
        },
        Pair {
            runs: false,
            ..between(
                "another token before an empty context of a definition",
                &["measure.defined.prefix", "measure.task.prefix"],
                |setting| setting.defined(""),
                |setting| {
                    setting.defined("");
                    setting.json("backbone/tokenizer_config.json", |config| config["bos_token"] = json!("w2"));
                },
            )
        },
        Pair {
            runs: false,
            ..between(
                "other generation settings of the backbone",
                &["measure.defined.generation"],
                |setting| setting.generating(),
                |setting| {
                    setting.generating();
                    setting.world.write("backbone/generation_config.json", json!({"eos_token_id": [2, 7]}).to_string());
                },
            )
        },
        pair("longer prompts", &["measure.prefill.length"], |setting| {
            setting.grid("latency: {length: 16}", "latency: {length: 8}");
        }),
        pair("more prompts at a time", &["measure.prefill.batch"], |setting| {
            setting.grid("latency: {length: 16}", "latency: {length: 16, batch: 2}");
        }),
        pair("tokens decoded behind a prompt", &["measure.prefill.decode"], |setting| {
            setting.grid("latency: {length: 16}", "latency: {length: 16, decode: 3}");
        }),
        between(
            "other neighbours of a time",
            &["measure.prefill.among"],
            |setting| setting.grid("recovery: ghosted", "recovery: [none, ghosted]"),
            |setting| setting.grid("recovery: ghosted", "recovery: [affine, ghosted]"),
        ),
    ]
}

/// Returns pairs that differ only in details that affect no number.
pub fn alike() -> Vec<Pair> {
    vec![
        pair("a comment", &[], |setting| setting.grid("depth: 1", "depth: 1  # The first.")),
        pair("the order of keys", &[], |setting| {
            setting.grid("depth: 1\nrecovery: ghosted\n", "recovery: ghosted\ndepth: 1\n");
            setting.grid("{corpus: train, sequences: 4, length: 32,", "{length: 32, sequences: 4, corpus: train,");
        }),
        pair("the name of a text's file", &[], |setting| setting.rename("test.jsonl", "other.jsonl")),
        Pair {
            runs: false,
            ..between(
                "names of a definition, its file and its metrics",
                &[],
                |setting| setting.defined(""),
                |setting| {
                    setting.defined("");
                    let text = std::fs::read_to_string(setting.world.path("made.yaml")).unwrap();
                    setting.world.write("other.yaml", text + "task_alias: Made\nmetric_list: [{metric: acc_norm}]\n");
                    setting.grid("definition: made.yaml", "definition: other.yaml");
                },
            )
        },
        pair("the folder of the backbone", &[], |setting| {
            std::fs::rename(setting.world.path("backbone"), setting.world.path("elsewhere")).unwrap();
            setting.grid("{path: backbone}", "{path: elsewhere}");
        }),
        pair("a default that is written", &[], |setting| {
            setting.grid("recovery: ghosted", "recovery: {name: ghosted, solver: normal}");
            setting.grid("operator_sequences: 3", "operator_sequences: 3, seed: 0");
            setting.grid("limit: 6", "limit: 6, bos: tokenizer");
        }),
        pair("a number that is written otherwise", &[], |setting| setting.grid("limit: 6", "limit: 6.0")),
        pair("what is set from outside", &[], |setting| {
            setting.grid("depth: 1", "depth: 2");
            setting.argue(&["--set", "depth=1"]);
        }),
        pair("a profile", &[], |setting| {
            setting.grid("depth: 1", "depth: 2\nprofile: small\nprofiles: {small: {depth: 1}}");
        }),
        pair("entries of the config that nothing is computed from", &[], |setting| {
            setting.json("backbone/config.json", |config| {
                config["transformers_version"] = json!("0.0.1");
                config["initializer_range"] = json!(0.5);
                config["architectures"] = json!(["LlamaForCausalLM"]);
            });
        }),
        Pair {
            runs: false,
            ..between(
                "generation settings that change no answer",
                &[],
                |setting| setting.generating(),
                |setting| {
                    setting.generating();
                    let eos = super::json(&setting.world.path("backbone/config.json"))["eos_token_id"].clone();
                    let settings = json!({"eos_token_id": eos, "do_sample": true, "temperature": 0.6});
                    setting.world.write("backbone/generation_config.json", settings.to_string());
                },
            )
        },
        pair("a chat template", &[], |setting| {
            setting.json("backbone/tokenizer_config.json", |config| config["chat_template"] = json!("{{ messages }}"));
        }),
        pair("weights in several files", &[], |setting| {
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
        }),
        between(
            "the description of a task's files",
            &[],
            |setting| setting.task_folder(),
            |setting| {
                setting.task_folder();
                setting.world.write("copa/README.md", "Another text.\n");
            },
        ),
        pair("a length that the config says", &[], |setting| setting.grid("limit: 6", "limit: 6, max_length: 256")),
        pair("the name of a text", &[], |setting| {
            setting.grid("  train: {", "  other: {");
            setting.grid("corpus: train", "corpus: other");
        }),
    ]
}
