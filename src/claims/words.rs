//! The words that a claim may use, and the complaint about one that it may not.

use crate::error::{Error, nearest};
use crate::metric::{Direction, Metric};
use crate::record::DENSE;

/// The figures and tables of the paper that have numbers.
pub(super) const ARTIFACTS: [&str; 16] = [
    "figure1", "figure3", "figure4", "figure5", "table2", "table3", "table4", "table5", "tableA3", "tableA4",
    "tableA5", "tableA6", "tableA7", "tableA8", "tableA9", "tableA10",
];

/// The criteria of the paper's tables. `dense` is the one of rows in which nothing was removed.
pub(super) const CRITERIA: [&str; 5] = [DENSE, "llm-streamline", "shortgpt", "shortened-llama", "sleb"];

/// The recoveries of the paper's tables. After a colon any of them may name an option: `ghosted:svd`.
pub(super) const RECOVERIES: [&str; 7] =
    ["none", "prune-and-comp", "replaceme-ls", "replaceme-cos", "linearpatch-diag", "linearpatch-rotate", "ghosted"];

/// In which direction a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sense {
    Higher,
    Lower,
    /// A share of something of which neither much nor little is good.
    Neither,
}

/// What was written wrong, before its place is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Complaint {
    pub(super) what: String,
    pub(super) expected: Option<String>,
    pub(super) hint: Option<String>,
}

impl Complaint {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), expected: None, hint: None }
    }

    pub(super) fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A word that is none of `known`, with the nearest of them as the hint.
    pub(super) fn unknown(kind: &str, word: &str, known: &[&str]) -> Self {
        let complaint = Self::new(format!("unknown {kind} `{word}`")).expected(format!("one of {}", known.join(", ")));
        match nearest(word, known.iter().copied()) {
            Some(near) => complaint.hint(format!("did you mean `{near}`?")),
            None => complaint,
        }
    }

    pub(super) fn into_error(self) -> Error {
        let mut error = Error::bad_input(self.what);
        if let Some(expected) = self.expected {
            error = error.expected(expected);
        }
        match self.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

/// The direction of a metric, or the complaint that there is no such metric.
pub(super) fn sense(metric: &str) -> Result<Sense, Complaint> {
    let found = Metric::find(metric).map_err(|_| Complaint::unknown("metric", metric, &Metric::words()))?;
    Ok(match found.direction {
        Direction::Higher => Sense::Higher,
        Direction::Lower => Sense::Lower,
        Direction::Neither => Sense::Neither,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_knows_which_way_is_better() {
        let sense = |metric| sense(metric).unwrap();
        assert_eq!(sense("acc_average"), Sense::Higher);
        assert_eq!(sense("race"), Sense::Higher);
        assert_eq!(sense("channels_reduced_share"), Sense::Higher);
        assert_eq!(sense("ppl_c4"), Sense::Lower);
        assert_eq!(sense("boundary_mae"), Sense::Lower);
        assert_eq!(sense("prefill_ms:seq=512:batch=1"), Sense::Lower);
        assert_eq!(sense("m_symmetric_share"), Sense::Neither);
    }

    #[test]
    fn a_misspelt_metric_is_refused_with_the_nearest_name() {
        let complaint = sense("acc_avarage").unwrap_err();
        assert_eq!(complaint.what, "unknown metric `acc_avarage`");
        assert_eq!(complaint.hint.as_deref(), Some("did you mean `acc_average`?"));
        assert!(sense("arc_easy:seq=1").is_err(), "only latencies have parts after a colon");
    }
}
