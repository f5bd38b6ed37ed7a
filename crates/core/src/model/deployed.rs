//! Deployed form of a pruned variant, whose operators are folded into weights where possible. This module also builds
//! the programs of exported folders.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::attached_form::BranchPlace;
use super::config::Config;
use super::operator::Operator;
use super::program::{Program, Step};
use super::sublayer::Sublayer;
use super::tensors::open_checked_weights;
use super::weights::Weights;
use crate::error::Result;

/// Pruned variant of a backbone, whose operators are folded into weights where possible.
#[derive(Debug, Clone)]
pub struct DeployedModel {
    /// Steps of the deployed model. A sublayer with a folded operator is a plain step, because its cost does not depend
    /// on the values of the weights.
    pub program: Program,
    /// Operators folded into the last projection of a sublayer ([`Decoder::folded`](super::Decoder::folded)).
    pub folds: BTreeMap<(usize, Sublayer), Arc<Operator>>,
}

/// Folds each operator on a branch into the branch's last projection where possible. If the branch ends in a norm, only
/// a diagonal operator can be folded, because it is applied before the norm.
pub fn deploy(program: &Program, config: &Config) -> DeployedModel {
    let mut folds = BTreeMap::new();
    let steps = program.0.iter().map(|step| {
        let Step::Edited(sublayer, layer, operator) = step else { return step.clone() };
        // A weight matrix can absorb neither a bias nor a norm.
        if !operator.is_linear() || (!operator.is_diagonal() && config.ends_in_norm(*sublayer)) {
            return step.clone();
        }
        folds.insert((*layer, *sublayer), Arc::clone(operator));
        Step::Sublayer(*sublayer, *layer)
    });
    let program = Program(steps.collect());
    DeployedModel { program, folds }
}

/// Folds scalar factors of the residual stream into the weights that follow, where possible.
///
/// After a factor `s` the stream is `y = s·x`. The model can continue with `z = y/s = x` if each later branch is scaled
/// by `1/s`: `z + f(norm(z))/s = (y + f(norm(y)))/s`. The final norm gives the same result for `z` as for `y`, because
/// an RMS norm is invariant to the scale of its input, except for its `ε`: `z/√(mean z² + ε) = y/√(mean y² + s²·ε)`.
/// The relative difference is `(1 − 1/s²)·ε / (2·(mean z² + ε))`, which no config entry can compensate. Scaling the
/// weights before the cut instead would scale the smaller streams of the first layers, where `ε` matters more, and the
/// embedding, which may be tied to the head.
///
/// Folding is not possible:
/// - for a diagonal operator with unequal factors, because its inverse changes `mean z²`,
/// - for `s ≤ 0`, because the norm preserves the sign,
/// - before an operator with a bias or norm, and
/// - if branches end in norms, which undo the scaling of a projection.
///
/// # Errors
/// Fails if an operator is not in host memory.
pub fn fold_scalar_factors(deployed: DeployedModel, config: &Config) -> Result<DeployedModel> {
    let has_post_norm = Sublayer::ALL.iter().any(|sublayer| config.ends_in_norm(*sublayer));
    if has_post_norm
        || deployed.program.0.iter().any(|step| matches!(step, Step::Apply(operator) if !operator.is_linear()))
    {
        return Ok(deployed);
    }
    let DeployedModel { program, mut folds } = deployed;
    let mut factor = 1.0;
    let mut steps = Vec::new();
    for step in program.0 {
        let sublayer = match &step {
            Step::Apply(operator) => match operator.factor()? {
                Some(layer_factor) => {
                    factor *= f64::from(layer_factor);
                    continue;
                }
                None => None,
            },
            Step::Sublayer(sublayer, layer) => Some((*layer, *sublayer)),
            _ => None,
        };
        if let Some(sublayer) = sublayer.filter(|_| factor != 1.0) {
            let inverse = Operator::diagonal(vec![(1.0 / factor) as f32; config.hidden])?;
            let fold = match folds.get(&sublayer) {
                Some(first) => first.compose(&inverse)?,
                None => inverse,
            };
            folds.insert(sublayer, fold);
        }
        steps.push(step);
    }
    Ok(DeployedModel { program: Program(steps), folds })
}

/// Returns the program of a backbone folder. For exports, it contains the stored operators and the remaining sublayers.
/// For other backbones, it contains all sublayers.
///
/// # Errors
/// Fails if an operator cannot be read, or the weights do not match the config.
pub fn folder_program(config: &Config, folder: &Path) -> Result<Program> {
    if config.is_plain() {
        return Ok(Program::dense(config.layers));
    }
    let weights = open_checked_weights(config, folder)?;
    let mut steps = vec![Step::Embed];
    for layer in 0..config.layers {
        steps.extend(read_operator_at(config, &weights, layer, BranchPlace::Before)?.map(Step::Apply));
        for sublayer in Sublayer::ALL.into_iter().filter(|&sublayer| !config.dropped.contains(layer, sublayer)) {
            let norm = config.norm_after(sublayer).map(BranchPlace::Norm);
            let map = norm.map_or(Ok(None), |norm| read_operator_at(config, &weights, layer, norm))?;
            steps.push(
                map.map_or_else(|| Step::Sublayer(sublayer, layer), |operator| Step::Edited(sublayer, layer, operator)),
            );
        }
        steps.extend(read_operator_at(config, &weights, layer, BranchPlace::After)?.map(Step::Apply));
    }
    steps.push(Step::Head);
    Ok(Program(steps))
}

