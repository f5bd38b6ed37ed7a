//! Tests for text generation: decoding with a KV cache agrees with full forward passes, and results do not depend on
//! batching.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::sync::Arc;

use crate::common::{engines, engines_of, fixture, gpu, relative_error, shared};
use ghostlab_core::criterion::DepthUnit;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::evaluate::EvalSet;
use ghostlab_core::evaluate::generation::GenerationEval;
use ghostlab_core::generate::{Detokenizer, End, Generation, GenerationObserver, Prompt, Sampling, Settings, generate};
use ghostlab_core::model::{
    Batch, CandleEngine, Config, Cut, Decoder, DeviceName, Engine, FloatType, LayerMerge, MergeForm, Observer,
    Operator, Placement, Program, Repairs, ResidualStream, RmsNorm, SequenceInput, Sublayer, Trie,
};

const MODELS: [&str; 6] = ["llama-gqa", "llama3-rope", "qwen3", "olmo2", "mistral", "qwen2"];

/// Detokenizer that writes each token as two decimal digits and a space, so that stop strings cross token boundaries.
struct DigitDetokenizer;

impl Detokenizer for DigitDetokenizer {
    fn decode(&self, ids: &[u32], _: bool) -> Result<String> {
        Ok(ids.iter().map(|id| format!("{:02} ", id % 100)).collect())
    }
}

fn decoder(name: &str) -> Decoder {
    Decoder::load(&fixture(&format!("arch/{name}"))).unwrap()
}

/// Returns pseudorandom numbers between −1 and 1.
fn sample_values(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((seed * 31 + i) as f32 * 12.9898).sin()).collect()
}

/// Returns a slightly perturbed identity matrix.
fn near_identity(seed: usize, channels: usize) -> Arc<Operator> {
    let mut matrix: Vec<f32> = sample_values(seed, channels * channels).iter().map(|x| 0.02 * x).collect();
    matrix.iter_mut().step_by(channels + 1).for_each(|x| *x += 1.0);
    Operator::dense(channels, matrix).unwrap()
}

/// Returns test programs: the dense model, a cut, repairs of the residual stream and of branches, repairs by an affine
/// map and by a map of the normed stream, maps that replace two attention sublayers, two removed sublayers, and merged
/// layers.
fn programs(engine: &dyn Engine) -> Vec<Program> {
    let layers = engine.config().layers;
    let c = engine.config().hidden;
    let diagonal = Operator::diagonal(sample_values(5, c).iter().map(|x| 1.0 + 0.1 * x).collect()).unwrap();
    let branches = [((0, Sublayer::Mlp), near_identity(2, c)), ((1, Sublayer::Attention), diagonal)];
    let affine = Operator::affine(c, near_identity(3, c).to_dense().unwrap(), sample_values(4, c)).unwrap();
    let norm = RmsNorm { eps: 1e-5, weight: Some(sample_values(6, c)) };
    let matrix = sample_values(7, c * c).iter().map(|x| 0.02 * x).collect();
    let normed = Operator::normed(norm, c, matrix, Some(sample_values(8, c))).unwrap();
    let maps = [affine.clone(), normed.clone()];
    let attentions: Cut = [0, 2].into_iter().map(|layer| (layer, Sublayer::Attention)).collect();
    let sublayers = attentions.iter().zip(maps).collect();
    let cut = Cut::sublayers([(0, Sublayer::Attention), (2, Sublayer::Mlp)]);
    let mut programs = vec![
        Program::dense(layers),
        Program::pruned(layers, &[2], |_| None),
        Program::pruned(layers, &[2], |_| Some(near_identity(1, c))),
        Program::repaired(layers, &Cut::layers([2]), &Repairs { branches: branches.into(), ..Repairs::default() }),
        Program::pruned(layers, &[1], |_| Some(Arc::clone(&affine))),
        Program::pruned(layers, &[1], |_| Some(Arc::clone(&normed))),
        Program::repaired(layers, &attentions, &Repairs { sublayers, ..Repairs::default() }),
        Program::without(layers, &cut),
    ];
    programs.extend(programs_with_merged_layers(layers));
    programs
}

