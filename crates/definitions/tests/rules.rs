//! Behaviour of lm-eval at commit `4e7e0d4`, one rule per test, on tiny rows. `tests/harness.rs` in this crate and
//! `tests/lm_eval.rs` of the program compare with lm-eval itself.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use ghostlab_core::error::Result;
use ghostlab_definitions::aggregate::{Aggregation, GroupMetric, Item, TaskScore, grouped};
use ghostlab_definitions::definition::Data;
use ghostlab_definitions::results::scores;
use ghostlab_definitions::yaml::parse;
use ghostlab_definitions::{Answer, Ask, ChatTemplate, Definition, Request, Row, Rows, Setting, Task, Value};

/// Rows of every split, from a JSON list. Each row gets the split name as column `s`.
struct Made(&'static str);

impl Rows for Made {
    fn rows(&self, _: &Data, split: &str) -> Result<Vec<Row>> {
        let rows: Vec<Value> = serde_json::from_str(self.0).unwrap();
        Ok(rows
            .into_iter()
            .enumerate()
            .map(|(index, mut value)| {
                value.set("s", Value::from(split));
                Row { place: format!("{split}.jsonl:{}", index + 1), value }
            })
            .collect())
    }
}

const ROWS: &str = r#"[{"q": "one", "c": ["a", "b"], "n": 0, "d": "1"}, {"q": "two", "c": ["c", "d"], "n": 1, "d": "0"},
    {"q": "six", "c": ["e", "f"], "n": 1, "d": "1"}]"#;

/// Builds a multiple-choice definition. `more` overrides its keys.
fn choices(more: &str) -> String {
    format!(
        "task: t\ndataset_path: x\ntraining_split: train\ntest_split: test\noutput_type: multiple_choice\n\
         doc_to_text: q\ndoc_to_choice: c\ndoc_to_target: n\n{more}\n"
    )
}

fn task_of(text: &str, rows: &'static str) -> Result<Task> {
    Task::new(Definition::read(&parse(text, "t.yaml")?)?, &Made(rows))
}

fn asked(text: &str, setting: &Setting<'_>) -> Vec<Request> {
    task_of(text, ROWS).unwrap().requests(&Made(ROWS), setting).unwrap()
}

fn shots(count: usize) -> Setting<'static> {
    Setting { shots: Some(count), ..Setting::default() }
}

/// Returns the context and continuation of each request.
fn texts(text: &str, setting: &Setting<'_>) -> Vec<(String, String)> {
    asked(text, setting)
        .into_iter()
        .map(|request| match request.ask {
            Ask::LogLikelihood { context, continuation } => (context, continuation),
            Ask::Rolling { text } => (text, String::new()),
            Ask::Generate { context, .. } => (context, String::new()),
        })
        .collect()
}

fn first(text: &str, setting: &Setting<'_>) -> (String, String) {
    texts(text, setting).swap_remove(0)
}

fn pair(context: &str, continuation: &str) -> (String, String) {
    (context.to_owned(), continuation.to_owned())
}

#[test]
fn column_field_keeps_its_value_and_digits_become_numbers() {
    // A target that is a column keeps its number, the index of the answer.
    assert_eq!(first(&choices(""), &shots(0)), pair("one", " a"));
    // Rendered digits become numbers only if there are choices.
    let rendered = choices("doc_to_target: '{{d}}'");
    assert!({
        let task = task_of(&rendered, ROWS).unwrap();
        task.target(&task.documents[0]).unwrap() == Value::Int(1)
    });
    let plain = "task: t\ndataset_path: x\ntest_split: test\noutput_type: loglikelihood\ndoc_to_text: q\ndoc_to_target: '{{d}}'\n";
    assert_eq!(first(plain, &shots(0)), pair("one", "1"));
    let leading = choices("doc_to_target: '0{{d}}'");
    assert!(task_of(&leading, ROWS).is_err(), "Python raises on 01");
    let listed = task_of(&choices("doc_to_target: '[0,  1]'"), ROWS).unwrap();
    assert_eq!(listed.target(&listed.documents[0]).unwrap(), Value::List(vec![Value::Int(0), Value::Int(1)]));
}

#[test]
fn choices_are_a_list_a_maps_values_or_a_printed_literal() {
    assert_eq!(two_targets("doc_to_choice: [x, y]"), [" x", " y"]);
    assert_eq!(two_targets("doc_to_choice: {1: x, 0: y}"), [" x", " y"]);
    assert_eq!(two_targets("doc_to_choice: \"{{['it is', c[1]]}}\""), [" it is", " b"]);
}

