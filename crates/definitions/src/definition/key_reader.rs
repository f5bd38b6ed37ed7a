//! Parser for the keys of a task definition. A hook is a Python function that a key refers to with `!function`.

use ghostlab_core::error::{Error, Result, nearest};
use ghostlab_core::tasks::NonFiniteScore;

use super::fewshot_config::read_examples;
use super::field_reader::{read_choices, read_field};
use super::{Data, Definition, Examples, Field};
use crate::aggregate::Aggregation;
use crate::bounds::MAX_REPEATS;
use crate::equivalent;
use crate::filter::Pipeline;
use crate::metric::{Kind, Metric, Output};
use crate::prepared::{self, RowPreparation};
use crate::row;
use crate::value::Value;
use crate::yaml::{Node, Tree, hook_error, value_error};

/// Keys that are accepted but affect neither prompts nor scores.
const KEYS_WITHOUT_EFFECT: [&str; 7] =
    ["tag", "group", "task_list", "should_decontaminate", "doc_to_decontamination_query", "metadata", "task_alias"];
/// Keys that are not supported because they need Python, images or audio.
const UNSUPPORTED_KEYS: [&str; 7] =
    ["class", "custom_dataset", "use_prompt", "process_results", "process_docs", "doc_to_image", "doc_to_audio"];
/// Supported loader arguments. `trust_remote_code` has no effect, because dataset scripts are never run.
const LOADER_ARGUMENTS: [&str; 4] = ["trust_remote_code", "data_files", "data_dir", "revision"];
const KEYS: [&str; 26] = [
    "task",
    "dataset_path",
    "dataset_name",
    "dataset_kwargs",
    "training_split",
    "validation_split",
    "test_split",
    "fewshot_split",
    "doc_to_text",
    "doc_to_target",
    "doc_to_choice",
    "description",
    "target_delimiter",
    "fewshot_delimiter",
    "fewshot_config",
    "num_fewshot",
    "metric_list",
    "output_type",
    "generation_kwargs",
    "repeats",
    "filter_list",
    "gen_prefix",
    "keep_rows",
    "columns",
    "prepare",
    "unsafe_code",
];

/// Reader for the keys of a task definition, which it converts to typed values.
pub(super) struct KeyReader<'a> {
    pub(super) node: &'a Node,
}

