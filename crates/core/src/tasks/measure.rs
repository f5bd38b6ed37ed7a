//! A mean with its standard error.

use serde::{Deserialize, Serialize};

/// A mean over documents, or over tasks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    pub value: f64,
    /// The standard error of the mean; none can be told from one document.
    pub stderr: Option<f64>,
}

impl Measure {
    /// The mean of `values` and sqrt(Σ(x − mean)² / (n − 1)) / sqrt(n). `None` without values.
    #[allow(clippy::cast_precision_loss, reason = "no task has 2⁵³ documents")]
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        // Summed in order, as the harness does, so that the last digit agrees.
        let value = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|x| (x - value) * (x - value)).sum();
        let stderr = (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt() / count.sqrt());
        Some(Self { value, stderr })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_error_has_its_closed_form() {
        let measure = Measure::of(&[1.0, 0.0, 0.0, 1.0]).unwrap();
        assert_eq!(measure.value, 0.5);
        // For zeros and ones it is sqrt(p (1 − p) / (n − 1)).
        assert!((measure.stderr.unwrap() - (0.25_f64 / 3.0).sqrt()).abs() < 1e-15);
        assert_eq!(Measure::of(&[1.0]), Some(Measure { value: 1.0, stderr: None }));
        assert_eq!(Measure::of(&[]), None);
    }
}
