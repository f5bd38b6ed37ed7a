//! Final residual streams of several programs.

use crate::corpus::Windows;
use crate::error::{Error, Result};
use crate::model::{Batch, Engine, HostRows, Observer, Program, ResidualStream, RmsNorm, Step, Trie};

/// Progress callback, which receives the number of newly processed tokens. An error stops the computation.
pub type Progress<'a> = dyn FnMut(usize) -> Result<()> + 'a;

/// Trie of the dense backbone and of the programs that are compared with it, all without output heads.
struct Trunks {
    trie: Trie,
    /// Trie node at which each program ends, starting with the dense program.
    ends: Vec<usize>,
}

impl Trunks {
    fn new(engine: &dyn Engine, programs: &[Program]) -> Self {
        let mut trunks = vec![Program::trunk(engine.config().layers)];
        for program in programs {
            let mut trunk = program.clone();
            trunk.0.retain(|step| *step != Step::Head);
            trunks.push(trunk);
        }
        let trie = Trie::new(&trunks);
        let ends = (0..trunks.len()).filter_map(|program| trie.path(program).last().copied()).collect();
        Self { trie, ends }
    }

    /// Returns the final stream of each program on a window, starting with the dense program.
    fn run(&self, engine: &dyn Engine, window: &[u32]) -> Result<Vec<HostRows>> {
        let mut streams = EndStreams { ends: &self.ends, streams: vec![None; self.ends.len()] };
        engine.run(&self.trie, &Batch::windows([window]), &mut streams)?;
        let streams: Option<Vec<HostRows>> = streams.streams.into_iter().collect();
        streams.ok_or_else(|| Error::job("the program does not end with a residual stream"))
    }
}

/// Observer that keeps the streams at the ends of programs.
struct EndStreams<'a> {
    /// Trie node at which each program ends.
    ends: &'a [usize],
    streams: Vec<Option<HostRows>>,
}

impl Observer<dyn ResidualStream> for EndStreams<'_> {
    fn after_step(&mut self, node: usize, stream: Option<&dyn ResidualStream>, _: f64) -> Result<()> {
        let Some(stream) = stream.filter(|_| self.ends.contains(&node)) else { return Ok(()) };
        let rows = stream.rows()?;
        for (end, kept) in self.ends.iter().zip(&mut self.streams) {
            if *end == node {
                *kept = Some(rows.clone());
            }
        }
        Ok(())
    }
}

/// Compares the final stream of each program with that of the dense backbone on each window. `compare` receives the
/// streams of a window, starting with the dense one, and its number of tokens. It returns one value per program. The
/// result is indexed by `[program][window]`.
pub(super) fn compare_windows(
    engine: &dyn Engine,
    programs: &[Program],
    windows: &Windows,
    progress: &mut Progress<'_>,
    compare: impl Fn(&[HostRows], usize) -> Result<Vec<f64>>,
) -> Result<Vec<Vec<f64>>> {
    let trunks = Trunks::new(engine, programs);
    let mut compared = vec![Vec::with_capacity(windows.count()); programs.len()];
    for window in windows.iter() {
        let values = compare(&trunks.run(engine, window)?, window.len())?;
        compared.iter_mut().zip(values).for_each(|(all, value)| all.push(value));
        progress(window.len())?;
    }
    Ok(compared)
}

/// Computes the cosine between the final norm's output of each program and that of the dense backbone, over all tokens
/// and channels of each window. The result is indexed by `[program][window]`. `progress` is called with the number of
/// tokens of each finished window.
///
/// # Errors
/// Fails if the engine cannot run a program or does not expose its final norm, or if `progress` fails.
pub fn output_cosines(
    engine: &dyn Engine,
    programs: &[Program],
    windows: &Windows,
    progress: &mut Progress<'_>,
) -> Result<Vec<Vec<f64>>> {
    let channels = engine.config().hidden;
    let norm = engine.final_norm()?;
    compare_windows(engine, programs, windows, progress, |streams, _| {
        let dense = apply_norm(&norm, &streams[0], channels)?;
        streams[1..].iter().map(|stream| Ok(cosine(&dense, &apply_norm(&norm, stream, channels)?))).collect()
    })
}

fn apply_norm(norm: &RmsNorm, stream: &HostRows, channels: usize) -> Result<Vec<f64>> {
    Ok(norm.apply(&stream.values()?, channels))
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let [mut dot, mut aa, mut bb] = [0.0; 3];
    for (a, b) in a.iter().zip(b) {
        dot += a * b;
        aa += a * a;
        bb += b * b;
    }
    dot / (aa.sqrt() * bb.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosine_similarity_covers_all_rows() {
        assert_eq!(cosine(&[3.0, 0.0, 4.0, 0.0], &[3.0, 4.0, 0.0, 0.0]), 9.0 / 25.0);
    }
}
