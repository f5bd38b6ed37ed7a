//! Floor 3: which cells of a grid to race next under a budget, and when to stop (design §21). How a cell is run is not its
//! business, nor what the paper says of it; it prints nothing.
//!
//! | file | noun |
//! | --- | --- |
//! | `candidates` | which cells meet the budget; one of them on its way |
//! | `laboratory` | what a search works with: who runs grids, the grids that measure times, what is raced on and how many items a round sees |
//! | `race` | who leaves after a round |
//! | `route` | what candidates share, and so what a round costs |
//! | `course` | a search from its candidates to its end; what is scored on items that the race never saw |
//! | `found` | what a variant costs by the cost model, and what came of a search: plain data, for screen, files and page |
//! | `report` | its tables as rows of texts, and what it cost in words |

mod candidates;
mod course;
mod found;
mod laboratory;
mod race;
mod report;
mod route;

pub use candidates::{parts, shallowest};
pub use course::search;
pub use found::{Candidate, Costs, Fate, Found, Judged, LeftOut, Objective, Round, Score, Spent};
pub use laboratory::{FIRST_DOCUMENTS, FIRST_WINDOWS, JUDGED, Laboratory, Schedule, judged, took};
pub use race::{Exit, Verdict, front, judge, mean_of_means};
pub use report::markdown;
pub use route::{Route, layers};
