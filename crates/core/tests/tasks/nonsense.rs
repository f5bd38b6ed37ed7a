//! Values that no data set has, put where a data set has others: an error or a request comes of it, never a panic.

use ghostlab_core::error::Result;
use ghostlab_core::tasks::{Bos, Document, Encoder, Items, Prefix, TASKS, Task, TaskRow, read_rows, requests};
use serde_json::{Map, Value, json};

use super::{documents_of, golden};

/// One token per byte, none in front.
struct Bytes;

impl Encoder for Bytes {
    fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn prefix(&self) -> Option<&Prefix> {
        None
    }
}

/// Deterministic nonsense (SplitMix64).
struct Nonsense(u64);

impl Nonsense {
    fn number(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % below
    }

    /// Any character: often one that means something to some rule, else of any script.
    fn character(&mut self) -> char {
        const TELLING: &str = "_[]\n\r\t \u{1c}\u{85}\u{a0}\u{2028}'\"\\{}?.:,()Σσßİǆ\0\u{feff}e\u{301}😀aA1-";
        if self.number(2) == 0 {
            return TELLING.chars().nth(self.number(TELLING.chars().count() as u64) as usize).unwrap();
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
                let pair = |nonsense: &mut Self| (names[nonsense.number(6) as usize], nonsense.value(depth - 1));
                (0..self.number(4)).map(|_| pair(self)).collect()
            }
        }
    }
}

/// An error that names its row, or requests; the row is `nonsense:1`.
fn ask(task: &'static Task, fields: &Map<String, Value>) -> bool {
    let row = TaskRow { place: "nonsense:1".to_owned(), fields: fields.clone() };
    let prompt = match task.prompt(&row) {
        Ok(prompt) => prompt,
        Err(error) => {
            assert_eq!(error.exit_code(), 2, "{error}");
            assert!(error.to_string().contains("nonsense:1") && error.to_string().contains(task.name), "{error}");
            return false;
        }
    };
    let document = Document { id: 0, place: row.place, prompt };
    let items = Items { task, files: Vec::new(), original: 1, documents: vec![document] };
    match requests(&items, &Bytes, Bos::Tokenizer, 64) {
        Ok(all) => {
            assert_eq!(all.len(), items.documents[0].prompt.choices.len());
            true
        }
        Err(error) => {
            assert!(error.to_string().contains("nonsense:1, choice"), "{error}");
            false
        }
    }
}

#[test]
fn any_value_in_any_field_gives_an_error_or_requests_and_never_a_panic() {
    let mut nonsense = Nonsense(1);
    let (mut asked, mut refused) = (0, 0);
    for task in TASKS {
        let rows = read_rows(documents_of(task), task.columns).unwrap();
        for _ in 0..3000 {
            let mut fields = rows[nonsense.number(rows.len() as u64) as usize].fields.clone();
            for _ in 0..=nonsense.number(2) {
                let column = task.columns[nonsense.number(task.columns.len() as u64) as usize];
                let value = nonsense.value(3);
                match fields.get_mut(column) {
                    // A field inside a field.
                    Some(Value::Object(inner)) if nonsense.number(2) == 0 => {
                        inner.insert(["text", "label"][nonsense.number(2) as usize].to_owned(), value);
                    }
                    _ if nonsense.number(8) == 0 => {
                        fields.remove(column);
                    }
                    _ => {
                        fields.insert(column.to_owned(), value);
                    }
                }
            }
            *(if ask(task, &fields) { &mut asked } else { &mut refused }) += 1;
        }
    }
    assert!(asked > 1000 && refused > 1000, "both happen: {asked} and {refused}");
}

#[test]
fn a_damaged_literal_or_file_gives_an_error_or_rows_and_never_a_panic() {
    let mut nonsense = Nonsense(2);
    let task = Task::find("race").unwrap();
    let rows = read_rows(documents_of(task), task.columns).unwrap();
    for _ in 0..3000 {
        let mut fields = rows[nonsense.number(rows.len() as u64) as usize].fields.clone();
        let mut problems: Vec<char> = fields["problems"].as_str().unwrap().chars().collect();
        for _ in 0..=nonsense.number(3) {
            let at = nonsense.number(problems.len() as u64) as usize;
            problems[at] = nonsense.character();
        }
        fields.insert("problems".to_owned(), json!(problems.iter().collect::<String>()));
        ask(task, &fields);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("arc.jsonl");
    let whole = std::fs::read(documents_of(&TASKS[0])).unwrap();
    for _ in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..=nonsense.number(3) {
            let at = nonsense.number(bytes.len() as u64) as usize;
            bytes[at] = nonsense.number(256) as u8;
        }
        std::fs::write(&path, bytes).unwrap();
        if let Err(error) = Items::read(&TASKS[0], &path, None) {
            assert!(error.exit_code() == 2 && error.to_string().contains("arc.jsonl"), "{error}");
        }
    }
}

