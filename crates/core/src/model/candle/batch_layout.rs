//! Layout of a ragged batch on a device. A batch consists of pieces that run independently, and each piece is divided
//! into attention blocks.
//!
//! A root segment and its continuations form a tree. Short trees share a masked block, so that the device runs a few
//! large matrix products. The queries of a long tree are split into blocks, each of which attends to the keys up to its
//! last row. Blocks with equal shapes and masks run as one operation.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::{Device, Tensor};

#[cfg(feature = "cuda")]
use super::cuda::{self, AttendedRanges};
use super::ops;
use crate::error::{Error, Result};
use crate::model::batch::Batch;
use crate::model::rope::{self, Rotaries};

/// Maximum number of rows in a block. In larger blocks, computing the masked scores costs more than the larger products
/// save.
const BLOCK_ROWS: usize = 256;

/// Trees of a batch, divided into pieces of limited size.
pub(super) struct Layout {
    pub(super) pieces: Vec<Piece>,
    /// Maximum number of tokens per piece. A piece with a single tree may exceed the maximum.
    pub(super) piece_tokens: usize,
}

/// Complete trees (root segments with their continuations) that run together.
pub(super) struct Piece {
    /// Rows of the batch in this piece.
    pub(super) rows: Range<usize>,
    /// Cosines and sines `[rows, R/2]` for each rotary embedding of the backbone. `None` if no layer uses the embedding
    /// or it rotates no channels.
    pub(super) cos_sin: Vec<Option<(Tensor, Tensor)>>,
    blocks: Blocks,
    /// Input of the CUDA prefill kernel. If it is set, `blocks` is empty.
    #[cfg(feature = "cuda")]
    attended: Option<AttendedRanges>,
}

/// Attention blocks of a piece.
#[derive(Default)]
struct Blocks {
    groups: Vec<Group>,
    /// For each block, in query order: its group, and its index in the group.
    order: Vec<(usize, usize)>,
}

/// Blocks with equal shapes and masks.
pub(super) struct Group {
    pub(super) queries: Rows,
    pub(super) keys: Rows,
    /// Mask `[q, k]` of 0 and −∞ for each distinct window of the layers.
    masks: Masks,
}

/// Masks by window. The key `None` means full causal attention.
type Masks = Vec<(Option<usize>, Tensor)>;

impl Group {
    /// Returns the mask for layers with the given window.
    pub(super) fn mask(&self, window: Option<usize>) -> Result<&Tensor> {
        let found = self.masks.iter().find(|(masked_window, _)| *masked_window == window);
        found.map(|(_, mask)| mask).ok_or_else(|| Error::job("no attention mask for a layer's window"))
    }
}

/// Row ranges of equal length in a piece, one per block.
pub(super) struct Rows {
    /// Range of the first block.
    first: Range<usize>,
    blocks: usize,
    /// Row indices of all blocks, concatenated. `None` for a single block.
    index: Option<Tensor>,
}

/// Batch rows that a query attends to: its prefix, and its segment up to the query itself.
type AttendedRows = (Range<usize>, Range<usize>);

/// Number of keys, and for each query the start and end of its prefix, and the start and end of the visible rows in its
/// segment, relative to the first key. Blocks with equal shapes form groups.
type GroupShape = (usize, Vec<(usize, usize, usize, usize)>);

struct Block {
    queries: Range<usize>,
    keys: Range<usize>,
}

/// Properties of an engine that determine the layout of a batch.
#[derive(Clone, Copy)]
pub(super) struct LayoutParams<'a> {
    /// Maximum number of scores in a group.
    pub(super) max_scores: usize,
    /// Distinct sliding windows of the layers.
    pub(super) windows: &'a [Option<usize>],
    pub(super) rotaries: &'a Rotaries,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "used only by CUDA kernels"))]
    pub(super) head_dim: usize,
    pub(super) device: &'a Device,
}

impl Layout {
    pub(super) fn new(batch: &Batch, piece_tokens: usize, params: LayoutParams<'_>) -> Result<Self> {
        let trees = find_trees(batch);
        let attended_rows = attended_rows(batch);
        let mut pieces = Vec::new();
        let mut first = 0;
        while first < trees.len() {
            let start = trees[first].start;
            let fitting = trees[first..].iter().take_while(|tree| tree.end - start <= piece_tokens).count();
            let last = first + fitting.max(1);
            pieces.push(Piece::new(batch, &trees[first..last], &attended_rows, params)?);
            first = last;
        }
        Ok(Self { pieces, piece_tokens })
    }

