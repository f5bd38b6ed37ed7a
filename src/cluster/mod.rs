//! Floor 3: a grid handed to a scheduler, which starts many workers on it. The scheduler is asked to start, to stop and to
//! tell what waits; how far the work is, the store alone says.

mod job_end;
mod options;
mod profile;
mod program;
mod queue;
mod script;
mod submission;
pub mod time_limit;
mod unneeded;

pub use job_end::JobEnd;
pub use options::check as check_options;
pub use profile::{GpuType, SlurmProfile};
pub use program::FrozenProgram;
pub use queue::{NotTaken, Queue, QueuedJob, cancel, sbatch, scontrol_requeue};
pub use script::{ArrayRequest, JobScript, plain};
pub use submission::{ArtifactCall, Binary, Submission, SubmittedJobs};
pub use unneeded::unneeded;
