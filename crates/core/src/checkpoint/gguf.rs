//! A variant as one GGUF file, which llama.cpp loads: the names, keys and orders of rows are those of its converter.

use std::io::Write;
use std::path::Path;

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor as Array};

use super::layout::{Content, Layout, Tensor};
use super::shards::{each_block, encode};
use crate::error::{Error, Result};
use crate::files::gguf_writer::{self, GgufInfo, padding};
use crate::model::architecture::GgufForm;
use crate::model::config::{Llama3Scaling, Scaling};
use crate::model::gguf::{ROPE_FACTORS, divisors_of, name_in_gguf, takes_turns};
use crate::model::{Config, FloatType};

/// What the matrices of a GGUF file are written in. Norms and biases are f32, as llama.cpp wants them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufType {
    F32,
    Bf16,
    F16,
    Q8_0,
}

impl GgufType {
    pub const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::F16, Self::Q8_0];

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// `general.file_type` (llama.h, `llama_ftype`).
    fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    /// What a tensor is written in: rows that are no whole blocks stay f16.
    fn of(self, shape: &[usize]) -> GgmlDType {
        match self {
            _ if shape.len() < 2 => GgmlDType::F32,
            Self::F32 => GgmlDType::F32,
            Self::Bf16 => GgmlDType::BF16,
            Self::Q8_0 if shape.last().is_some_and(|row| row % GgmlDType::Q8_0.block_size() == 0) => GgmlDType::Q8_0,
            Self::F16 | Self::Q8_0 => GgmlDType::F16,
        }
    }
}

