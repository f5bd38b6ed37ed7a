//! What is installed beside the program: the experiments, and the texts, tasks and backbones of the profile `tiny`.
//! Floor 0.

use std::fs;
use std::path::PathBuf;

/// The folder `share/ghostlab` of the prefix whose `bin` holds the program; none where there is no such folder, as in a
/// checkout.
pub fn share() -> Option<PathBuf> {
    let program = fs::canonicalize(std::env::current_exe().ok()?).ok()?;
    let share = program.parent()?.parent()?.join("share/ghostlab");
    share.join(EXPERIMENTS).is_dir().then_some(share)
}

/// The folder of the artifacts' files in it.
pub fn experiments() -> Option<PathBuf> {
    Some(share()?.join(EXPERIMENTS))
}

const EXPERIMENTS: &str = "experiments";
