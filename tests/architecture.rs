//! Checks that the imports between files respect the architecture's layers. A module may use only modules in lower
//! layers, and files must not import each other in cycles. A file may use anything from its parent `mod.rs`.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules of each crate, from the lowest layer to the highest. A module may use only the modules before it.
const LAYERS: [(&str, &[&str]); 3] = [
    ("crates/kernels/src", &["scratch", "linalg", "forward"]),
    (
        "src",
        &[
            "clock",
            "heap",
            "machine",
            "installed",
            "package",
            "template",
            "sandbox",
            "grid",
            "pipeline/identity",
            "pipeline/env",
            "pipeline/stage",
            "pipeline/plan",
            "pipeline/outcome",
            "pipeline/exec",
            "results",
            "search",
            "archive",
            "export",
            "cluster",
            "starter",
            "artifact",
            "verify",
            "cli",
        ],
    ),
    (
        "crates/core/src",
        &[
            "error",
            "named",
            "style",
            "quantity",
            "deviation",
            "options",
            "map_input",
            "files",
            "linalg",
            "corpus",
            "tasks",
            "significance",
            "model",
            "calibrate",
            "distill",
            "generate",
            "latency",
            "evaluate",
            "checkpoint",
            "criterion",
            "recovery",
            "iterative",
            "metric",
        ],
    ),
];
/// Crates that have no layers. They are checked only for import cycles.
const UNLAYERED_CRATES: [&str; 3] = ["crates/definitions/src", "crates/hub/src", "crates/store/src"];

/// Module path as a list of names, starting below the crate root.
type Module = Vec<String>;

/// Source texts of a crate's modules, without tests, comments and string literals.
struct Sources {
    files: BTreeMap<Module, String>,
    /// Names re-exported by each module, mapped to the paths of the original items.
    reexports: BTreeMap<Module, BTreeMap<String, Module>>,
}

impl Sources {
    fn read(root: &Path) -> Self {
        let mut files = BTreeMap::new();
        let mut folders = vec![(root.to_owned(), Vec::new())];
        while let Some((folder, module)) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
                let stem = entry.file_stem().unwrap().to_string_lossy().into_owned();
                let path = [module.as_slice(), std::slice::from_ref(&stem)].concat();
                let is_test =
                    ["tests", "main"].contains(&stem.as_str()) || stem.ends_with("_test") || stem.ends_with("_tests");
                if entry.is_dir() {
                    folders.push((entry, path));
                } else if entry.extension().is_some_and(|extension| extension == "rs") && !is_test {
                    let module = if ["mod", "lib"].contains(&stem.as_str()) { module.clone() } else { path };
                    files.insert(
                        module,
                        without_tests(&strip_comments_and_literals(&fs::read_to_string(&entry).unwrap())),
                    );
                }
            }
        }
        let mut sources = Self { files, reexports: BTreeMap::new() };
        for (module, text) in &sources.files {
            let public = use_items(text).into_iter().filter(|(public, _)| *public);
            let named = public.flat_map(|(_, tree)| use_tree_paths(&tree)).filter_map(|(path, name)| {
                let path = sources.resolve(module, &path)?;
                Some((name.or(path.last().cloned())?, path))
            });
            let named: BTreeMap<String, Module> = named.collect();
            sources.reexports.insert(module.clone(), named);
        }
        sources
    }

    /// Resolves a path used in a module to a path from the crate root. Returns `None` for paths into other crates.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module, rest].concat()),
            "super" => {
                let ups = path.iter().take_while(|name| *name == "super").count();
                Some([&module[..module.len().checked_sub(ups)?], &path[ups..]].concat())
            }
            _ => self
                .files
                .contains_key(&[module, std::slice::from_ref(first)].concat())
                .then(|| [module, path].concat()),
        }
    }

    /// Finds the module that defines an item. Follows at most nine re-exports, in case they form a cycle.
    fn defining_module(&self, path: &[String], depth: usize) -> Option<Module> {
        let (module, rest) =
            (0..=path.len()).rev().map(|at| path.split_at(at)).find(|(prefix, _)| self.files.contains_key(*prefix))?;
        let further = rest.first().and_then(|name| self.reexports[module].get(name)).filter(|_| depth < 9);
        match further {
            Some(further) => self.defining_module(&[further.as_slice(), &rest[1..]].concat(), depth + 1),
            None => Some(module.to_vec()),
        }
    }

    /// Returns, for each module, the modules that it uses.
    fn imports(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        self.files.iter().map(|(module, text)| (module, self.modules_used_by(module, text))).collect()
    }

    fn modules_used_by(&self, module: &Module, text: &str) -> BTreeSet<Module> {
        let mut paths = inline_paths(text);
        for (public, tree) in use_items(text) {
            let used = use_tree_paths(&tree).into_iter().map(|(path, _)| path);
            // Re-exporting names from child modules does not count as using them.
            paths.extend(used.filter(|path| {
                !(public && self.resolve(module, path).is_some_and(|absolute| absolute.starts_with(module)))
            }));
        }
        let used = paths.iter().filter_map(|path| self.defining_module(&self.resolve(module, path)?, 0));
        used.filter(|used| !module.starts_with(used)).collect()
    }
}

