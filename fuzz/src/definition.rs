//! Fuzz targets for the definitions and templates of tasks.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::assert_user_error;

pub(super) fn definition_seeds() -> Vec<Vec<u8>> {
    let good = "task: t\ndataset_path: a/b\ndataset_name: null\ntraining_split: train\ntest_split: test\nfewshot_split: train\n\
        output_type: multiple_choice\ndescription: \"About {{q}}.\\n\"\ndoc_to_text: \"{{q.strip()}}\\nA:\"\n\
        doc_to_choice: \"{{c}}\"\ndoc_to_target: a\nnum_fewshot: 2\nfewshot_config: {sampler: first_n}\ntarget_delimiter: \" \"\n\
        metric_list:\n  - {metric: acc, aggregation: mean, higher_is_better: true}\n  - {metric: acc_norm}\nmetadata: {version: 1.0}\n";
    let generated = "task: g\ndataset_path: a/b\ntest_split: test\ndoc_to_text: q\ndoc_to_target: \"{{c[a]}}\"\n\
        generation_kwargs: {until: [\"\\n\"], do_sample: false, max_gen_toks: 8}\nrepeats: 2\n\
        filter_list:\n  - {name: strict, filter: [{function: regex, regex_pattern: \"(?<=a)(\\\\d+)\"}, {function: take_first}]}\n\
        metric_list: [{metric: exact_match, ignore_case: true, regexes_to_ignore: [\",\"]}]\n";
    vec![
        good.into(),
        generated.into(),
        good.replace("multiple_choice", "loglikelihood_rolling").into(),
        good.replace("{sampler: first_n}", "{samples: [{q: x, c: [y, z], a: 1}]}").into(),
        good.replace("doc_to_text: ", "doc_to_text: !function utils.f #").into(),
        format!("{good}group: g\ntask: [t, {{task: t, num_fewshot: 0}}]\naggregate_metric_list: [{{metric: acc}}]\n")
            .into(),
        "include: [self.yaml]\n".into(),
    ]
}

/// Returns the two rows on which definitions and templates are evaluated.
fn build_documents() -> Vec<ghostlab_definitions::Value> {
    (0..2).map(|index| serde_json::from_value(question_row(index)).unwrap()).collect()
}

fn question_row(index: usize) -> Value {
    json!({"q": format!(" why {index}? "), "c": ["it's", "\"so\""], "a": index % 2, "n": null, "f": 1.5})
}

/// Parses a definition, which must yield an error or requests, but never panic.
pub(super) fn fuzz_definition(data: &[u8]) {
    use ghostlab_definitions::{Definition, FileRows, Library, PromptSettings, Task};
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("it.yaml"), data).unwrap();
    let rows: String = build_documents().iter().map(|row| row.json(None) + "\n").collect();
    for split in ["train", "test"] {
        fs::write(folder.path().join(format!("{split}.jsonl")), &rows).unwrap();
    }
    let file = folder.path().join("it.yaml").display().to_string();
    let selected = Library::from_folders(&[folder.path()]).and_then(|library| library.select(&[&file]));
    let tasks = match selected {
        Err(error) => return assert_user_error(&error),
        Ok(selected) => selected.tasks,
    };
    for task in tasks {
        let again: Definition = serde_json::from_value(serde_json::to_value(&task).unwrap()).unwrap();
        assert_eq!(
            (again.request_keys(), again.scoring_keys()),
            (task.request_keys(), task.scoring_keys()),
            "{}",
            task.name
        );
        let splits = [Some(task.evaluated_split()), task.example_split()].into_iter().flatten().collect::<Vec<_>>();
        let made = FileRows::find_in(folder.path(), &task.data, &splits).and_then(|rows| {
            let task = Task::new(task.clone(), &rows)?;
            task.requests(&rows, &PromptSettings { shots: Some(1), ..PromptSettings::default() })
        });
        match made {
            Err(error) => assert_user_error(&error),
            Ok(requests) => assert!(!requests.is_empty()),
        }
    }
}

pub(super) fn template_seeds() -> Vec<Vec<u8>> {
    [
        "{{q.strip()}} {{c[a]}} {{c|join(', ')}}",
        "{% for x in c %}{{loop.index}}. {{x|capitalize}}\n{% endfor %}{{ 'yes' if n is none else 'no' }}",
        "{% set y = q.split(' ') %}{{ y[0] ~ y[-1] }}{% if f > 1 and not a %}{{ (a + 1) * 2 }}{% endif %}",
        "{{ q * 1000000 }}{{ c * 1000000 }}",
        "{% set x = q %}{% set x = x ~ x ~ x ~ x %}{% set x = x ~ x ~ x ~ x %}{{ x.replace('', x) }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ q }}{% endfor %}{% endfor %}",
        "{%- macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set n = namespace(x=q) %}{{ n.x }}{{ undefined_name.field }}",
        "{{ q|regex_replace('(a|a)*b', '') }}{{ q[0:2] }}{{ q[-1:] }}{{ c.index('x') }}",
        "{%}{% generation %}{{ q }}{% endgeneration %}",
        "{{ messages }}{{ raise_exception('no') }}{{ strftime_now('%Y') }}{{ q|tojson(indent=2) }}",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Renders a text as a document template and as a chat template.
pub(super) fn fuzz_template(data: &[u8]) {
    use ghostlab_definitions::prompt::Role;
    use ghostlab_definitions::{ChatTemplate, template::Template, yaml::SourceLocation};
    let Ok(text) = std::str::from_utf8(data) else { return };
    let source = SourceLocation { file: "it.yaml".into(), line: 1 };
    match Template::new(text, &source) {
        Err(error) => assert_user_error(&error),
        Ok(template) => {
            for document in build_documents() {
                match template.render(&document) {
                    Err(error) => assert_user_error(&error),
                    Ok(one) => assert_eq!(template.render(&document).unwrap(), one, "two renderings differ"),
                }
            }
        }
    }
    match ChatTemplate::new(text, Vec::new(), "it.jinja") {
        Err(error) => assert_user_error(&error),
        Ok(chat) => {
            let messages = [
                build_message(Role::System, "s"),
                build_message(Role::User, " q "),
                build_message(Role::Assistant, "It is"),
            ];
            for continued in [false, true] {
                if let Err(error) = chat.render(&messages, continued) {
                    assert_user_error(&error);
                }
            }
        }
    }
}

fn build_message(role: ghostlab_definitions::prompt::Role, content: &str) -> ghostlab_definitions::prompt::Message {
    ghostlab_definitions::prompt::Message { role, content: content.to_owned(), delimiter: String::new() }
}
