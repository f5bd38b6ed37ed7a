//! Grouped bar charts (figures 1 and 3), and dot plots with several values per method, such as one per calibration
//! seed.

use super::axis::{Axis, Decimals, Range, drawable, error_length};
use super::chart_frame::{BASELINE_OFFSET, Frame, FramePlan, GAP, Groups, Key, Surroundings};
use super::font;
use super::palette::{self, SECONDARY_TEXT, SURFACE, TEXT};
use super::scene::{Anchor, Scene};
use crate::error::{Error, Result};
use crate::style::Dash;

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BarValue {
    /// Value to draw. If it is `None` or not finite, [`BarChart::missing`] is shown instead.
    pub value: Option<f64>,
    /// Half the length of the error bar, in the value's unit.
    pub error: Option<f64>,
}

impl From<f64> for BarValue {
    fn from(value: f64) -> Self {
        Self { value: Some(value), error: None }
    }
}

impl From<Option<f64>> for BarValue {
    fn from(value: Option<f64>) -> Self {
        Self { value, error: None }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Series<T = BarValue> {
    /// Method, which determines the color and the marker (see [`palette::look`]).
    pub method: String,
    /// Name of the method in the legend.
    pub label: String,
    /// One value per group.
    pub values: Vec<T>,
}

impl<T> Series<T> {
    /// Returns the legend entry, given the kind of its key.
    fn legend_entry(&self, key: fn(palette::Look) -> Key) -> (Key, String) {
        (key(palette::look(&self.method)), self.label.clone())
    }
}

/// Chart with groups of bars. Each group has one bar per method.
#[derive(Debug, Clone, PartialEq)]
pub struct BarChart {
    pub axis: Axis,
    pub groups: Vec<String>,
    pub series: Vec<Series>,
    /// Text for a missing value, such as `failed` or `–`.
    pub missing: String,
}

/// Maximum width of a bar, in points.
const MAX_BAR_WIDTH: f64 = 36.0;
/// Fraction of a bar's slot that the bar fills.
const BAR_FILL: f64 = 0.82;
/// Gap between two groups, in bar widths.
const GROUP_GAP: f64 = 0.7;
/// Height of the row of markers below the bars, in points.
const MARKER_ROW_HEIGHT: f64 = 10.0;

impl BarChart {
    /// Draws the chart and returns the y-coordinate of its lower edge.
    ///
    /// # Errors
    /// Fails if there is no group, series or number, or if a series does not have one value per group.
    pub(super) fn draw(&self, around: &Surroundings, scene: &mut Scene) -> Result<f64> {
        if self.groups.is_empty() || self.series.is_empty() {
            return Err(Error::bad_input("the bar chart is empty")
                .expected("at least one group and one series")
                .found(format!("{} groups, {} series", self.groups.len(), self.series.len())));
        }
        if let Some(series) = self.series.iter().find(|series| series.values.len() != self.groups.len()) {
            return Err(Error::bad_input("a series of the bar chart does not have one value per group")
                .at(series.label.as_str())
                .expected(format!("{} values", self.groups.len()))
                .found(format!("{} values", series.values.len())));
        }
        let numbers = self.series.iter().flat_map(|series| &series.values).filter_map(|value| {
            let number = drawable(value.value)?;
            let error = error_length(value.error);
            Some([number - error, number, number + error])
        });
        let range = Range::from_values(numbers.flatten(), self.axis.scale).ok_or_else(|| {
            Error::bad_input("the bar chart has no finite value").hint(self.axis.scale.empty_plot_hint())
        })?;
        Ok(self.draw_in_range(around, range.with_base().with_end_ticks(Frame::max_ticks(around.width)), scene))
    }

    fn format_label(&self, value: BarValue, decimals: Decimals) -> String {
        drawable(value.value).map_or_else(|| self.missing.clone(), |number| decimals.format(number))
    }

    fn draw_in_range(&self, around: &Surroundings, range: Range, scene: &mut Scene) -> f64 {
        let all: Vec<BarValue> = self.series.iter().flat_map(|series| series.values.iter().copied()).collect();
        let decimals = Decimals::for_values(all.iter().filter_map(|value| drawable(value.value)));
        let labels: Vec<String> = all.iter().map(|value| self.format_label(*value, decimals)).collect();
        let widest = font::widest(labels.iter().map(String::as_str));
        let places = self.groups.len() as f64 * (self.series.len() as f64 + GROUP_GAP);
        let orientation = LabelOrientation::new(widest, Frame::plot_width(around.width, &range) / places);
        let label_height = orientation.height(widest);
        let negative = all.iter().any(|value| drawable(value.value).is_some_and(|number| number < 0.0));
        let keys: Vec<(Key, String)> = self.series.iter().map(|series| series.legend_entry(Key::Bar)).collect();
        let foot = if negative { label_height } else { 0.0 };
        let plan = FramePlan { around, axis: &self.axis, range, entries: &keys, head: label_height, foot, aside: 0.0 };
        let frame = Frame::draw(scene, plan);
        let groups = Groups::new(&frame, (self.groups.len(), self.series.len()), GROUP_GAP, MAX_BAR_WIDTH);
        let pitch = groups.pitch;
        for (i, series) in self.series.iter().enumerate() {
            let style = palette::look(&series.method);
            for (j, value) in series.values.iter().enumerate() {
                let x = groups.column(j, i);
                let label = self.format_label(*value, decimals);
                self.draw_bar(scene, &frame, (x, pitch * BAR_FILL / 2.0), *value, style, (orientation, &label));
                let below = (x, frame.bottom + MARKER_ROW_HEIGHT / 2.0 + 1.0);
                scene.marker(below, style.marker, style.color, (pitch * 0.3).min(2.4));
            }
        }
        frame.draw_axis_line(scene, frame.base());
        groups.draw_names(scene, &self.groups, frame.bottom + MARKER_ROW_HEIGHT + GAP)
    }

    /// Draws a bar centered on `x`, with its error bar and label, or only the label if the axis cannot show the value.
    fn draw_bar(
        &self,
        scene: &mut Scene,
        frame: &Frame,
        (x, half): (f64, f64),
        value: BarValue,
        style: palette::Look,
        (orientation, label): (LabelOrientation, &str),
    ) {
        let base = frame.base();
        let number = drawable(value.value);
        let shown = number.filter(|number| self.axis.shows(*number));
        let mut ends = (base, base);
        if let Some(number) = shown {
            let y = frame.y(number);
            scene.rect((x - half, base), (x + half, y), style.color);
            ends = (base.max(y), base.min(y));
            if let Some(error) = drawable(value.error) {
                // Outline the error bar to keep it visible where it overlaps the bar.
                let low = frame.y(number - error.abs());
                let high = frame.y(number + error.abs());
                scene.line(&[(x, low), (x, high)], SURFACE, 2.4, Dash::Solid);
                frame.draw_whisker(scene, x, (number - error.abs(), number + error.abs()), TEXT);
                ends = (ends.0.max(low), ends.1.min(high));
            }
        }
        let color = if number.is_some() { TEXT } else { SECONDARY_TEXT };
        orientation.write(scene, x, ends, number.is_some_and(|n| n < 0.0), (label, color));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LabelOrientation {
    Horizontal,
    Vertical,
    /// No labels, because the bars are too narrow.
    Hidden,
}

impl LabelOrientation {
    fn new(widest: f64, pitch: f64) -> Self {
        if widest + 1.0 <= pitch.min(MAX_BAR_WIDTH) {
            Self::Horizontal
        } else if pitch >= font::SIZE {
            Self::Vertical
        } else {
            Self::Hidden
        }
    }

    /// Returns the height that the labels need above or below the bars, in points.
    fn height(self, widest: f64) -> f64 {
        match self {
            Self::Horizontal => font::LINE + 2.0,
            Self::Vertical => widest + 5.0,
            Self::Hidden => 3.0,
        }
    }

    fn write(
        self,
        scene: &mut Scene,
        x: f64,
        (lower, upper): (f64, f64),
        below: bool,
        (text, color): (&str, palette::Color),
    ) {
        match (self, below) {
            (Self::Horizontal, false) => scene.text((x, upper - 3.0), text, Anchor::Middle, color),
            (Self::Horizontal, true) => scene.text((x, lower + font::LINE), text, Anchor::Middle, color),
            (Self::Vertical, false) => {
                scene.vertical_text((x + BASELINE_OFFSET, upper - 3.0), text, Anchor::Start, color);
            }
            (Self::Vertical, true) => scene.vertical_text((x + BASELINE_OFFSET, lower + 3.0), text, Anchor::End, color),
            (Self::Hidden, _) => {}
        }
    }
}

/// Chart with groups of dot columns. Each group has one column per method.
#[derive(Debug, Clone, PartialEq)]
pub struct DotChart {
    pub axis: Axis,
    pub groups: Vec<String>,
    /// For each method, one list of values per group. The values are drawn as dots from left to right.
    pub methods: Vec<Series<Vec<f64>>>,
}

/// Gap between two groups, in column widths.
const DOT_GROUP_GAP: f64 = 1.0;
/// Radius of a dot, in points.
const DOT_RADIUS: f64 = 1.8;
/// Fraction of a column's width over which the dots spread.
const DOT_SPREAD: f64 = 0.75;
/// Maximum width of a column, in points.
const MAX_DOT_COLUMN_WIDTH: f64 = 24.0;

impl DotChart {
    /// Draws the plot and returns the y-coordinate of its lower edge.
    ///
    /// # Errors
    /// Fails if there are no numbers, or if a method does not have one list per group.
    pub(super) fn draw(&self, around: &Surroundings, scene: &mut Scene) -> Result<f64> {
        if let Some(method) = self.methods.iter().find(|method| method.values.len() != self.groups.len()) {
            return Err(Error::bad_input("a method does not have one list of values per group")
                .at(method.label.as_str())
                .expected(format!("{} lists", self.groups.len()))
                .found(format!("{} lists", method.values.len())));
        }
        let numbers = self.methods.iter().flat_map(|method| method.values.iter().flatten());
        let numbers = numbers.filter_map(|&value| drawable(Some(value)));
        let range = Range::from_values(numbers, self.axis.scale)
            .ok_or_else(|| Error::bad_input("the dot plot has no finite value"))?;
        let range = range.with_margin(false);
        let keys: Vec<(Key, String)> = self.methods.iter().map(|method| method.legend_entry(Key::Marker)).collect();
        let plan = FramePlan {
            around,
            axis: &self.axis,
            range,
            entries: &keys,
            head: DOT_RADIUS,
            foot: DOT_RADIUS,
            aside: 0.0,
        };
        let frame = Frame::draw(scene, plan);
        let groups = Groups::new(&frame, (self.groups.len(), self.methods.len()), DOT_GROUP_GAP, MAX_DOT_COLUMN_WIDTH);
        for (i, method) in self.methods.iter().enumerate() {
            let look = palette::look(&method.method);
            for (j, values) in method.values.iter().enumerate() {
                let middle = groups.column(j, i);
                let step = (groups.pitch * DOT_SPREAD / values.len().max(1) as f64).min(2.0 * DOT_RADIUS);
                for (index, &value) in values.iter().enumerate() {
                    let Some(value) = drawable(Some(value)) else { continue };
                    let x = middle + (index as f64 - (values.len() - 1) as f64 / 2.0) * step;
                    scene.marker((x, frame.y(value)), look.marker, look.color, DOT_RADIUS);
                }
            }
        }
        frame.draw_axis_line(scene, frame.bottom);
        Ok(groups.draw_names(scene, &self.groups, frame.bottom + GAP))
    }
}
