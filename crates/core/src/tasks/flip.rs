//! Changes in a document's answer between the dense model and a variant.

use super::result::DocumentResult;
use super::task::AccuracyKind;

/// Kind of change in a document's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flip {
    /// A different choice is selected.
    Changed,
    /// Only the dense model is correct.
    RightToWrong,
    /// Only the variant is correct.
    WrongToRight,
}

impl Flip {
    /// Returns whether the answer to a document changes in this way. The answers are those that the metric `kind`
    /// selects.
    pub fn holds(self, dense: &DocumentResult, variant: &DocumentResult, kind: AccuracyKind) -> bool {
        match self {
            Self::Changed => dense.prediction(kind) != variant.prediction(kind),
            Self::RightToWrong => dense.right(kind) && !variant.right(kind),
            Self::WrongToRight => !dense.right(kind) && variant.right(kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ChoiceResult;
    use super::*;

    /// Returns a document in which choice 0 is correct.
    fn document(scores: [f64; 3]) -> DocumentResult {
        let choices = scores.map(|log_likelihood| ChoiceResult {
            log_likelihood,
            characters: 1,
            bytes: 1,
            tokens: 1,
            truncated_left: 0,
            greedy: false,
        });
        DocumentResult::new(0, 0, choices.into())
    }

    #[test]
    fn flips_compare_the_chosen_answers() {
        let [right, wrong, otherwise_wrong] =
            [[-1.0, -2.0, -3.0], [-2.0, -1.0, -3.0], [-3.0, -2.0, -1.0]].map(document);
        let undefined = document([f64::NAN, -1.0, -2.0]);
        for (dense, variant, expected) in [
            (&right, &right, [false, false, false]),
            (&right, &wrong, [true, true, false]),
            (&wrong, &right, [true, false, true]),
            (&wrong, &otherwise_wrong, [true, false, false]),
            (&right, &undefined, [true, true, false]),
            (&undefined, &undefined, [false, false, false]),
        ] {
            let found = [Flip::Changed, Flip::RightToWrong, Flip::WrongToRight]
                .map(|flip| flip.holds(dense, variant, AccuracyKind::Acc));
            assert_eq!(found, expected, "{:?} to {:?}", dense.pred, variant.pred);
        }
    }
}
