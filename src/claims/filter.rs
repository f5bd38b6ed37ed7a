//! Which records a claim, or an accessor in its check, looks at: conditions on the fields of [`Condition`].

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::words::{CRITERIA, Complaint, RECOVERIES};
use crate::record::{Condition, Record};

/// A field of [`Condition`]; `corpus` and `sequences` are the two parts of `calibration`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Backbone,
    Layers,
    Depth,
    Criterion,
    Recovery,
    Finetuned,
    Calibration,
    Corpus,
    Sequences,
}

impl Field {
    pub(super) const ALL: [Field; 9] = [
        Field::Backbone,
        Field::Layers,
        Field::Depth,
        Field::Criterion,
        Field::Recovery,
        Field::Finetuned,
        Field::Calibration,
        Field::Corpus,
        Field::Sequences,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Field::Backbone => "backbone",
            Field::Layers => "layers",
            Field::Depth => "depth",
            Field::Criterion => "criterion",
            Field::Recovery => "recovery",
            Field::Finetuned => "finetuned",
            Field::Calibration => "calibration",
            Field::Corpus => "corpus",
            Field::Sequences => "sequences",
        }
    }

    pub(super) fn named(word: &str) -> Result<Field, Complaint> {
        let known = Field::ALL.map(Field::name);
        Field::ALL
            .into_iter()
            .find(|field| field.name() == word)
            .ok_or_else(|| Complaint::unknown("field", word, &known))
    }

    /// The field's value, as it is written in a filter. `sequences` is empty where the calibration names no number.
    pub(super) fn of(self, condition: &Condition) -> String {
        let (corpus, sequences) = condition.calibration.split_once(':').unwrap_or((&condition.calibration, ""));
        match self {
            Field::Backbone => condition.backbone.clone(),
            Field::Layers => condition.layers.to_string(),
            Field::Depth => condition.depth.to_string(),
            Field::Criterion => condition.criterion.clone(),
            Field::Recovery => condition.recovery.clone(),
            Field::Finetuned => condition.finetuned.to_string(),
            Field::Calibration => condition.calibration.clone(),
            Field::Corpus => corpus.to_owned(),
            Field::Sequences => sequences.to_owned(),
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Field::Layers | Field::Depth | Field::Sequences)
    }

    /// Refuses a name that no record can have, where the field has a fixed set of names.
    pub(super) fn check_name(self, name: &str) -> Result<(), Complaint> {
        let base = name.split(':').next().unwrap_or(name);
        match self {
            Field::Criterion if !CRITERIA.contains(&name) => Err(Complaint::unknown("criterion", name, &CRITERIA)),
            Field::Recovery if !RECOVERIES.contains(&base) => Err(Complaint::unknown("recovery", name, &RECOVERIES)),
            _ => Ok(()),
        }
    }
}

impl Serialize for Field {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A value as it is written in a claim.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    Number(f64),
    Text(String),
    Bool(bool),
}

impl Literal {
    pub(super) fn describe(&self) -> String {
        match self {
            Literal::Number(number) => format!("the number {number}"),
            Literal::Text(text) => format!("the text `{text}`"),
            Literal::Bool(value) => format!("the truth value `{value}`"),
        }
    }
}

/// What a field is compared with.
#[derive(Debug, Clone, PartialEq)]
enum Test {
    /// The field's value as [`Field::of`] gives it.
    Exactly(String),
    /// Layers were removed.
    Pruned,
    /// The fewest removed layers among the pruned records of the same backbone.
    Shallow,
    /// The most.
    Deep,
}

/// The depths that have names; they differ between the profiles and between backbones.
const DEPTHS: [&str; 3] = ["pruned", "shallow", "deep"];

/// The field has one of some values, or, negated, none of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Filter {
    pub(super) field: Field,
    tests: Vec<Test>,
    negated: bool,
}

impl Filter {
    /// # Errors
    /// Values of another type than the field's, unknown names, no value at all.
    pub(super) fn new(field: Field, values: &[Literal], negated: bool) -> Result<Filter, Complaint> {
        if values.is_empty() {
            return Err(Complaint::new(format!("the filter `{}` has no value", field.name())));
        }
        let tests = values.iter().map(|value| test(field, value)).collect::<Result<_, _>>()?;
        Ok(Filter { field, tests, negated })
    }

    pub(super) fn admits(&self, record: &Record, depths: &Depths) -> bool {
        let condition = &record.condition;
        let (depth, range) = (condition.depth, depths.0.get(&condition.backbone));
        let one = self.tests.iter().any(|test| match test {
            Test::Exactly(value) => self.field.of(condition) == *value,
            Test::Pruned => depth > 0,
            Test::Shallow => range.is_some_and(|(shallow, _)| *shallow == depth),
            Test::Deep => range.is_some_and(|(_, deep)| *deep == depth),
        });
        one != self.negated
    }

    /// The one value that the field must have, where the filter leaves only one.
    pub(super) fn only_value(&self) -> Option<&str> {
        match self.tests.as_slice() {
            [Test::Exactly(value)] if !self.negated => Some(value),
            _ => None,
        }
    }

    /// Short, for the numbers that a verdict shows: `ghosted`, `not none`, `7 or 11`.
    pub(super) fn shown(&self) -> String {
        let values: Vec<&str> = self
            .tests
            .iter()
            .map(|test| match test {
                Test::Exactly(value) => value,
                Test::Pruned => "pruned",
                Test::Shallow => "shallow",
                Test::Deep => "deep",
            })
            .collect();
        let name = match self.field {
            Field::Layers | Field::Depth | Field::Finetuned | Field::Sequences => format!("{} ", self.field.name()),
            _ => String::new(),
        };
        format!("{name}{}{}", if self.negated { "not " } else { "" }, values.join(" or "))
    }
}