    /// Creates a layout for rows that need no attention.
    pub(super) fn from_rows(rows: usize, piece_tokens: usize) -> Self {
        Self {
            pieces: (0..rows)
                .step_by(piece_tokens.max(1))
                .map(|start| Piece {
                    rows: start..rows.min(start + piece_tokens),
                    cos_sin: Vec::new(),
                    blocks: Blocks::default(),
                    #[cfg(feature = "cuda")]
                    attended: None,
                })
                .collect(),
            piece_tokens,
        }
    }
}

impl Piece {
    fn new(
        batch: &Batch,
        trees: &[Range<usize>],
        attended_rows: &[AttendedRows],
        params: LayoutParams<'_>,
    ) -> Result<Self> {
        let rows = trees[0].start..trees[trees.len() - 1].end;
        let cos_sin = params.rotaries.map_used(|rotary| {
            let (table, table_rows) = rotary.batch_table(batch)?;
            rope::cos_sin_tensors(&table, &table_rows[rows.clone()], params.device)
        })?;
        #[cfg(feature = "cuda")]
        if let Some(attended) = AttendedRanges::new(attended_rows, rows.clone(), params.head_dim, params.device)? {
            return Ok(Self { rows, cos_sin, blocks: Blocks::default(), attended: Some(attended) });
        }
        let blocks = group_blocks(&divide_into_blocks(trees), attended_rows, &rows, params)?;
        Ok(Self {
            rows,
            cos_sin,
            blocks,
            #[cfg(feature = "cuda")]
            attended: None,
        })
    }
}

/// Groups blocks by shape and mask.
fn group_blocks(
    blocks: &[Block],
    attended_rows: &[AttendedRows],
    rows: &Range<usize>,
    params: LayoutParams<'_>,
) -> Result<Blocks> {
    let mut by_shape: BTreeMap<GroupShape, Vec<Vec<usize>>> = BTreeMap::new();
    for (index, block) in blocks.iter().enumerate() {
        let shape = (
            block.keys.len(),
            block
                .queries
                .clone()
                .map(|row| {
                    let (prefix, visible) = &attended_rows[row];
                    let first = block.keys.start;
                    // Normalize empty prefixes so that they compare equal.
                    let prefix = if prefix.is_empty() { 0..0 } else { prefix.start - first..prefix.end - first };
                    (prefix.start, prefix.end, visible.start - first, visible.end - first)
                })
                .collect(),
        );
        let max_blocks = (params.max_scores / (block.queries.len() * block.keys.len()).max(1)).max(1);
        let groups = by_shape.entry(shape).or_default();
        match groups.last_mut() {
            Some(group) if group.len() < max_blocks => group.push(index),
            _ => groups.push(vec![index]),
        }
    }
    let mut order = vec![(0, 0); blocks.len()];
    let mut groups = Vec::new();
    for ((keys, queries), members) in by_shape {
        let masks =
            params.windows.iter().map(|&window| Ok((window, build_mask(&queries, keys, window, params.device)?)));
        let masks = masks.collect::<Result<Masks>>()?;
        for members in members {
            members.iter().enumerate().for_each(|(index, &block)| order[block] = (groups.len(), index));
            let members = members.iter().map(|&block| &blocks[block]);
            let queries = members.clone().map(|block| shift_range(&block.queries, rows.start)).collect();
            let keys = members.map(|block| shift_range(&block.keys, rows.start)).collect();
            groups.push(Group {
                queries: Rows::new(queries, params.device)?,
                keys: Rows::new(keys, params.device)?,
                masks: masks.clone(),
            });
        }
    }
    Ok(Blocks { groups, order })
}

fn shift_range(range: &Range<usize>, start: usize) -> Range<usize> {
    range.start - start..range.end - start
}

