//! Progress: a bar for each job and one for the whole on a terminal, plain lines elsewhere, JSON lines where asked for.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::{HumanCount, HumanDuration, MultiProgress, ProgressBar, ProgressStyle};

use serde::Serialize;

use super::{units, verbosity};
use crate::clock::utc;
use crate::error::printable;
use crate::exec::{Event, JobStarted, Reporter, TimeLeft};

/// Bars where standard error is a terminal, lines otherwise, or nothing but failures where it shall be quiet; or every event as a line of JSON on standard output.
pub(super) fn reporter(events: bool) -> Box<dyn Reporter> {
    if events {
        return Box::new(JsonLines);
    }
    let screen = Screen::of_standard_error();
    let bar = || ProgressBar::no_length().with_style(style("{wide_bar:.green/blue} {percent:>3} %  {msg}"));
    let whole = screen.bars.as_ref().map(|bars| bars.add(bar()));
    Box::new(Progress { state: Mutex::new(Meter { screen, whole, ..Meter::default() }) })
}

/// Every event as a line of JSON on standard output.
pub(super) struct JsonLines;

/// An event and when it was.
#[derive(Serialize)]
struct Timed<'a, E> {
    time: String,
    #[serde(flatten)]
    event: &'a E,
}

impl JsonLines {
    pub(super) fn write(time: String, event: &impl Serialize) {
        if let Ok(line) = serde_json::to_string(&Timed { time, event }) {
            // Whoever reads may have gone; the work goes on.
            writeln!(std::io::stdout().lock(), "{line}").ok();
        }
    }
}

fn utc_to_the_millisecond(time: SystemTime) -> String {
    let millis = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_millis());
    format!("{}.{millis:03}Z", utc(time).trim_end_matches('Z'))
}

impl Reporter for JsonLines {
    fn event(&self, event: Event) {
        Self::write(utc_to_the_millisecond(SystemTime::now()), &event);
    }
}

pub(super) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

struct Progress {
    state: Mutex<Meter>,
}

/// Standard error: lines, above the bars where it is a terminal.
#[derive(Default)]
pub(super) struct Screen {
    pub(super) bars: Option<MultiProgress>,
}

impl Screen {
    pub(super) fn of_standard_error() -> Self {
        Self { bars: (std::io::stderr().is_terminal() && verbosity::notes()).then(MultiProgress::new) }
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
    fn detail(&self, text: &str) {
        if verbosity::details() {
            self.error(text);
        }
    }

    pub(super) fn clear(&self) {
        if let Some(bars) = &self.bars {
            bars.clear().ok();
        }
    }
}

#[derive(Default)]
struct Meter {
    screen: Screen,
    whole: Option<ProgressBar>,
    jobs: BTreeMap<usize, Running>,
    left: TimeLeft,
    /// When the first event came.
    began: Option<Instant>,
}

struct Running {
    job: JobStarted,
    bar: Option<ProgressBar>,
    tokens: usize,
    started: Instant,
    last_line: Instant,
}

/// Between two plain lines of one job or file.
pub(super) const LINE_EVERY: Duration = Duration::from_secs(5);

impl Running {
    fn fraction(&self) -> f64 {
        if self.job.tokens == 0 { 1.0 } else { self.tokens as f64 / self.job.tokens as f64 }
    }

    /// `3,400 tokens/s, 0.50 cells/s, 12 s left`
    fn speed(&self) -> String {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-9);
        let left = seconds * (1.0 - self.fraction()) / self.fraction().max(1e-9);
        let cells = match self.job.cells {
            0 => String::new(),
            cells => format!(", {:.2} cells/s", cells as f64 * self.fraction() / seconds),
        };
        let tokens = HumanCount((self.tokens as f64 / seconds) as u64);
        format!("{tokens} tokens/s{cells}, {} left", duration(left))
    }
}

impl Meter {
    fn show(&mut self, job: usize) {
        let left = self.left.seconds().map(duration);
        let share = self.left.share();
        let Some(running) = self.jobs.get_mut(&job) else { return };
        if let (Some(bar), Some(whole)) = (&running.bar, &self.whole) {
            bar.set_position(running.tokens as u64);
            bar.set_message(format!("{}: {}", running.job.label, running.speed()));
            whole.set_position((share * 1000.0).min(1000.0) as u64);
            whole.set_message(left.map_or(String::new(), |left| format!("the grid: {left} left")));
        } else if running.last_line.elapsed() >= LINE_EVERY {
            running.last_line = Instant::now();
            let percent = 100.0 * running.fraction();
            let line = format!("{}: {percent:.0} %, {}", running.job.label, running.speed());
            let whole = left.map_or(String::new(), |left| format!("; the grid: {left} left"));
            self.screen.line(&(line + &whole));
        }
    }
}

fn duration(seconds: f64) -> String {
    HumanDuration(Duration::from_secs(seconds.clamp(0.0, 1e9).round() as u64)).to_string()
}

impl Reporter for Progress {
    fn event(&self, event: Event) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let since = state.began.get_or_insert_with(Instant::now).elapsed().as_secs_f64();
        state.left.see(&event, since);
        match event {
            Event::Planned { cells, complete, scores, scored, flops, engine, plan, .. } => {
                if let Some(whole) = &state.whole {
                    whole.set_length(1000);
                }
                if complete > 0 {
                    state.screen.line(&format!("{complete} of {cells} cells are stored already"));
                }
                let left = units::flops(flops);
                state
                    .screen
                    .detail(&format!("engine {engine}; {left} to do, {} scores to make; plan {plan}", scores - scored));
            }
            Event::Note { text } => state.screen.line(&text),
            Event::Failed { cell, reason } => state.screen.error(&format!("{cell} failed: {reason}")),
            Event::Started(job) => {
                let now = Instant::now();
                let bar = state.screen.bars.as_ref().zip(state.whole.as_ref()).map(|(bars, whole)| {
                    let bar = bars.insert_before(whole, ProgressBar::new(job.tokens as u64));
                    bar.set_style(style("{wide_bar:.cyan/blue} {percent:>3} %  {msg}"));
                    bar.set_message(job.label.clone());
                    bar
                });
                if bar.is_none() {
                    state.screen.line(&format!("{}: {} tokens", job.label, HumanCount(job.tokens as u64)));
                }
                state.jobs.insert(job.id, Running { job, bar, tokens: 0, started: now, last_line: now });
            }
            Event::Advanced { job, tokens, .. } => {
                if let Some(running) = state.jobs.get_mut(&job) {
                    running.tokens += tokens;
                }
                state.show(job);
            }
            Event::Finished { job } => {
                let Some(running) = state.jobs.remove(&job) else { return };
                let seconds = running.started.elapsed().as_secs_f64();
                let per_second = HumanCount((running.tokens as f64 / seconds.max(1e-9)) as u64);
                if let Some(bar) = &running.bar {
                    bar.finish_and_clear();
                }
                state.screen.line(&format!("{}: done in {seconds:.1} s, {per_second} tokens/s", running.job.label));
            }
            // Bars and lines show jobs; cells are shown by `status`, by `--events`, and where more is wanted.
            Event::Scored { cell, on, value } => state.screen.detail(&format!("{cell} on {on}: {value}")),
            Event::Complete { cell, complete } => {
                state.screen.detail(&format!("{cell} is complete, number {complete}"));
            }
            Event::Kept | Event::WorkDone { .. } => {}
            Event::Ended { .. } => state.screen.clear(),
        }
    }
}
