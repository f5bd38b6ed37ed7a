//! A ragged batch on a device: pieces that run one after the other, and in each the blocks of queries and keys that meet
//! in attention.
//!
//! Segments and what continues them form trees. Short trees stand together in a block under a mask, so that a device has
//! few and large products; queries of a long one are cut into blocks, and see its keys up to their own. Blocks of the same
//! shape and mask are one operation.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::{Device, Tensor};

#[cfg(feature = "cuda")]
use super::cuda::{self, PieceSight};
use super::ops;
use crate::error::{Error, Result};
use crate::model::batch::Batch;
use crate::model::rope::{self, Rotaries};

/// Rows of a block: beyond that, masked products cost more than what larger ones save.
const BLOCK_ROWS: usize = 256;

/// The trees of a batch in pieces of limited size.
pub(super) struct Layout {
    pub(super) pieces: Vec<Piece>,
    /// Tokens that a piece was meant to have at most.
    pub(super) piece_tokens: usize,
}

/// Whole trees that run together.
pub(super) struct Piece {
    /// Their rows of the batch.
    pub(super) rows: Range<usize>,
    /// Cosines and sines of each row by each of the backbone's rotary embeddings, `[rows, R/2]`; none of those that no layer
    /// has, and of one that turns nothing.
    pub(super) turned: Vec<Option<(Tensor, Tensor)>>,
    blocks: Blocks,
    /// In place of blocks, where a kernel attends.
    #[cfg(feature = "cuda")]
    sight: Option<PieceSight>,
}

/// The blocks of a piece.
#[derive(Default)]
struct Blocks {
    groups: Vec<Group>,
    /// For each block, in the order of its queries, its group and its place there.
    order: Vec<(usize, usize)>,
}

/// Blocks of the same shape and mask.
pub(super) struct Group {
    pub(super) queries: Rows,
    pub(super) keys: Rows,
    /// For each window of the backbone's layers `[q, k]`, 0 or −∞.
    masks: Masks,
}

/// A mask for each window; none is all earlier tokens.
type Masks = Vec<(Option<usize>, Tensor)>;

impl Group {
    /// Returns the mask of layers with such a window.
    pub(super) fn mask(&self, window: Option<usize>) -> Result<&Tensor> {
        let found = self.masks.iter().find(|(masked_window, _)| *masked_window == window);
        found.map(|(_, mask)| mask).ok_or_else(|| Error::job("there is no mask for a layer's window"))
    }
}

/// Rows of a piece, several blocks of the same number.
pub(super) struct Rows {
    /// The first block's.
    first: Range<usize>,
    blocks: usize,
    /// All of them one after the other, where there are several blocks.
    index: Option<Tensor>,
}

/// Rows that a query attends to, counted from the first key of its block: its prefix, and its segment up to itself.
type Sight = (Range<usize>, Range<usize>);

/// The shape of a group: the number of keys, and those that each query sees.
type Shape = (usize, Vec<(usize, usize, usize, usize)>);

struct Block {
    queries: Range<usize>,
    keys: Range<usize>,
}

/// Properties of an engine that determine the layout of a batch.
#[derive(Clone, Copy)]
pub(super) struct Placing<'a> {
    /// Bounds the blocks of a group times the scores of one.
    pub(super) most_scores: usize,
    /// Windows of the backbone's layers.
    pub(super) windows: &'a [Option<usize>],
    pub(super) rotaries: &'a Rotaries,
    /// Channels of a head.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "a kernel asks, and this build has none"))]
    pub(super) head_dim: usize,
    pub(super) device: &'a Device,
}

impl Layout {
    pub(super) fn new(batch: &Batch, piece_tokens: usize, placing: Placing<'_>) -> Result<Self> {
        let trees = trees(batch);
        let seen = seen(batch);
        let mut pieces = Vec::new();
        let mut first = 0;
        while first < trees.len() {
            let start = trees[first].start;
            let fitting = trees[first..].iter().take_while(|tree| tree.end - start <= piece_tokens).count();
            let last = first + fitting.max(1);
            pieces.push(Piece::new(batch, &trees[first..last], &seen, placing)?);
            first = last;
        }
        Ok(Self { pieces, piece_tokens })
    }

