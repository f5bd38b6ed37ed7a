//! Axis labels and ranges, with ticks at round numbers.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    #[default]
    Linear,
    Log,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Axis {
    pub label: String,
    /// Unit shown in parentheses after the label. Empty if the values have no unit.
    pub unit: String,
    pub scale: Scale,
}

impl Scale {
    pub(super) fn empty_plot_hint(self) -> &'static str {
        match self {
            Self::Linear => "check for missing and non-finite values",
            Self::Log => "use positive values on a log axis",
        }
    }
}

impl Axis {
    pub(super) fn shows(&self, value: f64) -> bool {
        self.scale == Scale::Linear || value > 0.0
    }

    pub(super) fn title(&self) -> String {
        if self.unit.is_empty() { self.label.clone() } else { format!("{} ({})", self.label, self.unit) }
    }
}

/// Limits of the magnitudes that can be drawn. Squares of values outside this range would overflow or underflow.
const MAX_VALUE: f64 = 1e150;
const MIN_VALUE: f64 = 1e-150;

/// Returns the value if it can be drawn. Magnitudes below [`MIN_VALUE`] become 0.
pub(super) fn drawable(value: Option<f64>) -> Option<f64> {
    value.filter(|v| v.is_finite() && v.abs() <= MAX_VALUE).map(|v| if v.abs() < MIN_VALUE { 0.0 } else { v })
}

/// Returns the magnitude of an error, or 0 if it is missing or cannot be drawn.
pub(super) fn error_length(error: Option<f64>) -> f64 {
    drawable(error).unwrap_or(0.0).abs()
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) text: String,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Range {
    low: f64,
    high: f64,
    scale: Scale,
}

impl Range {
    /// Returns the range of the values that `scale` can show, or `None` if there are none.
    pub(super) fn from_values(values: impl IntoIterator<Item = f64>, scale: Scale) -> Option<Self> {
        values.into_iter().filter(|v| scale == Scale::Linear || *v > 0.0).fold(None, |range, v| {
            let (low, high) = range.map_or((v, v), |range: Self| (range.low.min(v), range.high.max(v)));
            Some(Self { low, high, scale })
        })
    }

    /// Extends the range to the base of the bars: 0, or a power of ten below the values on a log axis.
    pub(super) fn with_base(self) -> Self {
        let (low, high) = match self.scale {
            Scale::Linear if self.low == 0.0 && self.high == 0.0 => (0.0, 1.0),
            Scale::Linear => (self.low.min(0.0), self.high.max(0.0)),
            // Start below the lowest value so that its bar has a visible height.
            Scale::Log => (10f64.powf((self.low.log10() - 0.1).floor()), self.high),
        };
        Self { low, high, ..self }
    }

    /// Adds a margin at both ends. If `may_start_at_zero` is set and the low end is near 0, the range starts at 0.
    pub(super) fn with_margin(self, may_start_at_zero: bool) -> Self {
        let scale = self.scale;
        let mut low = to_scale(self.low, scale);
        let mut high = to_scale(self.high, scale);
        if high - low <= 1e-9 * high.abs().max(low.abs()) {
            let half = if high == 0.0 || scale == Scale::Log { 0.5 } else { high.abs() * 0.05 };
            (low, high) = (low - half, high + half);
        }
        let near_zero = may_start_at_zero && scale == Scale::Linear && low >= 0.0 && low < 0.3 * high;
        let margin = 0.05 * (high - low);
        let low = if near_zero { 0.0 } else { low - margin };
        Self { low: from_scale(low, scale), high: from_scale(high + margin, scale), scale }
    }

    /// Keeps the range without a margin, unless its lowest and highest values are equal.
    pub(super) fn without_margin(self) -> Self {
        if self.high > self.low { self } else { self.with_margin(false) }
    }

    /// Extends a linear range so that both ends are ticks. There are roughly `max_ticks` ticks at round values.
    pub(super) fn with_end_ticks(self, max_ticks: usize) -> Self {
        let mut range = self;
        // Extending the range may require a larger step, so repeat.
        for _ in 0..4 {
            if range.scale == Scale::Log {
                break;
            }
            let step = range.step(max_ticks);
            let low = (range.low / step + 1e-9).floor() * step;
            let high = (range.high / step - 1e-9).ceil() * step;
            range = Self { low, high, ..range };
        }
        range
    }

    /// Returns whether a linear range starts above 0.
    pub(super) fn starts_above_zero(&self) -> bool {
        self.scale == Scale::Linear && self.low > 0.0
    }