impl std::str::FromStr for GgufType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|of| of.name() == text);
        known.ok_or_else(|| format!("`{text}` is none of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// What a file says besides its tensors and its shape.
#[derive(Debug, Clone)]
pub struct GgufText {
    /// `general.name`
    pub name: String,
    /// Of the tokenizer, and whatever else.
    pub entries: Vec<(String, Value)>,
}

/// Refuses a variant that a GGUF file cannot say, or that llama.cpp would compute otherwise.
///
/// # Errors
/// Operators beside the weights; an architecture that is not llama.cpp's; windows, which it does not honour there.
pub fn fits_gguf(config: &Config, layout: &Layout) -> Result<GgufForm> {
    let refused = |expected: &str, found: String| {
        Error::bad_input("the cell has no form as GGUF")
            .expected(expected)
            .found(found)
            .hint("export a Hugging Face folder instead: `--to FOLDER` without --gguf")
    };
    let form = config.architecture.gguf;
    let form = form.ok_or_else(|| refused("an architecture of llama.cpp", config.architecture.class.to_owned()))?;
    if !layout.attached.is_empty() {
        let found = format!("{} operators beside the weights", layout.attached.len());
        return Err(refused("a repair that weights take in, since GGUF has no place for operators", found));
    }
    let context = config.max_positions.unwrap_or(usize::MAX);
    let narrow = layout.kept.iter().filter_map(|&layer| config.windows[layer]).filter(|&window| window < context).min();
    if let Some(window) = narrow {
        let expected = format!("no sliding windows, which llama.cpp does not honour in `{}`", form.name);
        return Err(refused(&expected, format!("a window of {window} tokens")));
    }
    llama3(config)?;
    Ok(form)
}

/// The rope scaling that a file has a tensor for, where there is one.
fn llama3(config: &Config) -> Result<Option<Llama3Scaling>> {
    match &config.rope.scaling {
        None => Ok(None),
        Some(Scaling::Llama3(of)) => Ok(Some(*of)),
        Some(other) => Err(Error::bad_input("the cell has no form as GGUF")
            .expected("the rope type `default` or `llama3`")
            .found(format!("`{}`", other.name()))
            .hint("export a Hugging Face folder instead: `--to FOLDER` without --gguf")),
    }
}

impl Layout {
    /// Bytes of a GGUF file's tensors.
    pub fn gguf_bytes(&self, of: GgufType) -> u64 {
        self.tensors
            .iter()
            .map(|tensor| {
                (tensor.numbers() / of.of(&tensor.shape).block_size() as u64) * of.of(&tensor.shape).type_size() as u64
            })
            .sum()
    }

    /// Writes the variant as a GGUF file. `wrote` is told of every block's bytes.
    ///
    /// # Errors
    /// As [`fits_gguf`] and [`Layout::write`].
    pub fn write_gguf(
        &self,
        config: &Config,
        numbers: GgufType,
        text: &GgufText,
        path: &Path,
        out: &mut dyn Write,
        wrote: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let form = fits_gguf(config, self)?;
        let named = |tensor: &Tensor| {
            let unnamed = || Error::job("a tensor has no name in GGUF files").at(format!("tensor {}", tensor.name));
            let name = name_in_gguf(config.architecture, &tensor.name).ok_or_else(unnamed)?;
            Ok(GgufInfo { name, dtype: numbers.of(&tensor.shape), shape: tensor.shape.clone() })
        };
        let mut infos = self.tensors.iter().map(named).collect::<Result<Vec<_>>>()?;
        let factors = llama3(config)?.map(|of| {
            let llama3 = [of.factor, of.low_freq_factor, of.high_freq_factor, of.original_max_position_embeddings];
            divisors_of(config.rope.theta, config.head_dim / 2, llama3)
        });
        if let Some(factors) = &factors {
            infos.push(GgufInfo { name: ROPE_FACTORS.to_owned(), dtype: GgmlDType::F32, shape: vec![factors.len()] });
        }
        let mut put = |bytes: &[u8]| {
            out.write_all(bytes).map_err(|error| Error::io("write", path, &error))?;
            wrote(bytes.len() as u64)
        };
        put(&gguf_writer::header(&self.gguf_entries(config, form, numbers, text), &infos)?)?;
        for (tensor, info) in self.tensors.iter().zip(&infos) {
            let mut bytes = Vec::new();
            let mut write = |values: &[f32]| {
                stored(tensor, info.dtype, values, &mut bytes)?;
                put(&bytes)
            };
            match &tensor.content {
                Content::Stored(name) if takes_turns(form, &tensor.name) => {
                    write(&in_turns(&self.weights.take(name, &tensor.shape)?, tensor.shape[0], config.head_dim))?;
                }
                _ => each_block(tensor, &self.weights, &mut write)?,
            }
            put(&vec![0; padding(info.bytes())])?;
        }
        if let Some(factors) = factors {
            let bytes: Vec<u8> = factors.iter().flat_map(|of| (*of as f32).to_le_bytes()).collect();
            put(&bytes)?;
            put(&vec![0; padding(bytes.len())])?;
        }
        Ok(())
    }

    fn gguf_entries(
        &self,
        config: &Config,
        form: GgufForm,
        numbers: GgufType,
        text: &GgufText,
    ) -> Vec<(String, Value)> {
        let count = |n: usize| Value::U32(u32::try_from(n).unwrap_or(u32::MAX));
        let general = [
            ("architecture", Value::String(form.name.to_owned())),
            ("type", Value::String("model".to_owned())),
            ("name", Value::String(text.name.clone())),
            ("file_type", Value::U32(numbers.number())),
            ("quantization_version", Value::U32(2)),
            ("alignment", Value::U32(32)),
        ];
        // A context that the config does not tell: what every llama.cpp program asks for by itself.
        let context = config.max_positions.unwrap_or(2048);
        let own = [
            ("block_count", count(self.kept.len())),
            ("context_length", count(context)),
            ("embedding_length", count(config.hidden)),
            ("feed_forward_length", count(config.intermediate)),
            ("attention.head_count", count(config.heads)),
            ("attention.head_count_kv", count(config.kv_heads)),
            ("attention.key_length", count(config.head_dim)),
            ("attention.value_length", count(config.head_dim)),
            ("attention.layer_norm_rms_epsilon", Value::F32(config.norm_eps)),
            ("rope.dimension_count", count(config.head_dim)),
            ("rope.freq_base", Value::F32(config.rope.theta as f32)),
            ("vocab_size", count(config.vocab)),
        ];
        let general = general.map(|(key, value)| (format!("general.{key}"), value));
        let own = own.map(|(key, value)| (format!("{}.{key}", form.name), value));
        general.into_iter().chain(own).chain(text.entries.iter().cloned()).collect()
    }
}

/// Rows of heads with their first and second half by turns: row 2·i + j of a head is row i of its half j.
fn in_turns(values: &[f32], rows: usize, head_dim: usize) -> Vec<f32> {
    let inner = values.len() / rows.max(1);
    let half = head_dim / 2;
    let mut out = Vec::with_capacity(values.len());
    for row in 0..rows {
        let (head, of) = (row / head_dim * head_dim, row % head_dim);
        let from = head + of % 2 * half + of / 2;
        out.extend_from_slice(&values[from * inner..(from + 1) * inner]);
    }
    out
}

/// Numbers as the file holds them.
fn stored(tensor: &Tensor, dtype: GgmlDType, values: &[f32], bytes: &mut Vec<u8>) -> Result<()> {
    let float = match dtype {
        GgmlDType::F32 => FloatType::F32,
        GgmlDType::BF16 => FloatType::Bf16,
        GgmlDType::F16 => FloatType::F16,
        dtype => {
            let array = Array::from_slice(values, values.len(), &Device::Cpu)?;
            let quantised = QTensor::quantize(&array, dtype)?;
            bytes.clear();
            bytes.extend_from_slice(&quantised.data()?);
            return Ok(());
        }
    };
    encode(&tensor.name, float, values, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_heads_take_turns() {
        // Two heads of four rows, of one number each.
        let values = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0];
        assert_eq!(in_turns(&values, 8, 4), [0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0]);
    }

    #[test]
    fn rows_that_are_no_whole_blocks_stay_in_f16_and_norms_in_f32() {
        for (of, shape, expected) in [
            (GgufType::Q8_0, &[4, 64][..], GgmlDType::Q8_0),
            (GgufType::Q8_0, &[4, 40], GgmlDType::F16),
            (GgufType::Q8_0, &[64], GgmlDType::F32),
            (GgufType::Bf16, &[64], GgmlDType::F32),
            (GgufType::Bf16, &[1, 3], GgmlDType::BF16),
        ] {
            assert_eq!(of.of(shape), expected, "{of:?} {shape:?}");
        }
    }
}
