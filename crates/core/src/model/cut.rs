//! Sets of sublayers that are removed from a backbone (design §3).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::sublayer::Sublayer;

/// A set of removed sublayers. A layer is removed if both of its sublayers are removed.
///
/// A cut is serialized as a list in layer order. Whole layers are numbers, and single sublayers are strings such as
/// `"attention 3"` or `"mlp 3"`. Equal cuts have equal JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cut(BTreeSet<(usize, Sublayer)>);

impl Cut {
    /// Creates a cut of whole layers.
    pub fn layers(layers: impl IntoIterator<Item = usize>) -> Self {
        Self(layers.into_iter().flat_map(|layer| Sublayer::ALL.map(|sublayer| (layer, sublayer))).collect())
    }

    /// Creates a cut of individual sublayers.
    pub fn sublayers(sublayers: impl IntoIterator<Item = (usize, Sublayer)>) -> Self {
        Self(sublayers.into_iter().collect())
    }

    /// Returns a copy of the cut that also removes the given sublayer.
    #[must_use]
    pub fn with(&self, layer: usize, sublayer: Sublayer) -> Self {
        let mut extended = self.clone();
        extended.0.insert((layer, sublayer));
        extended
    }

    /// Adds the sublayers from another cut.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend(other.iter());
    }

    /// Returns whether a sublayer is removed.
    pub fn contains(&self, layer: usize, sublayer: Sublayer) -> bool {
        self.0.contains(&(layer, sublayer))
    }

    /// Returns whether both sublayers of a layer are removed.
    pub fn contains_layer(&self, layer: usize) -> bool {
        Sublayer::ALL.iter().all(|&sublayer| self.contains(layer, sublayer))
    }

    /// Iterates over the removed sublayers in program order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, Sublayer)> + '_ {
        self.0.iter().copied()
    }

    /// Returns the completely removed layers in ascending order.
    pub fn whole_layers(&self) -> Vec<usize> {
        let with_mlp = self.iter().filter(|&(_, sublayer)| sublayer == Sublayer::Mlp);
        with_mlp.map(|(layer, _)| layer).filter(|&layer| self.contains_layer(layer)).collect()
    }

    /// Returns whether the cut consists of whole layers only.
    pub fn has_only_whole_layers(&self) -> bool {
        2 * self.whole_layers().len() == self.0.len()
    }

    /// Returns the maximal runs `[start, end)` of completely removed layers.
    pub fn regions(&self) -> Vec<(usize, usize)> {
        let layers = self.whole_layers();
        layers.chunk_by(|a, b| a + 1 == *b).map(|run| (run[0], run[run.len() - 1] + 1)).collect()
    }

    /// Returns the number of removed sublayers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the entries of the serialized list.
    fn entries(&self) -> Vec<CutEntry> {
        let mut entries = Vec::new();
        for (layer, sublayer) in self.iter() {
            match (self.contains_layer(layer), sublayer) {
                (true, Sublayer::Attention) => entries.push(CutEntry::Layer(layer)),
                (true, Sublayer::Mlp) => {}
                (false, sublayer) => entries.push(CutEntry::Sublayer(format!("{sublayer} {layer}"))),
            }
        }
        entries
    }
}

/// Entry of a serialized cut.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum CutEntry {
    Layer(usize),
    Sublayer(String),
}

impl fmt::Display for CutEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(layer) => write!(f, "{layer}"),
            Self::Sublayer(name) => f.write_str(name),
        }
    }
}

/// Formats the cut like its JSON, but without quotes: `[3, 4, attention 8]`.
impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<String> = self.entries().iter().map(ToString::to_string).collect();
        write!(f, "[{}]", entries.join(", "))
    }
}

impl Serialize for Cut {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.entries().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Cut {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut cut = Self::default();
        for entry in Vec::<CutEntry>::deserialize(deserializer)? {
            match entry {
                CutEntry::Layer(layer) => cut.0.extend(Sublayer::ALL.map(|sublayer| (layer, sublayer))),
                CutEntry::Sublayer(name) => {
                    cut.0.insert(parse_sublayer(&name).map_err(D::Error::custom)?);
                }
            }
        }
        Ok(cut)
    }
}

impl JsonSchema for Cut {
    fn schema_name() -> Cow<'static, str> {
        "Cut".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Removed layers by number, and removed sublayers such as `attention 3` or `mlp 3`.",
            "type": "array",
            "items": {"anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string"},
            ]},
        })
    }
}

/// Parses a sublayer such as `attention 3` or `mlp 3`.
///
/// # Errors
/// Fails if the sublayer name or the layer index is invalid.
pub fn parse_sublayer(text: &str) -> Result<(usize, Sublayer), String> {
    let parsed = text.split_once(' ').and_then(|(kind, layer)| Some((layer.parse().ok()?, kind.parse().ok()?)));
    parsed.ok_or_else(|| format!("`{text}` is not a sublayer such as `attention 3` or `mlp 3`"))
}

impl FromIterator<(usize, Sublayer)> for Cut {
    fn from_iter<I: IntoIterator<Item = (usize, Sublayer)>>(sublayers: I) -> Self {
        Self::sublayers(sublayers)
    }
}

/// Compares a cut with a list of layer indices.
impl<T: AsRef<[usize]>> PartialEq<T> for Cut {
    fn eq(&self, layers: &T) -> bool {
        *self == Self::layers(layers.as_ref().iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Sublayer::{Attention, Mlp};

    #[test]
    fn cut_serializes_whole_layers_as_numbers() {
        for (cut, json) in [
            (Cut::layers([4, 2]), "[2,4]"),
            (Cut::sublayers([(10, Attention), (9, Mlp)]), r#"["mlp 9","attention 10"]"#),
            (Cut::sublayers([(3, Mlp), (3, Attention), (0, Attention)]), r#"["attention 0",3]"#),
            (Cut::default(), "[]"),
        ] {
            assert_eq!(serde_json::to_string(&cut).unwrap(), json);
            assert_eq!(serde_json::from_str::<Cut>(json).unwrap(), cut);
        }
        for wrong in [r#"["mlp"]"#, r#"["mlp -1"]"#, r#"["gate 3"]"#, "[1.5]", "3"] {
            assert!(serde_json::from_str::<Cut>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn regions_are_maximal_runs_of_whole_layers() {
        let cut = Cut::layers([0, 2, 3, 4]).with(5, Attention).with(7, Mlp).with(7, Attention);
        assert_eq!(cut.regions(), [(0, 1), (2, 5), (7, 8)]);
        assert_eq!(cut.whole_layers(), [0, 2, 3, 4, 7]);
        assert!(
            !cut.has_only_whole_layers()
                && Cut::layers([1]).has_only_whole_layers()
                && Cut::default().has_only_whole_layers()
        );
        assert_eq!(cut.to_string(), "[0, 2, 3, 4, attention 5, 7]");
    }
}
