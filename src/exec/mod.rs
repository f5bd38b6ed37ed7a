//! Floor 4: running a grid. Order, preflight, events, interruption; what a job computes is the science's business.

mod calibration;
mod event;
mod inputs;
mod prepare;
mod registry;
mod run;
mod selection;
mod tasks;
mod variant;

pub use event::{Event, Job, Reporter};
pub use registry::Methods;
pub use run::{Outcome, Settings, run};
pub use tasks::{TaskProtocol, TaskScores};
pub use variant::{BoundaryResult, CellResult};
