//! Progress of runs and downloads.
//!
//! A terminal shows a bar for each job or file and a bar for the total. Other outputs get plain lines. With `--events`,
//! JSON lines are written to stdout instead.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::{HumanCount, HumanDuration, MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;

use super::terminal::{self, format_bytes, format_seconds};
use crate::clock::format_utc;
use crate::error::printable;
use crate::hub;
use crate::pipeline::exec::{Event, JobStarted, Reporter, TimeLeft};
use crate::quantity::pluralize;

const BAR: &str = "{wide_bar:.cyan/blue} {percent:>3} %  {msg}";
const OVERALL_BAR: &str = "{wide_bar:.green/blue} {percent:>3} %  {msg}";

/// Returns the reporter for a run. It writes JSON lines to stdout if `events` is set, bars on a terminal, and plain
/// lines otherwise. In quiet mode, it reports only failures.
pub(super) fn reporter(events: bool) -> Box<dyn Reporter> {
    if events {
        return Box::new(JsonLines);
    }
    let mut bars = Bars::new();
    bars.overall = bars.add_bar(None, 0, OVERALL_BAR, "");
    Box::new(RunProgress(Mutex::new(RunMeter { bars, left: TimeLeft::default(), started: None })))
}

/// Reporter that writes each event to stdout as a JSON line.
struct JsonLines;

#[derive(Serialize)]
struct TimedEvent<'a, E> {
    time: String,
    #[serde(flatten)]
    event: &'a E,
}

impl JsonLines {
    fn write(time: String, event: &impl Serialize) {
        if let Ok(line) = serde_json::to_string(&TimedEvent { time, event }) {
            // Ignore the error, because a closed stdout must not stop the run.
            writeln!(std::io::stdout().lock(), "{line}").ok();
        }
    }
}

fn format_utc_milliseconds(time: SystemTime) -> String {
    let millis = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_millis());
    format!("{}.{millis:03}Z", format_utc(time).trim_end_matches('Z'))
}

impl Reporter for JsonLines {
    fn event(&self, event: Event) {
        Self::write(format_utc_milliseconds(SystemTime::now()), &event);
    }
}

struct RunProgress(Mutex<RunMeter>);

/// Running job and the number of tokens processed so far.
struct RunningJob {
    job: JobStarted,
    ran: usize,
}

struct RunMeter {
    bars: Bars<usize, RunningJob>,
    left: TimeLeft,
    /// Time of the first event; `None` before it.
    started: Option<Instant>,
}

fn completed_fraction(item: &Progress<RunningJob>) -> f64 {
    match item.total {
        Some(tokens) if tokens > 0 => item.added as f64 / tokens as f64,
        _ => 1.0,
    }
}

/// Formats the speed of a job, such as `3,400 tokens/s, 0.50 cells/s, 12 s left`.
fn format_speed(item: &Progress<RunningJob>) -> String {
    let RunningJob { job, ran } = &item.work;
    let seconds = item.elapsed_seconds();
    let fraction = completed_fraction(item);
    let left = seconds * (1.0 - fraction) / fraction.max(1e-9);
    let cells = match job.cells {
        0 => String::new(),
        cells => format!(", {:.2} cells/s", cells as f64 * fraction / seconds),
    };
    format!("{} tokens/s{cells}, {} left", HumanCount((*ran as f64 / seconds) as u64), format_duration(left))
}

fn format_duration(seconds: f64) -> String {
    HumanDuration(Duration::from_secs(seconds.clamp(0.0, 1e9).round() as u64)).to_string()
}

impl RunMeter {
    /// Advances a job by `tokens` planned tokens. The speed is based on `ran`, the number of tokens that were actually
    /// processed.
    fn advance(&mut self, id: usize, tokens: usize, ran: usize) {
        let left = self.left.seconds().map(|left| format!("grid: {} left", format_duration(left)));
        let Some((item, due)) = self.bars.advance(&id, tokens as u64) else { return };
        item.work.ran += ran;
        let label = &item.work.job.label;
        if let Some(bar) = &item.bar {
            bar.set_message(format!("{label}: {}", format_speed(item)));
        } else if due {
            let left = left.as_ref().map(|left| format!("; {left}")).unwrap_or_default();
            let percent = 100.0 * completed_fraction(item);
            let line = format!("{label}: {percent:.0} %, {}{left}", format_speed(item));
            self.bars.print_line(&line);
        }
        if let Some(overall) = &self.bars.overall {
            overall.set_position((self.left.fraction() * 1000.0).min(1000.0) as u64);
            overall.set_message(left.unwrap_or_default());
        }
    }
}

