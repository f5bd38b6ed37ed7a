//! `m_antisymmetric_share`: the anti-symmetric part of what an operator adds to the identity (paper figure 3).

use super::entry::{MetricEntry, Of, SHARE};
use super::symmetric::share;
use crate::style::{Dash, Hue, Marker, Style};

pub static ENTRY: MetricEntry = MetricEntry {
    style: Some(Style::new(Hue::Plum, Marker::Diamond, Dash::Dashed)),
    of: Of::Repair(|of| share(of, |of| of.m_antisymmetric_norm / of.m_norm)),
    ..SHARE.called("m_antisymmetric_share", "Anti-symmetric part")
};
