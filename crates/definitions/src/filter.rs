//! Filters that lm-eval applies to answers before scoring.

use std::sync::LazyLock;

use fancy_regex::Regex;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::tasks::python::strip;

use crate::pattern::{Pattern, escape_pattern};
use crate::value::Value;
use crate::yaml::{Node, Tree, hook_error, value_error};

/// Default result of a `regex` filter whose pattern does not match.
const DEFAULT_FALLBACK: &str = "[invalid]";
/// Default pattern of a `regex` filter. It extracts the number after `####`.
const DEFAULT_NUMBER_PATTERN: &str = r"#### (\-?[0-9\.\,]+)";

/// Filters of one entry in `filter_list`, in the order in which they are applied.
#[derive(Debug, Clone)]
pub struct Pipeline {
    /// Name of the pipeline, which is reported with its scores.
    pub name: String,
    steps: Vec<FilterStep>,
}

#[derive(Debug, Clone)]
enum FilterStep {
    Regex(Box<RegexExtraction>),
    Choice { extraction: Box<RegexExtraction>, cleaning: TextCleaning },
    TakeFirst,
    TakeFirstK(usize),
    Majority,
    Strip,
    Lower,
    Upper,
    Map { pairs: Vec<(Value, Value)>, default: Value },
}

/// Changes that `multi_choice_regex` makes to a text before it compares the text with the choices.
#[derive(Debug, Clone)]
struct TextCleaning {
    /// Patterns whose matches are removed.
    ignored: Vec<Pattern>,
    ignore_case: bool,
    ignore_punctuation: bool,
}

#[derive(Debug, Clone)]
struct RegexExtraction {
    pattern: Pattern,
    /// Index of the match to return. Negative indices count from the end.
    select: i64,
    /// Result if nothing matches.
    fallback: String,
}

impl Pipeline {
    /// Returns the default pipeline, which takes the first answer.
    pub fn take_first() -> Self {
        Self { name: "none".to_owned(), steps: vec![FilterStep::TakeFirst] }
    }

    /// Returns whether the pipeline only takes the first answer.
    pub fn is_first(&self) -> bool {
        matches!(self.steps[..], [FilterStep::TakeFirst])
    }

    /// Parses an entry in `filter_list`.
    ///
    /// # Errors
    /// Fails if a filter is unknown or has unknown options.
    pub fn read(node: &Node) -> Result<Self> {
        if let Some((key, odd)) =
            node.pairs().iter().find(|(key, _)| !["name", "filter"].contains(&key.as_text().unwrap_or("")))
        {
            return Err(Error::bad_input(format!("unknown key `{}` in `filter_list`", key.text()))
                .at(&odd.location)
                .expected("`name` and `filter`"));
        }
        let name = node
            .get("name")
            .and_then(Node::text)
            .ok_or_else(|| value_error("filter_list", "entries with `name`", node))?;
        let Some(Node { tree: Tree::List(steps), .. }) = node.get("filter") else {
            return Err(value_error("filter", "a list of functions", node));
        };
        let steps = steps.iter().map(FilterStep::read).collect::<Result<Vec<_>>>()?;
        if !steps.iter().any(|step| matches!(step, FilterStep::TakeFirst)) {
            let last = "a filter `take_first`, because metrics score a single answer";
            return Err(value_error("filter", last, node).found(format!("the pipeline `{name}`")));
        }
        Ok(Self { name: name.to_owned(), steps })
    }

    /// Reduces the answers for a request to a single one.
    ///
    /// # Errors
    /// Fails if a filter cannot process its input, as in lm-evaluation-harness.
    pub fn apply(&self, answers: Value, document: &Value) -> Result<Value> {
        self.steps
            .iter()
            .try_fold(answers, |answers, step| step.apply(&answers, document))
            .map_err(|error: Error| error.at(format!("filter `{}`", self.name)))
    }
}

