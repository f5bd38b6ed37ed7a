//! What cells are, as `numbers.json` has it: parts that many cells share, as their backbone and their calibration, stand once.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::{Map, Value};

use crate::identity::Identity;

/// Parts, each once, and for each cell the places of its own among them.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SharedParts {
    parts: Vec<Value>,
    cells: BTreeMap<String, BTreeMap<String, usize>>,
}

pub(super) fn serialize<S: Serializer>(all: &BTreeMap<String, Identity>, to: S) -> Result<S::Ok, S::Error> {
    let mut shared = SharedParts::default();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (cell, identity) in all {
        let Value::Object(parts) = serde_json::to_value(identity).map_err(ser::Error::custom)? else { continue };
        let own = parts.into_iter().map(|(name, part)| {
            let place = *places.entry(part.to_string()).or_insert(shared.parts.len());
            if place == shared.parts.len() {
                shared.parts.push(part);
            }
            (name, place)
        });
        shared.cells.insert(cell.clone(), own.collect());
    }
    shared.serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Identity>, D::Error> {
    let SharedParts { parts, cells } = SharedParts::deserialize(from)?;
    let whole = |(cell, own): (String, BTreeMap<String, usize>)| {
        let lacking =
            |place| de::Error::custom(format!("the identity of {cell} has a part {place}, and there is none"));
        let part =
            |(name, place): (String, usize)| Ok((name, parts.get(place).cloned().ok_or_else(|| lacking(place))?));
        let object = own.into_iter().map(part).collect::<Result<Map<String, Value>, D::Error>>()?;
        let identity = serde_json::from_value(object.into()).map_err(de::Error::custom)?;
        Ok((cell, identity))
    };
    cells.into_iter().map(whole).collect()
}
