//! Tests for the metrics computed from answers.

use super::*;

/// Computes the scores for a definition from the given answers to its requests.
fn compute_scores(text: &str, rows: &'static str, answers: &[(f64, bool)]) -> Vec<(String, f64, Option<f64>)> {
    let task = task_of(text, rows).unwrap();
    let requests = task.requests(&ListRows(rows), &PromptSettings::default()).unwrap();
    let answers: Vec<Answer> =
        requests.iter().zip(answers).map(|(request, answer)| answer_of(request, *answer)).collect();
    let all = scores(&task, &requests, &answers, 1000).unwrap();
    all.into_iter().map(|score| (score.metric, score.score, score.error)).collect()
}

fn answer_of(request: &Request, (number, greedy): (f64, bool)) -> Answer {
    match request.kind {
        RequestKind::Rolling { .. } => Answer::Rolling(number),
        _ => Answer::LogLikelihood(number, greedy),
    }
}

#[test]
fn first_of_tied_choices_wins_and_nan_beats_numbers() {
    assert_eq!((likeliest_score("acc", -1.0, -1.0), likeliest_score("acc", -2.0, -1.0)), (0.0, 1.0));
    assert_eq!(likeliest_score("acc", -1.0, f64::NAN), 1.0);
    // The log-likelihood is divided by the number of characters or bytes in the choice without its delimiter. `é` is
    // one character and two bytes.
    assert_eq!((likeliest_score("acc_norm", -1.0, -1.5), likeliest_score("acc_bytes", -1.0, -1.5)), (1.0, 0.0));
    // For choices, exact match tests whether the correct choice is the greedy output.
    assert_eq!(likeliest_score("exact_match", -1.0, -9.0), 1.0);
    // A document whose gold index is out of range is scored as wrong.
    const INVALID_INDEX: &str = r#"[{"q": "q", "c": ["a", "b"], "n": 0}, {"q": "q", "c": ["a", "b"], "n": 7}]"#;
    let text = multiple_choice("metric_list: [{metric: acc}]");
    assert_eq!(
        compute_scores(&text, INVALID_INDEX, &[(-1.0, true), (-2.0, true), (-1.0, true), (-2.0, true)])[0].1,
        0.5
    );
    // With several correct answers, one match is enough.
    const TWO_ANSWERS: &str = r#"[{"q": "q", "c": ["a", "b"], "n": [0, 1]}]"#;
    assert_eq!(compute_scores(&text, TWO_ANSWERS, &[(-2.0, true), (-1.0, true)])[0].1, 1.0);
}

fn likeliest_score(metric: &str, one: f64, two: f64) -> f64 {
    const UNICODE_CHOICE: &str = r#"[{"q": "q", "c": ["é", "bb"], "n": 1}]"#;
    compute_scores(
        &multiple_choice(&format!("metric_list: [{{metric: {metric}}}]")),
        UNICODE_CHOICE,
        &[(one, false), (two, true)],
    )[0]
    .1
}

#[test]
fn word_perplexity_counts_empty_strings_around_whitespace() {
    const SPACED_TEXT: &str = r#"[{"q": " a  b é "}]"#;
    let text =
        multiple_choice("output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: q\ndoc_to_choice: null\n");
    let scores = compute_scores(&text, SPACED_TEXT, &[(-10.0, true)]);
    let names: Vec<&str> = scores.iter().map(|score| score.0.as_str()).collect();
    assert_eq!(names, ["word_perplexity", "byte_perplexity", "bits_per_byte"]);
    // `re.split(r"\s+", …)` gives "", a, b, é, "". The text has 9 bytes.
    let expected = [(10.0_f64 / 5.0).exp(), (10.0_f64 / 9.0).exp(), 10.0 / 9.0 / std::f64::consts::LN_2];
    scores.iter().zip(expected).for_each(|(score, expected)| assert!((score.1 - expected).abs() < 1e-12, "{score:?}"));
    assert!(scores.iter().all(|score| score.2.is_none()), "the harness reports N/A");
}

