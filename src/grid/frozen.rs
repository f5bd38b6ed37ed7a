//! A grid as it was resolved at one moment: what is run from it later does not follow its files.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::Grid;
use crate::error::{Error, Result};

impl Grid {
    /// The grid in a form that [`Grid::thawed`] reads from any folder: with absolute paths.
    ///
    /// # Errors
    /// A current folder that is gone.
    pub fn frozen(&self) -> Result<Value> {
        let mut grid = self.clone();
        let absolute = |path: &mut PathBuf| -> Result<()> {
            *path = std::path::absolute(&*path).map_err(|error| Error::io("find", path, &error))?;
            Ok(())
        };
        absolute(&mut grid.file)?;
        grid.entries.iter_mut().try_for_each(absolute)?;
        grid.backbones.values_mut().try_for_each(|of| absolute(&mut of.path))?;
        grid.corpora.values_mut().try_for_each(|of| absolute(&mut of.path))?;
        grid.tasks.values_mut().try_for_each(|of| absolute(&mut of.path))?;
        let rows = grid.definitions.values_mut().flat_map(|of| of.rows.splits.values_mut()).flatten();
        rows.into_iter().try_for_each(absolute)?;
        grid.resolved()
    }

    /// A grid that was frozen.
    ///
    /// # Errors
    /// A form that this program did not write, or a method that it does not know.
    pub fn thawed(frozen: &Value) -> Result<Self> {
        Self::deserialize(frozen)
            .map_err(|error| Error::bad_input("the frozen grid cannot be read").found(error.to_string()))
    }
}