impl Reporter for RunProgress {
    fn event(&self, event: Event) {
        let mut meter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = meter.started.get_or_insert_with(Instant::now).elapsed().as_secs_f64();
        meter.left.record_event(&event, since);
        match event {
            Event::Planned { cells, complete, scores, scored, flops, engine, plan, .. } => {
                meter.bars.overall.iter().for_each(|overall| overall.set_length(1000));
                if complete > 0 {
                    meter.bars.print_line(&format!("{complete} of {cells} cells cached"));
                }
                let left = terminal::format_flops(flops);
                meter.bars.print_detail(&format!(
                    "engine {engine}; {left} remaining, {} scores to compute; plan {plan}",
                    scores - scored
                ));
            }
            Event::Note { text } => meter.bars.print_line(&text),
            Event::Failed { cell, reason } => meter.bars.print_always(&format!("{cell} failed: {reason}")),
            Event::Started(job) => {
                let tokens = job.tokens as u64;
                let bar = meter.bars.add_bar(Some(tokens), 0, BAR, &job.label);
                if bar.is_none() {
                    meter.bars.print_line(&format!("{}: {} tokens", job.label, HumanCount(tokens)));
                }
                meter.bars.start(job.id, Progress::new(RunningJob { job, ran: 0 }, bar, Some(tokens), 0));
            }
            Event::Advanced { job, tokens, ran, .. } => meter.advance(job, tokens, ran.unwrap_or(tokens)),
            Event::Finished { job } => {
                let Some(item) = meter.bars.finish(&job) else { return };
                let RunningJob { job, ran } = &item.work;
                let seconds = item.elapsed_seconds();
                let per_second = HumanCount((*ran as f64 / seconds) as u64);
                meter.bars.print_line(&format!("{}: done in {seconds:.1} s, {per_second} tokens/s", job.label));
            }
            // Bars and plain lines show only jobs. Cells are shown by `status`, `--events` and verbose mode.
            Event::Scored { cell, on, value } => meter.bars.print_detail(&format!("{cell} on {on}: {value}")),
            Event::Complete { cell, complete } => {
                meter.bars.print_detail(&format!("{cell} is complete ({complete} done)"));
            }
            Event::Kept | Event::WorkDone { .. } => {}
            Event::Ended { .. } => meter.bars.clear(),
        }
    }
}

const FETCH_BAR: &str = "{wide_bar:.cyan/blue} {bytes:>10}/{total_bytes:<10} {bytes_per_sec:>12}  {eta:>4}  {msg}";

/// Returns the reporter for a download. It writes JSON lines to stdout if `events` is set, bars on a terminal, and
/// plain lines otherwise.
pub(super) fn fetch_reporter(events: bool) -> Box<dyn hub::Reporter> {
    if events {
        return Box::new(JsonLines);
    }
    Box::new(FetchProgress(Mutex::new(FetchMeter { bars: Bars::new(), all: None })))
}

impl hub::Reporter for JsonLines {
    fn event(&self, event: hub::Event) {
        Self::write(format_utc(SystemTime::now()), &event);
    }
}

struct FetchProgress(Mutex<FetchMeter>);

struct FetchMeter {
    bars: Bars<String, ()>,
    /// Progress of all files together; `None` before the download is planned.
    all: Option<Progress<()>>,
}

/// Formats the speed of a download, such as `12.3 MB/s, 5 min 2 s left`.
fn format_fetch_speed(item: &Progress<()>, left: Option<u64>) -> String {
    let per_second = item.added as f64 / item.started.elapsed().as_secs_f64().max(1e-3);
    let left = left.filter(|_| item.added > 0);
    let left = left.map(|left| format!(", {} left", format_seconds(left as f64 / per_second)));
    format!("{}/s{}", format_bytes(per_second as u64), left.unwrap_or_default())
}

/// Formats the progress of a download, such as `1.2 GB of 3.4 GB, 12.3 MB/s, 5 min 2 s left`.
fn format_fetch_progress(item: &Progress<()>) -> String {
    let done = item.initial + item.added;
    let total = item.total.map_or(String::new(), |total| format!(" of {}", format_bytes(total)));
    let left = item.total.map(|total| total.saturating_sub(done));
    format!("{}{total}, {}", format_bytes(done), format_fetch_speed(item, left))
}

impl FetchMeter {
    fn advance(&mut self, file: &String, more: u64) {
        self.bars.overall.iter().for_each(|overall| overall.inc(more));
        self.all.iter_mut().for_each(|all| all.added += more);
        let Some((item, true)) = self.bars.advance(file, more) else { return };
        let all = self.all.as_ref().map_or(String::new(), |all| format!("; total: {}", format_fetch_progress(all)));
        let line = format!("{file}: {}{all}", format_fetch_progress(item));
        self.bars.print_line(&line);
    }
}

