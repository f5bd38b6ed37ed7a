//! Attention of the new tokens of all sequences over a KV cache in blocks.

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, LaunchConfig, PushKernelArg};
use candle_core::{DType, Device, Error as Failed, Storage, Tensor};

use super::kernel::kernel;
use super::{CudaResult, DeviceTensor, Number, THREADS, TernaryOp, apply_ternary};
use crate::error::{Error, Result};
use crate::model::candle::fused::Scores;
use crate::model::decoding::{BlockId, RunPlacement, not_cached_error};

/// Head widths for which kernels are compiled. The kernel names contain them.
pub(super) const WIDTHS: [usize; 4] = [32, 64, 128, 256];

/// Maximum number of channels that a thread reads in one vectorized load.
const LOAD_CHANNELS: usize = 8;

/// Returns the index of the kernel width for heads of width `head_dim`, or `None` if no kernel supports it.
pub(super) fn kernel_width_index(head_dim: usize) -> Option<usize> {
    WIDTHS.iter().position(|width| head_dim <= *width).filter(|_| head_dim.is_multiple_of(LOAD_CHANNELS))
}

/// Maximum number of query heads per thread block.
const MAX_HEADS_PER_BLOCK: usize = 8;
/// Minimum number of thread blocks that keeps a GPU busy.
const MIN_BLOCKS: usize = 512;

/// Device address of one KV cache block's keys and values.
pub(in crate::model::candle) struct BlockAddress {
    /// Trie nodes of the attention steps whose keys and values the block stores.
    pub(in crate::model::candle) nodes: Arc<[usize]>,
    /// Device address of the first step's keys.
    pub(in crate::model::candle) first: u64,
    /// Size in bytes of one step's keys. The step's values follow and have the same size. The keys of the next step
    /// come after them.
    pub(in crate::model::candle) value_offset: u64,
}

/// Cache blocks that the new rows attend to. They do not depend on the step.
pub(in crate::model::candle) struct VisibleBlocks {
    /// For each row: first block, number of blocks, position, and index in the last block. Then, for each block, the
    /// position where its tokens end.
    table: CudaSlice<u32>,
    rows: usize,
    /// Blocks in the order of the table.
    blocks: Vec<BlockId>,
    block_addresses: Vec<BlockAddress>,
}

