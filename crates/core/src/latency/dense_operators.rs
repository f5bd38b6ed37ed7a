//! Diagonal operators as full matrix products, which is how the code of the Ghosted Layers paper applies them.

use crate::error::Result;
use crate::model::{Operator, Program, Step};

/// Returns the program with the diagonal operators on the stream replaced by full matrix products.
///
/// # Errors
/// Propagates errors from [`Operator::to_dense`].
pub fn with_dense_operators(program: &Program) -> Result<Program> {
    program
        .0
        .iter()
        .map(|step| match step {
            Step::Apply(operator) if operator.is_diagonal() => {
                Ok(Step::Apply(Operator::dense(operator.channels(), operator.to_dense()?)?))
            }
            other => Ok(other.clone()),
        })
        .collect::<Result<_>>()
        .map(Program)
}

/// Returns whether the program has a diagonal operator on the stream.
pub fn has_diagonal(program: &Program) -> bool {
    program.0.iter().any(|step| matches!(step, Step::Apply(operator) if operator.is_diagonal()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diagonal_operator_converts_to_equal_dense_operator() {
        let diagonal = Operator::diagonal(vec![2.0, 3.0]).unwrap();
        let program = Program::pruned(3, &[1], |_| Some(diagonal.clone()));
        assert!(has_diagonal(&program));
        let full = with_dense_operators(&program).unwrap();
        assert!(!has_diagonal(&full));
        let Some(Step::Apply(operator)) = full.0.iter().find(|step| matches!(step, Step::Apply(_))) else {
            panic!("no operator")
        };
        assert_eq!(operator.parts().unwrap(), ("dense".to_owned(), vec![2.0, 0.0, 0.0, 3.0]));
    }
}
