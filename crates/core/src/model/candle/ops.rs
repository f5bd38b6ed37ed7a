//! Operations of a decoder layer on any device, for inference and training. If gradients are needed, they use candle's
//! basic operations, because its fused norm, softmax and rotary embedding silently cut the autograd graph. Otherwise
//! they use `fused`. candle's `log_softmax` is avoided because it accumulates in the tensor's dtype.
//!
//! Half-precision products behave as on tensor cores: operands and results have the tensor's dtype, and sums are
//! accumulated in f32. Norms, softmax, rotary embedding and operators are computed in f32 and rounded once. f64 tensors
//! stay f64.

use candle_core::{D, DType, Device, Tensor};

#[cfg(feature = "cuda")]
use super::cuda;
use super::fused;
pub use super::fused::{Scores, apply_cap};
use crate::error::Result;
use crate::model::architecture::Activation;

/// Converts a tensor to the accumulation dtype: f32 for half precision, otherwise unchanged.
pub fn widen(x: &Tensor) -> Result<Tensor> {
    Ok(match x.dtype() {
        DType::F16 | DType::BF16 => x.to_dtype(DType::F32)?,
        _ => x.clone(),
    })
}

/// Computes `a·b`, rounded to the dtype of `a`.
///
/// # Shapes
/// `a [.., m, k]`, `b [.., k, n]`; result `[.., m, n]`.
pub fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if matches!(a.device(), Device::Cpu) {
        // On the CPU, candle's half-precision kernels are missing or accumulate in half precision.
        return Ok(widen(a)?.matmul(&widen(b)?)?.to_dtype(a.dtype())?);
    }
    Ok(a.matmul(b)?)
}

/// Computes `x·Wᵀ` with `W` in the layout of the weight files.
///
/// # Shapes
/// `x [rows, in]`, `weight [out, in]`; result `[rows, out]`.
pub fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    product(x, &weight.t()?)
}

/// Computes `x + b` in f32, rounded to the dtype of `x`. Returns `x` unchanged if there is no bias.
///
/// # Shapes
/// `x [rows, out]`, `bias [out]` in f32 (f64 for an f64 `x`); result `[rows, out]`.
pub fn add_bias(x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    match bias {
        Some(bias) => Ok(widen(x)?.broadcast_add(bias)?.to_dtype(x.dtype())?),
        None => Ok(x.clone()),
    }
}

/// Adds a branch to the residual stream: computes `x + y` for tensors of equal shape.
pub fn sum(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    if fused::supports(&[x, y]) { fused::sum(x, y) } else { Ok((x + y)?) }
}

/// Computes `x·W` in f32, rounded to the dtype of `x`. Used for operators on the residual stream.
///
/// # Shapes
/// `x [rows, C]`, `matrix [C, C]` or its diagonal `[C]`, in f32 (f64 for an f64 `x`); result `[rows, C]`.
pub fn apply_matrix(x: &Tensor, matrix: &Tensor) -> Result<Tensor> {
    let input = widen(x)?;
    let out = if matrix.rank() == 1 { input.broadcast_mul(matrix)? } else { input.matmul(matrix)? };
    Ok(out.to_dtype(x.dtype())?)
}

/// Computes `x / √(mean(x²) + eps) · weight` over the last dimension.
///
/// # Shapes
/// `x [.., D]`, `weight [D]`; result `[.., D]`.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if cuda::supports(&[x, weight]) {
        return cuda::rms_norm(x, weight, eps);
    }
    let input = widen(x)?;
    let weight = weight.to_dtype(input.dtype())?;
    if fused::supports(&[&input, &weight]) {
        return Ok(fused::rms_norm(&input, &weight, eps)?.to_dtype(x.dtype())?);
    }
    let root = (input.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?;
    Ok(input.broadcast_div(&root)?.broadcast_mul(&weight)?.to_dtype(x.dtype())?)
}

/// Applies the rotary embedding to the first `R` channels of each head, pairing channel `i` with `i + R/2`.
///
/// # Shapes
/// `x [rows, heads, D]`, `cos` and `sin [rows, R/2]` at each row's position; result `[rows, heads, D]`.
pub fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let head_dim = x.dim(D::Minus1)?;
    let half = cos.dim(D::Minus1)?;
    #[cfg(feature = "cuda")]
    if head_dim == 2 * half && cuda::supports(&[x, cos, sin]) {
        return cuda::rotate(x, cos, sin);
    }
    let input = widen(x)?;
    if head_dim == 2 * half && fused::supports(&[&input, cos, sin]) {
        return Ok(fused::rotate(&input, cos, sin)?.to_dtype(x.dtype())?);
    }
    let a = input.narrow(D::Minus1, 0, half)?;
    let b = input.narrow(D::Minus1, half, half)?;
    let [cos, sin] = [cos, sin].map(|table| table.to_dtype(input.dtype())?.unsqueeze(1));
    let cos = cos?;
    let sin = sin?;
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
    let mut parts = vec![first, second];
    if head_dim > 2 * half {
        parts.push(input.narrow(D::Minus1, 2 * half, head_dim - 2 * half)?);
    }
    Ok(Tensor::cat(&parts, D::Minus1)?.to_dtype(x.dtype())?)
}