/// A string as Python's `repr` would write it, or in any other way that means the same.
fn literal(text: &str, nonsense: &mut Nonsense) -> String {
    let quote = if nonsense.number(2) == 0 { '\'' } else { '"' };
    let mut written = String::from(quote);
    for character in text.chars() {
        let code = u32::from(character);
        match character {
            '\\' => written.push_str("\\\\"),
            '\n' => written.push_str("\\n"),
            '\r' => written.push_str("\\r"),
            '\0' => written.push_str("\\x00"),
            same if same == quote => written.extend(['\\', same]),
            _ => match nonsense.number(4) {
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
fn any_text_passes_through_unchanged() {
    let mut nonsense = Nonsense(3);
    let folder = tempfile::tempdir().unwrap();
    let texts: Vec<String> = (0..2000).map(|_| nonsense.text(20)).collect();
    let (arc, race) = (Task::find("arc_easy").unwrap(), Task::find("race").unwrap());
    let mut file = String::new();
    for pair in texts.chunks(2) {
        let choices = json!({"text": [pair[1], "b"], "label": ["A", "B"]});
        file.push_str(&json!({"question": pair[0], "choices": choices, "answerKey": "B"}).to_string());
        file.push('\n');
    }
    let path = folder.path().join("arc.jsonl");
    std::fs::write(&path, file).unwrap();
    let items = Items::read(arc, &path, None).unwrap();
    for (document, pair) in items.documents.iter().zip(texts.chunks(2)) {
        let choice = &document.prompt.choices[0];
        assert_eq!(choice.context, format!("Question: {}\nAnswer:", pair[0]));
        assert_eq!(choice.continuation, format!(" {}", pair[1]));
        assert_eq!(choice.text, pair[1]);
    }
    for four in texts.chunks(4) {
        let written: Vec<String> = four.iter().map(|text| literal(text, &mut nonsense)).collect();
        let problem = format!(
            "{{'question': {}, 'options': [{}, {}, {}, 'd'], 'answer': 'D'}}",
            written[0], written[1], written[2], written[3]
        );
        let fields = json!({"article": four[0], "problems": format!("[{problem}, {problem}]")});
        let row = TaskRow { place: String::new(), fields: fields.as_object().unwrap().clone() };
        let prompt = race.prompt(&row).unwrap_or_else(|error| panic!("{problem}: {error}"));
        if !four[0].ends_with("  _  .") {
            let wanted = format!("Article: {0}\n\nQuestion: {0}\nAnswer: d\n{0}", four[0]);
            assert_eq!(prompt.choices[0].context, wanted);
        }
        let options: Vec<&str> = prompt.choices.iter().map(|choice| choice.text.as_str()).collect();
        assert_eq!(options, [&four[1], &four[2], &four[3], "d"]);
    }
}

#[test]
fn requests_fit_the_length_whatever_the_text() {
    let mut nonsense = Nonsense(4);
    let (encoder, _) = golden();
    let task = Task::find("boolq").unwrap();
    for _ in 0..300 {
        let fields = json!({"question": nonsense.text(30), "passage": nonsense.text(60), "label": 0});
        let row = TaskRow { place: String::new(), fields: fields.as_object().unwrap().clone() };
        let document = Document { id: 0, place: String::new(), prompt: task.prompt(&row).unwrap() };
        let items = Items { task, files: Vec::new(), original: 1, documents: vec![document] };
        let length = 1 + nonsense.number(40) as usize;
        for request in requests(&items, &encoder, Bos::Tokenizer, length).unwrap() {
            let whole = [request.context_ids.as_slice(), request.continuation_ids.as_slice()].concat();
            assert!(request.input_ids.len() <= length);
            assert_eq!(request.input_ids, whole[request.truncated_left..whole.len() - 1]);
            assert_eq!(request.truncated_left, whole.len().saturating_sub(length + 1));
        }
    }
}