/// Removes comments, string literals and character literals.
fn strip_comments_and_literals(text: &str) -> String {
    let mut bare = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let raw = rest.strip_prefix('r').map(|text| text.trim_start_matches('#')).filter(|text| text.starts_with('"'));
        let word = bare.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(inside) = raw.filter(|_| !word) {
            let hashes = rest.len() - inside.len() - 1;
            let end = format!("\"{}", "#".repeat(hashes));
            hashes + 2 + inside[1..].find(&end).unwrap() + end.len()
        } else if first == '"' {
            let mut escaped = false;
            2 + rest[1..]
                .char_indices()
                .find(|(_, c)| {
                    let is_end = *c == '"' && !escaped;
                    escaped = *c == '\\' && !escaped;
                    is_end
                })
                .unwrap()
                .0
        } else if let Some(character) =
            rest.strip_prefix('\'').filter(|text| text.starts_with('\\') || text.chars().nth(1) == Some('\''))
        {
            2 + character
                .char_indices()
                .skip(1 + usize::from(character.starts_with('\\')))
                .find(|(_, c)| *c == '\'')
                .unwrap()
                .0
        } else {
            bare.push(first);
            first.len_utf8()
        };
        rest = &rest[skipped..];
    }
    bare
}

fn without_tests(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(at) = ["#[cfg(test)]", "#[cfg(all(test"].iter().filter_map(|mark| rest.find(mark)).min() {
        code.push_str(&rest[..at]);
        let item = &rest[at..];
        let body = item.find('{').unwrap_or(usize::MAX);
        let end = item.find(';').unwrap_or(item.len() - 1);
        let is_use = item[..end.min(body)].split_whitespace().any(|word| word == "use");
        let mut depth = 0_usize;
        let end = if end < body || is_use {
            end
        } else {
            item.char_indices()
                .find(|(_, c)| {
                    depth = depth + usize::from(*c == '{') - usize::from(*c == '}' && depth > 0);
                    *c == '}' && depth == 0
                })
                .map_or(item.len() - 1, |(at, _)| at)
        };
        rest = &item[end + 1..];
    }
    code + rest
}

/// Returns the tree of each `use` item, and whether the item is a re-export.
fn use_items(text: &str) -> Vec<(bool, String)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let before = text[..at].rsplit(['\n', ';', '}']).next().unwrap_or_default().trim();
        if before.is_empty() || before.starts_with("pub") {
            found.push((!before.is_empty(), text[at + 4..].split(';').next().unwrap_or_default().to_owned()));
        }
    }
    found
}

/// Returns the paths in a `use` tree, each with its `as` alias if it has one.
fn use_tree_paths(tree: &str) -> Vec<(Module, Option<String>)> {
    let tree = tree.trim();
    let Some((before, inside)) = tree.split_once('{') else {
        let (path, name) =
            tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name.trim().to_owned())));
        let path: Module = path.split("::").map(|name| name.trim().to_owned()).collect();
        return if path == [""] { Vec::new() } else { vec![(path, name)] };
    };
    let inside = inside.trim().strip_suffix('}').unwrap();
    let mut depth = 0_usize;
    let mut parts = vec![String::new()];
    for c in inside.chars() {
        depth = depth + usize::from(c == '{') - usize::from(c == '}');
        match c {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().unwrap().push(c),
        }
    }
    parts
        .iter()
        .filter(|part| !part.trim().is_empty())
        .flat_map(|part| use_tree_paths(&format!("{before}{}", part.trim())))
        .collect()
}

/// Returns the `crate::`, `super::` and `self::` paths that are not part of `use` items.
fn inline_paths(text: &str) -> Vec<Module> {
    let mut found = Vec::new();
    for begin in ["crate::", "super::", "self::"] {
        for (at, _) in text.match_indices(begin) {
            let line = text[..at].rsplit(['\n', ';']).next().unwrap_or_default();
            let goes_on = text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            if !goes_on && !line.contains("use ") {
                let path = text[at..]
                    .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
                    .next()
                    .unwrap_or_default();
                found.push(path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect());
            }
        }
    }
    found
}