    /// Creates a layout of rows without further attention.
    pub(super) fn of_rows(rows: usize, piece_tokens: usize) -> Self {
        Self {
            pieces: (0..rows)
                .step_by(piece_tokens.max(1))
                .map(|start| Piece {
                    rows: start..rows.min(start + piece_tokens),
                    turned: Vec::new(),
                    blocks: Blocks::default(),
                    #[cfg(feature = "cuda")]
                    sight: None,
                })
                .collect(),
            piece_tokens,
        }
    }
}

impl Piece {
    fn new(batch: &Batch, trees: &[Range<usize>], seen: &[Sight], placing: Placing<'_>) -> Result<Self> {
        let rows = trees[0].start..trees[trees.len() - 1].end;
        let turned = placing.rotaries.turned(|rotary| {
            let (table, of_rows) = rotary.rows(batch)?;
            rope::tensors(&table, &of_rows[rows.clone()], placing.device)
        })?;
        #[cfg(feature = "cuda")]
        if let Some(sight) = PieceSight::new(seen, rows.clone(), placing.head_dim, placing.device)? {
            return Ok(Self { rows, turned, blocks: Blocks::default(), sight: Some(sight) });
        }
        let blocks = grouped(&blocks(trees), seen, &rows, placing)?;
        Ok(Self {
            rows,
            turned,
            blocks,
            #[cfg(feature = "cuda")]
            sight: None,
        })
    }
}

/// Blocks by their shape and mask.
fn grouped(blocks: &[Block], seen: &[Sight], rows: &Range<usize>, placing: Placing<'_>) -> Result<Blocks> {
    let mut by_shape: BTreeMap<Shape, Vec<Vec<usize>>> = BTreeMap::new();
    for (index, block) in blocks.iter().enumerate() {
        let shape = (
            block.keys.len(),
            block
                .queries
                .clone()
                .map(|row| {
                    let (prefix, visible) = &seen[row];
                    let first = block.keys.start;
                    // A row without a prefix has it nowhere.
                    let prefix = if prefix.is_empty() { 0..0 } else { prefix.start - first..prefix.end - first };
                    (prefix.start, prefix.end, visible.start - first, visible.end - first)
                })
                .collect(),
        );
        let most = (placing.most_scores / (block.queries.len() * block.keys.len()).max(1)).max(1);
        let groups = by_shape.entry(shape).or_default();
        match groups.last_mut() {
            Some(group) if group.len() < most => group.push(index),
            _ => groups.push(vec![index]),
        }
    }
    let mut order = vec![(0, 0); blocks.len()];
    let mut groups = Vec::new();
    for ((keys, queries), members) in by_shape {
        let masks = placing.windows.iter().map(|&window| Ok((window, mask(&queries, keys, window, placing.device)?)));
        let masks = masks.collect::<Result<Masks>>()?;
        for members in members {
            members.iter().enumerate().for_each(|(index, &block)| order[block] = (groups.len(), index));
            let of_blocks = |range: fn(&Block) -> &Range<usize>| {
                let ranges = members.iter().map(|&block| range(&blocks[block]));
                Rows::new(
                    ranges.map(|range| range.start - rows.start..range.end - rows.start).collect(),
                    placing.device,
                )
            };
            let queries = of_blocks(|block| &block.queries)?;
            let keys = of_blocks(|block| &block.keys)?;
            groups.push(Group { queries, keys, masks: masks.clone() });
        }
    }
    Ok(Blocks { groups, order })
}

impl Rows {
    fn new(ranges: Vec<Range<usize>>, device: &Device) -> Result<Self> {
        let first = ranges[0].clone();
        let blocks = ranges.len();
        let all = ranges.into_iter().flatten().map(|row| row as u32).collect::<Vec<_>>();
        let length = all.len();
        let index = (blocks > 1).then(|| Tensor::from_vec(all, length, device)).transpose()?;
        Ok(Self { first, blocks, index })
    }

