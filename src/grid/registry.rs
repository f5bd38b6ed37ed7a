//! What a grid asks of the rest of the program.

use std::path::Path;

use super::method::Method;
use crate::error::Result;
use crate::options::{Described, Options};

/// What the grid has to ask other floors to be able to refuse a cell before anything runs.
pub trait Registry {
    /// The number of decoder layers of the backbone in a folder.
    ///
    /// # Errors
    /// When the folder holds no backbone that can be read.
    fn layers(&self, backbone_folder: &Path) -> Result<usize>;

    /// The criteria and their options.
    fn criteria(&self) -> Vec<Described>;

    /// The recoveries and their options.
    fn recoveries(&self) -> Vec<Described>;

    /// A criterion's options with every default filled in.
    ///
    /// # Errors
    /// An unknown criterion, unknown or wrong options, saying what is wrong; the grid adds the place.
    fn resolve_criterion(&self, name: &str, options: &Options) -> Result<Options>;

    /// A recovery's options with every default filled in.
    ///
    /// # Errors
    /// An unknown recovery, unknown or wrong options, saying what is wrong; the grid adds the place.
    fn resolve_recovery(&self, name: &str, options: &Options) -> Result<Options>;

    /// The names of the window rules.
    fn rules(&self) -> Vec<&str>;

    /// The names of the multiple-choice tasks that can be scored.
    fn tasks(&self) -> Vec<&str>;

    /// Refuses a depth that a criterion cannot select on a backbone (its name in the grid) of `layers` layers, though it
    /// is below `layers`.
    ///
    /// # Errors
    /// Saying what is wrong; the grid adds the place.
    fn check_depth(&self, _criterion: &Method, _backbone: &str, _depth: usize, _layers: usize) -> Result<()> {
        Ok(())
    }
}
