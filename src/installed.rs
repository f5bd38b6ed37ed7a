//! What is installed beside the program: the experiments, and the texts, tasks and backbones of the profile `tiny`; and where
//! the user's own data lie. Floor 0.

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

/// The folder of this program among the user's data: below `$XDG_DATA_HOME`, or where the system has such data. None for a
/// user without a home.
pub fn user_data() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let usual = || {
        if cfg!(windows) {
            return std::env::var_os("LOCALAPPDATA").map(PathBuf::from);
        }
        let home = std::env::home_dir().filter(|home| home.is_absolute())?;
        Some(home.join(if cfg!(target_os = "macos") { "Library/Application Support" } else { ".local/share" }))
    };
    Some(named.or_else(usual)?.join("ghostlab"))
}

const EXPERIMENTS: &str = "experiments";
