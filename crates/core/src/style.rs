//! How a method looks in every figure: the same hue, marker and dash wherever it is drawn. What a hue is on light and on
//! dark paper is the figures' own.
//!
//! ```
//! use ghostlab_core::style::{Dash, Hue, Marker, Style};
//!
//! let style = Style::new(Hue::Blue, Marker::Circle, Dash::Solid);
//! assert_eq!((style.hue, style.marker), (Hue::Blue, Marker::Circle));
//! ```

/// A colour by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hue {
    /// The colour of text.
    Ink,
    Grey,
    Purple,
    Green,
    Sky,
    Vermillion,
    Orange,
    Blue,
    Teal,
    Plum,
    Olive,
    Brown,
}

/// Shape of a data point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    Circle,
    Square,
    Diamond,
    TriangleUp,
    TriangleDown,
    Cross,
    Plus,
    Star,
}

/// Dash pattern of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dash {
    Solid,
    Long,
    Dashed,
    DashDot,
    DashDotDot,
    Dotted,
}

/// The three together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    pub hue: Hue,
    pub marker: Marker,
    pub dash: Dash,
}

impl Style {
    pub const fn new(hue: Hue, marker: Marker, dash: Dash) -> Self {
        Self { hue, marker, dash }
    }
}
