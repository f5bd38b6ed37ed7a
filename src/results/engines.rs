//! What a reader of a table has to know of the engines that ran its backbones, and of their weights.

use std::collections::BTreeMap;

use super::capital;
use crate::model::{CPU, EngineId};

/// A sentence for each engine but the CPU's own in f32, with the backbones that it ran.
pub fn engine_notes(engines: &BTreeMap<String, EngineId>) -> Vec<String> {
    let mut ran: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (backbone, engine) in engines.iter().filter(|(_, engine)| **engine != CPU) {
        ran.entry(engine.to_string()).or_default().push(backbone);
    }
    ran.into_iter().map(|(engine, backbones)| format!("Engine: {engine} ({}).", backbones.join(", "))).collect()
}

/// A sentence for each way in which weights are rounded, with the backbones whose weights are.
pub fn rounding_notes(rounded: &BTreeMap<String, String>) -> Vec<String> {
    let mut ways: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    rounded.iter().for_each(|(backbone, told)| ways.entry(told).or_default().push(backbone));
    ways.into_iter().map(|(told, backbones)| format!("{} ({}).", capital(told), backbones.join(", "))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_other_than_the_default_is_named_with_its_backbones() {
        let bf16 = EngineId { name: "candle", dtype: "bf16", device: "cpu" };
        let engines = [("a", bf16), ("b", CPU), ("c", bf16)].map(|(name, id)| (name.to_owned(), id));
        assert_eq!(engine_notes(&engines.into()), ["Engine: candle bf16 on cpu (a, c)."]);
        assert!(engine_notes(&[("b".to_owned(), CPU)].into()).is_empty());
    }
}