impl FilterStep {
    fn read(node: &Node) -> Result<Self> {
        let mut options = FilterOptions { node, used: vec!["function"] };
        let name = match node.get("function") {
            Some(Node { tree: Tree::Hook(hook), location }) => {
                return Err(hook_error("filter_list.function", hook, location));
            }
            function => {
                function.and_then(Node::text).ok_or_else(|| value_error("filter", "entries with `function`", node))?
            }
        };
        let step = match name {
            "regex" => Self::Regex(Box::new(options.extraction()?)),
            "multi_choice_regex" => Self::Choice {
                extraction: Box::new(options.extraction()?),
                cleaning: TextCleaning {
                    ignore_case: options.flag("ignore_case")?,
                    ignore_punctuation: options.flag("ignore_punctuation")?,
                    ignored: options.patterns("regexes_to_ignore")?,
                },
            },
            "take_first" => Self::TakeFirst,
            "take_first_k" => {
                let k = options.get("k").and_then(|k| usize::try_from(k.as_int()?).ok()).filter(|k| *k > 0);
                Self::TakeFirstK(k.ok_or_else(|| options.invalid_value("k", "a whole number, 1 or more"))?)
            }
            "majority_vote" => Self::Majority,
            "remove_whitespace" => Self::Strip,
            "lowercase" => Self::Lower,
            "uppercase" => Self::Upper,
            "map" => {
                let pairs = match options.get("mapping_dict") {
                    None | Some(Value::None) => Vec::new(),
                    Some(Value::Map(pairs)) => pairs,
                    Some(_) => return Err(options.invalid_value("mapping_dict", "a mapping")),
                };
                Self::Map { pairs, default: options.get("default_value").unwrap_or(Value::None) }
            }
            _ => {
                return Err(value_error(
                    "function",
                    "regex, multi_choice_regex, take_first, take_first_k, majority_vote, remove_whitespace, lowercase, uppercase or map",
                    node.get("function").unwrap_or(node),
                ));
            }
        };
        options.check_all_used()?;
        Ok(step)
    }

    fn apply(&self, answers: &Value, document: &Value) -> Result<Value> {
        match self {
            Self::Regex(extraction) => map_answers(answers, |item| {
                let found = extraction.find(item.as_text().unwrap_or(""))?;
                let found = found.filter(|(part, tuple)| !(*tuple && part.is_empty()));
                Ok(Value::Text(found.map_or_else(|| extraction.fallback.clone(), |(part, _)| part)))
            }),
            Self::Choice { extraction, cleaning } => extract_choices(extraction, cleaning, answers, document),
            Self::TakeFirst => {
                let first = items(answers)?.into_iter().next();
                first.ok_or_else(|| Error::job("`take_first` requires at least one answer").found(answers.repr()))
            }
            Self::TakeFirstK(k) => {
                let mut all = items(answers)?;
                if all.len() < *k {
                    return Err(Error::bad_input(format!("cannot take the first {k} of {} answers", all.len()))
                        .hint("raise `repeats`"));
                }
                all.truncate(*k);
                Ok(Value::List(all))
            }
            Self::Majority => {
                let all = items(answers)?;
                let max_count = all.iter().map(|item| count_equal(item, &all)).max();
                let winner = all.iter().find(|item| Some(count_equal(item, &all)) == max_count).cloned();
                winner
                    .map(|winner| Value::List(vec![winner]))
                    .ok_or_else(|| Error::job("`majority_vote` requires at least one answer"))
            }
            Self::Strip => map_texts(answers, |text| strip(text).to_owned()),
            Self::Lower => map_texts(answers, str::to_lowercase),
            Self::Upper => map_texts(answers, str::to_uppercase),
            Self::Map { pairs, default } => map_answers(answers, |item| {
                let found = pairs.iter().find(|(key, _)| *key == item);
                Ok(found.map_or_else(|| default.clone(), |(_, value)| value.clone()))
            }),
        }
    }
}