fn two_targets(more: &str) -> Vec<String> {
    texts(&choices(more), &shots(0)).into_iter().take(2).map(|pair| pair.1).collect::<Vec<_>>()
}

#[test]
fn test_split_is_evaluated_else_validation() {
    assert_eq!((split_field(""), split_field("validation_split: dev")), ("test".into(), "test".into()));
    assert_eq!(split_field("test_split: null\nvalidation_split: dev"), "dev");
}

fn split_field(more: &str) -> String {
    let task = task_of(&choices(more), ROWS).unwrap();
    task.documents[0].get("s").unwrap().text()
}

#[test]
fn examples_come_from_split_list_or_first_existing_split() {
    assert_eq!(first_example(""), "one train a");
    assert_eq!(first_example(", split: dev"), "one dev a");
    assert_eq!(first_example(", samples: [{q: own, c: [k, l], n: 1, s: said}]"), "own said l");
    assert_eq!(first_example(", split: dev, samples: [{q: own, c: [k, l], n: 1, s: said}]"), "one dev a");
}

fn first_example(more: &str) -> String {
    let examples = format!("doc_to_text: '{{{{q}}}} {{{{s}}}}'\nfewshot_config: {{sampler: first_n{more}}}\n");
    let context = first(&choices(&examples), &shots(1)).0;
    context.split("\n\n").next().unwrap().to_owned()
}

#[test]
fn explicit_zero_shots_stay_and_silence_means_none() {
    assert_eq!(first_context("num_fewshot: 0", Some(2)), "one");
    assert_eq!(first_context("", None), "one");
    assert_eq!(first_context("num_fewshot: 1\nfewshot_config: {sampler: first_n}", None), "one a\n\none");
    assert_eq!(first_context("num_fewshot: 1\nfewshot_config: {sampler: first_n}", Some(2)), "one a\n\ntwo d\n\none");
}

fn first_context(more: &str, asked: Option<usize>) -> String {
    first(&choices(more), &Setting { shots: asked, ..Setting::default() }).0
}

#[test]
fn examples_leave_out_the_document_if_splits_are_equal() {
    let named = "fewshot_split: test\nfewshot_config: {sampler: first_n}\ndoc_to_text: '{{q}}'\n";
    // Rows differ between splits, so the pool contains the document only if both splits are the same.
    assert_eq!(first(&choices(named), &shots(2)).0, "two d\n\nsix f\n\none");
    // Both splits are unset and therefore equal, so the document is removed from the validation pool.
    let neither = "test_split: null\nvalidation_split: dev\ntraining_split: null\nfewshot_config: {sampler: first_n}\n";
    assert_eq!(first(&choices(neither), &shots(1)).0, "two d\n\none");
    // Only the test split is set. It is also the pool, and the document may be shown with its own answer.
    let alone = "training_split: null\nfewshot_config: {sampler: first_n}\n";
    assert_eq!(first(&choices(alone), &shots(1)).0, "one a\n\none");
}

#[test]
fn description_is_glued_and_system_text_separated_once() {
    assert_eq!(first(&choices("description: Choose."), &shots(0)).0, "Choose.one");
    assert_eq!(first(&choices("description: Choose."), &system_setting("Be short.")).0, "Be short.\n\nChoose.one");
    assert_eq!(first(&choices("description: Choose."), &system_setting("Be short. ")).0, "Be short. Choose.one");
    assert_eq!(first(&choices("description: ' Choose.'"), &system_setting("Be short.")).0, "Be short. Choose.one");
}

fn system_setting(text: &str) -> Setting<'_> {
    Setting { system: Some(text.to_owned()), ..Setting::default() }
}

#[test]
fn an_empty_answer_of_an_example_has_no_delimiters() {
    let sample = "fewshot_config: {sampler: first_n, samples: [{q: own, c: [k, l], n: '', d: x}]}\ndoc_to_target: n\n";
    let text =
        "task: t\ndataset_path: x\ntest_split: test\noutput_type: loglikelihood\ndoc_to_text: '{{q}}'\n".to_owned();
    assert_eq!(first(&format!("{text}{sample}doc_to_target: \"{{{{n|string}}}}\"\n"), &shots(1)).0, "ownone");
}

