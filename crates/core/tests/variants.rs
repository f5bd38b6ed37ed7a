//! Checks that pruned and repaired models give the same results whether they are run together or separately.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use crate::common::{engines, fixture};
use ghostlab_core::model::{Batch, CPU, Operator, Program, ScoredRow, Step, Sublayer, Trie};

/// Returns an operator that is neither the identity nor symmetric.
fn sample_operator(channels: usize, seed: usize) -> std::sync::Arc<Operator> {
    Operator::dense(
        channels,
        (0..channels * channels)
            .map(|i| {
                let noise = ((i * 7919 + seed * 104_729) % 1000) as f32 / 1000.0 - 0.5;
                noise * 0.05 + f32::from(u8::from(i.is_multiple_of(channels + 1)))
            })
            .collect(),
    )
    .unwrap()
}

/// Returns the dense program, and programs that are cut in the middle, at the start, at the end and in two places, each
/// with and without an operator.
fn sample_programs(layers: usize, channels: usize) -> Vec<Program> {
    let diagonal = Operator::diagonal((0..channels).map(|c| 0.8 + c as f32 / 200.0).collect()).unwrap();
    let mut programs = vec![Program::dense(layers)];
    for removed in [&[1, 2][..], &[2], &[0], &[3], &[0, 2]] {
        programs.push(Program::pruned(layers, removed, |_| None));
        programs.push(Program::pruned(layers, removed, |_| Some(diagonal.clone())));
        programs.push(Program::pruned(layers, removed, |start| Some(sample_operator(channels, start))));
    }
    programs
}

#[test]
fn skipping_unscored_rows_does_not_change_scores() {
    for name in ["llama-gqa", "qwen3", "olmo2"] {
        let engines = engines(&fixture(&format!("arch/{name}")));
        let layers = engines[0].config().layers;
        let channels = engines[0].config().hidden;
        let mut programs = sample_programs(layers, channels);
        let edit = Operator::diagonal(vec![1.1; channels]).unwrap();
        let mut edited = Program::dense(layers);
        let last = edited.0.iter_mut().find(|step| **step == Step::Sublayer(Sublayer::Mlp, layers - 1)).unwrap();
        *last = Step::Edited(Sublayer::Mlp, layers - 1, edit);
        programs.push(edited);
        let ids: Vec<u32> = (0..600).map(|i| (i * 31 % 317) as u32).collect();
        let mut batch = Batch::windows([&ids[..300], &ids[300..301], &ids[301..]]);
        // Score every seventh row, and one of these rows for two tokens.
        batch.targets.retain(|target| target.row % 7 == 3);
        let again = ScoredRow { token: 5, ..batch.targets[4] };
        batch.targets.insert(5, again);
        for engine in engines {
            let all = engine.run(&Trie::new(&programs), &batch, &mut ()).unwrap();
            let scored = engine.run(&Trie::for_scoring(&programs), &batch, &mut ()).unwrap();
            for ((program, all), scored) in programs.iter().zip(all).zip(scored) {
                let all = all.unwrap();
                let scored = scored.unwrap();
                assert_eq!((all.len(), scored.len()), (batch.targets.len(), batch.targets.len()));
                // On the CPU engine, the results for a row are bit-identical regardless of which other rows are scored.
                let max = if engine.id() == CPU { 0.0 } else { 1e-6 };
                for (a, b) in all.iter().zip(&scored) {
                    let a = a.log_probability;
                    let b = b.log_probability;
                    assert!(((a - b) / b).abs() <= max, "{} {name}: {program:?}: {a} {b}", engine.id().name);
                }
            }
        }
    }
}

#[test]
fn programs_run_together_match_separate_runs() {
    for name in ["llama-gqa", "qwen3", "olmo2"] {
        let engines = engines(&fixture(&format!("arch/{name}")));
        let programs = sample_programs(engines[0].config().layers, engines[0].config().hidden);
        let ids: Vec<u32> = (0..230).map(|i| (i * 31 % 317) as u32).collect();
        let batch = Batch::windows([&ids[..100], &ids[100..101], &ids[101..]]);
        for engine in engines {
            let together = engine.run(&Trie::new(&programs), &batch, &mut ()).unwrap();
            for (program, together) in programs.iter().zip(together) {
                let alone = engine.run(&Trie::new(std::slice::from_ref(program)), &batch, &mut ()).unwrap();
                let together = together.unwrap();
                let alone = alone[0].clone().unwrap();
                assert_eq!(together.len(), 99 + 128);
                for (a, b) in together.iter().zip(&alone) {
                    let a = a.log_probability;
                    let b = b.log_probability;
                    assert!(((a - b) / b).abs() <= 1e-6, "{} {name}: {program:?}: {a} {b}", engine.id().name);
                }
            }
        }
    }
}

#[test]
fn window_score_is_independent_of_its_batch() {
    let trie = Trie::new(&[Program::dense(4)]);
    let ids: Vec<u32> = (0..300).map(|i| (i * 17 % 311) as u32).collect();
    let windows: Vec<&[u32]> = ids.chunks(60).collect();
    for engine in engines(&fixture("arch/llama3-rope")) {
        let all = engine.run(&trie, &Batch::windows(windows.iter().copied()), &mut ()).unwrap();
        let all = all[0].as_ref().unwrap();
        for (window, expected) in windows.iter().zip(all.chunks(59)) {
            let alone = engine.run(&trie, &Batch::windows([*window]), &mut ()).unwrap();
            for (a, b) in alone[0].as_ref().unwrap().iter().zip(expected) {
                let a = a.log_probability;
                let b = b.log_probability;
                assert!((a - b).abs() <= 1e-4, "{a} {b}");
            }
        }
    }
}
