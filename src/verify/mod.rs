//! Verification of results (layer 4 of the architecture).
//!
//! Checks files against their hashes, numbers against their recorded items (such as window losses and answers), and
//! tables against the numbers. Recomputes a sample of the items in a separate store. Latencies depend on the machine
//! and are not verified.

mod claims;
mod finding;
mod input_finder;
mod metrics;
mod page_table;
mod printed_table;
mod recompute;
mod recorded_results;
mod tables;
mod value_checks;

use std::path::{Path, PathBuf};

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

pub use finding::{CheckKind, CheckResult, FolderCheck, RecomputeCost, UncheckedValue, ValueMismatch, Verification};

use self::claims::VerdictCache;
use self::input_finder::InputFinder;
use self::recompute::DrawnSample;
use self::recorded_results::ReferenceRun;
use crate::error::{Error, Result};
use crate::files;
use crate::pipeline::exec::RunEnv;
use crate::results::StoredResults;

/// Options of `ghostlab verify`.
pub struct VerifyRequest<'a> {
    /// Fraction of the items to sample.
    pub fraction: f64,
    pub seed: u64,
    /// Additional folders to search for inputs.
    pub roots: Vec<PathBuf>,
    /// Environment for recomputing. Its store is initially empty.
    pub env: RunEnv<'a>,
}

/// Lists the results folders in or below `root`.
///
/// # Errors
/// Fails if no results folder is found.
pub fn find_folders(root: &Path) -> Result<Vec<PathBuf>> {
    /// Maximum search depth: three levels for `results/ARTIFACT/PROFILE`, plus one for a folder that contains several
    /// `results` trees.
    const MAX_SEARCH_DEPTH: usize = 4;
    fn walk(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
        if folder.join(StoredResults::FILE).is_file() {
            found.push(folder.to_owned());
            return;
        }
        if depth > 0 {
            let inner = files::entries(folder).unwrap_or_default().into_iter();
            inner.filter(|path| path.is_dir() && !path.is_symlink()).for_each(|path| walk(&path, depth - 1, found));
        }
    }
    let mut found = Vec::new();
    walk(root, MAX_SEARCH_DEPTH, &mut found);
    if found.is_empty() {
        return Err(Error::missing("no results to check")
            .at(root.display().to_string())
            .expected(format!("a folder with `{}`, or a parent of such folders", StoredResults::FILE))
            .found(if root.exists() { "none" } else { "no such file or folder" })
            .hint("pass a folder that `ghostlab run` or `ghostlab reproduce` wrote below `results`"));
    }
    Ok(found)
}

/// Results folder with the outcome of all checks that need no model, and the sample to recompute.
pub struct PreparedFolder {
    folder: PathBuf,
    recorded: ReferenceRun,
    drawn: DrawnSample,
    checks: Vec<CheckResult>,
    notes: Vec<String>,
}

/// Runs all checks that need no model, and draws the samples to recompute.
///
/// # Errors
/// Fails if a folder cannot be read. Problems inside a folder are reported by its checks.
pub fn prepare(folders: &[PathBuf], request: &VerifyRequest<'_>) -> Result<Vec<PreparedFolder>> {
    let finder = InputFinder::new(request.roots.clone());
    let verdict_cache = VerdictCache::default();
    folders.par_iter().map(|folder| PreparedFolder::new(folder, request, &finder, &verdict_cache)).collect()
}

impl PreparedFolder {
    fn new(
        folder: &Path,
        request: &VerifyRequest<'_>,
        finder: &InputFinder,
        verdict_cache: &VerdictCache,
    ) -> Result<Self> {
        let recorded = ReferenceRun::read(folder)?;
        let mut notes = Vec::new();
        let checks = vec![
            input_finder::check_files(folder, &mut notes)?,
            metrics::check(folder, &recorded)?,
            tables::check(folder, &recorded)?,
            claims::check(folder, &recorded, verdict_cache)?,
        ];
        let drawn = recompute::draw_sample(&recorded, request, finder, &mut notes);
        let numbers = &recorded.numbers;
        let mut measures = numbers.numbers.iter().flat_map(|number| numbers.measures(number));
        notes.extend(
            (measures.any(|measure| measure.machine().is_some()))
                .then(|| "latencies are not verified, because they depend on the machine".to_owned()),
        );
        let unchecked_columns: Vec<&str> = metrics::columns_without_items(&recorded).into_iter().collect();
        notes.extend((!unchecked_columns.is_empty()).then(|| {
            format!(
                "not recomputed, because the record contains no answers or losses for them: {}",
                unchecked_columns.join(", ")
            )
        }));
        Ok(Self { folder: folder.to_owned(), recorded, drawn, checks, notes })
    }

    /// Estimates the work needed to recompute the sample. Reads and tokenizes texts.
    ///
    /// # Errors
    /// Fails if the user interrupts the estimate.
    pub fn estimate_work(&self, request: &VerifyRequest<'_>) -> Result<RecomputeCost> {
        self.drawn.estimate_work(request)
    }

    fn finish(self, request: &VerifyRequest<'_>) -> Result<FolderCheck> {
        let Self { folder, recorded, drawn, mut checks, notes } = self;
        checks.extend(drawn.check(&recorded, request)?);
        let name = recorded.numbers.name;
        let program = recorded.numbers.program;
        Ok(FolderCheck { folder: folder.display().to_string(), name, program, checks, notes })
    }
}

/// Recomputes the samples of several folders, and compares them with the records.
///
/// # Errors
/// Fails if the user interrupts the verification.
pub fn finish(prepared: Vec<PreparedFolder>, request: &VerifyRequest<'_>) -> Result<Vec<FolderCheck>> {
    let drawn: Vec<&DrawnSample> = prepared.iter().map(|folder| &folder.drawn).collect();
    recompute::calibrate(&drawn, request)?;
    prepared.into_iter().map(|folder| folder.finish(request)).collect()
}
