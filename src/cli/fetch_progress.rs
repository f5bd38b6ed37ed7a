//! Progress of a fetch: a bar for each file and one for all on a terminal, plain lines elsewhere, JSON lines where asked for.

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use super::bars::{Bars, Piece};
use super::progress::JsonLines;
use super::units::{bytes, seconds};
use crate::clock::utc;
use crate::hub::{Event, Reporter};

const BAR: &str = "{wide_bar:.cyan/blue} {bytes:>10}/{total_bytes:<10} {bytes_per_sec:>12}  {eta:>4}  {msg}";

/// Bars where standard error is a terminal, lines otherwise; or every event as a line of JSON on standard output.
pub(super) fn reporter(events: bool) -> Box<dyn Reporter> {
    if events {
        return Box::new(JsonLines);
    }
    Box::new(FetchProgress(Mutex::new(FetchMeter { bars: Bars::new(), planned: 0, here: 0, came: 0, began: None })))
}

impl Reporter for JsonLines {
    fn event(&self, event: Event) {
        Self::write(utc(SystemTime::now()), &event);
    }
}

struct FetchProgress(Mutex<FetchMeter>);

struct FetchMeter {
    bars: Bars<String>,
    /// Bytes of all files; those that were here before, and those that came.
    planned: u64,
    here: u64,
    came: u64,
    began: Option<Instant>,
}

/// `12.3 MB/s, 5 min 2 s left`
fn speed(came: u64, left: Option<u64>, began: Instant) -> String {
    let per_second = came as f64 / began.elapsed().as_secs_f64().max(1e-3);
    let left = left.filter(|_| came > 0).map(|left| format!(", {} left", seconds(left as f64 / per_second)));
    format!("{}/s{}", bytes(per_second as u64), left.unwrap_or_default())
}

impl FetchMeter {
    fn advance(&mut self, file: &String, more: u64) {
        self.came += more;
        self.bars.whole.iter().for_each(|whole| whole.inc(more));
        let Some((Piece { total, here, came, began, .. }, true)) = self.bars.advance(file, more) else { return };
        let done = here + came;
        let of = total.map_or(String::new(), |total| format!(" of {}", bytes(total)));
        let own = speed(came, total.map(|total| total.saturating_sub(done)), began);
        let (planned, all) = (self.planned, self.here + self.came);
        let whole = self.began.map(|began| speed(self.came, Some(planned.saturating_sub(all)), began));
        let whole =
            whole.map_or(String::new(), |whole| format!("; all: {} of {}, {whole}", bytes(all), bytes(planned)));
        self.bars.line(&format!("{file}: {}{of}, {own}{whole}", bytes(done)));
    }
}

impl Reporter for FetchProgress {
    fn event(&self, event: Event) {
        let mut meter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::FetchPlanned { files, bytes: planned, here } => {
                (meter.planned, meter.here, meter.began) = (planned, here, Some(Instant::now()));
                meter.bars.whole = meter.bars.bar(Some(planned), here, BAR, "all files");
                let known = if here == 0 { String::new() } else { format!(", {} of them are here", bytes(here)) };
                meter.bars.line(&format!("to fetch: {files} files, {}{known}", bytes(planned)));
            }
            Event::FetchStarted { file, bytes: total, here } => {
                let bar = meter.bars.bar(total, here, BAR, &file);
                if bar.is_none() {
                    let total = total.map_or(String::new(), |total| format!(": {}", bytes(total)));
                    let from = if here == 0 { String::new() } else { format!(", from byte {here} on") };
                    meter.bars.line(&format!("{file}{total}{from}"));
                }
                meter.bars.start(file, bar, total, here);
            }
            Event::FetchAdvanced { file, bytes } => meter.advance(&file, bytes),
            Event::FetchRestarted { file, why } => {
                meter.bars.restart(&file);
                meter.bars.line(&format!("{file}: begins anew: {why}"));
            }
            Event::Fetched { file, bytes: total } => {
                if let Some(piece) = meter.bars.end(&file) {
                    let speed = speed(piece.came, None, piece.began);
                    meter.bars.line(&format!("{file}: done, {}, {speed}", bytes(total)));
                }
            }
            Event::FetchFailed { file, why } => {
                meter.bars.end(&file);
                meter.bars.error(&format!("{file} failed: {why}"));
            }
            Event::FetchWaits { seconds: time, why } => meter.bars.line(&format!("waiting {}: {why}", seconds(time))),
            Event::FetchNote { text } => meter.bars.line(&text),
        }
    }
}

impl Drop for FetchProgress {
    fn drop(&mut self) {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).bars.clear();
    }
}
