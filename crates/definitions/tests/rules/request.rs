//! Tests for the requests built for a task.

use super::*;

#[test]
fn column_values_are_kept_and_rendered_digits_are_numbers() {
    // A target that names a column keeps the column's integer, which is the index of the answer.
    assert_eq!(first_request_texts(&multiple_choice(""), &with_shots(0)), pair("one", " a"));
    // Rendered digits become numbers only if there are choices.
    let rendered = multiple_choice("doc_to_target: '{{d}}'");
    assert!({
        let task = task_of(&rendered, ROWS).unwrap();
        task.target(&task.documents[0]).unwrap() == Value::Int(1)
    });
    let plain = "task: t\ndataset_path: x\ntest_split: test\noutput_type: loglikelihood\ndoc_to_text: q\ndoc_to_target: '{{d}}'\n";
    assert_eq!(first_request_texts(plain, &with_shots(0)), pair("one", "1"));
    let leading = multiple_choice("doc_to_target: '0{{d}}'");
    assert!(task_of(&leading, ROWS).is_err(), "Python raises on 01");
    let listed = task_of(&multiple_choice("doc_to_target: '[0,  1]'"), ROWS).unwrap();
    assert_eq!(listed.target(&listed.documents[0]).unwrap(), Value::List(vec![Value::Int(0), Value::Int(1)]));
}

#[test]
fn choices_are_read_from_a_list_map_or_literal() {
    assert_eq!(two_targets("doc_to_choice: [x, y]"), [" x", " y"]);
    assert_eq!(two_targets("doc_to_choice: {1: x, 0: y}"), [" x", " y"]);
    assert_eq!(two_targets("doc_to_choice: \"{{['it is', c[1]]}}\""), [" it is", " b"]);
}

fn two_targets(more: &str) -> Vec<String> {
    request_texts(&multiple_choice(more), &with_shots(0)).into_iter().take(2).map(|pair| pair.1).collect::<Vec<_>>()
}

#[test]
fn validation_split_is_evaluated_without_a_test_split() {
    assert_eq!((split_field(""), split_field("validation_split: dev")), ("test".into(), "test".into()));
    assert_eq!(split_field("test_split: null\nvalidation_split: dev"), "dev");
}

fn split_field(more: &str) -> String {
    let task = task_of(&multiple_choice(more), ROWS).unwrap();
    task.documents[0].get("s").unwrap().text()
}

#[test]
fn examples_come_from_the_given_split_list_or_default_split() {
    assert_eq!(first_example(""), "one train a");
    assert_eq!(first_example(", split: dev"), "one dev a");
    assert_eq!(first_example(", samples: [{q: own, c: [k, l], n: 1, s: said}]"), "own said l");
    assert_eq!(first_example(", split: dev, samples: [{q: own, c: [k, l], n: 1, s: said}]"), "one dev a");
}

fn first_example(more: &str) -> String {
    let examples = format!("doc_to_text: '{{{{q}}}} {{{{s}}}}'\nfewshot_config: {{sampler: first_n{more}}}\n");
    let context = first_request_texts(&multiple_choice(&examples), &with_shots(1)).0;
    context.split("\n\n").next().unwrap().to_owned()
}

#[test]
fn zero_shots_cannot_be_overridden_and_are_the_default() {
    assert_eq!(first_context("num_fewshot: 0", Some(2)), "one");
    assert_eq!(first_context("", None), "one");
    assert_eq!(first_context("num_fewshot: 1\nfewshot_config: {sampler: first_n}", None), "one a\n\none");
    assert_eq!(first_context("num_fewshot: 1\nfewshot_config: {sampler: first_n}", Some(2)), "one a\n\ntwo d\n\none");
}

fn first_context(more: &str, requested: Option<usize>) -> String {
    first_request_texts(&multiple_choice(more), &PromptSettings { shots: requested, ..PromptSettings::default() }).0
}

