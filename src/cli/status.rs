//! `ghostlab status`: runs, how far they are, what failed.

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;

use super::home::Place;
use super::units::seconds;
use crate::clock::utc;
use crate::error::Result;
use crate::exec::{RunRecord, Stage};
use crate::store::Store;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    place: Place,
    /// Show all runs, not only those that go on and the newest of each grid.
    #[arg(long)]
    all: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let store = arguments.place.look()?;
    let records = RunRecord::all(&store);
    if records.is_empty() {
        println!("no runs with the store {}", store.root().display());
        return Ok(ExitCode::SUCCESS);
    }
    for (index, record) in records.iter().enumerate() {
        let newest = !records[..index].iter().any(|newer| newer.file == record.file);
        let goes_on = record.stage == Stage::Running && !record.died(&store);
        if arguments.all || newest || goes_on {
            print!("{}", described(record, &store));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn described(record: &RunRecord, store: &Store) -> String {
    let stage = match record.stage {
        Stage::Running if record.died(store) => "died: the same command goes on where it was",
        Stage::Running => "running",
        Stage::Complete => "complete",
        Stage::Failed => "failed",
        Stage::Interrupted => "interrupted: the same command goes on where it was",
    };
    let at = |time: u64| utc(UNIX_EPOCH + Duration::from_secs(time));
    let mut lines = vec![
        format!("{} ({}): {stage}", record.grid, record.file.display()),
        format!("  began {}, last heard of {}, process {}", at(record.started), at(record.updated), record.process),
        match record.scores {
            0 => format!("  {} of {} cells complete", record.complete, record.cells),
            scores => {
                let (complete, cells, scored) = (record.complete, record.cells, record.scored.min(scores));
                format!("  {complete} of {cells} cells complete, {scored} of {scores} scores")
            }
        },
    ];
    if matches!(record.stage, Stage::Running | Stage::Interrupted) && record.flops > 0.0 {
        let share = (record.flops_done / record.flops).min(1.0);
        let left = if record.flops_done > 0.0 && record.stage == Stage::Running {
            let left = (record.flops - record.flops_done).max(0.0) * record.seconds / record.flops_done;
            format!(", about {} left", seconds(left))
        } else {
            String::new()
        };
        lines.push(format!("  {:.0} % of what there was to do{left}", 100.0 * share));
    }
    if record.stage == Stage::Running {
        for (label, done, tokens) in record.jobs.values() {
            lines.push(format!("  {label}: {done} of {tokens} tokens"));
        }
    }
    for (cell, reason) in &record.failures {
        lines.push(format!("  {cell} failed: {reason}"));
    }
    if record.stage == Stage::Complete {
        lines.push(format!("  results in {}", record.results.display()));
    }
    lines.push(format!("  {}", record.command.join(" ")));
    lines.join("\n") + "\n"
}
