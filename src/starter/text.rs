//! The grid as a file, with a comment beside what can be chosen.

use std::path::{Component, Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, context};

use super::find::{Corpus, Model};
use super::{RULE, Starter};
use crate::error::{Error, Result};
use crate::options::Described;
use crate::{criterion, grid, recovery};

const TEMPLATE: &str = include_str!("grid.yaml.j2");

/// Tasks that are scored; the others are defined only.
const SCORED: [&str; 2] = ["arc_easy", "hellaswag"];

impl Starter {
    /// The text of a grid of these models, for a file at `target`.
    ///
    /// # Errors
    /// A template that does not fit, which is a fault of the program.
    pub(super) fn text(&self, models: &[Model], target: &Path) -> Result<String> {
        let path = |path: &Path| quoted(&relative(path, target));
        let model = |of: &Model| {
            let depths: Vec<String> = of.depths.iter().map(ToString::to_string).collect();
            context! {
                name => quoted(&of.name), plain => &of.name, path => path(&of.path),
                architecture => of.architecture, layers => of.layers, depths => depths.join(" and "),
            }
        };
        let corpus = |of: &Corpus| {
            context! {
                name => quoted(&of.name), path => path(&of.path),
                generated => of.generated, calibrates => of.calibrates, scored => of.scored,
            }
        };
        let task = |(name, file): &(String, PathBuf)| context! { name, path => path(file) };
        let left_out = |(folder, error): &(PathBuf, Error)| format!("{}: {}", plain(folder), error.one_line());
        let scored = self.tasks.iter().map(|(name, _)| name.clone()).filter(|name| SCORED.contains(&name.as_str()));
        let rotates = models.iter().all(|model| model.rotates);
        let values = context! {
            folder => plain(&self.folder),
            file => target.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            models => models.iter().map(model).collect::<Vec<_>>(),
            left_out => self.left_out.iter().map(left_out).collect::<Vec<_>>(),
            rules => grid::rules().join(", "),
            rule => RULE.to_string(),
            generated => self.corpora.iter().any(|of| of.generated),
            corpora => self.corpora.iter().map(corpus).collect::<Vec<_>>(),
            tasks => self.tasks.iter().map(task).collect::<Vec<_>>(),
            criteria => described(&criterion::described()),
            recoveries => described(&recovery::described()),
            patch => if rotates { "linearpatch-rotate" } else { "linearpatch-diag" },
            length => self.length,
            sequences => self.sequences,
            known => grid::tasks().join(", "),
            scored => scored.collect::<Vec<_>>(),
        };
        let failed = |error: minijinja::Error| Error::job("a grid cannot be written").found(format!("{error:#}"));
        let mut templates = Environment::new();
        templates.set_syntax(SyntaxConfig::builder().trim_blocks(true).build().map_err(failed)?);
        let text =
            templates.template_from_str(TEMPLATE).and_then(|template| template.render(values)).map_err(failed)?;
        Ok(text)
    }
}

/// A comment line for each method, with what it is called in tables and its options.
fn described(methods: &[Described]) -> Vec<String> {
    let line = |Described { name, label, options, .. }: &Described| {
        let keys = options["properties"].as_object().into_iter().flat_map(|keys| keys.keys());
        let keys: Vec<&str> = keys.map(String::as_str).filter(|key| *key != "finetune").collect();
        let label = if *label == name { String::new() } else { format!(": {label}") };
        match keys.as_slice() {
            [] => format!("{name}{label}"),
            [one] => format!("{name}{label}; option {one}"),
            several => format!("{name}{label}; options {}", several.join(", ")),
        }
    };
    methods.iter().map(line).collect()
}

/// A path for a comment: on one line.
fn plain(path: &Path) -> String {
    crate::error::printable(&path.display().to_string()).replace('\n', " ")
}

/// A text as YAML has it: as it is where nothing in it means something else.
fn quoted(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '.' || c == '/')
        && text.chars().any(|c| c.is_ascii_alphabetic())
        && !text.starts_with("...")
        && !reserved.contains(&text.to_ascii_lowercase().as_str());
    // Like `.5e3` or `.inf`.
    let is_number = text.starts_with('.') && !text.contains('/');
    if is_word && !is_number && text.chars().all(safe) {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

/// A path from the folder of the grid's file, or whole where there is no way without leaving the disk's root.
fn relative(path: &Path, target: &Path) -> String {
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let clean = |path: PathBuf| path.canonicalize().unwrap_or(path);
    let path = clean(whole(path));
    let folder = whole(target).parent().map(|folder| clean(folder.to_owned())).unwrap_or_default();
    let common = path.components().zip(folder.components()).take_while(|(a, b)| a == b).count();
    let normal = |part: &Component<'_>| matches!(part, Component::Normal(_));
    // Nothing in common but the root: far away.
    if path.components().take(common).filter(normal).count() == 0 {
        return path.display().to_string();
    }
    let up = std::iter::repeat_n(Component::ParentDir, folder.components().count() - common);
    let way: PathBuf = up.chain(path.components().skip(common)).collect();
    if way.as_os_str().is_empty() { ".".to_owned() } else { way.display().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_yaml_would_read_otherwise_are_quoted() {
        for (text, written) in [
            ("models/my-llama", "models/my-llama"),
            ("../data/a.jsonl.gz", "../data/a.jsonl.gz"),
            ("true", "\"true\""),
            ("7b", "\"7b\""),
            ("a: b", "\"a: b\""),
            (".5", "\".5\""),
            ("modèle", "\"modèle\""),
        ] {
            assert_eq!(quoted(text), written);
        }
    }

    #[test]
    fn paths_start_from_the_grids_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        let path = |text: &str| folder.path().join(text);
        assert_eq!(relative(&path("a/b"), &path("grid.yaml")), "a/b");
        assert_eq!(relative(&path("a"), &path("a/b/grid.yaml")), "..");
        assert_eq!(relative(&path("a/b"), &path("a/b/grid.yaml")), ".");
    }
}