#[test]
fn delimiter_precedes_a_choice_but_not_a_target() {
    let target = choices("output_type: loglikelihood\ndoc_to_target: q\ndoc_to_choice: null\ndoc_to_text: 'Say: '\n");
    assert_eq!(first(&target, &shots(0)), pair("Say: ", "one"));
    assert_eq!(first(&choices("target_delimiter: ':'"), &shots(0)), pair("one", ":a"));
    let rolling = choices("output_type: loglikelihood_rolling\ndoc_to_target: q\ndoc_to_choice: null\n");
    assert_eq!(first(&rolling, &shots(2)), pair("one", ""), "no context counts");
}

#[test]
fn begun_answer_follows_delimiter_and_blank_in_examples() {
    let begun = choices("gen_prefix: It is\nfewshot_config: {sampler: first_n}\ntarget_delimiter: ': '\n");
    assert_eq!(first(&begun, &shots(1)).0, "one: It is a\n\none: It is");
    let blank = choices("gen_prefix: ' It is'\n");
    assert_eq!(first(&blank, &shots(0)).0, "one It is");
}

#[test]
fn contexts_are_the_choices_where_the_question_is_a_number() {
    let text = choices("doc_to_text: n\ndoc_to_target: q\nfewshot_config: {sampler: first_n}\n");
    let of_first: Vec<_> = texts(&text, &shots(1)).into_iter().take(2).collect();
    assert_eq!(of_first, [pair("a one\n\na", " one"), pair("a one\n\nb", " one")]);
}

#[test]
fn mutual_information_asks_for_the_bare_choices_too() {
    let all = texts(&choices("metric_list: [{metric: acc_mutual_info}]"), &shots(0));
    assert_eq!(all[..4], [pair("one", " a"), pair("one", " b"), pair("", " a"), pair("", " b")]);
}

#[test]
fn chat_template_choice_has_no_delimiter_without_begun_answer() {
    let chat = ChatTemplate::new("{% for m in messages %}<{{m.content}}>{% endfor %}", Vec::new(), "t").unwrap();
    let setting = Setting { chat: Some(&chat), ..Setting::default() };
    assert_eq!(first(&choices(""), &setting), pair("<one>", "a"));
    assert_eq!(first(&choices("gen_prefix: It is"), &setting), pair("<one><It is", " a"));
    assert_eq!(first(&choices("gen_prefix: 'It is '"), &setting).1, "a");
    let in_one = Setting { shots: Some(1), multiturn: false, chat: Some(&chat), ..Setting::default() };
    let text = choices("fewshot_config: {sampler: first_n}\ndescription: Choose.");
    assert_eq!(first(&text, &in_one).0, "<Choose.><one a\n\none>");
    assert_eq!(first(&text, &Setting { multiturn: true, ..in_one }).0, "<Choose.><one><a><one>");
}

/// Computes the scores of a definition for the given answers to its requests.
fn scored(text: &str, rows: &'static str, answers: &[(f64, bool)]) -> Vec<(String, f64, Option<f64>)> {
    let task = task_of(text, rows).unwrap();
    let requests = task.requests(&Made(rows), &Setting::default()).unwrap();
    let answers: Vec<Answer> =
        requests.iter().zip(answers).map(|(request, answer)| answer_of(request, *answer)).collect();
    let all = scores(&task, &requests, &answers, 1000).unwrap();
    all.into_iter().map(|answer_of| (answer_of.metric, answer_of.score, answer_of.error)).collect()
}

fn answer_of(request: &Request, (number, greedy): (f64, bool)) -> Answer {
    match request.ask {
        Ask::Rolling { .. } => Answer::Rolling(number),
        _ => Answer::LogLikelihood(number, greedy),
    }
}

#[test]
fn likeliest_choice_is_first_of_equals_and_nan_wins() {
    assert_eq!((likeliest_score("acc", -1.0, -1.0), likeliest_score("acc", -2.0, -1.0)), (0.0, 1.0));
    assert_eq!(likeliest_score("acc", -1.0, f64::NAN), 1.0);
    // The log-likelihood is divided by the characters or bytes of the choice without its delimiter. `é` is one
    // character and two bytes.
    assert_eq!((likeliest_score("acc_norm", -1.0, -1.5), likeliest_score("acc_bytes", -1.0, -1.5)), (1.0, 0.0));
    // For choices, exact match tests whether the correct choice is the greedy output.
    assert_eq!(likeliest_score("exact_match", -1.0, -9.0), 1.0);
    // A gold index out of range is scored as wrong.
    const ODD: &str = r#"[{"q": "q", "c": ["a", "b"], "n": 0}, {"q": "q", "c": ["a", "b"], "n": 7}]"#;
    let text = choices("metric_list: [{metric: acc}]");
    assert_eq!(scored(&text, ODD, &[(-1.0, true), (-2.0, true), (-1.0, true), (-2.0, true)])[0].1, 0.5);
    // With several correct answers, one match is enough.
    const TWO: &str = r#"[{"q": "q", "c": ["a", "b"], "n": [0, 1]}]"#;
    assert_eq!(scored(&text, TWO, &[(-2.0, true), (-1.0, true)])[0].1, 1.0);
}

