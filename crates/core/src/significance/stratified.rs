//! Test for a mean over strata, such as the mean of task accuracies: Student's t-test on paired items within strata,
//! and Holm's correction for multiple tests.
//!
//! A stratum is a task or a text. Strata have equal weight regardless of how many items they have. Items are sampled
//! randomly within their stratum, so the standard error is that of a stratified sample (Cochran, Sampling Techniques,
//! §5).

/// Mean of the stratum means, with its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StratifiedMean {
    pub mean: f64,
    /// Standard error of the mean. It is 0 if the items within each stratum are equal.
    pub error: f64,
    /// Degrees of freedom: the number of items minus the number of strata.
    pub degrees_of_freedom: f64,
}

/// Weight of the pooled variance in each stratum, as a number of items. It keeps the variance positive in strata that
/// consist of a few equal items.
const SMOOTHING: f64 = 5.0;

impl StratifiedMean {
    /// Estimates the mean over T strata. Stratum t has nₜ values, whose sum of squares about their mean is SSₜ. With
    /// the pooled variance s̄² = ΣSSₜ / Σ(nₜ − 1) and s²ₜ = (SSₜ + 5 s̄²) / (nₜ + 4), error² = Σ s²ₜ / (nₜ T²). Returns
    /// `None` if a stratum is empty or all strata have a single value.
    pub fn from_strata<S: AsRef<[f64]>>(strata: &[S]) -> Option<Self> {
        let strata: Vec<(f64, f64, f64)> = strata.iter().map(|values| count_mean_squares(values.as_ref())).collect();
        let weight = 1.0 / strata.len() as f64;
        let degrees_of_freedom = strata.iter().map(|(count, ..)| count - 1.0).sum::<f64>();
        if strata.iter().any(|(count, ..)| *count == 0.0) || degrees_of_freedom < 1.0 {
            return None;
        }
        let pooled = strata.iter().map(|(.., squares)| squares).sum::<f64>() / degrees_of_freedom;
        Some(Self {
            mean: strata.iter().map(|(_, mean, _)| mean * weight).sum(),
            error: strata
                .iter()
                .map(|&(count, _, squares)| {
                    (squares + SMOOTHING * pooled) / (count + SMOOTHING - 1.0) / count * weight * weight
                })
                .sum::<f64>()
                .sqrt(),
            degrees_of_freedom,
        })
    }

    /// Estimates the mean of the paired differences `a − b`.
    pub fn paired<S: AsRef<[f64]>>(a: &[S], b: &[S]) -> Option<Self> {
        Self::from_strata(
            &a.iter()
                .zip(b)
                .map(|(a, b)| -> Vec<f64> { a.as_ref().iter().zip(b.as_ref()).map(|(a, b)| a - b).collect() })
                .collect::<Vec<_>>(),
        )
    }

    /// Computes the two-sided p-value under the null hypothesis that the mean is zero. Returns 1 if the standard error
    /// is zero.
    pub fn p(&self) -> f64 {
        if self.error > 0.0 { two_sided_p_value(self.mean / self.error, self.degrees_of_freedom) } else { 1.0 }
    }

    /// Computes half the width of the mean's confidence interval at a confidence level such as 0.95.
    pub fn half_width(&self, confidence: f64) -> f64 {
        self.error * critical_value(1.0 - confidence, self.degrees_of_freedom)
    }
}

fn count_mean_squares(values: &[f64]) -> (f64, f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    (count, mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>())
}

/// Returns which tests reject their null hypothesis at family-wise error rate `level` (Holm 1979). The smallest p-value
/// is compared with level / m, the next one with level / (m − 1), and so on until a test does not reject.
pub fn holm_correction(p: &[f64], level: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut rejected = vec![false; p.len()];
    for (rank, &test) in order.iter().enumerate() {
        if p[test].is_nan() || p[test] > level / (p.len() - rank) as f64 {
            break;
        }
        rejected[test] = true;
    }
    rejected
}

/// Computes P(|T| ≥ |t|) for Student's t-distribution as the incomplete beta function I_x(ν/2, 1/2) at x = ν/(ν + t²)
/// (Abramowitz and Stegun 26.7.1).
pub fn two_sided_p_value(t: f64, degrees_of_freedom: f64) -> f64 {
    if t.is_nan() || degrees_of_freedom.is_nan() || degrees_of_freedom <= 0.0 {
        return f64::NAN;
    }
    // Compute x and 1 − x separately to avoid cancellation.
    let square = t * t;
    if square.is_infinite() {
        return 0.0;
    }
    incomplete_beta(
        degrees_of_freedom / 2.0,
        0.5,
        degrees_of_freedom / (degrees_of_freedom + square),
        square / (degrees_of_freedom + square),
    )
}

