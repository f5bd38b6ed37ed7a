//! Tests for data files written for other tools: local files for a `datasets` builder, splits without labels, and texts
//! in a single row.

use crate::common::output::stderr;
use crate::common::world::World;

fn definition(builder: &str, file: &str, text: &str) -> String {
    format!(
        "task: rows\ndataset_path: {builder}\ndataset_kwargs: {{data_files: {{test: {file}}}}}\ntest_split: test\n\
         output_type: loglikelihood\ndoc_to_text: \"{text}\"\ndoc_to_target: \" w9\"\nmetric_list: [{{metric: acc}}]\n"
    )
}

#[test]
fn csv_and_text_datasets_are_read_and_arrow_is_rejected() {
    let world = World::new();
    world.write("rows.csv", "a,b\n\"w1 w2\",1\nw3,2\n");
    world.write("rows.txt", "w1 w2\r\nw3\n");
    for (builder, file, text, prompts) in
        [("csv", "rows.csv", "{{a}} w{{b}}", ["w1 w2 w1", "w3 w2"]), ("text", "rows.txt", "{{text}}", ["w1 w2", "w3"])]
    {
        world.write("rows.yaml", definition(builder, file, text));
        let folder = format!("samples-{builder}");
        let output = world.ghostlab(&["score", "backbone", "--tasks", "rows.yaml", "--samples", &folder]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let samples = std::fs::read_to_string(world.path(&folder).join("samples_rows.jsonl")).unwrap();
        for prompt in prompts {
            assert!(samples.contains(&format!("\"{prompt}\"")), "{builder}: no `{prompt}` in {samples}");
        }
    }
    for (dataset, words) in
        [("arrow", "`arrow` is an unsupported builder of `datasets`"), ("csv", "the builder `csv` has no data files")]
    {
        let named = definition(dataset, "rows.csv", "{{a}}");
        let unnamed = named.replace("dataset_kwargs: {data_files: {test: rows.csv}}\n", "");
        world.write("rows.yaml", unnamed);
        let output = world.ghostlab(&["score", "backbone", "--tasks", "rows.yaml"]);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(words) && !message.contains("--fetch"), "{message}");
    }
}

#[test]
fn split_without_labels_is_rejected_with_its_row() {
    let world = World::new();
    let row = "{\"question\": \"w1 w2\", \"passage\": \"w3\", \"label\": -1}\n";
    world.write("boolq.jsonl", row.repeat(3));
    let output = world.ghostlab(&["score", "backbone", "--tasks", "boolq=boolq.jsonl"]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("boolq.jsonl:1") && message.contains("use the validation split"), "{message}");
}

#[test]
fn single_row_text_warns_once_about_joining() {
    let world = World::new();
    assert_eq!(score_error(&world, "train.txt@64").matches("joins nothing").count(), 1);
    assert_eq!(score_error(&world, "test.jsonl@64").matches("joins nothing").count(), 0);
}

fn score_error(world: &World, file: &str) -> String {
    stderr(&world.ghostlab(&["score", "backbone", "--perplexity", file]))
}