/// Returns programs in which layer 1 has the weights `θ₂ + θ₃ − θ₁`, once with its own norms and once with merged
/// norms.
fn programs_with_merged_layers(layers: usize) -> [Program; 2] {
    let merge = LayerMerge { layer: 1, absorbed: vec![2, 3] };
    [MergeForm::Paper, MergeForm::Norms].map(|form| {
        let merged = form.apply(std::slice::from_ref(&merge)).into_iter();
        let merged = merged.map(|layer| (layer.layer(), Arc::new(layer))).collect();
        Program::repaired(layers, &Cut::layers([2, 3]), &Repairs { merged, ..Repairs::default() })
    })
}

fn program_without_attention(layers: usize) -> Program {
    Program::without(layers, &DepthUnit::Attention.candidates(layers).into_iter().collect())
}

fn sample_ids(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (seed * 97 + i * i * 31 + i * 7) % 300).collect()
}

/// Observer that stores the last residual stream.
struct LastStream(Vec<f32>);

impl Observer<dyn ResidualStream> for LastStream {
    fn after_step(&mut self, _: usize, stream: Option<&dyn ResidualStream>, _: f64) -> Result<()> {
        self.0 = stream.unwrap().rows()?.values()?.to_vec();
        Ok(())
    }
}

/// Computes all logits `[tokens][vocab]` for a text in one pass.
fn full_pass_logits(engine: &dyn Engine, program: &Program, text: &[u32]) -> Vec<Vec<f32>> {
    let mut trunk = program.clone();
    trunk.0.pop();
    let mut last = LastStream(Vec::new());
    engine.run(&Trie::new(&[trunk]), &Batch::windows([text]), &mut last).unwrap();
    let rows: Vec<usize> = (0..text.len()).collect();
    let logits = engine.logits(&last.0, &rows).unwrap();
    let logits = logits.values().unwrap().to_vec();
    logits.chunks_exact(engine.config().vocab).map(<[f32]>::to_vec).collect()
}

fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| v.into()).collect()
}

fn argmax(logits: &[f32]) -> usize {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
}

/// The text is longer than the sliding windows of the models that have them (24 and 40 tokens).
#[test]
fn cached_steps_match_the_full_forward_pass() {
    for name in MODELS {
        let folder = fixture(&format!("arch/{name}"));
        let capped = Config { score_cap: Some(0.5), ..Config::read(&folder).unwrap() };
        for engine in engines(&folder).into_iter().chain(engines_of(capped, &folder)) {
            assert_steps_equal_full_pass(name, &*engine);
        }
    }
}

fn assert_steps_equal_full_pass(name: &str, engine: &dyn Engine) {
    const TOKENS: usize = 70;
    let name = &format!("{name}, {:?}", engine.id());
    let mut programs = programs(engine);
    programs.push(program_without_attention(engine.config().layers));
    let trie = Trie::new(&programs);
    let mut decoding = engine.start_decoding(&trie).unwrap();
    let text = sample_ids(1, TOKENS);
    let expected: Vec<_> = programs.iter().map(|program| full_pass_logits(engine, program, &text)).collect();
    let all: Vec<usize> = (0..programs.len()).collect();
    let mut run = |ids: &[u32], programs: &[usize], before: &[(usize, usize)], block| {
        let run = SequenceInput {
            ids: ids.to_vec(),
            programs: programs.to_vec(),
            context: before.to_vec(),
            block,
            capacity: TOKENS,
        };
        decoding.run(&[run]).unwrap().remove(0)
    };
    let assert_matches = |position: usize, program: usize, logits: &[f32]| {
        let expected = &expected[program][position];
        let error = relative_error(&to_f64(logits), &to_f64(expected));
        assert!(error < 1e-5, "{name}, program {program}, token {position}: {error:e}");
        assert_eq!(argmax(logits), argmax(expected), "{name}, program {program}, token {position}");
    };
    // Process a prompt that all programs share, then a second block of tokens, and then one token at a time.
    for (program, logits) in run(&text[..20], &all, &[], 0).iter().enumerate() {
        assert_matches(19, program, logits);
    }
    for (program, logits) in run(&text[13..30], &all, &[(0, 13)], 1).iter().enumerate() {
        assert_matches(29, program, logits);
    }
    for position in 30..TOKENS {
        for &program in &all {
            let logits = run(&text[position..=position], &[program], &[(0, 13), (1, 17)], 2 + program);
            assert_matches(position, program, &logits[0]);
        }
    }
}

