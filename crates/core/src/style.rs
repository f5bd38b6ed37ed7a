//! Style of a method: a hue, a marker and a dash pattern that are the same in every figure. The figures define the
//! color of each hue in light and dark mode.
//!
//! ```
//! use ghostlab_core::style::{Dash, Hue, Marker, Style};
//!
//! let style = Style::new(Hue::Blue, Marker::Circle, Dash::Solid);
//! assert_eq!((style.hue, style.marker), (Hue::Blue, Marker::Circle));
//! ```

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hue {
    Ink,
    Gray,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dash {
    Solid,
    Long,
    Dashed,
    DashDot,
    DashDotDot,
    Dotted,
}

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