fn test(field: Field, value: &Literal) -> Result<Test, Complaint> {
    let wrong = |expected: &str| {
        let what = format!("`{}` cannot be {}", field.name(), value.describe());
        Err(Complaint::new(what).expected(expected))
    };
    match (field, value) {
        (Field::Depth, Literal::Text(word)) => match word.as_str() {
            "pruned" => Ok(Test::Pruned),
            "shallow" => Ok(Test::Shallow),
            "deep" => Ok(Test::Deep),
            other => Err(Complaint::unknown("depth", other, &DEPTHS).expected("a number, or pruned, shallow or deep")),
        },
        (field, Literal::Number(number)) if field.is_number() => {
            if *number >= 0.0 && number.fract() == 0.0 {
                Ok(Test::Exactly(format!("{number:.0}")))
            } else {
                wrong("a whole number, 0 or more")
            }
        }
        (field, _) if field.is_number() => wrong("a whole number, 0 or more"),
        (Field::Finetuned, Literal::Bool(value)) => Ok(Test::Exactly(value.to_string())),
        (Field::Finetuned, _) => wrong("true or false"),
        (_, Literal::Text(text)) => field.check_name(text).map(|()| Test::Exactly(text.clone())),
        _ => wrong("text"),
    }
}

/// Of each backbone the fewest and the most layers removed in a list of records. Failed cells count too: a number that
/// is missing must not make another depth the deepest one.
#[derive(Debug, Default)]
pub(super) struct Depths(BTreeMap<String, (usize, usize)>);

impl Depths {
    pub(super) fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> Depths {
        let mut depths: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for Condition { backbone, depth, .. } in records.into_iter().map(|record| &record.condition) {
            if *depth > 0 {
                let range = depths.entry(backbone.clone()).or_insert((*depth, *depth));
                *range = (range.0.min(*depth), range.1.max(*depth));
            }
        }
        Depths(depths)
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::record;
    use super::*;

    fn text(text: &str) -> Literal {
        Literal::Text(text.to_owned())
    }

    #[test]
    fn shallow_and_deep_are_those_of_the_records_own_backbone() {
        let mut records = vec![record("a", 7, "ghosted", 1.0), record("a", 11, "ghosted", 1.0)];
        records.extend([
            record("b", 13, "ghosted", 1.0),
            record("b", 15, "ghosted", f64::NAN),
            record("b", 0, "none", 1.0),
        ]);
        let depths = Depths::of(&records);
        let admitted = |word: &str| -> Vec<usize> {
            let filter = Filter::new(Field::Depth, &[text(word)], false).unwrap();
            records.iter().filter(|r| filter.admits(r, &depths)).map(|r| r.condition.depth).collect()
        };
        assert_eq!(admitted("shallow"), [7, 13]);
        assert_eq!(admitted("deep"), [11, 15]);
        assert_eq!(admitted("pruned"), [7, 11, 13, 15]);
    }

    #[test]
    fn a_negated_list_admits_everything_else() {
        let filter = Filter::new(Field::Recovery, &[text("none"), text("ghosted")], true).unwrap();
        let depths = Depths::default();
        assert!(!filter.admits(&record("a", 7, "none", 1.0), &depths));
        assert!(filter.admits(&record("a", 7, "replaceme-ls", 1.0), &depths));
        assert_eq!(filter.shown(), "not none or ghosted");
    }

    #[test]
    fn the_two_parts_of_the_calibration_are_fields() {
        let mut varied = record("a", 7, "ghosted", 1.0);
        varied.condition.calibration = "c4:32".to_owned();
        let plain = record("a", 7, "ghosted", 1.0);
        let depths = Depths::default();
        let sequences = Filter::new(Field::Sequences, &[Literal::Number(32.0)], false).unwrap();
        assert!(sequences.admits(&varied, &depths) && !sequences.admits(&plain, &depths));
        let corpus = Filter::new(Field::Corpus, &[text("c4")], false).unwrap();
        assert!(corpus.admits(&varied, &depths) && corpus.admits(&plain, &depths));
    }

    #[test]
    fn values_of_another_type_and_unknown_names_are_refused() {
        let refused = |field, value: Literal| Filter::new(field, &[value], false).unwrap_err();
        assert_eq!(refused(Field::Depth, Literal::Bool(true)).what, "`depth` cannot be the truth value `true`");
        assert!(refused(Field::Depth, Literal::Number(7.5)).what.contains("7.5"));
        assert_eq!(refused(Field::Depth, text("depe")).hint.as_deref(), Some("did you mean `deep`?"));
        assert_eq!(refused(Field::Finetuned, text("yes")).expected.as_deref(), Some("true or false"));
        assert_eq!(refused(Field::Recovery, text("ghosted-svd")).hint, None);
        assert!(Filter::new(Field::Recovery, &[text("ghosted:svd")], false).is_ok());
        assert_eq!(refused(Field::Criterion, text("short-gpt")).hint.as_deref(), Some("did you mean `shortgpt`?"));
        assert_eq!(refused(Field::Backbone, Literal::Number(3.0)).expected.as_deref(), Some("text"));
        assert!(Filter::new(Field::Backbone, &[], false).unwrap_err().what.contains("no value"));
    }
}