impl VisibleBlocks {
    /// Creates the table for new rows. Returns `None` if the device is not a CUDA device or the head width is
    /// unsupported.
    pub(in crate::model::candle) fn new(
        runs: &[RunPlacement<'_>],
        head_dim: usize,
        device: &Device,
        block_address: impl Fn(BlockId) -> Option<BlockAddress>,
    ) -> Result<Option<Self>> {
        let Device::Cuda(device) = device else { return Ok(None) };
        if kernel_width_index(head_dim).is_none() {
            return Ok(None);
        }
        let mut table = Vec::new();
        let mut ends = Vec::new();
        let mut blocks = Vec::new();
        for placed in runs {
            let first = blocks.len();
            let count = placed.run.context.len() + 1;
            let mut before = 0;
            for (block, tokens) in &placed.run.context {
                before += tokens;
                ends.push(before as u32);
                blocks.push(*block);
            }
            let last = placed.first + placed.rows.len();
            if last - before > placed.run.capacity {
                return Err(Error::job("a block of the KV cache has too few slots")
                    .expected(format!("at most {}", placed.run.capacity))
                    .found(last - before));
            }
            ends.push(last as u32);
            blocks.push(placed.run.block);
            for position in placed.first..last {
                table.extend([first, count, position, position - before].map(|number| number as u32));
            }
        }
        let rows = table.len() / 4;
        table.extend(ends);
        let block_addresses =
            blocks.iter().map(|&id| block_address(id)).collect::<Option<_>>().ok_or_else(not_cached_error)?;
        Ok(Some(Self { table: device.clone_htod(&table)?, rows, blocks, block_addresses }))
    }

    /// Returns the addresses of the blocks' keys and values for the attention step at a trie node.
    pub(in crate::model::candle) fn address_table(&self, node: usize, device: &Device) -> Result<AddressTable> {
        let table: Vec<[u64; 2]> = self
            .block_addresses
            .iter()
            .map(|block| {
                let keys = block.first + 2 * block.nodes.binary_search(&node).ok()? as u64 * block.value_offset;
                Some([keys, keys + block.value_offset])
            })
            .collect::<Option<_>>()
            .ok_or_else(not_cached_error)?;
        Ok(AddressTable {
            table: device.as_cuda_device()?.clone_htod(table.as_flattened())?,
            blocks: self.blocks.clone(),
        })
    }
}

/// Device addresses of each block's keys and values for one attention step. They do not change between tokens.
pub(in crate::model::candle) struct AddressTable {
    table: CudaSlice<u64>,
    blocks: Vec<BlockId>,
}

impl AddressTable {
    pub(in crate::model::candle) fn is_for(&self, visible: &VisibleBlocks) -> bool {
        self.blocks == visible.blocks
    }
}

/// Appends the keys and values of new rows to their blocks and computes attention over the cache.
///
/// # Shapes
/// `operands`: queries `[rows, H, D]`, keys and values `[rows, K, D]`; result `[rows, H·D]`.
pub(in crate::model::candle) fn attend(
    operands: [&Tensor; 3],
    visible: &VisibleBlocks,
    addresses: &AddressTable,
    window: Option<usize>,
    scores: Scores,
) -> Result<Tensor> {
    let operation = Attend { visible, addresses, window: window.unwrap_or(usize::MAX), scores };
    apply_ternary(operation, operands)
}

/// Returns the device address of a contiguous CUDA tensor, or 0 for other tensors.
pub(in crate::model::candle) fn device_address(x: &Tensor) -> Result<u64> {
    let (storage, layout) = x.storage_and_layout();
    Ok(match &*storage {
        Storage::Cuda(storage) => {
            let operand = DeviceTensor(storage, layout);
            by_type!(storage, operand.address())?
        }
        _ => 0,
    })
}

struct Attend<'a> {
    visible: &'a VisibleBlocks,
    addresses: &'a AddressTable,
    window: usize,
    scores: Scores,
}

impl TernaryOp for Attend<'_> {
    const NAME: &'static str = "attend";

    fn run<T: Number>(&self, [queries, keys, values]: [&DeviceTensor<'_>; 3]) -> CudaResult {
        let (rows, heads, width) = queries.1.shape().dims3()?;
        let (_, kv_heads, _) = keys.1.shape().dims3()?;
        if rows != self.visible.rows {
            return Err(Failed::msg(format!("attention got {rows} rows, expected {}", self.visible.rows)));
        }
        let device = queries.0.device();
        let out = queries.allocate::<T>(queries.count())?;
        launch!(
            kernel(device, &format!("keep_{}", T::NAME)),
            rows,
            THREADS,
            &keys.view::<T>()?,
            &values.view::<T>()?,
            &self.visible.table,
            &self.addresses.table,
            &((kv_heads * width) as u32)
        );
        // Group query heads that share keys as long as enough thread blocks remain to fill the GPU.
        let heads_per_block = [MAX_HEADS_PER_BLOCK, 4, 2]
            .into_iter()
            .find(|divisor| (heads / kv_heads).is_multiple_of(*divisor) && rows * heads / divisor >= MIN_BLOCKS)
            .unwrap_or(1);
        let kernel_width = kernel_width_index(width).map_or(0, |index| WIDTHS[index]);
        launch!(
            kernel(device, &format!("attend_{}_{kernel_width}", T::NAME)),
            rows * heads / heads_per_block,
            THREADS,
            &queries.view::<T>()?,
            &self.visible.table,
            &self.addresses.table,
            &out,
            &(rows as u32),
            &(heads as u32),
            &(heads_per_block as u32),
            &(kv_heads as u32),
            &(width as u32),
            &(self.window.min(u32::MAX as usize) as u32),
            &(self.scores.scale as f32),
            &self.scores.cap.unwrap_or(0.0)
        );
        Ok((queries.stored(out), (rows, heads * width).into()))
    }
}
