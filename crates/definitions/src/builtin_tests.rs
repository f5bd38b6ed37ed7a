//! Tests for the prompts of the built-in tasks and for the rejection of invalid rows.

use serde_json::{Value, json};

use super::*;
use ghostlab_core::tasks::{Split, TASKS};

use crate::Row;
use crate::task::{PromptSettings, RequestKind};

struct Prompt {
    choices: Vec<Choice>,
    gold: i64,
}

struct Choice {
    text: String,
    context: String,
    continuation: String,
}

/// Renders the last of the given rows as a prompt.
fn render_last(name: &str, rows: Vec<Value>) -> Result<Prompt> {
    let last = rows.len() - 1;
    let known = Known::find(name).unwrap();
    let task = Task::from_rows(
        definition(known)?.clone(),
        rows.into_iter()
            .map(|fields| Row { location: "x.jsonl:3".to_owned(), value: serde_json::from_value(fields).unwrap() })
            .collect(),
        None,
    )?;
    let mut requests = task.requests(&FileRows::default(), &PromptSettings::default())?;
    requests.retain(|request| request.document == last);
    let (texts, gold) = task.solution(last)?;
    assert_eq!(requests.len(), texts.len());
    let choices = texts
        .iter()
        .zip(requests)
        .map(|(text, request)| {
            let RequestKind::LogLikelihood { context, continuation } = request.kind else {
                panic!("not a log-likelihood")
            };
            Choice { text: text.text(), context, continuation }
        })
        .collect();
    Ok(Prompt { choices, gold: gold.as_int().unwrap() })
}

fn render_prompt(task: &str, fields: Value) -> Prompt {
    render_last(task, vec![fields]).unwrap()
}

fn rejection_message(task: &str, fields: Value) -> String {
    let error = render_last(task, vec![fields]).map(|_| ()).unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
    let message = error.to_string();
    assert!(
        message.contains(task) && message.contains("x.jsonl:3"),
        "the message does not name task and row: {message}"
    );
    message
}

fn continuations(prompt: &Prompt) -> Vec<&str> {
    prompt.choices.iter().map(|choice| choice.continuation.as_str()).collect()
}

#[test]
fn builtin_definitions_match_the_builtin_tasks() {
    for known in TASKS {
        let defined = definition(known).unwrap();
        let metrics: Vec<&str> = defined.metrics.iter().map(|metric| metric.kind.name()).collect();
        assert_eq!(metrics, known.metrics.iter().map(|metric| metric.name()).collect::<Vec<_>>(), "{}", known.name);
        assert_eq!((defined.name.as_str(), defined.version.as_str()), (known.name, &*format!("{}.0", known.version)));
        let test = defined.test.as_deref();
        let validation = defined.validation.as_deref();
        let expected = match known.split {
            Split::Test => (Some("test"), None),
            Split::Validation => (None, Some("validation")),
        };
        assert_eq!((test, validation), expected, "{}", known.name);
        assert!(known.source.ends_with(&defined.data.path), "{}", known.name);
        assert_eq!(defined.shots(Some(5)), 5);
        assert_eq!(defined.non_finite, Known::NON_FINITE, "{}", known.name);
    }
    assert_eq!(FILES.len(), TASKS.len());
}

#[test]
fn arc_answer_key_is_looked_up_among_the_labels() {
    let choices = json!({"text": ["x", " y", "z"], "label": ["1", "2", "3"]});
    let prompt = render_prompt("arc_easy", json!({"question": "Q {{x}}? ", "choices": choices, "answerKey": "3"}));
    assert_eq!(prompt.gold, 2);
    assert_eq!(prompt.choices[1].context, "Question: Q {{x}}? \nAnswer:");
    assert_eq!(continuations(&prompt), [" x", "  y", " z"], "one space, even before a space");
    let message = rejection_message("arc_challenge", json!({"question": "Q", "choices": choices, "answerKey": "A"}));
    assert!(message.contains("'A' is not in the list ['1', '2', '3']"), "{message}");
    let uneven = json!({"text": ["x"], "label": ["1", "2"]});
    rejection_message("arc_challenge", json!({"question": "Q", "choices": uneven, "answerKey": "1"}));
}

