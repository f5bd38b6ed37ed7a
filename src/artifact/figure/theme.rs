//! Light or dark.

/// The reader's theme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Theme {
    /// On white, as printed.
    #[default]
    Light,
    Dark,
}
