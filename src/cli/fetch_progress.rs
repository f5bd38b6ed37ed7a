//! Progress of a fetch: a bar for each file and one for all on a terminal, plain lines elsewhere, JSON lines where asked for.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use indicatif::ProgressBar;

use super::progress::{JsonLines, LINE_EVERY, Screen, style};
use super::units::{bytes, seconds};
use crate::clock::utc;
use crate::hub::{Event, Reporter};

const BAR: &str = "{wide_bar:.cyan/blue} {bytes:>10}/{total_bytes:<10} {bytes_per_sec:>12}  {eta:>4}  {msg}";

/// Bars where standard error is a terminal, lines otherwise; or every event as a line of JSON on standard output.
pub(super) fn reporter(events: bool) -> Box<dyn Reporter> {
    if events {
        return Box::new(JsonLines);
    }
    Box::new(Progress(Mutex::new(Meter { screen: Screen::of_standard_error(), ..Meter::default() })))
}

impl Reporter for JsonLines {
    fn event(&self, event: Event) {
        Self::write(utc(SystemTime::now()), &event);
    }
}

struct Progress(Mutex<Meter>);

#[derive(Default)]
struct Meter {
    screen: Screen,
    files: BTreeMap<String, Running>,
    whole: Option<ProgressBar>,
    /// Bytes of all files; those that were here before, and those that came.
    planned: u64,
    here: u64,
    came: u64,
    began: Option<Instant>,
}

struct Running {
    bar: Option<ProgressBar>,
    bytes: Option<u64>,
    here: u64,
    came: u64,
    began: Instant,
    last_line: Instant,
}

/// `12.3 MB/s, 5 min 2 s left`
fn speed(came: u64, left: Option<u64>, began: Instant) -> String {
    let per_second = came as f64 / began.elapsed().as_secs_f64().max(1e-3);
    let left = left.filter(|_| came > 0).map(|left| format!(", {} left", seconds(left as f64 / per_second)));
    format!("{}/s{}", bytes(per_second as u64), left.unwrap_or_default())
}

impl Meter {
    fn bar(&self, bytes: Option<u64>, here: u64, message: &str) -> Option<ProgressBar> {
        let bars = self.screen.bars.as_ref()?;
        let new = bytes.map_or_else(ProgressBar::no_length, ProgressBar::new);
        let new = match &self.whole {
            Some(whole) => bars.insert_before(whole, new),
            None => bars.add(new),
        };
        new.set_style(style(BAR));
        new.set_message(message.to_owned());
        new.set_position(here);
        // What was here before did not come at any speed.
        new.reset_eta();
        Some(new)
    }

    fn advance(&mut self, file: &str, more: u64) {
        self.came += more;
        if let Some(whole) = &self.whole {
            whole.inc(more);
        }
        let (planned, all, began) = (self.planned, self.here + self.came, self.began);
        let Some(running) = self.files.get_mut(file) else { return };
        running.came += more;
        if let Some(bar) = &running.bar {
            bar.inc(more);
        } else if running.last_line.elapsed() >= LINE_EVERY {
            running.last_line = Instant::now();
            let done = running.here + running.came;
            let of = running.bytes.map_or(String::new(), |total| format!(" of {}", bytes(total)));
            let left = running.bytes.map(|total| total.saturating_sub(done));
            let own = speed(running.came, left, running.began);
            let whole = began.map(|began| speed(self.came, Some(planned.saturating_sub(all)), began));
            let whole =
                whole.map_or(String::new(), |whole| format!("; all: {} of {}, {whole}", bytes(all), bytes(planned)));
            self.screen.line(&format!("{file}: {}{of}, {own}{whole}", bytes(done)));
        }
    }

    fn end(&mut self, file: &str) -> Option<Running> {
        let running = self.files.remove(file)?;
        if let Some(bar) = &running.bar {
            bar.finish_and_clear();
        }
        Some(running)
    }
}

impl Reporter for Progress {
    fn event(&self, event: Event) {
        let mut meter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::FetchPlanned { files, bytes: planned, here } => {
                (meter.planned, meter.here, meter.began) = (planned, here, Some(Instant::now()));
                meter.whole = meter.bar(Some(planned), here, "all files");
                let known = if here == 0 { String::new() } else { format!(", {} of them are here", bytes(here)) };
                meter.screen.line(&format!("to fetch: {files} files, {}{known}", bytes(planned)));
            }
            Event::FetchStarted { file, bytes: total, here } => {
                let (bar, now) = (meter.bar(total, here, &file), Instant::now());
                if bar.is_none() {
                    let total = total.map_or(String::new(), |total| format!(": {}", bytes(total)));
                    let from = if here == 0 { String::new() } else { format!(", from byte {here} on") };
                    meter.screen.line(&format!("{file}{total}{from}"));
                }
                meter.files.insert(file, Running { bar, bytes: total, here, came: 0, began: now, last_line: now });
            }
            Event::FetchAdvanced { file, bytes } => meter.advance(&file, bytes),
            Event::FetchRestarted { file, why } => {
                if let Some(running) = meter.files.get_mut(&file) {
                    (running.here, running.came, running.began) = (0, 0, Instant::now());
                    running.bar.iter().for_each(ProgressBar::reset);
                }
                meter.screen.line(&format!("{file}: begins anew: {why}"));
            }
            Event::Fetched { file, bytes: total } => {
                if let Some(running) = meter.end(&file) {
                    let speed = speed(running.came, None, running.began);
                    meter.screen.line(&format!("{file}: done, {}, {speed}", bytes(total)));
                }
            }
            Event::FetchFailed { file, why } => {
                meter.end(&file);
                meter.screen.error(&format!("{file} failed: {why}"));
            }
            Event::FetchWaits { seconds: time, why } => meter.screen.line(&format!("waiting {}: {why}", seconds(time))),
            Event::FetchNote { text } => meter.screen.line(&text),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).screen.clear();
    }
}