    /// Returns the distance between ticks: 1, 2 or 5 times a power of ten.
    fn step(&self, max_ticks: usize) -> f64 {
        let rough = (self.high - self.low) / max_ticks.clamp(2, 20) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0].map(|m| m * power);
        steps.into_iter().find(|step| *step >= rough * (1.0 - 1e-9)).unwrap_or(10.0 * power)
    }

    /// Maps a value to its position in the range, from 0 to 1. Values outside the range are clamped.
    pub(super) fn fraction(&self, value: f64) -> f64 {
        let low = to_scale(self.low, self.scale);
        let high = to_scale(self.high, self.scale);
        if self.scale == Scale::Log && value <= 0.0 {
            return 0.0;
        }
        ((to_scale(value, self.scale) - low) / (high - low)).clamp(0.0, 1.0)
    }

    pub(super) fn base(&self) -> f64 {
        match self.scale {
            Scale::Linear => 0.0,
            Scale::Log => self.low,
        }
    }

    /// Returns roughly `max_ticks` ticks at round values.
    pub(super) fn ticks(&self, max_ticks: usize) -> Vec<Tick> {
        let max_ticks = max_ticks.clamp(2, 20);
        if self.scale == Scale::Log
            && let Some(ticks) = self.power_ticks(max_ticks)
        {
            return ticks;
        }
        let step = self.step(max_ticks);
        let first = (self.low / step - 1e-9).ceil();
        let last = (self.high / step + 1e-9).floor();
        let count = (last - first).clamp(-1.0, 40.0) as i64;
        let numbers =
            (0..=count).map(|i| (first + i as f64) * step).filter(|at| self.scale == Scale::Linear || *at > 0.0);
        numbers.map(|at| Tick { at, text: format_tick(at, step, self.high.abs().max(self.low.abs())) }).collect()
    }

    /// Returns ticks at powers of ten and, if they fit, at 2 and 5 times these powers. Returns `None` if fewer than
    /// three ticks are in range.
    fn power_ticks(&self, max_ticks: usize) -> Option<Vec<Tick>> {
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let every = |step: usize, factors: &[f64]| -> Vec<f64> {
            let powers = (first..=last).filter(|power| power.rem_euclid(step as i32) == 0);
            powers
                .flat_map(|p| factors.iter().map(move |f| f * 10f64.powi(p)))
                .filter(|at| *at >= self.low * (1.0 - 1e-9) && *at <= self.high * (1.0 + 1e-9))
                .collect()
        };
        let mut candidates = vec![every(1, &[1.0, 2.0, 5.0]), every(1, &[1.0, 3.0])];
        candidates.extend((1..=50).map(|step| every(step, &[1.0])));
        let numbers = candidates.into_iter().find(|numbers| numbers.len() <= max_ticks)?;
        (numbers.len() >= 3)
            .then(|| numbers.into_iter().map(|at| Tick { at, text: format_significant(at, 1) }).collect())
    }
}

fn to_scale(value: f64, scale: Scale) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Log => value.log10(),
    }
}

fn from_scale(value: f64, scale: Scale) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Log => 10f64.powf(value),
    }
}

/// Formats a multiple of `step`. `largest`, the largest magnitude on the axis, determines whether all ticks are in
/// scientific notation.
fn format_tick(at: f64, step: f64, largest: f64) -> String {
    if at.abs() < step / 2.0 {
        return "0".to_owned();
    }
    if !(1e-3..1e6).contains(&largest) {
        return format_scientific(at, 2);
    }
    let decimals = (-(step * 1.000_001).log10().floor()).clamp(0.0, 8.0) as usize;
    format!("{at:.decimals$}")
}

/// Formats a value with `digits` significant digits: 0.0123, 4.56, 123, 2×10⁷.
pub(super) fn format_significant(value: f64, digits: usize) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !(1e-4..1e6).contains(&value.abs()) {
        return format_scientific(value, digits);
    }
    // Determine the exponent after rounding: with three digits, 9.996 becomes 10.0.
    let rounded: f64 = format!("{value:.*e}", digits.saturating_sub(1)).parse().unwrap_or(value);
    let exponent = rounded.abs().log10().floor() as i32;
    let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
    format!("{rounded:.decimals$}")
}

/// Number of decimals shared by all labels of a chart. It gives the largest number at least three significant digits
/// and the smallest at least two. If it is `None`, each label has three significant digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decimals(Option<usize>);

impl Decimals {
    pub(super) fn for_values(values: impl IntoIterator<Item = f64>) -> Self {
        let sizes: Vec<f64> = values.into_iter().map(f64::abs).filter(|size| *size > 0.0).collect();
        let (least, most) = sizes.iter().fold((f64::MAX, 0.0f64), |(a, b), size| (a.min(*size), b.max(*size)));
        if sizes.is_empty() || least < 1e-4 || most >= 1e6 {
            return Self(None);
        }
        let decimals = (2.0 - most.log10().floor()).max(1.0 - least.log10().floor());
        Self(Some(decimals.clamp(0.0, 6.0) as usize))
    }

    pub(super) fn format(self, value: f64) -> String {
        match self.0 {
            Some(decimals) => format!("{value:.decimals$}"),
            None => format_significant(value, 3),
        }
    }
}

/// Formats a value with all its digits, such as 7 or 0.5. Tiny and huge values are in scientific notation with three
/// digits.
pub(super) fn format_plain(value: f64) -> String {
    if value == 0.0 || (1e-4..1e6).contains(&value.abs()) { value.to_string() } else { format_scientific(value, 3) }
}