#[test]
fn openbookqa_strips_only_leading_spaces_of_the_answer_key() {
    assert_eq!(render_prompt("openbookqa", openbook_row("\u{1f} B")).gold, 1);
    assert_eq!(render_prompt("openbookqa", openbook_row("A")).choices[0].context, "S ");
    rejection_message("openbookqa", openbook_row("B "));
}

fn openbook_row(key: &str) -> Value {
    json!({"question_stem": "S ", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": key})
}

#[test]
fn hellaswag_capitalizes_second_half_and_parses_labels() {
    let fields = json!({"activity_label": "Act", "ctx_a": "He  sits.", "ctx_b": "DJ MARY", "label": " 2",
        "endings": ["a", " b ", "[step] c", "[x]"]});
    // lm-eval rejects an empty choice, but only in the first document.
    assert!(rejection_message("hellaswag", fields.clone()).contains("a choice is empty"));
    let mut first = fields.clone();
    first["endings"][3] = json!("d");
    let prompt = render_last("hellaswag", vec![first, fields.clone()]).unwrap();
    assert_eq!(prompt.choices[0].context, "Act: He sits. Dj mary");
    assert_eq!(continuations(&prompt), [" a", " b", "  c", " "]);
    assert_eq!((prompt.gold, prompt.choices[2].text.as_str()), (2, " c"));
    for (field, value) in [("label", json!("")), ("label", json!(null)), ("endings", json!(["a", "b", "c"]))] {
        let mut fields = fields.clone();
        fields[field] = value;
        rejection_message("hellaswag", fields);
    }
}

#[test]
fn winogrande_sentence_is_split_at_the_first_blank_only() {
    let prompt = render_prompt("winogrande", winogrande_row("Gave the _ to him, and the _ fell. "));
    assert_eq!(prompt.choices[0].context, "Gave the rug ");
    assert_eq!(prompt.choices[0].text, "Gave the rug ");
    assert_eq!(continuations(&prompt), [" to him, and the _ fell."; 2]);
    assert_eq!(prompt.gold, 1);
    for (sentence, wanted) in [("a _.", " ."), ("a _'s b", " 's b"), ("a _", " "), ("a __ b", " _ b")] {
        assert_eq!(continuations(&render_prompt("winogrande", winogrande_row(sentence)))[0], wanted);
    }
    assert!(rejection_message("winogrande", winogrande_row("no blank")).contains("a blank `_`"));
    let mut hidden = winogrande_row("a _");
    hidden["answer"] = json!("");
    assert!(rejection_message("winogrande", hidden).contains("use the validation split"));
}

fn winogrande_row(sentence: &str) -> Value {
    json!({"sentence": sentence, "option1": "rug ", "option2": "b", "answer": "2"})
}

#[test]
fn boolq_appends_a_question_mark_even_if_there_is_one() {
    let prompt = render_prompt("boolq", json!({"question": "is it so?", "passage": "P\n", "label": 1}));
    assert_eq!(prompt.choices[0].context, "P\n\nQuestion: is it so??\nAnswer:");
    assert_eq!(continuations(&prompt), [" no", " yes"]);
    assert_eq!(prompt.gold, 1);
    rejection_message("boolq", json!({"question": "q", "passage": "P", "label": true}));
    rejection_message("boolq", json!({"question": "q", "passage": "P", "label": "1"}));
}

#[test]
fn rte_prompt_asks_for_true_or_false() {
    let prompt = render_prompt("rte", json!({"sentence1": "A.", "sentence2": "B. ", "label": 1}));
    assert_eq!(prompt.choices[1].context, "A.\nQuestion: B.  True or False?\nAnswer:");
    assert_eq!(continuations(&prompt), [" True", " False"]);
}

#[test]
fn copa_drops_the_last_character_and_lowercases_choices() {
    let prompt = render_prompt("copa", copa_row("  The dog ran. ", "cause", 0));
    assert_eq!(prompt.choices[0].context, "The dog ran because");
    assert_eq!(continuations(&prompt), ["  i opened.", "  tHE bus."]);
    assert_eq!(prompt.choices[0].text, " i opened.");
    assert_eq!(render_prompt("copa", copa_row("It stopped", "effect", 0)).choices[0].context, "It stoppe therefore");
    assert_eq!(render_prompt("copa", copa_row("é", "effect", 0)).choices[0].context, " therefore");
    assert_eq!([0, 1].map(|label| render_prompt("copa", copa_row("A.", "cause", label)).gold), [0, 1]);
    for label in [-1, 2, 99] {
        assert!(rejection_message("copa", copa_row("A.", "cause", label)).contains("expected: 0 or 1"));
    }
    let mut same = copa_row("A.", "cause", 1);
    same["choice2"] = json!("i opened.");
    assert_eq!(render_prompt("copa", same.clone()).gold, 0, "the first matching choice must be used");
    same["choice1"] = json!("");
    rejection_message("copa", same);
    rejection_message("copa", copa_row("A.", "why", 0));
}

fn copa_row(premise: &str, question: &str, label: i64) -> Value {
    json!({"premise": premise, "choice1": "I opened.", "choice2": "THE bus.", "question": question, "label": label})
}

fn race_row(problems: &str) -> Value {
    json!({"article": "Text. ", "problems": problems})
}

#[test]
fn race_blank_handling_depends_on_the_task_version() {
    let problems = "[{'question': 'Lee is  _  .', 'options': ['a', 'b', 'c', 'd'], 'answer': 'B'}, \
                     {'question': 'He is _ .', 'options': ['e', 'f', 'g', 'h'], 'answer': 'D'}, \
                     {'question': 'So  _  .', 'options': ['i', \"j'\", 'k', 'l', 'm'], 'answer': 'A'},]";
    let prompt = render_prompt("race", race_row(problems));
    let context = "Article: Text. \n\nLee is b\nQuestion: He is _ .\nAnswer: h\nSo  _  .";
    assert_eq!(prompt.choices[0].context, context);
    assert_eq!(continuations(&prompt), [" i", " j'", " k", " l"]);
    assert_eq!(prompt.gold, 0);
    let old = render_prompt("race_v2", race_row(problems));
    assert_eq!(old.choices[0].context, context.replace("Lee is b", " _  .b"));
}

#[test]
fn malformed_race_row_is_rejected_with_a_reason() {
    for (problems, words) in [
        ("[]", "at least one problem"),
        ("{}", "a list of dicts"),
        ("['a']", "a list of dicts"),
        ("[{", "invalid Python literal"),
        ("[{'options': ['a', 'b', 'c', 'd'], 'answer': 'A'}]", "problem 1"),
        ("[{'question': 'q', 'options': ['a', 'b', 'c'], 'answer': 'A'}]", "four options"),
        ("[{'question': 'q', 'options': ['a', 'b', 'c', 'd'], 'answer': 'E'}]", "a letter A to D"),
        ("[{'question': 'q', 'options': ['a', 'b', 'c', 4], 'answer': 'A'}]", "a list of strings"),
    ] {
        let message = rejection_message("race", race_row(problems));
        assert!(message.contains(words), "{message}");
    }
    rejection_message("race", json!({"article": "a", "problems": [{"question": "q"}]}));
}

/// Many test splits on the Hub have the label -1 in every row.
#[test]
fn unlabeled_rows_are_rejected_unless_some_have_labels() {
    let rte = json!({"sentence1": "It rains.", "sentence2": "It is wet.", "label": -1});
    let boolq = json!({"question": "q", "passage": "P", "label": -1});
    let copa = json!({"premise": "A.", "choice1": "b", "choice2": "c", "question": "cause", "label": -1});
    for (task, fields) in [("rte", rte.clone()), ("boolq", boolq), ("copa", copa)] {
        let message = rejection_message(task, fields);
        assert!(message.contains("no label") && message.contains("use the validation split"), "{message}");
    }
    // If only some rows have no label, they are scored as in lm-eval and reported.
    let mut labeled = rte.clone();
    labeled["label"] = json!(0);
    assert!(render_last("rte", vec![labeled.clone(), rte.clone()]).is_ok());
    assert_eq!(unlabeled_warning(vec![labeled.clone(), labeled.clone()]), None);
    let message = unlabeled_warning(vec![labeled, rte.clone(), rte]).unwrap();
    assert!(message.starts_with("2 of 3 documents have no label") && message.contains(":2"), "{message}");
}

fn unlabeled_warning(rows: Vec<Value>) -> Option<String> {
    let rows = rows.into_iter().enumerate().map(|(at, value)| Row {
        location: format!("x.jsonl:{}", at + 1),
        value: serde_json::from_value(value).unwrap(),
    });
    let known = definition(Known::find("rte").unwrap()).unwrap().clone();
    Task::from_rows(known, rows.collect(), None).unwrap().unlabeled()
}
