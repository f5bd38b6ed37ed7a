//! Export of results in the format of lm-eval's results file.

use serde_json::{Map, Value, json};

use super::result::TaskResult;
use crate::error::{Error, Result};

/// Section of the file with an entry per task: its name, and the function that computes the entry.
type ExportPart<'a> = (&'a str, &'a dyn Fn(&TaskResult) -> Value);

/// Builds a results file like lm-eval's, with the sections `results`, `versions`, `n-shot`, `n-samples`,
/// `higher_is_better`, `group_subtasks`, `configs` and `config`. `config` is the caller's record of model and run. The
/// suffix `none` of keys such as `acc,none` is the name of the default filter.
///
/// # Errors
/// Fails if a task occurs twice, because the format has one entry per task.
pub fn export(results: &[TaskResult], config: Value) -> Result<Value> {
    let mut file = Map::new();
    let parts: [ExportPart; 6] = [
        ("results", &values),
        ("versions", &|result| json!(f64::from(result.task.version))),
        ("n-shot", &|_| json!(0)),
        ("n-samples", &|result| json!({"original": result.original, "effective": result.effective})),
        ("higher_is_better", &|result| result.task.metrics.iter().map(|metric| (metric.name(), true)).collect()),
        ("configs", &task_config),
    ];
    for (name, value) in parts {
        let mut of_tasks = Map::new();
        for result in results {
            if of_tasks.insert(result.task.name.to_owned(), value(result)).is_some() {
                return Err(Error::bad_input("duplicate task")
                    .at(format!("task {}", result.task.name))
                    .expected("each task once in a results file"));
            }
        }
        file.insert(name.to_owned(), Value::Object(of_tasks));
    }
    file.insert("group_subtasks".to_owned(), json!({}));
    file.insert("config".to_owned(), config);
    Ok(Value::Object(file))
}

fn values(result: &TaskResult) -> Value {
    let name = result.task.name;
    let mut values = Map::new();
    values.insert("name".to_owned(), json!(name));
    values.insert("alias".to_owned(), json!(name));
    values.insert("sample_len".to_owned(), json!(result.effective));
    for metric in result.task.metrics {
        let measure = result.measure(*metric);
        let metric = metric.name();
        values.insert(format!("{metric},none"), json!(measure.value));
        // lm-eval writes "N/A" if the standard error is undefined.
        values.insert(format!("{metric}_stderr,none"), measure.stderr.map_or(json!("N/A"), |stderr| json!(stderr)));
    }
    Value::Object(values)
}

fn task_config(result: &TaskResult) -> Value {
    let task = result.task;
    json!({
        "task": task.name,
        "output_type": "multiple_choice",
        (match task.split {
            super::Split::Test => "test_split",
            super::Split::Validation => "validation_split",
        }): task.split,
        "num_fewshot": 0,
        "metric_list": task.metrics.iter().map(|metric| json!({"metric": metric.name(), "aggregation": "mean", "higher_is_better": true})).collect::<Vec<_>>(),
        "target_delimiter": " ",
        "metadata": {"version": f64::from(task.version)},
    })
}

#[cfg(test)]
mod tests {
    use super::super::{DocumentResult, Task};
    use super::*;

    #[test]
    fn one_document_has_no_standard_error_and_a_task_is_there_once() {
        let file = export(&[sample_result("rte"), sample_result("race")], json!({"model": "m"})).unwrap();
        assert_eq!(file["results"]["rte"]["acc_stderr,none"], "N/A");
        assert_eq!(file["results"]["rte"].get("acc_norm,none"), None);
        assert_eq!(file["configs"]["rte"]["validation_split"], "validation");
        assert_eq!(file["configs"]["race"]["test_split"], "test");
        assert_eq!(file["config"]["model"], "m");
        assert!(export(&[sample_result("rte"), sample_result("rte")], json!(null)).is_err());
    }

    fn sample_result(name: &str) -> TaskResult {
        let document = DocumentResult::new(0, 0, Vec::new());
        TaskResult::of(Task::find(name).unwrap(), 1, &[document]).unwrap()
    }
}
