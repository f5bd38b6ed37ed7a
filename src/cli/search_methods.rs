//! Criteria and recoveries of `ghostlab search`, which are given as `NAME[:OPTION=VALUE]…`.

use serde_json::{Value, json};

use crate::criterion::{self, Criterion, PruneSpec};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::recovery::{self, Recovery};

/// Grid entry of a criterion or recovery, and the method built from it.
pub(super) type Method<M> = (Value, Box<M>);

/// Item of a list that is replaced by the default list.
const DEFAULT_LIST_NAME: &str = "default";

/// Recoveries that are not in the paper but are candidates by default, because solving them takes about as long as
/// `ghosted`.
const CHEAP_RECOVERIES: [&str; 2] = ["mean", "ghosted:input=normed:bias=true"];

/// Builds the criteria in a list. An empty list means the default list.
pub(super) fn build_criteria(list: &[String]) -> Result<Vec<Method<dyn Criterion>>> {
    build_methods("--criteria", list, default_criteria, criterion::build)
}

/// Builds the recoveries in a list. An empty list means the default list.
pub(super) fn build_recoveries(list: &[String]) -> Result<Vec<Method<dyn Recovery>>> {
    build_methods("--recoveries", list, default_recoveries, recovery::build)
}

/// Builds the methods that a flag lists.
fn build_methods<M: ?Sized>(
    flag: &str,
    list: &[String],
    default: fn() -> Result<Vec<Method<M>>>,
    build: fn(&str, &Options) -> Result<Box<M>>,
) -> Result<Vec<Method<M>>> {
    if list.is_empty() {
        return default();
    }
    let mut methods: Vec<Method<M>> = Vec::new();
    for text in list {
        let named =
            if text == DEFAULT_LIST_NAME { default() } else { build_method(text, build).map(|method| vec![method]) };
        for (entry, rule) in named.map_err(|error| error.at(format!("{flag} {text}")))? {
            // Skip methods that the list already contains, for example from the default list.
            if methods.iter().all(|(known, _)| *known != entry) {
                methods.push((entry, rule));
            }
        }
    }
    Ok(methods)
}

/// Returns the criteria of the paper and those for sublayers, except criteria that need options or trials.
fn default_criteria() -> Result<Vec<Method<dyn Criterion>>> {
    let mut criteria = Vec::new();
    for method in criterion::descriptions() {
        let Ok((entry, rule)) = build_method(&method.name, criterion::build) else { continue };
        let Some(&unit) = rule.units().first() else { continue };
        let any = PruneSpec { backbone: "", layers: 8, depth: 2, unit };
        if rule.trials(&any).is_empty() && (!method.beyond || !unit.is_layers()) {
            criteria.push((entry, rule));
        }
    }
    Ok(criteria)
}

/// Returns the recoveries of the paper, those for sublayers, and [`CHEAP_RECOVERIES`].
fn default_recoveries() -> Result<Vec<Method<dyn Recovery>>> {
    let mut recoveries = Vec::new();
    for method in recovery::descriptions() {
        let (entry, rule) = build_method(&method.name, recovery::build)?;
        if !method.beyond || rule.replaces_sublayers() {
            recoveries.push((entry, rule));
        }
    }
    for text in CHEAP_RECOVERIES {
        recoveries.push(build_method(text, recovery::build)?);
    }
    Ok(recoveries)
}

/// Builds a method from `NAME[:OPTION=VALUE]…`. A value that is not valid JSON is read as a string.
fn build_method<M: ?Sized>(text: &str, build: fn(&str, &Options) -> Result<Box<M>>) -> Result<Method<M>> {
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default();
    let mut options = Options::new();
    for part in parts {
        let (option, value) = part.split_once('=').ok_or_else(|| {
            Error::bad_input(format!("invalid options for `{name}`"))
                .expected("NAME:OPTION=VALUE, for example ghosted:input=normed")
                .found(format!("`{part}`"))
        })?;
        options.insert(option.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| json!(value)));
    }
    let rule = build(name, &options)?;
    let entry = if options.is_empty() {
        json!(name)
    } else {
        options.insert("name".to_owned(), json!(name));
        Value::Object(options)
    };
    Ok((entry, rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn entries<M: ?Sized>(methods: Vec<Method<M>>) -> Vec<Value> {
        methods.into_iter().map(|(entry, _)| entry).collect()
    }

    #[test]
    fn default_lists_have_one_pass_criteria_and_cheap_recoveries() {
        let criteria = entries(build_criteria(&[]).unwrap());
        assert_eq!(criteria, ["llm-streamline", "shortgpt", "angular", "llm-drop", "nbl"].map(Value::from));
        let recoveries = entries(build_recoveries(&[]).unwrap());
        assert_eq!(recoveries[0], "none");
        let normed = json!({"name": "ghosted", "input": "normed", "bias": true});
        for expected in [json!("ghosted"), json!("nbl"), json!("mean"), normed] {
            assert!(recoveries.contains(&expected), "{expected} is not in {recoveries:?}");
        }
        for other in ["affine", "rank", "sequential", "merge"] {
            assert!(!recoveries.contains(&json!(other)), "{other}");
        }
    }

    #[test]
    fn listed_methods_are_appended_to_the_default_list() {
        let usual = entries(build_criteria(&[]).unwrap());
        let more = entries(build_criteria(&list(&["default", "block-pruner", "nbl", "nbl:input=normed"])).unwrap());
        let normed = json!({"name": "nbl", "input": "normed"});
        assert_eq!(more, [&usual[..], &[json!("block-pruner"), normed]].concat());
        let ridge = entries(build_recoveries(&list(&["replaceme-ls:alpha=10"])).unwrap());
        assert_eq!(ridge, [json!({"name": "replaceme-ls", "alpha": 10})]);
    }

    #[test]
    fn error_for_an_invalid_method_names_its_flag() {
        for (text, words) in [
            ("ghosted:normed", ["NAME:OPTION=VALUE", "`normed`"]),
            ("ghosted:bias=true", ["--recoveries ghosted:bias=true", "input: normed"]),
            ("gosted", ["--recoveries gosted", "did you mean `ghosted`?"]),
        ] {
            let message = build_recoveries(&list(&[text])).err().unwrap().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }
}
