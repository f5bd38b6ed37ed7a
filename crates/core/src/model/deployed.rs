//! A variant as it is deployed: what weights take in is folded into them, and what is left are steps of their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::Config;
use super::operator::Operator;
use super::program::{Program, Step, Sublayer};

/// A variant whose weights took in what they can.
#[derive(Debug, Clone)]
pub struct Deployed {
    /// Its steps. A half of a layer whose weights took an operator in is the plain one: a pass takes as long whatever
    /// numbers the weights hold.
    pub program: Program,
    /// What the last projection of a half of a layer takes in ([`Decoder::folded`](super::Decoder::folded)).
    pub folds: BTreeMap<(usize, Sublayer), Arc<Operator>>,
}

/// How a variant is deployed: where the weights that end a branch can take an operator in, they do. A branch that ends in
/// a norm takes a diagonal before that norm, and no dense map.
pub fn deployed(program: &Program, config: &Config) -> Deployed {
    let mut folds = BTreeMap::new();
    let mut plain = |step: &Step| -> Step {
        let Step::Edited(half, layer, operator) = step else { return step.clone() };
        // A projection has no bias to take one in.
        if operator.has_bias() || (!operator.is_diagonal() && config.ends_in_norm(*half)) {
            return step.clone();
        }
        folds.insert((*layer, *half), Arc::clone(operator));
        match half {
            Sublayer::Attention => Step::Attention(*layer),
            Sublayer::Mlp => Step::Mlp(*layer),
        }
    };
    let program = Program(program.0.iter().map(&mut plain).collect());
    Deployed { program, folds }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::model::Repairs;

    fn config(name: &str) -> Config {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/fixtures/arch/{name}/config.json"));
        Config::read_file(&file).unwrap()
    }

    #[test]
    fn what_weights_take_in_is_no_step_and_what_they_cannot_stays_one() {
        let dense = Operator::dense(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        let diagonal = Operator::diagonal(vec![1.0, 2.0]).unwrap();
        let repaired = |operator| {
            let branches = [((0, Sublayer::Mlp), operator)].into();
            Program::repaired(3, &[1], &Repairs { branches, ..Repairs::default() })
        };
        let plain = Program::pruned(3, &[1], |_| None);
        for (operator, architecture) in [(&dense, "llama-gqa"), (&diagonal, "olmo2")] {
            let found = deployed(&repaired(operator.clone()), &config(architecture));
            assert_eq!(found.program, plain);
            assert_eq!(found.folds[&(0, Sublayer::Mlp)].key(), operator.key());
        }
        // OLMo-2's branch ends in a norm.
        let left = deployed(&repaired(dense.clone()), &config("olmo2"));
        assert_eq!(left.program, repaired(dense));
        assert!(left.folds.is_empty());
    }
}
