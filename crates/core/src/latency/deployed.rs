//! A variant as it would be deployed: its latency is not that of the program by which it is scored.

use crate::error::Result;
use crate::model::{Config, Operator, Program, Step, Sublayer};

/// The program whose steps cost what the deployed variant costs: where the weights that end a branch can take an operator
/// in, the branch is the plain one. (A pass takes as long whatever numbers the weights hold.)
///
/// # Errors
/// None that a caller could mend.
pub fn deployed(program: &Program, config: &Config) -> Result<Program> {
    let plain = |step: &Step| -> Result<Step> {
        let Step::Edited(half, layer, operator) = step else { return Ok(step.clone()) };
        // A projection has no bias to take one in.
        let folds = operator.bias()?.is_none() && (is_diagonal(operator)? || !config.ends_in_norm(*half));
        Ok(match (folds, half) {
            (false, _) => step.clone(),
            (true, Sublayer::Attention) => Step::Attention(*layer),
            (true, Sublayer::Mlp) => Step::Mlp(*layer),
        })
    };
    program.0.iter().map(plain).collect::<Result<_>>().map(Program)
}

/// The program with every operator of the stream as a full matrix product, as the paper's code applies diagonal ones too.
///
/// # Errors
/// None that a caller could mend.
pub fn in_full(program: &Program) -> Result<Program> {
    let full = |step: &Step| match step {
        Step::Apply(operator) if is_diagonal(operator)? => {
            Ok(Step::Apply(Operator::dense(operator.channels(), operator.to_dense()?)?))
        }
        other => Ok(other.clone()),
    };
    program.0.iter().map(full).collect::<Result<_>>().map(Program)
}

/// Whether a diagonal stands on the stream: then the program is another one in full.
///
/// # Errors
/// None that a caller could mend.
pub fn has_diagonal(program: &Program) -> Result<bool> {
    let mut any = false;
    for step in &program.0 {
        if let Step::Apply(operator) = step {
            any |= is_diagonal(operator)?;
        }
    }
    Ok(any)
}

fn is_diagonal(operator: &Operator) -> Result<bool> {
    Ok(operator.parts()?.0 == "diagonal")
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
        assert_eq!(deployed(&repaired(dense.clone()), &config("llama-gqa")).unwrap(), plain);
        assert_eq!(deployed(&repaired(diagonal.clone()), &config("olmo2")).unwrap(), plain);
        // OLMo-2's branch ends in a norm.
        assert_eq!(deployed(&repaired(dense.clone()), &config("olmo2")).unwrap(), repaired(dense));
    }

    #[test]
    fn a_diagonal_in_full_is_the_same_map() {
        let diagonal = Operator::diagonal(vec![2.0, 3.0]).unwrap();
        let program = Program::pruned(3, &[1], |_| Some(diagonal.clone()));
        assert!(has_diagonal(&program).unwrap());
        let full = in_full(&program).unwrap();
        assert!(!has_diagonal(&full).unwrap());
        let Some(Step::Apply(operator)) = full.0.iter().find(|step| matches!(step, Step::Apply(_))) else {
            panic!("no operator")
        };
        assert_eq!(operator.parts().unwrap(), ("dense".to_owned(), vec![2.0, 0.0, 0.0, 3.0]));
    }
}
