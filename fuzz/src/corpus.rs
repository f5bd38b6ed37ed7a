//! Fuzz targets for the rows of corpora and tasks.

use std::io::Write;

use ghostlab::corpus::read_rows;
use ghostlab::tasks::{TASKS, Task};
use ghostlab_definitions::{Row, builtin};
use serde_json::json;

use super::{assert_user_error, read_file, with_file};

/// File extensions of a corpus. The first byte of the data selects one.
const EXTENSIONS: [&str; 4] = ["jsonl", "txt", "jsonl.gz", "parquet"];

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn corpus_seeds() -> Vec<Vec<u8>> {
    let lines = b"{\"text\": \"a b\", \"url\": 1}\n\n{\"text\": \"\\ud83d\\ude00 \\u0000\"}\n{\"text\": \"\"}\n";
    vec![
        with_extension_byte(0, lines),
        with_extension_byte(0, b"{\"sentence\": \"x\"}"),
        with_extension_byte(1, "no columns \u{2028} here\n".as_bytes()),
        with_extension_byte(2, &gzip(lines)),
        with_extension_byte(0, &[b"{\"text\": ".as_slice(), &[b'['; 300]].concat()),
    ]
}

fn with_extension_byte(index: u8, bytes: &[u8]) -> Vec<u8> {
    [&[index], bytes].concat()
}

pub(super) fn fuzz_corpus(data: &[u8]) {
    let Some((first, text)) = data.split_first() else { return };
    let extension = EXTENSIONS[usize::from(*first) % EXTENSIONS.len()];
    with_file(&format!("c.{extension}"), text, |path| match read_rows(path, None) {
        Ok(rows) => assert!(!rows.is_empty()),
        Err(error) => assert_user_error(&error),
    });
}

/// Returns rows for each task, preceded by a byte that selects the task.
pub(super) fn task_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = TASKS
        .iter()
        .enumerate()
        .map(|(index, task)| {
            let path = format!("tests/fixtures/lm_eval/docs/{}.jsonl", task.name.trim_end_matches("_v2"));
            let text = String::from_utf8(read_file(&path)).unwrap();
            let lines: Vec<&str> = text.lines().take(2).collect();
            [&[index as u8], lines.join("\n").as_bytes()].concat()
        })
        .collect();
    let copa = TASKS.iter().position(|task| task.name == "copa").unwrap() as u8;
    let hidden = json!({"premise": "A.", "question": "cause", "choice1": "b", "choice2": "c", "label": -1});
    seeds.push([&[copa], hidden.to_string().as_bytes()].concat());
    seeds
}

pub(super) fn fuzz_task(data: &[u8]) {
    let Some((first, text)) = data.split_first() else { return };
    let task = &TASKS[usize::from(*first) % TASKS.len()];
    with_file("t.jsonl", text, |path| match builtin::task(task, path, None) {
        Ok(read) => {
            assert!(!read.documents.is_empty());
            for index in 0..read.documents.len() {
                match read.solution(index) {
                    Ok((_, gold)) => assert!(gold.as_int().unwrap() >= 0 || task.name != "copa"),
                    Err(error) => assert_user_error(&error),
                }
            }
        }
        Err(error) => assert_user_error(&error),
    });
}

pub(super) fn race_seeds() -> Vec<Vec<u8>> {
    vec![
        b"[{'question': 'Lee is  _  .', 'options': ['a', \"b'\", 'c\\n', 'd\\x41'], 'answer': 'B'},]".to_vec(),
        b"({'question': u'q', 'options': ('a' 'b', 'c', 'd', 'e'), 'answer': 'A', 'n': -1.5e3, 'x': None},)".to_vec(),
        b"[[[[[[{'a': True, 'b': '\\ud83d\\ude00', '''c''': \"\"\"d\"\"\"}]]]]]]".to_vec(),
    ]
}

/// Reads a text as the field `problems` of a RACE row, which contains a Python literal.
pub(super) fn fuzz_race(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let fields = json!({"article": "A.", "problems": text});
    let row = Row { location: "t.jsonl:1".to_owned(), value: serde_json::from_value(fields).unwrap() };
    let definition = builtin::definition(Task::find("race").unwrap()).unwrap();
    match ghostlab_definitions::Task::from_rows(definition.clone(), vec![row], None) {
        Ok(read) => {
            let (choices, gold) = read.solution(0).unwrap();
            assert!(choices.len() == 4 && (0..4).contains(&gold.as_int().unwrap()));
        }
        Err(error) => assert_user_error(&error),
    }
}