fn likeliest_score(metric: &str, one: f64, two: f64) -> f64 {
    const ONE: &str = r#"[{"q": "q", "c": ["é", "bb"], "n": 1}]"#;
    scored(&choices(&format!("metric_list: [{{metric: {metric}}}]")), ONE, &[(one, false), (two, true)])[0].1
}

#[test]
fn words_split_at_blanks_and_trailing_blank_adds_one() {
    const LONG: &str = r#"[{"q": " a  b é "}]"#;
    let text = choices("output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: q\ndoc_to_choice: null\n");
    let scores = scored(&text, LONG, &[(-10.0, true)]);
    let names: Vec<&str> = scores.iter().map(|score| score.0.as_str()).collect();
    assert_eq!(names, ["word_perplexity", "byte_perplexity", "bits_per_byte"]);
    // `re.split(r"\s+", …)` gives "", a, b, é, "". The text has 9 bytes.
    let expected = [(10.0_f64 / 5.0).exp(), (10.0_f64 / 9.0).exp(), 10.0 / 9.0 / std::f64::consts::LN_2];
    scores.iter().zip(expected).for_each(|(score, expected)| assert!((score.1 - expected).abs() < 1e-12, "{score:?}"));
    assert!(scores.iter().all(|score| score.2.is_none()), "the harness says N/A");
}

#[test]
fn a_perplexity_is_of_the_mean_and_its_error_of_drawn_samples() {
    let text = choices("output_type: loglikelihood\ndoc_to_target: q\ndoc_to_choice: null\n");
    let scores = scored(&text, ROWS, &[(-1.0, true), (-2.0, false), (-4.0, true)]);
    assert_eq!((scores[0].0.as_str(), scores[1].0.as_str()), ("perplexity", "acc"));
    assert!((scores[0].1 - (7.0_f64 / 3.0).exp()).abs() < 1e-12 && scores[0].2.is_some());
    // Standard error of the mean: sample standard deviation over the square root of the sample size.
    let deviation = (2.0_f64 / 9.0 * 3.0 / 2.0).sqrt();
    assert!(
        (scores[1].1 - 2.0 / 3.0).abs() < 1e-12 && (scores[1].2.unwrap() - deviation / 3.0_f64.sqrt()).abs() < 1e-12
    );
    // A single document has no standard error.
    assert_eq!(Aggregation::Mean.error(&[Item::Number(1.0)], 1000).unwrap(), None);
}

#[test]
fn f1_is_of_the_label_one_and_a_third_label_is_an_error() {
    let items = label_items(&[(1, 1), (1, 0), (0, 1), (0, 0), (1, 1)]);
    assert!((Aggregation::F1.score(&items).unwrap() - 2.0 / 3.0).abs() < 1e-12);
    // 2 TP, 1 FP, 1 FN, 1 TN: (2·1 − 1·1) / √(3·3·2·2).
    assert!((Aggregation::Matthews.score(&items).unwrap() - 1.0 / 6.0).abs() < 1e-12);
    assert!(Aggregation::F1.score(&label_items(&[(1, 2), (0, 0)])).is_err());
    let median = [3.0, 1.0, 2.0, 9.0].map(Item::Number);
    assert_eq!(Aggregation::Median.score(&median).unwrap(), 3.0, "sorted[n // 2]");
}

fn label_items(pairs: &[(i64, i64)]) -> Vec<Item> {
    pairs.iter().map(|(right, predicted)| Item::Labels(Value::Int(*right), *predicted)).collect()
}

