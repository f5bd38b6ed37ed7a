//! Profiles: named changes that are merged into a grid before it is deserialized.

use std::path::Path;

use super::deserialize::unknown_key_error;
use super::library::Library;
use super::validate::is_folder_name;
use super::yaml::{self, FileShape, Value, YamlNode};
use crate::error::{Error, Result};

/// Top-level keys that a profile cannot set.
pub(super) const GRID_ONLY_KEYS: [&str; 4] = ["name", "artifact", "profile", "profiles"];
const PROFILE_KEYS: [&str; 13] = [
    "backbones",
    "corpora",
    "tasks",
    "backbone",
    "weights",
    "criterion",
    "depth",
    "recovery",
    "calibration",
    "exclude",
    "include",
    "evaluate",
    "search",
];

/// Profile that is merged into the grid.
#[derive(Debug)]
pub(super) struct ChosenProfile {
    pub(super) name: String,
    pub(super) changes: YamlNode,
}

/// Removes `profile` and `profiles` from the tree and returns the selected profile. `chosen` is the name given on the
/// command line, which takes precedence over the key `profile`. If a shared file `profiles/NAME.yaml` exists, the
/// grid's own profile is merged over it.
pub(super) fn take_profile(
    root: &mut YamlNode,
    chosen: Option<&str>,
    library: &Library,
) -> Result<Option<ChosenProfile>> {
    let Some(mut profile) = take_own_profile(root, chosen)? else { return Ok(None) };
    if let Some(file) = library.profile(&profile.name) {
        let mut shared = read_shared_profile(&file, &profile.name)?;
        shared.merge(profile.changes);
        profile.changes = shared;
    }
    if let Some(search) = root.get("search") {
        move_evaluate_to_search(&mut profile.changes, search);
    }
    Ok(Some(profile))
}

/// Adapts the `evaluate` section of a profile to a grid that has `search` instead of `evaluate`. `tasks` and
/// `perplexity` move into the profile's `search` section if the grid's `search` has them. Other evaluations are
/// dropped. Settings that are already in the profile's `search` section take precedence.
fn move_evaluate_to_search(changes: &mut YamlNode, search: &YamlNode) {
    let Value::Map(keys) = &mut changes.value else { return };
    let Some(at) = keys.iter().position(|entry| entry.key == "evaluate") else { return };
    let mut evaluate = keys.remove(at);
    if let Value::Map(lists) = &mut evaluate.node.value {
        lists.retain(|list| ["tasks", "perplexity"].contains(&list.key.as_str()) && search.get(&list.key).is_some());
    }
    match keys.iter_mut().find(|entry| entry.key == "search") {
        Some(section) => {
            evaluate.node.merge(section.node.clone());
            section.node = evaluate.node;
        }
        None => {
            evaluate.key = "search".to_owned();
            keys.push(evaluate);
        }
    }
}

fn read_shared_profile(file: &Path, name: &str) -> Result<YamlNode> {
    let subject = format!("the profile `{name}`");
    let hint = "use the same keys as for an entry of `profiles` in a grid";
    let changes = yaml::read(file, &FileShape { subject: &subject, expected: "keys of a grid", hint })?;
    check_keys(&changes, &subject)?;
    Ok(changes)
}

fn take_own_profile(root: &mut YamlNode, chosen: Option<&str>) -> Result<Option<ChosenProfile>> {
    let [default, profiles] = ["profile", "profiles"].map(|key| root.take(key));
    if let Some(profiles) = &profiles {
        check_profiles(profiles)?;
    }
    let (name, position) = match (chosen, &default) {
        (Some(name), _) => (name, format!("--profile {name}")),
        (None, Some(node)) => match node.text() {
            Some(name) => (name, node.position.to_string()),
            None => {
                return Err(Error::bad_input("`profile` has the wrong type")
                    .at(node.position.to_string())
                    .expected("the name of a profile")
                    .found(node.describe()));
            }
        },
        (None, None) => {
            return match profiles {
                Some(profiles) => Err(Error::bad_input("no profile selected")
                    .at(profiles.position.to_string())
                    .expected(format!("one of {}", names(&profiles).join(", ")))
                    .found("neither `--profile` nor a key `profile`")
                    .hint(format!(
                        "pass `--profile {}`, or set a default with `profile:` in the grid",
                        names(&profiles).first().unwrap_or(&"")
                    ))),
                None => Ok(None),
            };
        }
    };
    let Some(profiles) = profiles else {
        return Err(unknown_profile_error(name, &position, "the grid has no profiles".to_owned())
            .expected("the key `profiles`")
            .hint("omit the profile, or add `profiles: {NAME: {…}}` to the grid"));
    };
    match profiles.get(name) {
        Some(changes) => Ok(Some(ChosenProfile { name: name.to_owned(), changes: changes.clone() })),
        None => {
            let error = unknown_profile_error(name, &position, format!("unknown profile `{name}`"));
            Err(error.hint(format!("see the profiles at {}", profiles.position)).none_of(name, names(&profiles)))
        }
    }
}

fn unknown_profile_error(name: &str, position: &str, message: String) -> Error {
    Error::bad_input(message).at(position).found(format!("`{name}`"))
}

pub(super) fn profile_names(root: &YamlNode) -> Vec<String> {
    root.get("profiles").map(names).unwrap_or_default().into_iter().map(str::to_owned).collect()
}

fn names(profiles: &YamlNode) -> Vec<&str> {
    profiles.entries().iter().map(|entry| entry.key.as_str()).collect()
}

/// Checks all profiles, even unused ones, to catch typos early.
fn check_profiles(profiles: &YamlNode) -> Result<()> {
    if profiles.entries().is_empty() {
        let what = if matches!(profiles.value, Value::Map(_)) { "is empty" } else { "has the wrong type" };
        return Err(Error::bad_input(format!("`profiles` {what}"))
            .at(profiles.position.to_string())
            .expected("a map from names to changes, such as `tiny: {depth: 3}`")
            .found(profiles.describe())
            .hint("remove the key if there are no profiles"));
    }
    for profile in profiles.entries() {
        let subject = format!("`profiles.{}`", profile.key);
        if !matches!(profile.node.value, Value::Map(_)) {
            return Err(Error::bad_input(format!("{subject} has the wrong type"))
                .at(profile.node.position.to_string())
                .expected("a map with keys of the grid")
                .found(profile.node.describe())
                .hint("write `{}` for a profile that changes nothing"));
        }
        if !is_folder_name(&profile.key) {
            return Err(Error::bad_input("invalid profile name")
                .at(profile.key_position.to_string())
                .expected("a folder name without `/`, `\\` or `:`, not starting with a dot")
                .found(format!("`{}`", profile.key))
                .hint("rename the profile: its results are written to a folder of this name"));
        }
        check_keys(&profile.node, &subject)?;
    }
    Ok(())
}

fn check_keys(changes: &YamlNode, subject: &str) -> Result<()> {
    for change in changes.entries() {
        let key = change.key.as_str();
        if GRID_ONLY_KEYS.contains(&key) {
            return Err(Error::bad_input(format!("{subject} cannot set `{key}`"))
                .at(change.key_position.to_string())
                .expected(format!("one of {}", PROFILE_KEYS.join(", ")))
                .found(format!("`{key}`"))
                .hint("move the key to the top level: it applies to the whole grid"));
        }
        if !PROFILE_KEYS.contains(&key) {
            return Err(unknown_key_error(key, subject, &PROFILE_KEYS).at(change.key_position.to_string()));
        }
    }
    Ok(())
}
