//! Writes a Parquet file with all timed forward passes, and formats the notes for latency tables.

use std::path::{Path, PathBuf};

use polars::df;
use polars::prelude::DataFrame;

use super::atomic_file::{polars_error, write_row_groups};
use super::settings::{distinct, group_by_key};
use crate::error::Result;
use crate::grid::Latency;
use crate::latency::{LatencyResult, MAX_RELATIVE_DEVIATION, Rounds, TimeSpread};
use crate::pipeline::outcome::{CellResult, GridOutcome};

/// Name of the file in a results directory that contains all timed passes.
pub const LATENCY: &str = "latency.parquet";

/// Prefix that marks a time as noisy.
pub const NOISY: &str = "~";

/// Writes `latency.parquet` into `dir`, with one row per timed pass, in order. Writes nothing and returns `None` if no
/// cell was timed.
///
/// The column `form` is `full` if every operator was applied as a matrix product, and `by_channel` if diagonal
/// operators were applied channel-wise. The column `what` is `prefill`, or `decode` for the `new` tokens after the
/// prompt. `new` is 0 if no decoding was requested. The column `counts` marks the rounds that the tables use.
///
/// # Errors
/// Fails with exit code 3 if the directory is not writable.
pub fn write_latencies(dir: &Path, cells: &[CellResult]) -> Result<Option<PathBuf>> {
    if cells.iter().all(|cell| timed_prompts(cell).next().is_none()) {
        return Ok(None);
    }
    let path = dir.join(LATENCY);
    write_row_groups(&path, cells, build_frame)?;
    Ok(Some(path))
}

fn build_frame(cells: &[CellResult]) -> Result<DataFrame> {
    let mut names = Vec::new();
    let mut passes = Vec::new();
    for TimedPrompt { cell, prompt, result } in cells.iter().flat_map(timed_prompts) {
        let decode = result.decode.as_ref().map(|decode| ("decode", decode.first, [&decode.times, &decode.by_channel]));
        let prefill = ("prefill", result.first, [&result.times, &result.by_channel]);
        for (what, first, [full, by_channel]) in [prefill].into_iter().chain(decode) {
            for (form, all) in [("full", full), ("by_channel", by_channel)] {
                let counts = first..first + Rounds::PAPER.timed;
                let timed = all.iter().flatten().enumerate();
                passes.extend(timed.map(|(round, &time)| (prompt, what, form, round, time, counts.contains(&round))));
            }
        }
        names.resize(passes.len(), cell.cell.to_string());
    }
    df!(
        "cell" => names,
        "length" => passes.iter().map(|(prompt, ..)| prompt.length as u64).collect::<Vec<_>>(),
        "batch" => passes.iter().map(|(prompt, ..)| prompt.batch as u64).collect::<Vec<_>>(),
        "new" => passes.iter().map(|(prompt, ..)| prompt.decode.unwrap_or(0) as u64).collect::<Vec<_>>(),
        "what" => passes.iter().map(|(_, what, ..)| *what).collect::<Vec<_>>(),
        "form" => passes.iter().map(|(_, _, form, ..)| *form).collect::<Vec<_>>(),
        "round" => passes.iter().map(|(.., round, _, _)| *round as u64 + 1).collect::<Vec<_>>(),
        "milliseconds" => passes.iter().map(|(.., time, _)| *time).collect::<Vec<_>>(),
        "counts" => passes.iter().map(|(.., counts)| *counts).collect::<Vec<_>>(),
    )
    .map_err(|error| polars_error(&error))
}

/// Timings of a cell for one prompt.
struct TimedPrompt<'a> {
    cell: &'a CellResult,
    prompt: &'a Latency,
    result: &'a LatencyResult,
}

fn timed_prompts(cell: &CellResult) -> impl Iterator<Item = TimedPrompt<'_>> {
    cell.prompts.iter().filter_map(move |prompt| {
        Some(TimedPrompt { cell, prompt: &prompt.requested, result: prompt.sample.as_ref()? })
    })
}

