//! `ghostlab report`: writes an HTML page that shows all finished artifacts.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;

use super::answer::write_commands::{ReportAnswer, display_path};
use super::answer::{self, Answer};
use super::directories;
use super::terminal::format_bytes;
use crate::artifact::claims::{self, CLAIMS, JudgedClaim};
use crate::artifact::page::{AUDIT, CellNote, PAGE, Page};
use crate::artifact::{PagePart, PaperPlace, ResultsFolder, audit, hash_paths, local_run_folder, page, paper};
use crate::clock::format_utc;
use crate::error::{Error, Result};
use crate::files;
use crate::files::output::OutputFolder;
use crate::machine;
use crate::quantity::pluralize;
use crate::results::{Provenance, RunCommand, RunDescription, StoredResults, may_be_left_out};
use ghostlab_store::Store;

#[derive(Args)]
pub(super) struct Arguments {
    /// Folder with the artifact results [default: `results/` in the checkout].
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// Folder for the HTML report [default: reports in the checkout].
    #[arg(long, value_name = "FOLDER")]
    reports: Option<PathBuf>,
    /// Write the report for committing: recorded runs and lists, without large files.
    #[arg(long)]
    record: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let results = directories::default_directory(arguments.results.as_ref(), "results", None);
    if !results.is_dir() {
        let error = Error::missing("no results found")
            .at(results.display().to_string())
            .expected("the folder that `run` and `reproduce` write to")
            .found("nothing");
        return Err(directories::with_similar_path_hint(
            error,
            &results,
            "run the command in a checkout, or set the folder with --results",
        ));
    }
    let reports = directories::default_directory(arguments.reports.as_ref(), "reports", None);
    check_output(&reports)?;
    let (page, _) = write_report(&results, &reports, arguments.record)?;
    answer::print_answer(ReportAnswer { page: display_path(&page) }, Answer::Report, |answer| {
        println!("wrote {}", answer.page);
    })
}

/// Name of the artifact that reproduces the paper's main table.
const HEADLINE: &str = "table2";
/// Subdirectory for the page with local results, used if the main page shows recorded runs.
const LOCAL_FOLDER: &str = "here";
/// Last line of a page of recorded runs.
const RECORDED_MARKER: &str = "<!-- The page of the recorded run: written by ghostlab report --record alone. -->\n";

fn output_folder(reports: &Path) -> OutputFolder {
    OutputFolder::new(reports, "pages")
}

/// Checks, before a run, that the page can be written.
///
/// # Errors
/// Fails if the directory is not writable, or if a file that ghostlab did not write would be overwritten.
pub(super) fn check_output(reports: &Path) -> Result<()> {
    let names = [PAGE, AUDIT].map(str::to_owned);
    output_folder(reports).check(&names)?;
    output_folder(&reports.join(LOCAL_FOLDER)).check(&names)
}

/// Hashes the result files from which the page is generated. Returns `None` if a file cannot be hashed.
pub(super) fn hash_page_inputs(results: &Path, store: &Store) -> Option<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for folder in list_folders(results) {
        // Include the names of all files because the page links to them.
        let names = list_files(&folder, results);
        let names: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
        files.insert(folder.display().to_string(), names.join("/"));
        let read = [PagePart::FILE, StoredResults::FILE, Provenance::FILE, CLAIMS];
        let read = read.map(|name| folder.join(name)).into_iter().filter(|path| path.is_file());
        files.extend(hash_paths(store, read)?);
    }
    Some(files)
}

/// Returns the paths of the pages that exist.
pub(super) fn find_existing_pages(reports: &Path) -> Vec<PathBuf> {
    let folders = [reports.to_owned(), reports.join(LOCAL_FOLDER)];
    let all = folders.iter().flat_map(|folder| [PAGE, AUDIT].map(|name| folder.join(name)));
    all.filter(|page| page.symlink_metadata().is_ok()).collect()
}

