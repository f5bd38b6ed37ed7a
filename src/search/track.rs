//! What is raced on: strata of one kind of numbers, and the gains that candidates have of them.

use std::collections::BTreeMap;

use super::found::Score;
use super::laboratory::{Laboratory, dense};
use super::schedule::{FIRST_DOCUMENTS, FIRST_WINDOWS, Schedule, judged};
use crate::error::{Error, Result};
use crate::exec::{self, CellResult, GridOutcome, Where};
use crate::grid::{Draw, Evaluate, Grid, Perplexity, Search, TaskUse};
use crate::significance::stratified::Stratified;

/// What is scored, and how much of it.
pub(super) struct Stratum {
    pub(super) on: On,
    /// All items.
    pub(super) all: usize,
    /// Those that the search may use: the race its first, the judgement the last of all.
    pub(super) used: usize,
}

pub(super) enum On {
    Task(TaskUse),
    Text(Perplexity),
}

/// Strata of one kind of numbers.
pub(super) struct Track {
    pub(super) name: &'static str,
    pub(super) strata: Vec<Stratum>,
    pub(super) schedule: Schedule,
    /// From gains to the unit that is shown.
    pub(super) scale: f64,
}

/// Gains by stratum.
pub(super) type Gains = Vec<Vec<f64>>;

impl Stratum {
    /// Items that are kept for the judgement.
    pub(super) fn judged(&self) -> usize {
        judged(self.used)
    }
}

impl On {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Task(used) => used.to_string(),
            Self::Text(text) => text.to_string(),
        }
    }
}

/// What is raced on, with how many items there are: all texts and tasks are tokenised for it.
pub(super) fn tracks(grid: &Grid, spec: &Search, lab: &Laboratory<'_>) -> Result<Vec<Track>> {
    let whole = Grid { cells: dense(grid), ..grid.clone() };
    let plan = lab.plan(&whole)?;
    exec::preflight(&plan, &lab.settings, Where::Here, lab.store, lab.reporter, lab.stop)?;
    let outcome = GridOutcome::read(&plan, lab.store, &BTreeMap::new())?;
    let tasks = grid.evaluate.tasks.iter().map(|used| {
        let all = outcome.task(used).map_or(0, |of| of.documents);
        (On::Task(used.clone()), all)
    });
    let texts = grid.evaluate.perplexity.iter().map(|text| {
        let all = outcome.text_reads(text).next().map_or(0, |of| of.windows);
        (On::Text(text.clone()), all)
    });
    let track = |name, strata: Vec<(On, usize)>, first, scale| {
        let share = spec.items.map_or(usize::MAX, |items| items.div_ceil(strata.len().max(1)));
        let strata = strata.into_iter().map(|(on, all)| Stratum { on, all, used: all.min(share) });
        let strata: Vec<Stratum> = strata.collect();
        let sizes = strata.iter().map(|of| of.used - of.judged()).collect();
        Track { name, strata, schedule: Schedule::new(sizes, first), scale }
    };
    let tracks = [
        track("accuracy", tasks.collect(), FIRST_DOCUMENTS, 100.0),
        track("loss", texts.collect(), FIRST_WINDOWS, -1.0),
    ];
    let tracks: Vec<Track> = tracks.into_iter().filter(|track| !track.strata.is_empty()).collect();
    let poor = tracks.iter().flat_map(|track| &track.strata).find(|of| of.judged() == 0);
    match poor {
        None => Ok(tracks),
        Some(of) => Err(Error::bad_input("no item is left for the judgement")
            .at(of.on.name())
            .expected("3 items or more of each task and text: a fifth is kept for what the race never sees")
            .found(format!("{} of {}", of.used, of.all))
            .hint("more --items, or fewer tasks and texts")),
    }
}

/// Which stretches of a stratum's order.
pub(super) type Stretches<'a> = dyn Fn(&Track, usize) -> Vec<(usize, usize)> + 'a;

/// What is scored of each stratum: some stretches of its order.
pub(super) fn evaluate(spec: &Search, tracks: &[Track], draws: &Stretches<'_>) -> Evaluate {
    let (mut perplexity, mut tasks) = (Vec::new(), Vec::new());
    for track in tracks {
        for (at, stratum) in track.strata.iter().enumerate() {
            for (from, to) in draws(track, at) {
                let draw = Some(Draw { seed: spec.seed, from, to });
                match &stratum.on {
                    On::Task(used) => tasks.push(TaskUse { draw, ..used.clone() }),
                    On::Text(text) => perplexity.push(Perplexity { draw, ..text.clone() }),
                }
            }
        }
    }
    Evaluate { perplexity, tasks, ..Evaluate::default() }
}

/// Appends a candidate's new gains, in the order of the draws.
pub(super) fn take(gains: &mut [Gains], tracks: &[Track], evaluate: &Evaluate, result: &CellResult) -> Result<()> {
    let lacking = |on: String| Error::job("a candidate has no scores").at(format!("{} on {on}", result.cell));
    for (track, gains) in tracks.iter().zip(gains) {
        for (stratum, gains) in track.strata.iter().zip(gains) {
            match &stratum.on {
                On::Task(own) => {
                    let drawn = evaluate.tasks.iter().filter(|of| TaskUse { draw: None, ..(*of).clone() } == *own);
                    for used in drawn {
                        let scores = result.task(used).and_then(|of| of.sample.as_ref());
                        let scores = scores.ok_or_else(|| lacking(used.to_string()))?;
                        let column = scores.result.task.column;
                        gains.extend(scores.answers.documents().map(|of| f64::from(u8::from(of.right(column)))));
                    }
                }
                On::Text(own) => {
                    let drawn =
                        evaluate.perplexity.iter().filter(|of| Perplexity { draw: None, ..(*of).clone() } == *own);
                    for text in drawn {
                        let losses = result.text(text).and_then(|of| of.sample.as_ref());
                        let losses = losses.ok_or_else(|| lacking(text.to_string()))?;
                        gains.extend(losses.windows.iter().map(|loss| -loss));
                    }
                }
            }
        }
    }
    Ok(())
}

/// A mean of gains as it is shown.
pub(super) fn score(of: Option<Stratified>, mean: f64, track: &Track) -> Score {
    Score { mean: track.scale * mean, half: of.map(|of| track.scale.abs() * of.half_width(0.95)) }
}
