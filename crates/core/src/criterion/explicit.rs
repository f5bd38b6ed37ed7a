//! Explicit criterion: removes the layers that the grid lists (design §6).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule::{CalibrationStats, Criterion, CriterionEntry, PruneSpec, Selection};
use crate::error::{Error, Result};
use crate::options::{self, Options};

pub(super) const NAME: &str = "explicit";
const SOURCE: &str = "";
pub(super) const ENTRY: CriterionEntry = CriterionEntry::new::<ExplicitOptions>(NAME, SOURCE, build);

/// Layers listed in the grid, as either `layers` or `order`.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct ExplicitOptions {
    /// Layers to remove.
    layers: Option<Vec<usize>>,
    /// Order of removal for sweeps over depths. The first `depth` layers are removed.
    order: Option<Vec<usize>>,
}

struct Explicit {
    layers: Vec<usize>,
    /// Whether the list must have exactly `depth` layers.
    exact: bool,
}

fn build(name: &str, options: &Options) -> Result<Box<dyn Criterion>> {
    let settings: ExplicitOptions = options::read(name, options)?;
    let (layers, exact) = match (settings.layers, settings.order) {
        (Some(layers), None) => (layers, true),
        (None, Some(order)) => (order, false),
        (layers, _) => {
            return Err(Error::bad_input(format!("`{name}` requires a list of layers"))
                .expected("either `layers` (removes exactly these) or `order` (removes the first `depth` layers)")
                .found(if layers.is_some() { "both" } else { "neither" })
                .hint("write, for example, `{name: explicit, layers: [8, 9, 12]}`"));
        }
    };
    if let Some((i, twice)) = layers.iter().enumerate().find(|(i, layer)| layers[..*i].contains(layer)) {
        return Err(Error::bad_input(format!("`{name}` contains a layer twice"))
            .expected("each layer once")
            .found(format!("{twice} again at position {}", i + 1)));
    }
    Ok(Box::new(Explicit { layers, exact }))
}

impl Criterion for Explicit {
    fn check(&self, cut: &PruneSpec<'_>) -> Result<()> {
        if let Some(layer) = self.layers.iter().find(|&&layer| layer >= cut.layers) {
            return Err(Error::bad_input(format!("`{NAME}` contains a layer that `{}` does not have", cut.backbone))
                .expected(format!("layers below {}", cut.layers))
                .found(layer));
        }
        let fits = if self.exact { self.layers.len() == cut.depth } else { self.layers.len() >= cut.depth };
        if fits {
            return Ok(());
        }
        Err(Error::bad_input(format!("`{NAME}` lists {} layers for a depth of {}", self.layers.len(), cut.depth))
            .expected(format!("{} layers", cut.depth))
            .found(format!("{:?}", self.layers))
            .hint("use `order` to remove the first `depth` layers of a longer list"))
    }

    fn regions(&self, cut: &PruneSpec<'_>) -> Vec<(usize, usize)> {
        self.selection(cut).regions()
    }

    fn one_block(&self, cut: &PruneSpec<'_>) -> bool {
        self.selection(cut).regions().len() == 1
    }

    fn select(&self, cut: &PruneSpec<'_>, _: &mut CalibrationStats<'_>) -> Result<Selection> {
        Ok(self.selection(cut))
    }
}

impl Explicit {
    fn selection(&self, cut: &PruneSpec<'_>) -> Selection {
        Selection::from_layers(self.layers[..cut.depth].iter().copied(), Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use crate::criterion::DepthUnit;
    use crate::criterion::rule::PruneSpec;
    use crate::criterion::rule::tests::select;
    use serde_json::json;

    fn removed(options: &serde_json::Value, depth: usize) -> Result<Vec<usize>, String> {
        let cut = PruneSpec { backbone: "b", layers: 6, depth, unit: DepthUnit::Layers };
        select(&super::ENTRY, options, &cut, |_| 0.0, |_| 0.0)
            .map(|s| s.removed.whole_layers())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn listed_layers_are_removed() {
        assert_eq!(removed(&json!({"layers": [4, 1]}), 2).unwrap(), [1, 4]);
        assert_eq!(removed(&json!({"order": [4, 1, 2]}), 2).unwrap(), [1, 4]);
        assert_eq!(
            removed(&json!({"layers": [1, 2, 3, 4, 5]}), 5).unwrap(),
            [1, 2, 3, 4, 5],
            "all layers except the first may be removed"
        );
    }

    #[test]
    fn unusable_list_is_refused_with_the_reason() {
        for (options, depth, words) in [
            (json!({"layers": [1, 2]}), 3, "expected: 3 layers"),
            (json!({"order": [1, 2]}), 3, "expected: 3 layers"),
            (json!({"layers": [1, 6]}), 2, "layers below 6"),
            (json!({"layers": [1, 1]}), 2, "twice"),
            (json!({}), 2, "neither"),
            (json!({"layers": [1], "order": [1]}), 1, "both"),
        ] {
            let text = removed(&options, depth).unwrap_err();
            assert!(text.contains(words), "{text}");
        }
    }
}
