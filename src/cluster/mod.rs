//! Floor 3: a grid handed to a scheduler, which starts many workers on it. The scheduler is asked to start, to stop and to
//! tell what waits; how far the work is, the store alone says.

mod options;
mod profile;
mod program;
mod queue;
mod script;
mod submission;

pub use options::{SHORTEST, check_options, time_limit};
pub use profile::{GpuType, SlurmProfile};
pub use program::{Binary, FrozenProgram};
pub use queue::{JobEnd, NotTaken, Queue, QueuedJob, cancel, sbatch, scontrol_requeue};
pub use script::{ArrayRequest, JobScript, plain};
pub use submission::{ArtifactCall, Submission, SubmittedJobs};

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use program::since;

use ghostlab_store::Store;

/// For so long a job that is out of the queue may be queued again, and who freezes a program may take to submit it.
const QUIET: Duration = Duration::from_secs(24 * 3600);

/// The programs of a store that no job runs or may run any more: of all submissions that name one, nothing is queued or running, nothing
/// stirred for a day, and the scheduler says so. Where anything of that is not known they stay: a scheduler that does not
/// answer, another user's submission, one that this program cannot read.
pub fn unneeded(store: &Store) -> Vec<FrozenProgram> {
    let mut quiet: Vec<FrozenProgram> = FrozenProgram::all(store).into_iter().filter(|of| of.age() >= QUIET).collect();
    if quiet.is_empty() {
        return quiet;
    }
    let Some(submissions) = Submission::every(store) else { return Vec::new() };
    let named: BTreeSet<&str> = submissions.iter().map(|of| of.binary.sha256.as_str()).collect();
    let asks = quiet.iter().any(|of| named.contains(of.sha256.as_str()));
    let queue = if asks { Queue::ask("now-30days").ok() } else { None };
    let over = |of: &Submission| {
        let folder = of.folder(store);
        let gone = match (of.jobs(store).any(), &queue) {
            (false, _) => true,
            (true, Some(queue)) => queue.of(&of.comment()).next().is_none(),
            (true, None) => false,
        };
        gone && is_mine(&folder) && stirred(&folder) >= QUIET
    };
    quiet.retain(|program| submissions.iter().filter(|of| of.binary.sha256 == program.sha256).all(over));
    quiet
}

/// How long ago anything of a submission was written: its notes, its logs, how its jobs ended.
fn stirred(folder: &Path) -> Duration {
    let below = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|of| of.path());
    let all = below(folder).flat_map(|path| below(&path).collect::<Vec<_>>().into_iter().chain([path]));
    all.map(|path| since(&path)).min().unwrap_or_default()
}

/// Whether it is this user's: the scheduler tells nobody of another user's jobs.
#[cfg(unix)]
fn is_mine(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let owner = |path: &Path| fs::metadata(path).map(|data| data.uid()).ok();
    owner(path).is_some_and(|of| owner(Path::new("/proc/self")) == Some(of))
}

#[cfg(not(unix))]
fn is_mine(_: &Path) -> bool {
    false
}