/// Returns 64 prompts, many with common prefixes. One is longer than the context.
fn sample_prompts() -> Vec<Prompt> {
    (0..64)
        .map(|index| {
            let mut all = sample_ids(index % 3, 12 + index as usize % 5);
            all.extend(sample_ids(index, 1 + index as usize % 7));
            if index == 40 {
                all.extend(sample_ids(9, 200));
            }
            Prompt { identity: format!("prompt {index}"), ids: all }
        })
        .collect()
}

fn sample_settings() -> Settings {
    Settings { stops: vec!["7 1".into(), "33".into()], end_of_text: vec![5, 6], ..Settings::greedy(12, 60) }
}

fn run(engine: &dyn Engine, prompts: &[Prompt], settings: &Settings) -> Vec<Vec<Generation>> {
    generate(engine, &Trie::new(&programs(engine)), prompts, settings, &DigitDetokenizer, &mut ()).unwrap()
}

#[test]
fn batch_size_and_order_do_not_change_tokens() {
    for name in ["llama-gqa", "olmo2", "mistral"] {
        let engine = decoder(name);
        let sampling = Sampling { temperature: 0.8, top_p: 0.9, top_k: Some(40), seed: 7 };
        for sampling in [None, Some(sampling)] {
            let prompts = sample_prompts();
            let plain = Settings { batch: 1, sampling, ..sample_settings() };
            let expected = run(&engine, &prompts, &plain);
            for batch in [7, 64] {
                assert_eq!(run(&engine, &prompts, &Settings { batch, ..plain.clone() }), expected, "{name} {batch}");
            }
            let shuffled: Vec<Prompt> = (0..64).map(|index| prompts[index * 37 % 64].clone()).collect();
            let ours = run(&engine, &shuffled, &Settings { batch: 64, ..plain.clone() });
            assert!(ours.iter().enumerate().all(|(index, ours)| *ours == expected[index * 37 % 64]), "{name}");
            // Also compare some of the tokens with full forward passes.
            if sampling.is_none() {
                for (prompt, program) in [(0, 0), (3, 2), (40, 1), (5, 7), (6, 8), (9, 9)] {
                    let mut text = prompts[prompt].ids.clone();
                    text.drain(..text.len().saturating_sub(48));
                    let start = text.len();
                    let continuation = &expected[prompt][program];
                    for _ in &continuation.ids {
                        let logits = full_pass_logits(&engine, &programs(&engine)[program], &text);
                        text.push(argmax(logits.last().unwrap()) as u32);
                    }
                    assert_eq!(text[start..], continuation.ids, "{name}, prompt {prompt}, program {program}");
                }
            }
        }
    }
}

#[test]
fn long_prompt_keeps_its_last_tokens() {
    let engine = decoder("llama-gqa");
    let settings = sample_settings();
    let long = sample_ids(9, 200);
    let kept_tokens = settings.context - settings.max_new_tokens;
    let expected = run(&engine, &one_prompt(&long[long.len() - kept_tokens..]), &settings);
    assert_eq!(run(&engine, &one_prompt(&long), &settings), expected);
    assert_ne!(
        run(&engine, &one_prompt(&long[..kept_tokens]), &settings),
        expected,
        "the truncated prompts must differ"
    );
}

fn one_prompt(ids: &[u32]) -> [Prompt; 1] {
    [Prompt { identity: "one".to_owned(), ids: ids.to_vec() }]
}

