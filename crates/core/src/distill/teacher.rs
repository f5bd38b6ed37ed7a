//! What the teacher predicts.

use candle_core::Tensor;
use rayon::prelude::*;

use crate::error::{Error, Result};

/// The likeliest tokens of each position, likeliest first, with their logits.
#[derive(Debug, Clone, PartialEq)]
pub struct TopTokens {
    /// Tokens kept of a position.
    pub kept: usize,
    /// `[positions, kept]`
    pub tokens: Vec<u32>,
    /// `[positions, kept]`
    pub logits: Vec<f32>,
}

/// The `kept` likeliest tokens of each row. Of equal logits the lower token comes first.
///
/// # Shapes
/// `logits [positions, vocab]`.
///
/// # Errors
/// A logit that is no number.
pub fn top_tokens(logits: &Tensor, kept: usize) -> Result<TopTokens> {
    let (_, vocab) = logits.dims2()?;
    let kept = kept.min(vocab);
    let rows: Vec<f32> = logits.flatten_all()?.to_vec1()?;
    if rows.iter().any(|logit| logit.is_nan()) {
        return Err(Error::job("a logit of the teacher is not a number")
            .hint("the backbone overflows on this text: check its weights and float type"));
    }
    let of_row = |row: &[f32]| {
        let mut order: Vec<u32> = (0..vocab as u32).collect();
        let by_logit = |&a: &u32, &b: &u32| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b));
        if kept < vocab {
            order.select_nth_unstable_by(kept, by_logit);
            order.truncate(kept);
        }
        order.sort_unstable_by(by_logit);
        order
    };
    let tokens: Vec<u32> = rows.par_chunks(vocab).flat_map_iter(of_row).collect();
    let of_token = |(at, &token): (usize, &u32)| rows[at / kept * vocab + token as usize];
    let logits = tokens.iter().enumerate().map(of_token).collect();
    Ok(TopTokens { kept, tokens, logits })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn the_likeliest_come_first_and_of_equal_ones_the_lower() {
        let logits = Tensor::new(&[[1.0f32, 5.0, 5.0, -2.0], [0.5, 0.25, 2.0, 1.0]], &Device::Cpu).unwrap();
        let top = top_tokens(&logits, 3).unwrap();
        assert_eq!(top.tokens, [1, 2, 0, 2, 3, 0]);
        assert_eq!(top.logits, [5.0, 5.0, 1.0, 2.0, 1.0, 0.5]);
        assert_eq!(top_tokens(&logits, 100).unwrap().kept, 4, "no more than there are");
        assert!(top_tokens(&(logits * f64::NAN).unwrap(), 2).is_err());
    }
}