#[test]
fn groups_weigh_by_size_or_not_and_their_error_is_pooled() {
    let parts = [
        TaskScore { score: 1.0, error: Some(0.1), documents: 10 },
        TaskScore { score: 0.0, error: Some(0.2), documents: 30 },
    ];
    let pooled = ((9.0 * 0.01 * 10.0 + 29.0 * 0.04 * 30.0) / 38.0_f64 / 40.0).sqrt();
    for (by_size, score) in [(true, 0.25), (false, 0.5)] {
        let (ours, error) = grouped(&parts, &group_metric(by_size)).unwrap();
        assert!((ours - score).abs() < 1e-12 && (error.unwrap() - pooled).abs() < 1e-12);
    }
    let unknown = [parts[0], TaskScore { error: None, ..parts[1] }];
    assert_eq!(grouped(&unknown, &group_metric(true)).unwrap().1, None);
}

fn group_metric(by_size: bool) -> GroupMetric {
    GroupMetric { metric: "acc".into(), filters: None, by_size }
}

#[test]
fn what_a_model_cannot_be_asked_is_one_error_with_its_place() {
    let column = request_error("doc_to_text: '{{question}}'", ROWS);
    assert!(column.contains("question") && column.contains("task t"), "{column}");
    let empty = request_error("doc_to_choice: ['', b]\ntarget_delimiter: ''", ROWS);
    assert!(empty.contains("a choice is empty"), "{empty}");
    let nothing = request_error("output_type: loglikelihood\ndoc_to_choice: null\ndoc_to_target: ''", ROWS);
    assert!(nothing.contains("nothing to score"), "{nothing}");
    let few = task_of(&choices(""), ROWS).unwrap().requests(&Made(ROWS), &shots(9)).unwrap_err().to_string();
    assert!(few.contains("too few examples"), "{few}");
    assert!(request_error("", "[]").contains("no documents"));
    let key = Definition::read(&parse(&choices("dataset_kwargs: {verbose: true}"), "t.yaml").unwrap()).unwrap_err();
    assert!(key.to_string().contains("dataset_kwargs.verbose") && key.to_string().contains("t.yaml:9"), "{key}");
}

fn request_error(more: &str, rows: &'static str) -> String {
    let task = task_of(&choices(more), rows).and_then(|task| task.requests(&Made(rows), &Setting::default()));
    task.unwrap_err().to_string()
}

#[test]
fn numbers_that_are_not_finite_are_refused_with_their_path() {
    for (more, path) in [
        ("metadata: {version: .nan}", "`metadata.version`"),
        ("fewshot_config: {samples: [{q: x, n: .inf}]}", "`fewshot_config.samples[0].n`"),
        ("generation_kwargs: {temperature: -.inf}", "`generation_kwargs.temperature`"),
    ] {
        let error = task_of(&choices(more), ROWS).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.exit_code(), 2, "{text}");
        assert!(text.contains(path) && text.contains("t.yaml:9") && text.contains("a finite number"), "{text}");
    }
}

#[test]
fn a_version_is_that_of_the_metadata_or_yaml() {
    assert_eq!(task_version(""), "Yaml");
    assert_eq!(task_version("metadata: {version: 2.0, other: x}"), "2.0");
}

fn task_version(more: &str) -> String {
    task_of(&choices(more), ROWS).unwrap().definition.version
}

