//! The cells' notes: how each was made. The script shows one at a time beside its number; without it they stand at the
//! page's end. What many cells have in common, their input files and who made them, stands once.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::data::{CellNote, Page};
use super::html::cell_id;

type Pairs = Vec<(String, String)>;

/// A cell's note.
#[derive(Debug, Serialize)]
pub(super) struct Note<'a> {
    id: String,
    /// Where the title does not say it.
    key: Option<&'a str>,
    title: &'a str,
    note: &'a CellNote,
    makers: Vec<Use>,
    inputs: Option<Use>,
}

/// A link to what is shared; the script puts it in the link's place.
#[derive(Debug, Clone, Serialize)]
struct Use {
    id: String,
    text: String,
}

/// What notes have in common.
#[derive(Debug, Serialize)]
pub(super) struct SharedNote<'a> {
    id: String,
    /// Names and values of a maker.
    lines: Option<&'a Pairs>,
    /// Paths and their SHA-256.
    inputs: Option<&'a BTreeMap<String, String>>,
}

/// The notes that a number opens, and what they share. What a figure alone shows has no number that leads to it.
pub(super) fn notes(page: &Page) -> (Vec<Note<'_>>, Vec<SharedNote<'_>>) {
    let tables = page.artifacts.iter().flat_map(|artifact| &artifact.tables);
    let numbers = tables.flat_map(|table| &table.rows).flat_map(|row| &row.cells);
    let opened: BTreeSet<&String> = numbers.filter_map(|cell| cell.key.as_ref()).collect();
    let (mut makers, mut inputs) = (Vec::new(), Vec::new());
    let mut notes = Vec::new();
    for (key, note) in page.cells.iter().filter(|(key, _)| opened.contains(key)) {
        let makers = note.makers.iter().map(|maker| {
            let said: Vec<&str> = maker.iter().take(2).map(|(_, value)| short(value)).collect();
            Use { id: format!("maker-{}", place(&mut makers, maker)), text: said.join(", ") }
        });
        let is_said = key.ends_with(&note.title);
        notes.push(Note {
            id: cell_id(key),
            key: (!is_said).then_some(key),
            title: if is_said { key } else { &note.title },
            note,
            makers: makers.collect(),
            inputs: (!note.inputs.is_empty()).then(|| Use {
                id: format!("inputs-{}", place(&mut inputs, &note.inputs)),
                text: format!("{} input files", note.inputs.len()),
            }),
        });
    }
    let makers = makers.into_iter().enumerate();
    let makers = makers.map(|(at, of)| SharedNote { id: format!("maker-{}", at + 1), lines: Some(of), inputs: None });
    let inputs = inputs.into_iter().enumerate();
    let inputs = inputs.map(|(at, of)| SharedNote { id: format!("inputs-{}", at + 1), lines: None, inputs: Some(of) });
    (notes, makers.chain(inputs).collect())
}

/// A commit by its first digits; all else as it is.
fn short(value: &str) -> &str {
    match value.split_at_checked(40) {
        Some((commit, _)) if commit.bytes().all(|byte| byte.is_ascii_hexdigit()) => &commit[..12],
        _ => value,
    }
}

/// Counted from 1: where it stands among those that are known, at the end if it is new.
fn place<'a, T: PartialEq>(known: &mut Vec<&'a T>, one: &'a T) -> usize {
    let at = known.iter().position(|other| *other == one).unwrap_or_else(|| {
        known.push(one);
        known.len() - 1
    });
    at + 1
}
