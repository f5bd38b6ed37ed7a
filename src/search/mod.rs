//! Floor 3: which cells of a grid to race next under a budget, and when to stop (design §21). How a cell is run is not its
//! business, nor what the paper says of it; it prints nothing.
//!
//! | file | noun |
//! | --- | --- |
//! | `costs`, `candidates` | what a variant costs by the cost model; which cells meet the budget |
//! | `schedule`, `race` | how many items a round sees; who leaves after it |
//! | `route` | what candidates share, and so what a round costs |
//! | `course` | a search from its candidates to its judgement, with the help of who runs grids |
//! | `found` | what came of it: plain data, for screen, files and page |
//! | `report` | its tables as rows of texts, and what it cost in words |
//! | `simulation` | races on scores that are known already |

mod candidates;
mod costs;
mod course;
mod found;
mod race;
mod report;
mod route;
mod schedule;
mod simulation;

pub use candidates::{parts, shallowest};
pub use costs::Costs;
pub use course::{Laboratory, search};
pub use found::{Candidate, Fate, Found, Judged, LeftOut, Objective, Round, Score, Spent};
pub use race::{Exit, Verdict, front, judge, mean_of_means};
pub use route::{Place, Repair, Route, layers};
pub use schedule::{FIRST_DOCUMENTS, FIRST_WINDOWS, Schedule};
pub use simulation::{JUDGED, KnownObjective, KnownScores, Simulated, judged, simulate};