#[test]
fn the_first_document_decides_what_all_have() {
    let list = refusal_of(r#"[{"q": "q", "c": ["a", "b"], "n": [0, 1]}, {"q": "q", "c": ["a", "b"], "n": 1}]"#);
    assert!(list.contains("the first document has a list of right answers") && list.contains("test.jsonl:2"), "{list}");
    let number = refusal_of(r#"[{"q": "q", "c": ["a", "b"], "n": 1}, {"q": "q", "c": ["a", "b"], "n": [0, 1]}]"#);
    assert!(number.contains("neither the index nor the text of a choice"), "{number}");
    // A numeric question is rejected if the first document has a string.
    const MIXED: &str = r#"[{"q": "q", "c": ["a", "b"], "n": 1}, {"q": 0, "c": ["a", "b"], "n": 1}]"#;
    let task = task_of(&choices(""), MIXED).unwrap();
    let error = task.requests(&Made(MIXED), &Setting::default()).unwrap_err().to_string();
    assert!(error.contains("the question is not text") && error.contains("test.jsonl:2"), "{error}");
}

fn refusal_of(rows: &'static str) -> String {
    let answers = [(-1.0, true), (-2.0, true), (-1.0, true), (-2.0, true)];
    let task = task_of(&choices(""), rows).unwrap();
    let requests = task.requests(&Made(rows), &Setting::default()).unwrap();
    let answers: Vec<Answer> = answers.iter().map(|(number, greedy)| Answer::LogLikelihood(*number, *greedy)).collect();
    scores(&task, &requests, &answers, 100).unwrap_err().to_string()
}

/// Computes the scores of a generation task for the given answers to each document.
fn generated(more: &str, rows: &'static str, answers: &[&[&str]]) -> Result<Vec<f64>> {
    let text = choices(&format!("output_type: generate_until\n{more}"));
    let task = task_of(&text, rows)?;
    let requests = task.requests(&Made(rows), &Setting::default())?;
    assert_eq!(requests.len(), answers.len());
    let answers: Vec<Answer> = answers
        .iter()
        .map(|texts_of_answer| Answer::Texts(texts_of_answer.iter().map(|text| (*text).to_owned()).collect()))
        .collect();
    Ok(scores(&task, &requests, &answers, 100)?.into_iter().map(|texts_of_answer| texts_of_answer.score).collect())
}

#[test]
fn generated_text_is_compared_with_choice_list_or_text() {
    // With choices, the target is the text of the correct choice.
    assert_eq!(generated("", ROWS, &[&["a"], &["d"], &["1"]]).unwrap(), [2.0 / 3.0]);
    // Without choices, a number is compared as text and a list matches any of its items.
    assert_eq!(generated("doc_to_choice: null", ROWS, &[&["0"], &["1"], &["x"]]).unwrap(), [2.0 / 3.0]);
    assert_eq!(
        generated("doc_to_choice: null\ndoc_to_target: c", ROWS, &[&["b"], &["c"], &["a"]]).unwrap(),
        [2.0 / 3.0]
    );
}

#[test]
fn first_of_repeated_answers_counts_without_a_filter() {
    let all: [&[&str]; 3] = [&["x", "a", "a"], &["d", "x", "x"], &["x", "f", "f"]];
    assert_eq!(generated("repeats: 3", ROWS, &all).unwrap(), [1.0 / 3.0]);
    let vote = "repeats: 3\nfilter_list: [{name: v, filter: [{function: majority_vote}, {function: take_first}]}]";
    assert_eq!(generated(vote, ROWS, &all).unwrap(), [2.0 / 3.0]);
    assert_eq!(asked(&choices("output_type: generate_until\nrepeats: 3"), &shots(0))[0].repeats, 3);
}

#[test]
fn exact_match_strips_patterns_case_punctuation_digits() {
    assert!(matches_exactly("t", "", "> A-1.") && !matches_exactly("t", "", " > A-1."));
    assert!(matches_exactly("t", ", regexes_to_ignore: ['> ']", "A-1."));
    // The pattern is applied before lowercasing.
    assert!(!matches_exactly("t", ", regexes_to_ignore: ['> a'], ignore_case: true", "-1."));
    assert!(matches_exactly("t", ", ignore_case: true, ignore_punctuation: true", " a1"));
    assert!(matches_exactly("t", ", ignore_punctuation: true, ignore_numbers: true", " A"));
    assert!(!matches_exactly("f", ", ignore_punctuation: true", ""), "punctuation is ASCII's");
}

fn matches_exactly(target: &str, options: &str, answer: &str) -> bool {
    const ONE: &str = r#"[{"q": "q", "t": "> A-1.", "f": "\uff01"}]"#;
    let more = format!("doc_to_choice: null\ndoc_to_target: {target}\nmetric_list: [{{metric: exact_match{options}}}]");
    generated(&more, ONE, &[&[answer]]).unwrap() == [1.0]
}

/// Compares with `bootstrap_stderr` of the harness on Python 3.11, with three chunks of 1,000 samples from
/// `Random(0)` to `Random(2)`.
#[test]
fn errors_are_drawn_by_pythons_generators_chunk_by_chunk() {
    let items = [-1.0, -2.0, -4.0].map(Item::Number);
    let error = Aggregation::Perplexity.error(&items, 3000).unwrap().unwrap();
    assert!((error - 10.973196339408776).abs() < 1e-9, "{error}");
}

#[test]
fn generation_stops_at_the_next_example_by_default() {
    assert_eq!(stop_texts(""), r"['\n\n']");
    assert_eq!(stop_texts("fewshot_delimiter: '##'"), "['##']");
    assert_eq!(stop_texts("generation_kwargs: {do_sample: false}"), r"['\n\n']");
    assert_eq!(stop_texts("generation_kwargs: {until: []}"), "[]");
}

fn stop_texts(more: &str) -> String {
    let text = choices(&format!("output_type: generate_until\n{more}"));
    task_of(&text, ROWS).unwrap().definition.generation.get("until").unwrap().repr()
}
