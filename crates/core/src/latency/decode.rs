//! Timed decoding of new tokens after a prompt.

use std::ops::Deref;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::round_times::RoundTimes;
use super::rounds::{ExtraRounds, Prompt, Rounds, Session, build_separate_tries, run_rounds};
use super::spread::TimeSpread;
use crate::error::Result;
use crate::model::{Config, Engine, Load, Program, SequenceInput, Trie};

/// Decoding times of a variant for new tokens after one prompt. Derefs to the times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecodeResult {
    /// Number of new tokens per round, summed over all sequences.
    pub tokens: usize,
    #[serde(flatten)]
    pub rounds: RoundTimes,
    /// FLOPs for the new tokens according to the cost model. `dense_work` is the value for the dense backbone.
    pub work: f64,
    pub dense_work: f64,
}

impl Deref for DecodeResult {
    type Target = RoundTimes;

    fn deref(&self) -> &RoundTimes {
        &self.rounds
    }
}

impl DecodeResult {
    /// Returns the throughput in tokens per second, computed from the mean time. Its relative deviation equals that of
    /// the time.
    pub fn rate(&self) -> Option<TimeSpread> {
        let spread = self.spread()?;
        let mean = 1e3 * self.tokens as f64 / spread.mean;
        Some(TimeSpread { mean, deviation: mean * spread.relative() })
    }

    /// Returns the speedup predicted by the cost model.
    pub fn predicted(&self) -> f64 {
        self.dense_work / self.work
    }
}

/// Times greedy decoding of `tokens` new tokens per sequence, with each program in a separate trie. The prompt is
/// processed first into an empty cache and is not timed. See `run_rounds` for the order and number of rounds.
///
/// # Errors
/// Fails if the engine does not support decoding or a step fails for a reason other than insufficient memory.
/// Propagates errors from `after_pass`.
pub fn measure_decoding(
    engine: &dyn Engine,
    programs: &[Program],
    (prompt, tokens): (Prompt, usize),
    rounds: Rounds,
    extra: ExtraRounds,
    after_pass: &mut dyn FnMut(bool) -> Result<()>,
) -> Result<Session> {
    let tries = build_separate_tries(programs);
    run_rounds(
        tries.len(),
        rounds,
        extra,
        &mut |index| decode_tokens(engine, &tries[index], prompt, tokens).map(|(took, _)| took),
        after_pass,
    )
}

/// Decodes the new tokens. Returns the time in milliseconds and the tokens chosen in each step.
fn decode_tokens(engine: &dyn Engine, trie: &Trie, prompt: Prompt, tokens: usize) -> Result<(f64, Vec<u32>)> {
    let mut decoding = engine.start_decoding(trie)?;
    let ids = prompt.as_batch(engine.config().vocab).ids;
    let sequence_input = |(block, ids): (usize, &[u32])| SequenceInput {
        ids: ids.to_vec(),
        programs: vec![0],
        context: Vec::new(),
        block,
        capacity: prompt.length + tokens,
    };
    let inputs: Vec<SequenceInput> = ids.chunks(prompt.length.max(1)).enumerate().map(sequence_input).collect();
    let mut next = first_program_tokens(decoding.greedy_tokens(&inputs)?);
    let mut new = Vec::with_capacity(tokens * prompt.batch);
    let started = Instant::now();
    for _ in 0..tokens {
        let inputs: Vec<SequenceInput> = next.chunks(1).enumerate().map(sequence_input).collect();
        next = first_program_tokens(decoding.greedy_tokens(&inputs)?);
        new.extend_from_slice(&next);
    }
    Ok((started.elapsed().as_secs_f64() * 1e3, new))
}

/// Returns the next token for each sequence of a single program. Sequences with invalid logits continue with token 0,
/// because the time does not depend on the token.
fn first_program_tokens(greedy_tokens: Vec<Vec<Option<u32>>>) -> Vec<u32> {
    greedy_tokens.into_iter().map(|programs| programs.first().copied().flatten().unwrap_or(0)).collect()
}

