//! Estimates the remaining time of a run from the remaining work and from measured rates.

use std::collections::BTreeMap;

use crate::pipeline::env::event::{Event, WorkItem, WorkKind};

/// Backbone name and kind of work. Work items of one group are assumed to run at the same rate.
type RateGroup = (String, WorkKind);

/// Estimator for the remaining time of a run, updated by the run's events. Event times are in seconds, on any clock.
#[derive(Debug, Clone, Default)]
pub struct TimeLeft {
    items: BTreeMap<String, ItemProgress>,
    rates: BTreeMap<RateGroup, MeasuredRate>,
    jobs: BTreeMap<usize, RunningJob>,
    /// Time of the last event, and the group of the work that has been running since then.
    last: Option<(f64, Option<RateGroup>)>,
}

#[derive(Debug, Clone)]
struct ItemProgress {
    group: RateGroup,
    /// Floating-point operations of the whole item. Corrected when its jobs start.
    planned: f64,
    /// Floating-point operations of the item's jobs that have started. `done` of them are finished.
    begun: f64,
    done: f64,
    is_finished: bool,
}

/// Floating-point operations that this process has done in a group, and the seconds that they took.
#[derive(Debug, Clone, Copy, Default)]
struct MeasuredRate {
    flops: f64,
    seconds: f64,
}

#[derive(Debug, Clone)]
struct RunningJob {
    work: String,
    flops_per_token: f64,
}

/// Minimum fraction of a work item that counts as remaining until the item is finished.
const MIN_REMAINING_FRACTION: f64 = 0.02;

impl TimeLeft {
    /// Updates the estimate with an event that occurred at the time `now`.
    pub fn record_event(&mut self, event: &Event, now: f64) {
        // The time since the last event counts towards the group that was running. It includes work that reports no
        // progress, such as solving.
        if let Some((before, Some(group))) = &self.last {
            self.rates.entry(group.clone()).or_default().seconds += (now - before).max(0.0);
        }
        let mut running_group = self.last.take().and_then(|(_, group)| group);
        match event {
            Event::Planned { work, .. } => {
                self.items = work.iter().map(|item| (item.name.clone(), ItemProgress::new(item))).collect();
            }
            Event::Started(job) => {
                let flops_per_token = job.flops / job.tokens.max(1) as f64;
                self.jobs.insert(job.id, RunningJob { work: job.work.clone(), flops_per_token });
                if let Some(item) = self.items.get_mut(&job.work) {
                    item.begun += job.flops;
                    // When scoring starts, the removed layers are known, so the cost of the job is exact.
                    item.planned = match item.group.1 {
                        WorkKind::Calibrate => item.planned.max(item.begun),
                        WorkKind::Score | WorkKind::Time => item.begun,
                    };
                    running_group = Some(item.group.clone());
                }
            }
            Event::Advanced { job, tokens, elsewhere, .. } => {
                if let Some(running) = self.jobs.get(job)
                    && let Some(item) = self.items.get_mut(&running.work)
                {
                    let flops = running.flops_per_token * *tokens as f64;
                    item.done += flops;
                    // The work of other processes is excluded, because it would inflate the rate of this process.
                    if !elsewhere {
                        self.rates.entry(item.group.clone()).or_default().flops += flops;
                    }
                    running_group = Some(item.group.clone());
                }
            }
            Event::Finished { job } => {
                let work = self.jobs.remove(job).map(|running| running.work);
                running_group =
                    work.and_then(|work| self.items.get(&work)).map(|item| item.group.clone()).or(running_group);
            }
            Event::WorkDone { work } => {
                if let Some(item) = self.items.get_mut(work).filter(|item| !item.is_finished) {
                    item.is_finished = true;
                    // Count the remaining operations as done, because solving reports no progress. If less than half of
                    // the planned operations were started, an earlier run has probably done the others, so nothing is
                    // counted.
                    if item.begun > item.planned / 2.0 {
                        let rest = (item.planned - item.done).max(0.0);
                        self.rates.entry(item.group.clone()).or_default().flops += rest;
                    }
                    running_group = None;
                }
            }
            _ => {}
        }
        self.last = Some((now, running_group));
    }

    /// Returns the number of floating-point operations that this process has done.
    pub fn flops_done(&self) -> f64 {
        self.rates.values().map(|rate| rate.flops).sum()
    }

    /// Returns the fraction of the plan that is done, counting the work of all processes.
    pub fn fraction(&self) -> f64 {
        let planned: f64 = self.items.values().map(|item| item.planned).sum();
        let left: f64 = self.items.values().map(ItemProgress::remaining).sum();
        if planned > 0.0 { 1.0 - left / planned } else { 0.0 }
    }

