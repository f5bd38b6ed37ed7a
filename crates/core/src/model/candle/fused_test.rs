//! Tests that compare the fused operations with the unfused ones.

use candle_core::{Device, Tensor, Var};

use super::fused::{Scores, supports};
use crate::model::architecture::Activation;
use crate::model::candle::ops;

fn sample_tensor(seed: usize, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((seed * 31 + i) as f32 * 12.9898).sin()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn max_difference(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!(a.dims(), b.dims());
    (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap()
}

/// Wraps a tensor as a variable, which selects the unfused implementation.
fn as_variable(x: &Tensor) -> Tensor {
    Var::from_tensor(x).unwrap().as_tensor().clone()
}

#[test]
fn fused_operations_match_unfused_operations() {
    let x = sample_tensor(1, &[5, 3, 16]);
    let weight = sample_tensor(2, &[16]);
    let cos = sample_tensor(3, &[5, 8]);
    let sin = sample_tensor(4, &[5, 8]);
    assert!(supports(&[&x, &weight]) && !supports(&[&as_variable(&x)]));
    let norms = [&x, &as_variable(&x)].map(|x| ops::rms_norm(x, &weight, 1e-5).unwrap());
    assert!(max_difference(&norms[0], &norms[1]) < 1e-6);
    let turned = [&x, &as_variable(&x)].map(|x| ops::rotate(x, &cos, &sin).unwrap());
    assert!(max_difference(&turned[0], &turned[1]) < 1e-6);
    let gated = [&x, &as_variable(&x)].map(|x| ops::gated(x, &x.cos().unwrap(), Activation::Silu).unwrap());
    assert!(max_difference(&gated[0], &gated[1]) < 1e-6);
    let added = [&x, &as_variable(&x)].map(|x| ops::sum(x, &x.cos().unwrap()).unwrap());
    assert!(max_difference(&added[0], &added[1]) == 0.0);
    let sums = [&x, &as_variable(&x)].map(|x| ops::softmax(x).unwrap());
    assert!(max_difference(&sums[0], &sums[1]) < 1e-6);
    let causal: Vec<f32> = (0..49).map(|i| if i % 7 <= i / 7 { 0.0 } else { f32::NEG_INFINITY }).collect();
    let mask = Tensor::from_vec(causal, (7, 7), &Device::Cpu).unwrap();
    let queries = sample_tensor(5, &[2, 7, 4, 16]);
    let keys = sample_tensor(6, &[2, 7, 2, 16]);
    let values = sample_tensor(7, &[2, 7, 2, 16]);
    for cap in [None, Some(0.5)] {
        let settings = Scores { scale: 0.4, cap };
        let outputs =
            [&queries, &as_variable(&queries)].map(|x| ops::attention(x, &keys, &values, &mask, settings).unwrap());
        assert!(max_difference(&outputs[0], &outputs[1]) < 1e-6, "{cap:?}");
    }
}
