//! Final norm, output projection and log-softmax on a device, restricted to the scored rows.

use candle_core::{D, DType, Tensor};
use ghostlab_kernels::forward::{Divergence, divergences_of_logits, log_denominators};

#[cfg(feature = "cuda")]
use super::cuda;
use super::ops;
use crate::error::Result;
use crate::model::batch::{Prediction, ScoredRow};
use crate::model::decoding;

/// Maximum number of elements of the output projection that are converted to f32 at a time.
const TILE_ELEMENTS: usize = 1 << 24;

/// Final norm `[C]` before the output projection, and soft cap of the logits after it.
#[derive(Clone, Copy)]
pub(super) struct HeadParams<'a> {
    pub(super) norm: &'a Tensor,
    pub(super) eps: f64,
    pub(super) cap: Option<f32>,
}

/// Computes the log-probability of each target with an f32 log-softmax over the vocabulary, and determines whether the
/// target is the most likely token. A row with several targets is projected once.
///
/// # Shapes
/// `x [tokens, C]`, `weight [vocab, C]`; result: one prediction per target. Targets must be sorted by row. At most
/// `max_rows` rows of logits are in memory at a time.
pub(super) fn predictions(
    x: &Tensor,
    head_params: HeadParams<'_>,
    weight: &Tensor,
    targets: &[ScoredRow],
    max_rows: usize,
) -> Result<Vec<Prediction>> {
    let rows: Vec<&[ScoredRow]> = targets.chunk_by(|a, b| a.row == b.row).collect();
    let mut predictions = Vec::with_capacity(targets.len());
    for rows in rows.chunks(max_rows.max(1)) {
        let (indices, renumbered) = renumber_rows(rows);
        let logits = logits(x, head_params, weight, &indices)?; // [rows, vocab]
        predictions.extend(score_targets(&logits, &renumbered)?);
    }
    Ok(predictions)
}

/// Returns the row of each group of targets, and the targets with the index of their group as the row.
fn renumber_rows(rows: &[&[ScoredRow]]) -> (Vec<usize>, Vec<ScoredRow>) {
    let indices = rows.iter().map(|targets| targets[0].row).collect();
    let renumbered = rows
        .iter()
        .enumerate()
        .flat_map(|(row, targets)| targets.iter().map(move |target| ScoredRow { row, token: target.token }));
    (indices, renumbered.collect())
}

/// Computes the divergence between two streams' predictions at each target. The reduction over the vocabulary runs in
/// f64 in host memory, on at most `max_rows` rows at a time.
///
/// # Shapes
/// Like [`predictions`], for both streams.
pub(super) fn divergences(
    [reference, variant]: [&Tensor; 2],
    head_params: HeadParams<'_>,
    weight: &Tensor,
    targets: &[ScoredRow],
    max_rows: usize,
) -> Result<Vec<Divergence>> {
    let rows: Vec<&[ScoredRow]> = targets.chunk_by(|a, b| a.row == b.row).collect();
    let vocab = weight.dim(0)?;
    let mut divergences = Vec::with_capacity(targets.len());
    for rows in rows.chunks(max_rows.max(1)) {
        let (indices, renumbered) = renumber_rows(rows);
        let p: Vec<f32> = logits(reference, head_params, weight, &indices)?.flatten_all()?.to_vec1()?;
        let tensor = logits(variant, head_params, weight, &indices)?;
        let q: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
        let mut chunk_divergences = divergences_of_logits([&p, &q], vocab, &renumbered);
        if !tensor.device().is_cpu() {
            // Recompute the losses on the device, so that they are bit-identical to those of a run without divergences.
            let predictions = score_targets(&tensor, &renumbered)?;
            chunk_divergences.iter_mut().zip(predictions).for_each(|(divergence, ours)| divergence.prediction = ours);
        }
        divergences.extend(chunk_divergences);
    }
    Ok(divergences)
}

