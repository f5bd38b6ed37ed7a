//! Writes a bf16 weight file block by block, with bounded memory.

use std::fs::File;
use std::io::Write;

use half::bf16;
use rayon::prelude::*;
use safetensors::Dtype;

use ghostlab_core::checkpoint::header;
use ghostlab_core::error::{Error, Result};

/// Random tensor to be written.
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// Key of the random generator.
    pub(super) key: u64,
    /// Standard deviation of a uniform distribution around 0; if `None`, all values are 1.
    pub(super) deviation: Option<f64>,
}

/// Bytes drawn before each write; small enough to stay in the cache.
const BLOCK: usize = 4 << 20;
/// Bytes that a thread draws at a time.
const SHARE: usize = 1 << 18;

impl Tensor {
    pub(super) fn bytes(&self) -> usize {
        2 * self.shape.iter().product::<usize>()
    }

    /// Draws the tensor's bytes from an offset. Offset and length are multiples of eight, except at the end of the
    /// tensor.
    fn draw(&self, offset: usize, bytes: &mut [u8]) {
        let Some(deviation) = self.deviation else {
            bytes.as_chunks_mut::<2>().0.fill(bf16::ONE.to_le_bytes());
            return;
        };
        // The distribution's maximum is `deviation * √3`, split into 2^15 steps on either side.
        let step = (deviation * 3_f64.sqrt() / 32_768.0) as f32;
        bytes.par_chunks_mut(SHARE).enumerate().for_each(|(share, bytes)| {
            let first = ((offset + share * SHARE) / 8) as u64;
            let (words, rest) = bytes.as_chunks_mut::<8>();
            let last = first + words.len() as u64;
            for (word, counter) in words.iter_mut().zip(first..) {
                *word = four(random(self.key, counter), step);
            }
            let end = four(random(self.key, last), step);
            rest.copy_from_slice(&end[..rest.len()]);
        });
    }
}

/// Converts 64 random bits into four bf16 values of 16 bits each. Zero is excluded, so that both signs are equally
/// frequent.
fn four(bits: u64, step: f32) -> [u8; 8] {
    let mut bytes = [0; 8];
    for (index, number) in bytes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let integer = (bits >> (16 * index)) as u16 as i16;
        *number = bf16::from_f32((f32::from(integer) + 0.5) * step).to_le_bytes();
    }
    bytes
}

/// Computes one element of the SplitMix64 sequence, so that any thread can draw any part. Source: Steele, Lea and
/// Flood, "Fast splittable pseudorandom number generators", 2014.
fn random(key: u64, counter: u64) -> u64 {
    let mut z = key.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Writes a safetensors file. Calls `wrote` with the bytes of each block.
///
/// # Errors
/// Fails if `wrote` fails, or if a write fails; `failed` adds the location.
pub(super) fn write(
    file: &mut File,
    tensors: &[Tensor],
    failed: impl Fn(&std::io::Error) -> Error,
    wrote: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<()> {
    let put = |file: &mut File, bytes: &[u8]| file.write_all(bytes).map_err(|error| failed(&error));
    let infos = tensors.iter().map(|tensor| (tensor.name.clone(), Dtype::BF16, tensor.shape.clone()));
    put(file, &header(infos.collect())?)?;
    let mut block = Vec::new();
    for tensor in tensors {
        let bytes = tensor.bytes();
        for offset in (0..bytes).step_by(BLOCK) {
            block.resize(BLOCK.min(bytes - offset), 0);
            tensor.draw(offset, &mut block);
            put(file, &block)?;
            wrote(block.len())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(numbers: usize, deviation: Option<f64>) -> Tensor {
        Tensor { name: "w".into(), shape: vec![numbers], key: 7, deviation }
    }

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        let mut bytes = vec![0; tensor.bytes()];
        tensor.draw(0, &mut bytes);
        bytes.as_chunks::<2>().0.iter().map(|word| bf16::from_le_bytes(*word).to_f32()).collect()
    }

    #[test]
    fn numbers_have_the_deviation_and_neighbours_are_unlike() {
        let drawn = numbers(&tensor(200_003, Some(0.02)));
        let count = drawn.len() as f64;
        let mean = drawn.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        let square = drawn.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / count;
        assert!(mean.abs() < 2e-4 && (square.sqrt() / 0.02 - 1.0).abs() < 0.01, "{mean} {square}");
        for lag in 1..9 {
            let product: f64 = drawn.iter().zip(&drawn[lag..]).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
            assert!((product / count / square).abs() < 0.02, "{lag}");
        }
        assert!(numbers(&tensor(5, None)).iter().all(|&x| x == 1.0));
    }

    #[test]
    fn a_part_drawn_by_itself_is_that_part_of_the_whole() {
        let tensor = tensor((SHARE + 11) / 2 * 3, Some(1.0));
        let mut integer = vec![0; tensor.bytes()];
        tensor.draw(0, &mut integer);
        for offset in [8, SHARE, SHARE + 64] {
            let mut part = vec![0; tensor.bytes() - offset];
            tensor.draw(offset, &mut part);
            assert!(part == integer[offset..], "{offset}");
        }
    }
}