/// Writes the page for all results directories and prints which directories are left out.
///
/// A page of recorded runs, whose results belong to the repository, changes only if `record` is set. Without `record`,
/// local results are written to a second page in `LOCAL_FOLDER`. Returns the path of the page, and whether any
/// directory was left out.
pub(super) fn write_report(results: &Path, reports: &Path, record: bool) -> Result<(PathBuf, bool)> {
    let folders: Vec<PathBuf> = match record {
        true => list_folders(results).into_iter().filter(|folder| is_on_recorded_page(folder)).collect(),
        false => list_results_folders(results),
    };
    if record {
        write_claims(&folders)?;
    }
    let page = reports.join(PAGE);
    let has_recorded = std::fs::read_to_string(&page).is_ok_and(|text| text.ends_with(RECORDED_MARKER));
    let reports = if has_recorded && !record { reports.join(LOCAL_FOLDER) } else { reports.to_owned() };
    let parts = PageParts::read(&folders, results, &reports, record)?;
    if has_recorded && !record && parts.folders.iter().all(|folder| is_on_recorded_page(folder)) {
        return Ok((page, false));
    }
    for (folder, reason) in &parts.skipped_folders {
        note!("skipped `{folder}`: {reason}");
    }
    let is_incomplete = !parts.skipped_folders.is_empty();
    let shown = parts.folders.clone();
    let page = parts.build_page(&folders, record)?;
    let ending = if record { RECORDED_MARKER } else { "" };
    let text = page::render(&page)? + ending;
    let audit = page::render_audit(&page)? + ending;
    if record {
        let sizes: Vec<u64> = shown.iter().map(|folder| compute_recorded_bytes(folder)).collect();
        let pages = (text.len() + audit.len()) as u64;
        let artifacts = pluralize(sizes.len(), "artifact");
        note!("recorded: {artifacts}, {}, and their pages, {}", format_bytes(sizes.iter().sum()), format_bytes(pages));
    }
    let files = [(PAGE, text), (AUDIT, audit)].map(|(name, text)| (name.to_owned(), text.into_bytes()));
    output_folder(&reports).put(&files)?;
    Ok((reports.join(PAGE), is_incomplete))
}

/// Sections of the page, read from the results directories.
#[derive(Default)]
struct PageParts {
    sections: Vec<PagePart>,
    /// Directories that have a section.
    folders: Vec<PathBuf>,
    /// Directories that have no section, each with the reason.
    skipped_folders: Vec<(String, String)>,
}

impl PageParts {
    /// Reads the sections in `folders` for a page in `reports`. A page of recorded runs leaves out large files.
    fn read(folders: &[PathBuf], results: &Path, reports: &Path, record: bool) -> Result<Self> {
        let mut parts = Self::default();
        for folder in folders {
            match PagePart::read(folder)? {
                Some(mut section) => {
                    section.artifact.files = list_files(folder, reports);
                    if record {
                        section.artifact.files.retain(|(name, _)| !may_be_left_out(name));
                        let known = StoredResults::read(folder).map(|stored| stored.identities).unwrap_or_default();
                        for (cell, note) in &mut section.cells {
                            note.identity = serde_json::json!(known.get(cell));
                        }
                    }
                    parts.sections.push(section);
                    parts.folders.push(folder.clone());
                }
                None if folder.join(Provenance::FILE).is_file() => {
                    let name = folder.strip_prefix(results).unwrap_or(folder).display().to_string();
                    parts.skipped_folders.push((name, explain_skip(folder)));
                }
                None => {}
            }
        }
        Ok(parts)
    }