/// Computes the logits of the given rows in f32. They are never rounded to half precision, because the softmax would
/// amplify the rounding errors.
///
/// # Shapes
/// Like [`predictions`]; result `[rows, vocab]`.
pub(super) fn logits(x: &Tensor, head_params: HeadParams<'_>, weight: &Tensor, rows: &[usize]) -> Result<Tensor> {
    let selects_all_rows = rows.len() == x.dim(0)? && rows.iter().enumerate().all(|(index, &row)| index == row);
    let x = if selects_all_rows {
        x.clone()
    } else {
        x.index_select(&(Tensor::new(rows.iter().map(|&row| row as u32).collect::<Vec<u32>>(), x.device()))?, 0)?
    };
    let x = ops::rms_norm(&x, head_params.norm, head_params.eps)?;
    #[cfg(feature = "cuda")]
    if weight.dtype() != DType::F32 && cuda::supports(&[&x, weight]) {
        return ops::apply_cap(cuda::linear_f32_out(&x, weight)?, head_params.cap);
    }
    let x = ops::widen(&x)?;
    if weight.dtype() == DType::F32 {
        return ops::apply_cap(ops::linear(&x, weight)?, head_params.cap);
    }
    // Convert the output projection in tiles, because a complete f32 copy would need twice as much memory.
    let (vocab, channels) = weight.dims2()?;
    let tile = (TILE_ELEMENTS / channels).max(1);
    let tiles = (0..vocab)
        .step_by(tile)
        .map(|first| ops::linear(&x, &ops::widen(&weight.narrow(0, first, tile.min(vocab - first))?)?))
        .collect::<Result<Vec<_>>>()?;
    ops::apply_cap(if tiles.len() == 1 { tiles[0].clone() } else { Tensor::cat(&tiles, 1)? }, head_params.cap)
}

/// Computes [`decoding::argmax`] of each row of `logits [rows, vocab]`.
pub(super) fn argmax(logits: &Tensor) -> Result<Vec<Option<u32>>> {
    #[cfg(feature = "cuda")]
    if cuda::supports(&[logits]) {
        let sums_and_argmax: Vec<Vec<f32>> = cuda::head_rows(logits)?.to_vec2()?;
        // The sum is not finite if the row contains NaN or +∞, or only −∞.
        return Ok(sums_and_argmax[0]
            .iter()
            .zip(&sums_and_argmax[1])
            .map(|(sum, token)| sum.is_finite().then_some(*token as u32))
            .collect());
    }
    Ok(logits.to_vec2()?.iter().map(|row| decoding::argmax(row)).collect())
}

/// Computes the log-probability of each target from `logits [rows, vocab]`, and determines whether the target is the
/// most likely token. Ties, which are frequent in half precision, go to the lowest token id.
fn score_targets(logits: &Tensor, targets: &[ScoredRow]) -> Result<Vec<Prediction>> {
    let device = logits.device();
    let vocab = logits.dim(1)?;
    let flat_logits = logits.flatten_all()?;
    let element_indices = targets.iter().map(|target| target.row * vocab + target.token as usize);
    if device.is_cpu() {
        let values = flat_logits.to_vec1::<f32>()?;
        let (log_denominators, argmax_tokens) = log_denominators(&values, vocab);
        let scored = targets.iter().zip(element_indices).map(|(target, index)| Prediction {
            log_probability: values[index] - log_denominators[target.row],
            is_greedy: argmax_tokens[target.row] == Some(target.token as usize),
        });
        return Ok(scored.collect());
    }
    let (log_denominators, argmax_tokens) = row_statistics(logits)?;
    let element_indices: Vec<u32> = element_indices.map(|index| index as u32).collect();
    let rows: Vec<u32> = targets.iter().map(|target| target.row as u32).collect();
    let target_logits = flat_logits.index_select(&Tensor::new(element_indices, device)?, 0)?;
    let log_probabilities: Vec<f32> =
        (target_logits - log_denominators.index_select(&Tensor::new(rows, device)?, 0)?)?.to_vec1()?;
    let scored = targets.iter().zip(log_probabilities).map(|(target, log_probability)| Prediction {
        log_probability,
        is_greedy: argmax_tokens[target.row] == target.token as f32,
    });
    Ok(scored.collect())
}