#[test]
fn small_kv_cache_keeps_results_and_tiny_one_is_rejected() {
    let engine = decoder("llama-gqa");
    let prompts = sample_prompts();
    let expected = run(&engine, &prompts, &sample_settings());
    // The cache is too small for the longest prompt.
    let error = cache_error(&engine, 1000).unwrap();
    assert_eq!(error.exit_code(), 3, "{error}");
    let min = (1..40).map(|step| step << 14).find(|&bytes| cache_error(&engine, bytes).is_none()).unwrap();
    assert_eq!(run(&engine, &prompts, &Settings { cache_bytes: min, batch: 64, ..sample_settings() }), expected);
}

#[test]
fn generation_ends_at_stop_string_eos_token_or_length() {
    let engine = decoder("llama-gqa");
    let prompts = sample_prompts();
    let free = run(&engine, &prompts, &Settings::greedy(12, 60));
    assert!(free.iter().flatten().all(|continuation| continuation.end == End::Length && continuation.ids.len() == 12));
    let ids = &free[0][0].ids;
    // The stop string consists of the second digit of the third token, the space, and the first digit of the fourth
    // token.
    let stop = DigitDetokenizer.decode(ids, true).unwrap()[7..10].to_owned();
    let continuation =
        &run(&engine, &prompts[..1], &Settings { stops: vec![stop.clone()], ..Settings::greedy(12, 60) })[0][0];
    let text = DigitDetokenizer.decode(ids, true).unwrap();
    assert_eq!((continuation.end, continuation.text.as_str()), (End::Stop, &text[..text.find(&stop).unwrap()]));
    assert!(continuation.ids.len() <= 4 && ids.starts_with(&continuation.ids));
    let continuation =
        &run(&engine, &prompts[..1], &Settings { end_of_text: vec![ids[2]], ..Settings::greedy(12, 60) })[0][0];
    assert_eq!(continuation.end, End::EndOfText);
    assert_eq!(continuation.ids, ids[..=ids.iter().position(|id| *id == ids[2]).unwrap()]);
}

/// Observer that records which prompts have finished, and interrupts the generation after `rounds` rounds.
struct RecordingObserver {
    done: Vec<usize>,
    rounds: usize,
}

impl GenerationObserver for RecordingObserver {
    fn on_prompt_finished(&mut self, prompt: usize, generations: &[Generation]) -> Result<()> {
        assert_eq!(generations.len(), 10);
        self.done.push(prompt);
        Ok(())
    }

    fn on_round(&mut self) -> Result<()> {
        self.rounds -= 1;
        if self.rounds == 0 { Err(Error::interrupted("stopped")) } else { Ok(()) }
    }
}

#[test]
fn observer_sees_each_prompt_once_and_can_stop_generation() {
    let engine = decoder("llama-gqa");
    let prompts = sample_prompts();
    let settings = Settings { batch: 5, ..sample_settings() };
    let mut all = RecordingObserver { done: Vec::new(), rounds: usize::MAX };
    generate(&engine, &Trie::new(&programs(&engine)), &prompts, &settings, &DigitDetokenizer, &mut all).unwrap();
    all.done.sort_unstable();
    assert_eq!(all.done, (0..64).collect::<Vec<_>>());
    let mut stopped = RecordingObserver { done: Vec::new(), rounds: 20 };
    let error = generate(&engine, &Trie::new(&programs(&engine)), &prompts, &settings, &DigitDetokenizer, &mut stopped)
        .err()
        .unwrap();
    assert_eq!(error.exit_code(), 130);
    assert!(!stopped.done.is_empty() && stopped.done.len() < 64);
}

