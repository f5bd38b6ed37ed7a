use super::*;

/// Returns one operator of each form that has no norm.
pub(in crate::model) fn affine_forms() -> [Arc<Operator>; 5] {
    [
        Operator::diagonal(vec![2.0, 3.0]).unwrap(),
        Operator::dense(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap(),
        Operator::affine(2, vec![1.0, 2.0, 3.0, 4.0], vec![10.0, 20.0]).unwrap(),
        // I + (1, 2)ᵀ·(3, 4)
        Operator::low_rank(2, vec![1.0, 2.0], vec![3.0, 4.0]).unwrap(),
        Operator::bias_only(vec![10.0, 20.0]).unwrap(),
    ]
}

#[test]
fn composed_operators_multiply_their_matrices() {
    let dense = Operator::dense(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
    assert_eq!(dense_product(&diagonal_of(&[2.0, 3.0]), &diagonal_of(&[5.0, 7.0])), [10.0, 0.0, 0.0, 21.0]);
    assert_eq!(dense_product(&diagonal_of(&[2.0, 3.0]), &dense), [2.0, 4.0, 9.0, 12.0]);
    assert_eq!(dense_product(&dense, &diagonal_of(&[2.0, 3.0])), [2.0, 6.0, 6.0, 12.0]);
    assert_eq!(dense_product(&dense, &dense), [7.0, 10.0, 15.0, 22.0]);
}

fn diagonal_of(values: &[f32]) -> Arc<Operator> {
    Operator::diagonal(values.to_vec()).unwrap()
}

fn dense_product(a: &Operator, b: &Operator) -> Vec<f32> {
    a.compose(b).unwrap().to_dense().unwrap()
}

#[test]
fn every_affine_form_applies_its_matrix_and_bias() {
    let x = [1.0, -1.0, 0.5, 2.0];
    let expected = [
        [2.0, -3.0, 1.0, 6.0],
        [-2.0, -2.0, 6.5, 9.0],
        [8.0, 18.0, 16.5, 29.0],
        [-2.0, -5.0, 14.0, 20.0],
        [11.0, 19.0, 10.5, 22.0],
    ];
    for (operator, expected) in affine_forms().iter().zip(expected) {
        assert_eq!(operator.apply(&x).unwrap(), expected);
        let dense = Operator::dense(2, operator.linear_part().unwrap()).unwrap().apply(&x).unwrap();
        let bias = operator.bias().unwrap().unwrap_or(vec![0.0; 2]);
        let sum: Vec<f32> = dense.iter().zip(bias.iter().cycle()).map(|(a, b)| a + b).collect();
        assert_eq!(sum, expected);
        assert_eq!(
            operator.to_dense().is_err(),
            operator.bias().unwrap().is_some(),
            "a bias must not be dropped silently"
        );
    }
}

#[test]
fn composed_operator_matches_applying_both_in_order() {
    let x = [1.0, -1.0, 0.5, 2.0];
    for first in affine_forms() {
        for second in affine_forms() {
            let expected = second.apply(&first.apply(&x).unwrap()).unwrap();
            assert_eq!(first.compose(&second).unwrap().apply(&x).unwrap(), expected);
        }
    }
}

/// Returns four normed operators: with and without a norm weight, each with and without a bias.
pub(in crate::model) fn normed_forms() -> Vec<Arc<Operator>> {
    let matrix = vec![1.0, 2.0, 3.0, 4.0];
    let operators = [None, Some(vec![3.0, 5.0])].into_iter().flat_map(|weight| {
        [None, Some(vec![10.0, 20.0])].map(|bias| {
            let norm = RmsNorm { eps: 0.0, weight: weight.clone() };
            Operator::normed(norm, 2, matrix.clone(), bias).unwrap()
        })
    });
    operators.collect()
}

#[test]
fn normed_operator_adds_its_change_to_the_stream() {
    // The norm maps (2, −2) to (1, −1), and with the weight (3, 5) to (3, −5).
    let expected = [[0.0, -4.0], [10.0, 16.0], [-10.0, -16.0], [0.0, 4.0]];
    for (operator, expected) in normed_forms().iter().zip(expected) {
        assert_eq!(operator.apply(&[2.0, -2.0]).unwrap(), expected);
        let norm = operator.norm().unwrap().unwrap();
        let [a, b] = norm.apply(&[2.0, -2.0], 2)[..] else { panic!("two channels") };
        let change = operator.change().unwrap();
        let bias = operator.bias().unwrap().unwrap_or(vec![0.0; 2]);
        let sums = [0, 1].map(|j| (a * change[j] + b * change[2 + j]) as f32 + bias[j]);
        assert_eq!([2.0 + sums[0], -2.0 + sums[1]], expected);
    }
}

#[test]
fn normed_operator_cannot_be_converted_to_a_matrix() {
    let dense = Operator::dense(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
    for operator in normed_forms() {
        assert!(!operator.is_linear());
        for error in [
            operator.to_dense().map(drop),
            operator.linear_part().map(drop),
            operator.compose(&dense).map(drop),
            dense.compose(&operator).map(drop),
        ] {
            error.unwrap_err();
        }
    }
}
