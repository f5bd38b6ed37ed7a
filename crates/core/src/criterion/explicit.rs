//! Explicit criterion: removes the layers or sublayers that the grid lists (docs/design.md §6).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::depth::DepthUnit;
use super::rule::{CalibrationStats, Criterion, CriterionEntry, ITERATIVE, PruneSpec, Selection, check_all_candidates};
use crate::error::{Error, Result};
use crate::model::Cut;
use crate::options::{self, Options};
use crate::quantity::pluralize;

const NAME: &str = "explicit";
pub(super) const ENTRY: CriterionEntry = CriterionEntry::new::<ExplicitOptions>(NAME, "", build)
    .refusing(ITERATIVE, "it lists its layers and measures nothing");

/// Layers or sublayers to remove, given as exactly one of `layers`, `order` and `sublayers`.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct ExplicitOptions {
    /// Layers to remove.
    layers: Option<Vec<usize>>,
    /// Order of removal for sweeps over depths. The first `depth` layers are removed.
    order: Option<Vec<usize>>,
    /// Sublayers to remove, such as `attention 3` or `mlp 3`. A number lists both sublayers of a layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    sublayers: Option<Cut>,
}

enum Explicit {
    /// Layers to remove. Their number must equal the depth.
    Layers(Vec<usize>),
    /// Layers in the order of removal. The first `depth` of them are removed.
    Order(Vec<usize>),
    /// Sublayers to remove. Their number must equal the depth.
    Sublayers(Cut),
}

fn build(name: &str, options: &Options) -> Result<Box<dyn Criterion>> {
    let rule = match options::read::<ExplicitOptions>(name, options)? {
        ExplicitOptions { layers: Some(layers), order: None, sublayers: None } => Explicit::Layers(layers),
        ExplicitOptions { layers: None, order: Some(order), sublayers: None } => Explicit::Order(order),
        ExplicitOptions { layers: None, order: None, sublayers: Some(removed) } => Explicit::Sublayers(removed),
        ExplicitOptions { layers, order, sublayers } => {
            let is_empty = layers.is_none() && order.is_none() && sublayers.is_none();
            return Err(Error::bad_input(format!("`{name}` requires a list of layers or sublayers"))
                .expected("exactly one of `layers`, `sublayers` and `order` (the first `depth` layers are removed)")
                .found(if is_empty { "none of them" } else { "several of them" })
                .hint(if is_empty {
                    "write, for example, `{name: explicit, layers: [8, 9, 12]}`"
                } else {
                    "remove all but one of them"
                }));
        }
    };
    if let Explicit::Layers(layers) | Explicit::Order(layers) = &rule
        && let Some((i, duplicate)) = layers.iter().enumerate().find(|(i, layer)| layers[..*i].contains(layer))
    {
        return Err(Error::bad_input(format!("`{name}` lists a layer twice"))
            .expected("each layer once")
            .found(format!("layer {duplicate} again at position {}", i + 1)));
    }
    Ok(Box::new(rule))
}

impl Criterion for Explicit {
    fn units(&self) -> &'static [DepthUnit] {
        match self {
            Self::Layers(_) | Self::Order(_) => &[DepthUnit::Layers],
            Self::Sublayers(_) => DepthUnit::SUBLAYER_UNITS,
        }
    }

    fn check(&self, _: &str, spec: &PruneSpec<'_>) -> Result<()> {
        match self {
            Self::Layers(layers) => check_layers(layers, layers.len() == spec.depth, spec),
            Self::Order(layers) => check_layers(layers, layers.len() >= spec.depth, spec),
            Self::Sublayers(removed) => check_listed_sublayers(removed, spec),
        }
    }

    fn regions(&self, spec: &PruneSpec<'_>) -> Vec<(usize, usize)> {
        self.removed(spec.depth).regions()
    }

    fn one_block(&self, spec: &PruneSpec<'_>) -> bool {
        self.removed(spec.depth).regions().len() == 1
    }

    fn select(&self, spec: &PruneSpec<'_>, _: &mut CalibrationStats<'_>) -> Result<Selection> {
        Ok(Selection::new(self.removed(spec.depth), Vec::new()))
    }
}

impl Explicit {
    fn removed(&self, depth: usize) -> Cut {
        match self {
            Self::Layers(layers) | Self::Order(layers) => Cut::layers(layers[..depth].iter().copied()),
            Self::Sublayers(removed) => removed.clone(),
        }
    }
}

/// Rejects layers that the backbone does not have, and a list whose length does not fit the depth (`has_valid_length`
/// is `false`).
fn check_layers(layers: &[usize], has_valid_length: bool, spec: &PruneSpec<'_>) -> Result<()> {
    if let Some(layer) = layers.iter().find(|&&layer| layer >= spec.layers) {
        return Err(Error::bad_input(format!("`{NAME}` lists a layer that `{}` does not have", spec.backbone))
            .expected(format!("layers below {}", spec.layers))
            .found(layer));
    }
    if has_valid_length {
        return Ok(());
    }
    Err(Error::bad_input(format!("`{NAME}` lists {} for a depth of {}", pluralize(layers.len(), "layer"), spec.depth))
        .expected(pluralize(spec.depth, "layer"))
        .found(format!("{layers:?}"))
        .hint(if layers.len() > spec.depth {
            "use `order` to remove the first `depth` layers of a longer list"
        } else {
            "list more layers, or reduce `depth`"
        }))
}

