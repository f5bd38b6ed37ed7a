//! Fuzzes the rows of datasets with random values of every type. Each row must yield requests or an error, never a
//! panic.

use ghostlab::error::Result;
use ghostlab::tasks::{Bos, Encoder, Prefix, TASKS, Task};
use ghostlab_definitions::{Row, builtin};
use serde_json::{Map, Value, json};

use super::{TokenizedTask, documents_of, load_golden_encoder};

/// Encoder that uses one token per byte and has no BOS token.
struct ByteEncoder;

impl Encoder for ByteEncoder {
    fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn prefix(&self) -> Option<&Prefix> {
        None
    }
}

/// Deterministic random number generator (SplitMix64).
struct RandomInput(u64);

impl RandomInput {
    fn number(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % below
    }

    /// Returns a random character. It is often one that templates or parsers treat specially.
    fn character(&mut self) -> char {
        const SPECIAL_CHARACTERS: &str =
            "_[]\n\r\t \u{1c}\u{85}\u{a0}\u{2028}'\"\\{}?.:,()Σσßİǆ\0\u{feff}e\u{301}😀aA1-";
        if self.number(2) == 0 {
            return SPECIAL_CHARACTERS
                .chars()
                .nth(self.number(SPECIAL_CHARACTERS.chars().count() as u64) as usize)
                .unwrap();
        }
        let below = if self.number(4) == 0 { 0x11_0000 } else { 0x500 };
        char::from_u32(self.number(below) as u32).unwrap_or('\u{fffd}')
    }

    fn text(&mut self, longest: u64) -> String {
        (0..self.number(longest + 1)).map(|_| self.character()).collect()
    }

    fn value(&mut self, depth: u32) -> Value {
        match self.number(if depth == 0 { 8 } else { 11 }) {
            0 => Value::Null,
            1 => json!(self.number(2) == 0),
            2 => json!(self.number(6) as i64 - 2),
            3 => json!([i64::MIN, i64::MAX, -1][self.number(3) as usize]),
            4 => json!([u64::MAX as f64, 0.5, -0.0][self.number(3) as usize]),
            5 => json!(["A", "1", "cause", "  _  .", "[{'question': '"][self.number(5) as usize]),
            6 | 7 => json!(self.text(12)),
            8 => (0..self.number(5)).map(|_| self.value(depth - 1)).collect(),
            9 => (0..self.number(5)).map(|_| json!(self.text(6))).collect(),
            _ => {
                let names = ["text", "label", "question", "options", "answer", ""];
                (0..self.number(4)).map(|_| (names[self.number(6) as usize], self.value(depth - 1))).collect()
            }
        }
    }
}

/// Creates a task with a single row. Error messages give its position as `nonsense:1`.
fn task_with_row(known: &Task, fields: &Map<String, Value>) -> Result<ghostlab_definitions::Task> {
    let row = Row {
        location: "nonsense:1".to_owned(),
        value: serde_json::from_value(Value::Object(fields.clone())).unwrap(),
    };
    ghostlab_definitions::Task::from_rows(builtin::definition(known)?.clone(), vec![row], None)
}

/// Checks that a row yields requests or an error that names `nonsense:1`. Returns whether it yields requests.
fn check_row(known: &'static Task, fields: &Map<String, Value>) -> bool {
    let tokenized =
        task_with_row(known, fields).and_then(|task| TokenizedTask::new(task, &ByteEncoder, Bos::Tokenizer, 64));
    match tokenized {
        Ok(tokenized) => {
            assert_eq!(tokenized.requests.len(), tokenized.task.solution(0).unwrap().0.len());
            true
        }
        Err(error) => {
            assert_eq!(error.exit_code(), 2, "{error}");
            assert!(error.to_string().contains("nonsense:1") && error.to_string().contains(known.name), "{error}");
            false
        }
    }
}

/// Returns the fields of each golden row for a task.
fn golden_rows(known: &Task) -> Vec<Map<String, Value>> {
    super::read_json_lines(&documents_of(known)).into_iter().map(|row| row.as_object().unwrap().clone()).collect()
}

#[test]
fn any_field_value_gives_an_error_or_requests() {
    let mut random = RandomInput(1);
    let mut accepted = 0;
    let mut rejected = 0;
    for task in TASKS {
        let rows = golden_rows(task);
        let columns = builtin::definition(task).unwrap().data.columns().unwrap();
        for _ in 0..3000 {
            let mut fields = rows[random.number(rows.len() as u64) as usize].clone();
            for _ in 0..=random.number(2) {
                let column = columns[random.number(columns.len() as u64) as usize].as_str();
                let value = random.value(3);
                match fields.get_mut(column) {
                    Some(Value::Object(inner)) if random.number(2) == 0 => {
                        inner.insert(["text", "label"][random.number(2) as usize].to_owned(), value);
                    }
                    _ if random.number(8) == 0 => {
                        fields.remove(column);
                    }
                    _ => {
                        fields.insert(column.to_owned(), value);
                    }
                }
            }
            *(if check_row(task, &fields) { &mut accepted } else { &mut rejected }) += 1;
        }
    }
    assert!(accepted > 1000 && rejected > 1000, "too few accepted or rejected rows: {accepted} and {rejected}");
}