/// Formats a value as 1.5×10⁻⁷, or as 10⁻⁷ if the mantissa is 1.
fn format_scientific(value: f64, digits: usize) -> String {
    let text = format!("{value:.*e}", digits.saturating_sub(1));
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    const RAISED: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let raised: String = exponent.chars().map(|c| c.to_digit(10).map_or('⁻', |digit| RAISED[digit as usize])).collect();
    if mantissa == "1" { format!("10{raised}") } else { format!("{mantissa}×10{raised}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick_texts(values: [f64; 2], scale: Scale, max_ticks: usize) -> Vec<String> {
        Range::from_values(values, scale).unwrap().ticks(max_ticks).into_iter().map(|tick| tick.text).collect()
    }

    #[test]
    fn ticks_are_round_numbers_with_minimal_decimals() {
        for (values, scale, max_ticks, expected) in [
            ([0.0, 1.0], Scale::Linear, 5, &["0", "0.2", "0.4", "0.6", "0.8", "1.0"][..]),
            ([31.2, 67.5], Scale::Linear, 5, &["40", "50", "60"]),
            ([-3.0, 12.0], Scale::Linear, 4, &["0", "5", "10"]),
            ([0.01, 10.0], Scale::Log, 5, &["0.01", "0.1", "1", "10"]),
            // A short logarithmic axis has ticks between powers of ten.
            ([0.1, 2.0], Scale::Log, 6, &["0.1", "0.2", "0.5", "1", "2"]),
            ([1e-9, 1e3], Scale::Log, 5, &["10⁻⁹", "10⁻⁶", "0.001", "1", "1000"]),
            // The axis contains no power of ten.
            ([0.31, 0.39], Scale::Log, 4, &["0.32", "0.34", "0.36", "0.38"]),
        ] {
            assert_eq!(tick_texts(values, scale, max_ticks), expected, "{values:?}");
        }
    }

    #[test]
    fn significant_digits_survive_rounding_up() {
        assert_eq!(format_significant(9.996, 3), "10.0");
        assert_eq!(format_significant(0.012_345, 3), "0.0123");
        assert_eq!(format_significant(1234.5, 3), "1230");
        assert_eq!(format_significant(2e7, 1), "2×10⁷");
        assert_eq!(format_significant(0.0, 3), "0");
    }

    #[test]
    fn axis_has_ticks_at_both_ends() {
        for (low, high) in [(0.0, 1.69), (0.0, 0.98), (31.2, 67.5), (-0.3, 0.52), (0.0, 3e-7), (-1e150, 1e150)] {
            let range = Range::from_values([low, high], Scale::Linear).unwrap().with_end_ticks(5);
            let ticks = range.ticks(5);
            let first = range.fraction(ticks[0].at);
            let last = range.fraction(ticks[ticks.len() - 1].at);
            assert!(first.abs() < 1e-9 && (last - 1.0).abs() < 1e-9, "{low} to {high}: {ticks:?}");
            assert!(range.low <= low && range.high >= high);
        }
    }

    #[test]
    fn bar_labels_of_one_chart_have_equal_decimals() {
        assert_eq!(format_values(&[0.4123, 1.6949, 0.9]), ["0.41", "1.69", "0.90"]);
        assert_eq!(format_values(&[12.34, 0.51]), ["12.34", "0.51"]);
        assert_eq!(format_values(&[1e-9, 1.0]), ["1.00×10⁻⁹", "1.00"]);
        assert_eq!(format_values(&[0.0, 250.0]), ["0", "250"]);
    }

    fn format_values(values: &[f64]) -> Vec<String> {
        let decimals = Decimals::for_values(values.iter().copied());
        values.iter().map(|value| decimals.format(*value)).collect::<Vec<_>>()
    }

    #[test]
    fn range_of_a_single_value_has_nonzero_width() {
        for (value, scale) in [(0.0, Scale::Linear), (5.0, Scale::Linear), (-2.0, Scale::Linear), (3.0, Scale::Log)] {
            let range = Range::from_values([value], scale).unwrap().with_margin(true);
            assert!((range.fraction(value) - 0.5).abs() < 0.5, "{value}");
            assert!(range.ticks(5).len() >= 2, "{value}");
        }
    }

    #[test]
    fn extreme_values_have_finite_positions() {
        for (low, high) in [(-1e150, 1e150), (0.0, 1e-149), (1e15, 1e15 + 0.25)] {
            let range = Range::from_values([low, high], Scale::Linear).unwrap().with_margin(true);
            assert!(range.fraction(low).is_finite() && range.fraction(high).is_finite());
            assert!(range.ticks(5).len() < 45);
        }
        assert_eq!(drawable(Some(f64::NAN)), None);
        assert_eq!(drawable(Some(f64::NEG_INFINITY)), None);
        assert_eq!(drawable(Some(1e-300)), Some(0.0));
    }

    #[test]
    fn log_axis_omits_zero_and_negative_values() {
        assert_eq!(Range::from_values([0.0, -1.0], Scale::Log), None);
        let range = Range::from_values([0.0, 0.5, 2.0], Scale::Log).unwrap().with_base();
        assert_eq!((range.low, range.fraction(0.0)), (0.1, 0.0));
    }
}
