//! How long one forward pass over a prompt takes ("prefill"), and new tokens behind it ("decode"), variants side by side
//! (design §14).
//!
//! | file | noun |
//! | --- | --- |
//! | `idle` | noise of the machine, measured before times are recorded |
//! | `in_full` | diagonal operators as full products |
//! | `rounds` | the prompt, a number of sequences of equal length, and passes over it, the variants' one after the other, round by round, until they are quiet |
//! | `decode` | new tokens behind the prompt, one after the other, in such rounds |
//! | `result` | outcome of the rounds of one variant |
//! | `settle` | sessions that are repeated while their times are unstable |
//! | `spread` | means, deviations, speedups with their intervals, and what of it is noise |
//!
//! ```
//! use ghostlab_core::latency::{Speedup, TimeSpread};
//!
//! // Milliseconds of ten passes each of a dense and a pruned backbone.
//! let dense = [20.1, 20.0, 19.9, 20.0, 20.1, 19.9, 20.0, 20.0, 20.1, 19.9];
//! let pruned = [10.1, 10.0, 9.9, 10.0, 10.1, 9.9, 10.0, 10.0, 10.1, 9.9];
//! let speedup = Speedup::of(&dense, &pruned).unwrap();
//! assert!((speedup.ratio - 2.0).abs() < 1e-3);
//! assert!(!TimeSpread::of(&dense).unwrap().is_noise());
//! ```

mod decode;
mod idle;
mod in_full;
mod result;
mod rounds;
mod settle;
mod spread;

pub use decode::{DecodeResult, decode_work, decoded};
pub use idle::machine_spread;
pub use in_full::{has_diagonal, in_full};
pub use result::LatencyResult;
pub use rounds::{Patience, Prompt, Rounds, Session, Timed, interleaved, passes};
pub use settle::{MAX_SESSIONS, settled};
pub use spread::{NOISE, Speedup, TimeSpread};