#[test]
fn damaged_literal_or_file_never_panics() {
    let mut random = RandomInput(2);
    let task = Task::find("race").unwrap();
    let rows = golden_rows(task);
    for _ in 0..3000 {
        let mut fields = rows[random.number(rows.len() as u64) as usize].clone();
        let mut problems: Vec<char> = fields["problems"].as_str().unwrap().chars().collect();
        for _ in 0..=random.number(3) {
            let at = random.number(problems.len() as u64) as usize;
            problems[at] = random.character();
        }
        fields.insert("problems".to_owned(), json!(problems.iter().collect::<String>()));
        check_row(task, &fields);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("arc.jsonl");
    let original = std::fs::read(documents_of(&TASKS[0])).unwrap();
    for _ in 0..300 {
        let mut bytes = original.clone();
        for _ in 0..=random.number(3) {
            let at = random.number(bytes.len() as u64) as usize;
            bytes[at] = random.number(256) as u8;
        }
        std::fs::write(&path, bytes).unwrap();
        if let Err(error) = builtin::task(&TASKS[0], &path, None) {
            assert!(error.exit_code() == 2 && error.to_string().contains("arc.jsonl"), "{error}");
        }
    }
}

/// Formats a string as a Python literal with randomly chosen quotes and escapes.
fn python_literal(text: &str, random: &mut RandomInput) -> String {
    let quote = if random.number(2) == 0 { '\'' } else { '"' };
    let mut written = String::from(quote);
    for character in text.chars() {
        let code = u32::from(character);
        match character {
            '\\' => written.push_str("\\\\"),
            '\n' => written.push_str("\\n"),
            '\r' => written.push_str("\\r"),
            '\0' => written.push_str("\\x00"),
            same if same == quote => written.extend(['\\', same]),
            _ => match random.number(4) {
                0 if code < 0x100 => written.push_str(&format!("\\x{code:02x}")),
                1 if code < 0x1_0000 => written.push_str(&format!("\\u{code:04X}")),
                2 => written.push_str(&format!("\\U{code:08x}")),
                _ => written.push(character),
            },
        }
    }
    written.push(quote);
    written
}

#[test]
fn arbitrary_text_is_unchanged_in_requests() {
    let mut random = RandomInput(3);
    let folder = tempfile::tempdir().unwrap();
    let texts: Vec<String> = (0..2000).map(|_| random.text(20)).collect();
    let arc = Task::find("arc_easy").unwrap();
    let race = Task::find("race").unwrap();
    let mut file = String::new();
    for pair in texts.chunks(2) {
        let choices = json!({"text": [pair[1], "b"], "label": ["A", "B"]});
        file.push_str(&json!({"question": pair[0], "choices": choices, "answerKey": "B"}).to_string());
        file.push('\n');
    }
    let path = folder.path().join("arc.jsonl");
    std::fs::write(&path, file).unwrap();
    let read = builtin::task(arc, &path, None).unwrap();
    let tokenized = TokenizedTask::new(read, &ByteEncoder, Bos::Tokenizer, 1000).unwrap();
    for (at, (pair, (context, continuation))) in texts.chunks(2).zip(tokenized.texts().step_by(2)).enumerate() {
        assert_eq!(context, format!("Question: {}\nAnswer:", pair[0]));
        assert_eq!(continuation, format!(" {}", pair[1]));
        assert_eq!(tokenized.task.solution(at).unwrap().0[0].text(), pair[1]);
    }
    for four in texts.chunks(4) {
        let written: Vec<String> = four.iter().map(|text| python_literal(text, &mut random)).collect();
        let problem = format!(
            "{{'question': {}, 'options': [{}, {}, {}, 'd'], 'answer': 'D'}}",
            written[0], written[1], written[2], written[3]
        );
        let fields = json!({"article": four[0], "problems": format!("[{problem}, {problem}]")});
        if four[1..].iter().any(String::is_empty) {
            // lm-evaluation-harness rejects an empty choice only in the first document.
            assert!(
                task_with_row(race, fields.as_object().unwrap()).unwrap_err().to_string().contains("a choice is empty")
            );
            continue;
        }
        let task =
            task_with_row(race, fields.as_object().unwrap()).unwrap_or_else(|error| panic!("{problem}: {error}"));
        let tokenized = TokenizedTask::new(task, &ByteEncoder, Bos::Tokenizer, 1000).unwrap();
        if !four[0].ends_with("  _  .") {
            let wanted = format!("Article: {0}\n\nQuestion: {0}\nAnswer: d\n{0}", four[0]);
            assert_eq!(tokenized.texts().next().unwrap().0, wanted);
        }
        let options: Vec<String> =
            tokenized.task.solution(0).unwrap().0.iter().map(ghostlab_definitions::Value::text).collect();
        assert_eq!(options, [&four[1], &four[2], &four[3], "d"]);
    }
}

#[test]
fn requests_for_arbitrary_text_fit_the_length() {
    let mut random = RandomInput(4);
    let (encoder, _) = load_golden_encoder();
    let task = Task::find("boolq").unwrap();
    for _ in 0..300 {
        let fields = json!({"question": random.text(30), "passage": random.text(60), "label": 0});
        let length = 1 + random.number(40) as usize;
        let asked = |length: usize| {
            let task = task_with_row(task, fields.as_object().unwrap()).unwrap();
            TokenizedTask::new(task, &encoder, Bos::Tokenizer, length).unwrap().tokens.concat()
        };
        for (tokens, uncut) in asked(length).iter().zip(asked(1 << 20)) {
            assert!(tokens.input_ids.len() <= length && uncut.cut_ids.is_empty());
            assert_eq!([tokens.cut_ids.as_slice(), &tokens.input_ids].concat(), uncut.input_ids);
            assert_eq!(tokens.continuation_ids, uncut.continuation_ids);
            assert_eq!(tokens.cut_ids.len(), uncut.input_ids.len().saturating_sub(length));
        }
    }
}
