//! The arguments that every command about a grid takes.

use std::path::PathBuf;

use clap::Args;

use crate::error::{Error, Result};
use crate::exec::{Methods, Settings};
use crate::grid::Grid;
use crate::machine;
use crate::store::Store;

#[derive(Args)]
pub(super) struct Asked {
    /// The grid file.
    grid: PathBuf,
    /// Change a value of the grid, for example `--set depth=7,9,11` or `--set calibration.sequences=16`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Use this profile of the grid instead of the one that it names.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    #[command(flatten)]
    place: Place,
    /// Threads to compute with; all cores by default.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

#[derive(Args)]
pub(super) struct Place {
    /// Where everything that was computed is kept: a later run takes it from there.
    #[arg(long, default_value = "data/store")]
    store: PathBuf,
}

/// How much may go on at a time.
#[derive(Args)]
pub(super) struct Limits {
    /// Jobs at a time (each uses all threads where it can).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    /// Memory that jobs may take together, in GB; four fifths of what is free by default.
    #[arg(long, value_name = "GB")]
    memory: Option<f64>,
    /// How often a job that fails is tried again.
    #[arg(long, default_value_t = 0)]
    retries: u32,
}

/// All cores where no number is given.
pub(super) fn start_threads(threads: Option<u16>) -> Result<()> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads.map_or(0, usize::from))
        .build_global()
        .map_err(|error| Error::job("cannot start threads").found(error.to_string()))
}

impl Asked {
    pub(super) fn grid(&self) -> Result<Grid> {
        Grid::load(&self.grid, self.profile.as_deref(), &self.overrides, &Methods)
    }

    pub(super) fn start_threads(&self) -> Result<()> {
        start_threads(self.threads)
    }

    /// The store, to be written to.
    pub(super) fn store(&self) -> Result<Store> {
        self.place.store()
    }
}

impl Place {
    /// The store, to be written to.
    pub(super) fn store(&self) -> Result<Store> {
        Ok(Store::open(&self.store)?.signed(machine::signature))
    }

    /// The store as it is.
    pub(super) fn look(&self) -> Result<Store> {
        Store::look_at(&self.store)
    }
}

impl Limits {
    pub(super) fn settings(&self) -> Settings {
        let memory = self.memory.map(|gigabytes| (gigabytes * 1e9) as u64);
        Settings { jobs: usize::from(self.jobs), memory, retries: self.retries, ..Settings::default() }
    }
}
