//! Progress: one bar for the job and one for the whole on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanCount, HumanDuration, MultiProgress, ProgressBar, ProgressStyle};

use crate::exec::{Event, Job, Reporter};

/// Bars where standard error is a terminal, lines otherwise.
pub(super) fn reporter() -> Box<dyn Reporter> {
    let terminal = std::io::stderr().is_terminal();
    let bars = terminal.then(|| {
        let bars = MultiProgress::new();
        let job = bars.add(ProgressBar::no_length().with_style(style("{wide_bar:.cyan/blue} {percent:>3} %  {msg}")));
        let whole =
            bars.add(ProgressBar::no_length().with_style(style("{wide_bar:.green/blue} {percent:>3} %  {msg}")));
        Bars { bars, job, whole }
    });
    Box::new(Progress { bars, state: Mutex::new(State::default()) })
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

struct Progress {
    bars: Option<Bars>,
    state: Mutex<State>,
}

struct Bars {
    bars: MultiProgress,
    job: ProgressBar,
    whole: ProgressBar,
}

#[derive(Default)]
struct State {
    job: Option<Running>,
    /// Floating-point operations of the whole run, and those of finished jobs.
    planned: f64,
    done: f64,
    /// Seconds spent in finished jobs.
    spent: f64,
}

struct Running {
    job: Job,
    tokens: usize,
    started: Instant,
    last_line: Instant,
}

/// Between two plain lines of one job.
const LINE_EVERY: Duration = Duration::from_secs(5);

impl Running {
    fn fraction(&self) -> f64 {
        self.tokens as f64 / self.job.tokens.max(1) as f64
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

impl State {
    /// Seconds left of the whole run, by the speed so far in the cost model's unit.
    fn left(&self) -> Option<f64> {
        let running = self.job.as_ref();
        let done = self.done + running.map_or(0.0, |r| r.job.flops * r.fraction());
        let spent = self.spent + running.map_or(0.0, |r| r.started.elapsed().as_secs_f64());
        (done > 0.0).then(|| (self.planned - done).max(0.0) * spent / done)
    }
}

fn duration(seconds: f64) -> String {
    HumanDuration(Duration::from_secs(seconds.clamp(0.0, 1e9).round() as u64)).to_string()
}

impl Reporter for Progress {
    fn event(&self, event: Event) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Planned { flops } => {
                state.planned = flops;
                if let Some(bars) = &self.bars {
                    bars.whole.set_length(1000);
                }
            }
            Event::Note(text) => self.line(&text),
            Event::Started(job) => {
                if let Some(bars) = &self.bars {
                    bars.job.reset();
                    bars.job.set_length(job.tokens as u64);
                    bars.job.set_message(job.label.clone());
                } else {
                    self.line(&format!("{}: {} tokens", job.label, HumanCount(job.tokens as u64)));
                }
                let now = Instant::now();
                state.job = Some(Running { job, tokens: 0, started: now, last_line: now });
            }
            Event::Advanced { tokens } => {
                if let Some(running) = &mut state.job {
                    running.tokens += tokens;
                }
                self.show(&mut state);
            }
            Event::Finished => {
                let Some(running) = state.job.take() else { return };
                let seconds = running.started.elapsed().as_secs_f64();
                state.done += running.job.flops;
                state.spent += seconds;
                let per_second = HumanCount((running.tokens as f64 / seconds.max(1e-9)) as u64);
                self.line(&format!("{}: done in {seconds:.1} s, {per_second} tokens/s", running.job.label));
                if let Some(bars) = &self.bars
                    && state.done >= state.planned * 0.999
                {
                    bars.bars.clear().ok();
                }
            }
        }
    }
}

impl Progress {
    fn line(&self, text: &str) {
        match &self.bars {
            Some(bars) => {
                bars.bars.println(text).ok();
            }
            None => eprintln!("{text}"),
        }
    }

    fn show(&self, state: &mut State) {
        let whole = state.left();
        let (planned, done) = (state.planned, state.done);
        let Some(running) = &mut state.job else { return };
        match &self.bars {
            Some(bars) => {
                bars.job.set_position(running.tokens as u64);
                bars.job.set_message(format!("{}: {}", running.job.label, running.speed()));
                let share = (done + running.job.flops * running.fraction()) / planned.max(1.0);
                bars.whole.set_position((share * 1000.0).min(1000.0) as u64);
                bars.whole
                    .set_message(whole.map_or(String::new(), |left| format!("the grid: {} left", duration(left))));
            }
            None => {
                if running.last_line.elapsed() >= LINE_EVERY {
                    running.last_line = Instant::now();
                    let percent = 100.0 * running.fraction();
                    let line = format!("{}: {percent:.0} %, {}", running.job.label, running.speed());
                    let whole = whole.map_or(String::new(), |left| format!("; the grid: {} left", duration(left)));
                    self.line(&(line + &whole));
                }
            }
        }
    }
}
