//! Statistics of timed rounds, and the stability criterion.

/// Maximum standard deviation of stable times, relative to the mean. Larger deviations indicate load from other
/// programs. The deviations in the Ghosted Layers paper are below 0.02, except for one of 0.13. For ten rounds, 0.05
/// corresponds to a 95 % confidence interval of ±3.6 % of the mean.
pub const MAX_RELATIVE_DEVIATION: f64 = 0.05;

/// Mean and spread of times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeSpread {
    pub mean: f64,
    /// Sample standard deviation, or 0 for a single time.
    pub deviation: f64,
}

impl TimeSpread {
    /// Computes the mean and the deviation. Returns `None` for an empty slice.
    pub fn from_times(times: &[f64]) -> Option<Self> {
        let count = times.len() as f64;
        let mean = times.iter().sum::<f64>() / count;
        let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
        let deviation = if times.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        (!times.is_empty()).then_some(Self { mean, deviation })
    }

    pub fn relative(&self) -> f64 {
        self.deviation / self.mean
    }

    /// Returns whether the timing is unstable. Tables mark such times, and checks of the paper's claims exclude them.
    pub fn is_noise(&self) -> bool {
        self.relative() > MAX_RELATIVE_DEVIATION
    }
}

/// Speedup of one variant over another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speedup {
    /// Ratio of the mean times.
    pub ratio: f64,
    /// Half width of the ratio's 95 % confidence interval, computed from the rounds. `None` for a single round.
    pub half_width: Option<f64>,
}

impl Speedup {
    /// Computes the speedup of `times` over `base`, paired by round. Returns `None` if the numbers of rounds differ.
    pub fn from_times(base: &[f64], times: &[f64]) -> Option<Self> {
        if base.len() != times.len() {
            return None;
        }
        let ratio = TimeSpread::from_times(base)?.mean / TimeSpread::from_times(times)?.mean;
        let ratios: Vec<f64> = base.iter().zip(times).map(|(base, time)| base / time).collect();
        let deviation = TimeSpread::from_times(&ratios)?.deviation;
        let count = ratios.len();
        let half_width = (count > 1).then(|| student_quantile(count - 1) * deviation / (count as f64).sqrt());
        Some(Self { ratio, half_width })
    }
}

/// Returns the 97.5 % quantile of Student's t-distribution, approximated beyond the table.
fn student_quantile(degrees: usize) -> f64 {
    const TABLE: [f64; 15] =
        [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131];
    TABLE.get(degrees - 1).copied().unwrap_or(1.96 + 2.4 / degrees as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_the_sample_standard_deviation() {
        let spread = TimeSpread::from_times(&[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(spread.mean, 2.5);
        // Computed by hand: √(5/3).
        assert!((spread.deviation - (5.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(TimeSpread::from_times(&[7.0]).unwrap().deviation, 0.0);
        assert_eq!(TimeSpread::from_times(&[]), None);
    }

    #[test]
    fn deviation_above_five_percent_counts_as_noise() {
        assert!(!TimeSpread { mean: 100.0, deviation: 5.0 }.is_noise());
        assert!(TimeSpread { mean: 100.0, deviation: 5.1 }.is_noise());
        assert!(!TimeSpread::from_times(&[7.0]).unwrap().is_noise());
    }

    #[test]
    fn speedup_paired_by_round_cancels_drift() {
        let drifting = [100.0, 110.0, 130.0, 90.0];
        let half: Vec<f64> = drifting.iter().map(|time| time / 2.0).collect();
        let speedup = Speedup::from_times(&drifting, &half).unwrap();
        assert!((speedup.ratio - 2.0).abs() < 1e-12 && speedup.half_width.unwrap() < 1e-12, "{speedup:?}");
        // The ratios 1 and 3 have mean 2 and deviation √2. The half width is 12.706 · √2/√2, where 12.706 is the
        // quantile for one degree of freedom.
        let speedup = Speedup::from_times(&[1.0, 3.0], &[1.0, 1.0]).unwrap();
        assert!((speedup.half_width.unwrap() - 12.706).abs() < 1e-9, "{speedup:?}");
        assert_eq!(Speedup::from_times(&[1.0], &[1.0, 2.0]), None);
    }

    #[test]
    fn student_quantile_beyond_the_table_is_accurate() {
        // Expected values from R: qt(0.975, c(16, 30, 100)) is 2.1199, 2.0423, 1.9840.
        for (degrees, exact) in [(16, 2.1199), (30, 2.0423), (100, 1.9840)] {
            assert!((student_quantile(degrees) - exact).abs() < 0.01, "{degrees}");
        }
    }
}