/// Computes the softmax over the last dimension in f32 (f64 for f64). A row that contains only −∞ yields NaN.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let x = widen(x)?;
    if fused::supports(&[&x]) {
        return fused::softmax(&x);
    }
    let exponentials = subtract_row_max(&x)?.exp()?;
    Ok(exponentials.broadcast_div(&exponentials.sum_keepdim(D::Minus1)?)?)
}

/// Computes the log-softmax over the last dimension in f32 (f64 for f64).
pub fn log_softmax(x: &Tensor) -> Result<Tensor> {
    let x = subtract_row_max(&widen(x)?)?;
    let denominator = x.exp()?.sum_keepdim(D::Minus1)?.log()?;
    Ok(x.broadcast_sub(&denominator)?)
}

/// Subtracts the maximum of each row, which changes neither the softmax nor its gradient.
fn subtract_row_max(x: &Tensor) -> Result<Tensor> {
    Ok(x.broadcast_sub(&x.max_keepdim(D::Minus1)?.detach())?)
}

/// Computes grouped-query attention for several blocks of queries and keys, all of one shape and with one mask.
///
/// # Shapes
/// `queries [blocks, q, H, D]`, `keys` and `values [blocks, k, K, D]`, `mask [q, k]` in f32 (f64 for f64), 0 for
/// visible keys and −∞ otherwise; result `[blocks, q, H·D]`.
pub fn attention(queries: &Tensor, keys: &Tensor, values: &Tensor, mask: &Tensor, settings: Scores) -> Result<Tensor> {
    let (blocks, q, heads, head_dim) = queries.dims4()?;
    let (_, k, shared, _) = keys.dims4()?;
    let group = heads / shared;
    // Stack the query heads that share a KV head: [blocks, K, group·q, D]
    let queries = queries.reshape((blocks, q, shared, group, head_dim))?.permute((0, 2, 3, 1, 4))?;
    let queries = queries.contiguous()?.reshape((blocks, shared, group * q, head_dim))?;
    let [keys, values] = [keys, values].map(|x| x.transpose(1, 2)?.contiguous()); // [blocks, K, k, D]
    let scores = product(&queries, &keys?.t()?)?.reshape((blocks, shared, group, q, k))?;
    let weights = attention_weights(scores, mask, settings)?;
    let out = product(&weights.reshape((blocks, shared, group * q, k))?, &values?)?;
    let out = out.reshape((blocks, shared, group, q, head_dim))?.permute((0, 3, 1, 2, 4))?;
    Ok(out.contiguous()?.reshape((blocks, q, heads * head_dim))?)
}

/// Returns the mask `[rows, first + rows]` of one sequence whose rows start at position `first`: 0 for visible keys, −∞
/// elsewhere. `window` is the size of the sliding window, if there is one.
pub fn causal_mask(first: usize, rows: usize, window: Option<usize>, device: &Device) -> Result<Tensor> {
    let keys = first + rows;
    let mut mask = vec![f32::NEG_INFINITY; rows * keys];
    for (row, visible) in mask.chunks_exact_mut(keys.max(1)).enumerate() {
        let end = first + row + 1;
        visible[end.saturating_sub(window.unwrap_or(usize::MAX))..end].fill(0.0);
    }
    Ok(Tensor::from_vec(mask, (rows, keys), device)?)
}

/// Computes attention weights in the dtype of `scores`. `scores` may be overwritten and must not be shared.
///
/// # Shapes
/// `scores [.., q, k]`, `mask [q, k]`; result `[.., q, k]`.
fn attention_weights(scores: Tensor, mask: &Tensor, settings: Scores) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if cuda::supports(&[&scores, mask]) {
        return cuda::attention_weights(&scores, mask, settings);
    }
    let dtype = scores.dtype();
    let scores = if dtype.size_in_bytes() < 4 { widen(&scores)? } else { scores };
    let weights = if fused::supports(&[&scores, mask]) {
        fused::attention_weights(scores, mask, settings)?
    } else {
        softmax(&apply_cap((scores * settings.scale)?, settings.cap)?.broadcast_add(mask)?)?
    };
    Ok(weights.to_dtype(dtype)?)
}