/// Estimates the FLOPs for the new tokens as the FLOPs for the extended prompts minus those for the prompts.
pub fn decode_work(config: &Config, program: &Program, prompt: Prompt, tokens: usize) -> f64 {
    let trie = Trie::new(std::slice::from_ref(program));
    let [before, after] = [prompt.length, prompt.length + tokens]
        .map(|length| trie.flops(config, &Load::windows(prompt.batch * length, length)).separate);
    after - before
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::generate::{self, Detokenizer, Settings};
    use crate::model::engine::tests::AddingEngine;
    use crate::model::{CandleEngine, Decoder, DeviceName, FloatType, Placement};

    struct EmptyDetokenizer;

    impl Detokenizer for EmptyDetokenizer {
        fn decode(&self, _: &[u32], _: bool) -> Result<String> {
            Ok(String::new())
        }
    }

    const PROMPT: Prompt = Prompt { length: 6, batch: 3 };

    fn folder() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch/llama-gqa")
    }

    #[test]
    fn timed_tokens_match_generated_tokens() {
        let decoder: Box<dyn Engine> = Box::new(Decoder::load(&folder()).unwrap());
        let placement = Placement { device: DeviceName::Cpu, dtype: FloatType::F32 };
        let config = Config::read(&folder()).unwrap();
        let candle: Box<dyn Engine> = Box::new(CandleEngine::load(config, &folder(), placement, None).unwrap());
        for engine in [decoder, candle] {
            let config = engine.config();
            let program = Program::pruned(config.layers, &[1], |_| None);
            let ids = PROMPT.as_batch(config.vocab).ids;
            let prompts: Vec<generate::Prompt> = ids
                .chunks(PROMPT.length)
                .map(|ids| generate::Prompt { identity: String::new(), ids: ids.to_vec() })
                .collect();
            // Prefill yields the first token, and decoding yields the other five.
            let settings = Settings::greedy(6, 64);
            let programs = std::slice::from_ref(&program);
            let trie = Trie::new(programs);
            let expected =
                generate::generate(&*engine, &trie, &prompts, &settings, &EmptyDetokenizer, &mut ()).unwrap();
            let (took, tokens) = decode_tokens(&*engine, &trie, PROMPT, 5).unwrap();
            assert_eq!(tokens.len(), 15);
            for (sequence, generations) in expected.iter().enumerate() {
                assert_eq!(
                    tokens.iter().skip(sequence).step_by(3).copied().collect::<Vec<u32>>(),
                    generations[0].ids[1..],
                    "{}",
                    engine.id()
                );
            }
            assert!(took > 0.0);
        }
    }

    #[test]
    fn decode_rounds_cover_all_variants_if_supported() {
        let engine = Decoder::load(&folder()).unwrap();
        let layers = engine.config().layers;
        let programs = [Program::dense(layers), Program::pruned(layers, &[1], |_| None)];
        let (rounds, extra) = (Rounds { warmups: 1, timed: 2 }, ExtraRounds { rounds: 0, seconds: 0.0 });
        let mut passes = 0;
        let session = measure_decoding(&engine, &programs, (PROMPT, 2), rounds, extra, &mut |_| {
            passes += 1;
            Ok(())
        });
        let session = session.unwrap();
        assert_eq!((session.timed.len(), passes), (2, 6));
        let error =
            measure_decoding(&AddingEngine::new(), &programs, (PROMPT, 2), rounds, extra, &mut |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("does not support decoding"), "{error}");
    }

    #[test]
    fn decode_work_matches_hand_computed_flops() {
        let config = Config::read(&folder()).unwrap();
        let c = config.hidden;
        let q = config.heads * config.head_dim;
        let kv = config.kv_heads * config.head_dim;
        // Computed by hand for five tokens in each of three sequences. Each token attends to the prompt and, on
        // average, to half of the five tokens.
        let layer = c * (2 * q + 2 * kv) + 3 * c * config.intermediate;
        let weights = 15 * (config.layers * layer + c * config.vocab);
        let seen = 15.0 * (6.0 + 2.5) * (2 * q * config.layers) as f64;
        let work = decode_work(&config, &Program::dense(config.layers), PROMPT, 5);
        assert!((work - 2.0 * (weights as f64 + seen)).abs() < 1e-6 * work, "{work}");
    }

    #[test]
    fn decode_rate_and_speedup_use_the_same_mean_times() {
        let result = DecodeResult {
            tokens: 64,
            rounds: RoundTimes {
                times: Some(vec![10.0, 10.0, 16.0]),
                by_channel: None,
                dense: Some(vec![24.0, 24.0, 24.0]),
                first: 0,
            },
            work: 2.0,
            dense_work: 3.0,
        };
        let rate = result.rate().unwrap();
        // 64 tokens in 12 ms on average, with a standard deviation of 3.46 ms.
        assert!((rate.mean - 64e3 / 12.0).abs() < 1e-9, "{rate:?}");
        assert!((rate.relative() - 12f64.sqrt() / 12.0).abs() < 1e-12, "{rate:?}");
        assert!((result.speedup().unwrap().ratio - 2.0).abs() < 1e-12);
        assert!((result.predicted() - 1.5).abs() < 1e-12);
    }
}
