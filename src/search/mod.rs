//! Floor 3: which cells of a grid to race next under a budget, and when to stop (design §21). How a cell is run is not its
//! business, nor what the paper says of it; it prints nothing.
//!
//! | file | noun |
//! | --- | --- |
//! | `costs`, `candidates` | what a variant costs by the cost model; which cells meet the budget |
//! | `schedule`, `race` | how many items a round sees; who leaves after it |
//! | `route` | what candidates share, and so what a round costs |
//! | `laboratory` | what a search works with: who runs grids, and the grids that measure times |
//! | `track`, `racer` | what is raced on; a candidate on its way |
//! | `course`, `judgement` | a search from its candidates to its end; what is scored on items that the race never saw |
//! | `found` | what came of it: plain data, for screen, files and page |
//! | `report` | its tables as rows of texts, and what it cost in words |

mod candidates;
mod costs;
mod course;
mod found;
mod judgement;
mod laboratory;
mod race;
mod racer;
mod report;
mod route;
mod schedule;
mod track;

pub use candidates::{parts, shallowest};
pub use costs::Costs;
pub use course::search;
pub use found::{Candidate, Fate, Found, Judged, LeftOut, Objective, Round, Score, Spent};
pub use laboratory::{Laboratory, took};
pub use race::{Exit, Verdict, front, judge, mean_of_means};
pub use report::markdown;
pub use route::{Route, layers};
pub use schedule::{FIRST_DOCUMENTS, FIRST_WINDOWS, JUDGED, Schedule, judged};
