//! `ghostlab cancel`: ends what `submit` submitted with this store, and nothing else.

use std::process::ExitCode;

use clap::Args;

use super::answer::done::{Cancelled, EndedJob};
use super::answer::{self, Answer};
use super::candidates;
use super::home::StoreArgs;
use crate::cluster::{self, Queue, Submission};
use crate::error::{Error, Result};

#[derive(Args)]
pub(super) struct Arguments {
    /// Submissions by their ids, or by the names of grids or artifacts; all of the store by default.
    #[arg(add = candidates::submissions())]
    which: Vec<String>,
    #[command(flatten)]
    place: StoreArgs,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let store = arguments.place.look()?;
    let mut chosen = Submission::all(&store);
    for name in &arguments.which {
        if !chosen.iter().any(|of| of.id == *name || of.plan == *name || of.name == *name) {
            let known: Vec<&str> = chosen.iter().map(|of| of.id.as_str()).collect();
            return Err(Error::missing("nothing of that name was submitted with this store")
                .at(store.root().display().to_string())
                .expected(if known.is_empty() { "a submission".to_owned() } else { known.join(", ") })
                .found(format!("`{name}`"))
                .hint("`ghostlab status` lists what was submitted"));
        }
    }
    let all = arguments.which.is_empty();
    chosen.retain(|of| all || [&of.id, &of.plan, &of.name].iter().any(|name| arguments.which.contains(name)));
    let queue = Queue::ask("now-30days").map_err(|reason| {
        Error::missing("the scheduler does not tell what is queued, and nothing is ended by guess")
            .found(reason)
            .hint("ask again later")
    })?;
    let mut ended = Vec::new();
    for submission in &chosen {
        for job in queue.of(&submission.comment()) {
            // Of an array the whole: `45_1` and `45_[2-3]` are 45.
            let number = job.id.split('_').next().unwrap_or_default().to_owned();
            if !ended.iter().any(|of: &EndedJob| of.job == number) {
                ended.push(EndedJob { submission: submission.id.clone(), job: number });
            }
        }
    }
    if !ended.is_empty() {
        cluster::cancel(&ended.iter().map(|of| of.job.clone()).collect::<Vec<_>>())?;
    }
    answer::show(Cancelled { ended }, Answer::Cancel, |of| {
        of.ended.iter().for_each(|of| println!("{}: job {} ended", of.submission, of.job));
        if of.ended.is_empty() {
            println!("nothing is queued");
        }
    })
}
