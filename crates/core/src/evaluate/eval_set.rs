//! Data sets on which variants (pruned and repaired backbones) are scored, divided into chunks. Results are stored per
//! chunk, so that an interrupted run can be resumed.

use std::time::Instant;

use crate::error::Result;
use crate::generate::Generation;
use crate::model::{Batch, Divergence, Engine, Load, Prediction, Program, Trie, count_fitting_pieces};

/// A text or task, divided into chunks. The values of a chunk depend only on the backbone, the program and the chunk,
/// not on other programs in the trie or on other chunks.
pub trait EvalSet: Sync {
    fn chunks(&self) -> usize;

    /// Returns the number of tokens in a chunk.
    fn tokens(&self, chunk: usize) -> usize;

    /// Returns the number of tokens actually processed per program in a chunk, or `None` if all tokens are processed.
    fn processed_tokens(&self, _chunk: usize, _program_values: &[&[f64]]) -> Option<usize> {
        None
    }

    /// Returns the size of the given chunks, for the cost model.
    fn load(&self, chunks: &[usize]) -> Load;

    /// Returns the preferred number of tokens per engine pass.
    fn pass_tokens(&self, engine: &dyn Engine, programs: usize) -> usize {
        engine.pass_tokens(programs)
    }

    /// Builds the trie of the given programs that [`Self::run`] expects.
    fn trie(&self, programs: &[Program]) -> Trie {
        Trie::for_scoring(programs)
    }

    /// Runs the given chunks together. Adds the seconds spent in each trie node to `seconds`, which is indexed by node.
    fn run(&self, engine: &dyn Engine, trie: &Trie, chunks: &[usize], seconds: &mut [f64]) -> Result<ChunkValues>;

    /// Returns the number of values per program in a chunk, or a lower bound if the number depends on the program.
    fn count(&self, chunk: usize) -> usize;

    /// Returns whether `values` contains all values of one program for a chunk.
    fn is_complete(&self, chunk: usize, values: &[f64]) -> bool {
        values.len() == self.count(chunk)
    }

    /// Converts the values of all prompts to generations. Returns `None` if the values are scores.
    ///
    /// # Errors
    /// Fails if the values do not belong to these prompts.
    fn generations(&self, _values: &[f64]) -> Result<Option<Vec<Generation>>> {
        Ok(None)
    }

    /// Concatenates the values of all chunks, in the order of windows or requests.
    fn assemble(&self, chunks: &[Vec<f64>]) -> Vec<f64> {
        chunks.concat()
    }
}

/// Values indexed by `[chunk][program]`.
pub type ChunkValues = Vec<Vec<Vec<f64>>>;

/// Function that converts the outputs of one program to values.
type ExtractValues<'a, T> = dyn Fn(&[T]) -> Vec<f64> + 'a;

/// Consecutive windows or documents of a chunk as one batch, and the function that computes their values from the
/// outputs of one program.
pub(super) struct EvalPart<'a, T = Prediction> {
    pub(super) batch: Batch,
    pub(super) extract_values: Box<ExtractValues<'a, T>>,
}

/// Output of an engine for one target of a program.
pub(super) trait EngineOutput: Sized {
    /// Runs the parts through the trie. The outputs are indexed by `[part][program][target]`.
    fn run(engine: &dyn Engine, trie: &Trie, parts: &[Batch], seconds: &mut [f64]) -> Result<Vec<Outputs<Self>>>;
}

/// Outputs of a part, indexed by `[program][target]`, or `None` for programs without a head.
type Outputs<T> = Vec<Option<Vec<T>>>;

impl EngineOutput for Prediction {
    fn run(engine: &dyn Engine, trie: &Trie, parts: &[Batch], seconds: &mut [f64]) -> Result<Vec<Outputs<Self>>> {
        engine.score(trie, parts, seconds)
    }
}

/// The trie must have a reference program.
impl EngineOutput for Divergence {
    fn run(engine: &dyn Engine, trie: &Trie, parts: &[Batch], seconds: &mut [f64]) -> Result<Vec<Outputs<Self>>> {
        engine.compare(trie, parts, seconds)
    }
}

