//! Selection of a document's best choice, with the rule for scores that are not finite.

/// Rule for documents with a log-likelihood that is not finite, for example after an overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NonFiniteScore {
    /// No choice is selected, so the document counts as wrong. An empty choice is selected only if all are empty.
    CountedWrong,
    /// `numpy.argmax` selects a choice, as in lm-evaluation-harness: the first NaN, or else the first maximum. The
    /// selected choice may be correct by chance.
    NumpyArgmax,
}

impl NonFiniteScore {
    /// Returns the index of the choice with the highest log-likelihood per unit of length, or `None` if the rule
    /// selects no choice. Ties go to the first choice. Each choice is given by its log-likelihood and its length.
    #[allow(clippy::cast_precision_loss, reason = "no choice has 2⁵³ characters")]
    pub fn best_choice(self, choices: impl IntoIterator<Item = (f64, usize)>) -> Option<usize> {
        let mut best: Option<(usize, f64)> = match self {
            Self::CountedWrong => None,
            Self::NumpyArgmax => Some((0, f64::NEG_INFINITY)),
        };
        for (index, (log_likelihood, length)) in choices.into_iter().enumerate() {
            let value = match (self, length) {
                (Self::CountedWrong, _) if !log_likelihood.is_finite() => return None,
                // An empty choice must never be selected. −x / 0 is −∞, but 0 / 0 would be NaN.
                (Self::CountedWrong, 0) => f64::NEG_INFINITY,
                _ => log_likelihood / length as f64,
            };
            if best.is_none_or(|(_, highest)| !highest.is_nan() && (value.is_nan() || value > highest)) {
                best = Some((index, value));
            }
        }
        best.map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::NonFiniteScore::{CountedWrong, NumpyArgmax};

    #[test]
    fn rules_differ_only_for_nonfinite_scores() {
        for (choices, counted_wrong, numpy_argmax) in [
            ([(-1.0, 1), (-1.0, 1)], Some(0), 0),
            ([(-4.0, 8), (-2.0, 2)], Some(0), 0),
            ([(-3.0, 0), (-9.0, 1)], Some(1), 1),
            ([(0.0, 0), (-9.0, 1)], Some(1), 0),
            ([(-1.0, 1), (f64::NAN, 1)], None, 1),
            ([(f64::NEG_INFINITY, 1), (f64::NEG_INFINITY, 1)], None, 0),
        ] {
            assert_eq!(CountedWrong.best_choice(choices), counted_wrong, "{choices:?}");
            assert_eq!(NumpyArgmax.best_choice(choices), Some(numpy_argmax), "{choices:?}");
        }
    }
}
