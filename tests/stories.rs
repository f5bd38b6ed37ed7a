//! Every step on a real trained model (5 layers, C = 64) against the reference implementations (oracle `stories260k`;
//! tolerances from its README).
#![allow(clippy::unwrap_used, reason = "a test stops at what it lacks")]

mod common;

use std::collections::BTreeSet;
use std::path::PathBuf;

use common::{assert_close, flat, json, numbers, relative_error, shared, tensors};
use ghostlab::calibrate::{self, Axis, Calibration, Pair, Request};
use ghostlab::corpus::{PythonRandom, Rule, Start, Tokenizer, Windows, calibration};
use ghostlab::criterion;
use ghostlab::evaluate::perplexity;
use ghostlab::linalg::hadamard;
use ghostlab::linalg::solve::Normal;
use ghostlab::linalg::tall::Tall;
use ghostlab::model::{Batch, Decoder, Model, Program, Step, Trie};
use ghostlab::options::Options;
use ghostlab::recovery::{self, Boundary, Numbers};
use serde_json::Value;

const LAYERS: usize = 5;
const RECOVERIES: [(&str, &str, &str); 4] = [
    ("none", "pruned", ""),
    ("linearpatch-diag", "linearpatch_diag", "linearpatch_diag"),
    ("linearpatch-rotate", "linearpatch_rotate", "linearpatch_rotate"),
    ("ghosted", "ghosted", "ghosted_W"),
];

struct Oracle {
    folder: PathBuf,
    values: Value,
}

fn oracle() -> Option<Oracle> {
    let folder = shared("oracles/stories260k")?;
    let values = json(&folder.join("stories260k.json"));
    Some(Oracle { folder, values })
}

impl Oracle {
    fn ids(&self, name: &str) -> Vec<u32> {
        numbers(&json(&self.folder.join(name))).into_iter().map(|id| id as u32).collect()
    }

    /// The 16 calibration windows of 128 tokens.
    fn windows(&self) -> Vec<Vec<u32>> {
        let ids = self.ids("calibration.ids.json");
        let starts = numbers(&self.values["windows"]["train_starts"]);
        starts.into_iter().map(|start| ids[start as usize..start as usize + 128].to_vec()).collect()
    }

    fn decoder(&self) -> Decoder {
        Decoder::load(&self.folder).unwrap()
    }

    /// One dense pass with every cosine and every boundary.
    fn calibration(&self, decoder: &Decoder) -> Calibration {
        let mut request = Request { sites: (0..=LAYERS).collect(), pairs: BTreeSet::new() };
        for axis in [Axis::ChannelSeries, Axis::Token] {
            for from in 0..=LAYERS {
                request.pairs.extend((from..=LAYERS).map(|to| Pair { axis, from, to }));
            }
        }
        let windows = self.windows();
        let windows: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
        // A budget that no multiple of the window fills: batches of 2 windows.
        calibrate::run(decoder, &windows, 300, &request, |_| Ok(())).unwrap()
    }
}

fn boundary(calibration: &Calibration) -> Boundary<'_> {
    Boundary {
        activations: &calibration.activations,
        start: 2,
        end: 3,
        sequences: 16,
        operator_sequences: 16,
        length: 128,
        only: true,
    }
}

#[test]
fn the_forward_pass_equals_the_reference() {
    let Some(oracle) = oracle() else { return };
    let expected = tensors(&oracle.folder.join("stories260k_forward.safetensors"));
    let rows: Vec<Vec<i64>> = expected["input_ids"].to_vec2().unwrap();
    let rows: Vec<Vec<u32>> = rows.into_iter().map(|row| row.into_iter().map(|id| id as u32).collect()).collect();
    let (batch, decoder) = (Batch::windows(rows.iter().map(Vec::as_slice)), oracle.decoder());
    let mut x = decoder.begin(&batch).unwrap();
    for layer in 0..LAYERS {
        let error = relative_error(&flat(&x), &flat(&expected[&format!("layer_input.{layer}")]));
        assert!(error <= 1e-4, "input of layer {layer}: {error:e}");
        x = decoder.advance(&batch, &Step::Attention(layer), &x).unwrap();
        x = decoder.advance(&batch, &Step::Mlp(layer), &x).unwrap();
    }
    let logits = decoder.logits(&x, &(0..256).collect::<Vec<_>>()).unwrap();
    assert!(relative_error(&flat(&logits), &flat(&expected["logits"])) <= 1e-4);
}