/// Rejects sublayers that do not match the unit of the depth or that the backbone does not have. Also rejects a list
/// whose length differs from the depth.
fn check_listed_sublayers(removed: &Cut, spec: &PruneSpec<'_>) -> Result<()> {
    let candidates: Cut = spec.unit.candidates(spec.layers).into_iter().collect();
    if let Some((layer, kind)) = removed.iter().find(|&(layer, kind)| !candidates.contains(layer, kind)) {
        return Err(Error::bad_input(format!("`{NAME}` lists a sublayer that cannot be removed"))
            .expected(format!("{} with layer indices below {}", spec.unit.plural(), spec.layers))
            .found(format!("{kind} {layer}")));
    }
    if removed.len() != spec.depth {
        return Err(Error::bad_input(format!(
            "`{NAME}` lists {} for a depth of {}",
            pluralize(removed.len(), "sublayer"),
            spec.depth
        ))
        .expected(pluralize(spec.depth, "different sublayer"))
        .found(removed));
    }
    check_all_candidates(NAME, spec)
}

#[cfg(test)]
mod tests {
    use crate::criterion::DepthUnit;
    use crate::criterion::rule::PruneSpec;
    use crate::criterion::rule::tests::select;
    use crate::model::Cut;
    use serde_json::{Value, json};

    fn select_cut(options: &Value, depth: usize, unit: DepthUnit) -> Result<Cut, String> {
        let spec = PruneSpec { backbone: "b", layers: 6, depth, unit };
        select(&super::ENTRY, options, &spec, |_| 0.0, |_| 0.0).map(|s| s.removed).map_err(|error| error.to_string())
    }

    fn removed_layers(options: &Value, depth: usize) -> Result<Vec<usize>, String> {
        select_cut(options, depth, DepthUnit::Layers).map(|removed| removed.whole_layers())
    }

    #[test]
    fn explicit_layers_are_removed() {
        assert_eq!(removed_layers(&json!({"layers": [4, 1]}), 2).unwrap(), [1, 4]);
        assert_eq!(removed_layers(&json!({"order": [4, 1, 2]}), 2).unwrap(), [1, 4]);
        assert_eq!(
            removed_layers(&json!({"layers": [1, 2, 3, 4, 5]}), 5).unwrap(),
            [1, 2, 3, 4, 5],
            "all layers except the first may be removed"
        );
    }

    #[test]
    fn invalid_layer_list_is_rejected_with_reason() {
        for (options, depth, words) in [
            (json!({"layers": [1, 2]}), 3, "expected: 3 layers"),
            (json!({"order": [1, 2]}), 3, "expected: 3 layers"),
            (json!({"layers": [1, 6]}), 2, "layers below 6"),
            (json!({"layers": [1, 1]}), 2, "twice"),
            (json!({}), 2, "none of them"),
            (json!({"layers": [1], "order": [1]}), 1, "several of them"),
            (json!({"layers": [1], "sublayers": [1]}), 1, "several of them"),
            (json!({"sublayers": ["mlp 1"]}), 1, "the depth is given in layers"),
        ] {
            let text = removed_layers(&options, depth).unwrap_err();
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn explicit_sublayers_are_removed() {
        for (sublayers, depth, unit, expected) in [
            (json!(["mlp 4", "attention 1"]), 2, DepthUnit::Sublayers, "[attention 1, mlp 4]"),
            (json!(["attention 5", "attention 0"]), 2, DepthUnit::Attention, "[attention 0, attention 5]"),
            (json!(["mlp 3"]), 1, DepthUnit::Mlp, "[mlp 3]"),
            (json!([3, "attention 1"]), 3, DepthUnit::Sublayers, "[attention 1, 3]"),
        ] {
            let removed = select_cut(&json!({"sublayers": sublayers}), depth, unit).unwrap();
            assert_eq!(removed.to_string(), expected);
        }
    }

    #[test]
    fn invalid_sublayer_list_is_rejected_with_reason() {
        use DepthUnit::{Attention, Mlp, Sublayers};
        for (sublayers, depth, unit, words) in [
            (json!(["attention 1", "mlp 1"]), 2, Attention, "found:    mlp 1"),
            (json!(["attention 6"]), 1, Sublayers, "sublayers with layer indices below 6"),
            (json!([1]), 2, Mlp, "found:    attention 1"),
            (json!(["mlp 1", "mlp 2"]), 1, Mlp, "lists 2 sublayers for a depth of 1"),
            (json!(["mlp 1", "mlp 1"]), 2, Mlp, "expected: 2 different sublayers"),
            (json!([0, 1, 2, 3, 4, 5]), 12, Sublayers, "too few sublayers"),
            (json!(["gate 1"]), 1, Mlp, "`gate 1` is not a sublayer"),
            (json!("mlp 1"), 1, Mlp, "invalid options"),
        ] {
            let text = select_cut(&json!({"sublayers": sublayers}), depth, unit).unwrap_err();
            assert!(text.contains(words), "{sublayers} {unit}: {text}");
        }
    }

    #[test]
    fn sublayers_option_is_omitted_from_keys_of_layer_lists() {
        for (options, keys) in [
            (json!({"layers": [1]}), &["layers", "order"][..]),
            (json!({"order": [1]}), &["layers", "order"]),
            (json!({"sublayers": [1]}), &["layers", "order", "sublayers"]),
        ] {
            let resolved = super::ENTRY.resolve(options.as_object().unwrap()).unwrap();
            assert_eq!(resolved.keys().collect::<Vec<_>>(), keys, "{options}");
        }
    }
}
