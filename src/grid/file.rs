//! Parsed grid file, from which grids with different profiles and overrides are built.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::artifact::ARTIFACT_KEY;
use super::check::CheckedGrid;
use super::library::Library;
use super::yaml::YamlNode;
use super::{
    AxisChoice, Description, Grid, InputList, InputResolver, Search, check, definitions, deserialize, overrides,
    profile, validate, yaml,
};
use crate::error::{Error, Result};

/// Parsed grid file.
#[derive(Debug, Clone)]
pub struct GridFile {
    path: PathBuf,
    root: YamlNode,
}

/// Expected contents of a grid file.
const GRID_SHAPE: yaml::FileShape<'_> = yaml::FileShape {
    subject: "the grid",
    expected: "a map with the axes and inputs of a grid",
    hint: "see the complete example at the top of docs/grid.md",
};

impl GridFile {
    /// Parses the file at `path`.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is not a YAML map.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), root: yaml::read(path, &GRID_SHAPE)? })
    }

    /// Parses a string. Names and paths are resolved as if the string were in a file at `path`.
    ///
    /// # Errors
    /// Fails if the string is not a YAML map.
    pub fn from_text(text: &str, path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), root: yaml::parse_map(text, path, &GRID_SHAPE)? })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the artifact description, or `None` if the file has no key `artifact`.
    ///
    /// # Errors
    /// Fails if the description is invalid. The error gives the file, line and column, and the expected and found
    /// values.
    pub fn description(&self) -> Result<Option<Description>> {
        Description::from_root(&self.root)
    }

    pub fn profiles(&self) -> Vec<String> {
        profile::profile_names(&self.root)
    }

    /// Builds the grid like [`Grid::load`].
    ///
    /// # Errors
    /// Fails in the same cases as [`Grid::load`].
    pub fn grid(&self, profile: Option<&str>, overrides: &[String]) -> Result<Grid> {
        self.grid_with(profile, overrides, &AxisChoice::ALL)
    }

    /// Builds the grid with only the evaluations that `choice` includes. The data of the other evaluations need not
    /// exist.
    ///
    /// # Errors
    /// Fails in the same cases as [`Grid::load`].
    pub fn grid_with(&self, profile: Option<&str>, overrides: &[String], choice: &AxisChoice<'_>) -> Result<Grid> {
        let (mut checked, MergedGrid { library, entries, profile, .. }) = self.check(profile, overrides)?;
        let path = &self.path;
        let resolver = InputResolver::new(library.lock_file(), path, profile.as_deref(), overrides);
        let needs = checked.needs(choice);
        let with_other_missing = |error: Error| definitions::add_other_missing(error, &needs, &resolver);
        let definitions::Definitions { backbones, mut corpora, mut tasks } = checked.definitions;
        let mut backbones = definitions::find_backbones(backbones, &resolver).map_err(with_other_missing)?;
        let cells = checked.axes.into_cells(checked.search.as_mut(), &mut backbones)?;

        // Drop unused inputs, whose files may be missing.
        let mut evaluate = checked.evaluate;
        let mut resolved_definitions = checked.resolved_definitions;
        resolved_definitions.tasks.retain(|name, _| (choice.task)(name));
        evaluate
            .groups
            .retain(|group| group.group.tasks.iter().all(|task| resolved_definitions.tasks.contains_key(task)));
        evaluate.perplexity.retain(|text| (choice.text)(&text.corpus));
        evaluate.tasks.retain(|task| (choice.task)(&task.name));
        evaluate.latency.retain(|_| choice.latency);
        let backbone = validate::distinct(cells.iter().map(|cell| &cell.backbone));
        let calibration = validate::distinct(cells.iter().filter_map(|cell| cell.calibration.as_ref()));
        let texts = evaluate.perplexity.iter().map(|text| &text.corpus);
        let texts: BTreeSet<&String> = calibration.iter().map(|entry| &entry.corpus).chain(texts).collect();
        backbones.retain(|name, _| backbone.contains(name));
        corpora.retain(|name, _| texts.contains(name));
        tasks.retain(|name, _| evaluate.builtin().any(|task| task.name == *name));
        Ok(Grid {
            name: checked.name,
            file: path.clone(),
            entries,
            profile: profile.clone(),
            lock_file: resolver.lock_file().to_owned(),
            backbones,
            corpora: definitions::find_corpora(corpora, &resolver).map_err(with_other_missing)?,
            tasks: definitions::find_tasks(tasks, &resolver).map_err(with_other_missing)?,
            definitions: resolved_definitions.locate_rows(&resolver).map_err(with_other_missing)?,
            backbone,
            criterion: validate::distinct(cells.iter().filter_map(|cell| cell.criterion.as_ref())),
            depth: validate::distinct(cells.iter().filter(|cell| !cell.is_dense()).map(|cell| &cell.depth)),
            recovery: validate::distinct(cells.iter().filter_map(|cell| cell.recovery.as_ref())),
            calibration,
            evaluate,
            search: checked.search,
            cells,
        })
    }

    /// Returns the search settings, if any. The inputs need not exist.
    ///
    /// # Errors
    /// Fails in the same cases as [`Grid::load`], except for errors that only the input files reveal.
    pub fn search(&self) -> Result<Option<Search>> {
        Ok(self.check(None, &[])?.0.search)
    }

    /// Returns the inputs that the grid refers to: all backbones, and the corpora and tasks that `choice` includes. The
    /// inputs need not exist, and the grid is not expanded into cells.
    ///
    /// # Errors
    /// Fails in the same cases as [`Grid::load`], except for errors that only the input files reveal.
    pub fn needs(&self, profile: Option<&str>, overrides: &[String], choice: &AxisChoice<'_>) -> Result<InputList> {
        let (checked, MergedGrid { library, profile, .. }) = self.check(profile, overrides)?;
        let scored = checked.evaluate.perplexity.iter().any(|entry| (choice.text)(&entry.corpus))
            || checked.evaluate.tasks.iter().any(|task| (choice.task)(&task.name));
        let needs = checked.needs(choice);
        Ok(InputList {
            needs,
            lock_file: library.lock_file(),
            grid: self.path.clone(),
            profile,
            overrides: overrides.to_vec(),
            scored,
        })
    }

    /// Merges the layers of the grid, and validates the result. The inputs need not exist.
    fn check(&self, profile: Option<&str>, overrides: &[String]) -> Result<(CheckedGrid, MergedGrid)> {
        let merged = self.merge_layers(profile, overrides)?;
        let schema = deserialize::from_root(&merged.root)?;
        Ok((check::check(&schema, &merged.root, &self.path, &merged.library)?, merged))
    }

    fn merge_layers(&self, profile: Option<&str>, overrides: &[String]) -> Result<MergedGrid> {
        let mut root = self.root.clone();
        // A grid does not depend on how its results are presented.
        root.take(ARTIFACT_KEY);
        let library = Library::for_grid(&self.path);
        let profile = profile::take_profile(&mut root, profile, &library)?;

        // Apply the profile and the overrides to a preview to find the files that the grid needs. Apply them again
        // after these files have been read.
        let mut preview = root.clone();
        if let Some(profile) = &profile {
            preview.merge(profile.changes.clone());
        }
        overrides::try_apply(&mut preview, overrides);
        let entries = library.load(&mut root, &preview)?;

        let profile = profile.map(|profile| {
            root.merge(profile.changes);
            profile.name
        });
        overrides::apply(&mut root, overrides)?;
        Ok(MergedGrid { root, library, entries, profile })
    }
}