/// Applies the activation function of an MLP.
pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    Ok(match activation {
        Activation::Silu => x.silu()?,
        // candle's own GELU rounds the constants of its gradient to six digits.
        Activation::Gelu => {
            let input = widen(x)?;
            let cube = (input.sqr()? * &input)?;
            let inner = ((&input + (cube * 0.044_715)?)? * (2.0 / std::f64::consts::PI).sqrt())?;
            ((&input * 0.5)? * (inner.tanh()? + 1.0)?)?.to_dtype(x.dtype())?
        }
    })
}

/// Computes `act(gate) * up`.
pub fn gated(gate: &Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
    match activation {
        #[cfg(feature = "cuda")]
        Activation::Silu if cuda::supports(&[gate, up]) => cuda::silu_mul(gate, up),
        Activation::Silu if fused::supports(&[gate, up]) => fused::silu_mul(gate, up),
        _ => Ok((activate(gate, activation)? * up)?),
    }
}

/// Computes `(act(x·Gᵀ) * (x·Uᵀ))·Dᵀ` with optional biases.
///
/// # Shapes
/// `x [rows, C]`, `gate` and `up [F, C]`, `down [C, F]`; result `[rows, C]`.
pub fn mlp(
    x: &Tensor,
    [gate, up, down]: [&Tensor; 3],
    [gate_bias, up_bias, down_bias]: [Option<&Tensor>; 3],
    activation: Activation,
) -> Result<Tensor> {
    let gate = add_bias(&linear(x, gate)?, gate_bias)?;
    let up = add_bias(&linear(x, up)?, up_bias)?;
    let hidden = gated(&gate, &up, activation)?;
    add_bias(&linear(&hidden, down)?, down_bias)
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;

    /// Returns pseudorandom values between −1 and 1.
    fn sample_tensor(seed: usize, shape: &[usize]) -> Tensor {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|i| ((seed * 31 + i) as f64 * 12.9898).sin()).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    fn values(x: &Tensor) -> Vec<f64> {
        x.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    fn causal_mask(rows: usize) -> Tensor {
        Tensor::from_vec(
            (0..rows * rows).map(|i| if i % rows <= i / rows { 0.0 } else { f64::NEG_INFINITY }).collect::<Vec<f64>>(),
            (rows, rows),
            &Device::Cpu,
        )
        .unwrap()
    }

    /// Checks the gradient of a weighted sum of the results against central differences in f64. At a step of 1e-5 their
    /// error is about 1e-10 times the third derivative, plus 1e-11 from rounding.
    fn assert_gradients(name: &str, shapes: &[&[usize]], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
        let vars: Vec<Var> = shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| Var::from_tensor(&sample_tensor(i + 1, shape)).unwrap())
            .collect();
        let loss = |inputs_of_loss: &[Tensor]| {
            let out = f(inputs_of_loss).unwrap();
            (&out * sample_tensor(77, out.dims())).unwrap().sum_all().unwrap()
        };
        let inputs: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
        let gradients = loss(&inputs).backward().unwrap();
        for (index, var) in vars.iter().enumerate() {
            let gradient = gradients.get(var).unwrap_or_else(|| panic!("{name}: input {index} has no gradient"));
            let gradient = values(gradient);
            let shifted = values(var);
            assert!(gradient.iter().any(|g| g.abs() > 1e-3), "{name}: input {index}: zero gradient");
            for (element, exact) in gradient.iter().enumerate() {
                let [forward, back] = [1e-5, -1e-5].map(|step| {
                    let mut shifted = shifted.clone();
                    shifted[element] += step;
                    let mut inputs = inputs.clone();
                    inputs[index] = Tensor::from_vec(shifted, var.dims(), &Device::Cpu).unwrap();
                    loss(&inputs).to_scalar::<f64>().unwrap()
                });
                let difference = (forward - back) / 2e-5;
                let error = (difference - exact).abs() / exact.abs().max(1.0);
                assert!(error < 1e-7, "{name}: input {index}, element {element}: {exact} {difference}");
            }
        }
    }

    #[test]
    fn gradients_of_all_operations_match_finite_differences() {
        assert_gradients("linear", &[&[3, 4], &[5, 4]], |x| linear(&x[0], &x[1]));
        assert_gradients("bias", &[&[3, 4], &[4]], |x| add_bias(&x[0], Some(&x[1])));
        assert_gradients("dense operator", &[&[3, 4], &[4, 4]], |x| apply_matrix(&x[0], &x[1]));
        assert_gradients("diagonal operator", &[&[3, 4], &[4]], |x| apply_matrix(&x[0], &x[1]));
        assert_gradients("norm", &[&[3, 4], &[4]], |x| rms_norm(&x[0], &x[1], 1e-5));
        assert_gradients("rotary", &[&[3, 2, 4]], |x| {
            rotate(&x[0], &sample_tensor(8, &[3, 2]), &sample_tensor(9, &[3, 2]))
        });
        assert_gradients("softmax", &[&[3, 5]], |x| softmax(&x[0]));
        assert_gradients("log-softmax", &[&[3, 5]], |x| log_softmax(&x[0]));
        assert_gradients("attention", &[&[2, 3, 4, 6], &[2, 3, 2, 6], &[2, 3, 2, 6]], |x| {
            attention(&x[0], &x[1], &x[2], &causal_mask(3), Scores { scale: 0.4, cap: None })
        });
        assert_gradients("capped attention", &[&[2, 3, 4, 6], &[2, 3, 2, 6], &[2, 3, 2, 6]], |x| {
            attention(&x[0], &x[1], &x[2], &causal_mask(3), Scores { scale: 0.4, cap: Some(0.5) })
        });
        assert_gradients("part of a head", &[&[3, 2, 6]], |x| {
            rotate(&x[0], &sample_tensor(8, &[3, 2]), &sample_tensor(9, &[3, 2]))
        });
        for activation in [Activation::Silu, Activation::Gelu] {
            let shapes: [&[usize]; 7] = [&[3, 4], &[6, 4], &[6, 4], &[4, 6], &[6], &[6], &[4]];
            assert_gradients("mlp", &shapes, |x| {
                mlp(&x[0], [&x[1], &x[2], &x[3]], [Some(&x[4]), Some(&x[5]), Some(&x[6])], activation)
            });
        }
    }

    #[test]
    fn reductions_match_their_definition_in_every_dtype() {
        // Expect 1/2048 and −ln 2048 for 2048 equal entries. A bf16 accumulator would stop at 256.
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let x = Tensor::ones((2, 2048), dtype, &Device::Cpu).unwrap();
            assert!(max_error(&softmax(&x).unwrap(), 1.0 / 2048.0) < 1e-9, "{dtype:?}");
            assert!(max_error(&log_softmax(&x).unwrap(), -(2048f64.ln())) < 1e-6, "{dtype:?}");
            assert!(max_error(&rms_norm(&x, &x.get(0).unwrap(), 0.0).unwrap(), 1.0) < 1e-9, "{dtype:?}");
            let dots = product(&x, &x.t().unwrap()).unwrap();
            assert!(max_error(&dots, 2048.0) < 1e-9, "{dtype:?}");
        }
        let x = sample_tensor(3, &[4, 7]);
        let exponentials: Vec<f64> = values(&x).into_iter().map(f64::exp).collect();
        let by_definition = exponentials.chunks(7).flat_map(|row| row.iter().map(|e| e / row.iter().sum::<f64>()));
        for ((p, log), expected) in
            values(&softmax(&x).unwrap()).iter().zip(values(&log_softmax(&x).unwrap())).zip(by_definition)
        {
            assert!((p - expected).abs() < 1e-14 && (log - expected.ln()).abs() < 1e-13, "{p} {log} {expected}");
        }
    }

    fn max_error(x: &Tensor, expected: f64) -> f64 {
        values(x).iter().map(|v| (v - expected).abs()).fold(0.0, f64::max)
    }

    #[test]
    fn half_precision_mlp_keeps_dtype_and_approximates_f64() {
        let x = sample_tensor(1, &[5, 16]);
        let gate = sample_tensor(2, &[24, 16]);
        let up = sample_tensor(3, &[24, 16]);
        let down = sample_tensor(4, &[16, 24]);
        let exact = values(&mlp(&x, [&gate, &up, &down], [None; 3], Activation::Silu).unwrap());
        let size = exact.iter().map(|v| v * v).sum::<f64>().sqrt();
        // The tolerances allow for a few roundings to 11 (f16) or 8 (bf16) significant bits.
        for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
            let [x, gate, up, down] = [&x, &gate, &up, &down].map(|t| t.to_dtype(dtype).unwrap());
            let ours = mlp(&x, [&gate, &up, &down], [None; 3], Activation::Silu).unwrap();
            assert_eq!(ours.dtype(), dtype);
            let off = values(&ours).iter().zip(&exact).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt() / size;
            assert!(off < tolerance, "{dtype:?}: {off:e}");
            let normed = rms_norm(&x, &Tensor::ones(16, dtype, &Device::Cpu).unwrap(), 1e-5).unwrap();
            assert_eq!(normed.dtype(), dtype);
        }
    }
}
