//! Latency of one forward pass over a prompt (prefill) and of decoding new tokens after it (decode). Passes of
//! different variants (pruned and repaired backbones) alternate.
//!
//! | file | content |
//! | --- | --- |
//! | `idle` | noise of the machine, measured before times are recorded |
//! | `dense_operators` | diagonal operators as full matrix products |
//! | `rounds` | prompts, and rounds of passes that alternate between variants until the times are stable |
//! | `round_times` | times of a variant in these rounds |
//! | `decode` | timed decoding of new tokens after the prompt |
//! | `result` | timing results of one variant |
//! | `sessions` | repetition of sessions whose times are unstable |
//! | `spread` | means, deviations, speedups with confidence intervals, and the stability criterion |
//!
//! ```
//! use ghostlab_core::latency::{Speedup, TimeSpread};
//!
//! // Times in milliseconds for ten passes each of a dense and a pruned backbone.
//! let dense = [20.1, 20.0, 19.9, 20.0, 20.1, 19.9, 20.0, 20.0, 20.1, 19.9];
//! let pruned = [10.1, 10.0, 9.9, 10.0, 10.1, 9.9, 10.0, 10.0, 10.1, 9.9];
//! let speedup = Speedup::from_times(&dense, &pruned).unwrap();
//! assert!((speedup.ratio - 2.0).abs() < 1e-3);
//! assert!(!TimeSpread::from_times(&dense).unwrap().is_noise());
//! ```

mod decode;
mod dense_operators;
mod idle;
mod result;
mod round_times;
mod rounds;
mod sessions;
mod spread;

pub use decode::{DecodeResult, decode_work, measure_decoding};
pub use dense_operators::{has_diagonal, with_dense_operators};
pub use idle::measure_idle_spread;
pub use result::LatencyResult;
pub use round_times::RoundTimes;
pub use rounds::{ExtraRounds, PassTimes, Prompt, Rounds, Session, count_passes, measure_interleaved};
pub use sessions::{MAX_SESSIONS, measure_until_stable};
pub use spread::{MAX_RELATIVE_DEVIATION, Speedup, TimeSpread};
