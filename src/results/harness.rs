//! Scores by definitions in the layout of lm-evaluation-harness' results file.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::cell_result::{CellResult, harness_scores};
use crate::grid::{Asking, DefinitionUse, Grid, GroupUse};
use crate::metric::{Direction, Metric};

/// A cell's results files: it has one place for each task, so what is asked in several ways stands in several. `native` are
/// those of the other tasks.
///
/// # Errors
/// Never.
pub fn with_definitions(native: Vec<Value>, grid: &Grid, result: &CellResult, model: &str) -> Vec<Value> {
    let mut files = native;
    let mut ways: Vec<&Asking> = Vec::new();
    for of in &grid.evaluate.definitions {
        if !ways.contains(&&of.how) {
            ways.push(&of.how);
        }
    }
    for (at, how) in ways.into_iter().enumerate() {
        let uses: Vec<&DefinitionUse> = grid.evaluate.definitions.iter().filter(|of| of.how == *how).collect();
        let groups: Vec<&GroupUse> = grid.evaluate.groups.iter().filter(|of| of.how == *how).collect();
        let taken = |file: &Value| uses.iter().any(|of| !file["results"][&of.name].is_null());
        let own = files.iter().position(|file| at == 0 && !taken(file));
        let place = own.unwrap_or_else(|| {
            let labels: Vec<String> = uses.iter().map(ToString::to_string).collect();
            files.push(json!({
                "results": {}, "versions": {}, "n-shot": {}, "n-samples": {}, "higher_is_better": {}, "group_subtasks": {},
                "configs": {}, "config": {"model": "ghostlab", "model_args": model, "tasks": labels},
            }));
            files.len() - 1
        });
        add(&mut files[place], grid, result, &uses, &groups);
    }
    files.retain(|file| file["results"].as_object().is_some_and(|results| !results.is_empty()));
    files
}

fn add(file: &mut Value, grid: &Grid, result: &CellResult, uses: &[&DefinitionUse], groups: &[&GroupUse]) {
    for used in uses {
        let (name, definition) = (&used.name, &grid.definitions[&used.name].definition);
        let Some(scores) = result.defined(used).and_then(|of| of.sample.as_ref()) else { continue };
        let mut values = harness_scores(scores.scores.iter().map(|of| &of.score));
        let about = [("name", name), ("alias", &definition.alias)].map(|(key, text)| (key.to_owned(), json!(text)));
        values.extend(about);
        values.insert("sample_len".to_owned(), json!(scores.effective));
        file["results"][name] = Value::Object(values);
        // A version is a number there, where it is one.
        file["versions"][name] = definition.version.parse::<f64>().map_or(json!(definition.version), |of| json!(of));
        let shots = definition.shots(used.how.shots);
        file["n-shot"][name] = json!(shots);
        file["n-samples"][name] = json!({"original": scores.original, "effective": scores.effective});
        let better = definition.metrics.iter().map(|of| (of.kind.name().to_owned(), json!(of.higher_is_better)));
        file["higher_is_better"][name] = Value::Object(better.collect());
        let mut config = json!(definition.said());
        config["num_fewshot"] = json!(shots);
        config["output_type"] = json!(definition.output.name());
        file["configs"][name] = config;
        if let Some(system) = &used.how.system {
            file["config"]["system_instruction"] = json!(system);
        }
        if let Some(multiturn) = used.how.chat {
            file["config"]["chat_template"] = json!(true);
            file["config"]["fewshot_as_multiturn"] = json!(multiturn);
        }
    }
    for of in groups {
        let Some(scores) = result.group(of) else { continue };
        let name = &of.group.name;
        let documents: usize = scores.iter().map(|of| of.documents).max().unwrap_or_default();
        let mut values = harness_scores(scores.iter());
        values.insert("alias".to_owned(), json!(of.group.alias));
        values.insert("name".to_owned(), json!(name));
        values.insert("sample_len".to_owned(), json!(documents));
        file["results"][name] = Value::Object(values.clone());
        file["groups"][name] = Value::Object(values);
        file["group_subtasks"][name] = json!(of.group.tasks);
        let shots: BTreeSet<usize> =
            of.group.tasks.iter().map(|task| grid.definitions[task].definition.shots(of.how.shots)).collect();
        if let (1, Some(shots)) = (shots.len(), shots.first()) {
            file["n-shot"][name] = json!(shots);
        }
        let better = scores.iter().map(|of| {
            let up = Metric::defined(name, &of.metric, &of.filter).direction == Direction::Higher;
            (of.metric.clone(), json!(up))
        });
        file["higher_is_better"][name] = Value::Object(better.collect());
    }
}
