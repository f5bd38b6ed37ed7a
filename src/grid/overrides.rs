//! `--set key=value`: grid overrides from the command line.
//!
//! A key is a dotted path with list indices in brackets (`calibration[0].length`). If a list inside the path has no
//! index, the rest of the path applies to each of its items. The value is YAML. Values separated by commas form a list
//! (`depth=7,9,11`), which needs no quoting in shells. A string that contains a comma must be quoted. File paths are
//! relative to the current directory.

use super::yaml::{MapEntry, Value, YamlNode, YamlPosition, parse};
use crate::error::{Error, Result, nearest};

/// Applies `overrides` in order, so later ones take precedence.
pub(super) fn apply(root: &mut YamlNode, overrides: &[String]) -> Result<()> {
    for text in overrides {
        let (key, node) = parse_override(text)?;
        check_not_profile(key)
            .and_then(|()| assign(root, key, "", &node))
            .map_err(|error| error.at(format!("--set {text}")))?;
    }
    Ok(())
}

/// Applies the valid overrides to find out which names the grid uses. Errors are reported later, by [`apply`].
pub(super) fn try_apply(root: &mut YamlNode, overrides: &[String]) {
    for text in overrides {
        if let Ok((key, node)) = parse_override(text) {
            // An override of an entry fails if the entry's file has not been read yet.
            let _ = assign(root, key, "", &node);
        }
    }
}

/// Rejects overrides of profiles. They would have no effect, because profiles are merged before overrides are applied.
fn check_not_profile(key: &str) -> Result<()> {
    let hint = match key.split(['.', '[']).next() {
        Some("profile") => "choose a profile with `--profile NAME`",
        Some("profiles") => "set the grid key instead: overrides are applied after the profile",
        _ => return Ok(()),
    };
    Err(Error::bad_input("an override cannot change the profiles").found(format!("`{key}`")).hint(hint))
}

fn parse_override(text: &str) -> Result<(&str, YamlNode)> {
    let shown = format!("--set {text}");
    let (key, value) = match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => (key.trim(), value.trim()),
        _ => {
            return Err(Error::bad_input("invalid override")
                .at(shown)
                .expected("`KEY=VALUE`")
                .found(format!("`{text}`"))
                .hint("pass an override such as `--set depth=7,9,11`"));
        }
    };
    // An empty value means YAML null. The schema decides whether null is valid.
    let value = if value.is_empty() { "null" } else { value };
    let is_bare = !value.starts_with(['"', '\'', '[', '{']);
    let node =
        if is_bare && value.contains(',') { parse(&format!("[{value}]"), &shown) } else { parse(value, &shown) }?;
    Ok((key, node.with_positions(&YamlPosition::Set(shown.into()))))
}

/// Assigns `new` to the value at the path `rest` below `node`. `path` is the path to `node`, for messages.
fn assign(node: &mut YamlNode, rest: &str, path: &str, new: &YamlNode) -> Result<()> {
    if rest.is_empty() {
        *node = new.clone();
        return Ok(());
    }
    let target = if path.is_empty() { "the grid".to_owned() } else { format!("`{path}`") };
    let found = node.describe();
    if let Some(inner) = rest.strip_prefix('[') {
        let (index, rest) = inner.split_once(']').ok_or_else(|| {
            Error::bad_input("missing `]` after a list index").expected("a closing `]`").found(format!("`{rest}`"))
        })?;
        let Value::List(items) = &mut node.value else {
            return Err(Error::bad_input(format!("{target} is not a list"))
                .expected("a list")
                .found(found)
                .hint(format!("remove `[{index}]`")));
        };
        let length = items.len();
        return match index.parse::<usize>().ok().and_then(|index| items.get_mut(index)) {
            Some(item) => assign(item, rest, &format!("{path}[{index}]"), new),
            None => Err(Error::bad_input(format!("no element `{index}` in {target}"))
                .expected(format!("an index below {length}; the first index is 0"))
                .found(format!("`{index}`"))),
        };
    }
    let rest = rest.strip_prefix('.').unwrap_or(rest);
    match &mut node.value {
        Value::List(items) => {
            if items.is_empty() {
                return Err(Error::bad_input(format!("cannot set `{rest}`: {target} is empty")).found(found));
            }
            items.iter_mut().enumerate().try_for_each(|(i, item)| assign(item, rest, &format!("{path}[{i}]"), new))
        }
        Value::Map(entries) => assign_key(entries, rest, path, new),
        _ => Err(Error::bad_input(format!("{target} is not a map"))
            .expected("a map")
            .found(found)
            .hint(format!("set the complete value: --set \"{path}={{name: NAME, {rest}: VALUE}}\""))),
    }
}