fn count_equal(item: &Value, all: &[Value]) -> usize {
    all.iter().filter(|other| *other == item).count()
}

fn map_answers(answers: &Value, convert: impl FnMut(Value) -> Result<Value>) -> Result<Value> {
    Ok(Value::List(items(answers)?.into_iter().map(convert).collect::<Result<_>>()?))
}

fn map_texts(answers: &Value, convert: fn(&str) -> String) -> Result<Value> {
    map_answers(answers, |item| match item {
        Value::Text(text) => Ok(Value::Text(convert(&text))),
        other => Err(Error::job("a string filter requires strings").found(other.repr())),
    })
}

/// Returns the items that Python iterates over: the items of a list, or the characters of a string.
fn items(value: &Value) -> Result<Vec<Value>> {
    match value {
        Value::List(items) => Ok(items.clone()),
        Value::Text(text) => Ok(text.chars().map(|c| Value::Text(c.to_string())).collect()),
        other => Err(Error::job("a filter requires a list of answers").found(other.repr())),
    }
}

impl RegexExtraction {
    /// Returns the result of [`select_match`] for all matches in `text`.
    fn find(&self, text: &str) -> Result<Option<(String, bool)>> {
        select_match(&self.pattern.find_all(text)?, self.select)
    }
}

/// Selects the match at index `select`, which counts from the end if negative. Returns its first nonempty group without
/// surrounding whitespace, and whether it has several groups that are all empty. Returns `None` if there are no
/// matches.
fn select_match(all: &[Vec<String>], select: i64) -> Result<Option<(String, bool)>> {
    if all.is_empty() {
        return Ok(None);
    }
    let length = i64::try_from(all.len()).unwrap_or(i64::MAX);
    let index = if select < 0 { select + length } else { select };
    let groups = usize::try_from(index).ok().and_then(|index| all.get(index)).ok_or_else(|| {
        Error::job("`group_select` is not the index of a match")
            .expected(format!("an index into {} matches", all.len()))
            .found(select)
    })?;
    let part = groups.iter().find(|part| !part.is_empty()).map_or("", |part| strip(part));
    Ok(Some((part.to_owned(), groups.len() > 1 && groups.iter().all(String::is_empty))))
}

impl TextCleaning {
    fn apply(&self, text: &str) -> Result<String> {
        static PUNCTUATION: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\p{P}").ok());
        let mut text = self.ignored.iter().try_fold(text.to_owned(), |text, pattern| pattern.remove_matches(&text))?;
        if self.ignore_case {
            text = text.to_lowercase();
        }
        Ok(match PUNCTUATION.as_ref().filter(|_| self.ignore_punctuation) {
            Some(punctuation) => punctuation.replace_all(&text, "").into_owned(),
            None => text,
        })
    }
}

/// Extracts a choice from each answer: the match of the pattern, or else the letter of the choice whose text the answer
/// contains, the letter after a colon, or the fallback.
fn extract_choices(
    extraction: &RegexExtraction,
    cleaning: &TextCleaning,
    answers: &Value,
    document: &Value,
) -> Result<Value> {
    let choices = document.get("choices").and_then(Value::as_list).ok_or_else(|| {
        Error::bad_input("`multi_choice_regex` requires the column `choices`")
            .expected("a list of strings")
            .found(document.repr())
    })?;
    let mut texts = Vec::new();
    for choice in choices {
        let text = choice.as_text().ok_or_else(|| Error::bad_input("a choice is not text").found(choice.repr()))?;
        texts.push(cleaning.apply(strip(text))?);
    }
    let by_text = Pattern::new(&texts.iter().map(|text| escape_pattern(text)).collect::<Vec<_>>().join("|"))?;
    let letters = (0..texts.len()).map(|index| escape_pattern(&choice_letter(index))).collect::<Vec<_>>().join("|");
    let by_letter = Pattern::new(&format!(r":[\s]*({letters})"))?;
    map_answers(answers, |answer| {
        let answer = answer.as_text().unwrap_or("");
        let mut part = extraction.find(answer)?.map_or(String::new(), |(part, _)| part);
        if part.is_empty() {
            let found = select_match(&by_text.find_all(&cleaning.apply(answer)?)?, extraction.select)?
                .map_or(String::new(), |(part, _)| part);
            // If several choices have the same text, the last one wins.
            let index = texts.iter().rposition(|text| *text == found);
            part = add_choice_letter(found, index);
        }
        if part.is_empty() {
            let found =
                select_match(&by_letter.find_all(answer)?, extraction.select)?.map_or(String::new(), |(part, _)| part);
            let index = (0..texts.len()).find(|index| choice_letter(*index) == found);
            part = add_choice_letter(found, index);
        }
        Ok(Value::Text(if part.is_empty() { extraction.fallback.clone() } else { part }))
    })
}

