//! Predictions of the dense backbone, which is the teacher.

use candle_core::Tensor;
use rayon::prelude::*;

use crate::error::{Error, Result};

/// Most likely tokens at each position, in order of decreasing probability, with their logits.
#[derive(Debug, Clone, PartialEq)]
pub struct TopTokens {
    /// Number of tokens kept per position.
    pub kept: usize,
    /// Token ids `[positions, kept]`.
    pub tokens: Vec<u32>,
    /// Logits `[positions, kept]`.
    pub logits: Vec<f32>,
}

/// Returns the `kept` most likely tokens of each row. Ties go to the lower id.
///
/// # Shapes
/// `logits [positions, vocab]`.
///
/// # Errors
/// Fails if a logit is NaN.
pub fn top_tokens(logits: &Tensor, kept: usize) -> Result<TopTokens> {
    let (_, vocab) = logits.dims2()?;
    let kept = kept.min(vocab);
    let rows: Vec<f32> = logits.flatten_all()?.to_vec1()?;
    if rows.iter().any(|logit| logit.is_nan()) {
        return Err(Error::job("a logit of the teacher is NaN")
            .hint("check the weights, or use --dtype bf16 or f32, because f16 may overflow"));
    }
    let tokens: Vec<u32> = rows.par_chunks(vocab).flat_map_iter(|row| top_of_row(row, kept)).collect();
    let positions = tokens.chunks(kept.max(1)).zip(rows.chunks(vocab.max(1)));
    let logits = positions.flat_map(|(tokens, row)| tokens.iter().map(|&token| row[token as usize])).collect();
    Ok(TopTokens { kept, tokens, logits })
}

/// Returns the indices of the `kept` largest values, sorted by descending value, then by ascending index.
fn top_of_row(row: &[f32], kept: usize) -> Vec<u32> {
    let by_logit = |&a: &u32, &b: &u32| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b));
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    if kept < row.len() {
        order.select_nth_unstable_by(kept, by_logit);
        order.truncate(kept);
    }
    order.sort_unstable_by(by_logit);
    order
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn top_tokens_are_sorted_by_probability_then_id() {
        let logits = Tensor::new(&[[1.0f32, 5.0, 5.0, -2.0], [0.5, 0.25, 2.0, 1.0]], &Device::Cpu).unwrap();
        let top = top_tokens(&logits, 3).unwrap();
        assert_eq!(top.tokens, [1, 2, 0, 2, 3, 0]);
        assert_eq!(top.logits, [5.0, 5.0, 1.0, 2.0, 1.0, 0.5]);
        assert_eq!(top_tokens(&logits, 100).unwrap().kept, 4, "`kept` is limited by the vocabulary");
        assert!(top_tokens(&(logits * f64::NAN).unwrap(), 2).is_err());
    }
}