#[test]
fn standard_errors_need_at_least_two_documents() {
    let text = multiple_choice("output_type: loglikelihood\ndoc_to_target: q\ndoc_to_choice: null\n");
    let scores = compute_scores(&text, ROWS, &[(-1.0, true), (-2.0, false), (-4.0, true)]);
    assert_eq!((scores[0].0.as_str(), scores[1].0.as_str()), ("perplexity", "acc"));
    assert!((scores[0].1 - (7.0_f64 / 3.0).exp()).abs() < 1e-12 && scores[0].2.is_some());
    // Standard error of the mean: sample standard deviation divided by the square root of the sample size.
    let deviation = (2.0_f64 / 9.0 * 3.0 / 2.0).sqrt();
    assert!(
        (scores[1].1 - 2.0 / 3.0).abs() < 1e-12 && (scores[1].2.unwrap() - deviation / 3.0_f64.sqrt()).abs() < 1e-12
    );
    // A single document has no standard error.
    assert_eq!(Aggregation::Mean.error(&[Item::Number(1.0)], 1000).unwrap(), None);
}

#[test]
fn f1_scores_label_1_and_rejects_a_third_label() {
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
fn group_score_is_weighted_and_its_error_is_pooled() {
    let parts = [
        TaskScore { score: 1.0, error: Some(0.1), documents: 10 },
        TaskScore { score: 0.0, error: Some(0.2), documents: 30 },
    ];
    let pooled = ((9.0 * 0.01 * 10.0 + 29.0 * 0.04 * 30.0) / 38.0_f64 / 40.0).sqrt();
    for (by_size, score) in [(true, 0.25), (false, 0.5)] {
        let (ours, error) = aggregate_group(&parts, &group_metric(by_size)).unwrap();
        assert!((ours - score).abs() < 1e-12 && (error.unwrap() - pooled).abs() < 1e-12);
    }
    let unknown = [parts[0], TaskScore { error: None, ..parts[1] }];
    assert_eq!(aggregate_group(&unknown, &group_metric(true)).unwrap().1, None);
}

fn group_metric(by_size: bool) -> GroupMetric {
    GroupMetric { metric: "acc".into(), filters: None, by_size }
}

#[test]
fn first_document_determines_the_field_types() {
    let list = rejection_of(r#"[{"q": "q", "c": ["a", "b"], "n": [0, 1]}, {"q": "q", "c": ["a", "b"], "n": 1}]"#);
    let words = "the first document has a list of correct answers";
    assert!(list.contains(words) && list.contains("test.jsonl:2"), "{list}");
    let number = rejection_of(r#"[{"q": "q", "c": ["a", "b"], "n": 1}, {"q": "q", "c": ["a", "b"], "n": [0, 1]}]"#);
    assert!(number.contains("neither the index nor the text of a choice"), "{number}");
    // The first document's question is a string, so a later question that is a number is rejected.
    const MIXED_TYPES: &str = r#"[{"q": "q", "c": ["a", "b"], "n": 1}, {"q": 0, "c": ["a", "b"], "n": 1}]"#;
    let task = task_of(&multiple_choice(""), MIXED_TYPES).unwrap();
    let error = task.requests(&ListRows(MIXED_TYPES), &PromptSettings::default()).unwrap_err().to_string();
    assert!(error.contains("the question is not text") && error.contains("test.jsonl:2"), "{error}");
}

fn rejection_of(rows: &'static str) -> String {
    let answers = [(-1.0, true), (-2.0, true), (-1.0, true), (-2.0, true)];
    let task = task_of(&multiple_choice(""), rows).unwrap();
    let requests = task.requests(&ListRows(rows), &PromptSettings::default()).unwrap();
    let answers: Vec<Answer> = answers.iter().map(|(number, greedy)| Answer::LogLikelihood(*number, *greedy)).collect();
    scores(&task, &requests, &answers, 100).unwrap_err().to_string()
}

#[test]
fn chosen_answers_are_those_that_the_metrics_scored() {
    // The log-likelihoods per character are -1 and -0.5. The second choice is the greedy output.
    const LONG_CHOICE: &str = r#"[{"q": "q", "c": ["a", "bbbb"], "n": 0}]"#;
    let text = multiple_choice("metric_list: [{metric: acc}, {metric: acc_norm}, {metric: exact_match}]");
    let greedy = Value::List(vec![Value::Bool(false), Value::Bool(true)]);
    assert_eq!(
        chosen_answers(&text, LONG_CHOICE, &[Answer::LogLikelihood(-1.0, false), Answer::LogLikelihood(-2.0, true)]),
        [Value::Int(0), Value::Int(1), greedy]
    );
    // The answer is the filtered text in lowercase and without punctuation, which the metric ignores.
    let text = multiple_choice(
        "output_type: generate_until\nfilter_list: [{name: v, filter: [{function: majority_vote}, {function: take_first}]}]\n\
         metric_list: [{metric: exact_match, ignore_case: true, ignore_punctuation: true}]",
    );
    let answer = Answer::Texts(["No.", "Yes!", "Yes!"].map(str::to_owned).to_vec());
    assert_eq!(chosen_answers(&text, LONG_CHOICE, &[answer]), [Value::from("yes")]);
}

/// Returns the answer that each metric scores for the only document.
fn chosen_answers(text: &str, rows: &'static str, answers: &[Answer]) -> Vec<Value> {
    let task = task_of(text, rows).unwrap();
    let scored = score_task(&task, &[answers.to_vec()], &|_, _| Ok(None)).unwrap();
    scored.into_iter().flat_map(|scored| scored.chosen).collect()
}

/// Computes the scores for a generation task from the given answers to each document.
fn score_generated(more: &str, rows: &'static str, answers: &[&[&str]]) -> Result<Vec<f64>> {
    let text = multiple_choice(&format!("output_type: generate_until\n{more}"));
    let task = task_of(&text, rows)?;
    let requests = task.requests(&ListRows(rows), &PromptSettings::default())?;
    assert_eq!(requests.len(), answers.len());
    let answers: Vec<Answer> =
        answers.iter().map(|texts| Answer::Texts(texts.iter().map(|text| (*text).to_owned()).collect())).collect();
    Ok(scores(&task, &requests, &answers, 100)?.into_iter().map(|score| score.score).collect())
}

#[test]
fn generated_text_is_compared_with_choice_list_or_string() {
    // With choices, the target is the text of the correct choice.
    assert_eq!(score_generated("", ROWS, &[&["a"], &["d"], &["1"]]).unwrap(), [2.0 / 3.0]);
    // Without choices, a number is compared as text and a list matches any of its items.
    assert_eq!(score_generated("doc_to_choice: null", ROWS, &[&["0"], &["1"], &["x"]]).unwrap(), [2.0 / 3.0]);
    assert_eq!(
        score_generated("doc_to_choice: null\ndoc_to_target: c", ROWS, &[&["b"], &["c"], &["a"]]).unwrap(),
        [2.0 / 3.0]
    );
}

#[test]
fn first_repeated_answer_is_scored_without_a_filter() {
    let all: [&[&str]; 3] = [&["x", "a", "a"], &["d", "x", "x"], &["x", "f", "f"]];
    assert_eq!(score_generated("repeats: 3", ROWS, &all).unwrap(), [1.0 / 3.0]);
    let vote = "repeats: 3\nfilter_list: [{name: v, filter: [{function: majority_vote}, {function: take_first}]}]";
    assert_eq!(score_generated(vote, ROWS, &all).unwrap(), [2.0 / 3.0]);
    assert_eq!(requests_of(&multiple_choice("output_type: generate_until\nrepeats: 3"), &with_shots(0))[0].repeats, 3);
}

#[test]
fn exact_match_ignores_patterns_case_punctuation_digits() {
    assert!(matches_exactly("t", "", "> A-1.") && !matches_exactly("t", "", " > A-1."));
    assert!(matches_exactly("t", ", regexes_to_ignore: ['> ']", "A-1."));
    // The pattern is applied before lowercasing.
    assert!(!matches_exactly("t", ", regexes_to_ignore: ['> a'], ignore_case: true", "-1."));
    assert!(matches_exactly("t", ", ignore_case: true, ignore_punctuation: true", " a1"));
    assert!(matches_exactly("t", ", ignore_punctuation: true, ignore_numbers: true", " A"));
    assert!(!matches_exactly("f", ", ignore_punctuation: true", ""), "only ASCII punctuation is ignored");
}

fn matches_exactly(target: &str, options: &str, answer: &str) -> bool {
    const PUNCTUATED_TARGET: &str = r#"[{"q": "q", "t": "> A-1.", "f": "\uff01"}]"#;
    let more = format!("doc_to_choice: null\ndoc_to_target: {target}\nmetric_list: [{{metric: exact_match{options}}}]");
    score_generated(&more, PUNCTUATED_TARGET, &[&[answer]]).unwrap() == [1.0]
}

/// The expected value comes from lm-eval's `bootstrap_stderr` on Python 3.11. The 3,000 samples are drawn in three
/// chunks of 1,000, with `Random(0)` to `Random(2)`.
#[test]
fn bootstrap_errors_match_python_chunk_by_chunk() {
    let items = [-1.0, -2.0, -4.0].map(Item::Number);
    let error = Aggregation::Perplexity.error(&items, 3000).unwrap().unwrap();
    assert!((error - 10.973196339408776).abs() < 1e-9, "{error}");
}