#[test]
fn invalid_prompts_and_settings_are_rejected() {
    let engine = decoder("llama-gqa");
    let sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: None, seed: 0 };
    for (prompts, settings, message) in [
        (first_prompt(&[]), short_settings(), "`first`"),
        (first_prompt(&[1, 320]), short_settings(), "320"),
        (first_prompt(&[1]), Settings { max_new_tokens: 0, ..short_settings() }, "new token"),
        (first_prompt(&[1]), Settings { context: 0, ..short_settings() }, "context of 0"),
        (first_prompt(&[1]), Settings { context: 4, ..short_settings() }, "context of 4"),
        (first_prompt(&[1]), Settings { batch: 0, ..short_settings() }, "the batch size is 0"),
        (first_prompt(&[1]), Settings { stops: vec!["a".into(), String::new()], ..short_settings() }, "stop 1"),
        (
            first_prompt(&[1]),
            Settings { sampling: Some(Sampling { temperature: 0.0, ..sampling }), ..short_settings() },
            "temperature",
        ),
        (
            first_prompt(&[1]),
            Settings { sampling: Some(Sampling { top_p: 1.5, ..sampling }), ..short_settings() },
            "top_p",
        ),
        (
            first_prompt(&[1]),
            Settings { sampling: Some(Sampling { top_k: Some(0), ..sampling }), ..short_settings() },
            "top_k",
        ),
    ] {
        let error = generate(&engine, &Trie::new(&programs(&engine)), &prompts, &settings, &DigitDetokenizer, &mut ())
            .err()
            .unwrap();
        assert!(error.to_string().contains(message), "{error}");
    }
    let trunk = [Program::trunk(engine.config().layers)];
    assert!(
        generate(&engine, &Trie::new(&trunk), &first_prompt(&[1]), &short_settings(), &DigitDetokenizer, &mut ())
            .is_err()
    );
    assert_eq!(run(&engine, &[], &short_settings()), Vec::<Vec<Generation>>::new());
}

fn first_prompt(ids: &[u32]) -> Vec<Prompt> {
    vec![Prompt { identity: "first".into(), ids: ids.to_vec() }]
}

fn short_settings() -> Settings {
    Settings::greedy(4, 32)
}

#[test]
fn candle_and_cpu_engine_generate_the_same_tokens() {
    for (name, device) in ["llama-gqa", "olmo2", "mistral", "qwen2"]
        .into_iter()
        .flat_map(|name| ([Some(DeviceName::Cpu), gpu()].into_iter().flatten()).map(move |device| (name, device)))
    {
        let folder = fixture(&format!("arch/{name}"));
        let placement = Placement { device, dtype: FloatType::F32 };
        let candle = CandleEngine::load(Config::read(&folder).unwrap(), &folder, placement, None).unwrap();
        let prompts: Vec<Prompt> = sample_prompts().into_iter().step_by(5).collect();
        let expected = run(&decoder(name), &prompts, &sample_settings());
        for batch in [1, 7] {
            assert_eq!(
                run(&candle, &prompts, &Settings { batch, ..sample_settings() }),
                expected,
                "{name}, batch {batch}"
            );
        }
    }
}

#[test]
fn batched_chunks_match_separate_chunks() {
    let engine = decoder("qwen3");
    let prompts: Vec<Prompt> =
        (0..70).map(|index| Prompt { identity: index.to_string(), ids: short_ids(index) }).collect();
    let eval = GenerationEval::new(&prompts, Settings { batch: 1, ..Settings::greedy(3, 64) }, &DigitDetokenizer);
    let trie = Trie::new(&programs(&engine));
    let run_chunks = |chunks: &[usize]| eval.run(&engine, &trie, chunks, &mut vec![0.0; trie.len()]).unwrap();
    assert_eq!(eval.chunks(), 2);
    // Pass the chunks in a different order from their prompts.
    let together = run_chunks(&[1, 0]);
    let first = run_chunks(&[0]);
    let second = run_chunks(&[1]);
    assert_eq!(together, [second, first].concat());
    assert!(eval.is_complete(1, &together[0][0]) && eval.is_complete(0, &together[1][0]));
}