#[test]
fn examples_exclude_the_document_if_splits_are_equal() {
    let named = "fewshot_split: test\nfewshot_config: {sampler: first_n}\ndoc_to_text: '{{q}}'\n";
    // The rows contain the name of their split, so the few-shot pool contains the document only if both splits are the
    // same.
    assert_eq!(first_request_texts(&multiple_choice(named), &with_shots(2)).0, "two d\n\nsix f\n\none");
    // The example split and the test split are both unset and count as equal, so the document is removed from the pool.
    let neither = "test_split: null\nvalidation_split: dev\ntraining_split: null\nfewshot_config: {sampler: first_n}\n";
    assert_eq!(first_request_texts(&multiple_choice(neither), &with_shots(1)).0, "two d\n\none");
    // Only the test split is set. Examples are drawn from it too, and a document may appear as its own example.
    let alone = "training_split: null\nfewshot_config: {sampler: first_n}\n";
    assert_eq!(first_request_texts(&multiple_choice(alone), &with_shots(1)).0, "one a\n\none");
}

#[test]
fn description_follows_the_system_prompt_after_a_delimiter() {
    assert_eq!(first_request_texts(&multiple_choice("description: Choose."), &with_shots(0)).0, "Choose.one");
    assert_eq!(
        first_request_texts(&multiple_choice("description: Choose."), &with_system("Be short.")).0,
        "Be short.\n\nChoose.one"
    );
    assert_eq!(
        first_request_texts(&multiple_choice("description: Choose."), &with_system("Be short. ")).0,
        "Be short. Choose.one"
    );
    assert_eq!(
        first_request_texts(&multiple_choice("description: ' Choose.'"), &with_system("Be short.")).0,
        "Be short. Choose.one"
    );
}

fn with_system(text: &str) -> PromptSettings<'_> {
    PromptSettings { system: Some(text.to_owned()), ..PromptSettings::default() }
}

#[test]
fn empty_example_answer_has_no_delimiters() {
    let sample = "fewshot_config: {sampler: first_n, samples: [{q: own, c: [k, l], n: '', d: x}]}\ndoc_to_target: n\n";
    let text =
        "task: t\ndataset_path: x\ntest_split: test\noutput_type: loglikelihood\ndoc_to_text: '{{q}}'\n".to_owned();
    assert_eq!(
        first_request_texts(&format!("{text}{sample}doc_to_target: \"{{{{n|string}}}}\"\n"), &with_shots(1)).0,
        "ownone"
    );
}

#[test]
fn target_delimiter_precedes_choices_but_not_targets() {
    let target =
        multiple_choice("output_type: loglikelihood\ndoc_to_target: q\ndoc_to_choice: null\ndoc_to_text: 'Say: '\n");
    assert_eq!(first_request_texts(&target, &with_shots(0)), pair("Say: ", "one"));
    assert_eq!(first_request_texts(&multiple_choice("target_delimiter: ':'"), &with_shots(0)), pair("one", ":a"));
    let rolling = multiple_choice("output_type: loglikelihood_rolling\ndoc_to_target: q\ndoc_to_choice: null\n");
    assert_eq!(first_request_texts(&rolling, &with_shots(2)), pair("one", ""), "rolling requests have no context");
}

#[test]
fn gen_prefix_follows_delimiter_unless_it_starts_with_space() {
    let begun = multiple_choice("gen_prefix: It is\nfewshot_config: {sampler: first_n}\ntarget_delimiter: ': '\n");
    assert_eq!(first_request_texts(&begun, &with_shots(1)).0, "one: It is a\n\none: It is");
    let blank = multiple_choice("gen_prefix: ' It is'\n");
    assert_eq!(first_request_texts(&blank, &with_shots(0)).0, "one It is");
}

#[test]
fn numeric_question_makes_each_choice_a_context() {
    let text = multiple_choice("doc_to_text: n\ndoc_to_target: q\nfewshot_config: {sampler: first_n}\n");
    let first_texts: Vec<_> = request_texts(&text, &with_shots(1)).into_iter().take(2).collect();
    assert_eq!(first_texts, [pair("a one\n\na", " one"), pair("a one\n\nb", " one")]);
}

#[test]
fn mutual_information_also_scores_choices_without_context() {
    let all = request_texts(&multiple_choice("metric_list: [{metric: acc_mutual_info}]"), &with_shots(0));
    assert_eq!(all[..4], [pair("one", " a"), pair("one", " b"), pair("", " a"), pair("", " b")]);
}

