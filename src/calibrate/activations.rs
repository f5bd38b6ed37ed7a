//! The residual stream at chosen boundaries, written to unnamed files and memory-mapped back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;

use memmap2::Mmap;

use crate::error::{Error, Result};

/// Takes the rows of `X_l` during a pass. The files have no name: they are gone with the process, however it ends.
pub struct Spool {
    channels: usize,
    files: BTreeMap<usize, BufWriter<File>>,
}

impl Spool {
    /// # Errors
    /// The system's folder for temporary files cannot be written.
    pub fn create(sites: &BTreeSet<usize>, channels: usize) -> Result<Self> {
        let files = sites.iter().map(|&site| {
            let file = tempfile::tempfile().map_err(|error| io("create", &error))?;
            Ok((site, BufWriter::with_capacity(1 << 20, file)))
        });
        Ok(Self { channels, files: files.collect::<Result<_>>()? })
    }

    /// Appends rows of `X_site`, `[rows, C]`; a site that nobody wants is passed over.
    pub fn push(&mut self, site: usize, rows: &[f32]) -> Result<()> {
        let Some(file) = self.files.get_mut(&site) else { return Ok(()) };
        file.write_all(bytemuck::cast_slice(rows)).map_err(|error| io("write", &error))
    }

    pub fn finish(self) -> Result<Activations> {
        let maps = self.files.into_iter().map(|(site, file)| {
            let file = file.into_inner().map_err(|error| io("write", error.error()))?;
            // SAFETY: the file is unnamed and owned here: no other process can change it.
            let map = unsafe { Mmap::map(&file) }.map_err(|error| io("map", &error))?;
            Ok((site, map))
        });
        Ok(Activations { channels: self.channels, maps: maps.collect::<Result<_>>()? })
    }
}

fn io(verb: &str, error: &std::io::Error) -> Error {
    Error::missing(format!("cannot {verb} calibration activations"))
        .at(std::env::temp_dir().display().to_string())
        .found(error.to_string())
        .hint("activations are spooled to the system's temporary folder: free some room there, or set TMPDIR to another disk")
}

/// Rows of `X_l` for the spooled boundaries, in the order of the calibration tokens.
pub struct Activations {
    channels: usize,
    maps: BTreeMap<usize, Mmap>,
}

impl Activations {
    /// `C`
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Whether `X_site` was spooled.
    pub fn has(&self, site: usize) -> bool {
        self.maps.contains_key(&site)
    }

    /// Rows of `X_site`, `[rows, C]`.
    ///
    /// # Errors
    /// The site was not spooled.
    pub fn rows(&self, site: usize, rows: Range<usize>) -> Result<&[f32]> {
        let map = self.maps.get(&site).ok_or_else(|| Error::job(format!("X_{site} was not spooled")))?;
        let values: &[f32] = bytemuck::cast_slice(map);
        values.get(rows.start * self.channels..rows.end * self.channels).ok_or_else(|| {
            Error::job("activations end too soon")
                .at(format!("X_{site}"))
                .expected(format!("{} rows", rows.end))
                .found((values.len() / self.channels).to_string())
        })
    }
}
