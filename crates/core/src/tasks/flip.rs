//! Changes in a document's answer between the dense model and a pruned variant.

use super::task_result::Measure;

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
    /// Returns whether the answer changes from `dense` to `variant` as `self` describes. Each pair contains an answer
    /// and whether it is correct.
    pub fn matches_answers<A: PartialEq>(self, dense: &(A, bool), variant: &(A, bool)) -> bool {
        match self {
            Self::Changed => dense.0 != variant.0,
            Self::RightToWrong => dense.1 && !variant.1,
            Self::WrongToRight => !dense.1 && variant.1,
        }
    }

    /// Computes the percentage of documents whose answers change, and its standard error over documents.
    pub fn rate(changes: &[bool]) -> Option<Measure> {
        let values: Vec<f64> = changes.iter().map(|&changed| f64::from(u8::from(changed))).collect();
        Measure::from_values(&values).map(Measure::in_percent)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AccuracyKind, ChoiceResult, DocumentResult};
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
        DocumentResult { id: 0, gold: 0, choices: choices.into() }
    }

    /// The standard error of 1, 0, 0, 0 is sqrt((0.75² + 3 · 0.25²) / 3) / 2 = 0.25.
    #[test]
    fn flip_rate_is_a_percentage_with_standard_error() {
        assert_eq!(Flip::rate(&[true, false, false, false]), Some(Measure { value: 25.0, stderr: Some(25.0) }));
        assert_eq!(Flip::rate(&[]), None);
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
            let [one, other] = [dense, variant]
                .map(|document| (document.prediction(AccuracyKind::Acc), document.is_correct(AccuracyKind::Acc)));
            let found =
                [Flip::Changed, Flip::RightToWrong, Flip::WrongToRight].map(|flip| flip.matches_answers(&one, &other));
            assert_eq!(found, expected, "{:?} to {:?}", one.0, other.0);
        }
    }
}
