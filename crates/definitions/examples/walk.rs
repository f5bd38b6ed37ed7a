//! Walks a folder of definitions (`lm_eval/tasks` of lm-evaluation-harness), counts the supported ones and prints why
//! the others are rejected.
#![allow(clippy::disallowed_macros, reason = "it prints its table")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use ghostlab_definitions::library::Entry;
use ghostlab_definitions::{Definition, Library};

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("walk FOLDER: the folder `lm_eval/tasks` of a checkout");
        return ExitCode::from(2);
    };
    let library = match Library::of_folders(&[Path::new(&folder)]) {
        Ok(library) => library,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(error.exit_code());
        }
    };
    let mut tasks = 0;
    let mut groups = 0;
    let mut tags = 0;
    let mut classes = 0;
    let mut plain = 0;
    let mut taken = 0;
    let mut hooked = 0;
    let mut by_ours = 0;
    let mut reasons: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for (name, entry) in library.entries() {
        let node = match entry {
            Entry::Group(_) => {
                groups += 1;
                continue;
            }
            Entry::Tag(_) => {
                tags += 1;
                continue;
            }
            Entry::Task(node) => node,
        };
        if node.get("class").is_some() {
            classes += 1;
            continue;
        }
        tasks += 1;
        let read = Definition::read(node);
        if node.hook().is_some() {
            hooked += 1;
            by_ours += usize::from(read.is_ok());
            continue;
        }
        plain += 1;
        match read {
            Ok(_) => taken += 1,
            Err(error) => {
                let reason = error.parts().what.clone();
                let found = reasons.entry(reason).or_insert((0, format!("{name}: {}", error.one_line())));
                found.0 += 1;
            }
        }
    }
    let mut selected = 0;
    let names: Vec<&str> =
        library.entries().filter(|(_, entry)| matches!(entry, Entry::Group(_))).map(|(name, _)| name).collect();
    for name in &names {
        selected += usize::from(library.select(&[name]).is_ok());
    }
    println!("tasks {tasks}, classes of Python {classes}, groups {groups}, tags {tags}");
    println!("without hooks {plain}, taken {taken} ({:.2} %)", 100.0 * f64::from(taken) / f64::from(plain.max(1)));
    println!("with hooks {hooked}, taken by declarative keys {by_ours}");
    println!("groups of which every task is taken {selected}");
    for file in library.unread() {
        println!("not read: {file}");
    }
    for (reason, (count, example)) in &reasons {
        println!("{count:6}  {reason}\n        {example}");
    }
    ExitCode::SUCCESS
}