impl KeyReader<'_> {
    /// Returns the value of a key, or `None` if the key is missing or null. Rejects hooks.
    fn get(&self, key: &str) -> Result<Option<&Node>> {
        match self.node.get(key) {
            Some(Node { tree: Tree::Hook(function), location }) => Err(hook_error(key, function, location)),
            Some(node) if node.is_null() => Ok(None),
            other => Ok(other),
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        let Some(node) = self.get(key)? else { return Ok(None) };
        node.text().map(|text| Some(text.to_owned())).ok_or_else(|| value_error(key, "a string", node))
    }

    /// Returns a string, or `default` if the key is missing. Rejects `null`, because lm-evaluation-harness fails when
    /// it concatenates `None` and a string.
    fn text_or(&self, key: &str, default: &str) -> Result<String> {
        match self.node.get(key) {
            Some(node) if node.is_null() => Err(value_error(key, "a string", node)),
            _ => Ok(self.text(key)?.unwrap_or_else(|| default.to_owned())),
        }
    }

    fn field(&self, key: &str) -> Result<Option<Field>> {
        self.get(key)?.map(|node| read_field(key, node)).transpose()
    }

    fn check_keys(&self) -> Result<()> {
        for (key, node) in self.node.pairs() {
            let name = key.as_text().unwrap_or_default();
            if UNSUPPORTED_KEYS.contains(&name) && !node.is_null() {
                let equivalent = matches!(&node.tree, Tree::Hook(hook)
                    if name == "process_docs" && equivalent::kept_rows(hook, &node.location).is_some());
                if equivalent {
                    continue;
                }
                return Err(match &node.tree {
                    Tree::Hook(function) => hook_error(name, function, &node.location),
                    _ => Error::bad_input(format!("`{name}` is not supported")).at(&node.location).found(node.kind()),
                });
            }
            if !KEYS.contains(&name) && !KEYS_WITHOUT_EFFECT.contains(&name) && !UNSUPPORTED_KEYS.contains(&name) {
                let near = nearest(name, KEYS.into_iter().chain(KEYS_WITHOUT_EFFECT));
                let error = Error::bad_input(format!("unknown task key `{}`", key.text())).at(&node.location);
                return Err(
                    error.hint(near.map_or("remove the key".to_owned(), |near| format!("did you mean `{near}`?")))
                );
            }
        }
        if let Some(node) =
            self.node.get("unsafe_code").filter(|node| !matches!(node.tree, Tree::Scalar(Value::Bool(false))))
        {
            return Err(Error::bad_input("`unsafe_code` is not supported: model-generated code is never run")
                .at(&node.location));
        }
        if let Some((path, node)) = self.find_unsupported_hook() {
            return Err(hook_error(&path, &node.kind().replace("!function ", ""), &node.location));
        }
        Ok(())
    }

    /// Returns the key path and node of the first hook that has no declarative equivalent. Skips `process_docs`, which
    /// [`Self::check_keys`] checks.
    fn find_unsupported_hook(&self) -> Option<(String, &Node)> {
        self.node.pairs().iter().find_map(|(key, node)| {
            let name = key.text();
            if name == "process_docs" {
                return None;
            }
            let metrics =
                if let (true, Tree::List(items)) = (name == "metric_list", &node.tree) { &items[..] } else { &[] };
            for metric in metrics {
                for (key, node) in metric.pairs() {
                    let is_equivalent = matches!(&node.tree, Tree::Hook(hook)
                        if key.as_text() == Some("aggregation") && equivalent::is_weighted_f1(hook, &node.location));
                    if let (false, Some((_, hook))) = (is_equivalent, node.hook()) {
                        return Some((format!("metric_list.{}", key.text()), hook));
                    }
                }
            }
            if name == "metric_list" && !metrics.is_empty() {
                return None;
            }
            let (path, hook) = node.hook()?;
            let dot = if path.is_empty() { "" } else { "." };
            Some((format!("{name}{dot}{path}"), hook))
        })
    }

    fn missing_key_error(&self, key: &str) -> Error {
        Error::bad_input(format!("the task has no `{key}`"))
            .at(&self.node.location)
            .hint(format!("add `{key}` to the definition"))
    }

    pub(super) fn read_definition(&self, name: String) -> Result<Definition> {
        self.check_keys()?;
        let output = self.read_output()?;
        let data = self.read_data()?;
        let text = self.field("doc_to_text")?.ok_or_else(|| self.missing_key_error("doc_to_text"))?;
        let target = self.field("doc_to_target")?.ok_or_else(|| self.missing_key_error("doc_to_target"))?;
        let choices = self.get("doc_to_choice")?.map(|node| read_choices("doc_to_choice", node)).transpose()?;
        if output == Output::MultipleChoice && choices.is_none() {
            return Err(self.missing_key_error("doc_to_choice"));
        }
        let [test, validation] = self.read_evaluated_splits()?;
        let fewshot_delimiter = self.text_or("fewshot_delimiter", "\n\n")?;
        let target_delimiter = self.text_or("target_delimiter", " ")?;
        let prefix = self.field("gen_prefix")?;
        let shots = self.read_shots()?;
        let repeats = self.read_repeats()?;
        let keep_rows = self.read_keep_rows()?;
        let mut definition = Definition {
            alias: self.text("task_alias")?.unwrap_or_else(|| name.clone()),
            name,
            version: self.read_version(),
            data,
            training: self.text("training_split")?,
            validation,
            test,
            source: equivalent::replace_hooks(self.node, &keep_rows)?,
            keep_rows,
            prepare: self.read_prepare()?,
            output,
            description: self.field("description")?.filter(|field| !is_empty_text(field)),
            target_delimiter: target_delimiter.clone(),
            shots,
            generation: self.read_generation(output, &fewshot_delimiter)?,
            repeats,
            filters: self.read_filters(output)?,
            metrics: self.read_metrics(output)?,
            non_finite: NonFiniteScore::NumpyArgmax,
            location: self.node.location.clone(),
            examples: Examples {
                first: false,
                split: self.text("fewshot_split")?,
                samples: None,
                text: text.clone(),
                target: target.clone(),
                choices: choices.clone(),
                prefix: prefix.clone(),
                target_delimiter,
                delimiter: fewshot_delimiter.clone(),
            },
            fewshot_delimiter,
            text,
            target,
            choices,
            prefix,
        };
        if let Some(node) = self.get("fewshot_config")? {
            read_examples(node, &mut definition.examples)?;
        }
        Ok(definition)
    }

    fn read_version(&self) -> String {
        let version = self.node.get("metadata").and_then(|node| node.get("version"));
        version.and_then(|node| node.plain().ok()).map_or("Yaml".to_owned(), |version| version.text())
    }

    fn read_output(&self) -> Result<Output> {
        let Some(node) = self.node.get("output_type") else { return Ok(Output::Generate) };
        let known = Output::ALL.into_iter().find(|output| node.text() == Some(output.name()));
        let all = "loglikelihood, loglikelihood_rolling, multiple_choice or generate_until";
        known.ok_or_else(|| value_error("output_type", all, node))
    }

    /// Reads the dataset and its loading options.
    fn read_data(&self) -> Result<Data> {
        let path = self.text("dataset_path")?.ok_or_else(|| self.missing_key_error("dataset_path"))?;
        let options = match self.get("dataset_kwargs")? {
            Some(node) if matches!(node.tree, Tree::Map(_)) => {
                if let Some((key, odd)) = node.pairs().iter().find(|(key, _)| !LOADER_ARGUMENTS.contains(&&*key.text()))
                {
                    let error = Error::bad_input(format!("`dataset_kwargs.{}` is not supported", key.text()));
                    return Err(error.at(&odd.location).expected(LOADER_ARGUMENTS.join(", ")).found(odd.kind()));
                }
                node.plain()?
            }
            Some(node) => return Err(value_error("dataset_kwargs", "a mapping", node)),
            None => Value::Map(Vec::new()),
        };
        let fields = self.get("columns")?.map(row::read_columns).transpose()?.unwrap_or_default();
        Ok(Data { path, name: self.text("dataset_name")?, options, fields })
    }

    /// Reads `test_split` and `validation_split`. At least one of them is required.
    fn read_evaluated_splits(&self) -> Result<[Option<String>; 2]> {
        let splits = [self.text("test_split")?, self.text("validation_split")?];
        if splits == [None, None] {
            return Err(Error::bad_input("the task has no split to evaluate")
                .at(&self.node.location)
                .hint("add `test_split` or `validation_split` to the definition"));
        }
        Ok(splits)
    }

    /// Reads the number of few-shot examples.
    fn read_shots(&self) -> Result<Option<usize>> {
        let Some(node) = self.get("num_fewshot")? else { return Ok(None) };
        as_count(node).map(Some).ok_or_else(|| value_error("num_fewshot", "a whole number, 0 or more", node))
    }

    fn read_repeats(&self) -> Result<usize> {
        let Some(node) = self.get("repeats")? else { return Ok(1) };
        let expected = format!("a number from 1 to {MAX_REPEATS}");
        as_count(node)
            .filter(|times| (1..=MAX_REPEATS).contains(times))
            .ok_or_else(|| value_error("repeats", &expected, node))
    }

    fn read_prepare(&self) -> Result<Option<RowPreparation>> {
        let Some(node) = self.get("prepare")? else { return Ok(None) };
        let found = prepared::PREPARATIONS.into_iter().find(|prepare| node.text() == Some(prepare.name));
        found
            .map(Some)
            .ok_or_else(|| value_error("prepare", &prepared::PREPARATIONS.map(|prepare| prepare.name).join(", "), node))
    }

    fn read_keep_rows(&self) -> Result<Vec<(String, Vec<Value>)>> {
        let mut found = Vec::new();
        if let Some(Node { tree: Tree::Hook(hook), location }) = self.node.get("process_docs") {
            found.extend(equivalent::kept_rows(hook, location));
        }
        if let Some(node) = self.get("keep_rows")? {
            if !matches!(node.tree, Tree::Map(_)) {
                return Err(value_error("keep_rows", "a mapping of columns to a value, or a list of values", node));
            }
            found.push(node.plain()?);
        }
        let pairs = found.into_iter().flat_map(|value| if let Value::Map(pairs) = value { pairs } else { Vec::new() });
        Ok(pairs
            .map(|(column, value)| (column.text(), if let Value::List(items) = value { items } else { vec![value] }))
            .collect())
    }

    fn read_generation(&self, output: Output, delimiter: &str) -> Result<Value> {
        if output != Output::Generate {
            return Ok(Value::Map(Vec::new()));
        }
        let stops = Value::List(vec![Value::from(delimiter)]);
        let Some(node) = self.get("generation_kwargs")? else {
            return Ok(Value::Map(vec![
                (Value::from("temperature"), Value::Float(0.0)),
                (Value::from("do_sample"), Value::Bool(false)),
                (Value::from("max_gen_toks"), Value::Int(256)),
                (Value::from("until"), stops),
            ]));
        };
        if !matches!(node.tree, Tree::Map(_)) {
            return Err(value_error("generation_kwargs", "a mapping", node));
        }
        let mut settings = node.plain()?;
        if let Some(temperature) = settings.get("temperature") {
            let number = temperature.as_text().map_or(temperature.as_number(), |text| text.parse().ok());
            let culprit = node.get("temperature").unwrap_or(node);
            let number = number.ok_or_else(|| value_error("temperature", "a number", culprit))?;
            settings.set("temperature", Value::Float(number));
        }
        match settings.get("until").cloned() {
            None => settings.set("until", stops),
            Some(Value::List(items)) if items.iter().all(|item| item.as_text().is_some()) => {
                if !items.is_empty() && items.iter().all(|item| item.as_text() == Some("")) {
                    let culprit = node.get("until").unwrap_or(node);
                    return Err(value_error("until", "non-empty stop strings", culprit)
                        .hint("write `until: []` for no stop strings"));
                }
            }
            Some(Value::Text(_) | Value::None) => {}
            Some(_) => return Err(value_error("until", "a list of strings", node.get("until").unwrap_or(node))),
        }
        Ok(settings)
    }

    fn read_filters(&self, output: Output) -> Result<Vec<Pipeline>> {
        let Some(node) = self.get("filter_list")? else { return Ok(vec![Pipeline::take_first()]) };
        let Tree::List(items) = &node.tree else { return Err(value_error("filter_list", "a list of pipelines", node)) };
        let pipelines = items.iter().map(Pipeline::read).collect::<Result<Vec<_>>>()?;
        if let (false, Some(odd)) = (output == Output::Generate, pipelines.iter().find(|pipeline| !pipeline.is_first()))
        {
            let expected = "only `take_first`, because log-likelihoods cannot be filtered";
            return Err(value_error("filter_list", expected, node).found(format!("the pipeline `{}`", odd.name)));
        }
        Ok(pipelines)
    }

    fn read_metrics(&self, output: Output) -> Result<Vec<Metric>> {
        let Some(node) = self.get("metric_list")? else {
            let names: &[Kind] = match output {
                Output::LogLikelihood => &[Kind::Perplexity, Kind::Acc],
                Output::Rolling => &[Kind::WordPerplexity, Kind::BytePerplexity, Kind::BitsPerByte],
                Output::MultipleChoice => &[Kind::Acc, Kind::AccNorm],
                Output::Generate => &[Kind::ExactMatch],
            };
            return Ok(names.iter().map(|kind| Metric::plain(*kind)).collect());
        };
        let Tree::List(items) = &node.tree else { return Err(value_error("metric_list", "a list of metrics", node)) };
        let mut metrics: Vec<Metric> = Vec::new();
        for item in items {
            let weighted = matches!(item.get("aggregation"), Some(Node { tree: Tree::Hook(_), .. }));
            let mut item = item.clone();
            if weighted {
                let location = item.location.clone();
                let name = Tree::Scalar(Value::from(Aggregation::WeightedF1.name()));
                item.set(&Value::from("aggregation"), Node { tree: name, location });
            }
            let metric = Metric::read(&item, output)?;
            // If a metric is listed twice, the last entry wins, as with duplicate keys in a mapping.
            match metrics.iter_mut().find(|old| old.kind == metric.kind) {
                Some(old) => *old = metric,
                None => metrics.push(metric),
            }
        }
        Ok(metrics)
    }
}

fn is_empty_text(field: &Field) -> bool {
    matches!(field, Field::Text(_, text) if text.is_empty())
}

fn as_count(node: &Node) -> Option<usize> {
    match &node.tree {
        Tree::Scalar(Value::Int(number)) => usize::try_from(*number).ok(),
        _ => None,
    }
}
