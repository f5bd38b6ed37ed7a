//! Named backbones, corpora and tasks, and the files in which grids share them. Each file defines one entry. Grids can
//! also define entries themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::deserialize;
use super::entry_kind::EntryKind;
use super::schema::BackboneEntry;
use super::yaml::{self, FileShape, MapEntry, Value, YamlNode};
use crate::error::{Error, Result};
use crate::files;
use crate::hub::{FilePattern, Lock, Repo, RepoFiles, RepoKind, Source};
use crate::installed;

/// Maximum number of ancestor directories to search.
const MAX_ANCESTORS: usize = 3;

/// Index of the files that define named entries for a grid.
#[derive(Debug)]
pub(super) struct Library {
    /// Directories to search, nearest first.
    folders: Vec<PathBuf>,
    files: BTreeMap<(EntryKind, String), PathBuf>,
}

impl Library {
    /// Lists `backbones/*.yaml`, `corpora/*.yaml` and `tasks/*.yaml` in the grid's directory, in its ancestors, in
    /// `experiments`, and finally in the installed experiments. If a name is found several times, the nearest file is
    /// used.
    pub(super) fn for_grid(grid: &Path) -> Self {
        let nearest = grid.parent().unwrap_or(Path::new("")).to_owned();
        let upwards = std::iter::successors(Some(nearest), |folder| parent_folder(folder)).take(1 + MAX_ANCESTORS);
        let last = [PathBuf::from("experiments")].into_iter().chain(installed::experiments());
        let folders: Vec<PathBuf> = upwards.chain(last).collect();
        let mut files = BTreeMap::new();
        for folder in &folders {
            for kind in EntryKind::ALL {
                // Skip missing or unreadable directories.
                for path in files::entries(&folder.join(kind.key())).unwrap_or_default() {
                    let name = path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
                    let Some(name) = name.filter(|_| path.extension().is_some_and(|ending| ending == "yaml")) else {
                        continue;
                    };
                    files.entry((kind, name)).or_insert(path);
                }
            }
        }
        Self { folders, files }
    }

    /// Returns the path of `profiles/NAME.yaml` in the grid's own directory, if the file exists. Other directories are
    /// not searched, because a profile found there would change grids that do not refer to it.
    pub(super) fn profile(&self, name: &str) -> Option<PathBuf> {
        let file = self.folders.first()?.join("profiles").join(format!("{name}.yaml"));
        file.is_file().then_some(file)
    }

    /// Iterates over the names that files define for a kind of entry.
    pub(super) fn names(&self, kind: EntryKind) -> impl Iterator<Item = &str> {
        self.files.keys().filter(move |(known, _)| *known == kind).map(|(_, name)| name.as_str())
    }

