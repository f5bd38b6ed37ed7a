//! Pruning depth: a number of whole layers or of sublayers.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::{Cut, Sublayer};
use crate::named::named;
use crate::quantity::pluralize;

/// Unit of a depth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DepthUnit {
    #[default]
    Layers,
    Attention,
    Mlp,
    /// Sublayers of both kinds.
    Sublayers,
}

named!(DepthUnit: Layers = "layers", Attention = "attention", Mlp = "mlp", Sublayers = "sublayers");

impl DepthUnit {
    /// Units that count sublayers instead of whole layers.
    pub const SUBLAYER_UNITS: &'static [Self] = &[Self::Attention, Self::Mlp, Self::Sublayers];

    /// Returns whether the unit is a whole layer.
    pub fn is_layers(&self) -> bool {
        *self == Self::Layers
    }

    /// Returns the singular noun for the unit, used in tables and figures.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Layers => "layer",
            Self::Attention => "attention",
            Self::Mlp => "MLP",
            Self::Sublayers => "sublayer",
        }
    }

    pub fn plural(self) -> String {
        format!("{}s", self.noun())
    }

    /// Returns the number of units in a backbone of `layers` layers.
    pub fn available(self, layers: usize) -> usize {
        if self == Self::Sublayers { 2 * layers } else { layers }
    }

    /// Returns the sublayers that a cut in this unit may remove: all attention sublayers, then all MLPs. If candidates
    /// have equal scores, the first in this order is removed, as in the published code.
    pub fn candidates(self, layers: usize) -> Vec<(usize, Sublayer)> {
        let kinds = Sublayer::ALL.into_iter().filter(|kind| match self {
            Self::Attention => *kind == Sublayer::Attention,
            Self::Mlp => *kind == Sublayer::Mlp,
            Self::Layers | Self::Sublayers => true,
        });
        kinds.flat_map(|kind| (0..layers).map(move |layer| (layer, kind))).collect()
    }

    /// Returns the indices of the candidates, in the order of [`Self::candidates`]. The index of a sublayer is its
    /// [`Sublayer::index_in_model`]. For `Layers`, returns one index per layer, because `candidates` has two entries
    /// per layer.
    pub fn candidate_indices(self, layers: usize) -> Vec<usize> {
        if self.is_layers() {
            return (0..layers).collect();
        }
        self.candidates(layers).into_iter().map(|(layer, kind)| kind.index_in_model(layer)).collect()
    }

    /// Returns the cut that removes the candidates with the given indices.
    pub fn cut(self, candidates: impl IntoIterator<Item = usize>) -> Cut {
        if self.is_layers() {
            return Cut::layers(candidates);
        }
        Cut::sublayers(candidates.into_iter().map(Sublayer::from_index))
    }
}

impl From<Sublayer> for DepthUnit {
    fn from(sublayer: Sublayer) -> Self {
        match sublayer {
            Sublayer::Attention => Self::Attention,
            Sublayer::Mlp => Self::Mlp,
        }
    }
}

/// Number of layers or sublayers to remove.
///
/// In grids and cache keys, a depth in whole layers is a number, and a depth in sublayers is a map such as
/// `{"attention": 8}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Depth {
    pub count: usize,
    pub unit: DepthUnit,
}

impl Depth {
    /// Creates a depth in whole layers.
    pub const fn layers(count: usize) -> Self {
        Self { count, unit: DepthUnit::Layers }
    }

    /// Returns whether the depth counts whole layers.
    pub fn is_in_layers(self) -> bool {
        self.unit == DepthUnit::Layers
    }

    /// Returns a cut of this depth in the middle of the candidates, for cost estimates before the layers are selected.
    pub fn middle(self, layers: usize) -> Cut {
        let start = self.unit.available(layers).saturating_sub(self.count) / 2;
        self.unit.cut(self.unit.candidate_indices(layers).into_iter().skip(start).take(self.count))
    }

    /// Returns the count with its unit in words: `3 layers`, `8 attentions`, `1 MLP`.
    pub fn describe(self) -> String {
        pluralize(self.count, self.unit.noun())
    }

    /// Returns the depth as it appears in cell names: `7`, or `attention-8`.
    pub fn cell_name_part(self) -> String {
        match self.unit {
            DepthUnit::Layers => self.count.to_string(),
            unit => format!("{unit}-{}", self.count),
        }
    }
}

/// Formats as `7` or `8 attention`.
impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            DepthUnit::Layers => write!(f, "{}", self.count),
            unit => write!(f, "{} {unit}", self.count),
        }
    }
}

impl From<usize> for Depth {
    fn from(layers: usize) -> Self {
        Self::layers(layers)
    }
}

/// Compares the depth with a number of whole layers.
impl PartialEq<usize> for Depth {
    fn eq(&self, layers: &usize) -> bool {
        *self == Self::layers(*layers)
    }
}

impl Serialize for Depth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.unit {
            DepthUnit::Layers => self.count.serialize(serializer),
            unit => serializer.collect_map([(unit.name(), self.count)]),
        }
    }
}

impl JsonSchema for Depth {
    fn schema_name() -> Cow<'static, str> {
        "CutDepth".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"description": "Number of layers.", "type": "integer", "minimum": 0},
            {
                "description": "Number of sublayers by kind: attention, mlp, or sublayers of both kinds.",
                "type": "object",
                "additionalProperties": {"type": "integer", "minimum": 0},
            },
        ]})
    }
}

/// JSON representations of a depth.
#[derive(Deserialize)]
#[serde(untagged)]
enum DepthForm {
    Layers(usize),
    Unit(std::collections::BTreeMap<String, usize>),
}

impl<'de> Deserialize<'de> for Depth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match DepthForm::deserialize(deserializer)? {
            DepthForm::Layers(count) => Ok(Self::layers(count)),
            DepthForm::Unit(map) => match map.first_key_value().filter(|_| map.len() == 1) {
                Some((unit, &count)) => Ok(Self { count, unit: unit.parse().map_err(D::Error::custom)? }),
                None => Err(D::Error::custom("expected one unit, such as {\"attention\": 8}")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_round_trips_through_json() {
        let attention = Depth { count: 8, unit: DepthUnit::Attention };
        for (depth, json) in [(Depth::layers(7), "7"), (attention, r#"{"attention":8}"#)] {
            assert_eq!(serde_json::to_string(&depth).unwrap(), json);
            assert_eq!(serde_json::from_str::<Depth>(json).unwrap(), depth);
        }
        for wrong in [r#"{"heads": 8}"#, r#"{"attention": 8, "mlp": 2}"#, "{}", r#""7""#] {
            assert!(serde_json::from_str::<Depth>(wrong).is_err(), "{wrong}");
        }
        assert_eq!([attention, Depth::layers(1)].map(Depth::describe), ["8 attentions", "1 layer"]);
        assert_eq!(
            (attention.cell_name_part(), attention.to_string()),
            ("attention-8".to_owned(), "8 attention".to_owned())
        );
    }

    #[test]
    fn candidates_list_attention_before_mlp_sublayers() {
        use Sublayer::{Attention, Mlp};
        assert_eq!(DepthUnit::Sublayers.candidates(2), [(0, Attention), (1, Attention), (0, Mlp), (1, Mlp)]);
        assert_eq!(DepthUnit::Mlp.candidates(2), [(0, Mlp), (1, Mlp)]);
    }
}
