//! TER (translation edit rate), with Tercom's shift search and its limits. The code follows sacrebleu's `lib_ter.py`
//! (Apache-2.0) and reproduces its scores.

use std::collections::HashMap;

use ghostlab_core::tasks::python::words;

const MAX_SHIFTED_WORDS: usize = 10;
const MAX_SHIFT_DISTANCE: usize = 50;
const BEAM_WIDTH: usize = 25;
const MAX_SHIFT_CANDIDATES: usize = 1000;
const INFINITE_COST: i64 = 10_000_000_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Edit {
    Insert,
    Delete,
    Keep,
    Replace,
    Unknown,
}

/// Computes the corpus-level TER of `(reference, text)` pairs in percent. Lower is better.
pub fn ter(pairs: &[(&str, &str)]) -> f64 {
    let mut edits = 0usize;
    let mut length = 0usize;
    for (reference, text) in pairs {
        let mut numbers = HashMap::new();
        let [reference, text] = [reference, text].map(|text| {
            let text = text.to_lowercase();
            let ids = words(&text).map(|word| {
                let next = numbers.len();
                *numbers.entry(word.to_owned()).or_insert(next)
            });
            ids.collect::<Vec<usize>>()
        });
        edits += count_edits(&text, &reference);
        length += reference.len();
    }
    match (length, edits) {
        (0, 0) => 0.0,
        (0, _) => 100.0,
        _ => 100.0 * (edits as f64 / length as f64),
    }
}

/// Returns the number of edits and shifts that turn `text` into `reference`.
fn count_edits(text: &[usize], reference: &[usize]) -> usize {
    if reference.is_empty() {
        return text.len();
    }
    let mut words = text.to_vec();
    let mut shifts = 0;
    let mut checked = 0;
    while let Some((gain, shifted)) = best_shift(&words, reference, &mut checked) {
        if checked >= MAX_SHIFT_CANDIDATES || gain <= 0 {
            break;
        }
        shifts += 1;
        words = shifted;
    }
    shifts + usize::try_from(edit_distance(&words, reference).0).unwrap_or(0)
}

/// Returns the best shift as its gain (the decrease in edit distance) and the shifted words, or `None` if no shift is
/// possible. `checked` counts the shifts tried so far.
fn best_shift(text: &[usize], reference: &[usize], checked: &mut usize) -> Option<(i64, Vec<usize>)> {
    let (before, trace) = edit_distance(text, reference);
    let aligned = Alignment::from_edits(&trace);
    // Sort key (gain, length, negated source position, negated target position) and shifted words. The shift with the
    // largest key is the best.
    type RankedShift = ((i64, usize, i64, i64), Vec<usize>);
    let mut best: Option<RankedShift> = None;
    for from in 0..text.len() {
        for to in 0..reference.len() {
            if from.abs_diff(to) > MAX_SHIFT_DISTANCE {
                continue;
            }
            let mut length = 0;
            while length < MAX_SHIFTED_WORDS && text[from + length] == reference[to + length] {
                length += 1;
                for_each_shift_target(&aligned, from, to, length, &mut |target| {
                    let shifted = apply_shift(text, from, length, target);
                    *checked += 1;
                    let key =
                        (before - edit_distance(&shifted, reference).0, length, -to_signed(from), -to_signed(target));
                    if best.as_ref().is_none_or(|(old, _)| key > *old) {
                        best = Some((key, shifted));
                    }
                });
                if *checked >= MAX_SHIFT_CANDIDATES {
                    return best.map(|(key, shifted)| (key.0, shifted));
                }
                if text.len() == from + length || reference.len() == to + length {
                    break;
                }
            }
        }
    }
    best.map(|(key, shifted)| (key.0, shifted))
}

fn to_signed(index: usize) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX)
}

/// Calls `visit` with each position to which the text words `from..from + length` may be moved. They equal the
/// reference words that start at `to`. Visits no position if the words are already aligned.
fn for_each_shift_target(aligned: &Alignment, from: usize, to: usize, length: usize, visit: &mut dyn FnMut(usize)) {
    if aligned.text_wrong[from..from + length].iter().all(|wrong| !wrong)
        || aligned.reference_wrong[to..to + length].iter().all(|wrong| !wrong)
    {
        return;
    }
    if aligned
        .text_positions
        .get(to)
        .is_none_or(|index| usize::try_from(*index).is_ok_and(|index| (from..from + length).contains(&index)))
    {
        return;
    }
    let mut last = None;
    for offset in 0..=length {
        // The target is the start of the text, or just after the text word that is aligned with the preceding reference
        // word.
        let target = match (to + offset).checked_sub(1) {
            None => Some(0),
            Some(index) => aligned.text_positions.get(index).and_then(|index| usize::try_from(index + 1).ok()),
        };
        let Some(target) = target else { break };
        if last != Some(target) {
            last = Some(target);
            visit(target);
        }
    }
}