/// Computes the log of the softmax denominator, `[rows]`, and the most likely token of each row of
/// `logits [rows, vocab]` on a device. Token ids are below 2^24, so f32 represents them exactly.
fn row_statistics(logits: &Tensor) -> Result<(Tensor, Vec<f32>)> {
    #[cfg(feature = "cuda")]
    if cuda::supports(&[logits]) {
        let sums_and_argmax = cuda::head_rows(logits)?;
        return Ok((sums_and_argmax.get(0)?, sums_and_argmax.get(1)?.to_vec1()?));
    }
    let vocab = logits.dim(1)?;
    let greatest = logits.max_keepdim(D::Minus1)?; // [rows, 1]
    let sums = logits.broadcast_sub(&greatest)?.exp()?.sum_keepdim(D::Minus1)?;
    let log_denominators = (sums.log()? + &greatest)?.flatten_all()?; // [rows]
    let tokens =
        Tensor::arange(0f32, vocab as f32, logits.device())?.reshape((1, vocab))?.broadcast_as(logits.shape())?;
    let none = tokens.ones_like()?.affine(0.0, f64::from(f32::MAX))?;
    let argmax_tokens = logits.broadcast_eq(&greatest)?.where_cond(&tokens, &none)?.min(D::Minus1)?;
    Ok((log_denominators, argmax_tokens.to_vec1()?))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn half_precision_logits_stay_f32_until_the_softmax() {
        // Logits are near 100, where adjacent values differ by 0.5 in bf16 and by 1/16 in f16. The vocabulary has two
        // tiles.
        let channels = 64;
        let vocab = TILE_ELEMENTS / 64 + 3;
        let x: Vec<f32> = (0..channels).map(|i| 1.0 + (i % 7) as f32 / 8.0).collect();
        let weight: Vec<f32> = (0..vocab * channels).map(|i| 1.5 + (i * 31 % 97) as f32 / 1024.0).collect();
        for dtype in [DType::BF16, DType::F16] {
            let x = half_tensor(&x, (1, channels), dtype);
            let weight = half_tensor(&weight, (vocab, channels), dtype);
            let norm = Tensor::ones(channels, DType::F32, &Device::Cpu).unwrap();
            let ours = logits(&x, HeadParams { norm: &norm, eps: 0.0, cap: None }, &weight, &[0])
                .unwrap()
                .flatten_all()
                .unwrap()
                .to_vec1::<f32>()
                .unwrap();
            assert_eq!(ours.len(), vocab);
            let normed = to_f64(&ops::rms_norm(&x, &norm, 0.0).unwrap());
            let weight = to_f64(&weight);
            for token in [0, 1, 77, vocab - 4, vocab - 1] {
                let row = &weight[token * channels..(token + 1) * channels];
                let exact: f64 = row.iter().zip(&normed).map(|(w, x)| w * x).sum();
                assert!((f64::from(ours[token]) - exact).abs() < 1e-4, "{dtype:?}: {} {exact}", ours[token]);
            }
        }
    }

    fn half_tensor(values: &[f32], shape: (usize, usize), dtype: DType) -> Tensor {
        Tensor::from_slice(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
    }

    fn to_f64(tensor: &Tensor) -> Vec<f64> {
        tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap()
    }

    #[test]
    fn ties_go_to_the_lowest_token_id_for_any_row_limit() {
        let mut weight = vec![0.0f32; 64]; // [vocab, 1]
        for token in [7, 9, 40] {
            weight[token] = 1.0;
        }
        let weight = Tensor::from_vec(weight, (64, 1), &Device::Cpu).unwrap();
        let x = Tensor::new(&[[2.0f32], [0.5], [3.0]], &Device::Cpu).unwrap();
        let norm = Tensor::ones(1, DType::F32, &Device::Cpu).unwrap();
        let targets: Vec<ScoredRow> =
            [(0, 7), (0, 9), (0, 0), (2, 7)].map(|(row, token)| ScoredRow { row, token }).into();
        // The norm maps each row to 1, so three logits are 1 and the other 61 are 0.
        let denominator = (3.0 * 1f64.exp() + 61.0).ln();
        for max_rows in [1, 2, 100] {
            let ours =
                predictions(&x, HeadParams { norm: &norm, eps: 0.0, cap: None }, &weight, &targets, max_rows).unwrap();
            for (ours, (logit, is_greedy)) in ours.iter().zip([(1.0, true), (1.0, false), (0.0, false), (1.0, true)]) {
                assert!((f64::from(ours.log_probability) - (logit - denominator)).abs() < 1e-6, "{ours:?}");
                assert_eq!(ours.is_greedy, is_greedy);
            }
        }
    }
}