/// Tree of a grid after named entries, a profile and overrides have been merged into it, with the files and the profile
/// that were used.
struct MergedGrid {
    root: YamlNode,
    library: Library,
    entries: Vec<PathBuf>,
    profile: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_file_is_read_once_for_profiles_and_overrides() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("grid.yaml");
        let text = "artifact: {title: a, list: methods}\nprofile: small\nprofiles: {small: {depth: 1}, large: {depth: 2}}\n\
                    backbones: {b: {path: nowhere}}\nbackbone: b\ncriterion: sleb\nrecovery: none\n\
                    corpora: {c: {path: nowhere, rule: c4}}\ncalibration: {corpus: c, sequences: 1, length: 8}\n\
                    evaluate: {perplexity: {corpus: c, length: 8}}\n";
        std::fs::write(&path, text).unwrap();
        let file = GridFile::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.profiles(), ["small", "large"]);
        assert_eq!(file.description().unwrap().unwrap().title, "a");
        for (profile, overrides) in [(None, Vec::new()), (Some("large"), vec!["depth=3".to_owned()])] {
            let list = file.needs(profile, &overrides, &AxisChoice::ALL).unwrap();
            assert_eq!(list.profile.as_deref(), profile.or(Some("small")));
            assert_eq!(list.needs.len(), 2);
        }
    }
}