fn assign_key(entries: &mut Vec<MapEntry>, rest: &str, path: &str, new: &YamlNode) -> Result<()> {
    // Names may contain dots, as in `wikitext-2.v1`. Prefer the longest matching key.
    let known = entries
        .iter_mut()
        .filter(|e| rest.strip_prefix(e.key.as_str()).is_some_and(|r| r.is_empty() || r.starts_with(['.', '['])))
        .max_by_key(|e| e.key.len());
    if let Some(entry) = known {
        let path = join_key(path, &entry.key);
        if rest.len() == entry.key.len() {
            // Make later errors about this key point to the `--set` argument.
            entry.key_position = new.position.clone();
        }
        return assign(&mut entry.node, &rest[entry.key.len()..], &path, new);
    }
    let end = rest.find(['.', '[']).unwrap_or(rest.len());
    let key = &rest[..end];
    if end == rest.len() && !key.is_empty() {
        // Add the key, because the file may omit keys with defaults. Deserialization rejects unknown keys.
        entries.push(MapEntry { key: key.to_owned(), key_position: new.position.clone(), node: new.clone() });
        return Ok(());
    }
    let keys: Vec<&str> = entries.iter().map(|e| e.key.as_str()).collect();
    let unknown = Error::bad_input(format!("unknown key `{}` in the grid", join_key(path, key)))
        .expected(format!("one of {}", keys.join(", ")))
        .found(format!("`{key}`"));
    Err(match nearest(key, keys) {
        Some(near) => unknown.hint(format!("did you mean `{}`?", join_key(path, near))),
        None => unknown.hint("add it to the grid first"),
    })
}

fn join_key(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::yaml::PathStep;

    fn grid_with(overrides: &[&str]) -> Result<YamlNode> {
        let mut root = parse("depth: 3\nlist: [{a: 1, b: 2}, {a: 3}]\nnames: {x.y: {z: 1}, x: {y: 2}}\n", "g.yaml")?;
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        apply(&mut root, &overrides)?;
        Ok(root)
    }

    fn value_at(root: &YamlNode, steps: &[PathStep<'_>]) -> String {
        root.deepest(steps).describe()
    }

    #[test]
    fn override_with_commas_is_a_list_unless_quoted() {
        let root = grid_with(&["depth=7, 9,11"]).unwrap();
        assert_eq!(value_at(&root, &[PathStep::Key("depth"), PathStep::Item(2)]), "the number 11");
        let root = grid_with(&["depth='7,9'"]).unwrap();
        assert_eq!(value_at(&root, &[PathStep::Key("depth")]), "the string `7,9`");
    }

    #[test]
    fn override_without_index_applies_to_each_element() {
        let root = grid_with(&["list.b=5"]).unwrap();
        for i in [0, 1] {
            assert_eq!(
                value_at(&root, &[PathStep::Key("list"), PathStep::Item(i), PathStep::Key("b")]),
                "the number 5"
            );
        }
        let root = grid_with(&["list[1].a=5"]).unwrap();
        assert_eq!(value_at(&root, &[PathStep::Key("list"), PathStep::Item(0), PathStep::Key("a")]), "the number 1");
        assert_eq!(value_at(&root, &[PathStep::Key("list"), PathStep::Item(1), PathStep::Key("a")]), "the number 5");
    }

    #[test]
    fn longest_dotted_key_wins_and_later_override_applies() {
        let root = grid_with(&["names.x.y.z=5", "names.x.y.z=6"]).unwrap();
        assert_eq!(
            value_at(&root, &[PathStep::Key("names"), PathStep::Key("x.y"), PathStep::Key("z")]),
            "the number 6"
        );
        assert_eq!(value_at(&root, &[PathStep::Key("names"), PathStep::Key("x"), PathStep::Key("y")]), "the number 2");
    }

    #[test]
    fn overridden_value_has_the_location_of_the_option() {
        let root = grid_with(&["depth=[7, 9]"]).unwrap();
        let position = &root.deepest(&[PathStep::Key("depth"), PathStep::Item(1)]).position;
        assert_eq!(*position, YamlPosition::Set("--set depth=[7, 9]".into()));
    }

    #[test]
    fn invalid_override_is_rejected_with_a_hint() {
        for (text, what, rest) in [
            ("depth", "invalid override", "`KEY=VALUE`"),
            ("=3", "invalid override", "`KEY=VALUE`"),
            ("nmaes.x.y=1", "unknown key `nmaes` in the grid", "did you mean `names`?"),
            ("list[2].a=1", "no element `2` in `list`", "below 2"),
            ("list[x]=1", "no element `x` in `list`", "below 2"),
            ("list[1=1", "missing `]` after a list index", "`]`"),
            ("depth[0]=1", "`depth` is not a list", "remove `[0]`"),
            ("depth.a=1", "`depth` is not a map", "the number 3"),
            ("depth=[1", "invalid YAML", "--set depth=[1"),
            ("profile=tiny", "cannot change the profiles", "`--profile NAME`"),
            ("profiles.tiny.depth=3", "cannot change the profiles", "overrides are applied after the profile"),
        ] {
            let error = grid_with(&[text]).unwrap_err();
            let shown = error.to_string();
            assert!(shown.contains(what) && shown.contains(rest), "{text}: {shown}");
            assert!(shown.contains(&format!("--set {text}")), "{text}: {shown}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