#[test]
fn cosines_equal_the_reference_on_both_axes() {
    let Some(oracle) = oracle() else { return };
    let calibration = oracle.calibration(&oracle.decoder());
    let tables = &oracle.values["cosine_pairs"];
    for (axis, name) in [
        (Axis::ChannelSeries, "token_axis(official: over positions, per channel)"),
        (Axis::Token, "channel_axis(per token, over channels)"),
    ] {
        for from in 0..=LAYERS {
            for (to, expected) in numbers(&tables[name][from]).into_iter().enumerate().skip(from) {
                let ours = calibration.similarities.get(Pair { axis, from, to }).unwrap();
                assert!((ours - expected).abs() <= 1e-5, "{axis:?} {from} {to}: {ours} {expected}");
            }
        }
    }
}

#[test]
fn llm_streamline_selects_what_the_official_code_does() {
    let Some(oracle) = oracle() else { return };
    let calibration = oracle.calibration(&oracle.decoder());
    let criterion = criterion::build("llm-streamline", &Options::new()).unwrap();
    for (depth, expected) in oracle.values["streamline_official"].as_object().unwrap() {
        let depth: usize = depth.parse().unwrap();
        let selection = criterion.select(LAYERS, depth, &calibration.similarities).unwrap();
        let (start, end) = (expected["start"].as_u64().unwrap() as usize, expected["end"].as_u64().unwrap() as usize);
        assert_eq!(selection.removed, (start..end).collect::<Vec<_>>(), "depth {depth}");
        let best = selection.scores.iter().find(|(s, _)| *s == start).unwrap().1;
        assert!((best - expected["best"].as_f64().unwrap()).abs() <= 1e-5, "depth {depth}: {best}");
    }
}

#[test]
fn operators_and_their_numbers_equal_the_reference() {
    let Some(oracle) = oracle() else { return };
    let calibration = oracle.calibration(&oracle.decoder());
    let boundary = boundary(&calibration);
    let matrices = tensors(&oracle.folder.join("stories260k_operators.safetensors"));
    for (site, name) in [(2, "x_pre"), (3, "x_post")] {
        let rows: Vec<f64> = calibration.activations.rows(site, 0..2048).unwrap().iter().map(|&v| v.into()).collect();
        assert!(relative_error(&rows, &flat(&matrices[name])) <= 1e-4, "{name}");
    }
    for (name, mae, matrix) in RECOVERIES {
        let operator = recovery::build(name, &Options::new()).unwrap().solve(&boundary).unwrap();
        if let Some(operator) = &operator {
            let ours: Vec<f64> = operator.to_dense().unwrap().into_iter().map(f64::from).collect();
            let error = relative_error(&ours, &flat(&matrices[matrix]));
            assert!(error <= 1e-4, "{name}: {error:e}");
        }
        let numbers = Numbers::of(&boundary, operator.as_deref()).unwrap();
        assert_close(mae, numbers.boundary_mae, oracle.values["boundary_mae"][mae].as_f64().unwrap(), 1e-4);
        if name == "ghosted" {
            let expected = &oracle.values["boundary"];
            for (key, ours) in [
                ("delta_fro", numbers.delta_norm),
                ("M_fro", numbers.m_norm),
                ("sym_fro", numbers.m_symmetric_norm),
                ("asym_fro", numbers.m_antisymmetric_norm),
            ] {
                assert_close(key, ours, expected[key].as_f64().unwrap(), 1e-4);
            }
        }
    }
}

/// The rows `x` and their right-hand sides in blocks of 500, to both ways of solving.
fn systems(x: &[f64], y: &[f64]) -> (Normal, Tall) {
    let (mut normal, mut tall) = (Normal::new(64), Tall::new(64));
    for (x, y) in x.chunks(64 * 500).zip(y.chunks(64 * 500)) {
        normal.add(x, y);
        tall.add(x, y);
    }
    (normal, tall)
}