    /// # Shapes
    /// `x [rows of the piece, heads, D]`; result `[blocks, rows of a block, heads, D]`.
    pub(super) fn of(&self, x: &Tensor) -> Result<Tensor> {
        let (_, heads, head_dim) = x.dims3()?;
        let rows = match &self.index {
            Some(index) => x.index_select(index, 0)?,
            None => x.narrow(0, self.first.start, self.first.len())?,
        };
        Ok(rows.reshape((self.blocks, self.first.len(), heads, head_dim))?)
    }
}

/// Returns the rows of each root segment with all its continuations.
fn trees(batch: &Batch) -> Vec<Range<usize>> {
    let mut trees: Vec<Range<usize>> = Vec::new();
    for (segment, parent) in batch.segments.iter().zip(&batch.parents) {
        match (parent, trees.last_mut()) {
            (Some(_), Some(tree)) => tree.end = segment.end,
            _ => trees.push(segment.clone()),
        }
    }
    trees
}

/// Returns the rows that each row of the batch attends to.
fn seen(batch: &Batch) -> Vec<Sight> {
    (0..batch.segments.len())
        .flat_map(|index| {
            let prefix = batch.prefix(index);
            let segment = batch.segments[index].clone();
            segment.clone().map(move |row| (prefix.clone(), segment.start..row + 1))
        })
        .collect()
}

fn blocks(trees: &[Range<usize>]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    // Whether another tree may still join the last block.
    let mut open = false;
    for tree in trees {
        if tree.len() > BLOCK_ROWS {
            let starts = tree.clone().step_by(BLOCK_ROWS);
            blocks.extend(starts.map(|start| {
                let end = (start + BLOCK_ROWS).min(tree.end);
                Block { queries: start..end, keys: tree.start..end }
            }));
            open = false;
            continue;
        }
        match blocks.last_mut() {
            Some(block) if open && tree.end - block.keys.start <= BLOCK_ROWS => {
                (block.queries.end, block.keys.end) = (tree.end, tree.end);
            }
            _ => blocks.push(Block { queries: tree.clone(), keys: tree.clone() }),
        }
        open = true;
    }
    blocks
}

fn mask(
    queries: &[(usize, usize, usize, usize)],
    keys: usize,
    window: Option<usize>,
    device: &Device,
) -> Result<Tensor> {
    let mut values = vec![f32::NEG_INFINITY; queries.len() * keys];
    for (row, &(prefix, prefix_end, own_start, own_end)) in values.chunks_exact_mut(keys.max(1)).zip(queries) {
        // The window covers the own segment first, then the end of the prefix.
        let window = window.unwrap_or(usize::MAX);
        let left = window.saturating_sub(own_end - own_start);
        row[prefix.max(prefix_end.saturating_sub(left))..prefix_end].fill(0.0);
        row[own_start.max(own_end.saturating_sub(window))..own_end].fill(0.0);
    }
    Ok(Tensor::from_vec(values, (queries.len(), keys), device)?)
}

/// Attention between the rows of a stream and cached rows.
pub(super) trait Seen {
    /// Cosines and sines of each row's position by one of the backbone's rotary embeddings, each `[rows, R/2]`; none where it
    /// turns nothing.
    fn turned(&self, rotary: usize) -> Option<&(Tensor, Tensor)>;

    /// # Shapes
    /// `queries [rows, H, D]`, `keys` and `values [rows, K, D]`, of the rows alone; result `[rows, H·D]`.
    fn attention(&self, inputs: [&Tensor; 3], window: Option<usize>, scores: ops::Scores) -> Result<Tensor>;
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
        #[cfg(feature = "cuda")]
        if let Some(sight) = &self.sight {
            return cuda::prefill([queries, keys, values], sight, window, scores);
        }
        let of_groups = self.blocks.groups.iter().map(|group| {
            let [keys, values] = [keys, values].map(|x| group.keys.of(x));
            ops::attention(&group.queries.of(queries)?, &keys?, &values?, group.mask(window)?, scores)
        });
        let of_groups = of_groups.collect::<Result<Vec<_>>>()?;
        let blocks = self.blocks.order.iter().map(|&(group, index)| Ok(of_groups[group].get(index)?));
        let blocks = blocks.collect::<Result<Vec<_>>>()?;
        Ok(if blocks.len() == 1 { blocks[0].clone() } else { Tensor::cat(&blocks, 0)? })
    }
}

#[cfg(test)]
mod tests;