    /// Builds the page. The claims are judged on all `folders`.
    fn build_page(mut self, folders: &[PathBuf], record: bool) -> Result<Page> {
        self.sections
            .sort_by_key(|section| (section.artifact.profile.clone(), PaperPlace::from_name(&section.artifact.name)));
        let profiles: BTreeSet<String> = self.sections.iter().map(|section| section.artifact.profile.clone()).collect();
        let (mut artifacts, notes): (Vec<_>, Vec<_>) = self.sections.into_iter().map(prefix_cell_keys).unzip();
        add_headlines(&mut artifacts, folders)?;
        // List artifacts, which have no grid, have neither a profile nor claims.
        let judged = profiles.iter().filter(|profile| !profile.is_empty());
        let judged = judged.map(|profile| claims::judge_folders(folders, profile)).collect::<Result<Vec<_>>>()?;
        let (made, program) = match record {
            true => find_latest_run(&self.folders)?,
            false => (format_utc(SystemTime::now()), machine::program_version()),
        };
        let left = "The inputs of each number, by key, are left out here; `run.json` next to each table has them.";
        Ok(Page {
            title: "ghostlab: the tables and figures of \"Ghosted Layers\"".into(),
            made,
            program,
            headline: HEADLINE.into(),
            profile_note: format!(
                "The profile smollm2 has a language model of 135 million parameters. The profile tiny has small models \
                 of 16 layers and a synthetic dataset. Their numbers are not comparable with the paper's: only the \
                 claims are tested, and no number of the paper is. The profile paper has the paper's models. {}",
                if record { left } else { "" }
            )
            .trim_end()
            .to_owned(),
            answer: Vec::new(),
            artifacts,
            claims: judged.iter().flatten().map(claims::claim_row).collect(),
            findings: audit::run(&paper::all()?),
            left_out: self.skipped_folders,
            cells: notes.into_iter().flatten().collect(),
        })
    }
}

/// Returns whether the page of recorded runs shows a directory. It always shows list artifacts, which have no run
/// record.
fn is_on_recorded_page(folder: &Path) -> bool {
    Provenance::is_recorded(folder) || !folder.join(Provenance::FILE).is_file()
}

/// Adds the headline result, including significance and seeds, as the first note on its table.
fn add_headlines(artifacts: &mut [page::PageArtifact], folders: &[PathBuf]) -> Result<()> {
    for artifact in artifacts.iter_mut().filter(|artifact| artifact.name == HEADLINE) {
        let headline = claims::find_headline(folders, &artifact.profile)?;
        if let (Some(table), Some(headline)) = (artifact.tables.first_mut(), headline) {
            table.notes.insert(0, headline);
        }
    }
    Ok(())
}

/// Returns the total size of the files in a directory that a recorded run must contain.
fn compute_recorded_bytes(folder: &Path) -> u64 {
    let listing = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let required = listing.filter(|item| !may_be_left_out(&item.file_name().to_string_lossy()));
    required
        .filter_map(|item| item.metadata().ok())
        .filter(std::fs::Metadata::is_file)
        .map(|metadata| metadata.len())
        .sum()
}

/// Writes the claims about each artifact with a recorded run to the artifact's directory.
fn write_claims(folders: &[PathBuf]) -> Result<()> {
    let mut profiles: BTreeMap<String, Vec<JudgedClaim<'_>>> = BTreeMap::new();
    // Searches have neither numbers nor claims.
    for folder in folders.iter().filter(|folder| Provenance::is_recorded(folder) && has_numbers(folder)) {
        let StoredResults { name, profile, .. } = StoredResults::read(folder)?;
        if let Entry::Vacant(new) = profiles.entry(profile.clone()) {
            new.insert(claims::judge_folders(folders, &profile)?);
        }
        let text = claims::format_claims(&claims::claims_about(&name, &profiles[&profile]));
        ResultsFolder::add(folder, &[(CLAIMS.to_owned(), text.into_bytes())])?;
    }
    Ok(())
}

fn has_numbers(folder: &Path) -> bool {
    folder.join(StoredResults::FILE).is_file()
}