impl Rows {
    fn new(ranges: Vec<Range<usize>>, device: &Device) -> Result<Self> {
        let first = ranges[0].clone();
        let blocks = ranges.len();
        let indices = ranges.into_iter().flatten().map(|row| row as u32).collect::<Vec<_>>();
        let length = indices.len();
        let index = (blocks > 1).then(|| Tensor::from_vec(indices, length, device)).transpose()?;
        Ok(Self { first, blocks, index })
    }

    /// Gathers the rows of the blocks.
    ///
    /// # Shapes
    /// `x [rows of the piece, heads, D]`; result `[blocks, rows of a block, heads, D]`.
    pub(super) fn gather(&self, x: &Tensor) -> Result<Tensor> {
        let (_, heads, head_dim) = x.dims3()?;
        let rows = match &self.index {
            Some(index) => x.index_select(index, 0)?,
            None => x.narrow(0, self.first.start, self.first.len())?,
        };
        Ok(rows.reshape((self.blocks, self.first.len(), heads, head_dim))?)
    }
}

/// Returns the row range of each tree.
fn find_trees(batch: &Batch) -> Vec<Range<usize>> {
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
fn attended_rows(batch: &Batch) -> Vec<AttendedRows> {
    (0..batch.segments.len())
        .flat_map(|index| {
            let prefix = batch.prefix(index);
            let segment = batch.segments[index].clone();
            segment.clone().map(move |row| (prefix.clone(), segment.start..row + 1))
        })
        .collect()
}

fn divide_into_blocks(trees: &[Range<usize>]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    // Whether more trees may be added to the last block.
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

fn build_mask(
    queries: &[(usize, usize, usize, usize)],
    keys: usize,
    window: Option<usize>,
    device: &Device,
) -> Result<Tensor> {
    let mut values = vec![f32::NEG_INFINITY; queries.len() * keys];
    for (row, &(prefix_start, prefix_end, visible_start, visible_end)) in
        values.chunks_exact_mut(keys.max(1)).zip(queries)
    {
        // The window first covers the query's own segment. The remaining width covers the end of the prefix.
        let window = window.unwrap_or(usize::MAX);
        let left = window.saturating_sub(visible_end - visible_start);
        row[prefix_start.max(prefix_end.saturating_sub(left))..prefix_end].fill(0.0);
        row[visible_start.max(visible_end.saturating_sub(window))..visible_end].fill(0.0);
    }
    Ok(Tensor::from_vec(values, (queries.len(), keys), device)?)
}

/// Rotary tables and attended keys for the rows of a residual stream.
pub(super) trait AttentionContext {
    /// Returns the cosines and sines of each row's position for a rotary embedding, each `[rows, R/2]`, or `None` if
    /// the embedding rotates no channels.
    fn cos_sin(&self, rotary: usize) -> Option<&(Tensor, Tensor)>;

    /// Computes the attention of the given rows. During decoding, they also attend to cached rows.
    ///
    /// # Shapes
    /// `queries [rows, H, D]`, `keys` and `values [rows, K, D]`, without cached rows; result `[rows, H·D]`.
    fn attention(&self, inputs: [&Tensor; 3], window: Option<usize>, scores: ops::Scores) -> Result<Tensor>;
}

impl AttentionContext for Piece {
    fn cos_sin(&self, rotary: usize) -> Option<&(Tensor, Tensor)> {
        self.cos_sin.get(rotary).and_then(Option::as_ref)
    }

    fn attention(
        &self,
        [queries, keys, values]: [&Tensor; 3],
        window: Option<usize>,
        scores: ops::Scores,
    ) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if let Some(attended) = &self.attended {
            return cuda::prefill([queries, keys, values], attended, window, scores);
        }
        let group_outputs = self.blocks.groups.iter().map(|group| {
            let [keys, values] = [keys, values].map(|x| group.keys.gather(x));
            ops::attention(&group.queries.gather(queries)?, &keys?, &values?, group.mask(window)?, scores)
        });
        let group_outputs = group_outputs.collect::<Result<Vec<_>>>()?;
        let blocks = self.blocks.order.iter().map(|&(group, index)| Ok(group_outputs[group].get(index)?));
        let blocks = blocks.collect::<Result<Vec<_>>>()?;
        Ok(if blocks.len() == 1 { blocks[0].clone() } else { Tensor::cat(&blocks, 0)? })
    }
}

#[cfg(test)]
mod tests;
