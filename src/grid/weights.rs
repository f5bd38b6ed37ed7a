//! The `weights` axis: backbones as stored, or with matrices that are rounded when loaded. Each rounded variant is a
//! separate backbone, named after its source, such as `tiny-llama@q4_k`.

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::one_or_many::OneOrMany;
use super::validate::{self, EntryPosition};
use super::yaml::Positioned;
use crate::error::Result;
use crate::model::WeightType;

/// Weights from which repairs of a rounded backbone are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CalibratedOn {
    /// Stored weights: repair first, then round.
    #[default]
    Full,
    /// Rounded weights.
    Rounded,
}

/// Weight type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub(super) enum WeightsName {
    /// Type stored in the files.
    #[serde(rename = "as-stored")]
    AsStored,
    /// Blocks of 32 numbers with 8 bits each.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// Blocks of 32 numbers with 4 bits each.
    #[serde(rename = "q4_0")]
    Q4_0,
    /// Blocks of 256 numbers with 4 bits each; Q5_0 if rows are not a multiple of the block size.
    #[serde(rename = "q4_k")]
    Q4K,
}

/// Weight type as written in the file.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub(super) enum WeightsEntry {
    Name(WeightsName),
    Map(WeightsMap),
}

/// Rounded weights, and the weights used for repairs.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WeightsMap {
    /// Type to which matrices are rounded.
    r#type: WeightsName,
    /// Weights for selection and repairs: stored (`full`) or rounded.
    #[serde(default)]
    #[schemars(extend("default" = "full"))]
    calibrated: OneOrMany<CalibratedOn>,
}

impl<'de> Deserialize<'de> for WeightsEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WeightsVisitor)
    }
}

struct WeightsVisitor;

impl<'de> Visitor<'de> for WeightsVisitor {
    type Value = WeightsEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as-stored, q8_0, q4_0 or q4_k, or a map with `type` and `calibrated`")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<WeightsEntry, E> {
        WeightsName::deserialize(StrDeserializer::new(name)).map(WeightsEntry::Name)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WeightsEntry, A::Error> {
        WeightsMap::deserialize(MapAccessDeserializer::new(map)).map(WeightsEntry::Map)
    }
}

/// Value on the `weights` axis. `None` means the stored weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weights(Option<(WeightType, CalibratedOn)>);

/// Formats the value, for example as `q4_k` or `q4_k-rounded`.
impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("as-stored"),
            Some((to, CalibratedOn::Full)) => f.write_str(to.name()),
            Some((to, CalibratedOn::Rounded)) => write!(f, "{}-rounded", to.name()),
        }
    }
}

impl Weights {
    /// Reads the `weights` axis.
    pub(super) fn read(at: &EntryPosition<'_>, entries: &[WeightsEntry]) -> Result<Vec<Positioned<Self>>> {
        let mut all = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            let at = at.item(i);
            let (name, calibrated) = match entry {
                WeightsEntry::Name(name) => (*name, None),
                WeightsEntry::Map(WeightsMap { r#type, calibrated }) => (*r#type, calibrated.explicit_values()),
            };
            let to = match name {
                WeightsName::AsStored if calibrated.is_some() => {
                    return Err(at
                        .key("calibrated")
                        .error("`calibrated` has no effect on `as-stored` weights")
                        .expected("`calibrated` together with a quantized type")
                        .found("`as-stored`"));
                }
                WeightsName::AsStored => {
                    all.push(at.with_position(Self(None)));
                    continue;
                }
                WeightsName::Q8_0 => WeightType::Q8_0,
                WeightsName::Q4_0 => WeightType::Q4_0,
                WeightsName::Q4K => WeightType::Q4K,
            };
            let calibrated = calibrated.unwrap_or(&[CalibratedOn::Full]);
            all.extend(calibrated.iter().map(|on| at.with_position(Self(Some((to, *on))))));
        }
        validate::check_values(at, &all)?;
        Ok(all)
    }

    /// Returns the weight type and the weights used for repairs. Returns `None` for stored weights.
    pub(super) fn rounding(self) -> Option<(WeightType, CalibratedOn)> {
        self.0
    }
}
