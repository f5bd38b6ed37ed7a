//! What attention of some rows needs to know of them.

use candle_core::Tensor;

use super::layout::Piece;
use super::ops;
use crate::error::Result;

/// How the rows of a stream see each other, and what was before them.
pub(super) trait Seen {
    /// Cosines and sines of each row's position by one of the backbone's rotary embeddings, each `[rows, R/2]`; none where it
    /// turns nothing.
    fn turned(&self, rotary: usize) -> Option<&(Tensor, Tensor)>;

    /// # Shapes
    /// `queries [rows, H, D]`, `keys` and `values [rows, K, D]`, of the rows alone; result `[rows, H·D]`.
    fn attention(&self, of: [&Tensor; 3], window: Option<usize>, scores: ops::Scores) -> Result<Tensor>;
}

impl Seen for Piece {
    fn turned(&self, rotary: usize) -> Option<&(Tensor, Tensor)> {
        self.turned.get(rotary).and_then(Option::as_ref)
    }

    fn attention(
        &self,
        [queries, keys, values]: [&Tensor; 3],
        window: Option<usize>,
        scores: ops::Scores,
    ) -> Result<Tensor> {
        let of_groups = self.groups.iter().map(|group| {
            let [keys, values] = [keys, values].map(|x| group.keys.of(x));
            ops::attention(&group.queries.of(queries)?, &keys?, &values?, group.mask(window)?, scores)
        });
        let of_groups = of_groups.collect::<Result<Vec<_>>>()?;
        let blocks = self.order.iter().map(|&(group, place)| Ok(of_groups[group].get(place)?));
        let blocks = blocks.collect::<Result<Vec<_>>>()?;
        Ok(if blocks.len() == 1 { blocks[0].clone() } else { Tensor::cat(&blocks, 0)? })
    }
}
