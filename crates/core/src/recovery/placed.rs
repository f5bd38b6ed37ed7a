//! Placement of repairs within the program of a pruned backbone.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::boundary::{Repair, Span};
use super::method::Recovery;
use crate::error::Result;
use crate::model::{Cut, LayerMerge, Operator, Repairs, Sublayer};

/// Places the repairs for a cut. Returns `None` if a repair maps the MLP output of the preceding layer, but no layer
/// remains before the span.
///
/// # Errors
/// Fails if two operators belong at the same position but cannot be composed.
pub fn place_repairs(removed: &Cut, repaired: &[(Span, Repair)]) -> Result<Option<Repairs>> {
    let mut repairs = Repairs::default();
    for (span, repair) in repaired {
        match repair {
            Repair::Cut => {}
            Repair::Merged(merged) => drop(repairs.merged.insert(merged.layer(), Arc::clone(merged))),
            Repair::Stream(operator) => {
                let operator = Arc::clone(operator);
                match span.sublayer {
                    None => repairs.stream.insert(span.start, operator),
                    Some(sublayer) => repairs.sublayers.insert((span.start, sublayer), operator),
                };
            }
            Repair::Branches { operator, attention } => match (layer_before(removed, span.start), attention) {
                // If no layer remains before the span, factors scale the embedding instead, whereas maps of a branch
                // cannot be placed.
                (None, false) => return Ok(None),
                (None, true) => insert_or_compose(repairs.stream.entry(span.start), operator)?,
                (Some(layer), false) => insert_or_compose(repairs.branches.entry((layer, Sublayer::Mlp)), operator)?,
                (Some(layer), true) => {
                    for sublayer in Sublayer::ALL {
                        insert_or_compose(repairs.branches.entry((layer, sublayer)), operator)?;
                    }
                }
            },
        }
    }
    Ok(Some(repairs))
}

/// Returns the repairs of a recovery that merges layers. Returns `None` if the recovery does not merge layers, or if no
/// layer remains before a region.
///
/// `merges` are the merges of the selection. If the list is empty, each region is merged into the layer before it.
pub fn merged_layers(recovery: &dyn Recovery, removed: &Cut, merges: &[LayerMerge]) -> Option<Repairs> {
    let merged = if merges.is_empty() {
        let regions = removed.regions().into_iter().map(|(start, end)| {
            Some(LayerMerge { layer: layer_before(removed, start)?, absorbed: (start..end).collect() })
        });
        recovery.merged(&regions.collect::<Option<Vec<_>>>()?)?
    } else {
        recovery.merged(merges)?
    };
    let merged = merged.into_iter().map(|merged| (merged.layer(), Arc::new(merged))).collect();
    Some(Repairs { merged, ..Repairs::default() })
}

/// Returns the last layer before `start` that is not completely removed.
pub(crate) fn layer_before(removed: &Cut, start: usize) -> Option<usize> {
    (0..start).rev().find(|&layer| !removed.contains_layer(layer))
}

/// Inserts an operator, or composes it with an existing one, because the same layer may precede several spans.
fn insert_or_compose<K: Ord>(entry: Entry<'_, K, Arc<Operator>>, operator: &Arc<Operator>) -> Result<()> {
    match entry {
        Entry::Vacant(vacant) => drop(vacant.insert(Arc::clone(operator))),
        Entry::Occupied(mut occupied) => {
            let product = occupied.get().compose(operator)?;
            occupied.insert(product);
        }
    }
    Ok(())
}