#[test]
fn chat_choices_have_no_delimiter_without_gen_prefix() {
    let chat = ChatTemplate::new("{% for m in messages %}<{{m.content}}>{% endfor %}", Vec::new(), "t").unwrap();
    let settings = PromptSettings { chat: Some(&chat), ..PromptSettings::default() };
    assert_eq!(first_request_texts(&multiple_choice(""), &settings), pair("<one>", "a"));
    assert_eq!(first_request_texts(&multiple_choice("gen_prefix: It is"), &settings), pair("<one><It is", " a"));
    assert_eq!(first_request_texts(&multiple_choice("gen_prefix: 'It is '"), &settings).1, "a");
    let in_one = PromptSettings { shots: Some(1), multiturn: false, chat: Some(&chat), ..PromptSettings::default() };
    let text = multiple_choice("fewshot_config: {sampler: first_n}\ndescription: Choose.");
    assert_eq!(first_request_texts(&text, &in_one).0, "<Choose.><one a\n\none>");
    assert_eq!(first_request_texts(&text, &PromptSettings { multiturn: true, ..in_one }).0, "<Choose.><one><a><one>");
}

#[test]
fn unusable_request_is_rejected_with_its_location() {
    let column = request_error("doc_to_text: '{{question}}'", ROWS);
    assert!(column.contains("question") && column.contains("task t"), "{column}");
    let empty = request_error("doc_to_choice: ['', b]\ntarget_delimiter: ''", ROWS);
    assert!(empty.contains("a choice is empty"), "{empty}");
    let nothing = request_error("output_type: loglikelihood\ndoc_to_choice: null\ndoc_to_target: ''", ROWS);
    assert!(nothing.contains("nothing to score"), "{nothing}");
    let few =
        task_of(&multiple_choice(""), ROWS).unwrap().requests(&ListRows(ROWS), &with_shots(9)).unwrap_err().to_string();
    assert!(few.contains("too few examples"), "{few}");
    assert!(request_error("", "[]").contains("no documents"));
    let key =
        Definition::read(&parse(&multiple_choice("dataset_kwargs: {verbose: true}"), "t.yaml").unwrap()).unwrap_err();
    assert!(key.to_string().contains("dataset_kwargs.verbose") && key.to_string().contains("t.yaml:9"), "{key}");
}

fn request_error(more: &str, rows: &'static str) -> String {
    let task = task_of(&multiple_choice(more), rows)
        .and_then(|task| task.requests(&ListRows(rows), &PromptSettings::default()));
    task.unwrap_err().to_string()
}

#[test]
fn nonfinite_numbers_are_rejected_with_their_path() {
    for (more, path) in [
        ("metadata: {version: .nan}", "`metadata.version`"),
        ("fewshot_config: {samples: [{q: x, n: .inf}]}", "`fewshot_config.samples[0].n`"),
        ("generation_kwargs: {temperature: -.inf}", "`generation_kwargs.temperature`"),
    ] {
        let error = task_of(&multiple_choice(more), ROWS).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.exit_code(), 2, "{text}");
        assert!(text.contains(path) && text.contains("t.yaml:9") && text.contains("a finite number"), "{text}");
    }
}

#[test]
fn task_version_comes_from_metadata_or_is_yaml() {
    assert_eq!(task_version(""), "Yaml");
    assert_eq!(task_version("metadata: {version: 2.0, other: x}"), "2.0");
}

fn task_version(more: &str) -> String {
    task_of(&multiple_choice(more), ROWS).unwrap().definition.version
}

#[test]
fn generation_stops_at_the_next_example_by_default() {
    assert_eq!(stop_texts(""), r"['\n\n']");
    assert_eq!(stop_texts("fewshot_delimiter: '##'"), "['##']");
    assert_eq!(stop_texts("generation_kwargs: {do_sample: false}"), r"['\n\n']");
    assert_eq!(stop_texts("generation_kwargs: {until: []}"), "[]");
}

fn stop_texts(more: &str) -> String {
    let text = multiple_choice(&format!("output_type: generate_until\n{more}"));
    task_of(&text, ROWS).unwrap().definition.generation.get("until").unwrap().repr()
}