    /// Returns the estimated number of seconds left, which is 0 if the work is finished. Returns `None` before any
    /// progress.
    pub fn seconds(&self) -> Option<f64> {
        let mut left = self.items.values().filter(|item| !item.is_finished).peekable();
        if left.peek().is_none() {
            return (!self.items.is_empty()).then_some(0.0);
        }
        let all = self.rate(|_| true)?;
        Some(
            left.map(|item| {
                item.remaining()
                    / self
                        .rate(|group| *group == item.group)
                        .or_else(|| self.rate(|group| group.1 == item.group.1))
                        .unwrap_or(all)
            })
            .sum::<f64>()
            .max(1.0),
        )
    }

    /// Returns the combined rate of the matching groups in floating-point operations per second, or `None` before any
    /// progress.
    fn rate(&self, matches: impl Fn(&RateGroup) -> bool) -> Option<f64> {
        let rates = || self.rates.iter().filter(|(group, _)| matches(group)).map(|(_, rate)| rate);
        let flops = rates().map(|rate| rate.flops).sum::<f64>();
        let seconds = rates().map(|rate| rate.seconds).sum::<f64>();
        (flops > 0.0 && seconds > 0.0).then(|| flops / seconds)
    }
}

impl ItemProgress {
    fn new(item: &WorkItem) -> Self {
        Self {
            group: (item.backbone.clone(), item.kind),
            planned: item.flops,
            begun: 0.0,
            done: 0.0,
            is_finished: false,
        }
    }

