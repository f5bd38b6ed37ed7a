//! What variants are scored on, in chunks: the unit that is stored and resumed.

use crate::error::Result;
use crate::model::{Decoder, Load, Trie};

/// A text or a task, cut into chunks. A chunk's values depend on the backbone, the program and the chunk alone: not on
/// the other programs of the trie, nor on other chunks.
pub trait Exam: Sync {
    fn chunks(&self) -> usize;

    /// Tokens of one chunk.
    fn tokens(&self, chunk: usize) -> usize;

    /// How much text some chunks are, for the cost model.
    fn load(&self, chunks: &[usize]) -> Load;

    /// Runs one chunk: the values of each program. `seconds[node]` grows by the time of each step.
    fn run(
        &self,
        decoder: &Decoder,
        trie: &Trie,
        programs: usize,
        chunk: usize,
        seconds: &mut [f64],
    ) -> Result<Vec<Vec<f64>>>;

    /// How many values a chunk gives for each program.
    fn count(&self, chunk: usize) -> usize;

    /// The values of all chunks, in the order of the windows or requests.
    fn assemble(&self, chunks: &[Vec<f64>]) -> Vec<f64>;
}

/// Scores all programs of a trie on all of an exam, without storing anything: the values of each program.
///
/// `progress` is told the tokens of each chunk and may stop the run. `seconds[node]` grows by the time of each step.
pub fn score(
    exam: &dyn Exam,
    decoder: &Decoder,
    trie: &Trie,
    programs: usize,
    seconds: &mut [f64],
    mut progress: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<Vec<f64>>> {
    let mut of_programs = vec![Vec::with_capacity(exam.chunks()); programs];
    for chunk in 0..exam.chunks() {
        let values = exam.run(decoder, trie, programs, chunk, seconds)?;
        for (of_program, values) in of_programs.iter_mut().zip(values) {
            of_program.push(values);
        }
        progress(exam.tokens(chunk))?;
    }
    Ok(of_programs.iter().map(|chunks| exam.assemble(chunks)).collect())
}
