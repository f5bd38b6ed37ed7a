//! Reads all task definitions in a folder (such as `lm_eval/tasks` of lm-evaluation-harness), counts the supported
//! ones, and prints why the others are rejected.
#![allow(clippy::disallowed_macros, reason = "the example prints a table")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use ghostlab_definitions::library::Entry;
use ghostlab_definitions::yaml::Node;
use ghostlab_definitions::{Definition, Library};

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: walk FOLDER, such as `lm_eval/tasks` in a checkout of lm-evaluation-harness");
        return ExitCode::from(2);
    };
    let library = match Library::from_folders(&[Path::new(&folder)]) {
        Ok(library) => library,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(error.exit_code());
        }
    };
    let stats = Stats::new(&library);
    let names: Vec<&str> =
        library.entries().filter(|(_, entry)| matches!(entry, Entry::Group(_))).map(|(name, _)| name).collect();
    let selected = names.iter().filter(|name| library.select(&[name]).is_ok()).count();
    stats.print();
    println!("fully supported groups {selected}");
    for file in library.skipped() {
        println!("skipped: {file}");
    }
    for (reason, (count, example)) in &stats.reasons {
        println!("{count:6}  {reason}\n        {example}");
    }
    ExitCode::SUCCESS
}

/// Counts of the entries in a library of definitions.
#[derive(Default)]
struct Stats {
    tasks: u32,
    groups: u32,
    tags: u32,
    /// Number of tasks that are implemented as Python classes.
    classes: u32,
    /// Number of tasks without Python hooks. `supported` counts those that this crate supports.
    plain: u32,
    supported: u32,
    /// Number of tasks with Python hooks. `supported_hooks` counts those that this crate supports.
    hooked: u32,
    supported_hooks: u32,
    /// Reasons why tasks without hooks are rejected, each with the number of tasks and one example.
    reasons: BTreeMap<String, (usize, String)>,
}

impl Stats {
    fn new(library: &Library) -> Self {
        let mut stats = Self::default();
        for (name, entry) in library.entries() {
            match entry {
                Entry::Group(_) => stats.groups += 1,
                Entry::Tag(_) => stats.tags += 1,
                Entry::Task(node) if node.get("class").is_some() => stats.classes += 1,
                Entry::Task(node) => stats.add_task(name, node),
            }
        }
        stats
    }

    fn add_task(&mut self, name: &str, node: &Node) {
        self.tasks += 1;
        let definition = Definition::read(node);
        if node.hook().is_some() {
            self.hooked += 1;
            self.supported_hooks += u32::from(definition.is_ok());
            return;
        }
        self.plain += 1;
        match definition {
            Ok(_) => self.supported += 1,
            Err(error) => {
                let reason = error.parts().what.clone();
                let entry = self.reasons.entry(reason).or_insert((0, format!("{name}: {}", error.one_line())));
                entry.0 += 1;
            }
        }
    }

    fn print(&self) {
        let Self { tasks, groups, tags, classes, plain, supported, hooked, supported_hooks, .. } = self;
        println!("tasks {tasks}, Python classes {classes}, groups {groups}, tags {tags}");
        let percent = 100.0 * f64::from(*supported) / f64::from((*plain).max(1));
        println!("without hooks {plain}, supported {supported} ({percent:.2} %)");
        println!("with hooks {hooked}, supported through declarative keys {supported_hooks}");
    }
}
