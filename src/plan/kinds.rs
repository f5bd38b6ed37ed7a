//! The kinds of objects that are stored, each with the version of the stage that makes it, and what else a store is told.
//!
//! A stage that gives other bytes than before gets the next number. (`tests/golden.rs` fails when a stage's output changes and
//! its number does not.)

use ghostlab_store::{ObjectKind, StoreWords};

/// Token ids of a text's windows, or of a task's requests.
// 2: keys say the format that a file is read as. 3: windows say the bytes that they predict. 4: as all kinds, one more without
// a change of its own: keys name a backbone by what its forward pass reads, a task by what is read of the backbone's files, a
// method by its version.
pub const TOKENS: ObjectKind = ObjectKind::new("tokens", 4);
/// The residual stream at one site, for all calibration tokens.
// 3: as with scores' 3. 4: a shard each.
pub const ACTIVATIONS: ObjectKind = ObjectKind::new("activations", 5);
/// The layers that a criterion picked, with its scores.
// 3: keys name what the criterion looked at, and have every option filled in. 4: the bound of `cca` counts no rounding as a
// direction.
pub const SELECTION: ObjectKind = ObjectKind::new("selection", 5);
/// A variant's operators with their figures.
// 2: keys name the activations, and have every option filled in. 3: what is solved on how many sequences is what the key says,
// also where many layers happen to be one block.
pub const OPERATOR: ObjectKind = ObjectKind::new("operator", 4);
/// What a variant scored on one text or task.
// 2: the softmax divides last, which rounds otherwise. 3: as does a row that is multiplied alone. 4: in half precision candle
// rounds no logits.
pub const SCORES: ObjectKind = ObjectKind::new("scores", 5);
/// The likeliest tokens that a whole backbone predicts, for some sequences.
// 2: as with scores' 4.
pub const TEACHER: ObjectKind = ObjectKind::new("teacher", 3);
/// A variant's operator after its training.
pub const DISTILLED: ObjectKind = ObjectKind::new("distilled", 2);
/// How long a variant took over one prompt, on one machine.
// 2: a tied table counts once where it is one, and operators in f32. 4: rounds go on until they are quiet, and ten of them
// count.
pub const LATENCY: ObjectKind = ObjectKind::new("latency", 4);

pub const ALL: [ObjectKind; 8] = [TOKENS, ACTIVATIONS, SELECTION, OPERATOR, SCORES, TEACHER, DISTILLED, LATENCY];

/// What the claim of a calibration begins with.
pub(super) const CALIBRATING: &str = "calibrate-";

/// A claim that is held while something is computed is of a calibration, or of a chunk: a journal's name and a number. Of
/// other claims it says nothing that their owner died.
fn counts_death(claim: &str) -> bool {
    claim.starts_with(CALIBRATING) || claim.split_once('-').is_some_and(|(journal, _)| journal.len() == 64)
}

/// What every store of this program is opened with.
pub const WORDS: StoreWords = StoreWords { kinds: &ALL, packed: SCORES, counts_death };