/// Returns the parenthesized letter of the matched choice, or `text` itself if it is empty or matches no choice.
fn add_choice_letter(text: String, choice: Option<usize>) -> String {
    match choice {
        Some(index) if !text.is_empty() => format!("({})", choice_letter(index)),
        _ => text,
    }
}

fn choice_letter(index: usize) -> String {
    char::from_u32('A' as u32 + u32::try_from(index).unwrap_or(0)).unwrap_or('?').to_string()
}

/// Options of a filter. Tracks which options have been read, so that unknown ones can be rejected.
struct FilterOptions<'a> {
    node: &'a Node,
    used: Vec<&'static str>,
}

impl FilterOptions<'_> {
    fn get(&mut self, key: &'static str) -> Option<Value> {
        self.used.push(key);
        self.node.get(key).and_then(|node| node.plain().ok())
    }

    /// Creates the error for an option with an invalid value.
    fn invalid_value(&self, key: &str, expected: &str) -> Error {
        value_error(key, expected, self.node.get(key).unwrap_or(self.node))
    }

    fn flag(&mut self, key: &'static str) -> Result<bool> {
        match self.get(key) {
            None | Some(Value::None) => Ok(false),
            Some(Value::Bool(truth)) => Ok(truth),
            Some(_) => Err(self.invalid_value(key, "true or false")),
        }
    }

    fn patterns(&mut self, key: &'static str) -> Result<Vec<Pattern>> {
        match self.get(key) {
            None | Some(Value::None) => Ok(Vec::new()),
            Some(Value::List(all)) if all.iter().all(|one| one.as_text().is_some()) => {
                all.iter().map(|one| Pattern::new(&one.text()).map_err(|error| error.at(&self.node.location))).collect()
            }
            Some(_) => Err(self.invalid_value(key, "a list of regular expressions")),
        }
    }

    fn text(&mut self, key: &'static str, default: &str) -> Result<String> {
        match self.get(key) {
            None => Ok(default.to_owned()),
            Some(Value::Text(text)) => Ok(text),
            Some(_) => Err(self.invalid_value(key, "a string")),
        }
    }

    fn extraction(&mut self) -> Result<RegexExtraction> {
        let source = self.text("regex_pattern", DEFAULT_NUMBER_PATTERN)?;
        let fallback = self.text("fallback", DEFAULT_FALLBACK)?;
        let select = match self.get("group_select") {
            None => 0,
            Some(value) => value.as_int().ok_or_else(|| self.invalid_value("group_select", "a whole number"))?,
        };
        let location = self.node.get("regex_pattern").unwrap_or(self.node).location.to_string();
        Ok(RegexExtraction { pattern: Pattern::new(&source).map_err(|error| error.at(location))?, select, fallback })
    }

    fn check_all_used(&self) -> Result<()> {
        let unused = self.node.pairs().iter().find(|(key, _)| !self.used.contains(&key.as_text().unwrap_or("")));
        match unused {
            Some((key, Node { tree: Tree::Hook(hook), location })) => {
                Err(hook_error(&format!("filter_list.{}", key.text()), hook, location))
            }
            Some((key, node)) => Err(Error::bad_input(format!("unknown filter option `{}`", key.text()))
                .at(&node.location)
                .expected(self.used.join(", "))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml::parse;

    fn apply_filters(steps: &str, answers: &[&str], document: &str) -> Result<String> {
        let pipeline = Pipeline::read(&parse(&format!("name: n\nfilter: {steps}"), "f")?)?;
        let answers = Value::List(answers.iter().map(|answer| Value::from(*answer)).collect());
        Ok(pipeline.apply(answers, &serde_json::from_str(document).unwrap())?.repr())
    }

    /// The expected results are those of the filters in lm-evaluation-harness at commit `4e7e0d4`.
    #[test]
    fn filters_match_the_harness() {
        let all = [
            (
                r"[{function: regex, regex_pattern: '(\d+)', group_select: -1}, {function: take_first}]",
                vec!["a 1 b 22"],
                "'22'",
            ),
            (r"[{function: regex, regex_pattern: 'x(\d*)'}, {function: take_first}]", vec!["ax"], "''"),
            (r"[{function: regex, regex_pattern: '(a)?(b)?c'}, {function: take_first}]", vec!["c"], "'[invalid]'"),
            (r"[{function: regex}, {function: take_first}]", vec!["none"], "'[invalid]'"),
            (
                "[{function: take_first_k, k: 3}, {function: majority_vote}, {function: take_first}]",
                vec!["b", "a", "a", "b"],
                "'a'",
            ),
            ("[{function: majority_vote}, {function: take_first}]", vec!["b", "a", "a", "b"], "'b'"),
            ("[{function: remove_whitespace}, {function: take_first}]", vec![" \u{1f}x\u{a0}"], "'x'"),
            (
                "[{function: take_first}, {function: map, mapping_dict: {B: 2}, default_value: -1}, {function: take_first}]",
                vec!["Bx"],
                "2",
            ),
            ("[{function: lowercase}, {function: take_first}]", vec!["ÄB"], "'äb'"),
        ];
        for (steps, answers, expected) in all {
            assert_eq!(apply_filters(steps, &answers, "{}").unwrap(), expected, "{steps}");
        }
        let choices = "[{function: multi_choice_regex, group_select: 0, ignore_case: true, ignore_punctuation: true, \
            regex_pattern: '(\\([A-Z]\\))'}, {function: take_first}]";
        let document = r#"{"choices": ["Guilty", "Guilty of Romance", "No!"]}"#;
        for (answer, expected) in [
            ("it is (B)", "'(B)'"),
            ("guilty of romance", "'(A)'"),
            ("I say: no", "'(C)'"),
            ("Answer: C", "'(C)'"),
            ("hm", "'[invalid]'"),
        ] {
            assert_eq!(apply_filters(choices, &[answer], document).unwrap(), expected, "{answer}");
        }
    }

    #[test]
    fn filter_that_fails_in_the_harness_is_rejected() {
        assert!(
            filter_error(r"[{function: regex, regex_pattern: '(\d)', group_select: 5}, {function: take_first}]")
                .contains("group_select")
        );
        assert!(filter_error("[{function: take_first_k, k: 2}, {function: take_first}]").contains("repeats"));
        assert!(filter_error("[{function: format_span}, {function: take_first}]").contains("f:2"));
        assert!(filter_error("[{function: custom, filter_fn: !function a.b}, {function: take_first}]").contains("f:2"));
        assert!(filter_error("[{function: take_first, k: 1}]").contains("`k`"));
        assert!(filter_error("[{function: regex, regex_pattern: '('}, {function: take_first}]").contains("f:2"));
        assert!(filter_error("[{function: remove_whitespace}]").contains("take_first"));
    }

    fn filter_error(steps: &str) -> String {
        apply_filters(steps, &["1"], "{}").unwrap_err().to_string()
    }
}