fn apply_shift(words: &[usize], from: usize, length: usize, target: usize) -> Vec<usize> {
    let piece = &words[from..from + length];
    let parts: [&[usize]; 4] = if target < from {
        [&words[..target], piece, &words[target..from], &words[from + length..]]
    } else if target > from + length {
        [&words[..from], &words[from + length..target], piece, &words[target..]]
    } else {
        let end = (length + target).min(words.len());
        [&words[..from], &words[from + length..end.max(from + length)], piece, &words[end..]]
    };
    parts.concat()
}

/// Word alignment between a text and its reference.
struct Alignment {
    /// For each reference word, the index of the last text word aligned at or before it, or -1.
    text_positions: Vec<i64>,
    /// For each text word, whether it is deleted or replaced.
    text_wrong: Vec<bool>,
    /// For each reference word, whether it is inserted or replaces a text word.
    reference_wrong: Vec<bool>,
}

impl Alignment {
    /// Builds the alignment from an edit trace that turns the text into the reference.
    fn from_edits(trace: &[Edit]) -> Self {
        let mut aligned = Self { text_positions: Vec::new(), text_wrong: Vec::new(), reference_wrong: Vec::new() };
        let mut position = -1;
        for edit in trace {
            let wrong = *edit != Edit::Keep;
            if *edit != Edit::Insert {
                position += 1;
                aligned.text_wrong.push(wrong);
            }
            if *edit != Edit::Delete {
                aligned.text_positions.push(position);
                aligned.reference_wrong.push(wrong);
            }
        }
        aligned
    }
}

/// Computes the edit distance within a beam around the diagonal. Returns the distance and the edits from first to last.
fn edit_distance(text: &[usize], reference: &[usize]) -> (i64, Vec<Edit>) {
    let rows = text.len() + 1;
    let columns = reference.len() + 1;
    let mut table = vec![vec![(INFINITE_COST, Edit::Unknown); columns]; rows];
    for (cost, cell) in (0..).zip(&mut table[0]) {
        *cell = (cost, Edit::Insert);
    }
    let ratio = if text.is_empty() { 1.0 } else { reference.len() as f64 / text.len() as f64 };
    let beam =
        if (BEAM_WIDTH as f64) < ratio / 2.0 { (ratio / 2.0 + BEAM_WIDTH as f64).ceil() as usize } else { BEAM_WIDTH };
    for i in 1..rows {
        let diagonal = (i as f64 * ratio).floor() as usize;
        let end = if i + 1 == rows { columns } else { columns.min(diagonal + beam) };
        for j in diagonal.saturating_sub(beam)..end {
            if j == 0 {
                table[i][0] = (table[i - 1][0].0 + 1, Edit::Delete);
                continue;
            }
            let (cost, edit) = if text[i - 1] == reference[j - 1] { (0, Edit::Keep) } else { (1, Edit::Replace) };
            for option in [
                (table[i - 1][j - 1].0 + cost, edit),
                (table[i - 1][j].0 + 1, Edit::Delete),
                (table[i][j - 1].0 + 1, Edit::Insert),
            ] {
                if table[i][j].0 > option.0 {
                    table[i][j] = option;
                }
            }
        }
    }
    let mut i = rows - 1;
    let mut j = columns - 1;
    let mut trace = Vec::new();
    while i > 0 || j > 0 {
        let edit = table[i][j].1;
        trace.push(edit);
        match edit {
            Edit::Insert => j = j.saturating_sub(1),
            Edit::Delete => i = i.saturating_sub(1),
            Edit::Keep | Edit::Replace => (i, j) = (i.saturating_sub(1), j.saturating_sub(1)),
            Edit::Unknown => break,
        }
    }
    trace.reverse();
    (table[rows - 1][columns - 1].0, trace)
}