#[test]
fn least_squares_equal_the_reference_in_f64() {
    let Some(oracle) = oracle() else { return };
    let matrices = tensors(&oracle.folder.join("stories260k_operators.safetensors"));
    let [pre, post, branch] = ["x_pre", "x_post", "mlp_out"].map(|name| flat(&matrices[name]));
    let delta: Vec<f64> = post.iter().zip(&pre).map(|(post, pre)| post - pre).collect();
    let (normal, mut tall) = systems(&pre, &delta);
    // ReplaceMe: what the branch `A` has to become for the removed layers' output, `Y = X_post − (X_pre − A)`.
    let target: Vec<f64> = delta.iter().zip(&branch).map(|(delta, branch)| delta + branch).collect();
    let (normal_branch, mut tall_branch) = systems(&branch, &target);
    for (what, ours, expected) in [
        ("normal equations", normal.solve(1e-6).unwrap(), "M_solve_f64"),
        ("svd", tall.solve(1e-6).unwrap().solution, "M_svd_f64"),
        ("ReplaceMe by normal equations", normal_branch.solve(0.0).unwrap(), "replaceme_ls_T_f64"),
        ("ReplaceMe by svd", tall_branch.solve(1e-6).unwrap().solution, "replaceme_ls_T_f64"),
    ] {
        let error = relative_error(&ours, &flat(&matrices[expected]));
        assert!(error <= 1e-6, "{what}: {error:e}");
    }
}

#[test]
fn the_walsh_hadamard_matrix_equals_the_reference() {
    let Some(oracle) = oracle() else { return };
    let ours: Vec<f64> = hadamard::matrix(64).into_iter().map(f64::from).collect();
    let expected = flat(&tensors(&oracle.folder.join("stories260k_operators.safetensors"))["hadamard64"]);
    assert!(relative_error(&ours, &expected) <= 1e-6);
}

#[test]
fn perplexities_equal_the_reference() {
    let Some(oracle) = oracle() else { return };
    let decoder = oracle.decoder();
    let calibration = oracle.calibration(&decoder);
    let boundary = boundary(&calibration);
    let ids = oracle.ids("evaluation.ids.json");
    let count = oracle.values["perplexity"]["windows"].as_u64().unwrap() as usize;
    assert_eq!(ids.len() / 128, count);
    let starts = (0..count).map(|i| Start { document: 0, token: i * 128 }).collect();
    let windows = Windows { ids: ids[..count * 128].to_vec(), length: 128, starts, corpus_tokens: ids.len() };
    let mut programs = vec![Program::dense(LAYERS)];
    for (name, ..) in RECOVERIES {
        let operator = recovery::build(name, &Options::new()).unwrap().solve(&boundary).unwrap();
        programs.push(Program::pruned(LAYERS, &[2], |_| operator.clone()));
    }
    let trie = Trie::new(&programs);
    let mut seconds = vec![0.0; trie.len()];
    let losses = perplexity::score(&decoder, &trie, programs.len(), &windows, 1024, &mut seconds, |_| Ok(())).unwrap();
    let names = ["dense"].into_iter().chain(RECOVERIES.map(|(_, name, _)| name));
    for (name, losses) in names.zip(losses) {
        let expected = oracle.values["perplexity"]["values"][name].as_f64().unwrap();
        assert_close(name, losses.perplexity(), expected, 1e-4);
    }
}

#[test]
fn python_random_draws_are_exact() {
    let Some(oracle) = oracle() else { return };
    for case in oracle.values["python_random"].as_array().unwrap() {
        let [seed, low, high] = ["seed", "low", "high"].map(|key| case[key].as_u64().unwrap());
        let mut random = PythonRandom::new(seed);
        for expected in case["draws"].as_array().unwrap() {
            assert_eq!(random.randint(low, high).unwrap(), expected.as_u64().unwrap(), "seed {seed}, {low}..={high}");
        }
    }
}

#[test]
fn tokens_and_calibration_windows_are_exact() {
    let Some(oracle) = oracle() else { return };
    let tokenizer = Tokenizer::load(oracle.folder.join("tokenizer.json")).unwrap();
    for name in ["calibration", "evaluation"] {
        let text = std::fs::read_to_string(oracle.folder.join(format!("{name}.txt"))).unwrap();
        let ours = tokenizer.encode(&text).unwrap();
        assert!(ours == oracle.ids(&format!("{name}.ids.json")), "{name}: {} tokens differ", ours.len());
    }
    let text = std::fs::read_to_string(oracle.folder.join("calibration.txt")).unwrap();
    let windows = calibration(Rule::Wikitext2, &[text], &tokenizer, 16, 128, 0).unwrap();
    let starts: Vec<f64> = windows.starts.iter().map(|start| start.token as f64).collect();
    assert_eq!(starts, numbers(&oracle.values["windows"]["train_starts"]));
    assert_eq!(windows.corpus_tokens as u64, oracle.values["windows"]["total_tokens"].as_u64().unwrap());
}
