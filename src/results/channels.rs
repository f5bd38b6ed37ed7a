//! The errors of every channel at every boundary, as one Parquet file: thousands of numbers a boundary.

use std::path::{Path, PathBuf};

use polars::df;
use polars::prelude::DataFrame;

use super::cell_result::CellResult;
use super::csv::failed;
use super::parquet::write_parts;
use crate::error::Result;

/// A results folder's per-channel errors.
pub const CHANNELS: &str = "channels.parquet";

/// Writes `channels.parquet` into `dir`: a row for each channel of each boundary of each cell, in order. A boundary is called
/// after the first layer that is removed there; `error` is the mean of |X̂ − X_post| over tokens. No file where no cell has
/// a boundary.
///
/// # Errors
/// Exit code 3 when the folder cannot be written to.
pub fn write_channels(dir: &Path, cells: &[CellResult]) -> Result<Option<PathBuf>> {
    if cells.iter().all(|cell| cell.boundaries.is_empty()) {
        return Ok(None);
    }
    let path = dir.join(CHANNELS);
    write_parts(&path, &frame(None)?, cells.iter().map(|cell| frame(Some(cell))))?;
    Ok(Some(path))
}

fn frame(cell: Option<&CellResult>) -> Result<DataFrame> {
    let name = cell.map(|cell| cell.cell.to_string()).unwrap_or_default();
    let (mut boundaries, mut channels, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for boundary in cell.into_iter().flat_map(|cell| &cell.boundaries) {
        for (channel, &error) in boundary.numbers.boundary_mae_by_channel.iter().enumerate() {
            boundaries.push(boundary.region.0 as u64);
            channels.push(channel as u64);
            errors.push(error);
        }
    }
    let cells = vec![name.as_str(); errors.len()];
    df!("cell" => cells, "boundary" => boundaries, "channel" => channels, "error" => errors)
        .map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use polars::prelude::{ParquetReader, SerReader};

    use super::*;
    use crate::grid::Cell;
    use crate::stage::operator::BoundaryResult;

    fn cell(backbone: &str, boundaries: &[(usize, Vec<f64>)]) -> CellResult {
        let boundary = |(start, errors): &(usize, Vec<f64>)| -> BoundaryResult {
            serde_json::from_value(serde_json::json!({
                "region": [start, start + 1], "operator": null, "placed": null, "notes": [], "rank": null,
                "condition": null, "losses": [], "solve_seconds": 0.0, "boundary_mae": 0.5,
                "boundary_mae_by_channel": errors, "relative_residual": 0.5, "delta_norm": 1.0, "m_norm": 1.0,
                "m_symmetric_norm": 1.0, "m_antisymmetric_norm": 1.0
            }))
            .unwrap()
        };
        let cell = Cell::named(backbone, &format!("{backbone}.dense"));
        CellResult { boundaries: boundaries.iter().map(boundary).collect(), ..CellResult::unmeasured(cell, 8, None) }
    }

    #[test]
    fn every_error_is_read_back_with_its_cell_boundary_and_channel() {
        let folder = tempfile::tempdir().unwrap();
        let errors = |from: usize| (from..from + 70).map(|at| (at as f64).sqrt()).collect::<Vec<f64>>();
        let cells =
            [cell("a", &[(2, errors(0)), (5, errors(70))]), cell("failed", &[]), cell("b", &[(3, errors(140))])];
        let path = write_channels(folder.path(), &cells).unwrap().unwrap();
        let frame = ParquetReader::new(File::open(path).unwrap()).finish().unwrap();
        let text = |at: usize| frame.column("cell").unwrap().str().unwrap().get(at).unwrap().to_owned();
        let count = |name: &str, at: usize| frame.column(name).unwrap().u64().unwrap().get(at).unwrap();
        let error = |at: usize| frame.column("error").unwrap().f64().unwrap().get(at).unwrap();
        assert_eq!(frame.height(), 210);
        for at in 0..210 {
            let (cell, boundary) = [("a.dense", 2), ("a.dense", 5), ("b.dense", 3)][at / 70];
            assert_eq!((text(at).as_str(), count("boundary", at)), (cell, boundary), "row {at}");
            assert_eq!((count("channel", at), error(at)), (at as u64 % 70, (at as f64).sqrt()), "row {at}");
        }
    }

    #[test]
    fn without_a_boundary_there_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(write_channels(folder.path(), &[cell("a", &[])]).unwrap(), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
