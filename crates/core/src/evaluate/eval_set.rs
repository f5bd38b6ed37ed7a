//! What variants are scored on, in chunks: the unit that is stored and resumed.

use std::time::Instant;

use rayon::prelude::*;

use crate::error::Result;
use crate::model::{Engine, Load, Observer, Trie};

/// A text or a task, cut into chunks. A chunk's values depend on the backbone, the program and the chunk alone: not on
/// the other programs of the trie, nor on other chunks.
pub trait EvalSet: Sync {
    fn chunks(&self) -> usize;

    /// Tokens of one chunk.
    fn tokens(&self, chunk: usize) -> usize;

    /// How much text some chunks are, for the cost model.
    fn load(&self, chunks: &[usize]) -> Load;

    /// Runs one chunk: the values of each program. `seconds[node]` grows by the time of each step.
    fn run(&self, engine: &dyn Engine, trie: &Trie, chunk: usize, seconds: &mut [f64]) -> Result<Vec<Vec<f64>>>;

    /// How many values a chunk gives for each program.
    fn count(&self, chunk: usize) -> usize;

    /// The values of all chunks, in the order of the windows or requests.
    fn assemble(&self, chunks: &[Vec<f64>]) -> Vec<f64>;
}

/// Adds up the seconds of each node.
pub(super) struct Clock<'a>(pub(super) &'a mut [f64]);

impl<S: ?Sized> Observer<S> for Clock<'_> {
    fn after(&mut self, node: usize, _: Option<&S>, seconds: f64) -> Result<()> {
        self.0[node] += seconds;
        Ok(())
    }
}

/// Runs a chunk's members (windows or documents) in parts of `part_tokens` or a little more, side by side: the values of
/// each program, in the members' order.
///
/// `run` is given a part and adds up the time of each node; `seconds` grows by these times' shares of the time that passed.
pub(super) fn in_parts<M: Sync>(
    part_tokens: usize,
    members: &[M],
    tokens: impl Fn(&M) -> usize,
    seconds: &mut [f64],
    run: impl Fn(&[M], &mut [f64]) -> Result<Vec<Vec<f64>>> + Sync,
) -> Result<Vec<Vec<f64>>> {
    let started = Instant::now();
    let mut parts = Vec::new();
    let (mut first, mut size) = (0, 0);
    for (index, member) in members.iter().enumerate() {
        size += tokens(member);
        if size >= part_tokens || index + 1 == members.len() {
            parts.push(&members[first..=index]);
            (first, size) = (index + 1, 0);
        }
    }
    let of_part = |part: &&[M]| {
        let mut nodes = vec![0.0; seconds.len()];
        run(part, &mut nodes).map(|values| (values, nodes))
    };
    let done = parts.par_iter().map(of_part).collect::<Result<Vec<_>>>()?;
    let busy: f64 = done.iter().flat_map(|(_, nodes)| nodes).sum();
    let share = started.elapsed().as_secs_f64() / busy.max(f64::MIN_POSITIVE);
    let mut of_programs: Vec<Vec<f64>> = Vec::new();
    for (values, nodes) in done {
        for (sum, node) in seconds.iter_mut().zip(nodes) {
            *sum += node * share;
        }
        of_programs.resize(values.len(), Vec::new());
        for (all, values) in of_programs.iter_mut().zip(values) {
            all.extend(values);
        }
    }
    Ok(of_programs)
}

/// Scores all programs of a trie on all of an eval set, without storing anything: the values of each program.
///
/// `progress` is told the tokens of each chunk and may stop the run. `seconds[node]` grows by the time of each step.
pub fn score(
    eval_set: &dyn EvalSet,
    engine: &dyn Engine,
    trie: &Trie,
    seconds: &mut [f64],
    mut progress: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<Vec<f64>>> {
    let mut of_programs = vec![Vec::with_capacity(eval_set.chunks()); trie.programs()];
    for chunk in 0..eval_set.chunks() {
        let values = eval_set.run(engine, trie, chunk, seconds)?;
        for (of_program, values) in of_programs.iter_mut().zip(values) {
            of_program.push(values);
        }
        progress(eval_set.tokens(chunk))?;
    }
    Ok(of_programs.iter().map(|chunks| eval_set.assemble(chunks)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_hold_every_member_once_and_in_order() {
        let members = [300, 300, 10, 600, 1];
        let mut seconds = [1.0, 0.0];
        let values = in_parts(
            512,
            &members,
            |&tokens| tokens,
            &mut seconds,
            |part, nodes| {
                nodes[1] += 1.0;
                let sizes: Vec<f64> = part.iter().map(|&tokens| tokens as f64).collect();
                Ok(vec![sizes, vec![part.len() as f64]])
            },
        );
        assert_eq!(values.unwrap(), [vec![300.0, 300.0, 10.0, 600.0, 1.0], vec![2.0, 2.0, 1.0]]);
        assert!(seconds[0] == 1.0 && seconds[1] > 0.0 && seconds[1] < 1.0, "of the time that passed: {seconds:?}");
    }

    #[test]
    fn the_error_of_a_part_is_the_chunks() {
        let failing = |part: &[usize], _: &mut [f64]| match part {
            [700] => Err(crate::error::Error::job("no")),
            _ => Ok(vec![vec![0.0]]),
        };
        assert!(in_parts(512, &[600, 700, 800], |&tokens| tokens, &mut [0.0], failing).is_err());
    }
}