/// Uses a Phi-3 model with the long factors of `longrope` beyond 24 tokens. The expected values are the greedy tokens
/// of transformers 5.24 in f32, generated for one prompt at a time. The top two logits always differ by at least 0.02.
/// The prompt of 10 tokens stays within the original context of 24 tokens. Prompts of 18 to 24 tokens grow beyond it,
/// and longer ones start beyond it.
#[test]
fn longrope_answer_is_recomputed_past_the_original_context() {
    let Some(folder) = shared("cases/turn4/longrope-lengths/model") else { return };
    let expected: [(usize, [u32; 12]); 6] = [
        (10, [186, 372, 51, 506, 378, 300, 363, 53, 448, 437, 371, 171]),
        (18, [200, 179, 49, 37, 508, 378, 199, 506, 500, 121, 221, 262]),
        (23, [242, 68, 109, 107, 316, 398, 398, 398, 398, 61, 242, 296]),
        (24, [30, 66, 83, 193, 415, 153, 372, 289, 202, 7, 104, 284]),
        (25, [391, 439, 245, 53, 318, 236, 145, 19, 316, 245, 415, 236]),
        (30, [180, 409, 386, 11, 179, 123, 492, 149, 200, 415, 198, 11]),
    ];
    // All prompts have a common prefix.
    let prompts: Vec<Prompt> = expected
        .iter()
        .map(|(length, _)| Prompt {
            identity: length.to_string(),
            ids: ({
                let rest = (0..(*length) as u32 - 1).map(|i| (97 * 3 + i * i * 31 + i * 7) % 500 + 3);
                [1].into_iter().chain(rest).collect()
            }),
        })
        .collect();
    for engine in engines(&folder) {
        let layers = engine.config().layers;
        // The second program generates different tokens, so its texts are recomputed separately.
        let trie = Trie::new(&[Program::dense(layers), Program::pruned(layers, &[1], |_| None)]);
        let alone: Vec<Vec<Generation>> = prompts
            .iter()
            .flat_map(|one| {
                let settings = Settings { batch: 1, ..Settings::greedy(12, 100) };
                generate(&*engine, &trie, std::slice::from_ref(one), &settings, &DigitDetokenizer, &mut ()).unwrap()
            })
            .collect();
        for batch in [1, 3, 16] {
            let settings = Settings { batch, ..Settings::greedy(12, 100) };
            let ours = generate(&*engine, &trie, &prompts, &settings, &DigitDetokenizer, &mut ()).unwrap();
            for ((length, expected), ours) in expected.iter().zip(&ours) {
                assert_eq!(ours[0].ids, expected, "{}, {length} tokens, batch {batch}", engine.id());
            }
            assert_eq!(ours, alone, "{}, batch {batch}", engine.id());
        }
        // The cache has room for each prompt with its answers, but not for a recomputed text.
        let token = engine.start_decoding(&trie).unwrap().token_bytes(&[0, 1]);
        let short = Settings { cache_bytes: token * 60, ..Settings::greedy(12, 100) };
        let error = generate(&*engine, &trie, &prompts, &short, &DigitDetokenizer, &mut ()).unwrap_err();
        assert!(error.to_string().contains("a prompt does not fit in the KV cache"), "{error}");
    }
}

#[test]
fn cached_keys_with_other_longrope_factors_are_rejected() {
    let Some(folder) = shared("cases/turn4/longrope-lengths/model") else { return };
    for engine in engines(&folder) {
        let trie = Trie::new(&[Program::dense(engine.config().layers)]);
        let mut decoding = engine.start_decoding(&trie).unwrap();
        let mut run = |ids: &[u32], block| {
            decoding.run(&[SequenceInput {
                ids: ids.to_vec(),
                programs: vec![0],
                context: Vec::new(),
                block,
                capacity: 40,
            }])
        };
        assert!(run(&sample_ids(1, 24), 0).is_ok() && run(&sample_ids(1, 30), 1).is_ok() && run(&[5], 1).is_ok());
        let error = run(&[5], 0).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("at most 24 tokens"), "{error}");
    }
}

fn cache_error(engine: &Decoder, cache_bytes: u64) -> Option<Error> {
    let settings = Settings { cache_bytes, ..sample_settings() };
    generate(engine, &Trie::new(&programs(engine)), &sample_prompts(), &settings, &DigitDetokenizer, &mut ()).err()
}

fn short_ids(index: u32) -> Vec<u32> {
    sample_ids(index, 3 + index as usize % 5)
}