    /// Returns the directories that are searched for entries of a kind, one per line.
    pub(super) fn searched_folders(&self, kind: EntryKind) -> String {
        let lines = self.folders.iter().map(|folder| folder.join(kind.key()).display().to_string());
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Returns the nearest existing lock file, or the default path in the grid's directory.
    pub(super) fn lock_file(&self) -> PathBuf {
        let files: Vec<PathBuf> = self.folders.iter().map(|folder| folder.join(Lock::FILE)).collect();
        let found = files.iter().find(|file| file.is_file()).or(files.first());
        found.cloned().unwrap_or_else(|| Lock::FILE.into())
    }

    /// Adds to `root` the entries that `preview` refers to and that files define. `preview` is the tree with the
    /// profile and the overrides. A nonempty entry in `root` that lacks `path` and `hub` is merged over the one in the
    /// file. The file of any other entry in `root` is not read. Returns the paths of the files that were read.
    pub(super) fn load(&self, root: &mut YamlNode, preview: &YamlNode) -> Result<Vec<PathBuf>> {
        let mut read = Vec::new();
        for kind in EntryKind::ALL {
            for name in kind.used_names(preview) {
                let Some(path) = self.files.get(&(kind, name.clone())) else { continue };
                let inline = root.get(kind.key()).and_then(|entries| entries.get(&name)).cloned();
                if inline.as_ref().is_some_and(|inline| {
                    inline.get("path").is_some() || inline.get("hub").is_some() || inline.entries().is_empty()
                }) {
                    continue;
                }
                let mut node = read_entry(kind, &name, path)?;
                read.push(path.clone());
                if let Some(inline) = inline {
                    node.merge(inline);
                }
                insert_entry(root, kind, name, node);
            }
        }
        Ok(read)
    }
}

fn read_entry(kind: EntryKind, name: &str, path: &Path) -> Result<YamlNode> {
    let expected = match kind {
        EntryKind::Backbone => "`path: …` or `hub: …`",
        EntryKind::Corpus => "`path: …` or `hub: …`, and `rule: …`",
        EntryKind::Task => "`path: …` or `hub: …`, and `task: …` if the file is not named after the task",
    };
    let subject = format!("the {} `{name}`", kind.label());
    let hint = format!("use the same keys as for an entry of `{}` in a grid", kind.key());
    yaml::read(path, &FileShape { subject: &subject, expected, hint: &hint })
}

/// Backbone defined in its own file.
#[derive(Debug)]
pub struct BackboneFile {
    pub name: String,
    pub path: Option<PathBuf>,
    /// Origin of the backbone, shown in reports and errors.
    pub source: Option<String>,
    /// Repository and files on the hub.
    pub want: Option<RepoFiles>,
    /// Python package whose wheel contains the file from the hub, as `name==version`.
    pub package: Option<String>,
    /// Profile that defines the texts and tasks for scoring.
    pub profile: Option<String>,
}

/// Returns the backbones defined in the files `backbones/*.yaml` of a directory, ordered by name.
///
/// # Errors
/// Fails if a file does not define a backbone. The error gives the file and the line.
pub fn backbone_files(folder: &Path) -> Result<Vec<BackboneFile>> {
    let folder = folder.join(EntryKind::Backbone.key());
    let mut files = files::entries(&folder).unwrap_or_default();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    files.iter().map(|path| read_backbone_file(&folder, path)).collect()
}

fn read_backbone_file(folder: &Path, path: &Path) -> Result<BackboneFile> {
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let node = read_entry(EntryKind::Backbone, &name, path)?;
    let entry: BackboneEntry = deserialize::from_root(&node)?;
    let hub = entry.hub.as_deref().map(|hub| -> Result<RepoFiles> {
        let repo = Repo::new(RepoKind::Model, hub)?;
        let source = Source::new(repo, entry.revision.as_deref())?;
        Ok(match &entry.files[..] {
            [] => RepoFiles::backbone(source),
            files => RepoFiles { source, files: files.iter().map(FilePattern::required).collect() },
        })
    });
    let want = hub.transpose().map_err(|error| error.at(path.display().to_string()))?;
    Ok(BackboneFile {
        name,
        path: entry.path.map(|path| folder.join(path)),
        source: entry.source,
        want,
        package: entry.package,
        profile: entry.profile,
    })
}

/// Returns the names of all entries of a kind that a grid at `grid` can refer to.
pub fn available_names(grid: &Path, kind: EntryKind) -> Vec<String> {
    Library::for_grid(grid).names(kind).map(str::to_owned).collect()
}

fn insert_entry(root: &mut YamlNode, kind: EntryKind, name: String, node: YamlNode) {
    let entry = MapEntry { key: name, key_position: node.position.clone(), node };
    let Value::Map(keys) = &mut root.value else { return };
    match keys.iter_mut().find(|known| known.key == kind.key()).map(|known| &mut known.node.value) {
        Some(Value::Map(entries)) => match entries.iter_mut().find(|known| known.key == entry.key) {
            Some(known) => *known = entry,
            None => entries.push(entry),
        },
        // Malformed entries such as `corpora: 3` are rejected later by `deserialize`.
        Some(_) => {}
        None => {
            let key = kind.key().to_owned();
            let position = root.position.clone();
            keys.push(MapEntry {
                key,
                key_position: position.clone(),
                node: YamlNode { position, value: Value::Map(vec![entry]) },
            });
        }
    }
}

/// Returns the parent directory without resolving the path, because messages show paths as the user gave them.
fn parent_folder(folder: &Path) -> Option<PathBuf> {
    match folder.components().next_back() {
        Some(Component::Normal(_)) => folder.parent().map(Path::to_owned),
        Some(Component::RootDir | Component::Prefix(_)) => None,
        Some(Component::CurDir) | None => Some(PathBuf::from("..")),
        Some(Component::ParentDir) => Some(folder.join("..")),
    }
}

/// Creates the error for a name that is defined neither in the grid nor in a file.
pub(super) fn unknown_name_error<'a>(
    library: &'a Library,
    kind: EntryKind,
    name: &str,
    inline_names: impl Iterator<Item = &'a str>,
    position: String,
) -> Error {
    let known: BTreeSet<&str> = inline_names.chain(library.names(kind)).collect();
    let error = Error::bad_input(format!("unknown {} `{name}`", kind.label())).at(position).found(format!("`{name}`"));
    let error = if known.is_empty() {
        error.expected(format!("a {} that the grid or a file defines", kind.label()))
    } else {
        error.expected(format!("one of {}", known.iter().copied().collect::<Vec<_>>().join(", ")))
    };
    let near = crate::error::nearest(name, known).map(|near| format!("did you mean `{near}`?\n")).unwrap_or_default();
    let key = kind.key();
    let searched_folders = library.searched_folders(kind);
    error.hint(format!("{near}add it to the grid's `{key}`, or add `{name}.yaml` to one of\n{searched_folders}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_folders_of_relative_and_absolute_paths_are_found() {
        assert_eq!(parent_folders("a/b"), ["a/b", "a", "", ".."]);
        assert_eq!(parent_folders("."), [".", "..", "../..", "../../.."]);
        assert_eq!(parent_folders("../x"), ["../x", "..", "../..", "../../.."]);
        assert_eq!(parent_folders("/a/b"), ["/a/b", "/a", "/"]);
    }

    fn parent_folders(from: &str) -> Vec<String> {
        let steps = std::iter::successors(Some(PathBuf::from(from)), |folder| parent_folder(folder)).take(4);
        steps.map(|folder| folder.display().to_string()).collect::<Vec<_>>()
    }
}
