//! A backbone as its folder has it: its layers with the operators beside their weights.

use std::path::Path;

use super::attached::BranchPlace;
use super::config::Config;
use super::program::{Program, Step, Sublayer};
use super::tensors::checked;
use crate::error::Result;

/// The program of a backbone as its folder has it: all layers, and the operators beside their weights.
///
/// # Errors
/// An operator that cannot be read; weights that do not fit the config.
pub fn whole(config: &Config, folder: &Path) -> Result<Program> {
    let dense = Program::dense(config.layers);
    if config.attachments.is_empty() {
        return Ok(dense);
    }
    let weights = checked(config, folder)?;
    let at = |layer: usize, place: Option<BranchPlace>| {
        let own = config.attachments.iter().find(|of| of.layer == layer && Some(of.place) == place);
        own.map(|of| of.operator(config.hidden, &weights)).transpose()
    };
    let mut steps = Vec::new();
    for step in dense.0 {
        let (half, layer) = match step {
            Step::Attention(layer) => (Sublayer::Attention, layer),
            Step::Mlp(layer) => (Sublayer::Mlp, layer),
            other => {
                steps.push(other);
                continue;
            }
        };
        if half == Sublayer::Attention {
            steps.extend(at(layer, Some(BranchPlace::Before))?.map(Step::Apply));
        }
        steps.push(match at(layer, config.norm_after(half).map(BranchPlace::Norm))? {
            Some(operator) => Step::Edited(half, layer, operator),
            None => step,
        });
        if half == Sublayer::Mlp {
            steps.extend(at(layer, Some(BranchPlace::After))?.map(Step::Apply));
        }
    }
    Ok(Program(steps))
}
