//! What is under way, on standard error: a bar for each piece and one for the whole where that is a terminal, plain lines
//! elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::verbosity;
use crate::error::printable;

/// Between two plain lines of one piece.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Pieces of work, by what their events call them.
pub(super) struct Bars<K> {
    bars: Option<MultiProgress>,
    pub(super) whole: Option<ProgressBar>,
    pieces: BTreeMap<K, Piece>,
}

/// A piece that is under way.
#[derive(Clone)]
pub(super) struct Piece {
    pub(super) bar: Option<ProgressBar>,
    /// What it comes to, where that is known; what was there before, and what came.
    pub(super) total: Option<u64>,
    pub(super) here: u64,
    pub(super) came: u64,
    pub(super) began: Instant,
    last_line: Instant,
}

impl Piece {
    /// How long it is under way, and not nothing.
    pub(super) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64().max(1e-9)
    }
}

impl<K: Ord> Bars<K> {
    pub(super) fn new() -> Self {
        let bars = (std::io::stderr().is_terminal() && verbosity::notes()).then(MultiProgress::new);
        Self { bars, whole: None, pieces: BTreeMap::new() }
    }

    pub(super) fn line(&self, text: &str) {
        if verbosity::notes() {
            self.error(text);
        }
    }

    /// A line that is said however quiet it shall be.
    pub(super) fn error(&self, text: &str) {
        let text = &*printable(text);
        match &self.bars {
            Some(bars) => drop(bars.println(text)),
            None => eprintln!("{text}"),
        }
    }

    /// A line for who wants to know more.
    pub(super) fn detail(&self, text: &str) {
        if verbosity::details() {
            self.error(text);
        }
    }

    /// A bar above that of the whole, `here` of it being done; none where there is no terminal.
    pub(super) fn bar(&self, total: Option<u64>, here: u64, template: &str, message: &str) -> Option<ProgressBar> {
        let bars = self.bars.as_ref()?;
        let new = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
        let new = match &self.whole {
            Some(whole) => bars.insert_before(whole, new),
            None => bars.add(new),
        };
        new.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        // Nothing is drawn of one that has nothing to show yet.
        if !message.is_empty() {
            new.set_message(message.to_owned());
        }
        // What was here before did not come at any speed.
        if here > 0 {
            new.set_position(here);
            new.reset_eta();
        }
        Some(new)
    }

    /// Begins a piece, with a bar or without one.
    pub(super) fn start(&mut self, key: K, bar: Option<ProgressBar>, total: Option<u64>, here: u64) {
        let now = Instant::now();
        self.pieces.insert(key, Piece { bar, total, here, came: 0, began: now, last_line: now });
    }

    /// More of a piece came: how it stands, and whether a line has to tell of it.
    pub(super) fn advance(&mut self, key: &K, more: u64) -> Option<(Piece, bool)> {
        let piece = self.pieces.get_mut(key)?;
        piece.came += more;
        piece.bar.iter().for_each(|bar| bar.inc(more));
        let due = piece.bar.is_none() && piece.last_line.elapsed() >= LINE_EVERY;
        if due {
            piece.last_line = Instant::now();
        }
        Some((piece.clone(), due))
    }

    /// A piece begins anew, with nothing of it there.
    pub(super) fn restart(&mut self, key: &K) {
        if let Some(piece) = self.pieces.get_mut(key) {
            (piece.here, piece.came, piece.began) = (0, 0, Instant::now());
            piece.bar.iter().for_each(ProgressBar::reset);
        }
    }

    pub(super) fn end(&mut self, key: &K) -> Option<Piece> {
        let piece = self.pieces.remove(key)?;
        piece.bar.iter().for_each(ProgressBar::finish_and_clear);
        Some(piece)
    }

    pub(super) fn clear(&self) {
        if let Some(bars) = &self.bars {
            bars.clear().ok();
        }
    }
}