fn crate_root(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

#[test]
fn no_module_uses_a_higher_layer() {
    for (crate_path, layers) in LAYERS {
        let sources = Sources::read(&crate_root(crate_path));
        let mut up = Vec::new();
        for (module, used) in sources.imports() {
            let Some(layer) = find_layer(layers, crate_path, module) else { continue };
            let above =
                used.iter().filter(|used| find_layer(layers, crate_path, used).is_some_and(|other| other > layer));
            up.extend(above.map(|used| format!("{crate_path}: {} uses {}", module.join("::"), used.join("::"))));
        }
        assert_eq!(up, Vec::<String>::new());
        let found: BTreeSet<usize> =
            sources.files.keys().filter_map(|module| find_layer(layers, crate_path, module)).collect();
        assert_eq!(found.len(), layers.len(), "{crate_path}: a listed module does not exist");
    }
}

#[test]
fn files_do_not_import_each_other_in_cycles() {
    let mut cycles = BTreeSet::new();
    for crate_path in LAYERS.iter().map(|(crate_path, _)| *crate_path).chain(UNLAYERED_CRATES) {
        let sources = Sources::read(&crate_root(crate_path));
        let imports = sources.imports();
        assert!(
            imports.values().map(BTreeSet::len).sum::<usize>() > sources.files.len() / 2,
            "{crate_path}: too few imports found"
        );
        let reached: BTreeMap<&Module, BTreeSet<Module>> =
            imports.keys().map(|module| (*module, reachable_modules(&imports, module))).collect();
        let found = imports.keys().map(|module| modules_in_cycle(&reached, module));
        cycles.extend(found.filter(|modules| !modules.is_empty()).map(|modules| format!("{crate_path}: {modules}")));
    }
    assert_eq!(cycles, BTreeSet::new(), "modules import each other");
}

fn reachable_modules(imports: &BTreeMap<&Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<Module> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from.clone()];
    while let Some(module) = next.pop() {
        next.extend(imports[&module].iter().filter(|used| reached.insert((*used).clone())).cloned());
    }
    reached
}

fn modules_in_cycle(reached: &BTreeMap<&Module, BTreeSet<Module>>, module: &Module) -> String {
    let with = reached[module].iter().filter(|other| reached[other].contains(module));
    with.map(|module| module.join("::")).collect::<Vec<_>>().join(", ")
}

#[test]
fn import_parser_ignores_comments_strings_and_tests() {
    let text = "//! use crate::no;\nuse crate::a::{self, b::{C, D as E}};\npub use self::f::G;\nfn h() { \"use crate::no;\"; '\"'; super::i::j(); }\n\
                #[cfg(test)]\nmod tests {\n    use crate::no;\n}\nconst RAW: &str = r#\"super::no \"#;\n";
    let text = without_tests(&strip_comments_and_literals(text));
    let all: Vec<(Module, Option<String>)> =
        use_items(&text).iter().flat_map(|(_, tree)| use_tree_paths(tree)).collect();
    let expected = [
        ("crate::a::self", None),
        ("crate::a::b::C", None),
        ("crate::a::b::D", Some("E".to_owned())),
        ("self::f::G", None),
    ];
    assert_eq!(all, expected.map(|(path, name)| (parse_module(path), name)));
    assert_eq!(use_items(&text).iter().map(|(public, _)| *public).collect::<Vec<_>>(), [false, true]);
    assert_eq!(inline_paths(&text), [parse_module("super::i::j")]);
}

fn parse_module(path: &str) -> Module {
    path.split("::").map(str::to_owned).collect::<Module>()
}

#[test]
fn every_test_file_is_compiled_into_its_crates_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for tests in crates.chain([root.to_owned()]).map(|folder| folder.join("tests")) {
        // A crate with a single test file does not need `all.rs`.
        let Ok(program) = fs::read_to_string(tests.join("all.rs")) else { continue };
        let files = fs::read_dir(&tests).unwrap().map(|entry| entry.unwrap().path());
        for file in files
            .filter(|file| file.extension().is_some_and(|extension| extension == "rs") && !file.ends_with("all.rs"))
        {
            let line = format!("mod {};", file.file_stem().unwrap().to_str().unwrap());
            let named = program.lines().any(|program_line| program_line == line);
            assert!(named, "{} is never run: add `{line}` to {}/all.rs", file.display(), tests.display());
        }
    }
}

#[test]
fn every_test_file_named_in_ci_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = fs::read_to_string(root.join(".ci/run")).unwrap();
    // `cargo test` succeeds even if a filter matches no test, so a misspelled filter would go unnoticed.
    let words = script.split(|c: char| c.is_whitespace() || "()".contains(c));
    let named: Vec<&str> = words.filter_map(|word| Some(word.split_once("::")?.0)).collect();
    assert!(named.len() >= 9, "{named:?}");
    for name in named {
        let file = Path::new("tests").join(name).with_extension("rs");
        let mut crates = ["", "crates/core", "crates/definitions"].into_iter();
        assert!(
            crates.any(|crate_path| root.join(crate_path).join(&file).is_file()),
            "`{name}::` in .ci/run matches no test file"
        );
    }
}

fn find_layer(layers: &[&str], crate_path: &str, module: &Module) -> Option<usize> {
    let name = module.first()?;
    let name = match module.get(1) {
        Some(inner) if name == "pipeline" => format!("{name}/{inner}"),
        None if name == "pipeline" => return None,
        _ => name.clone(),
    };
    let layer = layers.iter().position(|known| *known == name);
    assert!(layer.is_some(), "{crate_path}: `{name}` is missing from LAYERS");
    layer
}