/// Returns the notes for a latency table: how diagonal operators were timed, which rounds were added, and which times
/// are noisy.
pub fn latency_notes(outcome: &GridOutcome) -> Vec<String> {
    let all: Vec<TimedPrompt<'_>> = outcome.cells.iter().flat_map(timed_prompts).collect();
    if all.is_empty() {
        return Vec::new();
    }
    let mut notes = vec![
        "Latencies: repairs that can be folded into weights (Prune and Comp; ReplaceMe before a branch without a norm) are \
         folded and add no time."
            .to_owned(),
    ];
    notes.extend(channel_wise_note(&all));
    notes.extend(extra_rounds_note(&all));
    notes.extend(repeated_sessions_note(&all));
    notes.extend(noisy_times_note(&all));
    if all.iter().any(|timed| timed.result.times.is_some() && timed.result.intermediate_bytes.is_none()) {
        notes.push("Memory is not counted if tensors are in device memory or weights are loaded on demand.".to_owned());
    }
    notes
}

/// Formats a note with the times of diagonal operators that are applied channel-wise.
fn channel_wise_note(all: &[TimedPrompt<'_>]) -> Option<String> {
    let texts_by_cell = group_by_key(all.iter().flat_map(|prompt: &TimedPrompt<'_>| -> Vec<(String, String)> {
        let text = |what: &str, full: Option<TimeSpread>, spread: Option<TimeSpread>| {
            Some((
                prompt.cell.cell.to_string(),
                format!("{}{what} {:.1} ({:.1})", prompt.prompt, spread?.mean, full?.mean),
            ))
        };
        let prefill = text("", prompt.result.spread(), prompt.result.spread_by_channel());
        let decode = prompt.result.decode.as_ref();
        let decode = decode.and_then(|decode| text(" decoded", decode.spread(), decode.spread_by_channel()));
        prefill.into_iter().chain(decode).collect()
    }));
    (!texts_by_cell.is_empty()).then(|| {
        format!(
            "Diagonal operators are timed as full products, as in the paper. Times in ms if applied channel-wise, with the \
             full product in brackets: {}.",
            texts_by_cell
                .into_iter()
                .map(|(name, texts)| format!("{name}: {}", texts.join(", ")))
                .collect::<Vec<_>>()
                .join("; ")
        )
    })
}