/// Returns the time at which the latest run finished, and the program versions of all runs.
fn find_latest_run(folders: &[PathBuf]) -> Result<(String, String)> {
    let mut latest = String::new();
    let mut programs = BTreeSet::new();
    for folder in folders.iter().filter(|folder| folder.join(Provenance::FILE).is_file()) {
        latest = latest.max(Provenance::finished(folder).unwrap_or_default());
        if has_numbers(folder) {
            programs.insert(StoredResults::read(folder)?.program);
        }
    }
    Ok((latest, programs.into_iter().collect::<Vec<_>>().join(", ")))
}

/// Explains why the page leaves out a directory.
fn explain_skip(folder: &Path) -> String {
    match Provenance::read_description(folder) {
        None => "the record is from an earlier version and does not name the artifact".into(),
        Some(reproduction) if !reproduction.differs.is_empty() => {
            format!("overridden: {}", reproduction.differs.join(", "))
        }
        Some(RunDescription { by: RunCommand::Run, .. }) => "not a paper artifact".into(),
        Some(reproduction) => {
            format!("the folder contains results other than {}", reproduction.name_parts().join(", "))
        }
    }
}

/// Prefixes an artifact's cell keys with its profile and name, because other artifacts may have different cells with
/// the same names.
fn prefix_cell_keys(section: PagePart) -> (page::PageArtifact, BTreeMap<String, CellNote>) {
    let PagePart { mut artifact, cells } = section;
    let parts = [artifact.profile.as_str(), &artifact.name].into_iter().filter(|part| !part.is_empty());
    let prefix = parts.collect::<Vec<_>>().join("/");
    let rows = artifact.tables.iter_mut().flat_map(|table| &mut table.rows);
    for cell in rows.flat_map(|row| &mut row.cells) {
        cell.key = cell.key.as_deref().map(|key| prefix_key(&prefix, key));
    }
    let notes = cells.into_iter().map(|(key, note)| (prefix_key(&prefix, &key), note)).collect();
    (artifact, notes)
}

fn prefix_key(prefix: &str, key: &str) -> String {
    format!("{prefix}/{key}")
}

/// Lists the directories of artifacts and, one level deeper, those of their profiles.
fn list_folders(results: &Path) -> Vec<PathBuf> {
    inner_folders(results).flat_map(|folder| std::iter::once(folder.clone()).chain(inner_folders(&folder))).collect()
}

fn inner_folders(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    directories::folders_in(folder).into_iter().filter(|path| is_visible(path))
}

/// Returns whether a directory is complete. The names of directories that are still being written start with a dot.
fn is_visible(path: &Path) -> bool {
    !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

/// Lists the results directories. Leaves out recorded runs that have a local run next to them.
fn list_results_folders(results: &Path) -> Vec<PathBuf> {
    let mut all = list_folders(results);
    all.retain(|folder| !local_run_folder(folder).join(PagePart::FILE).is_file());
    all
}

/// Returns the names of an artifact's files and the links to them, relative to the page. Skips hidden files.
fn list_files(folder: &Path, reports: &Path) -> Vec<(String, String)> {
    let folder = files::absolute(folder);
    let reports = files::absolute(reports);
    let common = folder.components().zip(reports.components()).take_while(|(a, b)| a == b).count();
    let up = "../".repeat(reports.components().count() - common);
    let down: PathBuf = folder.components().skip(common).collect();
    let items = files::entries(&folder).unwrap_or_default();
    let names = items.iter().filter_map(|item| item.file_name()?.to_str());
    let names = names.filter(|name| name.contains('.') && !name.starts_with('.'));
    names.map(|name| (name.to_owned(), format!("{up}{}/{name}", down.display()))).collect()
}

/// Judges every claim on the paper's numbers and on the artifacts that exist for a profile. Returns an empty list if
/// there are no artifacts.
pub(super) fn judge_claims(results: &Path, profile: &str) -> Result<Vec<JudgedClaim<'static>>> {
    claims::judge_folders(&list_results_folders(results), profile)
}