/// Computes, by bisection, the t whose two-sided p-value is `p`.
fn critical_value(p: f64, degrees_of_freedom: f64) -> f64 {
    let mut low = 0.0;
    let mut high = 1.0;
    while two_sided_p_value(high, degrees_of_freedom) > p && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if two_sided_p_value(middle, degrees_of_freedom) > p { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// Computes I_x(a, b), where y = 1 − x. Uses I_x(a, b) = 1 − I_y(b, a) where the continued fraction (A&S 26.5.8)
/// converges slowly, and evaluates the fraction by Lentz's method.
fn incomplete_beta(a: f64, b: f64, x: f64, y: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if y <= 0.0 {
        return 1.0;
    }
    let ln_beta = ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b);
    let front = (a * x.ln() + b * y.ln() - ln_beta).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        (front * continued_fraction(a, b, x) / a).clamp(0.0, 1.0)
    } else {
        (1.0 - front * continued_fraction(b, a, y) / b).clamp(0.0, 1.0)
    }
}

/// Replacement for a zero denominator in the continued fraction.
const TINY: f64 = 1e-300;

fn continued_fraction(a: f64, b: f64, x: f64) -> f64 {
    let mut c = 1.0;
    let mut d = 1.0 / at_least_tiny(1.0 - (a + b) * x / (a + 1.0));
    let mut value = d;
    for step in 1..10_000 {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for term in [even, odd] {
            d = 1.0 / at_least_tiny(1.0 + term * d);
            c = at_least_tiny(1.0 + term / c);
            change = c * d;
            value *= change;
        }
        if (change - 1.0).abs() < 1e-15 {
            break;
        }
    }
    value
}

fn at_least_tiny(value: f64) -> f64 {
    if value.abs() < TINY { TINY } else { value }
}

/// Computes ln Γ(x) for x > 0. Uses Stirling's series for x ≥ 16, and the recurrence for smaller x.
fn ln_gamma(x: f64) -> f64 {
    let mut x = x;
    let mut product = 1.0;
    while x < 16.0 {
        product *= x;
        x += 1.0;
    }
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + super::stirling_series(x) - f64::ln(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_t_tails_match_scipy() {
        // The expected values are scipy.stats.t.sf(t, df) * 2, and 1 − 2/π·atan(t) for one degree of freedom.
        for (t, degrees_of_freedom, p) in [
            (1.0, 1.0, 0.5),
            (2.0, 10.0, 0.073_388_034_770_740_4),
            (-2.0, 10.0, 0.073_388_034_770_740_4),
            (0.5, 2.5, 0.657_697_919_869_714_8),
            (6.0, 55.0, 1.608_862_785_489_112_4e-7),
            (3.0, 2_491.0, 0.002_726_553_389_360_098),
            (9.0, 287.0, 3.184_350_134_939_128e-17),
        ] {
            let found = two_sided_p_value(t, degrees_of_freedom);
            assert!(
                (found / p - 1.0).abs() < 1e-9,
                "t {t}, {degrees_of_freedom} degrees: found {found:e}, expected {p:e}"
            );
        }
        assert_eq!((two_sided_p_value(0.0, 3.0), two_sided_p_value(f64::INFINITY, 3.0)), (1.0, 0.0));
        assert!(two_sided_p_value(f64::NAN, 3.0).is_nan());
    }

    #[test]
    fn half_width_matches_the_t_quantile() {
        // The expected value is scipy.stats.t.ppf(0.975, 10) = 2.228138851986274.
        let known = StratifiedMean { mean: 0.0, error: 2.0, degrees_of_freedom: 10.0 };
        assert!((known.half_width(0.95) - 2.0 * 2.228_138_851_986_274).abs() < 1e-9);
    }

    #[test]
    fn strata_have_equal_weights_and_a_pooled_variance() {
        // Computed by hand: the stratum means are 0.5 and 1, so the mean is 0.75. With SS = 1 and 0, and 3 + 1 = 4
        // degrees of freedom, the pooled variance is 0.25.
        let found = StratifiedMean::from_strata(&[vec![1.0, 0.0, 1.0, 0.0], vec![1.0, 1.0]]).unwrap();
        let variances: [f64; 2] = [(1.0 + 5.0 * 0.25) / 8.0 / 4.0 / 4.0, (5.0 * 0.25) / 6.0 / 2.0 / 4.0];
        assert_eq!((found.mean, found.degrees_of_freedom), (0.75, 4.0));
        assert!((found.error - variances.iter().sum::<f64>().sqrt()).abs() < 1e-15);
        assert_eq!(StratifiedMean::from_strata(&[vec![1.0], vec![]]), None);
        assert_eq!(StratifiedMean::from_strata(&[vec![1.0], vec![2.0]]), None);
    }

    #[test]
    fn constant_differences_have_a_p_value_of_one() {
        let always = StratifiedMean::paired(&[vec![1.0, 1.0, 1.0]], &[vec![0.0, 0.0, 0.0]]).unwrap();
        assert_eq!((always.mean, always.p()), (1.0, 1.0));
    }

    #[test]
    fn holm_stops_at_the_first_nonrejection() {
        // Computed by hand: 0.01 ≤ 0.05/4 and 0.016 ≤ 0.05/3, but 0.03 > 0.05/2.
        assert_eq!(holm_correction(&[0.03, 0.01, 0.016, 0.9], 0.05), [false, true, true, false]);
        assert_eq!(holm_correction(&[0.04, f64::NAN], 0.05), [false, false]);
        assert_eq!(holm_correction(&[0.01, f64::NAN], 0.05), [true, false]);
        assert!(holm_correction(&[], 0.05).is_empty());
    }
}