    fn remaining(&self) -> f64 {
        if self.is_finished { 0.0 } else { (self.planned - self.done).max(MIN_REMAINING_FRACTION * self.planned) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::Value;

    use super::*;
    use crate::pipeline::exec::JobStarted;

    /// Simulated work item with its planned and actual cost. After its job has finished, it continues for `silent`
    /// seconds without reporting progress.
    struct SimulatedItem {
        work: &'static str,
        kind: WorkKind,
        planned: f64,
        flops: f64,
        seconds: f64,
        silent: f64,
    }

    impl SimulatedItem {
        fn backbone(&self) -> String {
            self.work.split(' ').next().unwrap_or_default().to_owned()
        }

        fn work_item(&self) -> WorkItem {
            WorkItem { name: self.work.into(), backbone: self.backbone(), kind: self.kind, flops: self.planned }
        }
    }

    fn plan_event(items: &[SimulatedItem]) -> Event {
        let work: Vec<WorkItem> = items.iter().map(SimulatedItem::work_item).collect();
        let flops = work.iter().map(|part| part.flops).sum();
        let engine = String::new();
        let machine = String::new();
        let plan = String::new();
        Event::Planned { cells: 1, complete: 0, scores: 1, scored: 0, flops, work, engine, machine, plan }
    }

    /// Returns the time, the fraction done and the estimated number of seconds left at each event.
    fn remaining_estimates(items: &[SimulatedItem]) -> Vec<(f64, f64, Option<f64>)> {
        let duration: f64 = items.iter().map(|item| item.seconds + item.silent).sum();
        let mut left = TimeLeft::default();
        let mut now = 0.0;
        let mut estimates = Vec::new();
        let mut record = |left: &mut TimeLeft, event: &Event, now: f64| {
            left.record_event(event, now);
            estimates.push((now, now / duration, left.seconds()));
        };
        record(&mut left, &plan_event(items), now);
        for (id, item) in items.iter().enumerate() {
            let job = JobStarted {
                id,
                label: String::new(),
                work: item.work.into(),
                tokens: 50,
                cells: 0,
                flops: item.flops,
            };
            record(&mut left, &Event::Started(job), now);
            for _ in 0..50 {
                now += item.seconds / 50.0;
                record(&mut left, &Event::Advanced { job: id, tokens: 1, ran: None, elsewhere: false }, now);
            }
            record(&mut left, &Event::Finished { job: id }, now);
            now += item.silent;
            record(&mut left, &Event::WorkDone { work: item.work.into() }, now);
        }
        estimates
    }

    /// Returns work items for two backbones. Scoring costs a third more than planned.
    fn grid() -> Vec<SimulatedItem> {
        vec![
            calibrate("small c4", 1.0),
            score("small wikitext2", 1.0),
            score("small ptb", 0.5),
            calibrate("large c4", 1.5),
            score("large wikitext2", 1.5),
            score("large ptb", 0.75),
        ]
    }

    fn calibrate(work: &'static str, scale: f64) -> SimulatedItem {
        let planned = 20.0 * scale;
        let flops = 18.0 * scale;
        let seconds = 16.0 * scale;
        SimulatedItem { work, kind: WorkKind::Calibrate, planned, flops, seconds, silent: 2.0 * scale }
    }

    fn score(work: &'static str, scale: f64) -> SimulatedItem {
        let planned = 30.0 * scale;
        let flops = 40.0 * scale;
        let seconds = 30.0 * scale;
        SimulatedItem { work, kind: WorkKind::Score, planned, flops, seconds, silent: 0.5 }
    }

    #[test]
    fn estimate_is_within_factor_1_5_after_a_tenth_of_the_run() {
        let items = grid();
        let duration: f64 = items.iter().map(|item| item.seconds + item.silent).sum();
        for (now, fraction, left) in
            remaining_estimates(&items).into_iter().filter(|(_, fraction, _)| (0.1..0.97).contains(fraction))
        {
            let left = left.unwrap();
            let actual = duration - now;
            assert!(left < 1.5 * actual && actual < 1.5 * left, "at {fraction:.2}: {left:.1} s for {actual:.1} s");
        }
    }

    /// Reads the events of a run that were recorded with `just record-events`. Times are in seconds since midnight.
    fn read_recorded_events() -> Vec<(f64, Event)> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/events/run.jsonl");
        fs::read_to_string(file)
            .unwrap()
            .lines()
            .map(|line| {
                let event: Value = serde_json::from_str(line).unwrap();
                let (_, clock) = event["time"].as_str().unwrap().trim_end_matches('Z').split_once('T').unwrap();
                let time = clock.split(':').fold(0.0, |sum, part| 60.0 * sum + part.parse::<f64>().unwrap());
                (time, serde_json::from_value(event).unwrap())
            })
            .collect()
    }

    #[test]
    fn estimate_for_a_recorded_run_is_within_factor_1_5() {
        let events = read_recorded_events();
        let planned = events.iter().find(|(_, event)| matches!(event, Event::Planned { .. })).unwrap().0;
        let (end, last) = events.last().unwrap();
        assert!(matches!(last, Event::Ended { failed: 0, interrupted: false, .. }), "{last:?}");
        let mut left = TimeLeft::default();
        let mut count = 0;
        for (time, event) in &events {
            left.record_event(event, time - planned);
            let fraction = (time - planned) / (end - planned);
            let actual = end - time;
            if (0.1..0.97).contains(&fraction) {
                let estimate = left.seconds().unwrap();
                assert!(
                    estimate < 1.5 * actual && actual < 1.5 * estimate,
                    "at {fraction:.2}: {estimate:.1} s for {actual:.1} s"
                );
                count += 1;
            }
            let is_over = left.items.values().all(|item| item.is_finished);
            assert!(is_over || left.seconds() != Some(0.0), "at {fraction:.2}: 0 s left although work remains");
        }
        assert!(count > 50, "{count} events");
    }

    #[test]
    fn time_left_is_zero_only_at_the_end() {
        // The plan underestimates the length of the text by a factor of ten.
        let text = SimulatedItem {
            work: "small text",
            kind: WorkKind::Score,
            planned: 1.0,
            flops: 10.0,
            seconds: 60.0,
            silent: 5.0,
        };
        let all = remaining_estimates(&[text]);
        let (last, before) = all.split_last().unwrap();
        assert_eq!(last.2, Some(0.0));
        assert!(before.iter().all(|(_, _, left)| left.is_none_or(|left| left >= 1.0)), "{before:?}");
        assert_eq!(before[0].2, None, "no estimate before any progress");
    }

    #[test]
    fn work_of_other_workers_does_not_affect_the_rate() {
        let items = grid();
        let mut left = TimeLeft::default();
        left.record_event(&plan_event(&items), 0.0);
        let job = JobStarted {
            id: 0,
            label: String::new(),
            work: "small wikitext2".into(),
            tokens: 10,
            cells: 1,
            flops: 40.0,
        };
        left.record_event(&Event::Started(job), 0.0);
        left.record_event(&Event::Advanced { job: 0, tokens: 9, ran: None, elsewhere: true }, 0.1);
        assert_eq!((left.flops_done(), left.seconds()), (0.0, None));
        let before = left.fraction();
        left.record_event(&Event::Advanced { job: 0, tokens: 1, ran: None, elsewhere: false }, 4.1);
        assert_eq!(left.flops_done(), 4.0);
        assert!(before > 0.15 && left.fraction() > before, "{before}");
    }
}