/// Formats a note about rounds that were added because the times were noisy.
fn extra_rounds_note(all: &[TimedPrompt<'_>]) -> Option<String> {
    let mut texts: Vec<String> = Vec::new();
    for timed in all {
        let decode = timed.result.decode.as_ref().map(|decode| (" decoded", decode.first, &decode.times));
        for (what, first, times) in [("", timed.result.first, &timed.result.times)].into_iter().chain(decode) {
            let rounds = times.as_ref().map_or(0, Vec::len);
            let count = Rounds::PAPER.timed;
            if rounds > count {
                let TimedPrompt { cell, prompt, .. } = timed;
                let backbone = &cell.cell.backbone;
                let last = first + count;
                texts.push(format!("{} to {last} of {rounds} over {prompt}{what} ({backbone})", first + 1));
            }
        }
    }
    let sentence = "Rounds were added while times were noisy. The most stable consecutive rounds are counted";
    list_note(sentence, &texts)
}

/// Formats a note about timing sessions that were repeated because their times were unstable.
fn repeated_sessions_note(all: &[TimedPrompt<'_>]) -> Option<String> {
    let repeated = all.iter().filter(|timed| timed.result.sessions > 1);
    let texts = repeated.map(|timed| {
        let TimedPrompt { cell, prompt, result } = timed;
        format!("{} of {} over {prompt}", result.sessions, cell.cell.backbone)
    });
    let sentence = "Sessions with unstable times were repeated with all variants. The last session is counted";
    list_note(sentence, &texts.collect::<Vec<_>>())
}

/// Appends the distinct texts of a list to a sentence. Returns `None` if the list is empty.
fn list_note(sentence: &str, texts: &[String]) -> Option<String> {
    (!texts.is_empty()).then(|| format!("{sentence}: {}.", distinct(texts).join(", ")))
}

/// Summary of a run's noisy times. Noise suggests that other programs were running on the machine.
#[derive(Debug)]
pub struct NoisyTimes {
    pub noisy: usize,
    pub all: usize,
    /// Largest deviation relative to the mean, measured in `cell` with `prompt`.
    pub widest: f64,
    pub cell: String,
    pub prompt: Latency,
}

impl NoisyTimes {
    /// Summarizes the noisy times of a run. Returns `None` if there are none.
    pub fn from_outcome(outcome: &GridOutcome) -> Option<Self> {
        Self::from_prompts(&outcome.cells.iter().flat_map(timed_prompts).collect::<Vec<_>>())
    }

    fn from_prompts(all: &[TimedPrompt<'_>]) -> Option<Self> {
        let known: Vec<(&TimedPrompt<'_>, TimeSpread)> = all
            .iter()
            .flat_map(|timed| spreads(timed).into_iter().flatten().map(move |spread| (timed, spread)))
            .collect();
        let noisy = || known.iter().filter(|(_, spread)| spread.is_noise());
        let (widest, spread) = noisy().max_by(|(_, a), (_, b)| a.relative().total_cmp(&b.relative()))?;
        Some(Self {
            noisy: noisy().count(),
            all: known.len(),
            widest: spread.relative(),
            cell: widest.cell.cell.to_string(),
            prompt: *widest.prompt,
        })
    }

    /// Formats `28 of 30 times deviate by more than 5 % from the mean, and by up to 40 % (CELL over 512×1)`.
    pub fn sentence(&self) -> String {
        let Self { noisy, all, widest, cell, prompt } = self;
        let verb = if *noisy == 1 { "deviates" } else { "deviate" };
        format!(
            "{noisy} of {all} times {verb} by more than {:.0} % from the mean, and by up to {:.0} % ({cell} over {prompt})",
            100.0 * MAX_RELATIVE_DEVIATION,
            100.0 * widest
        )
    }
}

fn spreads(prompt: &TimedPrompt<'_>) -> [Option<TimeSpread>; 2] {
    [prompt.result.spread(), prompt.result.decode.as_ref().and_then(|decode| decode.spread())]
}

/// Formats a note about noisy times and their consequences.
fn noisy_times_note(all: &[TimedPrompt<'_>]) -> Option<String> {
    let found = NoisyTimes::from_prompts(all)?;
    Some(format!(
        "{NOISY}: unstable times, for example because other programs ran, and speedups of such times: {}. Claims do not use \
         them. To measure again, run the same command with --retime on an idle machine.",
        found.sentence()
    ))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use polars::prelude::{ParquetReader, SerReader};

    use super::*;
    use crate::grid::Cell;
    use crate::latency::{LatencyResult, RoundTimes};
    use crate::pipeline::identity::MeasureId;
    use crate::pipeline::outcome::EvalResult;

    fn result(times: Option<&[f64]>, by_channel: Option<&[f64]>) -> Option<LatencyResult> {
        Some(LatencyResult {
            prefill: RoundTimes {
                times: times.map(<[f64]>::to_vec),
                by_channel: by_channel.map(<[f64]>::to_vec),
                dense: None,
                first: 0,
            },
            sessions: 1,
            weight_bytes: 300,
            intermediate_bytes: Some(100),
            dense_bytes: Some(500),
            decode: None,
        })
    }

    fn outcome(latencies: Vec<Option<LatencyResult>>) -> GridOutcome {
        let prompts = latencies
            .into_iter()
            .zip([1, 4])
            .map(|(sample, batch)| EvalResult {
                requested: Latency { length: 8, batch, decode: None },
                measure: MeasureId::Boundary.into(),
                extent: None,
                sample,
            })
            .collect();
        let cell = CellResult { prompts, ..CellResult::unmeasured(Cell::with_name("a", "a.dense"), 8, None) };
        GridOutcome {
            cells: vec![cell],
            inputs: Default::default(),
            engines: Default::default(),
            rounded: Default::default(),
            machine: String::new(),
        }
    }

    #[test]
    fn latency_file_has_one_row_per_timed_pass() {
        let folder = tempfile::tempdir().unwrap();
        let outcome = outcome(vec![result(Some(&[1.0, 2.0]), Some(&[0.5, 0.25])), result(None, None)]);
        let path = write_latencies(folder.path(), &outcome.cells).unwrap().unwrap();
        let frame = ParquetReader::new(File::open(path).unwrap()).finish().unwrap();
        let count = |name: &str, at: usize| frame.column(name).unwrap().u64().unwrap().get(at).unwrap();
        assert!(frame.column("counts").unwrap().bool().unwrap().all());
        let rows: Vec<(String, u64, u64, f64)> = (0..frame.height())
            .map(|at| {
                let form = frame.column("form").unwrap().str().unwrap().get(at).unwrap().to_owned();
                let time = frame.column("milliseconds").unwrap().f64().unwrap().get(at).unwrap();
                (form, count("batch", at), count("round", at), time)
            })
            .collect();
        let expected =
            [("full", 1, 1, 1.0), ("full", 1, 2, 2.0), ("by_channel", 1, 1, 0.5), ("by_channel", 1, 2, 0.25)];
        assert_eq!(rows, expected.map(|(form, batch, round, time)| (form.to_owned(), batch, round, time)));
        let none = CellResult { prompts: Vec::new(), ..outcome.cells[0].clone() };
        assert_eq!(write_latencies(folder.path(), &[none]).unwrap(), None);
    }

    #[test]
    fn noisy_times_and_diagonal_operators_are_noted() {
        let quiet = latency_notes(&outcome(vec![result(Some(&[10.0, 10.1]), None), result(None, None)]));
        assert_eq!(quiet.len(), 1, "{quiet:?}");
        let noted = latency_notes(&outcome(vec![result(Some(&[10.0, 20.0]), Some(&[1.0, 3.0])), None]));
        assert!(noted[1].ends_with("in brackets: a.dense: 8×1 2.0 (15.0)."), "{noted:?}");
        assert!(noted[2].contains("1 of 1 times deviates by more than 5 %"), "{noted:?}");
        assert!(noted[2].contains("47 % (a.dense over 8×1)") && noted[2].contains("--retime"), "{noted:?}");
        assert_eq!(latency_notes(&outcome(vec![None, None])), Vec::<String>::new());
    }

    #[test]
    fn extra_rounds_are_written_and_noted_but_not_counted() {
        let times: Vec<f64> = [30.0, 50.0].into_iter().chain([10.0; 10]).collect();
        let mut adapted = result(Some(&times), None).unwrap();
        adapted.prefill.first = 2;
        assert_eq!(adapted.spread(), Some(TimeSpread { mean: 10.0, deviation: 0.0 }));
        let outcome = outcome(vec![Some(adapted), None]);
        let noted = latency_notes(&outcome);
        assert!(noted[1].ends_with("are counted: 3 to 12 of 12 over 8×1 (a)."), "{noted:?}");
        assert_eq!(noted.len(), 2, "{noted:?}");
        let folder = tempfile::tempdir().unwrap();
        let path = write_latencies(folder.path(), &outcome.cells).unwrap().unwrap();
        let frame = ParquetReader::new(File::open(path).unwrap()).finish().unwrap();
        assert_eq!((frame.height(), frame.column("counts").unwrap().bool().unwrap().sum()), (12, Some(10)));
    }

    #[test]
    fn repeated_sessions_are_noted() {
        let repeated = LatencyResult { sessions: 3, ..result(Some(&[10.0, 10.0]), None).unwrap() };
        let noted = latency_notes(&outcome(vec![Some(repeated), result(Some(&[1.0, 1.0]), None)]));
        assert!(noted[1].ends_with("The last session is counted: 3 of a over 8×1."), "{noted:?}");
        assert_eq!(noted.len(), 2, "{noted:?}");
    }
}