/// Runs the members (windows or documents) of the given chunks in parts of at least `engine.part_tokens()` tokens, and
/// returns each chunk's values per program, in member order. A part never spans two chunks.
///
/// `build_part` builds a part from its members. The elapsed time is added to `seconds`, divided among the nodes in
/// proportion to their measured times.
pub(super) fn run_in_parts<'a, M, T: EngineOutput>(
    engine: &dyn Engine,
    trie: &Trie,
    chunks: &[&'a [M]],
    count_tokens: impl Fn(&M) -> usize,
    seconds: &mut [f64],
    build_part: impl Fn(&'a [M]) -> EvalPart<'a, T>,
) -> Result<ChunkValues> {
    let started = Instant::now();
    let parts = chunks.iter().enumerate().flat_map(|(chunk, members)| {
        let parts = split_members(engine.part_tokens(), members, &count_tokens);
        parts.into_iter().map(|members| (chunk, build_part(members))).collect::<Vec<_>>()
    });
    let (batches, extractors): (Vec<_>, Vec<_>) =
        parts.map(|(chunk, part)| (part.batch, (chunk, part.extract_values))).unzip();
    let mut node_seconds = vec![0.0; trie.len()];
    let outputs = T::run(engine, trie, &batches, &mut node_seconds)?;
    let scale = started.elapsed().as_secs_f64() / node_seconds.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    seconds.iter_mut().zip(node_seconds).for_each(|(sum, node)| *sum += node * scale);
    let mut chunk_values = vec![vec![Vec::new(); trie.programs()]; chunks.len()];
    for (program_outputs, (chunk, extract_values)) in outputs.into_iter().zip(extractors) {
        for (values, output) in chunk_values[chunk].iter_mut().zip(program_outputs) {
            values.extend(extract_values(&output.unwrap_or_default()));
        }
    }
    Ok(chunk_values)
}

/// Splits members into consecutive parts of at least `part_tokens` tokens. The last part may be smaller.
fn split_members<M>(part_tokens: usize, members: &[M], count_tokens: impl Fn(&M) -> usize) -> Vec<&[M]> {
    let mut parts = Vec::new();
    let mut first = 0;
    let mut size = 0;
    for (index, member) in members.iter().enumerate() {
        size += count_tokens(member);
        if size >= part_tokens || index + 1 == members.len() {
            parts.push(&members[first..=index]);
            (first, size) = (index + 1, 0);
        }
    }
    parts
}

/// Scores all programs of a trie on a complete eval set without storing results.
///
/// `progress` receives the token count of each chunk and may stop the run by returning an error. The seconds spent in
/// each trie node are added to `seconds`, which is indexed by node.
pub fn score(
    eval_set: &dyn EvalSet,
    engine: &dyn Engine,
    trie: &Trie,
    seconds: &mut [f64],
    mut progress: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<Vec<f64>>> {
    let mut program_chunks = vec![Vec::with_capacity(eval_set.chunks()); trie.programs()];
    let chunks: Vec<usize> = (0..eval_set.chunks()).collect();
    let mut left = chunks.as_slice();
    while !left.is_empty() {
        let max_tokens = eval_set.pass_tokens(engine, trie.programs());
        let (now, later) =
            left.split_at(count_fitting_pieces(left.iter().map(|&chunk| eval_set.tokens(chunk)), max_tokens));
        for chunk_values in eval_set.run(engine, trie, now, seconds)? {
            for (program, values) in program_chunks.iter_mut().zip(chunk_values) {
                program.push(values);
            }
        }
        now.iter().try_for_each(|&chunk| progress(eval_set.tokens(chunk)))?;
        left = later;
    }
    Ok(program_chunks.iter().map(|chunks| eval_set.assemble(chunks)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::engine::tests::AddingEngine;
    use crate::model::{Cut, Operator, Program, Repairs, Sublayer};

    #[test]
    fn split_keeps_member_order_and_a_minimum_part_size() {
        let parts = split_members(512, &[300, 300, 10, 600, 1], |&tokens| tokens);
        assert_eq!(parts, [&[300, 300][..], &[10, 600], &[1]]);
    }

    /// Computes the loss of the first token of each member under a program, with the members split into two parts.
    fn compute_losses(program: Program, seconds: &mut [f64]) -> Result<Vec<Vec<f64>>> {
        let engine = AddingEngine::new();
        let trie = Trie::new(&[program]);
        let mut outputs = run_in_parts(
            &engine,
            &trie,
            &[&[5, 6, 7]],
            |_| 2,
            seconds,
            |ids: &[u32]| {
                let windows: Vec<[u32; 2]> = ids.iter().map(|&id| [id, 0]).collect();
                EvalPart {
                    batch: Batch::windows(windows.iter().map(<[u32; 2]>::as_slice)),
                    extract_values: Box::new(|predictions: &[Prediction]| {
                        predictions.iter().map(|predictions| -f64::from(predictions.log_probability)).collect()
                    }),
                }
            },
        )?;
        Ok(outputs.remove(0))
    }

    #[test]
    fn parts_of_a_chunk_keep_value_order_and_add_their_times() {
        let mut seconds = vec![1.0; 10];
        let started = Instant::now();
        // Each of the four layers of the test engine adds 11 to the loss.
        assert_eq!(compute_losses(Program::dense(4), &mut seconds).unwrap(), [[49.0, 50.0, 51.0]]);
        let added = seconds.iter().sum::<f64>() - 10.0;
        assert!(added > 0.0 && added < started.elapsed().as_secs_f64(), "{seconds:?}");
    }

    #[test]
    fn error_in_a_part_fails_the_chunk() {
        // The test engine does not support edited sublayers.
        let branches = [((0, Sublayer::Mlp), Operator::diagonal(vec![1.0; 64]).unwrap())].into();
        let edited = Program::repaired(4, &Cut::layers([1]), &Repairs { branches, ..Repairs::default() });
        assert!(compute_losses(edited, &mut [0.0; 16]).is_err());
    }
}
