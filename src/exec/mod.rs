//! Floor 4: running a grid. Order, preflight, events, interruption; what a job computes is the science's business.

mod event;
mod inputs;
mod prepare;
mod registry;
mod run;
mod variant;

pub use event::{Event, Job, Reporter};
pub use inputs::hashes;
pub use registry::Methods;
pub use run::{Outcome, Settings, run};
pub use variant::CellResult;