/// Reads the operator at the given position in a layer, if the config declares one.
fn read_operator_at(
    config: &Config,
    weights: &Weights,
    layer: usize,
    place: BranchPlace,
) -> Result<Option<Arc<Operator>>> {
    let attachment = config.attachments.iter().find(|attached| (attached.layer, attached.place) == (layer, place));
    attachment.map(|attached| attached.read_operator(config.hidden, config.norm_eps, weights)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Batch, Cut, Decoder, Engine, Repairs, Trie};

    fn config(name: &str) -> Config {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/fixtures/arch/{name}/config.json"));
        Config::read_file(&file).unwrap()
    }

    #[test]
    fn only_foldable_repairs_are_folded_into_weights() {
        let dense = Operator::dense(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        let diagonal = Operator::diagonal(vec![1.0, 2.0]).unwrap();
        let plain = Program::pruned(3, &[1], |_| None);
        for (operator, architecture) in [(&dense, "llama-gqa"), (&diagonal, "olmo2")] {
            let found = deploy(&repaired_mlp(operator.clone()), &config(architecture));
            assert_eq!(found.program, plain);
            assert_eq!(found.folds[&(0, Sublayer::Mlp)].key(), operator.key());
        }
        // In OLMo-2, branches end in a norm.
        let left = deploy(&repaired_mlp(dense.clone()), &config("olmo2"));
        assert_eq!(left.program, repaired_mlp(dense));
        assert!(left.folds.is_empty());
    }

    fn repaired_mlp(operator: Arc<Operator>) -> Program {
        let branches = [((0, Sublayer::Mlp), operator)].into();
        Program::repaired(3, &Cut::layers([1]), &Repairs { branches, ..Repairs::default() })
    }

    /// Compares the log-probabilities of two programs: one with the factors as steps, and a plain one with the factors
    /// folded into the weights. They differ only because of the ε in the norms, which matters most for small streams.
    #[test]
    fn stream_factors_fold_into_the_following_branches() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch/llama-gqa");
        let config = Config { norm_eps: 1e-30, ..config("llama-gqa") };
        let decoder = Decoder::load_with(config.clone(), &folder).unwrap();
        let program = Program::pruned(4, &[1, 3], |start| {
            Some(Operator::diagonal(vec![if start == 1 { 1.75 } else { 0.5 }; config.hidden]).unwrap())
        });
        let found = fold_scalar_factors(deploy(&program, &config), &config).unwrap();
        assert_eq!(found.program, Program::pruned(4, &[1, 3], |_| None));
        // Only the final norm follows the second factor, so nothing is folded for it.
        let folded_sublayers = [(2, Sublayer::Attention), (2, Sublayer::Mlp)];
        assert_eq!(found.folds.keys().copied().collect::<Vec<_>>(), folded_sublayers);
        let folded = folded_sublayers.iter().try_fold(decoder.clone(), |folded, sublayer| {
            folded.folded(sublayer.1, sublayer.0, &found.folds[sublayer])
        });
        let batch = Batch::windows([[5, 250, 17, 3, 90, 41].as_slice()]);
        let steps = predict(&decoder, &program, &batch);
        let weights = predict(&folded.unwrap(), &found.program, &batch);
        assert!(steps.iter().zip(&weights).all(|(a, b)| (a - b).abs() < 1e-5), "{steps:?} {weights:?}");
        let plain = predict(&decoder, &found.program, &batch);
        assert!(steps.iter().zip(&plain).any(|(a, b)| (a - b).abs() > 1e-2), "{steps:?} {plain:?}");
    }

    #[test]
    fn factors_that_cannot_be_folded_remain_steps() {
        assert!(remains_a_step("llama-gqa", &[1.0, 2.0]) && remains_a_step("llama-gqa", &[-2.0; 2]));
        assert!(remains_a_step("olmo2", &[2.0; 2]) && !remains_a_step("llama-gqa", &[2.0; 2]));
    }

    fn predict(decoder: &Decoder, program: &Program, batch: &Batch) -> Vec<f32> {
        let programs = [program.clone()];
        let predictions = decoder.run(&Trie::new(&programs), batch, &mut ()).unwrap().remove(0).unwrap();
        predictions.iter().map(|prediction| prediction.log_probability).collect()
    }

    fn remains_a_step(architecture: &str, diagonal: &[f32]) -> bool {
        let config = config(architecture);
        let program = Program::pruned(4, &[1], |_| Operator::diagonal(diagonal.to_vec()).ok());
        let found = fold_scalar_factors(deploy(&program, &config), &config).unwrap();
        found.program == program && found.folds.is_empty()
    }
}