impl hub::Reporter for FetchProgress {
    fn event(&self, event: hub::Event) {
        let mut meter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            hub::Event::FetchPlanned { files, bytes: planned, here: initial } => {
                meter.all = Some(Progress::new((), None, Some(planned), initial));
                meter.bars.overall = meter.bars.add_bar(Some(planned), initial, FETCH_BAR, "all files");
                let known = if initial == 0 {
                    String::new()
                } else {
                    format!(", {} already downloaded", format_bytes(initial))
                };
                meter.bars.print_line(&format!(
                    "to fetch: {}, {}{known}",
                    pluralize(files, "file"),
                    format_bytes(planned)
                ));
            }
            hub::Event::FetchStarted { file, bytes: total, here: initial } => {
                let bar = meter.bars.add_bar(total, initial, FETCH_BAR, &file);
                if bar.is_none() {
                    let total = total.map_or(String::new(), |total| format!(": {}", format_bytes(total)));
                    let from = if initial == 0 { String::new() } else { format!(", resuming at byte {initial}") };
                    meter.bars.print_line(&format!("{file}{total}{from}"));
                }
                meter.bars.start(file, Progress::new((), bar, total, initial));
            }
            hub::Event::FetchAdvanced { file, bytes } => meter.advance(&file, bytes),
            hub::Event::FetchRestarted { file, why } => {
                meter.bars.restart(&file);
                meter.bars.print_line(&format!("{file}: restarting: {why}"));
            }
            hub::Event::Fetched { file, bytes: total } => {
                if let Some(item) = meter.bars.finish(&file) {
                    let speed = format_fetch_speed(&item, None);
                    meter.bars.print_line(&format!("{file}: done, {}, {speed}", format_bytes(total)));
                }
            }
            hub::Event::FetchFailed { file, why } => {
                meter.bars.finish(&file);
                meter.bars.print_always(&format!("{file} failed: {why}"));
            }
            hub::Event::FetchWaits { seconds: time, why } => {
                meter.bars.print_line(&format!("waiting {}: {why}", format_seconds(time)));
            }
            hub::Event::FetchNote { text } => meter.bars.print_line(&text),
        }
    }
}

impl Drop for FetchProgress {
    fn drop(&mut self) {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).bars.clear();
    }
}

/// Minimum interval between two plain lines about the same job or file.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Progress bars for jobs or files, keyed by job ID or file name.
struct Bars<K, W> {
    bars: Option<MultiProgress>,
    overall: Option<ProgressBar>,
    items: BTreeMap<K, Progress<W>>,
}

/// Progress of a job or file.
struct Progress<W> {
    work: W,
    bar: Option<ProgressBar>,
    /// Total number of tokens or bytes; `None` if unknown.
    total: Option<u64>,
    /// Number of tokens or bytes done before this run.
    initial: u64,
    /// Number of tokens or bytes added since then.
    added: u64,
    started: Instant,
    last_line: Instant,
}

impl<W> Progress<W> {
    fn new(work: W, bar: Option<ProgressBar>, total: Option<u64>, initial: u64) -> Self {
        let now = Instant::now();
        Self { work, bar, total, initial, added: 0, started: now, last_line: now }
    }

    /// Returns the elapsed time in seconds, which is never 0.
    fn elapsed_seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64().max(1e-9)
    }
}

impl<K: Ord, W> Bars<K, W> {
    fn new() -> Self {
        let bars = (std::io::stderr().is_terminal() && terminal::shows_notes()).then(MultiProgress::new);
        Self { bars, overall: None, items: BTreeMap::new() }
    }

    fn print_line(&self, text: &str) {
        if terminal::shows_notes() {
            self.print_always(text);
        }
    }

    /// Prints a line, even in quiet mode.
    fn print_always(&self, text: &str) {
        let text = &*printable(text);
        match &self.bars {
            Some(bars) => drop(bars.println(text)),
            None => eprintln!("{text}"),
        }
    }

    /// Prints a detail in verbose mode.
    fn print_detail(&self, text: &str) {
        if terminal::shows_details() {
            self.print_always(text);
        }
    }

    /// Adds a bar that starts at position `initial` above the bar for the total. Returns `None` if bars are not shown.
    fn add_bar(&self, total: Option<u64>, initial: u64, template: &str, message: &str) -> Option<ProgressBar> {
        let bars = self.bars.as_ref()?;
        let new = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
        let new = match &self.overall {
            Some(overall) => bars.insert_before(overall, new),
            None => bars.add(new),
        };
        new.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        // Setting a message draws the bar, so do not set an empty one.
        if !message.is_empty() {
            new.set_message(message.to_owned());
        }
        // Exclude bytes from an earlier attempt when computing the speed.
        if initial > 0 {
            new.set_position(initial);
            new.reset_eta();
        }
        Some(new)
    }

    fn start(&mut self, key: K, item: Progress<W>) {
        self.items.insert(key, item);
    }

    /// Advances a job or file. Returns its state and whether a plain line is due, or `None` if it is not running.
    fn advance(&mut self, key: &K, more: u64) -> Option<(&mut Progress<W>, bool)> {
        let item = self.items.get_mut(key)?;
        item.added += more;
        item.bar.iter().for_each(|bar| bar.inc(more));
        let due = item.bar.is_none() && item.last_line.elapsed() >= LINE_INTERVAL;
        if due {
            item.last_line = Instant::now();
        }
        Some((item, due))
    }

    fn restart(&mut self, key: &K) {
        if let Some(item) = self.items.get_mut(key) {
            (item.initial, item.added, item.started) = (0, 0, Instant::now());
            item.bar.iter().for_each(ProgressBar::reset);
        }
    }

    fn finish(&mut self, key: &K) -> Option<Progress<W>> {
        let item = self.items.remove(key)?;
        item.bar.iter().for_each(ProgressBar::finish_and_clear);
        Some(item)
    }

    fn clear(&self) {
        if let Some(bars) = &self.bars {
            bars.clear().ok();
        }
    }
}
