//! Windows that are no independent draws.

use super::Protocol;
use super::distinct;
use super::measurement::{Measurement, Sample};
use crate::corpus::Rule;

/// A line that names texts whose windows are drawn with replacement; none where there are none.
pub(super) fn drawn<'a>(numbers: impl IntoIterator<Item = &'a Measurement>) -> Option<String> {
    let windows = |number: &&Measurement| matches!(number.sample, Sample::Losses(_));
    let drawn = |protocol: &'a Protocol| match protocol {
        Protocol::Windows { corpus, rule, .. } => {
            rule.parse::<Rule>().is_ok_and(Rule::with_replacement).then_some(corpus)
        }
        _ => None,
    };
    let texts = numbers.into_iter().filter(windows).flat_map(|number| &number.setup.scored).filter_map(drawn);
    let texts = distinct(texts);
    (!texts.is_empty()).then(|| {
        format!(
            "Windows of {} are drawn with replacement and may overlap: errors and tests, which take them for independent, \
             are a little too sure there.",
            texts.join(", ")
        )
    })
}
